"""Polls that wait: what wakes them, what they get, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from mpbroker import CallbackSubscriber, Delivery, MessagePriority, UnknownSubscription
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import (
    LIMIT_S,
    PROCESS_PLANES,
    Call,
    attempts,
    fill,
    ids,
    m,
    only,
    only_one,
    places,
    together,
)


@pytest.fixture
def billing(live: BrokerAPI) -> SubscriptionAPI:
    live.create_topic("orders")
    return live.subscribe("orders", "billing", ack_timeout=60.0)


def waiting(subscription: SubscriptionAPI, member: str = "waiter") -> Call[list[Delivery]]:
    return Call(lambda: subscription.poll(member, timeout=LIMIT_S))


def test_a_poll_does_not_wait_by_default(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    assert billing.poll("w") == []


@pytest.mark.parametrize("timeout", [0, 0.0, 1e-9, 0.01, 0.05])
def test_a_poll_ends_empty_when_nothing_came_in_time(live: BrokerAPI, billing: SubscriptionAPI, timeout: float) -> None:
    assert Call(lambda: billing.poll("w", timeout=timeout)).result() == []
    fill(live, "orders", 1)
    assert ids(billing.poll("w", timeout=timeout)) == [m(1)]


def test_a_poll_takes_what_is_there_without_waiting_for_more(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    published = fill(live, "orders", 2)
    taken = Call(lambda: billing.poll("w", max_messages=10, timeout=None)).result()
    assert ids(taken) == published


def test_publish_wakes_a_waiting_poll(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    for number in range(20):
        call = waiting(billing)
        message_id = live.publish("orders", number).message_id
        delivery = only_one(call.result())
        assert (delivery.message_id, delivery.payload) == (message_id, number)
        assert delivery.ack()


def test_two_threads_play_ping_pong_with_waiting_polls(live: BrokerAPI) -> None:
    for topic in ("ping", "pong"):
        live.create_topic(topic)
    ping, pong = (live.subscribe(topic, "player") for topic in ("ping", "pong"))

    def player(mine: SubscriptionAPI, other: str, serves: bool) -> list[int]:
        seen: list[int] = []
        if serves:
            live.publish(other, 0)
        while len(seen) < 50:
            delivery = only_one(mine.poll("w", timeout=LIMIT_S))
            seen.append(delivery.payload)
            live.publish(other, delivery.payload + 1)
            assert delivery.ack()
        return seen

    first, second = together([lambda: player(ping, "pong", True), lambda: player(pong, "ping", False)])
    assert first == list(range(1, 101, 2))
    assert second == list(range(0, 100, 2))


def test_a_poll_without_a_timeout_waits_for_ever(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    call = Call(lambda: billing.poll("w", timeout=None))
    fill(live, "orders", 1)
    assert ids(call.result()) == [m(1)]


@pytest.mark.parametrize("timeout", [1e6, 1e9, 1e300])
def test_a_timeout_can_be_longer_than_any_timer(live: BrokerAPI, billing: SubscriptionAPI, timeout: float) -> None:
    call = Call(lambda: billing.poll("w", timeout=timeout))
    fill(live, "orders", 1)
    assert ids(call.result()) == [m(1)]


@pytest.mark.parametrize("timeout", [1e9, 1e300])
def test_waiting_until_idle_can_be_longer_than_any_timer(
    live: BrokerAPI, billing: SubscriptionAPI, timeout: float
) -> None:
    live.subscribe("orders", CallbackSubscriber("audit", lambda message: None))
    audit = live.subscription("orders", "audit")
    fill(live, "orders", 1)
    held = only_one(billing.poll("w"))
    calls = [Call(partial(waits, timeout)) for waits in (billing.wait_idle, audit.wait_idle, live.wait_idle)]
    assert held.ack()
    assert live.run_until_idle() == 1
    assert [call.result() for call in calls] == [True, True, True]
    dispatched = Call(partial(audit.dispatch_one, timeout=timeout))
    fill(live, "orders", 1)
    assert dispatched.result() is True


@pytest.mark.parametrize("seconds", [1e9, 1e300])
def test_a_lease_and_a_delay_can_be_longer_than_any_timer(live: BrokerAPI, seconds: float) -> None:
    live.create_topic("orders")
    billing = live.subscribe("orders", "billing", ack_timeout=seconds)
    fill(live, "orders", 3)
    first, second, third = billing.poll("w", max_messages=3)
    assert first.nack(delay=seconds)
    assert second.extend(seconds)
    assert Call(lambda: billing.poll("v", timeout=0.01)).result() == []
    assert third.ack()
    assert places(billing.stats()) == {"acked": 1, "delayed": 1, "in_flight": 1}


def test_nack_wakes_a_waiting_poll(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(live, "orders", 1)
    held = only_one(billing.poll("w"))
    for attempt in (2, 3, 4):
        call = waiting(billing)
        assert held.nack()
        held = only_one(call.result())
        assert held.attempt == attempt


def test_release_wakes_a_waiting_poll(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(live, "orders", 1)
    held = only_one(billing.poll("w"))
    for _ in range(5):
        call = waiting(billing)
        assert held.release()
        held = only_one(call.result())
        assert (held.member, held.attempt) == ("waiter", 1)


def test_redrive_wakes_a_waiting_poll(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(live, "orders", 1)
    only_one(billing.poll("w")).reject()
    call = waiting(billing)
    assert live.redrive("orders/billing") == 1
    assert only_one(call.result()).message_id == m(1)


def test_an_offer_wakes_a_waiting_poll(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    message = live.publish("orders", "book")
    assert only_one(billing.poll("w")).ack()
    call = waiting(billing)
    assert billing.offer(message) is True
    assert only_one(call.result()).message == message


def test_a_delayed_copy_wakes_a_waiting_poll_when_due(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(live, "orders", 1)
    only_one(billing.poll("w")).nack(delay=0.03)
    delivery = only_one(Call(lambda: billing.poll("w", timeout=LIMIT_S)).result())
    assert delivery.attempt == 2


def test_a_delay_that_begins_while_a_poll_waits_wakes_it_when_due(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(live, "orders", 1)
    held = only_one(billing.poll("w"))
    call = waiting(billing)
    assert held.nack(delay=0.02)
    assert only_one(call.result()).attempt == 2


def test_an_ended_lease_wakes_a_waiting_poll_once_the_broker_drives_time(live: BrokerAPI) -> None:
    live.create_topic("orders")
    billing = live.subscribe("orders", "billing", ack_timeout=0.02)
    live.start()
    fill(live, "orders", 1)
    billing.poll("w")
    delivery = only_one(Call(lambda: billing.poll("v", timeout=LIMIT_S)).result())
    assert (delivery.member, delivery.attempt) == ("v", 2)


@only(*PROCESS_PLANES)
def test_a_broker_process_ends_leases_by_itself(live: BrokerAPI) -> None:
    live.create_topic("orders")
    billing = live.subscribe("orders", "billing", ack_timeout=0.02)
    fill(live, "orders", 1)
    billing.poll("w")
    call = Call(lambda: billing.poll("v", timeout=LIMIT_S))
    assert only_one(call.result()).attempt == 2


@only("local")
def test_expire_wakes_a_waiting_poll(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(live, "orders", 1)
    deadline = only_one(billing.poll("w")).deadline
    call = waiting(billing)
    assert billing.expire(deadline) == 1
    assert only_one(call.result()).attempt == 2


@pytest.mark.parametrize("ending", ["unsubscribe", "delete_topic"])
@pytest.mark.parametrize("timeout", [LIMIT_S, None])
def test_deletion_ends_waiting_polls(
    live: BrokerAPI, billing: SubscriptionAPI, ending: str, timeout: float | None
) -> None:
    calls = [Call(lambda: billing.poll("w", timeout=timeout)) for _ in range(3)]
    if ending == "unsubscribe":
        live.unsubscribe("orders", "billing")
    else:
        live.delete_topic("orders")
    for call in calls:
        with pytest.raises(UnknownSubscription) as caught:
            call.result()
        assert caught.value.args == ("orders/billing",)


def test_a_waiting_poll_of_a_deleted_subscription_is_not_woken_by_its_successor(
    live: BrokerAPI, billing: SubscriptionAPI
) -> None:
    call = waiting(billing)
    live.unsubscribe("orders", "billing")
    successor = live.subscribe("orders", "billing")
    fill(live, "orders", 1)
    with pytest.raises(UnknownSubscription):
        call.result()
    assert ids(successor.poll("w")) == [m(1)]


def test_what_does_not_concern_a_waiting_poll_does_not_end_it(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    email = live.subscribe("orders", "email", filter='headers.type = "created"')
    call = waiting(email)
    fill(live, "orders", 5, headers={"type": "paid"})
    only_one(billing.poll("w")).ack()
    live.create_topic("other")
    live.expire()
    message_id = live.publish("orders", None, {"type": "created"}).message_id
    assert ids(call.result()) == [message_id]


def test_each_waiting_poll_gets_one_of_the_messages_of_one_publish(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    for _ in range(10):
        calls = [waiting(billing, f"w{n}") for n in range(4)]
        published = ids(live.publish_many("orders", range(4)))
        taken = [only_one(call.result()) for call in calls]
        assert sorted(ids(taken)) == sorted(published)
        assert [delivery.member for delivery in taken] == [f"w{n}" for n in range(4)]
        assert all(delivery.ack() for delivery in taken)


def test_a_poll_that_another_was_quicker_than_goes_on_waiting(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    for _ in range(10):
        calls = [waiting(billing, f"w{n}") for n in range(3)]
        published = fill(live, "orders", 3)
        taken = [only_one(call.result()) for call in calls]
        assert sorted(ids(taken)) == sorted(published)


@only("local")
def test_a_timeout_passes_even_where_the_injected_clock_stands_still(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    assert Call(lambda: billing.poll("w", timeout=0.01)).result() == []
    assert Call(lambda: billing.wait_idle(0.01)).result() is True
    fill(broker, "orders", 1)
    assert Call(lambda: billing.wait_idle(0.01)).result() is False


def test_no_message_is_lost_between_waiting_polls(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    """As many polls as messages, all starting while they are published."""

    def worker(member: str) -> list[str]:
        seen = []
        for _ in range(25):
            delivery = only_one(billing.poll(member, timeout=LIMIT_S))
            assert delivery.ack()
            seen.append(delivery.message_id)
        return seen

    calls = [Call(lambda n=n: worker(f"w{n}")) for n in range(4)]  # type: ignore[misc]
    published = [fill(live, "orders", 25) for _ in range(4)]
    seen = [message_id for call in calls for message_id in call.result()]
    assert sorted(seen) == sorted(message_id for some in published for message_id in some)
    assert billing.stats().deliveries == 100


def test_a_woken_poll_takes_up_to_its_number_in_order(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    call = Call(lambda: billing.poll("w", max_messages=3, timeout=LIMIT_S))
    published = ids(live.publish_many("orders", range(5), priority=MessagePriority.LOW))
    taken = call.result()
    assert ids(taken) == published[:3]
    assert attempts(taken) == [1, 1, 1]
    assert ids(billing.poll("w", max_messages=10)) == published[3:]


def test_many_can_wait_on_many_subscriptions(live: BrokerAPI) -> None:
    live.create_topic("orders")
    subscriptions = [live.subscribe("orders", f"s{n}") for n in range(8)]
    calls: list[Callable[[], list[Delivery]]] = [waiting(s).result for s in subscriptions]
    message_id = live.publish("orders", None).message_id
    assert [ids(call()) for call in calls] == [[message_id]] * 8


def test_waiting_until_idle_needs_everything_settled(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    assert billing.wait_idle(timeout=0) is True
    assert billing.wait_idle() is True
    fill(live, "orders", 2)
    assert billing.wait_idle(timeout=0) is False
    first, second = billing.poll("w", max_messages=2)
    assert billing.wait_idle(timeout=0.01) is False
    first.ack()
    second.nack(delay=1000.0)
    assert billing.wait_idle(timeout=0.01) is False


def test_the_last_ack_wakes_who_waits_until_idle(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    for settle in ("ack", "reject"):
        fill(live, "orders", 1)
        held = only_one(billing.poll("w"))
        call = Call(lambda: billing.wait_idle(timeout=LIMIT_S))
        assert getattr(held, settle)() is True
        assert call.result() is True
