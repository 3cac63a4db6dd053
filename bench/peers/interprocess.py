"""cloudtoid-interprocess: a native queue in shared memory, no broker and no acks: the nearest thing to the limit."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.crew import Gate
from bench.measure import PAYLOAD
from bench.peers.lane import PACED, Peer, PlainLane
from bench.server import folder
from bench.terms import Terms
from bench.workload import load

_QUEUE_BYTES: Final = 2**24
_BATCH: Final = 100
_FULL_S: Final = 0.00005
"""Before a full queue is tried again; the caller of this queue decides about that."""

_SEMAPHORES: Final = Path("/dev/shm")
"""Where Linux shows named semaphores: this queue has one, whatever folder its memory lies in."""


@dataclass(frozen=True, slots=True)
class NativeLane(PlainLane):
    """The process that measures holds an end of its own, so that the queue outlives either child's end."""

    name: str
    place: str

    def end(self, kind: str) -> Any:
        """A Publisher or a Subscriber of this queue."""
        library = load("cloudtoid_interprocess", "cloudtoid-interprocess")
        return getattr(library, kind)(self.name, _QUEUE_BYTES, self.place)

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[bytes], object]]:
        with self.end("Publisher") as publisher:
            try_send = publisher.try_send

            def send(payload: bytes) -> None:
                while not try_send(payload):
                    time.sleep(_FULL_S)

            yield send

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[], bytes]]:
        with self.end("Subscriber") as subscriber:
            yield subscriber.receive

    def stream_in(self, gate: Gate, count: int) -> None:
        batch = [PAYLOAD] * _BATCH
        with self.end("Publisher") as publisher:
            send_batch = publisher.try_send_batch
            gate.wait()
            left = count
            while left:
                sent = send_batch(batch if left >= _BATCH else batch[:left])
                left -= sent
                if not sent:
                    time.sleep(_FULL_S)


@contextlib.contextmanager
def opened(terms: Terms, groups: int) -> Iterator[NativeLane]:
    name = f"mpb-{os.getpid()}-{secrets.token_hex(4)}"
    with folder() as place:
        lane = NativeLane(name, str(place))
        try:
            with lane.end("Publisher"):
                yield lane
        finally:
            # The last end removes it; ends that were killed could not.
            for left in _SEMAPHORES.glob(f"sem.*{name}*"):
                left.unlink(missing_ok=True)


PEER = Peer("cloudtoid-interprocess", opened, stream=(100_000, 3_000_000), paced=PACED)
