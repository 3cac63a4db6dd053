"""P4: one array of 8 MiB at a time, which a worker sums and acks; the CPU time of all processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from bench.crew import SPAWN, Crew
from bench.peers import arrays
from bench.peers.arrays import Way
from bench.terms import Terms
from bench.workload import Contestant, Outcome, Side, Target, Workload

_COUNT: Final = (5, 300)

OURS: Final = "mpbroker, arrays"
LIMIT: Final = "memcpy and sum"
QUEUE: Final = "multiprocessing.Queue, arrays"


def contestant(name: str, opened: Callable[[Terms], AbstractContextManager[Way]], side: Side = Side.PEER) -> Contestant:
    """A sender and a receiver, one array between them."""

    def once(terms: Terms) -> Outcome:
        count = terms.choose(*_COUNT)
        taken = SPAWN.Semaphore(0)
        with opened(terms) as way, Crew() as crew:
            receiver = crew.add(way.receive, count, taken)
            sender = crew.add(way.send, count, taken)
            before = way.others_s()
            crew.begin()
            used_s = receiver.result() + sender.result() + way.others_s() - before
        return Outcome(1000 * used_s / count)

    return Contestant(name, once, side)


def _limit(terms: Terms) -> Outcome:
    count = terms.choose(*_COUNT)
    with Crew() as crew:
        child = crew.add(arrays.copy_and_sum, count)
        crew.begin()
        return Outcome(1000 * child.result() / count)


WORKLOAD = Workload(
    "P4",
    "an array of 8 MiB at a time: published, summed by a worker, acked; CPU time of all processes",
    "ms",
    higher_is_better=False,
    contestants=(
        contestant(OURS, arrays.ours_opened, Side.OURS),
        Contestant(LIMIT, _limit, Side.LIMIT),
        contestant("SharedMemory by hand", arrays.by_hand_opened, Side.LIMIT),
        contestant("pyzmq PUSH/PULL, arrays", arrays.push_pull_opened),
        contestant(QUEUE, arrays.queue_opened),
    ),
    targets=(Target(OURS, LIMIT, 1.25), Target(OURS, QUEUE, 0.1)),
)
