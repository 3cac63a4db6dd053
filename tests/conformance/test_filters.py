"""Which messages a subscription gets."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

from mpbroker import DeadLetterReason, InvalidFilter
from mpbroker.api import BrokerAPI
from tests.conformance import named_filters
from tests.conformance.support import PROCESS_PLANES, fill, ids, letters, m, only, only_one, places

CREATED = {"type": "created"}
PAID = {"type": "paid"}


def accepts(broker: BrokerAPI, expression: str, headers: dict[str, str]) -> bool:
    broker.create_topic("orders", exist_ok=True)
    name = f"s{len(broker.subscriptions())}"
    subscription = broker.subscribe("orders", name, filter=expression)
    broker.publish("orders", None, headers)
    return subscription.pending == 1


def test_an_expression_selects_by_headers(broker: BrokerAPI) -> None:
    expression = 'headers.type = "created" AND NOT headers.region = "eu"'
    assert accepts(broker, expression, {"type": "created", "region": "us"})
    assert accepts(broker, expression, {"type": "created"})
    assert not accepts(broker, expression, {"type": "created", "region": "eu"})
    assert not accepts(broker, expression, {"type": "paid"})
    assert not accepts(broker, expression, {})


def test_a_missing_header_equals_nothing_and_differs_from_nothing(broker: BrokerAPI) -> None:
    assert not accepts(broker, 'headers.type = "created"', {})
    assert not accepts(broker, 'headers.type != "created"', {})
    assert not accepts(broker, 'headers.type = ""', {})
    assert accepts(broker, 'NOT headers.type = "created"', {})
    assert accepts(broker, 'headers.type != "created"', PAID)
    assert not accepts(broker, 'headers.type != "paid"', PAID)


def test_presence_prefix_and_groups(broker: BrokerAPI) -> None:
    assert accepts(broker, "headers:type", {"type": ""})
    assert not accepts(broker, "headers:type", {"typ": "x"})
    assert accepts(broker, 'hasPrefix(headers.type, "cre")', CREATED)
    assert not accepts(broker, 'hasPrefix(headers.type, "cre")', PAID)
    either = '(headers.type = "created" OR headers.type = "paid") AND -headers:test'
    assert accepts(broker, either, PAID)
    assert not accepts(broker, either, {"type": "paid", "test": "1"})


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("", None),
        ("   ", None),
        ("headers", None),
        ("headers.type", 12),
        ('headers.type = "created', 15),
        ('headers.type = "a" AND', None),
        ('headers.a = "1" AND headers.b = "2" OR headers.c = "3"', 36),
        ('attributes.type = "created"', 0),
        ('headers.type == "created"', None),
        ("headers.type = created", 15),
        ('headers.type = "a" and headers.b = "c"', 19),
        ("headers.type = 'created'", 15),
        ("(" * 100 + "headers:a" + ")" * 100, None),
        ('headers.type = "' + "x" * 5000 + '"', None),
        ('headers.type = "\ud800"', None),
    ],
    ids=range(15),
)
def test_a_broken_expression_is_refused_and_pointed_at(
    broker: BrokerAPI, expression: str, position: int | None
) -> None:
    broker.create_topic("orders")
    with pytest.raises(InvalidFilter) as caught:
        broker.subscribe("orders", "billing", filter=expression)
    assert isinstance(caught.value, ValueError)
    if position is not None:
        assert caught.value.args[2] == position
        assert f"position {position}" in str(caught.value)
    assert broker.subscriptions() == {}


def test_a_function_selects_by_headers(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    email = broker.subscribe("orders", "email", filter=named_filters.is_created)
    local = broker.subscribe("orders", "local", filter=named_filters.has_region)
    truthy = broker.subscribe("orders", "truthy", filter=named_filters.accepts_only_strings)
    broker.publish("orders", 1, CREATED)
    broker.publish("orders", 2, PAID)
    broker.publish("orders", 3, {"type": "created", "region": "eu"})
    broker.publish("orders", 4)
    assert [d.payload for d in email.poll("w", 0.0, 10)] == [1, 3]
    assert [d.payload for d in local.poll("w", 0.0, 10)] == [3]
    assert [d.payload for d in truthy.poll("w", 0.0, 10)] == [1, 2, 3]
    assert email.stats(0.0).filtered_out == 2


def test_a_filter_decides_on_batches_as_on_single_messages(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    email = broker.subscribe("orders", "email", filter='headers.type = "created"')
    created = ids(broker.publish_many("orders", range(300), CREATED))
    broker.publish_many("orders", range(300), PAID)
    created += ids(broker.publish_many("orders", range(2), CREATED))
    assert email.stats(0.0).filtered_out == 300
    assert ids(email.poll("w", 0.0, 1000)) == created


@only("local")
def test_a_filter_sees_the_headers_and_nothing_else(broker: BrokerAPI) -> None:
    seen: list[tuple[object, ...]] = []

    def look(*arguments: object) -> bool:
        seen.append(arguments)
        return True

    broker.create_topic("orders")
    broker.subscribe("orders", "email", filter=look)
    broker.publish("orders", "payload", CREATED)
    assert seen == [(CREATED,)]


@only("local")
def test_any_callable_can_be_a_filter(broker: BrokerAPI) -> None:
    class Region:
        def __init__(self, region: str) -> None:
            self.region = region

        def __call__(self, headers: object) -> bool:
            return isinstance(headers, dict) and headers.get("region") == self.region

    broker.create_topic("orders")
    callable_object = broker.subscribe("orders", "a", filter=Region("eu"))
    lambda_function = broker.subscribe("orders", "b", filter=lambda headers: "region" in headers)
    broker.publish("orders", None, {"region": "eu"})
    broker.publish("orders", None, {"region": "us"})
    assert (callable_object.pending, lambda_function.pending) == (1, 2)


# -- filters that raise ---------------------------------------------------------------------------


def test_a_filter_that_raises_makes_a_dead_letter_and_the_publish_succeeds(
    broker: BrokerAPI,
) -> None:
    broker.create_topic("orders")
    before = broker.subscribe("orders", "before")
    failing = broker.subscribe("orders", "failing", filter=named_filters.raises)
    after = broker.subscribe("orders", "after")
    message = broker.publish("orders", "book", CREATED)
    assert (before.pending, failing.pending, after.pending) == (1, 0, 1)
    letter = only_one(letters(broker, failing))
    assert letter.message == message
    assert letter.reason is DeadLetterReason.FILTER_ERROR
    assert "RuntimeError" in letter.error
    assert "no opinion on created" in letter.error
    assert (letter.attempts, letter.last_member, letter.history) == (0, "", ())
    stats = failing.stats(0.0)
    assert (stats.accepted, stats.filter_errors, stats.filtered_out) == (1, 1, 0)
    assert places(stats) == {"dead": 1}


def test_a_filter_that_raises_on_some_takes_the_others(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    failing = broker.subscribe("orders", "failing", filter=named_filters.raises_on_paid)
    for headers in (CREATED, PAID, CREATED):
        broker.publish("orders", None, headers)
    assert places(failing.stats(0.0)) == {"ready": 2, "dead": 1}
    assert ids(failing.poll("w", 0.0, 10)) == [m(1), m(3)]


def test_a_filter_cannot_change_the_headers(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    failing = broker.subscribe("orders", "failing", filter=named_filters.writes)  # type: ignore[arg-type]
    after = broker.subscribe("orders", "after")
    broker.publish("orders", None, CREATED)
    assert only_one(letters(broker, failing)).reason is DeadLetterReason.FILTER_ERROR
    assert only_one(after.poll("w", now=0.0)).headers == CREATED


@pytest.mark.parametrize("batch", [1, 7, 60, 300])
def test_at_most_a_hundred_filter_errors_are_kept_and_all_are_counted(broker: BrokerAPI, batch: int) -> None:
    broker.create_topic("orders")
    failing = broker.subscribe("orders", "failing", filter=named_filters.raises)
    total = 0
    while total < 120:
        broker.publish_many("orders", range(batch))
        total += batch
    stats = failing.stats(0.0)
    assert (stats.accepted, stats.filter_errors) == (total, total)
    assert stats.dead == 100
    assert stats.dropped == total - 100
    assert len(letters(broker, failing)) == 100


def test_a_redriven_filter_error_is_delivered(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    failing = broker.subscribe("orders", "failing", filter=named_filters.raises)
    message_id = broker.publish("orders", "book").message_id
    assert broker.redrive("orders/failing") == 1
    delivery = only_one(failing.poll("w", now=0.0))
    assert (delivery.message_id, delivery.attempt) == (message_id, 1)
    assert delivery.redelivered is False
    assert delivery.ack()


# -- what cannot travel to a broker process -------------------------------------------------------


@only(*PROCESS_PLANES)
def test_what_the_broker_cannot_find_is_refused_with_the_way_out(broker: BrokerAPI) -> None:
    def inner(headers: object) -> bool:
        return True

    class Accepts:
        def __call__(self, headers: object) -> bool:
            return True

    broker.create_topic("orders")
    unknown: list[Any] = [
        lambda headers: True,
        inner,
        Accepts(),
        fill,  # a function of a module that nobody named
        str,
        named_filters.is_created.__get__({}),
    ]
    for filter_function in unknown:
        with pytest.raises(InvalidFilter) as caught:
            broker.subscribe("orders", "billing", filter=filter_function)
        assert "filter_modules" in str(caught.value) or "expression" in str(caught.value)
    assert broker.subscriptions() == {}
    main_function: Any = FunctionType(inner.__code__, {"__name__": "__main__"}, "in_main")
    main_function.__module__ = "__main__"
    main_function.__qualname__ = "in_main"
    with pytest.raises(InvalidFilter, match="__main__"):
        broker.subscribe("orders", "billing", filter=main_function)
    assert broker.subscriptions() == {}
    broker.subscribe("orders", "billing", filter=named_filters.is_created)
