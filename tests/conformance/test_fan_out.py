"""Who gets a copy, who holds it, and in which order copies leave."""

from __future__ import annotations

import itertools

from mpbroker import Message, MessagePriority
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import Plane, attempts, fill, ids, m, numbers, only_one, places, together

LOW, NORMAL, HIGH, CRITICAL = MessagePriority


def orders(broker: BrokerAPI, **settings: float) -> SubscriptionAPI:
    broker.create_topic("orders", exist_ok=True)
    return broker.subscribe("orders", "billing", **settings)  # type: ignore[arg-type]


# -- fan-out and sharing --------------------------------------------------------------------------


def test_every_subscription_of_the_topic_gets_its_own_copy(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    subscriptions = [broker.subscribe("orders", name) for name in ("billing", "email", "audit")]
    message_id = broker.publish("orders", "book").message_id
    for subscription in subscriptions:
        delivery = only_one(subscription.poll("w", now=0.0))
        assert (delivery.message_id, delivery.payload) == (message_id, "book")
    assert subscriptions[0].ack(message_id, "w")
    assert [s.stats(0.0).in_flight for s in subscriptions] == [0, 1, 1]


def test_a_message_reaches_no_subscription_of_another_topic(broker: BrokerAPI) -> None:
    broker.create_topic("returns")
    other = broker.subscribe("returns", "billing")
    billing = orders(broker)
    fill(broker, "orders", 3)
    assert billing.pending == 3
    assert other.stats(0.0).accepted == 0
    assert other.poll("w", now=0.0, max_messages=10) == []


def test_members_of_one_subscription_never_hold_the_same_copy(broker: BrokerAPI) -> None:
    billing = orders(broker)
    published = fill(broker, "orders", 9)
    held = [ids(billing.poll(f"w{n % 3}", 0.0, 2)) for n in range(6)]
    assert [len(some) for some in held] == [2, 2, 2, 2, 1, 0]
    assert list(itertools.chain.from_iterable(held)) == published


def test_a_message_without_a_taker_is_counted_on_its_topic(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.publish("orders", "nobody listens")
    picky = broker.subscribe("orders", "email", filter='headers.type = "created"')
    broker.publish("orders", "nobody wants it", {"type": "paid"})
    broker.publish("orders", "taken", {"type": "created"})
    stats = broker.topics()["orders"]
    assert (stats.published, stats.unrouted, stats.subscriptions) == (3, 2, 1)
    assert picky.stats(0.0).filtered_out == 1
    assert picky.stats(0.0).accepted == 1


def test_publish_many_without_a_taker_counts_each(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.publish_many("orders", range(300))
    stats = broker.topics()["orders"]
    assert (stats.published, stats.unrouted) == (300, 300)


def test_a_subscription_sees_only_what_is_published_after_it(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.publish("orders", "before")
    billing = broker.subscribe("orders", "billing")
    assert billing.pending == 0
    message_id = broker.publish("orders", "after").message_id
    assert ids(billing.poll("w", 0.0, 10)) == [message_id]


# -- ids ------------------------------------------------------------------------------------------


def test_ids_count_from_one_over_all_topics(fresh: BrokerAPI) -> None:
    for topic in ("orders", "returns"):
        fresh.create_topic(topic)
    published = [fresh.publish(topic, None) for topic in ("orders", "returns", "orders")]
    assert ids(published) == ["m1", "m2", "m3"]
    assert [message.sequence for message in published] == [1, 2, 3]


def test_publish_many_gives_consecutive_ids_in_the_order_of_the_payloads(broker: BrokerAPI) -> None:
    billing = orders(broker)
    first = broker.publish("orders", "alone")
    many = broker.publish_many("orders", (f"p{n}" for n in range(600)), {"type": "bulk"})
    last = broker.publish("orders", "alone again")
    assert numbers([first, *many, last]) == list(range(1, 603))
    assert ids(many) == [f"m{message.sequence}" for message in many]
    taken = billing.poll("w", 0.0, 1000)
    assert [d.payload for d in taken] == ["alone", *[f"p{n}" for n in range(600)], "alone again"]
    assert numbers(d.message for d in taken) == list(range(1, 603))
    assert all(d.headers == {"type": "bulk"} for d in taken[1:-1])


def test_publish_many_of_nothing_is_nothing(broker: BrokerAPI) -> None:
    billing = orders(broker)
    assert broker.publish_many("orders", []) == []
    assert billing.pending == 0
    assert broker.topics()["orders"].published == 0
    assert broker.publish("orders", None).message_id == m(1)


def test_what_is_published_is_what_is_delivered(broker: BrokerAPI) -> None:
    billing = orders(broker)
    published = broker.publish("orders", ["book", 2], {"type": "created"}, priority=HIGH)
    assert published.topic == "orders"
    assert published.payload == ["book", 2]
    assert published.headers == {"type": "created"}
    assert published.priority is HIGH
    delivery = only_one(billing.poll("w", now=0.0))
    assert delivery.message == published
    assert delivery.priority is HIGH
    assert delivery.member == "w"
    assert (delivery.attempt, delivery.redelivered) == (1, False)


def test_uids_are_unique_over_brokers(plane: Plane) -> None:
    seen: list[Message] = []
    for _ in range(2):
        with plane.exact() as broker:
            billing = orders(broker)
            published = broker.publish_many("orders", range(3))
            assert [d.message.uid for d in billing.poll("w", 0.0, 3)] == [m.uid for m in published]
            seen += published
    assert ids(seen) == ["m1", "m2", "m3"] * 2
    assert len({message.uid for message in seen}) == 6
    assert all(message.uid for message in seen)


# -- order ----------------------------------------------------------------------------------------


def test_ready_copies_leave_by_priority_and_then_in_publish_order(broker: BrokerAPI) -> None:
    billing = orders(broker)
    given = [NORMAL, LOW, CRITICAL, HIGH, NORMAL, CRITICAL, LOW, HIGH, NORMAL]
    published = [broker.publish("orders", None, priority=priority) for priority in given]
    expected = sorted(published, key=lambda m: (-m.priority, m.sequence))
    assert ids(billing.poll("w", 0.0, 4)) == ids(expected[:4])
    assert ids(billing.poll("w", 0.0, 100)) == ids(expected[4:])


def test_plain_ints_are_priorities_too(broker: BrokerAPI) -> None:
    billing = orders(broker)
    for level in range(4):
        message = broker.publish("orders", level, priority=level)  # type: ignore[arg-type]
        assert message.priority is MessagePriority(level)
    assert [d.payload for d in billing.poll("w", 0.0, 4)] == [3, 2, 1, 0]


def test_batches_of_different_priorities_interleave_by_priority(broker: BrokerAPI) -> None:
    billing = orders(broker)
    normal = ids(broker.publish_many("orders", range(3)))
    high = ids(broker.publish_many("orders", range(3), priority=HIGH))
    low = ids(broker.publish_many("orders", range(3), priority=LOW))
    normal += ids(broker.publish_many("orders", range(3)))
    assert ids(billing.poll("w1", 0.0, 2)) == high[:2]
    urgent = broker.publish("orders", None, priority=CRITICAL).message_id
    assert ids(billing.poll("w2", 0.0, 100)) == [urgent, high[2], *normal, *low]


def test_copies_that_come_back_are_in_front_of_everything_newer_of_their_priority(
    broker: BrokerAPI,
) -> None:
    billing = orders(broker)
    high = fill(broker, "orders", 2, priority=HIGH)
    normal = fill(broker, "orders", 4)
    assert ids(billing.poll("w1", 0.0, 4)) == [*high, *normal[:2]]
    newer_high = fill(broker, "orders", 1, priority=HIGH)
    newer = fill(broker, "orders", 1)
    assert billing.expire(30.0) == 4
    assert ids(billing.poll("w2", 30.0, 100)) == [*high, *newer_high, *normal, *newer]


def test_what_comes_back_in_any_order_leaves_in_publish_order(broker: BrokerAPI) -> None:
    billing = orders(broker, max_deliveries=10)
    published = ids(broker.publish_many("orders", range(8)))
    billing.poll("w", 0.0, 8)
    for index in (5, 1, 7, 0, 3, 6, 2, 4):
        assert billing.nack(published[index], "w", now=0.0)
    assert ids(billing.poll("w", 0.0, 8)) == published


def test_the_gaps_of_a_partly_acked_batch_come_back_in_order(broker: BrokerAPI) -> None:
    billing = orders(broker)
    published = ids(broker.publish_many("orders", range(20)))
    taken = billing.poll("w", 0.0, 20)
    assert billing.ack_many(published[::2], "w") == [True] * 10
    assert billing.expire(30.0) == 10
    again = billing.poll("v", 30.0, 20)
    assert ids(again) == published[1::2]
    assert attempts(again) == [2] * 10
    assert billing.ack_many(published, "v") == [False, True] * 10
    assert [delivery.ack() for delivery in taken] == [False] * 20
    assert places(billing.stats(30.0)) == {"acked": 20}


def test_concurrent_publishes_reach_every_subscription_in_the_order_of_their_ids(
    live: BrokerAPI,
) -> None:
    live.create_topic("orders")
    subscriptions = [live.subscribe("orders", name) for name in ("a", "b", "c")]

    def publish() -> list[int]:
        singles = numbers(live.publish("orders", None) for _ in range(30))
        many = numbers(live.publish_many("orders", range(30)))
        assert many == list(range(many[0], many[0] + 30))
        return singles + many

    sequences = sorted(itertools.chain.from_iterable(together([publish] * 4)))
    assert sequences == list(range(1, 241))
    for subscription in subscriptions:
        taken = subscription.poll("w", max_messages=1000)
        assert numbers(delivery.message for delivery in taken) == sequences


def test_concurrent_publishes_of_several_priorities_stay_in_order_within_each(
    live: BrokerAPI,
) -> None:
    live.create_topic("orders")
    subscriptions = [live.subscribe("orders", name) for name in ("a", "b")]

    def publish(priority: MessagePriority) -> None:
        for _ in range(40):
            live.publish("orders", None, priority=priority)

    together([lambda p=p: publish(p) for p in (LOW, HIGH, LOW, CRITICAL)])  # type: ignore[misc]
    orders_seen = [[(d.priority, d.message.sequence) for d in s.poll("w", max_messages=1000)] for s in subscriptions]
    assert orders_seen[0] == orders_seen[1]
    assert orders_seen[0] == sorted(orders_seen[0], key=lambda seen: (-seen[0], seen[1]))
    assert len(orders_seen[0]) == 160
