"""Where messages go that are set aside, and how they leave there."""

from __future__ import annotations

import pytest

from mpbroker import DeadLetterReason, MessagePriority, Overflow, RetryPolicy, UnknownSubscription
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import attempts, dead_ids, fill, ids, letters, m, only_one, places

BILLING = "orders/billing"


@pytest.fixture
def billing(broker: BrokerAPI) -> SubscriptionAPI:
    broker.create_topic("orders")
    return broker.subscribe("orders", "billing", max_deliveries=2)


def reject_all(subscription: SubscriptionAPI, now: float = 0.0) -> None:
    for delivery in subscription.poll("w", now, 100_000):
        assert delivery.reject(error=f"no {delivery.message_id}")


# -- listing --------------------------------------------------------------------------------------


def test_dead_letters_are_listed_oldest_first(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 4)
    taken = billing.poll("w", 0.0, 4)
    for index in (2, 0, 3, 1):
        assert taken[index].reject()
    assert dead_ids(broker, billing) == [m(3), m(1), m(4), m(2)]


def test_dead_letters_are_listed_in_pages(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    published = fill(broker, "orders", 5)
    reject_all(billing)

    def page(**arguments: int) -> list[str]:
        return [x.message.message_id for x in broker.dead_letters(BILLING, **arguments)]

    assert page(limit=2) == published[:2]
    assert page(limit=2, offset=2) == published[2:4]
    assert page(limit=2, offset=4) == published[4:]
    assert page(offset=5) == []
    assert page(offset=4) == published[4:]
    assert page(limit=100) == published


def test_dead_letters_of_all_come_subscription_by_subscription(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    email = broker.subscribe("orders", "email")
    fill(broker, "orders", 2)
    billing.poll("w", now=0.0)[0].reject()
    reject_all(email)
    reject_all(billing)
    everything = [(x.subscription_id, x.message.message_id) for x in broker.dead_letters()]
    one_by_one = [
        (name, letter.message.message_id) for name in broker.subscriptions() for letter in broker.dead_letters(name)
    ]
    assert everything == one_by_one
    assert len(everything) == 4
    limited = broker.dead_letters(limit=2, offset=1)
    assert [(x.subscription_id, x.message.message_id) for x in limited] == everything[1:3]


@pytest.mark.parametrize(
    "name", ["nothing", "orders/nothing", "", "/", "orders/", "orders/billing/x", "o\ud800"], ids=ascii
)
def test_an_id_that_names_no_subscription_is_an_error(broker: BrokerAPI, billing: SubscriptionAPI, name: str) -> None:
    for call in (broker.dead_letters, broker.redrive, broker.purge_dead_letters):
        with pytest.raises(UnknownSubscription):
            call(name)
    assert billing.stats(0.0).accepted == 0


def test_listing_changes_nothing(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 2)
    reject_all(billing)
    before = billing.stats(0.0)
    assert broker.dead_letters() == broker.dead_letters(BILLING)
    assert billing.stats(0.0) == before


# -- the bound ------------------------------------------------------------------------------------


def test_the_oldest_are_dropped_and_counted_beyond_the_bound(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", max_queue=1)
    published = ids(broker.publish_many("orders", range(10_051)))
    stats = billing.stats(0.0)
    assert places(stats) == {"ready": 1, "dead": 10_000, "dropped": 50}
    assert (stats.accepted, stats.dead_lettered) == (10_051, 10_050)
    assert dead_ids(broker, billing) == published[51:]
    only_one(billing.poll("w", now=0.0)).reject()
    assert places(billing.stats(0.0)) == {"dead": 10_000, "dropped": 51}
    assert dead_ids(broker, billing)[-2:] == [published[-1], m(1)]


# -- redrive --------------------------------------------------------------------------------------


def test_redrive_puts_all_back_in_their_places(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 2)
    fill(broker, "orders", 1, priority=MessagePriority.HIGH)
    reject_all(billing)
    newer = fill(broker, "orders", 1)
    assert broker.redrive(BILLING) == 3
    assert places(billing.stats(0.0)) == {"ready": 4}
    assert letters(broker, billing) == []
    assert ids(billing.poll("w", 0.0, 10)) == [m(3), m(1), m(2), *newer]


def test_a_redriven_message_starts_again_and_keeps_id_and_history(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    message = broker.publish("orders", "book", {"type": "created"})
    for _ in range(2):
        only_one(billing.poll("w", now=0.0)).nack(error="first life", now=0.0)
    assert broker.redrive(BILLING) == 1
    delivery = only_one(billing.poll("v", now=0.0))
    assert delivery.message == message
    assert delivery.attempt == 1
    assert delivery.redelivered is True
    delivery.nack(error="second life", now=0.0)
    only_one(billing.poll("v", now=0.0)).nack(error="second life", now=0.0)
    letter = only_one(letters(broker, billing))
    assert letter.attempts == 2
    assert [(a.number, a.member, a.error) for a in letter.history] == [
        (1, "w", "first life"),
        (2, "w", "first life"),
        (1, "v", "second life"),
        (2, "v", "second life"),
    ]


def test_redrive_takes_the_oldest_first_up_to_a_limit(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 4)
    taken = billing.poll("w", 0.0, 4)
    for index in (2, 0, 3, 1):
        taken[index].reject()
    assert broker.redrive(BILLING, limit=2) == 2
    assert dead_ids(broker, billing) == [m(4), m(2)]
    assert ids(billing.poll("w", 0.0, 10)) == [m(1), m(3)]
    assert broker.redrive(BILLING, limit=10) == 2
    assert broker.redrive(BILLING, limit=10) == 0


def test_redrive_of_some(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 5)
    reject_all(billing)
    assert broker.redrive(BILLING, [m(4), m(2), m(2), m(99), "nonsense", "m\ud800"]) == 2
    assert dead_ids(broker, billing) == [m(1), m(3), m(5)]
    assert ids(billing.poll("w", 0.0, 10)) == [m(2), m(4)]
    assert broker.redrive(BILLING, []) == 0
    assert broker.redrive(BILLING, (i for i in [m(5), m(1)]), limit=1) == 1
    assert dead_ids(broker, billing) == [m(3), m(5)]


def test_redrive_goes_as_far_as_there_is_room(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", max_queue=3)
    fill(broker, "orders", 6)
    assert dead_ids(broker, billing) == [m(4), m(5), m(6)]
    assert broker.redrive(BILLING) == 0
    taken = billing.poll("w", 0.0, 2)
    assert broker.redrive(BILLING) == 0
    assert [delivery.ack() for delivery in taken] == [True, True]
    assert broker.redrive(BILLING) == 2
    assert dead_ids(broker, billing) == [m(6)]
    assert ids(billing.poll("w", 0.0, 10)) == [m(3), m(4), m(5)]


def test_redrive_displaces_nothing_whatever_the_overflow(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", max_queue=2, overflow=Overflow.DROP_OLDEST)
    fill(broker, "orders", 4)
    assert broker.redrive(BILLING) == 0
    assert dead_ids(broker, billing) == [m(1), m(2)]
    assert billing.pending == 2


def test_redrive_is_at_once_whatever_the_retry_policy(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    retry = RetryPolicy(max_attempts=1, base_delay=30.0)
    billing = broker.subscribe("orders", "billing", retry=retry)
    fill(broker, "orders", 1)
    only_one(billing.poll("w", now=0.0)).nack(now=0.0)
    assert broker.redrive(BILLING) == 1
    assert attempts(billing.poll("w", now=0.0)) == [1]


def test_redriven_messages_were_accepted_once(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 2)
    for _ in range(3):
        reject_all(billing)
        broker.redrive(BILLING)
    stats = billing.stats(0.0)
    assert (stats.accepted, stats.ready, stats.dead) == (2, 2, 0)
    assert stats.dead_lettered == 6


def test_old_deliveries_do_not_reach_a_redriven_message(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    old = only_one(billing.poll("w", now=0.0))
    old.reject()
    broker.redrive(BILLING)
    only_one(billing.poll("w", now=0.0))
    assert old.ack() is False
    assert old.release() is False
    assert billing.ack(m(1), "w") is True


# -- purge ----------------------------------------------------------------------------------------


def test_purged_letters_are_forgotten_and_counted(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 5)
    reject_all(billing)
    assert broker.purge_dead_letters(BILLING, limit=2) == 2
    assert dead_ids(broker, billing) == [m(3), m(4), m(5)]
    assert broker.purge_dead_letters(BILLING, [m(5), m(1), m(5), "nonsense"]) == 1
    assert dead_ids(broker, billing) == [m(3), m(4)]
    assert broker.purge_dead_letters(BILLING, []) == 0
    assert places(billing.stats(0.0)) == {"dead": 2, "dropped": 3}
    assert broker.purge_dead_letters(BILLING) == 2
    assert broker.purge_dead_letters(BILLING) == 0
    assert broker.redrive(BILLING) == 0
    assert places(billing.stats(0.0)) == {"dropped": 5}


def test_dead_letters_of_one_subscription_are_its_own(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    email = broker.subscribe("orders", "email")
    fill(broker, "orders", 3)
    reject_all(billing)
    reject_all(email)
    assert broker.purge_dead_letters(BILLING) == 3
    assert places(email.stats(0.0)) == {"dead": 3}
    assert broker.redrive("orders/email") == 3
    assert places(billing.stats(0.0)) == {"dropped": 3}


def test_reasons_are_one_of_four() -> None:
    assert {reason.name for reason in DeadLetterReason} == {
        "RETRIES_EXHAUSTED",
        "OVERFLOW",
        "REJECTED",
        "FILTER_ERROR",
    }
