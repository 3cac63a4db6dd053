"""P1: one publisher to one worker, 100 bytes a message, each way as it is documented to be used fast.

The clock stops when mpbroker has counted the last ack, when the last ack is confirmed for peers that ack, and when the
last message is received for those that don't.
"""

from __future__ import annotations

from bench import ours
from bench.crew import Crew
from bench.peers import PEERS, interprocess, jetstream, mp_queue, valkey_streams, zeromq
from bench.peers.lane import Peer
from bench.terms import Terms
from bench.workload import Contestant, Outcome, Target, Workload


def contestant(peer: Peer, amounts: tuple[int, int]) -> Contestant:
    """One stream through a way to carry messages."""

    def once(terms: Terms) -> Outcome:
        count = terms.choose(*amounts)
        with peer.open(terms, 1) as lane, Crew() as crew:
            worker = crew.add(lane.stream_out, count)
            publisher = crew.add(lane.stream_in, count)
            started = crew.begin()
            took = worker.result() - started
            publisher.result()
        return Outcome(count / took)

    return Contestant(peer.name, once, peer.side)


_OURS = ours.PIPELINED.name

WORKLOAD = Workload(
    "P1",
    "100 B, 1 publisher to 1 worker; mpbroker, Valkey and JetStream ack every message, the others none",
    "messages/s",
    higher_is_better=True,
    contestants=tuple(contestant(peer, peer.stream) for peer in (*ours.OURS, *PEERS) if peer.stream is not None),
    targets=(
        Target(_OURS, zeromq.PEER.name, 1.0, at_least=True),
        Target(_OURS, interprocess.PEER.name, 0.4, at_least=True),
        Target(_OURS, mp_queue.PEER.name, 10, at_least=True),
        Target(_OURS, valkey_streams.PEER.name, 20, at_least=True),
        Target(_OURS, jetstream.PEER.name, 100, at_least=True),
    ),
)
