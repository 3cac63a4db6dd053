"""What happens to a publish when a subscription holds as much as it may."""

from __future__ import annotations

import queue

import pytest

from mpbroker import DeadLetterReason, MessagePriority, Overflow, QueueFull
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance import named_filters
from tests.conformance.support import dead_ids, fill, ids, letters, m, only_one, places

LOW, NORMAL, HIGH, CRITICAL = MessagePriority


def billing_of(broker: BrokerAPI, max_queue: int, overflow: Overflow = Overflow.DEAD_LETTER) -> SubscriptionAPI:
    broker.create_topic("orders", exist_ok=True)
    return broker.subscribe("orders", "billing", max_queue=max_queue, overflow=overflow)


# -- the bound ------------------------------------------------------------------------------------


def test_the_bound_is_on_ready_delayed_and_in_flight_together(broker: BrokerAPI) -> None:
    billing = billing_of(broker, 3)
    fill(broker, "orders", 3)
    taken = billing.poll("w", 0.0, 2)
    taken[0].nack(delay=100.0, now=0.0)
    assert places(billing.stats(0.0)) == {"ready": 1, "delayed": 1, "in_flight": 1}
    fill(broker, "orders", 1)
    assert dead_ids(broker, billing) == [m(4)]
    taken[1].ack()
    fill(broker, "orders", 2)
    assert dead_ids(broker, billing) == [m(4), m(6)]


def test_dead_letters_take_no_room(broker: BrokerAPI) -> None:
    billing = billing_of(broker, 1)
    for number in range(5):
        fill(broker, "orders", 1)
        only_one(billing.poll("w", now=0.0)).reject()
        assert places(billing.stats(0.0)) == {"dead": number + 1}


def test_what_comes_back_always_fits(broker: BrokerAPI) -> None:
    billing = billing_of(broker, 2)
    fill(broker, "orders", 2)
    taken = billing.poll("w", 0.0, 2)
    fill(broker, "orders", 2)
    assert [d.nack(now=0.0) for d in taken] == [True, True]
    assert places(billing.stats(0.0)) == {"ready": 2, "dead": 2}
    assert ids(billing.poll("w", 0.0, 10)) == [m(1), m(2)]
    billing.expire(30.0)
    assert billing.stats(30.0).ready == 2


def test_a_full_subscription_is_full_for_itself_alone(broker: BrokerAPI) -> None:
    billing = billing_of(broker, 1)
    email = broker.subscribe("orders", "email")
    fill(broker, "orders", 3)
    assert places(billing.stats(0.0)) == {"ready": 1, "dead": 2}
    assert places(email.stats(0.0)) == {"ready": 3}


# -- set the new one aside ------------------------------------------------------------------------


def test_by_default_the_new_message_is_a_dead_letter_and_the_publish_succeeds(
    broker: BrokerAPI,
) -> None:
    billing = billing_of(broker, 1)
    fill(broker, "orders", 1)
    message = broker.publish("orders", "one too many", {"type": "created"}, priority=CRITICAL)
    letter = only_one(letters(broker, billing))
    assert letter.message == message
    assert letter.reason is DeadLetterReason.OVERFLOW
    assert letter.error
    assert (letter.attempts, letter.last_member, letter.history) == (0, "", ())
    stats = billing.stats(0.0)
    assert (stats.accepted, stats.dead_lettered) == (2, 1)
    assert ids(billing.poll("w", 0.0, 10)) == [m(1)]


def test_of_a_batch_the_first_fit(broker: BrokerAPI) -> None:
    billing = billing_of(broker, 300)
    published = ids(broker.publish_many("orders", range(700)))
    assert ids(billing.poll("w", 0.0, 1000)) == published[:300]
    assert dead_ids(broker, billing) == published[300:]


# -- drop the oldest ------------------------------------------------------------------------------


def test_drop_oldest_sets_the_oldest_of_the_lowest_priority_aside(broker: BrokerAPI) -> None:
    billing = billing_of(broker, 4, Overflow.DROP_OLDEST)
    for priority in (NORMAL, LOW, HIGH, LOW):
        broker.publish("orders", None, priority=priority)
    broker.publish("orders", None, priority=NORMAL)
    assert dead_ids(broker, billing) == [m(2)]
    broker.publish("orders", None, priority=LOW)
    assert dead_ids(broker, billing) == [m(2), m(4)]
    broker.publish("orders", None, priority=CRITICAL)
    assert dead_ids(broker, billing) == [m(2), m(4), m(6)]
    broker.publish("orders", None, priority=HIGH)
    assert dead_ids(broker, billing) == [m(2), m(4), m(6), m(1)]
    assert ids(billing.poll("w", 0.0, 10)) == [m(7), m(3), m(8), m(5)]
    assert {letter.reason for letter in letters(broker, billing)} == {DeadLetterReason.OVERFLOW}


