"""Manager().Queue: a queue behind a manager's proxy, one call a message; put returns when it is in the queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench.crew import SPAWN
from bench.peers.lane import CALLS, PACED, Peer
from bench.peers.mp_queue import QueueLane
from bench.terms import Terms


@contextlib.contextmanager
def opened(terms: Terms, groups: int) -> Iterator[QueueLane]:
    with SPAWN.Manager() as manager:
        yield QueueLane(manager.Queue())


PEER = Peer("Manager().Queue", opened, stream=(1_000, 20_000), calls=CALLS, paced=PACED)
