"""P2: one confirmed publish, beside what else confirms, and beside bare round trips between two processes."""

from __future__ import annotations

from bench import ours
from bench.measure import typical
from bench.peers import PEERS, base_manager, ping_pong
from bench.peers.lane import Peer
from bench.terms import Terms
from bench.workload import Contestant, Outcome, Target, Workload


def contestant(peer: Peer, amounts: tuple[int, int]) -> Contestant:
    """Calls one after the other, each until its answer is here."""

    def once(terms: Terms) -> Outcome:
        with peer.open(terms, 1) as lane:
            return typical(lane.confirmed(terms.choose(*amounts)))

    return Contestant(peer.name, once, peer.side)


WORKLOAD = Workload(
    "P2",
    "one confirmed publish of 100 B, median",
    "µs",
    higher_is_better=False,
    contestants=tuple(contestant(peer, peer.calls) for peer in (*ours.OURS, *PEERS) if peer.calls is not None),
    targets=(
        Target(ours.CALLED.name, ping_pong.EVENTFD.name, 1.5),
        Target(ours.CALLED.name, base_manager.PEER.name, 0.5),
    ),
)
