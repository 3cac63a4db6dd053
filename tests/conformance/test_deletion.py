"""What ends with a topic or a subscription, and what old handles can still do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpbroker import UnknownSubscription, UnknownTopic
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import fill, ids, m, only_one, places

Ending = Callable[[BrokerAPI], None]


@pytest.fixture(params=["unsubscribe", "delete_topic"])
def end(request: pytest.FixtureRequest) -> Ending:
    def unsubscribe(broker: BrokerAPI) -> None:
        broker.unsubscribe("orders", "billing")

    def delete_topic(broker: BrokerAPI) -> None:
        broker.delete_topic("orders")

    return unsubscribe if request.param == "unsubscribe" else delete_topic


@pytest.fixture
def billing(broker: BrokerAPI) -> SubscriptionAPI:
    broker.create_topic("orders")
    return broker.subscribe("orders", "billing")


def test_a_deleted_subscription_gets_nothing_and_hands_out_nothing(
    broker: BrokerAPI, billing: SubscriptionAPI, end: Ending
) -> None:
    fill(broker, "orders", 3)
    end(broker)
    with pytest.raises(UnknownSubscription) as caught:
        billing.poll("w", now=0.0)
    assert caught.value.args == ("orders/billing",)
    assert broker.subscriptions() == {}
    with pytest.raises(UnknownSubscription):
        broker.subscription("orders", "billing")
    for call in (broker.dead_letters, broker.redrive, broker.purge_dead_letters):
        with pytest.raises(UnknownSubscription):
            call("orders/billing")


def test_late_acks_are_false(broker: BrokerAPI, billing: SubscriptionAPI, end: Ending) -> None:
    fill(broker, "orders", 3)
    taken = billing.poll("w", 0.0, 2)
    end(broker)
    assert billing.ack(m(1), "w") is False
    assert billing.ack_many([m(1), m(2), m(3)], "w") == [False] * 3
    assert [delivery.ack() for delivery in taken] == [False, False]


def test_nothing_else_reaches_what_was_held(broker: BrokerAPI, billing: SubscriptionAPI, end: Ending) -> None:
    fill(broker, "orders", 2)
    first, second = billing.poll("w", 0.0, 2)
    end(broker)
    assert billing.nack(m(1), "w", now=0.0) is False
    assert billing.release(m(1), "w") is False
    assert billing.reject(m(1), "w") is False
    assert billing.extend(m(1), "w", now=0.0) is False
    assert first.nack(now=0.0) is False
    assert first.release() is False
    assert second.reject() is False
    assert second.extend(now=0.0) is False
    assert second.retry("x") is None


def test_a_new_one_of_the_same_name_is_another_one(broker: BrokerAPI, billing: SubscriptionAPI, end: Ending) -> None:
    fill(broker, "orders", 3)
    old = billing.poll("w", 0.0, 2)
    end(broker)
    broker.create_topic("orders", exist_ok=True)
    new = broker.subscribe("orders", "billing", ack_timeout=5.0)
    assert new.stats(0.0).accepted == 0
    message_id = fill(broker, "orders", 1)[0]
    assert message_id == m(4)
    with pytest.raises(UnknownSubscription):
        billing.poll("w", now=0.0)
    held = only_one(new.poll("w", now=0.0))
    assert held.message_id == m(4)
    assert [delivery.ack() for delivery in old] == [False, False]
    assert billing.ack(m(4), "w") is False
    assert billing.release(m(4), "w") is False
    assert places(new.stats(0.0)) == {"in_flight": 1}
    assert new.ack(m(4), "w") is True


def test_deleting_a_topic_ends_its_subscriptions_and_no_others(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    email = broker.subscribe("orders", "email")
    broker.create_topic("returns")
    other = broker.subscribe("returns", "billing")
    fill(broker, "orders", 1)
    fill(broker, "returns", 1)
    broker.delete_topic("orders")
    for subscription in (billing, email):
        with pytest.raises(UnknownSubscription):
            subscription.poll("w", now=0.0)
    assert list(broker.topics()) == ["returns"]
    assert list(broker.subscriptions()) == ["returns/billing"]
    assert ids(other.poll("w", now=0.0)) == [m(2)]
    with pytest.raises(UnknownTopic):
        broker.publish("orders", None)
    with pytest.raises(UnknownTopic):
        broker.delete_topic("orders")


def test_a_topic_made_again_counts_from_zero_and_ids_go_on(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 2)
    broker.delete_topic("orders")
    broker.create_topic("orders")
    assert fill(broker, "orders", 1) == [m(3)]
    stats = broker.topics()["orders"]
    assert (stats.published, stats.unrouted, stats.subscriptions) == (1, 1, 0)


def test_deleting_one_subscription_leaves_the_others_of_the_topic(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    email = broker.subscribe("orders", "email")
    fill(broker, "orders", 2)
    broker.unsubscribe("orders", "billing")
    fill(broker, "orders", 1)
    assert email.pending == 3
    assert broker.topics()["orders"].unrouted == 0
    assert broker.topics()["orders"].subscriptions == 1
    with pytest.raises(UnknownSubscription):
        broker.unsubscribe("orders", "billing")


def test_dead_letters_end_with_their_subscription(broker: BrokerAPI, billing: SubscriptionAPI, end: Ending) -> None:
    fill(broker, "orders", 1)
    only_one(billing.poll("w", now=0.0)).reject()
    end(broker)
    assert broker.dead_letters() == []
    broker.create_topic("orders", exist_ok=True)
    broker.subscribe("orders", "billing")
    assert broker.dead_letters("orders/billing") == []


def test_a_deleted_subscription_has_nothing_due(broker: BrokerAPI, billing: SubscriptionAPI, end: Ending) -> None:
    fill(broker, "orders", 2)
    first, _ = billing.poll("w", 0.0, 2)
    first.nack(delay=5.0, now=0.0)
    assert broker.next_deadline() == 5.0
    end(broker)
    assert broker.next_deadline() is None
    assert broker.expire(1000.0) == 0
