"""How a close meets a dispatcher that is at work."""

from __future__ import annotations

import threading

import pytest

from mpbroker import Delivery, Message, RetryPolicy
from mpbroker.errors import SubscriptionBusy
from tests.push.support import (
    LIMIT_S,
    Call,
    Failing,
    FakeSubscription,
    Gate,
    dispatcher_of,
    happens,
)

ENDLESS = RetryPolicy(max_attempts=9, base_delay=1e300, max_delay=1e300)
"""The next attempt is never due: only a close ends the wait for it."""


def test_a_closed_dispatcher_lets_go_of_its_subscription() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.dispatch_one(block=False)
    dispatcher.close()
    assert subscription.member is None


def test_closing_what_was_never_used_or_is_closed_does_nothing() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.close()
    dispatcher.dispatch_one(block=False)
    dispatcher.close()
    dispatcher.close()
    assert subscription.member is None


def test_a_closed_dispatcher_can_be_used_again() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    for _ in range(3):
        subscription.publish()
        assert dispatcher.dispatch_one() is True
        dispatcher.close()
    assert subscription.acked == ["m1", "m2", "m3"]


def test_a_close_ends_a_wait_for_a_message() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    call = Call(dispatcher.dispatch_one)
    happens(subscription.parked)
    dispatcher.close()
    assert call.result() is False
    assert subscription.member is None


def test_a_close_that_comes_before_a_wait_begins_ends_it() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    subscription.before_poll = lambda: Call(dispatcher.ask_to_stop().leave).result()
    assert dispatcher.dispatch_one() is False
    assert subscription.member is None


def test_a_message_that_comes_with_the_close_is_not_begun_and_not_lost() -> None:
    subscription = FakeSubscription()
    seen: list[Message] = []
    dispatcher = dispatcher_of(subscription, seen.append)
    subscription.after_poll = lambda: Call(dispatcher.ask_to_stop().leave).result()
    subscription.publish()
    assert dispatcher.dispatch_one() is False
    assert (seen, subscription.ready, subscription.attempts("m1")) == ([], ["m1"], 0)


def test_a_close_waits_for_the_call_that_runs_and_its_message_is_finished() -> None:
    subscription = FakeSubscription()
    gate = Gate()
    dispatcher = dispatcher_of(subscription, gate)
    subscription.publish()
    call = Call(dispatcher.dispatch_one)
    gate.wait_until_entered()
    closing = dispatcher.ask_to_stop()
    closing.leave()
    attached_during_the_call = subscription.member
    waiting = Call(closing.wait)
    gate.open()
    waiting.result()
    assert attached_during_the_call is not None
    assert subscription.member is None
    assert call.result() is True
    assert subscription.acked == ["m1"]


def test_a_close_that_comes_while_the_dispatcher_attaches_ends_the_call() -> None:
    class Closed(FakeSubscription):
        def _attach_dispatcher(self) -> str:
            Call(dispatcher.ask_to_stop().leave).result()
            return super()._attach_dispatcher()

    subscription = Closed()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    assert dispatcher.dispatch_one() is False
    assert (subscription.member, subscription.polls) == (None, [])


def test_a_close_does_not_reach_a_call_that_began_after_it() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.dispatch_one(block=False)
    closing = dispatcher.ask_to_stop()
    call = Call(dispatcher.dispatch_one)
    happens(subscription.parked)
    closing.leave()
    assert subscription.member == "$dispatcher-1"
    subscription.publish()
    assert call.result() is True


def test_a_close_ends_the_wait_for_the_next_attempt_and_releases_it_uncounted() -> None:
    subscription = FakeSubscription(ENDLESS)
    failed = threading.Event()

    def callback(_: Message) -> None:
        failed.set()
        raise ValueError

    dispatcher = dispatcher_of(subscription, callback)
    subscription.publish()
    call = Call(dispatcher.dispatch_one)
    happens(failed)
    dispatcher.ask_to_stop()
    assert call.result() is False
    assert (subscription.ready, subscription.attempts("m1")) == (["m1"], 1)
    assert subscription.member is None


def test_a_close_during_an_injected_sleep_holds_after_it() -> None:
    subscription = FakeSubscription()
    callback = Failing()
    dispatcher = dispatcher_of(subscription, callback, lambda _: Call(ask_to_stop).result())

    def ask_to_stop() -> None:
        dispatcher.ask_to_stop().leave()

    subscription.publish()
    assert dispatcher.dispatch_one() is False
    assert (callback.seen, subscription.ready) == (["m1"], ["m1"])
    assert subscription.member is None


def test_an_injected_sleep_may_close_the_dispatcher_it_sleeps_for() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, Failing(), lambda _: dispatcher.close())
    subscription.publish()
    assert dispatcher.dispatch_one() is False
    assert (subscription.ready, subscription.member) == (["m1"], None)


def test_a_subscriber_may_close_its_own_dispatcher() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: dispatcher.close())
    subscription.publish()
    assert dispatcher.dispatch_one() is True
    assert (subscription.acked, subscription.member) == (["m1"], None)


