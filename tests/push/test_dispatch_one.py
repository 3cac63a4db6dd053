"""One message through all its attempts, in the caller's thread."""

from __future__ import annotations

import pytest

from mpbroker import Message, RetryPolicy
from mpbroker.errors import BrokerGone, SubscriptionBusy, UnknownSubscription
from tests.push.support import (
    BROKER_GONE,
    Call,
    Failing,
    FakeSubscription,
    Gate,
    dispatcher_of,
)


def test_a_message_that_was_processed_is_acked() -> None:
    subscription = FakeSubscription()
    seen: list[Message] = []
    message = subscription.publish("first")
    assert dispatcher_of(subscription, seen.append).dispatch_one() is True
    assert seen == [message]
    assert (subscription.acked, subscription.held) == (["m1"], [])


def test_without_a_message_nothing_is_finished() -> None:
    assert dispatcher_of(FakeSubscription(), print).dispatch_one(block=False) is False


def test_one_call_brings_one_message() -> None:
    subscription = FakeSubscription()
    subscription.publish()
    subscription.publish()
    dispatcher_of(subscription, lambda _: None).dispatch_one()
    assert (subscription.acked, subscription.ready) == (["m1"], ["m2"])


def test_a_call_waits_for_a_message_as_long_as_it_is_told() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.dispatch_one(block=False, timeout=7.0)
    dispatcher.dispatch_one(timeout=0.001)
    subscription.publish()
    dispatcher.dispatch_one()
    assert [timeout for _, timeout in subscription.polls] == [0.0, 0.001, None]


# -- attempts --------------------------------------------------------------------------------------


def test_the_waits_between_attempts_are_those_of_the_retry_policy() -> None:
    policy = RetryPolicy(max_attempts=6, base_delay=0.5, multiplier=3.0, max_delay=10.0)
    subscription = FakeSubscription(policy)
    callback, delays = Failing(), list[float]()
    subscription.publish()
    dispatcher_of(subscription, callback, delays.append).dispatch_one()
    assert delays == [0.5, 1.5, 4.5, 10.0, 10.0]
    assert callback.seen == ["m1"] * 6


def test_attempts_are_calls_of_the_subscriber() -> None:
    subscription = FakeSubscription()
    callback = Failing(times=2)
    subscription.publish()
    assert dispatcher_of(subscription, callback, lambda _: None).dispatch_one() is True
    assert (len(callback.seen), subscription.attempts("m1")) == (3, 2)
    assert (subscription.acked, subscription.dead) == (["m1"], [])


def test_a_message_is_dead_after_its_last_attempt_with_the_error_of_that() -> None:
    subscription = FakeSubscription()
    subscription.publish()
    assert dispatcher_of(subscription, Failing(), lambda _: None).dispatch_one() is True
    assert subscription.dead == [("m1", "ValueError: failure 3")]
    assert (subscription.held, subscription.ready) == ([], [])


def test_later_messages_of_any_priority_wait_behind_one_that_is_retried() -> None:
    subscription = FakeSubscription()
    callback = Failing(times=2)
    subscription.publish(priority=0)

    def publish_urgent(_: float) -> None:
        subscription.publish(priority=3)

    dispatcher = dispatcher_of(subscription, callback, publish_urgent)
    for _ in range(3):
        dispatcher.dispatch_one()
    assert callback.seen == ["m1", "m1", "m1", "m2", "m3"]


def test_a_message_is_held_while_it_waits_for_its_next_attempt() -> None:
    subscription = FakeSubscription()
    subscription.publish()
    held: list[list[str]] = []
    dispatcher = dispatcher_of(subscription, Failing(times=1), lambda _: held.append(subscription.held))
    dispatcher.dispatch_one()
    assert held == [["m1"]]


def test_without_a_retry_policy_the_next_attempt_comes_at_once() -> None:
    subscription = FakeSubscription(None, max_deliveries=3)
    callback, delays = Failing(), list[float]()
    subscription.publish()
    assert dispatcher_of(subscription, callback, delays.append).dispatch_one() is True
    assert (len(callback.seen), delays) == (3, [])
    assert subscription.dead == [("m1", "ValueError: failure 3")]


