"""Topics, subscriptions, their settings and the handles on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mpbroker import (
    Overflow,
    RetryPolicy,
    SubscriptionConflict,
    TopicExists,
    UnknownSubscription,
    UnknownTopic,
)
from mpbroker.api import BrokerAPI
from tests.conformance import named_filters
from tests.conformance.support import fill, ids, m, only, places

# -- topics ---------------------------------------------------------------------------------------


def test_a_topic_is_made_once(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    with pytest.raises(TopicExists) as caught:
        broker.create_topic("orders")
    assert caught.value.args == ("orders",)
    assert "orders" in str(caught.value)
    assert list(broker.topics()) == ["orders"]


def test_an_existing_topic_is_fine_when_the_caller_says_so(broker: BrokerAPI) -> None:
    broker.create_topic("orders", exist_ok=True)
    billing = broker.subscribe("orders", "billing")
    fill(broker, "orders", 2)
    broker.create_topic("orders", exist_ok=True)
    assert billing.pending == 2
    assert broker.topics()["orders"].published == 2


def test_topics_are_listed_in_the_order_of_their_creation(broker: BrokerAPI) -> None:
    assert broker.topics() == {}
    for name in ("b", "a", "c"):
        broker.create_topic(name)
    broker.subscribe("a", "one")
    broker.subscribe("a", "two")
    assert list(broker.topics()) == ["b", "a", "c"]
    assert [stats.subscriptions for stats in broker.topics().values()] == [0, 2, 0]


def test_subscriptions_are_listed_by_topic_or_altogether(broker: BrokerAPI) -> None:
    assert broker.subscriptions() == {}
    for topic in ("orders", "returns"):
        broker.create_topic(topic)
    billing = broker.subscribe("orders", "billing")
    broker.subscribe("orders", "email")
    broker.subscribe("returns", "billing")
    fill(broker, "orders", 3)
    assert set(broker.subscriptions()) == {"orders/billing", "orders/email", "returns/billing"}
    assert set(broker.subscriptions("orders")) == {"orders/billing", "orders/email"}
    assert broker.subscriptions("orders")["orders/billing"] == billing.stats()
    assert broker.subscriptions("returns")["returns/billing"].accepted == 0


@pytest.mark.parametrize("name", ["x" * 255, "a b", "é", "名前", "a.b-c_d:e", "-", "m1", "a$", "🙂"])
def test_names_are_kept_exactly_as_given(broker: BrokerAPI, name: str) -> None:
    broker.create_topic(name)
    subscription = broker.subscribe(name, name)
    assert list(broker.topics()) == [name]
    assert subscription.topic == name
    assert subscription.name == name
    assert subscription.subscription_id == f"{name}/{name}"
    assert list(broker.subscriptions(name)) == [f"{name}/{name}"]
    broker.publish(name, "payload")
    delivery = subscription.poll(name, now=0.0)[0]
    assert delivery.member == name
    assert subscription.reject(delivery.message_id, name)
    assert broker.dead_letters(f"{name}/{name}")[0].last_member == name


def test_names_that_look_alike_are_different(broker: BrokerAPI) -> None:
    alike = ["é", "e\u0301", "E", "e", "e "]
    for name in alike:
        broker.create_topic(name)
    assert list(broker.topics()) == alike


@pytest.mark.parametrize(
    "call",
    [
        lambda broker: broker.delete_topic("nowhere"),
        lambda broker: broker.subscribe("nowhere", "billing"),
        lambda broker: broker.subscriptions("nowhere"),
        lambda broker: broker.publish("nowhere", "payload"),
        lambda broker: broker.publish_many("nowhere", ["payload"]),
        lambda broker: broker.publish_many("nowhere", []),
    ],
    ids=["delete_topic", "subscribe", "subscriptions", "publish", "publish_many", "publish_none"],
)
def test_an_unknown_topic_is_named(broker: BrokerAPI, call: Any) -> None:
    with pytest.raises(UnknownTopic) as caught:
        call(broker)
    assert caught.value.args == ("nowhere",)
    assert isinstance(caught.value, LookupError)
    assert broker.topics() == {}


# -- subscribing twice ----------------------------------------------------------------------------


def test_subscribing_again_reaches_the_same_subscription(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    first = broker.subscribe("orders", "billing")
    fill(broker, "orders", 2)
    second = broker.subscribe("orders", "billing")
    assert second.pending == 2
    assert ids(second.poll("w", now=0.0)) == [m(1)]
    assert first.ack(m(1), "w")
    assert places(first.stats(0.0)) == places(second.stats(0.0)) == {"acked": 1, "ready": 1}
    assert list(broker.subscriptions()) == ["orders/billing"]


@only("local")
def test_subscribing_again_in_one_process_gives_the_same_object(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    assert broker.subscribe("orders", "billing") is billing
    assert broker.subscription("orders", "billing") is billing


DIFFERENT: dict[str, Any] = {
    "filter": 'headers.type = "paid"',
    "ack_timeout": 31.0,
    "max_deliveries": 3,
    "retry": RetryPolicy(2, base_delay=2.0),
    "max_queue": 11,
    "overflow": Overflow.REJECT,
}
SAME: dict[str, Any] = {
    "filter": 'headers.type = "created"',
    "ack_timeout": 30.0,
    "retry": RetryPolicy(2, base_delay=1.0),
    "max_queue": 10,
    "overflow": Overflow.DROP_OLDEST,
}


@pytest.mark.parametrize("setting", DIFFERENT)
def test_a_setting_that_differs_is_a_conflict_and_named(broker: BrokerAPI, setting: str) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "billing", **SAME)
    with pytest.raises(SubscriptionConflict) as caught:
        broker.subscribe("orders", "billing", **{setting: DIFFERENT[setting]})
    subscription_id, names = caught.value.args
    assert subscription_id == "orders/billing"
    assert setting in names
    assert set(names) <= {setting, "max_deliveries"}
    assert setting in str(caught.value)


def test_all_settings_that_differ_are_named_at_once(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "billing", **SAME)
    with pytest.raises(SubscriptionConflict) as caught:
        broker.subscribe("orders", "billing", max_queue=11, ack_timeout=31.0, overflow=SAME["overflow"])
    assert set(caught.value.args[1]) == {"max_queue", "ack_timeout"}


def test_the_same_settings_and_settings_left_out_are_no_conflict(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", **SAME)
    fill(broker, "orders", 1, headers={"type": "created"})
    for name, value in SAME.items():
        assert broker.subscribe("orders", "billing", **{name: value}).pending == 1
    assert broker.subscribe("orders", "billing", **SAME).pending == 1
    assert broker.subscribe("orders", "billing", max_deliveries=2).pending == 1
    assert broker.subscribe("orders", "billing", ack_timeout=30).pending == 1
    assert billing.pending == 1


def test_a_default_that_is_given_counts_as_given(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "plain")
    broker.subscribe("orders", "plain", None, 30.0, 5, retry=None, max_queue=1_000_000)
    broker.subscribe("orders", "special", **SAME)
    for name, value in {"filter": None, "retry": None, "max_queue": 1_000_000}.items():
        settings: dict[str, Any] = {name: value}
        with pytest.raises(SubscriptionConflict):
            broker.subscribe("orders", "special", **settings)


def test_a_conflict_changes_nothing(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", max_queue=2)
    with pytest.raises(SubscriptionConflict):
        broker.subscribe("orders", "billing", max_queue=1)
    fill(broker, "orders", 3)
    assert places(billing.stats(0.0)) == {"ready": 2, "dead": 1}


def test_expressions_compare_by_meaning(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "a", filter='headers.type = "created" AND NOT headers.region = "eu"')
    broker.subscribe("orders", "a", filter='(headers."type"="created") AND -headers.region = "eu"')
    with pytest.raises(SubscriptionConflict):
        broker.subscribe("orders", "a", filter='headers.type = "created"')


def test_callables_compare_by_identity(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "a", filter=named_filters.is_created)
    broker.subscribe("orders", "a", filter=named_filters.is_created)
    with pytest.raises(SubscriptionConflict):
        broker.subscribe("orders", "a", filter=named_filters.has_region)
    with pytest.raises(SubscriptionConflict):
        broker.subscribe("orders", "a", filter='headers.type = "created"')


@only("local")
def test_two_functions_of_the_same_text_are_different(broker: BrokerAPI) -> None:
    def make() -> Any:
        def accept(headers: Mapping[str, str]) -> bool:
            return True

        return accept

    broker.create_topic("orders")
    broker.subscribe("orders", "a", filter=make())
    with pytest.raises(SubscriptionConflict):
        broker.subscribe("orders", "a", filter=make())


@only("local")
def test_functions_are_not_asked_whether_they_are_equal(broker: BrokerAPI) -> None:
    class Accepts:
        def __call__(self, headers: Mapping[str, str]) -> bool:
            return True

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    first = Accepts()
    broker.create_topic("orders")
    broker.subscribe("orders", "a", filter=first)
    broker.subscribe("orders", "a", filter=first)
    with pytest.raises(SubscriptionConflict):
        broker.subscribe("orders", "a", filter=Accepts())


# -- handles --------------------------------------------------------------------------------------


def test_a_handle_is_had_without_repeating_settings(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "billing", **SAME)
    fill(broker, "orders", 1, headers={"type": "created"})
    handle = broker.subscription("orders", "billing")
    assert (handle.topic, handle.name, handle.subscriber) == ("orders", "billing", None)
    assert handle.retry_policy == SAME["retry"]
    assert ids(handle.poll("w", now=0.0)) == [m(1)]


@pytest.mark.parametrize(("topic", "name"), [("orders", "email"), ("returns", "billing")])
def test_a_handle_on_nothing_is_an_error(broker: BrokerAPI, topic: str, name: str) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "billing")
    with pytest.raises(UnknownSubscription) as caught:
        broker.subscription(topic, name)
    assert caught.value.args == (f"{topic}/{name}",)
    assert isinstance(caught.value, LookupError)
    with pytest.raises(UnknownSubscription):
        broker.unsubscribe(topic, name)


def test_the_same_name_on_two_topics_is_two_subscriptions(broker: BrokerAPI) -> None:
    for topic in ("orders", "returns"):
        broker.create_topic(topic)
    first = broker.subscribe("orders", "billing", max_queue=5)
    second = broker.subscribe("returns", "billing", max_queue=6)
    fill(broker, "orders", 2)
    fill(broker, "returns", 1)
    assert (first.pending, second.pending) == (2, 1)
    broker.unsubscribe("orders", "billing")
    assert second.pending == 1


def test_the_properties_of_a_subscription_count_what_it_did(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", max_deliveries=1)
    fill(broker, "orders", 4)
    billing.poll("w", 0.0, 3)
    billing.ack(m(1), "w")
    billing.reject(m(2), "w")
    assert (billing.pending, billing.delivered, billing.dead_lettered) == (1, 1, 1)
    assert broker.purge_dead_letters("orders/billing") == 1
    assert billing.dead_lettered == 1