def test_a_subscriber_that_closes_its_dispatcher_and_fails_is_not_called_again() -> None:
    subscription = FakeSubscription()
    delays: list[float] = []

    def callback(_: Message) -> None:
        dispatcher.close()
        raise ValueError

    dispatcher = dispatcher_of(subscription, callback, delays.append)
    subscription.publish()
    assert dispatcher.dispatch_one() is False
    assert (subscription.ready, subscription.attempts("m1"), delays) == (["m1"], 1, [])


def test_subscribers_may_close_each_others_dispatchers() -> None:
    both = threading.Barrier(2, timeout=LIMIT_S)
    first, second, third, fourth = subscriptions = [FakeSubscription() for _ in range(4)]

    def close_second(_: Message) -> None:
        # A call within the call does not make it forget where it is.
        assert dispatcher_of(third, lambda _: None).dispatch_one() is True
        both.wait()
        of_second.close()

    def close_first(_: Message) -> None:
        assert dispatcher_of(fourth, lambda _: None).dispatch_one() is True
        both.wait()
        of_first.close()

    of_first = dispatcher_of(first, close_second)
    of_second = dispatcher_of(second, close_first)
    for subscription in subscriptions:
        subscription.publish()
    calls = [Call(of_first.dispatch_one), Call(of_second.dispatch_one)]
    assert [call.result() for call in calls] == [True, True]
    assert (first.member, second.member) == (None, None)


class SlowToLeave(FakeSubscription):
    """Its broker takes its time to let a dispatcher go."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving = threading.Event()
        self.go_on = threading.Event()

    def _detach_dispatcher(self, member: str) -> None:
        self.leaving.set()
        happens(self.go_on)
        super()._detach_dispatcher(member)


def test_a_call_that_meets_a_close_at_work_waits_for_its_end() -> None:
    subscription = SlowToLeave()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.dispatch_one(block=False)
    subscription.publish()
    closing = Call(dispatcher.close)
    happens(subscription.leaving)
    assert dispatcher._seat._is_closing()
    call = Call(dispatcher.dispatch_one)
    subscription.go_on.set()
    closing.result()
    assert call.result() is True
    assert subscription.polls[-1][0] == "$dispatcher-2"


def test_a_poll_that_ends_by_itself_while_a_close_is_at_work_is_given_back() -> None:
    subscription = SlowToLeave()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    call = Call(dispatcher.dispatch_one)
    happens(subscription.parked)
    closing = Call(dispatcher.close)
    happens(subscription.leaving)
    subscription.publish()
    subscription.go_on.set()
    closing.result()
    assert call.result() is False
    assert (subscription.ready, subscription.attempts("m1")) == (["m1"], 0)
    assert dispatcher.dispatch_one() is True


class SlowToAnswer(FakeSubscription):
    """Its broker lets a dispatcher go at once, but takes its time to say so the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.left = threading.Event()
        self.go_on = threading.Event()
        self._slow = True

    def _detach_dispatcher(self, member: str) -> None:
        slow, self._slow = self._slow, False
        super()._detach_dispatcher(member)
        if slow:
            self.left.set()
            happens(self.go_on)


def test_a_close_that_ends_late_leaves_alone_who_attached_meanwhile() -> None:
    subscription = SlowToAnswer()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    call = Call(dispatcher.dispatch_one)
    happens(subscription.parked)
    closing = Call(dispatcher.close)
    happens(subscription.left)
    assert call.result() is False
    subscription.publish()
    assert dispatcher.dispatch_one() is True
    subscription.go_on.set()
    closing.result()
    subscription.publish()
    assert dispatcher.dispatch_one() is True


def test_a_broker_may_refuse_the_poll_that_a_close_ends() -> None:
    class Refusing(FakeSubscription):
        def _poll(self, member: str, now: float | None, max_messages: int, timeout: float | None) -> list[Delivery]:
            deliveries = super()._poll(member, now, max_messages, timeout)
            if self.member != member:
                raise SubscriptionBusy(self.subscription_id)
            return deliveries

    subscription = Refusing()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    call = Call(dispatcher.dispatch_one)
    happens(subscription.parked)
    dispatcher.close()
    assert call.result() is False


def test_two_closes_at_once_both_return_when_it_is_over() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    call = Call(dispatcher.dispatch_one)
    happens(subscription.parked)
    for closing in [Call(dispatcher.close), Call(dispatcher.close)]:
        closing.result()
    assert call.result() is False
    assert subscription.member is None


def test_a_close_that_the_broker_refuses_can_be_tried_again() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.dispatch_one(block=False)
    subscription.gone = SubscriptionBusy("a refusal that no broker gives")
    with pytest.raises(SubscriptionBusy):
        dispatcher.close()
    subscription.gone = None
    dispatcher.close()
    assert subscription.member is None


def test_a_close_that_the_broker_refuses_leaves_the_waiting_call_as_it_was() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    call = Call(dispatcher.dispatch_one)
    happens(subscription.parked)
    subscription.refuse(SubscriptionBusy("a refusal that no broker gives"))
    with pytest.raises(SubscriptionBusy):
        dispatcher.close()
    subscription.gone = None
    dispatcher.close()
    assert call.result() is False
