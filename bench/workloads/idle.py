"""P11: what a broker and eight waiting workers use while there is nothing to do."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from bench.crew import Crew, Gate
from bench.measure import cpu_s
from bench.ours import PREFETCH, TOPIC, broker_of
from bench.terms import Scale, Terms
from bench.workload import Contestant, Outcome, Side, Target, Workload
from mpbroker import UnknownSubscription

_WORKERS: Final = 8
_WATCHED_S: Final = {Scale.TINY: 0.1, Scale.QUICK: 1.0, Scale.FULL: 10.0}
_SETTLED_S: Final = 0.5
"""Until the workers have come to rest in their waits."""


def _poll(gate: Gate, subscription: Any, member: str) -> None:
    subscription.poll(member)  # connects
    gate.wait()
    with contextlib.suppress(UnknownSubscription):
        subscription.poll(member, timeout=None)


def _consume(gate: Gate, subscription: Any, member: str) -> None:
    with (
        contextlib.suppress(UnknownSubscription),
        subscription.consume(member, prefetch=PREFETCH) as deliveries,
    ):
        gate.wait()
        for delivery in deliveries:
            delivery.ack()


def _idle_s(terms: Terms, wait: Any) -> Outcome:
    watched_s = _WATCHED_S[terms.scale]
    with broker_of(terms) as (manager, broker), Crew() as crew:
        subscription = broker.subscribe(TOPIC, "group")
        workers = [crew.add(wait, subscription, f"w{number}") for number in range(_WORKERS)]
        crew.begin()
        time.sleep(0 if terms.scale is Scale.TINY else _SETTLED_S)
        pids = [manager.pid, *(worker.process.pid for worker in workers)]
        before = cpu_s(pids)
        time.sleep(watched_s)
        used = cpu_s(pids) - before
        broker.unsubscribe(TOPIC, "group")
        for worker in workers:
            worker.result()
    return Outcome(used * _WATCHED_S[Scale.FULL] / watched_s)


def _polling(terms: Terms) -> Outcome:
    return _idle_s(terms, _poll)


def _consuming(terms: Terms) -> Outcome:
    return _idle_s(terms, _consume)


WORKLOAD = Workload(
    "P11",
    f"CPU time of the broker and {_WORKERS} waiting workers together, in 10 s without messages",
    "s",
    higher_is_better=False,
    contestants=(
        Contestant("workers that poll", _polling, Side.OURS),
        Contestant("workers that consume", _consuming, Side.OURS),
    ),
    targets=(
        Target("workers that poll", None, 0.1, below=True),
        Target("workers that consume", None, 0.1, below=True),
    ),
)
