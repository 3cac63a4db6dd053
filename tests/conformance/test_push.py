"""Subscribers that are called: one at a time, in order, until each message worked or is set aside."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpbroker import (
    CallbackSubscriber,
    DeadLetterReason,
    Message,
    MessageBroker,
    MessagePriority,
    RetryPolicy,
    SubscriptionBusy,
    SubscriptionConflict,
)
from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.testing import FakeClock
from tests.conformance.subscribers import QUICK, Recorder, audit_of
from tests.conformance.support import LIMIT_S, Call, fill, ids, letters, m, only_one, places

LOW, NORMAL, HIGH, CRITICAL = MessagePriority


# -- who is called with what ----------------------------------------------------------------------


def test_the_subscription_is_named_after_its_subscriber(live: BrokerAPI) -> None:
    recorder = Recorder()
    audit = audit_of(live, recorder)
    assert (audit.name, audit.subscription_id) == ("audit", "orders/audit")
    assert audit.subscriber is recorder
    assert list(live.subscriptions()) == ["orders/audit"]


def test_dispatch_brings_one_message_and_finishes_it(live: BrokerAPI) -> None:
    recorder = Recorder()
    audit = audit_of(live, recorder)
    published = live.publish("orders", "book", {"type": "created"})
    assert audit.dispatch_one(block=False) is True
    assert recorder.done == [published]
    assert places(audit.stats()) == {"acked": 1}
    assert audit.dispatch_one(block=False) is False
    assert audit.dispatch_one(timeout=0.01) is False


def test_dispatch_waits_for_a_message(live: BrokerAPI) -> None:
    recorder = Recorder()
    audit = audit_of(live, recorder)
    for wait in (audit.dispatch_one, lambda: audit.dispatch_one(timeout=LIMIT_S)):
        call = Call(wait)
        live.publish("orders", "book")
        assert call.result() is True
    assert recorder.calls == ["book", "book"]


def test_messages_are_brought_by_priority_and_then_in_order(live: BrokerAPI) -> None:
    recorder = Recorder()
    audit_of(live, recorder)
    for payload, priority in enumerate([NORMAL, LOW, CRITICAL, NORMAL, HIGH]):
        live.publish("orders", payload, priority=priority)
    assert live.run_until_idle() == 5
    assert recorder.calls == [2, 4, 0, 3, 1]


def test_run_until_idle_pumps_all_push_subscriptions_and_no_others(live: BrokerAPI) -> None:
    live.create_topic("invoices")
    first = Recorder("first")
    second = CallbackSubscriber("second", lambda message: live.publish("invoices", message.payload))
    third = Recorder("third")
    audit_of(live, first)
    audit_of(live, second)
    live.subscribe("invoices", third)
    pulled = live.subscribe("orders", "pulled")
    fill(live, "orders", 3)
    assert live.run_until_idle() == 9
    assert first.calls == [0, 1, 2]
    assert third.calls == [0, 1, 2]
    assert pulled.pending == 3
    assert live.run_until_idle() == 0


def test_a_callback_subscriber_has_its_name_and_calls_back(live: BrokerAPI) -> None:
    seen: list[Message] = []
    subscriber = CallbackSubscriber("audit", seen.append)
    assert subscriber.subscriber_id == "audit"
    audit_of(live, subscriber)
    published = fill(live, "orders", 2)
    assert live.run_until_idle() == 2
    assert ids(seen) == published


def test_dispatch_is_for_subscriptions_with_a_subscriber(live: BrokerAPI) -> None:
    live.create_topic("orders")
    plain = live.subscribe("orders", "plain")
    with pytest.raises(TypeError, match="subscriber"):
        plain.dispatch_one(block=False)
    plain.close()
    assert live.run_until_idle() == 0


# -- failing --------------------------------------------------------------------------------------


def test_a_failing_message_is_retried_in_place_while_later_ones_wait(live: BrokerAPI) -> None:
    recorder = Recorder(fails={1: 2})
    audit_of(live, recorder)
    published = fill(live, "orders", 3)
    assert live.run_until_idle() == 3
    assert recorder.calls == [0, 1, 1, 1, 2]
    assert ids(recorder.done) == published


def test_even_a_higher_priority_waits_for_the_message_in_hand(live: BrokerAPI) -> None:
    class Publishing(Recorder):
        def on_message(self, message: Message) -> None:
            if message.payload == "first" and not self.calls:
                live.publish("orders", "urgent", priority=CRITICAL)
            super().on_message(message)

    recorder = Publishing(fails={"first": 2})
    audit_of(live, recorder)
    live.publish("orders", "first")
    live.publish("orders", "second")
    assert live.run_until_idle() == 3
    assert recorder.calls == ["first", "first", "first", "urgent", "second"]


def test_a_message_that_never_works_is_a_dead_letter_with_its_error(live: BrokerAPI) -> None:
    recorder = Recorder(fails={"bad": 99})
    audit = audit_of(live, recorder)
    live.publish("orders", "bad")
    live.publish("orders", "good")
    assert audit.dispatch_one(block=False) is True
    assert recorder.calls == ["bad"] * 3
    letter = only_one(letters(live, audit))
    assert letter.reason is DeadLetterReason.RETRIES_EXHAUSTED
    assert letter.error == "ValueError: not now, bad"
    assert letter.attempts == 3
    assert [attempt.number for attempt in letter.history] == [1, 2, 3]
    assert live.run_until_idle() == 1
    assert places(audit.stats()) == {"acked": 1, "dead": 1}


def test_a_push_subscription_has_a_retry_policy_without_being_told(live: BrokerAPI) -> None:
    live.create_topic("orders")
    assert live.subscribe("orders", Recorder("a")).retry_policy == RetryPolicy()
    assert live.subscribe("orders", Recorder("b"), max_deliveries=2).retry_policy == RetryPolicy(2)
    assert live.subscribe("orders", Recorder("c"), retry=QUICK).retry_policy == QUICK
    assert live.subscribe("orders", Recorder("d"), retry=None).retry_policy is None
    assert live.subscribe("orders", "plain").retry_policy is None


def test_the_waits_between_attempts_are_the_policys_and_slept_by_the_given_sleep() -> None:
    clock = FakeClock()
    recorder = Recorder(fails={"bad": 99})
    with MessageBroker(clock=clock, sleep=clock.sleep) as broker:
        broker.create_topic("orders")
        audit = broker.subscribe("orders", recorder)
        broker.publish("orders", "bad")
        assert broker.run_until_idle() == 1
        assert recorder.calls == ["bad"] * 5
        assert clock.sleeps == [0.1, 0.2, 0.4, 0.8]
        assert places(audit.stats()) == {"dead": 1}


def test_redriven_messages_are_brought_again(live: BrokerAPI) -> None:
    recorder = Recorder(fails={"bad": 3})
    audit = audit_of(live, recorder)
    live.publish("orders", "bad")
    assert live.run_until_idle() == 1
    assert live.redrive("orders/audit") == 1
    assert live.run_until_idle() == 1
    assert recorder.calls == ["bad"] * 4
    assert places(audit.stats()) == {"acked": 1}


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_call_releases_its_message_and_propagates(
    live: BrokerAPI, interruption: type[BaseException]
) -> None:
    interrupts = [interruption(), interruption()]
    seen: list[Message] = []

    def callback(message: Message) -> None:
        if interrupts:
            raise interrupts.pop()
        seen.append(message)

    audit = audit_of(live, CallbackSubscriber("audit", callback))
    live.publish("orders", "book")
    with pytest.raises(interruption):
        audit.dispatch_one(block=False)
    assert places(audit.stats()) == {"ready": 1}
    with pytest.raises(interruption):
        live.run_until_idle()
    assert places(audit.stats()) == {"ready": 1}
    assert audit.dispatch_one(block=False) is True
    assert [message.payload for message in seen] == ["book"]
    assert places(audit.stats()) == {"acked": 1}


# -- one dispatcher -------------------------------------------------------------------------------


def during_a_call(broker: BrokerAPI, act: Callable[[SubscriptionAPI], None]) -> SubscriptionAPI:
    """``act`` runs in another thread while the subscriber works on a message."""
    failures: list[BaseException] = []

    def callback(message: Message) -> None:
        try:
            Call(lambda: act(audit)).result()
        except BaseException as error:
            failures.append(error)

    audit = audit_of(broker, CallbackSubscriber("audit", callback))
    broker.publish("orders", "book")
    assert audit.dispatch_one(block=False) is True
    if failures:
        raise failures[0]
    return audit


def test_nobody_else_reads_a_push_subscription_that_is_dispatched(live: BrokerAPI) -> None:
    def act(audit: SubscriptionAPI) -> None:
        live.publish("orders", "pen")
        with pytest.raises(SubscriptionBusy) as caught:
            audit.poll("w")
        assert caught.value.args == ("orders/audit",)
        with pytest.raises(SubscriptionBusy):
            audit.poll("w", timeout=LIMIT_S)
        with pytest.raises(SubscriptionBusy):
            audit.dispatch_one(block=False)

    audit = during_a_call(live, act)
    assert places(audit.stats()) == {"acked": 1, "ready": 1}


def test_the_lease_of_a_dispatcher_does_not_end(broker: BrokerAPI) -> None:
    def act(audit: SubscriptionAPI) -> None:
        assert audit.expire(1e12) == 0
        assert broker.expire(1e12) == 0
        assert broker.next_deadline() is None
        assert places(audit.stats(1e12)) == {"in_flight": 1}

    audit = during_a_call(broker, act)
    assert places(audit.stats(1e12)) == {"acked": 1}


def test_no_lock_is_held_while_a_subscriber_works(live: BrokerAPI) -> None:
    def act(audit: SubscriptionAPI) -> None:
        live.create_topic("more")
        more = live.subscribe("more", "more")
        live.publish("more", 1)
        assert only_one(more.poll("w")).ack()
        live.publish("orders", 2)
        assert audit.pending == 1
        assert live.topics()["orders"].published == 2
        live.delete_topic("more")

    during_a_call(live, act)


def test_a_closed_dispatcher_makes_room_for_others(live: BrokerAPI) -> None:
    recorder = Recorder()
    audit = audit_of(live, recorder)
    fill(live, "orders", 3)
    assert audit.dispatch_one(block=False) is True
    audit.close()
    assert ids(audit.poll("w")) == [m(2)]
    assert audit.ack(m(2), "w") is True
    assert recorder.calls == [0]
    assert places(audit.stats()) == {"acked": 2, "ready": 1}


def test_subscribing_again_with_the_same_subscriber_is_the_same_subscription(
    live: BrokerAPI,
) -> None:
    recorder = Recorder()
    audit = audit_of(live, recorder)
    again = live.subscribe("orders", recorder)
    fill(live, "orders", 2)
    assert again.pending == 2
    assert live.run_until_idle() == 2
    assert recorder.calls == [0, 1]
    with pytest.raises(SubscriptionConflict):
        live.subscribe("orders", recorder, retry=RetryPolicy(7))
    assert audit.subscriber is recorder
