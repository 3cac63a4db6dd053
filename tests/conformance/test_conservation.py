"""Every accepted copy is in exactly one place, and the counters say which.

Conservation itself is looked at after every call of every test here; these tests add what each
counter means.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from mpbroker import Delivery, MessagePriority, Overflow, SubscriptionStats
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance import named_filters
from tests.conformance.support import check_conserved, ids, m, places, together


def test_a_life_in_figures(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", max_deliveries=2, max_queue=6)
    expected = {"accepted": 0, "deliveries": 0, "redelivered": 0, "late_acks": 0, "dead_lettered": 0}

    def now_is(now: float, **changes: int) -> dict[str, int]:
        for name, change in changes.items():
            expected[name] += change
        stats = billing.stats(now)
        assert {name: getattr(stats, name) for name in expected} == expected
        return places(stats)

    broker.publish_many("orders", range(8))
    assert now_is(0.0, accepted=8, dead_lettered=2) == {"ready": 6, "dead": 2}
    taken = billing.poll("w", 0.0, 4)
    assert now_is(0.0, deliveries=4) == {"ready": 2, "in_flight": 4, "dead": 2}
    taken[0].ack()
    taken[0].ack()
    assert now_is(0.0, late_acks=1) == {"acked": 1, "ready": 2, "in_flight": 3, "dead": 2}
    taken[1].nack(delay=40.0, now=0.0)
    assert now_is(0.0) == {"acked": 1, "ready": 2, "delayed": 1, "in_flight": 2, "dead": 2}
    taken[2].reject()
    assert now_is(0.0, dead_lettered=1)["dead"] == 3
    billing.expire(30.0)
    assert now_is(30.0) == {"acked": 1, "ready": 3, "delayed": 1, "dead": 3}
    assert ids(billing.poll("w", 40.0, 10)) == [m(2), m(4), m(5), m(6)]
    assert now_is(40.0, deliveries=4, redelivered=2) == {"acked": 1, "in_flight": 4, "dead": 3}
    billing.expire(70.0)
    assert now_is(70.0, dead_lettered=2) == {"acked": 1, "ready": 2, "dead": 5}
    assert broker.purge_dead_letters("orders/billing", limit=1) == 1
    assert now_is(70.0) == {"acked": 1, "ready": 2, "dead": 4, "dropped": 1}
    assert broker.redrive("orders/billing", limit=3) == 3
    assert now_is(70.0) == {"acked": 1, "ready": 5, "dead": 1, "dropped": 1}


def test_due_copies_count_as_ready_and_backlog_counts_both(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    broker.publish_many("orders", range(3))
    for delivery, delay in zip(billing.poll("w", 0.0, 2), (5.0, 10.0), strict=True):
        delivery.nack(delay=delay, now=0.0)
    assert (billing.stats(0.0).ready, billing.stats(0.0).delayed) == (1, 2)
    assert (billing.stats(5.0).ready, billing.stats(5.0).delayed) == (2, 1)
    assert (billing.stats(10.0).ready, billing.stats(10.0).delayed) == (3, 0)
    assert {billing.stats(now).backlog for now in (10.0, 11.0)} == {3}
    assert billing.pending == 3


def test_stats_of_ended_leases_wait_for_the_broker_to_take_them_back(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    broker.publish("orders", None)
    billing.poll("w", now=0.0)
    assert places(billing.stats(1000.0)) == {"in_flight": 1}


OVERFLOWS = {
    "dead_letter": Overflow.DEAD_LETTER,
    "drop_oldest": Overflow.DROP_OLDEST,
}


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("seed", range(3))
def test_random_work_conserves_and_drains(broker: BrokerAPI, overflow: str, seed: int) -> None:
    """The verbs in any order; then everything left is acked, and nothing is missing."""
    rng = random.Random(seed)
    broker.create_topic("orders")
    billing = broker.subscribe(
        "orders", "billing", ack_timeout=3.0, max_deliveries=3, max_queue=40, overflow=OVERFLOWS[overflow]
    )
    failing = broker.subscribe("orders", "failing", filter=named_filters.raises_on_paid)
    held: list[Delivery] = []
    now = 0.0
    published = 0
    for _ in range(150):
        now += rng.choice((0.0, 0.5, 1.0))
        count = rng.choice((1, 1, 5, 30))
        broker.publish_many(
            "orders",
            range(count),
            {"type": rng.choice(("paid", "created"))},
            priority=rng.choice(list(MessagePriority)),
        )
        published += count
        held += billing.poll(rng.choice("wv"), now, rng.choice((1, 3, 20)))
        rng.shuffle(held)
        for delivery in held[: rng.randrange(6)]:
            settle(delivery, rng, now)
        del held[:6]
        if rng.random() < 0.1:
            broker.redrive("orders/billing", limit=5)
            broker.purge_dead_letters("orders/failing", limit=5)
    now += 100.0
    for subscription in (billing, failing):
        broker.expire(now)
        now += 100.0
        while taken := subscription.poll("w", now, 100):
            assert all(delivery.ack() for delivery in taken)
        stats = subscription.stats(now)
        assert stats.accepted == published
        assert stats.accepted == stats.acked + stats.dead + stats.dropped
        assert broker.next_deadline() is None or subscription is billing


def test_conservation_holds_while_threads_work(live: BrokerAPI) -> None:
    live.create_topic("orders")
    billing = live.subscribe("orders", "billing", max_queue=20, max_deliveries=2)

    def publish() -> None:
        for _ in range(25):
            live.publish_many("orders", range(3))

    def work(member: str) -> None:
        rng = random.Random(member)
        for _ in range(50):
            for delivery in billing.poll(member, max_messages=4):
                rng.choice([delivery.ack, delivery.nack, delivery.release, delivery.reject])()

    def look() -> list[SubscriptionStats]:
        return [billing.stats() for _ in range(100)]

    def redrive() -> None:
        for _ in range(20):
            live.redrive("orders/billing", limit=3)
            live.purge_dead_letters("orders/billing", limit=1)

    results = together([publish, publish, lambda: work("a"), lambda: work("b"), look, redrive])
    for stats in results[4] or []:
        check_conserved(stats)
    drain(billing)
    assert billing.stats().accepted == 150


def settle(delivery: Delivery, rng: random.Random, now: float) -> None:
    verb = rng.choice(["ack", "ack", "nack", "release", "reject", "extend", "retry"])
    arguments: dict[str, dict[str, Any]] = {
        "nack": {"delay": rng.choice((None, 2.0)), "now": now},
        "extend": {"seconds": 5.0, "now": now},
        "retry": {"error": "again"},
    }
    getattr(delivery, verb)(**arguments.get(verb, {}))


def drain(subscription: SubscriptionAPI) -> None:
    while taken := subscription.poll("last", max_messages=100):
        assert all(delivery.ack() for delivery in taken)