def test_a_dispatcher_without_a_sleep_of_its_own_waits_by_itself() -> None:
    subscription = FakeSubscription(RetryPolicy(max_attempts=3, base_delay=0.001))
    callback = Failing(times=2)
    subscription.publish()
    assert dispatcher_of(subscription, callback).dispatch_one() is True
    assert len(callback.seen) == 3


def test_a_message_that_cannot_be_decoded_is_retried_in_place_like_any_failure() -> None:
    subscription = FakeSubscription()
    seen: list[str] = []
    subscription.undecodable.add("m1")
    subscription.publish()
    subscription.publish()
    dispatcher = dispatcher_of(subscription, lambda m: seen.append(m.message_id), lambda _: None)
    assert [dispatcher.dispatch_one() for _ in range(2)] == [True, True]
    assert subscription.dead == [("m1", "LookupError: no module named shop at 0")]
    assert seen == ["m2"]


def test_an_error_that_cannot_say_what_it_is_is_a_failure_all_the_same() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    subscription = FakeSubscription()
    subscription.publish()
    callback = Failing(error=Speechless())
    assert dispatcher_of(subscription, callback, lambda _: None).dispatch_one() is True
    assert subscription.dead == [("m1", "Speechless")]


# -- interrupts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_releases_the_message_uncounted_and_propagates(
    interrupt: type[BaseException],
) -> None:
    subscription = FakeSubscription()
    subscription.publish()
    dispatcher = dispatcher_of(subscription, Failing(times=1, error=interrupt()))
    with pytest.raises(interrupt):
        dispatcher.dispatch_one()
    assert (subscription.ready, subscription.attempts("m1")) == (["m1"], 0)
    assert dispatcher.dispatch_one() is True
    assert subscription.acked == ["m1"]


def test_an_interrupt_between_attempts_releases_the_next_attempt_uncounted() -> None:
    subscription = FakeSubscription()
    subscription.publish()

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dispatcher_of(subscription, Failing(), interrupted).dispatch_one()
    assert (subscription.ready, subscription.attempts("m1")) == (["m1"], 1)


def test_an_interrupted_wait_for_a_message_leaves_the_dispatcher_usable() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)

    def interrupted() -> None:
        subscription.before_poll = lambda: None
        raise KeyboardInterrupt

    subscription.before_poll = interrupted
    with pytest.raises(KeyboardInterrupt):
        dispatcher.dispatch_one()
    subscription.publish()
    assert dispatcher.dispatch_one() is True


def test_a_message_whose_hand_over_was_interrupted_is_not_held_for_ever() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)

    def interrupted() -> None:
        subscription.after_poll = lambda: None
        raise KeyboardInterrupt

    subscription.after_poll = interrupted
    subscription.publish()
    with pytest.raises(KeyboardInterrupt):
        dispatcher.dispatch_one()
    assert dispatcher.dispatch_one() is True
    assert subscription.acked == ["m1"]


def test_an_interrupt_propagates_although_the_broker_is_gone_by_then() -> None:
    subscription = FakeSubscription()

    def callback(_: Message) -> None:
        subscription.end(BROKER_GONE)
        raise KeyboardInterrupt

    subscription.publish()
    with pytest.raises(KeyboardInterrupt):
        dispatcher_of(subscription, callback).dispatch_one()


# -- calls never overlap ---------------------------------------------------------------------------


def test_a_call_from_within_the_subscriber_is_refused() -> None:
    subscription = FakeSubscription()
    refused: list[Message] = []

    def callback(message: Message) -> None:
        with pytest.raises(SubscriptionBusy, match="orders/billing"):
            dispatcher.dispatch_one(block=False)
        refused.append(message)

    dispatcher = dispatcher_of(subscription, callback)
    subscription.publish()
    subscription.publish()
    assert dispatcher.dispatch_one() is True
    assert len(refused) == 1


