"""What a worker holds in its hand: deliveries and messages as values."""

from __future__ import annotations

import dataclasses
import math
import pickle
import time
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest

from mpbroker import Delivery, Message, MessagePriority, PayloadError
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import PROCESS_PLANES, fill, letters, m, only, only_one, places


@pytest.fixture
def billing(broker: BrokerAPI) -> SubscriptionAPI:
    broker.create_topic("orders")
    return broker.subscribe("orders", "billing", ack_timeout=30.0, max_deliveries=2)


# -- the context manager --------------------------------------------------------------------------


def test_a_block_that_ends_acks(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    with only_one(billing.poll("w", now=0.0)) as delivery:
        assert isinstance(delivery, Delivery)
    assert places(billing.stats(0.0)) == {"acked": 1}


def test_a_block_that_raises_nacks_with_the_exception(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), only_one(billing.poll("w", now=0.0)):
            raise ZeroDivisionError("no price")
    letter = only_one(letters(broker, billing))
    assert letter.error == "ZeroDivisionError: no price"
    assert letter.attempts == 2


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_block_releases(
    broker: BrokerAPI, billing: SubscriptionAPI, interruption: type[BaseException]
) -> None:
    fill(broker, "orders", 1)
    with pytest.raises(interruption), only_one(billing.poll("w", now=0.0)):
        raise interruption
    assert places(billing.stats(0.0)) == {"ready": 1}
    assert only_one(billing.poll("w", now=0.0)).attempt == 1


def ack_and_raise(delivery: Delivery) -> None:
    with delivery:
        delivery.ack()
        raise ValueError("after the ack")


def test_a_block_that_settled_is_left_alone(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 5)
    with billing.poll("w", now=0.0)[0] as delivery:
        delivery.ack()
    with billing.poll("w", now=0.0)[0] as delivery:
        delivery.reject()
    with billing.poll("w", now=0.0)[0] as delivery:
        delivery.nack(delay=50.0, now=0.0)
    with billing.poll("w", now=0.0)[0] as delivery:
        again = delivery.retry("trouble")
    delivery = billing.poll("w", now=0.0)[0]
    with pytest.raises(ValueError, match="after the ack"):
        ack_and_raise(delivery)
    stats = billing.stats(0.0)
    assert places(stats) == {"acked": 2, "dead": 1, "delayed": 1, "in_flight": 1}
    assert stats.late_acks == 0
    assert again is not None
    with again:
        pass
    assert billing.stats(0.0).acked == 3


def test_an_extended_delivery_is_not_settled(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    with only_one(billing.poll("w", now=0.0)) as delivery:
        delivery.extend(100.0, now=0.0)
    assert places(billing.stats(0.0)) == {"acked": 1}


def test_bad_arguments_leave_a_delivery_unsettled(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    with only_one(billing.poll("w", now=0.0)) as delivery:
        with pytest.raises(ValueError, match="delay"):
            delivery.nack(delay=-1.0)
        with pytest.raises(TypeError, match="error"):
            delivery.reject(error=7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="error"):
            delivery.retry(7)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="seconds"):
            delivery.extend(math.nan)
    assert places(billing.stats(0.0)) == {"acked": 1}


# -- messages as values ---------------------------------------------------------------------------


def test_a_message_cannot_be_changed(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    published = broker.publish("orders", "book", {"type": "created"})
    delivered = only_one(billing.poll("w", now=0.0)).message
    for message in (published, delivered):
        for name in ("topic", "payload", "priority", "headers", "message_id", "sequence", "uid"):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(message, name, None)
        with pytest.raises(TypeError):
            message.headers["type"] = "paid"  # type: ignore[index]
        with pytest.raises(TypeError):
            del message.headers["type"]  # type: ignore[attr-defined]
        assert message.headers == {"type": "created"}


def test_headers_are_copied_at_publish(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    headers = {"type": "created"}
    published = broker.publish("orders", "book", headers)
    headers["type"] = "paid"
    headers["more"] = "yes"
    assert published.headers == {"type": "created"}
    assert only_one(billing.poll("w", now=0.0)).headers == {"type": "created"}


def test_no_headers_are_empty_headers(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    broker.publish("orders", "book")
    broker.publish("orders", "book", None)
    broker.publish("orders", "book", {})
    assert [d.headers for d in billing.poll("w", 0.0, 9)] == [{}, {}, {}]


@pytest.mark.parametrize(
    "headers",
    [{"": ""}, {"é": "名前"}, {"k": "\n\0\x7f"}, {"k": "x" * 100_000}, {f"k{n}": "v" for n in range(500)}],
    ids=["empty", "unicode", "control", "long", "many"],
)
def test_headers_arrive_as_they_were(broker: BrokerAPI, billing: SubscriptionAPI, headers: dict[str, str]) -> None:
    broker.publish("orders", None, headers)
    delivered = only_one(billing.poll("w", now=0.0)).headers
    assert delivered == headers
    assert list(delivered) == list(headers)


def test_the_timestamp_is_the_wall_clock_at_publish(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    before = time.time()
    published = [broker.publish("orders", 1), *broker.publish_many("orders", [2, 3])]
    after = time.time()
    assert all(before <= message.timestamp <= after for message in published)
    assert published[1].timestamp == published[2].timestamp
    delivered = [d.message.timestamp for d in billing.poll("w", 0.0, 3)]
    assert delivered == [message.timestamp for message in published]


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    lines: tuple[str, ...]


PAYLOADS: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    10**100,
    0.0,
    -0.0,
    1e308,
    math.inf,
    "",
    "é\0名前",
    "lone \ud800 surrogate",
    "x" * 70_000,
    b"",
    b"\0\xff" * 50_000,
    bytearray(b"x"),
    (),
    (1, "a", None),
    [],
    [1, [2, [3]]],
    {},
    {"a": 1, 2: (3,)},
    {1, 2},
    frozenset({1}),
    1j,
    Decimal("1.50"),
    Fraction(1, 3),
    Colour.RED,
    MessagePriority.HIGH,
    Text("subclass"),
    Order(7, ("book", "pen")),
    Order,
    range(3),
    slice(1, 2),
    Ellipsis,
]


def test_payloads_arrive_with_value_and_type(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    for payload in PAYLOADS:
        broker.publish("orders", payload)
    broker.publish_many("orders", PAYLOADS)
    taken = billing.poll("w", 0.0, 1000)
    while more := billing.poll("w", 0.0, 1000):
        taken += more
    assert len(taken) == 2 * len(PAYLOADS)
    for delivery, payload in zip(taken, PAYLOADS * 2, strict=True):
        assert type(delivery.payload) is type(payload)
        assert delivery.payload == payload
        assert str(delivery.payload) == str(payload)  # -0.0


def test_a_payload_that_is_not_a_number_arrives(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    broker.publish("orders", math.nan)
    assert math.isnan(only_one(billing.poll("w", now=0.0)).payload)


@only("local")
def test_in_one_process_the_payload_is_the_very_object(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    payload = object()
    assert broker.publish("orders", payload).payload is payload
    assert only_one(billing.poll("w", now=0.0)).payload is payload


@only(*PROCESS_PLANES)
def test_a_payload_that_cannot_travel_is_an_error_and_nothing_is_published(
    broker: BrokerAPI, billing: SubscriptionAPI
) -> None:
    class Unpicklable:
        def __reduce__(self) -> Any:
            raise RuntimeError("I stay here")

    for payload in (lambda: None, Unpicklable(), (n for n in range(3)), [Unpicklable()]):
        with pytest.raises(PayloadError):
            broker.publish("orders", payload)
        with pytest.raises(PayloadError):
            broker.publish_many("orders", [1, payload, 2])
    assert billing.stats(0.0).accepted == 0
    assert broker.topics()["orders"].published == 0
    assert broker.publish("orders", "fine").message_id == m(1)


# -- pickling -------------------------------------------------------------------------------------


def test_messages_and_dead_letters_travel_through_pickle(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    published = broker.publish("orders", ["book"], {"type": "created"})
    delivery = only_one(billing.poll("w", now=0.0))
    delivery.reject(error="no")
    letter = only_one(letters(broker, billing))
    for value in (published, delivery.message, letter, billing.stats(0.0)):
        copy = pickle.loads(pickle.dumps(value))
        assert copy == value
        assert type(copy) is type(value)
    copied: Message = pickle.loads(pickle.dumps(letter)).message
    assert copied.headers == {"type": "created"}
    with pytest.raises(TypeError):
        copied.headers["type"] = "paid"  # type: ignore[index]


@only(*PROCESS_PLANES)
def test_a_delivery_travels_through_pickle_and_can_be_acked_there(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    broker.publish_many("orders", [["a"], ["b"]], {"type": "created"})
    first, second = billing.poll("w", 0.0, 2)
    copy = pickle.loads(pickle.dumps(second))
    assert copy.message == second.message
    assert (copy.attempt, copy.redelivered, copy.member) == (1, False, "w")
    assert (copy.deadline, copy.token) == (30.0, second.token)
    assert copy.ack() is True
    assert second.ack() is False
    assert pickle.loads(pickle.dumps(first)).nack(delay=5.0, now=0.0) is True
    assert places(billing.stats(0.0)) == {"acked": 1, "delayed": 1}


@only(*PROCESS_PLANES)
def test_proxies_travel_through_pickle(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    copied_broker: BrokerAPI = pickle.loads(pickle.dumps(broker))
    copied_billing: SubscriptionAPI = pickle.loads(pickle.dumps(billing))
    assert copied_broker.topics() == broker.topics()
    assert copied_billing.subscription_id == "orders/billing"
    assert only_one(copied_billing.poll("w", now=0.0)).message_id == m(1)
    assert billing.ack(m(1), "w") is True
