"""release (not done, not counted) and reject (can never work)."""

from __future__ import annotations

from mpbroker import AttemptOutcome, DeadLetterReason, MessagePriority, RetryPolicy
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import attempts, fill, ids, letters, m, only_one, places


def billing_of(broker: BrokerAPI, **settings: int) -> SubscriptionAPI:
    broker.create_topic("orders", exist_ok=True)
    return broker.subscribe("orders", "billing", **settings)  # type: ignore[arg-type]


# -- release --------------------------------------------------------------------------------------


def test_a_released_message_is_ready_at_once_and_the_attempt_does_not_count(
    broker: BrokerAPI,
) -> None:
    billing = billing_of(broker, max_deliveries=1)
    fill(broker, "orders", 1)
    for _ in range(10):
        delivery = only_one(billing.poll("w", now=0.0))
        assert delivery.attempt == 1
        assert delivery.release() is True
        assert places(billing.stats(0.0)) == {"ready": 1}
    assert letters(broker, billing) == []


def test_a_released_message_says_that_it_was_handed_over_before(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    assert only_one(billing.poll("w", now=0.0)).redelivered is False
    assert billing.release(m(1), "w") is True
    assert only_one(billing.poll("w", now=0.0)).redelivered is True
    assert billing.stats(0.0).redelivered == 1


def test_release_ignores_the_retry_delay(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", retry=RetryPolicy(base_delay=20.0))
    fill(broker, "orders", 1)
    billing.poll("w", now=0.0)
    assert billing.release(m(1), "w")
    assert ids(billing.poll("w", now=0.0)) == [m(1)]


def test_a_released_message_goes_to_its_own_place(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 2)
    fill(broker, "orders", 2, priority=MessagePriority.HIGH)
    taken = billing.poll("w", 0.0, 3)
    assert ids(taken) == [m(3), m(4), m(1)]
    for delivery in (taken[2], taken[1]):
        assert delivery.release()
    assert ids(billing.poll("w", 0.0, 10)) == [m(4), m(1), m(2)]


def test_release_after_failures_keeps_their_count(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 1)
    only_one(billing.poll("w", now=0.0)).nack(error="one", now=0.0)
    only_one(billing.poll("w", now=0.0)).release()
    delivery = only_one(billing.poll("w", now=0.0))
    assert delivery.attempt == 2
    delivery.reject(error="two")
    letter = only_one(letters(broker, billing))
    assert letter.attempts == 2
    assert [(a.number, a.error) for a in letter.history] == [(1, "one"), (2, "two")]


def test_a_member_that_released_is_not_the_last_member(broker: BrokerAPI) -> None:
    billing = billing_of(broker, max_queue=1)
    fill(broker, "orders", 1)
    only_one(billing.poll("failed", now=0.0)).nack(now=0.0)
    only_one(billing.poll("released", now=0.0)).release()
    only_one(billing.poll("ended", now=0.0))
    billing.expire(30.0)
    only_one(billing.poll("released", now=30.0)).release()
    for attempt in (3, 4, 5):
        delivery = only_one(billing.poll("failed", now=30.0))
        assert delivery.attempt == attempt
        delivery.nack(now=30.0)
    letter = only_one(letters(broker, billing))
    assert letter.last_member == "failed"
    assert [a.member for a in letter.history] == ["failed", "ended", "failed", "failed", "failed"]


def test_release_of_some_of_a_batch(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    broker.publish_many("orders", range(6))
    taken = billing.poll("w", 0.0, 6)
    for delivery in taken[1:4]:
        assert delivery.release()
    again = billing.poll("v", 0.0, 10)
    assert ids(again) == [m(2), m(3), m(4)]
    assert attempts(again) == [1, 1, 1]
    assert [d.ack() for d in taken] == [True, False, False, False, True, True]


def test_release_of_what_is_not_held_is_false(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 2)
    delivery = only_one(billing.poll("w", now=0.0))
    assert billing.release(m(1), "v") is False
    assert billing.release(m(2), "w") is False
    assert delivery.release() is True
    assert delivery.release() is False
    assert billing.release(m(1), "w") is False
    assert places(billing.stats(0.0)) == {"ready": 2}


# -- reject ---------------------------------------------------------------------------------------


def test_a_rejected_message_is_a_dead_letter_now(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 2)
    delivery = only_one(billing.poll("w", now=0.0))
    assert delivery.reject(error=ValueError("not an order")) is True
    letter = only_one(letters(broker, billing))
    assert letter.message == delivery.message
    assert letter.reason is DeadLetterReason.REJECTED
    assert letter.error == "ValueError: not an order"
    assert (letter.attempts, letter.last_member) == (1, "w")
    attempt = only_one(letter.history)
    assert (attempt.number, attempt.member, attempt.outcome) == (1, "w", AttemptOutcome.REJECTED)
    assert ids(billing.poll("w", 1000.0, 10)) == [m(2)]


def test_reject_by_id_is_for_the_holder(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    fill(broker, "orders", 2)
    billing.poll("w", now=0.0)
    assert billing.reject(m(1), "v", error="no") is False
    assert billing.reject(m(2), "w", error="no") is False
    assert billing.reject(m(1), "w") is True
    assert billing.reject(m(1), "w") is False
    assert places(billing.stats(0.0)) == {"ready": 1, "dead": 1}


def test_reject_takes_one_message_of_a_batch(broker: BrokerAPI) -> None:
    billing = billing_of(broker)
    broker.publish_many("orders", ["a", "b", "c"])
    taken = billing.poll("w", 0.0, 3)
    assert taken[1].reject(error="never")
    assert taken[1].ack() is False
    assert [taken[0].ack(), taken[2].ack()] == [True, True]
    assert only_one(letters(broker, billing)).message.payload == "b"


# -- errors are kept as text ----------------------------------------------------------------------


def test_errors_are_kept_as_text(broker: BrokerAPI) -> None:
    billing = billing_of(broker, max_deliveries=1)
    given = ["plain", "", None, KeyError("k"), Exception(), "sur\ud800rogate", "é", "x" * 10_000]
    fill(broker, "orders", len(given))
    for error, delivery in zip(given, billing.poll("w", 0.0, 100), strict=True):
        assert delivery.reject(error=error)
    texts = [letter.error for letter in letters(broker, billing)]
    assert texts[0] == "plain"
    assert texts[3:7] == ["KeyError: 'k'", "Exception", "sur\\ud800rogate", "é"]
    assert texts[7][:4000] == "x" * 4000
    assert len(texts[7]) <= 4096
