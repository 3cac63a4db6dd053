"""What failed comes back: when, how often, and how it is told."""

from __future__ import annotations

import itertools

import pytest

from mpbroker import AttemptOutcome, DeadLetterReason, RetryPolicy
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import attempts, fill, ids, letters, m, only_one, places

POLICY = RetryPolicy(max_attempts=4, base_delay=1.0, multiplier=2.0, max_delay=3.0)


def billing_of(broker: BrokerAPI, retry: RetryPolicy | None = None) -> SubscriptionAPI:
    broker.create_topic("orders", exist_ok=True)
    return broker.subscribe("orders", "billing", retry=retry)


# -- nack -----------------------------------------------------------------------------------------


def test_without_a_policy_what_failed_comes_back_at_once(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 2)
    assert only_one(billing.poll("w", now=0.0)).nack(now=0.0) is True
    taken = billing.poll("w", 0.0, 10)
    assert ids(taken) == [m(1), m(2)]
    assert attempts(taken) == [2, 1]
    assert [d.redelivered for d in taken] == [True, False]


def test_nack_with_a_delay_comes_back_when_due_and_not_before(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    billing.poll("w", now=0.0)
    assert billing.nack(m(1), "w", delay=2.5, now=1.0) is True
    assert places(billing.stats(1.0)) == {"delayed": 1}
    assert billing.pending == 1
    assert billing.poll("w", now=3.25) == []
    assert places(billing.stats(3.5)) == {"ready": 1}
    assert only_one(billing.poll("w", now=3.5)).attempt == 2


def test_nack_by_someone_else_changes_nothing(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 2)
    billing.poll("w", now=0.0)
    assert billing.nack(m(1), "v", now=0.0) is False
    assert billing.nack(m(2), "w", now=0.0) is False
    assert places(billing.stats(0.0)) == {"ready": 1, "in_flight": 1}


def test_the_last_nack_makes_a_dead_letter_with_its_error(broker: BrokerAPI) -> None:
    billing = billing_of(broker, RetryPolicy(max_attempts=2, base_delay=0.0))
    fill(broker, "orders", 1, headers={"type": "created"})
    billing.poll("w1", now=0.0)
    assert billing.nack(m(1), "w1", error="first trouble", now=1.0)
    billing.poll("w2", now=2.0)
    assert billing.nack(m(1), "w2", delay=100.0, error=ValueError("bad price"), now=3.0)
    letter = only_one(letters(broker, billing))
    assert letter.reason is DeadLetterReason.RETRIES_EXHAUSTED
    assert letter.error == "ValueError: bad price"
    assert (letter.attempts, letter.last_member, letter.dead_since) == (2, "w2", 3.0)
    assert letter.message.headers == {"type": "created"}
    first, second = letter.history
    assert (first.number, first.member, first.started, first.ended) == (1, "w1", 0.0, 1.0)
    assert (first.outcome, first.error) == (AttemptOutcome.FAILED, "first trouble")
    assert (second.number, second.member, second.started, second.ended) == (2, "w2", 2.0, 3.0)
    assert (second.outcome, second.error) == (AttemptOutcome.FAILED, "ValueError: bad price")


def test_failing_and_ended_attempts_count_alike(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    now = 0.0
    for attempt in (1, 2, 3, 4):
        assert only_one(billing.poll("w", now=now)).attempt == attempt
        if attempt % 2:
            billing.nack(m(1), "w", now=now)
        else:
            now += 30.0
            assert billing.expire(now) == 1
    assert only_one(billing.poll("w", now=now)).nack(now=now)
    letter = only_one(letters(broker, billing))
    assert [a.outcome for a in letter.history] == [
        AttemptOutcome.FAILED,
        AttemptOutcome.LEASE_ENDED,
        AttemptOutcome.FAILED,
        AttemptOutcome.LEASE_ENDED,
        AttemptOutcome.FAILED,
    ]


# -- the policy -----------------------------------------------------------------------------------


def test_the_policy_gives_the_delay_after_each_nack(broker: BrokerAPI) -> None:
    billing = billing_of(broker, POLICY)
    fill(broker, "orders", 1)
    now = 0.0
    for delay in (1.0, 2.0, 3.0):
        only_one(billing.poll("w", now=now)).nack(now=now)
        assert billing.poll("w", now=now + delay - 0.25) == []
        now += delay
    only_one(billing.poll("w", now=now)).nack(now=now)
    assert only_one(letters(broker, billing)).attempts == 4


def test_the_policy_gives_the_delay_after_each_ended_lease(broker: BrokerAPI) -> None:
    billing = billing_of(broker, POLICY)
    fill(broker, "orders", 1)
    now = 0.0
    for delay in (1.0, 2.0, 3.0):
        only_one(billing.poll("w", now=now))
        now += 30.0
        assert billing.expire(now) == 1
        assert places(billing.stats(now)) == {"delayed": 1}
        assert billing.poll("w", now=now + delay - 0.25) == []
        now += delay
    only_one(billing.poll("w", now=now))
    assert billing.expire(now + 30.0) == 1
    assert only_one(letters(broker, billing)).attempts == 4


def test_a_delay_that_is_given_wins_over_the_policy(broker: BrokerAPI) -> None:
    billing = billing_of(broker, POLICY)
    fill(broker, "orders", 1)
    only_one(billing.poll("w", now=0.0)).nack(delay=0.0, now=0.0)
    only_one(billing.poll("w", now=0.0)).nack(delay=9.0, now=0.0)
    assert billing.poll("w", now=8.75) == []
    assert only_one(billing.poll("w", now=9.0)).attempt == 3


def test_the_attempts_of_the_policy_are_the_limit_of_deliveries(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    policy = RetryPolicy(max_attempts=2, base_delay=0.0)
    billing = broker.subscribe("orders", "billing", max_deliveries=2, retry=policy)
    fill(broker, "orders", 1)
    for _ in range(2):
        only_one(billing.poll("w", now=0.0)).nack(now=0.0)
    assert places(billing.stats(0.0)) == {"dead": 1}
    with pytest.raises(ValueError, match="max_deliveries"):
        broker.subscribe("orders", "other", max_deliveries=3, retry=policy)
    assert list(broker.subscriptions()) == ["orders/billing"]


# -- delayed copies -------------------------------------------------------------------------------


def test_a_delayed_copy_holds_nothing_else_back(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 3)
    only_one(billing.poll("w", now=0.0)).nack(delay=100.0, now=0.0)
    taken = billing.poll("w", 0.0, 10)
    assert ids(taken) == [m(2), m(3)]
    assert [delivery.ack() for delivery in taken] == [True, True]
    assert broker.next_deadline() == 100.0


def test_delayed_copies_rejoin_at_their_own_place(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 4)
    billing.poll("w", 0.0, 3)
    for message_id, delay in ((m(1), 3.0), (m(2), 1.0), (m(3), 2.0)):
        billing.nack(message_id, "w", delay=delay, now=0.0)
    assert ids(billing.poll("v", now=1.0)) == [m(2)]
    assert ids(billing.poll("v", now=1.5)) == [m(4)]
    fill(broker, "orders", 1)
    assert ids(billing.poll("v", 3.0, 10)) == [m(1), m(3), m(5)]


def test_copies_due_together_leave_in_publish_order(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    published = ids(broker.publish_many("orders", range(6)))
    billing.poll("w", 0.0, 6)
    for message_id in published[::-1]:
        billing.nack(message_id, "w", delay=5.0, now=0.0)
    assert billing.stats(5.0).ready == 6
    assert ids(billing.poll("w", 5.0, 10)) == published


# -- retry while holding --------------------------------------------------------------------------


def test_retry_keeps_holding_the_message_as_the_next_attempt(broker: BrokerAPI) -> None:
    billing = billing_of(broker, POLICY)
    fill(broker, "orders", 2)
    first = only_one(billing.poll("w", now=0.0))
    second = first.retry("trouble")
    assert second is not None
    assert (second.message, second.member, second.attempt) == (first.message, "w", 2)
    assert second.redelivered is True
    assert second.token != first.token
    assert places(billing.stats(0.0)) == {"ready": 1, "in_flight": 1}
    assert ids(billing.poll("v", 0.0, 10)) == [m(2)]
    assert first.ack() is False
    assert first.retry("again") is None
    assert second.ack() is True


def test_retry_after_the_last_attempt_is_none_and_a_dead_letter(broker: BrokerAPI) -> None:
    billing = billing_of(broker, POLICY)
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=0.0))
    for number in (1, 2, 3):
        again = delivery.retry(f"trouble {number}")
        assert again is not None
        delivery = again
    assert delivery.attempt == 4
    assert delivery.retry(OSError("trouble 4")) is None
    letter = only_one(letters(broker, billing))
    assert letter.reason is DeadLetterReason.RETRIES_EXHAUSTED
    assert letter.error == "OSError: trouble 4"
    assert [(a.number, a.error) for a in letter.history] == [
        (1, "trouble 1"),
        (2, "trouble 2"),
        (3, "trouble 3"),
        (4, "OSError: trouble 4"),
    ]
    assert {a.outcome for a in letter.history} == {AttemptOutcome.FAILED}


def test_retry_of_what_was_taken_back_is_none_and_changes_nothing(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=0.0))
    billing.expire(30.0)
    before = billing.stats(30.0)
    assert delivery.retry("late") is None
    assert billing.stats(30.0) == before


def test_a_retried_message_of_a_batch_leaves_its_neighbours_alone(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    broker.publish_many("orders", range(3))
    taken = billing.poll("w", 0.0, 3)
    middle = taken[1].retry("trouble")
    assert middle is not None
    assert (middle.message_id, middle.payload) == (m(2), 1)
    assert [taken[0].ack(), middle.ack(), taken[2].ack()] == [True, True, True]


# -- the last attempts are kept -------------------------------------------------------------------


def test_the_last_hundred_attempts_are_kept(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", max_deliveries=120)
    fill(broker, "orders", 1)
    for number in itertools.count(1):
        taken = billing.poll("w", now=0.0)
        if not taken:
            break
        assert only_one(taken).nack(error=f"trouble {number}", now=0.0)
    letter = only_one(letters(broker, billing))
    assert letter.attempts == 120
    assert [a.number for a in letter.history] == list(range(21, 121))
    assert letter.history[-1].error == "trouble 120"
