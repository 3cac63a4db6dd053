"""P11-neighbours: how long a message of one topic takes while another one is flooded at half of what P1 reaches."""

from __future__ import annotations

import time
from typing import Any, Final

from bench import ours
from bench.crew import SPAWN, Crew, Gate
from bench.measure import PAYLOAD, typical
from bench.peers.lane import PACED
from bench.terms import Scale, Terms
from bench.workload import Contestant, Outcome, Side, Target, Workload
from bench.workloads import latency, pipelined

_FLOOD: Final = "flood"
_SHARE: Final = 0.5
"""Of the rate of P1, measured in the same round."""

_BURST_S: Final = 0.001
"""The flood sends what is due so often."""

_KEPT: Final = 0.9
"""The share of its rate that the flood must have reached, for the figure to count."""


def _flood(gate: Gate, broker: Any, rate: float, over: Any) -> float:
    """Publish so many messages a second until it is over; returns the rate that it was."""
    broker.topics()  # connects
    with broker.publisher(_FLOOD) as publisher:
        gate.wait()
        began = time.monotonic()
        sent = 0
        while not over.is_set():
            due = int((time.monotonic() - began) * rate)
            for _ in range(due - sent):
                publisher.publish(PAYLOAD)
            sent = max(sent, due)
            time.sleep(_BURST_S)
        publisher.flush()
        return sent / (time.monotonic() - began)


def _beside_a_flood(terms: Terms) -> Outcome:
    rate = _SHARE * pipelined.WORKLOAD.contestants[0].round(terms).value
    count = terms.choose(*PACED)
    over, taken = SPAWN.Event(), SPAWN.Semaphore(0)
    with ours.broker_of(terms) as (_, broker), Crew() as crew:
        broker.create_topic(_FLOOD)
        flooded = ours.Pipelined(broker, [broker.subscribe(_FLOOD, "group", max_queue=ours.ROOM)])
        watched = ours.OursLane(broker, [broker.subscribe(ours.TOPIC, "watched")])
        flood = crew.add(_flood, broker, rate, over)
        drain = crew.add(flooded.work, 0, 0, None)
        worker = crew.add(watched.paced_out, count, taken)
        publisher = crew.add(watched.paced_in, count, taken)
        crew.begin()
        ages: list[float] = worker.result()
        publisher.result()
        over.set()
        kept = flood.result() / rate
        broker.unsubscribe(_FLOOD, "group")
        drain.result()
    if terms.scale is Scale.FULL and kept < _KEPT:
        raise RuntimeError(f"the flood kept only {kept:.0%} of its rate of {rate:,.0f} messages/s")
    return typical(ages[len(ages) // 20 :])


def _alone(terms: Terms) -> Outcome:
    assert ours.CALLED.paced is not None
    return latency.contestant(ours.CALLED, ours.CALLED.paced).round(terms)


WORKLOAD = Workload(
    "P11-neighbours",
    "publish() called to delivery, as in P3, while another topic has half of P1's rate",
    "µs",
    higher_is_better=False,
    contestants=(
        Contestant("alone", _alone, Side.OURS),
        Contestant("beside the flood", _beside_a_flood, Side.OURS),
    ),
    targets=(Target("beside the flood", "alone", 3.0),),
)
