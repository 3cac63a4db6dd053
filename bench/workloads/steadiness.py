"""P9: what a message costs the broker process, with many topics, with many clients, and with acks in pieces.

The figure is the broker's own CPU time, so that what its clients do beside it is not in it. All go in cycles of 100, in
confirmed calls and pipelined.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import psutil

from bench.crew import Crew, Gate
from bench.cycles import CYCLE, FORMS, Cycles, Pieces, calls
from bench.measure import cpu_s
from bench.ours import ROOM, TOPIC, broker_of
from bench.terms import Terms
from bench.workload import Contestant, Outcome, Side, Target, Workload
from mpbroker import BrokerManager

_CYCLES: Final = (200, 6_000)
"""Of a round: a full one takes the broker seconds of CPU time, which is counted in ticks of 10 ms."""

_MANY_TOPICS: Final = (200, 10_000)
_MANY_CLIENTS: Final = (4, 64)
_LEASE_S: Final = 600.0
"""Longer than any round: what is left unacked stays held."""


def _cpu_us_a_message(manager: BrokerManager, cycles: int, work: Callable[[], object]) -> Outcome:
    before = cpu_s([manager.pid])
    work()
    return Outcome((cpu_s([manager.pid]) - before) / (cycles * CYCLE) * 1e6)


def over_topics(terms: Terms, topics: int) -> Outcome:
    """Cycles with one topic after the other, each with a subscription."""
    cycles = terms.choose(*_CYCLES)
    with broker_of(terms) as (manager, broker):
        subscriptions = []
        for number in range(topics):
            broker.create_topic(f"topic-{number}")
            subscriptions.append(broker.subscribe(f"topic-{number}", "group", ack_timeout=_LEASE_S))

        def work() -> None:
            for number in range(cycles):
                calls(broker, subscriptions[number % topics], 1)

        return _cpu_us_a_message(manager, cycles, work)


def _client(gate: Gate, form: Cycles, broker: Any, subscription: Any, cycles: int) -> None:
    broker.topics()  # connects
    gate.wait()
    form(broker, subscription, cycles, Pieces.WHOLE)


def by_clients(terms: Terms, form: Cycles, clients: int) -> Outcome:
    """The same cycles, shared out to processes that each have a topic of their own."""
    each = max(1, terms.choose(*_CYCLES) // clients)
    with broker_of(terms) as (manager, broker), Crew() as crew:
        for number in range(clients):
            topic = f"topic-{number}"
            broker.create_topic(topic)
            crew.add(_client, form, broker, broker.subscribe(topic, "group", ack_timeout=_LEASE_S), each)
        for child in crew.children:
            child.ready()

        def work() -> None:
            for child in crew.children:
                child.go()
            for child in crew.children:
                child.result()

        return _cpu_us_a_message(manager, each * clients, work)


def with_acks(terms: Terms, form: Cycles, pieces: Pieces) -> Outcome:
    """Cycles with one subscription, acked in certain pieces."""
    cycles = terms.choose(*_CYCLES)
    with broker_of(terms) as (manager, broker):
        subscription = broker.subscribe(TOPIC, "group", ack_timeout=_LEASE_S, max_queue=ROOM)
        return _cpu_us_a_message(manager, cycles, lambda: form(broker, subscription, cycles, pieces))


def grown_bytes(terms: Terms, form: Cycles, pieces: Pieces) -> Outcome:
    """How much larger the broker is for each message, once as many again have gone through it."""
    cycles = terms.choose(*_CYCLES)
    with broker_of(terms) as (manager, broker):
        subscription = broker.subscribe(TOPIC, "group", ack_timeout=_LEASE_S, max_queue=ROOM)
        process = psutil.Process(manager.pid)
        sizes = []
        for _ in range(2):
            form(broker, subscription, cycles, pieces)
            sizes.append(process.memory_info().rss)
    return Outcome((sizes[1] - sizes[0]) / (cycles * CYCLE))


def _with_clients(form: str) -> tuple[Contestant, Contestant]:
    def one(terms: Terms) -> Outcome:
        return by_clients(terms, FORMS[form], 1)

    def many(terms: Terms) -> Outcome:
        return by_clients(terms, FORMS[form], terms.choose(*_MANY_CLIENTS, tiny=3))

    return Contestant(f"1 client, {form}", one, Side.OURS), Contestant(f"64 clients, {form}", many, Side.OURS)


def _in_pieces(measure: Callable[..., Outcome], *pieces: Pieces) -> tuple[Contestant, ...]:
    return tuple(
        Contestant(_name(form, each), partial(measure, form=cycles, pieces=each), Side.OURS)
        for form, cycles in FORMS.items()
        for each in pieces
    )


def _name(form: str, pieces: Pieces) -> str:
    return f"{form}, {pieces.value}"


WORKLOADS = (
    Workload(
        "P9-topics",
        "broker CPU a message of 100 B, over many topics",
        "µs",
        higher_is_better=False,
        contestants=(
            Contestant("1 topic", lambda terms: over_topics(terms, 1), Side.OURS),
            Contestant("10,000 topics", lambda terms: over_topics(terms, terms.choose(*_MANY_TOPICS)), Side.OURS),
        ),
        targets=(Target("10,000 topics", "1 topic", 1.2),),
    ),
    Workload(
        "P9-clients",
        "broker CPU a message of 100 B, with many client processes",
        "µs",
        higher_is_better=False,
        contestants=tuple(contestant for form in FORMS for contestant in _with_clients(form)),
        targets=tuple(Target(f"64 clients, {form}", f"1 client, {form}", 1.2) for form in FORMS),
    ),
    Workload(
        "P9-acks",
        "broker CPU a message of 100 B, with acks in pieces",
        "µs",
        higher_is_better=False,
        contestants=_in_pieces(with_acks, *Pieces),
        targets=tuple(
            Target(_name(form, pieces), _name(form, Pieces.WHOLE), bound)
            for form in FORMS
            for pieces, bound in ((Pieces.MISSING, 1.2), (Pieces.ALTERNATE, 3.0))
        ),
    ),
    Workload(
        "P9-memory",
        "broker memory that every further message of 100 B leaves behind, with acks in pieces",
        "bytes",
        higher_is_better=False,
        contestants=_in_pieces(grown_bytes, Pieces.WHOLE, Pieces.ALTERNATE),
        # Bounded memory has no ratio: a tenth of the payload is what noise in the size of a process may look like.
        targets=tuple(
            Target(_name(form, pieces), None, 10) for form in FORMS for pieces in (Pieces.WHOLE, Pieces.ALTERNATE)
        ),
    ),
)