def test_drop_oldest_drops_the_new_one_when_only_higher_are_ready(broker: BrokerAPI) -> None:
    billing = billing_of(broker, 2, Overflow.DROP_OLDEST)
    fill(broker, "orders", 2, priority=HIGH)
    fill(broker, "orders", 1, priority=NORMAL)
    assert dead_ids(broker, billing) == [m(3)]
    fill(broker, "orders", 1, priority=HIGH)
    assert dead_ids(broker, billing) == [m(3), m(1)]


def test_drop_oldest_never_touches_what_is_in_flight_or_delayed(broker: BrokerAPI) -> None:
    billing = billing_of(broker, 2, Overflow.DROP_OLDEST)
    fill(broker, "orders", 2, priority=LOW)
    taken = billing.poll("w", 0.0, 2)
    taken[0].nack(delay=100.0, now=0.0)
    fill(broker, "orders", 1, priority=CRITICAL)
    assert dead_ids(broker, billing) == [m(3)]
    assert places(billing.stats(0.0)) == {"delayed": 1, "in_flight": 1, "dead": 1}
    assert taken[1].ack()


def test_drop_oldest_takes_one_that_came_back_with_what_it_went_through(
    broker: BrokerAPI,
) -> None:
    billing = billing_of(broker, 1, Overflow.DROP_OLDEST)
    fill(broker, "orders", 1)
    only_one(billing.poll("w", now=0.0)).nack(error="trouble", now=0.0)
    fill(broker, "orders", 1)
    letter = only_one(letters(broker, billing))
    assert (letter.message.message_id, letter.reason) == (m(1), DeadLetterReason.OVERFLOW)
    assert (letter.attempts, letter.last_member) == (1, "w")
    assert [attempt.error for attempt in letter.history] == ["trouble"]


@pytest.mark.parametrize("count", [5, 300, 1000])
def test_drop_oldest_keeps_the_last_of_a_batch(broker: BrokerAPI, count: int) -> None:
    billing = billing_of(broker, 4, Overflow.DROP_OLDEST)
    fill(broker, "orders", 2)
    published = [m(1), m(2), *ids(broker.publish_many("orders", range(count)))]
    assert dead_ids(broker, billing) == published[:-4]
    assert ids(billing.poll("w", 0.0, 10)) == published[-4:]


# -- refuse ---------------------------------------------------------------------------------------


def test_reject_raises_before_any_subscription_took_the_message(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    first = broker.subscribe("orders", "first")
    billing = billing_of(broker, 1, Overflow.REJECT)
    last = broker.subscribe("orders", "last")
    fill(broker, "orders", 1)
    before = (broker.topics(), broker.subscriptions())
    with pytest.raises(QueueFull) as caught:
        broker.publish("orders", "refused")
    assert caught.value.args == ("orders/billing", 1)
    assert isinstance(caught.value, queue.Full)
    assert "orders/billing" in str(caught.value)
    assert (broker.topics(), broker.subscriptions()) == before
    assert (first.pending, last.pending) == (1, 1)
    assert letters(broker, billing) == []


def test_reject_takes_again_when_there_is_room(broker: BrokerAPI) -> None:
    billing = billing_of(broker, 1, Overflow.REJECT)
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=0.0))
    with pytest.raises(QueueFull):
        broker.publish("orders", "in flight counts")
    delivery.ack()
    broker.publish("orders", "fits")
    assert [d.payload for d in billing.poll("w", 0.0, 10)] == ["fits"]


@pytest.mark.parametrize("count", [3, 300])
def test_reject_takes_all_of_a_batch_or_none(broker: BrokerAPI, count: int) -> None:
    billing = billing_of(broker, count, Overflow.REJECT)
    email = broker.subscribe("orders", "email")
    fill(broker, "orders", 1)
    with pytest.raises(QueueFull):
        broker.publish_many("orders", range(count))
    assert (billing.pending, email.pending) == (1, 1)
    assert broker.topics()["orders"].published == 1
    assert len(broker.publish_many("orders", range(count - 1))) == count - 1
    assert billing.pending == count


def test_reject_does_not_mind_what_the_filter_keeps_out(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe(
        "orders",
        "billing",
        filter='headers.type = "created"',
        max_queue=1,
        overflow=Overflow.REJECT,
    )
    created = {"type": "created"}
    broker.publish("orders", None, created)
    broker.publish("orders", None, {"type": "paid"})
    with pytest.raises(QueueFull):
        broker.publish("orders", None, created)
    assert billing.stats(0.0).filtered_out == 1


def test_a_refused_publish_leaves_no_trace_of_any_filter(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    picky = broker.subscribe("orders", "picky", filter='headers.type = "created"')
    failing = broker.subscribe("orders", "failing", filter=named_filters.raises_on_paid)
    billing_of(broker, 1, Overflow.REJECT)
    broker.publish("orders", None, {"type": "created"})
    before = broker.subscriptions()
    with pytest.raises(QueueFull):
        broker.publish("orders", None, {"type": "paid"})
    assert broker.subscriptions() == before
    assert letters(broker, failing) == []
    assert picky.stats(0.0).filtered_out == 0
