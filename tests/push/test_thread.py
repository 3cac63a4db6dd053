"""A dispatcher in a thread of its own."""

from __future__ import annotations

import logging
import threading
import weakref

import pytest

from mpbroker import Message
from mpbroker.errors import SubscriptionBusy
from mpbroker.push.dispatcher import Dispatcher
from mpbroker.push.seat import Seat, Turn
from tests.push.support import (
    BROKER_GONE,
    LIMIT_S,
    Call,
    Failing,
    FakeSubscription,
    Gate,
    dispatcher_of,
    happens,
)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("mpbroker-push")]


def end_of_the_thread() -> None:
    for thread in threads():
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "the thread did not end"


def test_a_thread_dispatches_what_comes_until_it_is_closed() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.start()
    for _ in range(3):
        subscription.publish()
    assert subscription._wait_idle(LIMIT_S)
    dispatcher.close()
    subscription.publish()
    assert (subscription.acked, subscription.ready) == (["m1", "m2", "m3"], ["m4"])
    assert (threads(), subscription.member) == ([], None)


def test_a_thread_that_waits_for_a_message_is_closed_at_once() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, print)
    dispatcher.start()
    happens(subscription.parked)
    dispatcher.close()
    assert threads() == []


def test_a_thread_is_closed_after_the_call_that_runs() -> None:
    subscription = FakeSubscription()
    gate = Gate()
    dispatcher = dispatcher_of(subscription, gate)
    subscription.publish()
    subscription.publish()
    dispatcher.start()
    gate.wait_until_entered()
    closing = dispatcher.ask_to_stop()
    gate.open()
    closing.leave()
    closing.wait()
    assert (subscription.acked, subscription.ready) == (["m1"], ["m2"])
    assert threads() == []


def test_starting_twice_gives_one_thread() -> None:
    dispatcher = dispatcher_of(FakeSubscription(), print)
    dispatcher.start()
    dispatcher.start()
    assert len(threads()) == 1
    dispatcher.close()


def test_a_closed_dispatcher_can_be_started_again() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    for _ in range(3):
        dispatcher.start()
        subscription.publish()
        assert subscription._wait_idle(LIMIT_S)
        dispatcher.close()
    assert subscription.acked == ["m1", "m2", "m3"]


def test_while_it_has_a_thread_nobody_else_dispatches() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, print)
    dispatcher.start()
    with pytest.raises(SubscriptionBusy):
        dispatcher.dispatch_one(block=False)
    dispatcher.close()


def test_a_thread_that_has_yet_to_begin_keeps_its_place() -> None:
    seat = Seat(FakeSubscription())
    coming = Turn(threading.Thread())
    assert seat.reserve(coming) is True
    assert seat.claim(Turn()) is False
    assert seat.reserve(Turn(threading.Thread())) is False
    assert seat.enter(coming) is True


def test_a_thread_that_could_not_be_started_leaves_the_dispatcher_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            dispatcher.start()
    subscription.publish()
    assert dispatcher.dispatch_one() is True
    dispatcher.close()
    dispatcher.start()
    dispatcher.close()


def test_a_thread_that_waits_keeps_no_message_alive() -> None:
    class Payload:
        """Something whose end can be watched."""

    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    subscription.publish(payload := Payload())
    ended = weakref.ref(payload)
    del payload
    dispatcher.start()
    assert subscription._wait_idle(LIMIT_S)
    happens(subscription.parked)
    assert ended() is None
    dispatcher.close()


def test_a_thread_that_is_started_during_a_call_goes_on_after_it() -> None:
    subscription = FakeSubscription()
    active, most = 0, 0

    def callback(_: Message) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        dispatcher.start()
        subscription.publish() if len(subscription.acked) < 3 else None
        active -= 1

    dispatcher = dispatcher_of(subscription, callback)
    subscription.publish()
    assert dispatcher.dispatch_one() is True
    assert subscription._wait_idle(LIMIT_S)
    dispatcher.close()
    assert (subscription.acked, most) == (["m1", "m2", "m3", "m4"], 1)


def test_a_thread_that_never_got_its_turn_is_closed_too() -> None:
    subscription = FakeSubscription()
    gate = Gate()
    dispatcher = dispatcher_of(subscription, gate)
    subscription.publish()
    call = Call(dispatcher.dispatch_one)
    gate.wait_until_entered()
    dispatcher.start()
    closing = dispatcher.ask_to_stop()
    gate.open()
    closing.leave()
    closing.wait()
    assert call.result() is True
    assert (threads(), subscription.member) == ([], None)


