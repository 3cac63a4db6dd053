"""P3: from the publish call to the delivery in the hand of a worker that waits, one message at a time."""

from __future__ import annotations

from bench import ours
from bench.crew import SPAWN, Crew
from bench.measure import typical
from bench.peers import PEERS, mp_queue, ping_pong
from bench.peers.lane import Peer
from bench.terms import Terms
from bench.workload import Contestant, Outcome, Target, Workload
from bench.workloads import confirmed


def contestant(peer: Peer, amounts: tuple[int, int]) -> Contestant:
    """Stamps, each sent when the one before it was taken and its reader waits again."""

    def once(terms: Terms) -> Outcome:
        count = terms.choose(*amounts)
        taken = SPAWN.Semaphore(0)
        with peer.open(terms, 1) as lane, Crew() as crew:
            worker = crew.add(lane.paced_out, count, taken)
            publisher = crew.add(lane.paced_in, count, taken)
            crew.begin()
            ages: list[float] = worker.result()
            publisher.result()
        return typical(ages[len(ages) // 20 :])

    return Contestant(peer.name, once, peer.side)


def _limit(peer: Peer) -> Contestant:
    """A round trip, one right after the other: what a delivery is compared with, though that waits in between."""
    assert peer.calls is not None
    return confirmed.contestant(peer, peer.calls)


WORKLOAD = Workload(
    "P3",
    "publish() called to delivery in the hand of a waiting worker, one at a time, median",
    "µs",
    higher_is_better=False,
    contestants=(
        *(contestant(peer, peer.paced) for peer in (*ours.OURS, *PEERS) if peer.paced is not None),
        _limit(ping_pong.EVENTFD),
        _limit(ping_pong.TWO_CPUS),
    ),
    targets=(
        Target(ours.CALLED.name, mp_queue.PEER.name, 1.0),
        Target(ours.CALLED.name, ping_pong.EVENTFD.name, 2.0),
        Target(ours.CONSUMED.name, mp_queue.PEER.name, 1.0),
        Target(ours.CONSUMED.name, ping_pong.EVENTFD.name, 2.0),
    ),
)
