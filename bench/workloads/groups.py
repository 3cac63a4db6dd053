"""P8: four publishers, two subscriptions with three workers each, beside one publisher and one worker."""

from __future__ import annotations

import time
from typing import Final, cast

from bench import ours
from bench.crew import DEADLINE_S, Crew
from bench.peers import PEERS
from bench.peers.lane import GroupLane, Peer
from bench.tally import tally
from bench.terms import Terms
from bench.workload import Contestant, Outcome, Side, Target, Workload
from bench.workloads import pipelined

PUBLISHERS: Final = 4
GROUPS: Final = 2
WORKERS: Final = 3
"""Of each group."""

_LOOK_S: Final = 0.01
"""Between looks at how far the workers are: a hundredth of a second or less of a full round."""


def contestant(peer: Peer, amounts: tuple[int, int]) -> Contestant:
    """All publishers and workers at once, until every delivery is acked."""

    def once(terms: Terms) -> Outcome:
        each = terms.choose(*amounts) // PUBLISHERS
        total = each * PUBLISHERS * GROUPS
        with tally(GROUPS * WORKERS) as counts, peer.open(terms, GROUPS) as opened, Crew() as crew:
            lane = cast("GroupLane", opened)
            workers = [
                crew.add(lane.work, group, worker, counts.worker(group * WORKERS + worker))
                for group in range(GROUPS)
                for worker in range(WORKERS)
            ]
            publishers = [crew.add(lane.stream_in, each) for _ in range(PUBLISHERS)]
            started = crew.begin()
            while (acked := lane.acked(counts)) < total:
                if time.monotonic() > started + DEADLINE_S:
                    raise TimeoutError(f"only {acked} of {total} deliveries were acked within {DEADLINE_S:g} s")
                time.sleep(_LOOK_S)
            took = time.monotonic() - started
            lane.end(counts)
            for child in (*publishers, *workers):
                child.result()
        return Outcome(total / took)

    return Contestant(peer.name, once, peer.side)


def _alone(peer: Peer) -> Contestant:
    """P1 in this run, under a name of its own."""
    assert peer.stream is not None
    return Contestant(f"{peer.name}, 1 to 1", pipelined.contestant(peer, peer.stream).round, Side.OURS)


_ALONE = (_alone(ours.PIPELINED), _alone(ours.BATCHES_100))

WORKLOAD = Workload(
    "P8",
    f"{PUBLISHERS} publishers to {GROUPS} subscriptions of {WORKERS} workers each, 100 B, deliveries acked a second",
    "deliveries/s",
    higher_is_better=True,
    contestants=(
        *(contestant(peer, peer.groups) for peer in ours.OURS if peer.groups is not None),
        *_ALONE,
        *(contestant(peer, peer.groups) for peer in PEERS if peer.groups is not None),
    ),
    targets=(
        Target(ours.PIPELINED.name, _ALONE[0].name, 0.8, at_least=True),
        Target(ours.BATCHES_100.name, _ALONE[1].name, 0.8, at_least=True),
    ),
)
