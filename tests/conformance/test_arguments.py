"""Arguments of the wrong type or range: an error that names the argument, before anything changes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from mpbroker import InvalidFilter, InvalidName, MessagePriority, Overflow, RetryPolicy
from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.push.subscriber import CallbackSubscriber, Subscriber
from tests.conformance.support import PLANES, fill, ids, letters, m, only_one, places

Call = Callable[[BrokerAPI, SubscriptionAPI, Any], object]


class Case(NamedTuple):
    """One argument of one method.

    ``what`` is the argument's name, or what the error calls it.
    """

    call: Call
    what: str
    bad: tuple[tuple[type[Exception], tuple[Any, ...]], ...]


WRONG_TEXT = (TypeError, (7, 1.5, True, b"orders", ["orders"], object()))
BAD_NAMES = (
    InvalidName,
    (
        "",
        "x" * 256,
        "é" * 256,
        "a/b",
        "/",
        "a*b",
        "*",
        "a>b",
        ">",
        "$a",
        "$",
        "a\nb",
        "\t",
        "a\x00",
        "\x1f",
        "\x7f",
        "\x80",
        "\x9f",
        "a\ud800",
        "\udfff" * 255,
    ),
)
NAME = (WRONG_TEXT, BAD_NAMES)
TEXT = (WRONG_TEXT,)
WRONG_COUNT = (TypeError, (True, False, 1.0, math.nan, "1", b"1", [1]))
TOO_MANY = (2**63, 2**64, 10**30)
COUNT = (WRONG_COUNT, (ValueError, (0, -1, -(10**30), *TOO_MANY)))
OFFSET = (WRONG_COUNT, (ValueError, (-1, -(10**30), *TOO_MANY)))
WRONG_NUMBER = (TypeError, (True, "1", b"1", [1.0], 1j))
ENDLESS = (math.nan, math.inf, -math.inf, 10**400)
SECONDS = (WRONG_NUMBER, (ValueError, (*ENDLESS, -1, -0.5, -1e-300)))
POSITIVE = (*SECONDS, (ValueError, (0, 0.0, -0.0)))
MOMENT = (WRONG_NUMBER, (ValueError, ENDLESS))
FLAG = (TypeError, (0, 1, None, "yes"))
IDS = (TypeError, ("m1", 7, b"m1", [1], [b"m1"], ["m1", None], [True]))
ERROR = (TypeError, (7, b"x", ["x"], ValueError, True))
HEADERS = (
    (TypeError, (7, "ab", ["ab"], [("a", "b")], {"a": 1}, {1: "a"}, {b"a": "b"}, {"a": None})),
    (ValueError, ({"a": "\ud800"}, {"\ud800": "a"})),
)
PRIORITY = (
    (TypeError, (True, None, 1.0, "HIGH", "1")),
    (ValueError, (-1, 4, 10**30)),
)


def no(*of: Any) -> Callable[[tuple[type[Exception], tuple[Any, ...]]], Any]:
    """The same wrong values without those that are right here."""

    def without(given: tuple[type[Exception], tuple[Any, ...]]) -> Any:
        return given[0], tuple(v for v in given[1] if not any(v is x for x in of))

    return without


CASES: dict[str, Case] = {
    # -- topics and subscriptions
    "create_topic.name": Case(lambda b, s, v: b.create_topic(v), "topic", NAME),
    "create_topic.exist_ok": Case(lambda b, s, v: b.create_topic("new", exist_ok=v), "exist_ok", (FLAG,)),
    "delete_topic.name": Case(lambda b, s, v: b.delete_topic(v), "topic", NAME),
    "subscriptions.topic": Case(lambda b, s, v: b.subscriptions(v), "topic", NAME),
    "subscription.topic": Case(lambda b, s, v: b.subscription(v, "billing"), "topic", NAME),
    "subscription.name": Case(lambda b, s, v: b.subscription("orders", v), "subscription", NAME),
    "unsubscribe.topic": Case(lambda b, s, v: b.unsubscribe(v, "billing"), "topic", NAME),
    "unsubscribe.name": Case(lambda b, s, v: b.unsubscribe("orders", v), "subscription", NAME),
    "subscribe.topic": Case(lambda b, s, v: b.subscribe(v, "new"), "topic", NAME),
    "subscribe.name": Case(lambda b, s, v: b.subscribe("orders", v), "", NAME),
    "subscribe.name of none": Case(
        lambda b, s, v: b.subscribe("orders", v), "name", ((TypeError, (None, Subscriber)),)
    ),
    "subscribe.subscriber": Case(lambda b, s, v: b.subscribe("orders", CallbackSubscriber(v, print)), "", (BAD_NAMES,)),
    "subscribe.filter": Case(
        lambda b, s, v: b.subscribe("orders", "new", filter=v),
        "filter",
        ((TypeError, (7, b"headers:a", ["a"], True)), (InvalidFilter, ("", "x", "headers:a OR"))),
    ),
    "subscribe.ack_timeout": Case(
        lambda b, s, v: b.subscribe("orders", "new", ack_timeout=v),
        "ack_timeout",
        (*POSITIVE, (TypeError, (None,))),
    ),
    "subscribe.max_deliveries": Case(
        lambda b, s, v: b.subscribe("orders", "new", max_deliveries=v),
        "max_deliveries",
        (*COUNT, (TypeError, (None,))),
    ),
    "subscribe.retry": Case(
        lambda b, s, v: b.subscribe("orders", "new", retry=v),
        "retry",
        ((TypeError, (5, True, "exponential", {"max_attempts": 5}, RetryPolicy)),),
    ),
    "subscribe.retry and max_deliveries": Case(
        lambda b, s, v: b.subscribe("orders", "new", max_deliveries=v, retry=RetryPolicy(4)),
        "max_deliveries",
        ((ValueError, (3, 5)),),
    ),
    "subscribe.max_queue": Case(
        lambda b, s, v: b.subscribe("orders", "new", max_queue=v),
        "max_queue",
        (*COUNT, (TypeError, (None,))),
    ),
    "subscribe.overflow": Case(
        lambda b, s, v: b.subscribe("orders", "new", overflow=v),
        "overflow",
        ((TypeError, ("reject", 1, None, True, Overflow, Overflow.WAIT, 2.5)),),
    ),
    # -- publish
    "publish.topic": Case(lambda b, s, v: b.publish(v, 1), "topic", NAME),
    "publish.headers": Case(lambda b, s, v: b.publish("orders", 1, v), "headers", HEADERS),
    "publish.priority": Case(lambda b, s, v: b.publish("orders", 1, priority=v), "priority", PRIORITY),
    "publish_many.topic": Case(lambda b, s, v: b.publish_many(v, [1]), "topic", NAME),
    "publish_many.payloads": Case(
        lambda b, s, v: b.publish_many("orders", v),
        "payloads",
        ((TypeError, (None, 7, "abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), {"a": 1})),),
    ),
    "publish_many.headers": Case(lambda b, s, v: b.publish_many("orders", [1], v), "headers", HEADERS),
    "publish_many.priority": Case(lambda b, s, v: b.publish_many("orders", [1], priority=v), "priority", PRIORITY),
    # -- dead letters
    "dead_letters.subscription_id": Case(lambda b, s, v: b.dead_letters(v), "subscription_id", TEXT),
    "dead_letters.limit": Case(lambda b, s, v: b.dead_letters(limit=v), "limit", COUNT),
    "dead_letters.offset": Case(lambda b, s, v: b.dead_letters(offset=v), "offset", (*OFFSET, (TypeError, (None,)))),
    "redrive.subscription_id": Case(lambda b, s, v: b.redrive(v), "subscription_id", (*TEXT, (TypeError, (None,)))),
    "redrive.message_ids": Case(lambda b, s, v: b.redrive("orders/billing", v), "message_id", (IDS,)),
    "redrive.limit": Case(lambda b, s, v: b.redrive("orders/billing", limit=v), "limit", COUNT),
    "purge_dead_letters.subscription_id": Case(
        lambda b, s, v: b.purge_dead_letters(v), "subscription_id", (*TEXT, (TypeError, (None,)))
    ),
    "purge_dead_letters.message_ids": Case(
        lambda b, s, v: b.purge_dead_letters("orders/billing", v), "message_id", (IDS,)
    ),
    "purge_dead_letters.limit": Case(lambda b, s, v: b.purge_dead_letters("orders/billing", limit=v), "limit", COUNT),
    # -- time and push
    "broker.expire.now": Case(lambda b, s, v: b.expire(v), "now", MOMENT),
    "broker.wait_idle.timeout": Case(lambda b, s, v: b.wait_idle(v), "timeout", SECONDS),
    # -- a subscription
    "poll.member": Case(lambda b, s, v: s.poll(v, 0.0), "member", (*NAME, (TypeError, (None,)))),
    "poll.now": Case(lambda b, s, v: s.poll("w", v), "now", MOMENT),
    "poll.max_messages": Case(lambda b, s, v: s.poll("w", 0.0, v), "max_messages", (*COUNT, (TypeError, (None,)))),
    "poll.timeout": Case(lambda b, s, v: s.poll("w", timeout=v), "timeout", SECONDS),
    "poll.timeout with now": Case(
        lambda b, s, v: s.poll("w", 0.0, timeout=v), "timeout", ((ValueError, (1, 1e-9, None)),)
    ),
    "ack.message_id": Case(lambda b, s, v: s.ack(v, "w"), "message_id", (*TEXT, (TypeError, (None,)))),
    "ack.member": Case(lambda b, s, v: s.ack("m1", v), "member", (*NAME, (TypeError, (None,)))),
    "ack_many.message_ids": Case(lambda b, s, v: s.ack_many(v, "w"), "message_id", (IDS, (TypeError, (None,)))),
    "ack_many.member": Case(lambda b, s, v: s.ack_many(["m1"], v), "member", NAME),
    "nack.message_id": Case(lambda b, s, v: s.nack(v, "w"), "message_id", TEXT),
    "nack.member": Case(lambda b, s, v: s.nack("m1", v), "member", NAME),
    "nack.delay": Case(lambda b, s, v: s.nack("m1", "w", delay=v), "delay", SECONDS),
    "nack.error": Case(lambda b, s, v: s.nack("m1", "w", error=v), "error", (ERROR,)),
    "nack.now": Case(lambda b, s, v: s.nack("m1", "w", now=v), "now", MOMENT),
    "release.message_id": Case(lambda b, s, v: s.release(v, "w"), "message_id", TEXT),
    "release.member": Case(lambda b, s, v: s.release("m1", v), "member", NAME),
    "reject.message_id": Case(lambda b, s, v: s.reject(v, "w"), "message_id", TEXT),
    "reject.member": Case(lambda b, s, v: s.reject("m1", v), "member", NAME),
    "reject.error": Case(lambda b, s, v: s.reject("m1", "w", error=v), "error", (ERROR,)),
    "extend.message_id": Case(lambda b, s, v: s.extend(v, "w"), "message_id", TEXT),
    "extend.member": Case(lambda b, s, v: s.extend("m1", v), "member", NAME),
    "extend.seconds": Case(lambda b, s, v: s.extend("m1", "w", v), "seconds", SECONDS),
    "extend.now": Case(lambda b, s, v: s.extend("m1", "w", 1.0, v), "now", MOMENT),
    "expire.now": Case(lambda b, s, v: s.expire(v), "now", MOMENT),
    "stats.now": Case(lambda b, s, v: s.stats(v), "now", MOMENT),
    "dispatch_one of none": Case(lambda b, s, v: s.dispatch_one(), "orders/billing", ((TypeError, (None,)),)),
    "wait_idle.timeout": Case(lambda b, s, v: s.wait_idle(v), "timeout", SECONDS),
    # -- a delivery
    "delivery.nack.delay": Case(lambda b, s, v: held(s).nack(delay=v), "delay", SECONDS),
    "delivery.nack.error": Case(lambda b, s, v: held(s).nack(error=v), "error", (ERROR,)),
    "delivery.nack.now": Case(lambda b, s, v: held(s).nack(now=v), "now", MOMENT),
    "delivery.reject.error": Case(lambda b, s, v: held(s).reject(error=v), "error", (ERROR,)),
    "delivery.extend.seconds": Case(lambda b, s, v: held(s).extend(v), "seconds", SECONDS),
    "delivery.extend.now": Case(lambda b, s, v: held(s).extend(1.0, v), "now", MOMENT),
    "delivery.retry.error": Case(lambda b, s, v: held(s).retry(v), "error", (ERROR,)),
}

Settled = tuple[BrokerAPI, SubscriptionAPI]
_HELD: dict[int, Any] = {}


def held(subscription: SubscriptionAPI) -> Any:
    return _HELD[id(subscription)]


@pytest.fixture(scope="module", params=PLANES)
def settled(request: pytest.FixtureRequest) -> Iterator[Settled]:
    """One broker for all cases: a message held (m1), one ready, one delayed, one dead."""
    with PLANES[request.param].exact() as broker:
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing")
        fill(broker, "orders", 4)
        first, second, third = billing.poll("w", 0.0, 3)
        second.nack(delay=1000.0, now=0.0)
        third.reject(error="no")
        _HELD[id(billing)] = first
        yield broker, billing
        del _HELD[id(billing)]


def everything(broker: BrokerAPI) -> object:
    return broker.topics(), broker.subscriptions(), broker.dead_letters(), broker.next_deadline()


@pytest.mark.parametrize("name", CASES)
def test_a_bad_argument_is_named_before_anything_changes(settled: Settled, name: str) -> None:
    broker, billing = settled
    case = CASES[name]
    before = everything(broker)
    for kind, values in case.bad:
        for value in values:
            with pytest.raises(kind) as caught:
                pytest.fail(f"accepted {ascii(value)[:60]}: {case.call(broker, billing, value)!r}")
            assert case.what in str(caught.value), ascii(value)[:60]
    assert everything(broker) == before


def test_a_broker_works_on_after_bad_arguments(settled: Settled) -> None:
    broker, billing = settled
    before = places(billing.stats(0.0))
    message_id = broker.publish("orders", "fine").message_id
    assert billing.poll("v", 0.0, 1)[0].ack()  # what was ready before
    delivery = only_one(billing.poll("v", 0.0, 10))
    assert delivery.message_id == message_id
    assert delivery.ack()
    after = places(billing.stats(0.0))
    assert after["acked"] - before.get("acked", 0) == 2


# -- what is right, however unusual ---------------------------------------------------------------


@pytest.mark.parametrize("huge", [2**31, 2**32, 2**53 + 1, 2**63 - 1])
def test_counts_can_be_as_large_as_a_signed_64_bit_integer(broker: BrokerAPI, huge: int) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", max_deliveries=huge, max_queue=huge)
    fill(broker, "orders", 3)
    taken = billing.poll("w", 0.0, huge)
    assert ids(taken) == [m(1), m(2), m(3)]
    assert all(delivery.reject() for delivery in taken)
    assert len(broker.dead_letters("orders/billing", limit=huge)) == 3
    assert broker.dead_letters("orders/billing", offset=huge) == []
    assert broker.redrive("orders/billing", [m(1)], limit=huge) == 1
    assert broker.redrive("orders/billing", limit=huge) == 2
    assert broker.purge_dead_letters("orders/billing", limit=huge) == 0
    assert broker.subscribe("orders", "billing", max_queue=huge).pending == 3
    policy = RetryPolicy(max_attempts=huge)
    assert broker.subscribe("orders", "other", retry=policy).retry_policy == policy


@pytest.mark.parametrize("now", [-1e300, -5, -0.0, 0, 1e300, 2**62])
def test_any_finite_moment_is_a_time(broker: BrokerAPI, now: float) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now))
    assert delivery.deadline == now + 30.0
    assert delivery.extend(0.0, now=now)
    assert billing.expire(now) == 1
    assert only_one(billing.poll("w", now)).nack(delay=0.0, now=now)
    assert billing.stats(now).ready == 1


@pytest.mark.parametrize("seconds", [1e-300, 5e-324, 1, 1e300, 1.7e308])
def test_any_finite_duration_is_one(broker: BrokerAPI, seconds: float) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", ack_timeout=seconds)
    fill(broker, "orders", 2)
    first, second = billing.poll("w", 0.0, 2)
    assert first.deadline == seconds
    assert first.nack(delay=seconds, now=0.0)
    assert second.extend(seconds, now=0.0)
    assert billing.expire(seconds) == 1
    assert ids(billing.poll("w", seconds, 2)) == [m(1), m(2)]


def test_subclasses_of_str_are_taken_as_the_text_they_are(broker: BrokerAPI) -> None:
    class Name(str):
        __slots__ = ()

    broker.create_topic(Name("orders"))
    billing = broker.subscribe(Name("orders"), Name("billing"))
    broker.publish(Name("orders"), 1, {Name("type"): Name("created")})
    delivery = only_one(billing.poll(Name("w"), 0.0))
    assert type(delivery.member) is str
    assert delivery.headers == {"type": "created"}
    assert billing.ack(Name(m(1)), Name("w"))
    assert [type(name) for name in broker.topics()] == [str]


def test_any_mapping_can_be_headers(broker: BrokerAPI) -> None:
    class Odd(Mapping[str, str]):
        def __getitem__(self, key: str) -> str:
            return {"type": "created"}[key]

        def __iter__(self) -> Iterator[str]:
            return iter(["type"])

        def __len__(self) -> int:
            return 1

    broker.create_topic("orders")
    email = broker.subscribe("orders", "email", filter='headers.type = "created"')
    broker.publish("orders", 1, Odd())
    assert only_one(email.poll("w", 0.0)).headers == {"type": "created"}


def test_payloads_that_raise_midway_publish_nothing(broker: BrokerAPI) -> None:
    def payloads() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("no more")

    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    with pytest.raises(ZeroDivisionError, match="no more"):
        broker.publish_many("orders", payloads())
    assert billing.stats(0.0).accepted == 0
    assert broker.publish("orders", 1).message_id == m(1)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("max_attempts", (0, -1, 2**63, 1.0, True, None, math.nan)),
        ("base_delay", (-1, math.nan, math.inf, "1", True, None)),
        ("multiplier", (0.5, 0, -1, math.nan, math.inf, "2", True, None)),
        ("max_delay", (-1, math.nan, math.inf, "1", True, None)),
    ],
)
def test_a_bad_retry_policy_cannot_exist(field: str, bad: tuple[Any, ...]) -> None:
    for value in bad:
        with pytest.raises((TypeError, ValueError), match=field):
            RetryPolicy(**{field: value})
        with pytest.raises((TypeError, ValueError), match=field):
            dataclasses.replace(RetryPolicy(), **{field: value})
    for attempt in (0, -1, 1.5, True, None, "1"):
        with pytest.raises((TypeError, ValueError), match="attempt"):
            RetryPolicy().delay(attempt)  # type: ignore[arg-type]


def test_priorities_are_these_four() -> None:
    assert [(p.name, p.value) for p in MessagePriority] == [
        ("LOW", 0),
        ("NORMAL", 1),
        ("HIGH", 2),
        ("CRITICAL", 3),
    ]


def test_letters_of_nobody(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    assert broker.dead_letters() == letters(broker, billing) == []
    assert broker.redrive("orders/billing") == 0
    assert broker.purge_dead_letters("orders/billing") == 0
