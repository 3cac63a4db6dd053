"""pyzmq: PUSH to PULL over ipc, no broker and no acks; one message a send, copied, as is fastest for small ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from bench.peers.lane import PACED, Peer, PlainLane
from bench.server import folder
from bench.terms import Terms
from bench.workload import load

_HIGH_WATER: Final = 100_000
"""Messages that each side may hold before a send waits: enough that neither ever idles for the other."""


@dataclass(frozen=True, slots=True)
class PushPull(PlainLane):
    """The receiver binds, the sender connects, in whatever order they start."""

    address: str

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[bytes], object]]:
        zmq = load("zmq", "pyzmq")
        # Leaving the context waits until all is sent: linger is for ever unless it is set.
        with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
            socket.set_hwm(_HIGH_WATER)
            socket.connect(self.address)
            yield socket.send

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[], bytes]]:
        zmq = load("zmq", "pyzmq")
        with zmq.Context() as context, context.socket(zmq.PULL) as socket:
            socket.set_hwm(_HIGH_WATER)
            socket.bind(self.address)
            yield socket.recv


@contextlib.contextmanager
def opened(terms: Terms, groups: int) -> Iterator[PushPull]:
    zmq = load("zmq", "pyzmq")
    with folder() as place:
        address = f"ipc://{place}/z"
        if len(address) - len("ipc://") > zmq.IPC_PATH_MAX_LEN:
            raise OSError(f"{address} is too long for a socket; set TMPDIR to a folder with a shorter path")
        yield PushPull(address)


PEER = Peer("pyzmq PUSH/PULL", opened, stream=(100_000, 2_000_000), paced=PACED)
