"""multiprocessing.Queue: a pipe, a lock and pickles; nothing is acked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.crew import SPAWN
from bench.peers.lane import PACED, Peer, PlainLane
from bench.terms import Terms


@dataclass(frozen=True, slots=True)
class QueueLane(PlainLane):
    """A queue of multiprocessing's shape; the lane's own end sends and receives nothing."""

    queue: Any

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[bytes], object]]:
        yield self.queue.put

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[], bytes]]:
        yield self.queue.get


@contextlib.contextmanager
def opened(terms: Terms, groups: int) -> Iterator[QueueLane]:
    queue = SPAWN.Queue()
    try:
        yield QueueLane(queue)
    finally:
        queue.close()
        queue.join_thread()


PEER = Peer("multiprocessing.Queue", opened, stream=(10_000, 200_000), paced=PACED)
