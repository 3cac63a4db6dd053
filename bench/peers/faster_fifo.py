"""faster-fifo: a ring in shared memory behind a lock, with many messages for one lock, as its README says."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.crew import DEADLINE_S, Gate
from bench.measure import PAYLOAD
from bench.peers.lane import PACED, Peer, PlainLane
from bench.terms import Terms
from bench.workload import load

_RING_BYTES: Final = 2**24
_BATCH: Final = 100
_MOST: Final = 1000
"""Messages of one get_many."""


@dataclass(frozen=True, slots=True)
class FifoLane(PlainLane):
    """Streams go through put_many and get_many, single messages through put and get."""

    queue: Any

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[bytes], object]]:
        yield partial(self.queue.put, timeout=DEADLINE_S)

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[], bytes]]:
        yield partial(self.queue.get, timeout=DEADLINE_S)

    def stream_in(self, gate: Gate, count: int) -> None:
        batch, rest = [PAYLOAD] * _BATCH, [PAYLOAD] * (count % _BATCH)
        gate.wait()
        for _ in range(count // _BATCH):
            self.queue.put_many(batch, timeout=DEADLINE_S)
        if rest:
            self.queue.put_many(rest, timeout=DEADLINE_S)

    def stream_out(self, gate: Gate, count: int) -> float:
        done = 0
        gate.wait()
        while done < count:
            done += len(self.queue.get_many(timeout=DEADLINE_S, max_messages_to_get=_MOST))
        return time.monotonic()


@contextlib.contextmanager
def opened(terms: Terms, groups: int) -> Iterator[FifoLane]:
    yield FifoLane(load("faster_fifo", "faster-fifo").Queue(_RING_BYTES))


PEER = Peer("faster-fifo, batches of 100", opened, stream=(50_000, 1_000_000))
CALLED = Peer("faster-fifo", opened, paced=PACED)
