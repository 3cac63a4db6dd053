"""Overflow.WAIT: a publish waits for room, in order, and is refused when there was none in time."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mpbroker import (
    Message,
    MessageBroker,
    Overflow,
    QueueFull,
    SubscriptionConflict,
    UnknownTopic,
    WaitForRoom,
)
from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.process.proxy import BrokerProxy
from tests.conformance import named_filters
from tests.conformance.support import LIMIT_S, Call, fill, ids, letters, m, numbers, only, only_one, places, until

WAIT = Overflow.WAIT(LIMIT_S)
SOON = Overflow.WAIT(0.02)
CREATED = {"type": "created"}


def waiting_for_room(broker: BrokerAPI) -> int:
    if isinstance(broker, BrokerProxy):
        return broker._status().limits["waiting_calls"][0]
    assert isinstance(broker, MessageBroker)
    return len({each for subscription in broker._engine.all_subscriptions() for each in subscription.line.waiters})


def full(
    broker: BrokerAPI, max_queue: int = 1, overflow: WaitForRoom = WAIT, name: str = "billing", **settings: Any
) -> SubscriptionAPI:
    """A subscription that holds as much as it may."""
    broker.create_topic("orders", exist_ok=True)
    made = broker.subscribe("orders", name, max_queue=max_queue, overflow=overflow, **settings)
    fill(broker, "orders", max_queue - made.pending)
    return made


def parked(broker: BrokerAPI, *payloads: object, headers: dict[str, str] | None = None) -> Call[list[Message]]:
    """A publish that waits; there is none before it returns."""
    before = waiting_for_room(broker)
    call = Call(lambda: broker.publish_many("orders", payloads, headers))
    until(lambda: waiting_for_room(broker) == before + 1)
    return call


def take(subscription: SubscriptionAPI, count: int = 1) -> list[Any]:
    """Take and finish messages; their payloads."""
    taken = subscription.poll("w", max_messages=count, timeout=LIMIT_S)
    assert all(delivery.ack() for delivery in taken)
    return [delivery.payload for delivery in taken]


# -- what it is -----------------------------------------------------------------------------------


def test_it_is_a_value() -> None:
    assert Overflow.WAIT(2) == Overflow.WAIT(2.0) == WaitForRoom(2.0)
    assert Overflow.WAIT(2) != Overflow.WAIT(3)
    assert hash(Overflow.WAIT(2)) == hash(Overflow.WAIT(2.0))
    assert pickle.loads(pickle.dumps(Overflow.WAIT(2.5))) == Overflow.WAIT(2.5)
    assert repr(Overflow.WAIT(2.5)) == "Overflow.WAIT(2.5)"
    assert list(Overflow) == [Overflow.DEAD_LETTER, Overflow.DROP_OLDEST, Overflow.REJECT]


@pytest.mark.parametrize("seconds", [True, None, "1", b"1", [1], Overflow])
def test_seconds_of_another_type_are_refused(seconds: Any) -> None:
    with pytest.raises(TypeError, match="seconds"):
        Overflow.WAIT(seconds)


@pytest.mark.parametrize("seconds", [0, 0.0, -0.0, -1, float("nan"), float("inf"), 10**400])
def test_seconds_out_of_range_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Overflow.WAIT(seconds)


def test_settings_compare_by_its_seconds(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "billing", overflow=Overflow.WAIT(2))
    broker.subscribe("orders", "billing", overflow=Overflow.WAIT(2.0))
    for other in (Overflow.WAIT(3), Overflow.REJECT, Overflow.DEAD_LETTER):
        with pytest.raises(SubscriptionConflict) as caught:
            broker.subscribe("orders", "billing", overflow=other)
        assert caught.value.args[1] == ["overflow"]


# -- what it waits for ----------------------------------------------------------------------------


def test_a_publish_that_fits_does_not_wait(live: BrokerAPI) -> None:
    billing = full(live, 3)
    assert numbers(live.publish_many("orders", [])) == []
    assert take(billing, 3) == [0, 1, 2]
    assert numbers(live.publish_many("orders", [3, 4, 5])) == [4, 5, 6]


@pytest.mark.parametrize("settle", ["ack", "ack_many", "reject", "nack at the limit", "retry at the limit"])
def test_it_goes_on_when_a_copy_is_settled_for_good(live: BrokerAPI, settle: str) -> None:
    billing = full(live, max_deliveries=1)
    other = live.subscribe("orders", "other")
    held = only_one(billing.poll("w"))
    call = parked(live, "next")
    assert (billing.pending, other.pending) == (0, 0)
    does: dict[str, Callable[[], object]] = {
        "ack": held.ack,
        "ack_many": lambda: billing.ack_many([held.message_id], "w"),
        "reject": held.reject,
        "nack at the limit": held.nack,
        "retry at the limit": lambda: held.retry("no"),
    }
    does[settle]()
    assert ids(call.result()) == [m(2)]
    assert take(billing) == ["next"]
    assert take(other) == ["next"]


def test_it_goes_on_when_an_ended_lease_was_the_last_attempt(live: BrokerAPI) -> None:
    billing = full(live, ack_timeout=0.02, max_deliveries=1)
    live.start()
    call = parked(live, "next")
    only_one(billing.poll("w"))
    call.result()
    assert [letter.message.message_id for letter in letters(live, billing)] == [m(1)]
    assert only_one(billing.poll("w")).payload == "next"


@pytest.mark.parametrize("settle", ["nack", "release", "extend"])
def test_it_waits_on_while_the_copies_are_only_elsewhere(live: BrokerAPI, settle: str) -> None:
    billing = full(live)
    call = parked(live, "next")
    held = only_one(billing.poll("w"))
    assert getattr(held, settle)()
    assert waiting_for_room(live) == 1
    if settle != "extend":
        held = only_one(billing.poll("w"))
    assert held.ack()
    call.result()


@pytest.mark.parametrize("ending", ["unsubscribe", "delete_topic"])
def test_deletion_lets_it_go_on_without_the_subscription_or_ends_it(live: BrokerAPI, ending: str) -> None:
    full(live)
    call, empty = parked(live, "next"), live.subscribe("orders", "empty")
    if ending == "unsubscribe":
        live.unsubscribe("orders", "billing")
        assert ids(call.result()) == [m(2)]
        assert take(empty) == ["next"]
    else:
        live.delete_topic("orders")
        live.create_topic("orders")
        again = live.subscribe("orders", "billing")
        with pytest.raises(UnknownTopic) as caught:
            call.result()
        assert caught.value.args == ("orders",)
        assert again.pending == 0
    assert waiting_for_room(live) == 0


def test_who_subscribes_meanwhile_gets_the_message(live: BrokerAPI) -> None:
    billing = full(live)
    call = parked(live, "next")
    late = live.subscribe("orders", "late")
    take(billing)
    call.result()
    assert take(late) == ["next"]


def test_a_filter_that_refuses_does_not_wait(live: BrokerAPI) -> None:
    live.create_topic("orders")
    billing = live.subscribe("orders", "billing", 'headers.type = "created"', max_queue=1, overflow=WAIT)
    failing = live.subscribe("orders", "failing", named_filters.raises_on_paid, max_queue=1, overflow=WAIT)
    live.publish("orders", 1, CREATED)
    assert take(failing) == [1]
    live.publish("orders", 2, {"type": "paid"})
    live.publish("orders", 3, {"type": "paid"})
    assert places(billing.stats()) == {"ready": 1}
    assert places(failing.stats()) == {"acked": 1, "dead": 2}


# -- how long -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_after_its_seconds_it_is_refused_and_nobody_took_anything(live: BrokerAPI, count: int) -> None:
    live.create_topic("orders")
    first = live.subscribe("orders", "first")
    billing = full(live, 2, SOON)
    last = live.subscribe("orders", "last", named_filters.raises_on_paid)
    before = (live.topics(), live.subscriptions())
    with pytest.raises(QueueFull) as caught:
        live.publish_many("orders", range(count), {"type": "paid"})
    assert type(caught.value) is QueueFull
    assert caught.value.args == ("orders/billing", 2)
    assert (live.topics(), live.subscriptions()) == before
    assert (first.pending, billing.pending, last.pending) == (2, 2, 0)
    assert waiting_for_room(live) == 0
    take(billing, 2)
    live.publish("orders", "fits")


def test_more_than_fits_at_all_is_refused_at_once(live: BrokerAPI) -> None:
    full(live, 3)
    with pytest.raises(QueueFull):
        live.publish_many("orders", range(4))


def test_one_that_rejects_refuses_at_once(live: BrokerAPI) -> None:
    billing = full(live)
    strict = live.subscribe("orders", "strict", max_queue=1, overflow=Overflow.REJECT)
    strict.offer(_offered(live, billing))
    with pytest.raises(QueueFull) as caught:
        live.publish("orders", "next")
    assert caught.value.args == ("orders/strict", 1)


def test_the_fewest_seconds_of_those_that_are_full_count(live: BrokerAPI) -> None:
    patient = full(live, name="patient")
    hasty = live.subscribe("orders", "hasty", max_queue=1, overflow=SOON)
    call = parked(live, "waits for the patient one alone")
    take(patient)
    call.result()
    with pytest.raises(QueueFull) as caught:
        live.publish("orders", "no room in either")
    assert caught.value.args == ("orders/hasty", 1)
    assert take(hasty) == take(patient) == ["waits for the patient one alone"]


def test_it_goes_once_there_is_room_in_all_at_the_same_time(live: BrokerAPI) -> None:
    one, two = full(live, name="one"), live.subscribe("orders", "two", max_queue=1, overflow=WAIT)
    two.offer(_offered(live, one))
    call = parked(live, "next")
    take(one)
    assert waiting_for_room(live) == 1
    assert one.pending == 0
    take(two)
    call.result()
    assert take(one) == take(two) == ["next"]


def _offered(broker: BrokerAPI, one: SubscriptionAPI) -> Message:
    """A message that subscription ``one`` holds alone, which fills it."""
    held = only_one(one.poll("w"))
    assert held.release()
    return held.message


@only("local")
def test_its_seconds_pass_even_where_the_injected_clock_stands_still(broker: BrokerAPI) -> None:
    full(broker, overflow=SOON)
    with pytest.raises(QueueFull):
        Call(lambda: broker.publish("orders", 1)).result()


@only("manager")
def test_its_seconds_pass_where_the_time_of_the_broker_is_told(broker: BrokerAPI) -> None:
    full(broker, overflow=SOON)
    with pytest.raises(QueueFull):
        Call(lambda: broker.publish("orders", 1)).result()


@pytest.mark.parametrize("seconds", [1e6, 1e9, 1e300])
def test_its_seconds_can_be_more_than_any_timer_has(live: BrokerAPI, seconds: float) -> None:
    billing = full(live, overflow=Overflow.WAIT(seconds))
    call = parked(live, "next")
    take(billing)
    call.result()


# -- in which order -------------------------------------------------------------------------------


def test_who_came_first_goes_first(live: BrokerAPI) -> None:
    billing = full(live)
    calls = [parked(live, number) for number in range(5)]
    assert take(billing) == [0]
    for number, call in enumerate(calls):
        assert numbers(call.result()) == [number + 2]
        assert take(billing) == [number]


def test_small_ones_do_not_overtake_a_large_one(live: BrokerAPI) -> None:
    billing = full(live, 3)
    large = parked(live, "a", "b", "c")
    small = [parked(live, number) for number in (1, 2, 3)]
    assert take(billing, 2) == [0, 1]
    assert waiting_for_room(live) == 4
    late = parked(live, "late")  # there would be room for it
    assert take(billing) == [2]
    large.result()
    assert waiting_for_room(live) == 4
    assert take(billing, 3) == ["a", "b", "c"]
    for call in small:
        call.result()
    assert sorted(take(billing, 3)) == [1, 2, 3]
    late.result()


def test_who_gives_up_lets_the_next_one_go(live: BrokerAPI) -> None:
    live.create_topic("orders")
    billing = live.subscribe("orders", "billing", max_queue=2, overflow=WAIT)
    live.subscribe("orders", "hasty", 'headers.type = "created"', max_queue=1, overflow=Overflow.WAIT(0.1))
    live.publish("orders", 0, CREATED)
    first = Call(lambda: live.publish("orders", "waits for the hasty one", CREATED))
    second = Call(lambda: live.publish("orders", "waits behind it, if it came later"))
    with pytest.raises(QueueFull):
        first.result()
    second.result()
    assert waiting_for_room(live) == 0
    assert take(billing, 2) == [0, "waits behind it, if it came later"]


def test_who_waits_for_another_subscription_is_not_in_the_way(live: BrokerAPI) -> None:
    live.create_topic("orders")
    for kind in ("created", "paid"):
        live.subscribe("orders", kind, f'headers.type = "{kind}"', max_queue=1, overflow=WAIT)
    live.publish("orders", 1, CREATED)
    call = parked(live, 2, headers=CREATED)
    live.publish("orders", 3, {"type": "paid"})
    take(live.subscription("orders", "created"))
    call.result()


def test_many_publishers_and_one_slow_reader_lose_and_double_nothing(live: BrokerAPI) -> None:
    live.create_topic("orders")
    billing = live.subscribe("orders", "billing", max_queue=3, overflow=WAIT)

    def publisher(name: int) -> None:
        for number in range(20):
            if number % 5:
                live.publish("orders", (name, number))
            else:
                live.publish_many("orders", [(name, number), (name, number + 0.5)])

    calls = [Call(partial(publisher, name)) for name in range(4)]
    taken: list[Any] = []
    while len(taken) < 4 * 24:
        taken += take(billing)
    for call in calls:
        call.result()
    assert len(set(map(tuple, taken))) == len(taken)
    for name in range(4):
        mine = [number for who, number in taken if who == name]
        assert mine == sorted(mine)
    assert billing.pending == 0


# -- publishers ------------------------------------------------------------------------------------


def test_a_publisher_waits_for_room_as_a_publish_does(live: BrokerAPI) -> None:
    billing = full(live)

    def publish() -> None:
        with live.publisher("orders") as publisher:
            publisher.publish("later")

    call = Call(publish)
    until(lambda: waiting_for_room(live) == 1)
    take(billing)
    call.result()
    assert take(billing) == ["later"]


def test_a_flush_waits_for_room_no_longer_than_it_may(live: BrokerAPI) -> None:
    billing = full(live)
    with live.publisher("orders") as publisher:
        publisher.publish("later")
        assert not publisher.flush(0.01)
        take(billing)
        assert publisher.flush(LIMIT_S)
    assert take(billing) == ["later"]


def test_a_publisher_that_gave_up_stands_in_nobodys_way(live: BrokerAPI) -> None:
    billing = full(live, overflow=SOON)
    publisher = live.publisher("orders")
    publisher.publish("refused")
    with pytest.raises(QueueFull):
        publisher.close()
    take(billing)
    live.publish("orders", "next")
    assert take(billing) == ["next"]


def test_a_publisher_is_told_that_there_was_no_room_in_time(live: BrokerAPI) -> None:
    full(live, overflow=SOON)
    publisher = live.publisher("orders")
    publisher.publish("refused")
    with pytest.raises(QueueFull) as refused:
        publisher.close()
    assert type(refused.value) is QueueFull


# -- offers and dead letters ----------------------------------------------------------------------


def test_an_offer_does_not_wait(live: BrokerAPI) -> None:
    live.create_topic("orders")
    message = live.publish("orders", "earlier")
    billing = full(live)
    with pytest.raises(QueueFull):
        billing.offer(message)
    take(billing)
    assert billing.offer(message)


def test_redrive_puts_back_what_fits_and_does_not_wait(live: BrokerAPI) -> None:
    billing = full(live, 2)
    for delivery in billing.poll("w", max_messages=2):
        delivery.reject()
    live.publish("orders", "takes room")
    assert live.redrive("orders/billing") == 1
    call = parked(live, "next")
    assert live.purge_dead_letters("orders/billing") == 1
    assert waiting_for_room(live) == 1
    take(billing)
    call.result()
