"""P6: what a million waiting messages cost, in time and in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import psutil

from bench import cycles
from bench.measure import PAYLOAD
from bench.ours import ROOM, TOPIC, broker_of
from bench.terms import Terms
from bench.workload import Contestant, Outcome, Side, Target, Workload

_FILL: Final = 1000
"""Messages a call, to make a backlog."""

_BATCH: Final = 100
_FULL, _EMPTY = "backlog of 1,000,000", "empty"


def _fill(broker: Any, count: int, batch: int = _FILL) -> None:
    for _ in range(count // batch):
        broker.publish_many(TOPIC, [PAYLOAD] * batch)
    if rest := count % batch:
        broker.publish_many(TOPIC, [PAYLOAD] * rest)


def _one_by_one(broker: Any, subscription: Any, count: int) -> None:
    for _ in range(count):
        broker.publish(TOPIC, PAYLOAD)
        subscription.poll("worker")[0].ack()


def _in_batches(broker: Any, subscription: Any, count: int) -> None:
    cycles.calls(broker, subscription, count // cycles.CYCLE)


def _pipelined(broker: Any, subscription: Any, count: int) -> None:
    cycles.pipelined(broker, subscription, count // cycles.CYCLE)


def _a_message_us(terms: Terms, form: Callable[[Any, Any, int], None], count: int, backlog: int) -> Outcome:
    """One publish, poll and ack, with so many messages waiting; microseconds a message."""
    with broker_of(terms) as (_, broker):
        subscription = broker.subscribe(TOPIC, "group", max_queue=ROOM)
        _fill(broker, backlog)
        started = time.perf_counter()
        form(broker, subscription, count)
        took = time.perf_counter() - started
    return Outcome(took / count * 1e6)


def _backlog(terms: Terms) -> int:
    return terms.choose(50_000, 1_000_000, tiny=2_000)


def _bytes_a_message(terms: Terms, count: int, batch: int) -> Outcome:
    """How much larger the broker process is for each message that waits, without its payload."""
    with broker_of(terms) as (manager, broker):
        broker.subscribe(TOPIC, "group", max_queue=ROOM)
        process = psutil.Process(manager.pid)
        _fill(broker, 1000, batch)
        before = process.memory_info().rss
        if batch == 1:
            for _ in range(count):
                broker.publish(TOPIC, PAYLOAD)
        else:
            _fill(broker, count, batch)
        grown = process.memory_info().rss - before
    return Outcome(grown / count - len(PAYLOAD))


def _time(key: str, title: str, form: Callable[[Any, Any, int], None], amounts: tuple[int, int], tiny: int) -> Workload:
    def beside(terms: Terms) -> Outcome:
        return _a_message_us(terms, form, terms.choose(*amounts, tiny=tiny), _backlog(terms))

    def empty(terms: Terms) -> Outcome:
        return _a_message_us(terms, form, terms.choose(*amounts, tiny=tiny), 0)

    return Workload(
        key,
        title,
        "µs a message",
        higher_is_better=False,
        contestants=(Contestant(_FULL, beside, Side.OURS), Contestant(_EMPTY, empty, Side.OURS)),
        targets=(Target(_FULL, _EMPTY, 1.1),),
    )


WORKLOADS = (
    _time(
        "P6-calls",
        "publish, poll and ack of one message beside a backlog, a call each",
        _one_by_one,
        (500, 10_000),
        10,
    ),
    _time("P6-batches", "the same with 100 messages a call", _in_batches, (10_000, 200_000), 1_000),
    _time("P6-pipelined", "the same through a publisher and a consumer", _pipelined, (10_000, 400_000), 1_000),
    Workload(
        "P6-memory",
        "broker memory a queued message of 100 B, beyond its payload",
        "bytes",
        higher_is_better=False,
        contestants=(
            Contestant(
                "published one by one",
                lambda terms: _bytes_a_message(terms, terms.choose(5_000, 200_000, tiny=1_000), 1),
                Side.OURS,
            ),
            Contestant(
                "published in batches of 100",
                lambda terms: _bytes_a_message(terms, terms.choose(50_000, 1_000_000, tiny=20_000), _BATCH),
                Side.OURS,
            ),
        ),
        targets=(
            Target("published one by one", None, 400),
            Target("published in batches of 100", None, 60),
        ),
    ),
)