def test_a_subscriber_may_close_the_dispatcher_whose_thread_it_is_in() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: dispatcher.close())
    subscription.publish()
    subscription.publish()
    dispatcher.start()
    end_of_the_thread()
    assert (subscription.acked, subscription.ready) == (["m1"], ["m2"])
    assert subscription.member is None


def test_a_subscriber_may_close_and_start_the_dispatcher_whose_thread_it_is_in() -> None:
    subscription = FakeSubscription()

    def callback(_: Message) -> None:
        dispatcher.close()
        dispatcher.start()

    dispatcher = dispatcher_of(subscription, callback)
    for _ in range(3):
        subscription.publish()
    dispatcher.start()
    assert subscription._wait_idle(LIMIT_S)
    dispatcher.close()
    assert subscription.acked == ["m1", "m2", "m3"]
    end_of_the_thread()


# -- how a thread ends by itself -------------------------------------------------------------------


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "mpbroker.push")
    return caplog


def test_a_deleted_subscription_ends_the_thread_with_a_line_in_the_log(
    log: pytest.LogCaptureFixture,
) -> None:
    subscription = FakeSubscription()
    gone: list[Dispatcher] = []
    dispatcher = dispatcher_of(subscription, print)
    dispatcher.start(gone.append)
    happens(subscription.parked)
    subscription.end()
    end_of_the_thread()
    assert log.messages == ["orders/billing was deleted; its dispatcher ends"]
    assert gone == [dispatcher]


def test_the_end_of_the_broker_ends_the_thread_with_a_line_in_the_log(
    log: pytest.LogCaptureFixture,
) -> None:
    subscription = FakeSubscription()
    dispatcher_of(subscription, print).start()
    happens(subscription.parked)
    subscription.end(BROKER_GONE)
    end_of_the_thread()
    [record] = log.records
    assert record.getMessage().endswith("the broker is gone: it was stopped")
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)


def test_a_thread_that_finds_another_dispatcher_attached_ends_with_a_line_in_the_log(
    log: pytest.LogCaptureFixture,
) -> None:
    subscription = FakeSubscription()
    subscription.member = "$dispatcher-99"
    dispatcher_of(subscription, print).start()
    end_of_the_thread()
    [message] = log.messages
    assert message.startswith("the dispatcher of orders/billing ends: ")
    assert subscription.member == "$dispatcher-99"


def test_a_thread_that_lost_its_place_while_it_waited_takes_it_again() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    dispatcher.start()
    happens(subscription.parked)
    subscription._detach_dispatcher("$dispatcher-1")
    subscription.publish()
    assert subscription._wait_idle(LIMIT_S)
    assert subscription.member == "$dispatcher-2"
    dispatcher.close()


def test_a_thread_that_meets_a_defect_says_so_and_lets_go(log: pytest.LogCaptureFixture) -> None:
    subscription = FakeSubscription()

    def broken(_: float) -> None:
        raise ZeroDivisionError

    subscription.publish()
    dispatcher = dispatcher_of(subscription, Failing(times=1), broken)
    dispatcher.start()
    end_of_the_thread()
    assert log.records[-1].levelno == logging.ERROR
    assert (subscription.ready, subscription.member) == (["m1"], None)
    assert dispatcher.dispatch_one() is True


def test_a_subscriber_that_exits_ends_the_thread_and_the_message_is_ready_again(
    log: pytest.LogCaptureFixture,
) -> None:
    subscription = FakeSubscription()
    subscription.publish()
    dispatcher_of(subscription, Failing(error=SystemExit())).start()
    end_of_the_thread()
    assert (subscription.ready, subscription.attempts("m1")) == (["m1"], 0)
    assert subscription.member is None
    assert "SystemExit" in log.text


# -- what is logged of failures --------------------------------------------------------------------


def test_each_failed_attempt_is_logged_with_its_traceback_and_only_the_last_as_a_warning(
    log: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    subscription = FakeSubscription()
    subscription.publish()
    dispatcher_of(subscription, Failing(), lambda _: None).dispatch_one()
    assert [(record.levelname, record.getMessage()) for record in log.records] == [
        ("INFO", "orders/billing: attempt 1 failed"),
        ("INFO", "orders/billing: attempt 2 failed"),
        ("WARNING", "orders/billing: attempt 3 failed"),
    ]
    assert all(record.exc_info for record in log.records)
    assert capsys.readouterr().out == ""
