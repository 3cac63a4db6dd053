"""How long a member holds what it polled, and how that ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpbroker import AttemptOutcome, DeadLetterReason, Delivery
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import PROCESS_PLANES, attempts, fill, ids, letters, m, only, only_one, places


def billing_of(broker: BrokerAPI, **settings: float) -> SubscriptionAPI:
    broker.create_topic("orders", exist_ok=True)
    return broker.subscribe("orders", "billing", **settings)  # type: ignore[arg-type]


def test_a_lease_ends_at_its_deadline_and_not_before(broker: BrokerAPI) -> None:
    billing = billing_of(broker, ack_timeout=7.5)
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=100.0))
    assert delivery.deadline == 107.5
    assert billing.expire(107.25) == 0
    assert billing.poll("v", now=107.25) == []
    assert billing.expire(107.5) == 1
    assert only_one(billing.poll("v", now=107.5)).attempt == 2


def test_every_poll_takes_back_ended_leases_first(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 2)
    billing.poll("w", now=0.0)
    taken = billing.poll("v", 30.0, 10)
    assert ids(taken) == [m(1), m(2)]
    assert attempts(taken) == [2, 1]


def test_a_poll_can_take_back_what_the_same_member_held(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    billing.poll("w", now=0.0)
    assert only_one(billing.poll("w", now=30.0)).attempt == 2


SETTLING: dict[str, tuple[Callable[[Delivery], object], dict[str, int]]] = {
    "ack": (lambda d: d.ack(), {"acked": 1}),
    "nack": (lambda d: d.nack(now=99.0), {"ready": 1}),
    "release": (lambda d: d.release(), {"ready": 1}),
    "reject": (lambda d: d.reject(), {"dead": 1}),
    "extend": (lambda d: d.extend(now=99.0), {"in_flight": 1}),
    "retry": (lambda d: d.retry("again") is not None, {"in_flight": 1}),
}


@pytest.mark.parametrize("verb", SETTLING)
def test_what_is_not_taken_back_yet_is_still_held_however_late(broker: BrokerAPI, verb: str) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=0.0))
    act, expected = SETTLING[verb]
    broker.publish("orders", "does not end leases")
    assert act(delivery) is True
    stats = billing.stats(99.0)
    assert places(stats) == {**expected, "ready": expected.get("ready", 0) + 1}


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "reject", "extend"])
def test_settling_by_id_does_not_look_at_the_clock_either(broker: BrokerAPI, verb: str) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    billing.poll("w", now=0.0)
    calls: dict[str, Callable[[], bool]] = {
        "ack": lambda: billing.ack(m(1), "w"),
        "nack": lambda: billing.nack(m(1), "w", now=99.0),
        "release": lambda: billing.release(m(1), "w"),
        "reject": lambda: billing.reject(m(1), "w"),
        "extend": lambda: billing.extend(m(1), "w", now=99.0),
    }
    assert calls[verb]() is True
    assert places(billing.stats(99.0)) == SETTLING[verb][1]


def test_an_ended_lease_gives_everything_back_in_one_step_and_in_order(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 6)
    billing.poll("w1", 0.0, 3)
    billing.poll("w2", 0.0, 2)
    assert billing.expire(30.0) == 5
    taken = billing.poll("v", 30.0, 10)
    assert ids(taken) == [m(1), m(2), m(3), m(4), m(5), m(6)]
    assert attempts(taken) == [2, 2, 2, 2, 2, 1]


def test_leases_end_each_at_its_own_time(broker: BrokerAPI) -> None:
    billing = billing_of(broker, ack_timeout=10.0)
    fill(broker, "orders", 3)
    for member, now in (("a", 0.0), ("b", 1.0), ("c", 2.0)):
        billing.poll(member, now=now)
    assert billing.expire(10.0) == 1
    assert billing.expire(11.5) == 1
    assert billing.expire(11.5) == 0
    assert billing.ack(m(1), "a") is False
    assert billing.ack(m(2), "b") is False
    assert billing.ack(m(3), "c") is True


def test_attempts_count_at_hand_over_up_to_the_limit(broker: BrokerAPI) -> None:
    billing = billing_of(broker, ack_timeout=10.0, max_deliveries=3)
    fill(broker, "orders", 1)
    seen = [only_one(billing.poll("w", now=now)).attempt for now in (0.0, 10.0, 20.0)]
    assert seen == [1, 2, 3]
    assert billing.expire(30.0) == 1
    assert billing.poll("w", now=30.0) == []
    letter = only_one(letters(broker, billing))
    assert letter.reason is DeadLetterReason.RETRIES_EXHAUSTED
    assert letter.attempts == 3
    assert letter.error
    assert [attempt.number for attempt in letter.history] == [1, 2, 3]
    assert {attempt.outcome for attempt in letter.history} == {AttemptOutcome.LEASE_ENDED}
    assert [attempt.started for attempt in letter.history] == [0.0, 10.0, 20.0]
    assert [attempt.ended for attempt in letter.history] == [10.0, 20.0, 30.0]


def test_one_delivery_can_be_the_limit(broker: BrokerAPI) -> None:
    billing = billing_of(broker, max_deliveries=1)
    fill(broker, "orders", 2)
    billing.poll("w", 0.0, 2)
    assert billing.ack(m(1), "w")
    assert billing.expire(30.0) == 1
    assert places(billing.stats(30.0)) == {"acked": 1, "dead": 1}


def test_a_poll_that_exhausts_a_message_returns_the_next(broker: BrokerAPI) -> None:
    billing = billing_of(broker, max_deliveries=1)
    fill(broker, "orders", 2)
    billing.poll("w", now=0.0)
    assert ids(billing.poll("w", 30.0, 10)) == [m(2)]
    assert places(billing.stats(30.0)) == {"in_flight": 1, "dead": 1}


def test_the_exhausted_and_the_others_of_one_lease_part(broker: BrokerAPI) -> None:
    billing = billing_of(broker, max_deliveries=2)
    fill(broker, "orders", 4)
    billing.poll("w", 0.0, 2)
    billing.nack(m(2), "w", now=0.0)
    billing.ack(m(1), "w")
    taken = billing.poll("w", 0.0, 10)
    assert ids(taken) == [m(2), m(3), m(4)]
    assert attempts(taken) == [2, 1, 1]
    assert billing.expire(30.0) == 3
    assert [letter.message.message_id for letter in letters(broker, billing)] == [m(2)]
    assert ids(billing.poll("w", 30.0, 10)) == [m(3), m(4)]


def test_expire_of_the_broker_means_all_subscriptions(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    email = broker.subscribe("orders", "email", ack_timeout=40.0)
    fill(broker, "orders", 2)
    billing.poll("w", 0.0, 2)
    email.poll("w", 0.0, 1)
    assert broker.expire(29.0) == 0
    assert broker.expire(30.0) == 2
    assert broker.expire(40.0) == 1
    assert (billing.pending, email.pending) == (2, 2)


def test_next_deadline_is_when_something_is_due(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    email = broker.subscribe("orders", "email", ack_timeout=10.0)
    fill(broker, "orders", 2)
    assert broker.next_deadline() is None
    billing.poll("w", now=0.0)
    assert broker.next_deadline() == 30.0
    email.poll("w", now=5.0)
    assert broker.next_deadline() == 15.0
    email.nack(m(1), "w", delay=2.0, now=6.0)
    assert broker.next_deadline() == 8.0
    assert ids(email.poll("w", 8.0, 10)) == [m(1), m(2)]
    assert broker.next_deadline() == 18.0
    assert email.ack_many([m(1), m(2)], "w") == [True, True]
    assert broker.next_deadline() == 30.0
    broker.unsubscribe("orders", "billing")
    assert broker.next_deadline() is None


# -- extend ---------------------------------------------------------------------------------------


def test_extend_moves_the_deadline_to_now_plus_seconds(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=0.0))
    assert delivery.extend(50.0, now=10.0) is True
    assert delivery.deadline == 60.0
    assert broker.next_deadline() == 60.0
    assert billing.expire(59.0) == 0
    assert delivery.ack() is True


def test_extend_without_seconds_means_the_whole_timeout(broker: BrokerAPI) -> None:
    billing = billing_of(broker, ack_timeout=7.0)
    fill(broker, "orders", 2)
    delivery = only_one(billing.poll("w", now=0.0))
    assert delivery.extend(now=5.0) is True
    assert delivery.deadline == 12.0
    assert billing.extend(m(1), "w", None, 6.0) is True
    assert broker.next_deadline() == 13.0
    assert billing.expire(12.0) == 0
    assert billing.expire(13.0) == 1


def test_extend_can_shorten(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 2)
    billing.poll("w", 0.0, 2)
    assert billing.extend(m(2), "w", 1.0, 2.0) is True
    assert billing.expire(3.0) == 1
    assert ids(billing.poll("v", 3.0, 10)) == [m(2)]
    assert billing.extend(m(1), "w", 0, 4.0) is True
    assert ids(billing.poll("v", 4.0, 10)) == [m(1)]


def test_extend_moves_one_message_of_a_poll_alone(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    broker.publish_many("orders", range(5))
    taken = billing.poll("w", 0.0, 5)
    assert taken[2].extend(100.0, now=0.0)
    assert billing.expire(30.0) == 4
    assert ids(billing.poll("v", 30.0, 10)) == [m(1), m(2), m(4), m(5)]
    assert [delivery.ack() for delivery in taken] == [False, False, True, False, False]


def test_extend_counts_no_attempt(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=0.0))
    for now in range(5):
        assert delivery.extend(30.0, now=float(now))
    billing.expire(1000.0)
    assert only_one(billing.poll("w", now=1000.0)).attempt == 2
    assert billing.stats(1000.0).deliveries == 2


def test_extend_of_what_is_not_held_is_false(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 2)
    delivery = only_one(billing.poll("w", now=0.0))
    assert billing.extend(m(1), "v", 5.0, 0.0) is False
    assert billing.extend(m(2), "w", 5.0, 0.0) is False
    billing.expire(30.0)
    deadline = delivery.deadline
    assert delivery.extend(5.0, now=30.0) is False
    assert delivery.deadline == deadline
    assert billing.extend(m(1), "w", 5.0, 30.0) is False
    assert places(billing.stats(30.0)) == {"ready": 2}


# -- the two ways time is given -------------------------------------------------------------------


@only(*PROCESS_PLANES)
def test_a_broker_in_real_time_refuses_a_time_that_is_given(live: BrokerAPI) -> None:
    billing = billing_of(live)
    fill(live, "orders", 20)
    calls: list[Callable[[], object]] = [
        lambda: billing.poll("w", now=10.0),
        lambda: billing.expire(10.0),
        lambda: billing.nack(m(1), "w", now=10.0),
        lambda: billing.extend(m(1), "w", 5.0, 10.0),
        lambda: billing.stats(10.0),
        lambda: live.expire(10.0),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match="now"):
            call()
    with pytest.raises((TypeError, ValueError), match="max_messages"):
        billing.poll("w", 10)
    assert places(billing.stats()) == {"ready": 20}
    assert len(billing.poll("w", max_messages=10)) == 10


def test_a_poll_in_given_time_does_not_wait(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    for timeout in (1.0, None):
        with pytest.raises(ValueError, match="timeout"):
            billing.poll("w", 0.0, timeout=timeout)
