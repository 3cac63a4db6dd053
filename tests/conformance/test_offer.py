"""A published message put in one subscription alone."""

from __future__ import annotations

import dataclasses

import pytest

from mpbroker import DeadLetterReason, MessagePriority, Overflow, QueueFull
from mpbroker.api import BrokerAPI
from tests.conformance import named_filters
from tests.conformance.support import dead_ids, fill, ids, letters, m, only_one, places


def test_an_offered_message_is_in_that_subscription_alone(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    message = broker.publish("orders", ["book"], {"type": "created"}, priority=MessagePriority.HIGH)
    late = broker.subscribe("orders", "late")
    other = broker.subscribe("orders", "other")
    assert late.offer(message) is True
    delivery = only_one(late.poll("w", now=0.0))
    assert delivery.message == message
    assert (delivery.attempt, delivery.redelivered) == (1, False)
    assert other.stats(0.0).accepted == 0
    assert broker.topics()["orders"].published == 1


def test_an_offered_message_goes_to_its_own_place(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    earlier = [broker.publish("orders", n) for n in range(3)]
    late = broker.subscribe("orders", "late")
    newer = fill(broker, "orders", 2)
    high = fill(broker, "orders", 1, priority=MessagePriority.HIGH)
    for message in (earlier[2], earlier[0], earlier[1]):
        assert late.offer(message) is True
    assert ids(late.poll("w", 0.0, 10)) == [*high, *ids(earlier), *newer]


def test_what_is_there_is_not_taken_again(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    message = broker.publish("orders", "book")
    assert billing.offer(message) is False
    delivery = only_one(billing.poll("w", now=0.0))
    assert billing.offer(message) is False
    delivery.nack(delay=10.0, now=0.0)
    assert billing.offer(message) is False
    assert places(billing.stats(0.0)) == {"delayed": 1}
    assert billing.stats(0.0).accepted == 1


def test_a_dead_letter_is_there_too(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    message = broker.publish("orders", "book")
    only_one(billing.poll("w", now=0.0)).reject()
    assert billing.offer(message) is False
    assert broker.redrive("orders/billing") == 1
    assert ids(billing.poll("w", 0.0, 10)) == [m(1)]
    assert billing.stats(0.0).accepted == 1


def test_one_message_of_a_batch_that_is_there_is_not_taken_again(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    messages = broker.publish_many("orders", range(4))
    taken = billing.poll("w", 0.0, 3)
    taken[1].ack()
    assert [billing.offer(message) for message in messages] == [False, True, False, False]
    assert billing.stats(0.0).accepted == 5
    assert ids(billing.poll("w", 0.0, 10)) == [m(2), m(4)]


def test_a_filter_decides_on_offers_too(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    messages = [broker.publish("orders", None, {"type": kind}) for kind in ("created", "paid")]
    email = broker.subscribe("orders", "email", filter='headers.type = "created"')
    assert [email.offer(message) for message in messages] == [True, False]
    assert places(email.stats(0.0)) == {"ready": 1}


def test_an_offer_whose_filter_raises_is_a_dead_letter(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    message = broker.publish("orders", None)
    failing = broker.subscribe("orders", "failing", filter=named_filters.raises)
    assert failing.offer(message) is False
    assert only_one(letters(broker, failing)).reason is DeadLetterReason.FILTER_ERROR


def test_an_offer_to_a_full_subscription_follows_its_overflow(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    earlier = broker.publish("orders", "earlier")
    by_policy = {
        overflow: broker.subscribe("orders", overflow.value, max_queue=1, overflow=overflow)
        for overflow in (Overflow.DEAD_LETTER, Overflow.DROP_OLDEST, Overflow.REJECT)
    }
    broker.publish("orders", "fills")
    with pytest.raises(QueueFull):
        by_policy[Overflow.REJECT].offer(earlier)
    assert places(by_policy[Overflow.REJECT].stats(0.0)) == {"ready": 1}
    assert by_policy[Overflow.DEAD_LETTER].offer(earlier) is False
    assert dead_ids(broker, by_policy[Overflow.DEAD_LETTER]) == [m(1)]
    by_policy[Overflow.DROP_OLDEST].offer(earlier)
    assert places(by_policy[Overflow.DROP_OLDEST].stats(0.0)) == {"ready": 1, "dead": 1}


def test_what_was_never_published_here_is_refused(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.create_topic("returns")
    billing = broker.subscribe("orders", "billing")
    other = broker.publish("returns", None)
    message = broker.publish("orders", None)
    for wrong in (
        other,
        dataclasses.replace(message, sequence=0, message_id=""),
        dataclasses.replace(message, sequence=0, message_id="m0"),
        dataclasses.replace(message, sequence=-1, message_id="m-1"),
        dataclasses.replace(message, message_id=m(7)),
        dataclasses.replace(message, sequence=7),
    ):
        with pytest.raises(ValueError, match="message"):
            billing.offer(wrong)
    for not_one in (None, m(1), 1, {"message_id": m(1)}):
        with pytest.raises(TypeError, match="message"):
            billing.offer(not_one)  # type: ignore[arg-type]
    assert billing.stats(0.0).accepted == 1