def test_a_call_while_another_thread_is_in_one_is_refused() -> None:
    subscription = FakeSubscription()
    gate = Gate()
    dispatcher = dispatcher_of(subscription, gate)
    subscription.publish()
    call = Call(dispatcher.dispatch_one)
    gate.wait_until_entered()
    with pytest.raises(SubscriptionBusy):
        dispatcher.dispatch_one(block=False)
    gate.open()
    assert call.result() is True


# -- one dispatcher a subscription -----------------------------------------------------------------


def test_a_dispatcher_attaches_when_it_is_first_used_and_stays() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    assert subscription.member is None
    for _ in range(3):
        dispatcher.dispatch_one(block=False)
    assert {member for member, _ in subscription.polls} == {subscription.member}


def test_a_second_dispatcher_is_refused_until_the_first_is_closed() -> None:
    subscription = FakeSubscription()
    first = dispatcher_of(subscription, lambda _: None)
    second = dispatcher_of(subscription, lambda _: None)
    first.dispatch_one(block=False)
    for _ in range(2):
        with pytest.raises(SubscriptionBusy):
            second.dispatch_one(block=False)
    first.close()
    subscription.publish()
    assert second.dispatch_one() is True


def test_a_dispatcher_that_the_broker_put_out_attaches_again() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.dispatch_one(block=False)

    def refuse_the_old_member() -> None:
        if len(subscription.polls) == 1 and subscription.member is None:
            raise SubscriptionBusy(subscription.subscription_id)

    subscription.before_poll = refuse_the_old_member
    subscription.member = None
    subscription.publish()
    assert dispatcher.dispatch_one() is True


def test_a_dispatcher_whose_place_another_took_is_refused() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.dispatch_one(block=False)
    subscription.member = "$dispatcher-99"
    subscription.publish()
    with pytest.raises(SubscriptionBusy):
        dispatcher.dispatch_one()
    assert subscription.ready == ["m1"]


# -- what a broker can do meanwhile ----------------------------------------------------------------


def test_a_message_that_was_taken_away_while_it_was_processed_is_not_finished() -> None:
    subscription = FakeSubscription()
    subscription.publish()
    dispatcher = dispatcher_of(subscription, lambda _: subscription.take_away())
    assert dispatcher.dispatch_one() is False
    assert (subscription.acked, subscription.ready) == ([], ["m1"])


def test_a_failing_message_that_was_taken_away_is_not_retried() -> None:
    subscription = FakeSubscription()
    calls: list[Message] = []

    def callback(message: Message) -> None:
        calls.append(message)
        subscription.take_away()
        raise ValueError

    subscription.publish()
    assert dispatcher_of(subscription, callback, lambda _: None).dispatch_one() is False
    assert (len(calls), subscription.dead, subscription.ready) == (1, [], ["m1"])


def test_a_subscription_that_was_deleted_is_unknown() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.dispatch_one(block=False)
    subscription.end()
    for _ in range(2):
        with pytest.raises(UnknownSubscription):
            dispatcher.dispatch_one()
    dispatcher.close()


def test_a_subscription_that_is_deleted_while_its_subscriber_fails_is_unknown() -> None:
    subscription = FakeSubscription()

    def callback(_: Message) -> None:
        subscription.end()
        raise ValueError

    subscription.publish()
    with pytest.raises(UnknownSubscription):
        dispatcher_of(subscription, callback).dispatch_one()


def test_a_broker_that_is_gone_is_told_to_the_caller_and_not_to_close() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: subscription.end(BROKER_GONE))
    subscription.publish()
    with pytest.raises(BrokerGone, match="it was stopped"):
        dispatcher.dispatch_one()
    dispatcher.close()


def test_a_dispatcher_shows_whom_it_brings_what() -> None:
    shown = repr(dispatcher_of(FakeSubscription(), print))
    assert shown == "<Dispatcher of 'orders/billing' for <CallbackSubscriber 'billing'>>"
