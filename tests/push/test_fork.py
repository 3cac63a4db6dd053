"""A forked process has its parent's dispatchers, but not their threads."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable

import pytest

from mpbroker import Message
from mpbroker.push.dispatcher import DispatcherPool, Outcome
from tests.push.support import LIMIT_S, Call, FakeSubscription, Gate, dispatcher_of, happens

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")


def in_a_fork(check: Callable[[], bool]) -> bool:
    """What a check says in a forked process; False too when it raised or did not end."""
    with warnings.catch_warnings():
        # Python warns of what is the subject here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_fork_while_a_thread_waits_for_a_message_can_dispatch_and_close() -> None:
    subscription = FakeSubscription()
    pool = DispatcherPool()
    dispatcher = dispatcher_of(subscription, lambda _: None)
    pool.add(dispatcher)
    pool.start()
    happens(subscription.parked)

    def check() -> bool:
        # The copy of the broker that came along, with its own lock left behind by the fork.
        subscription._changed = threading.Condition()
        subscription.publish()
        finished = pool.run_until_idle()
        pool.close()
        return finished == 1 and subscription.member is None

    assert in_a_fork(check)
    subscription.publish()
    assert pool.wait_idle(LIMIT_S) is True
    pool.close()


def test_a_fork_while_a_lock_of_push_is_held_can_close() -> None:
    dispatcher = dispatcher_of(FakeSubscription(), lambda _: None)
    pool = DispatcherPool()
    pool.add(dispatcher)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._lock, dispatcher._seat._changed:
            held.set()
            release.wait(LIMIT_S)

    holding = Call(hold)
    happens(held)

    def check() -> bool:
        pool.close()
        return True

    forked = in_a_fork(check)
    release.set()
    holding.result()
    assert forked


def test_a_fork_within_a_subscriber_is_still_within_it() -> None:
    subscription = FakeSubscription()
    forked: list[bool] = []

    def callback(_: Message) -> None:
        def check() -> bool:
            busy = dispatcher.pump(0.0) is Outcome.BUSY
            dispatcher.close()
            return busy

        forked.append(in_a_fork(check))

    dispatcher = dispatcher_of(subscription, callback)
    subscription.publish()
    assert dispatcher.dispatch_one() is True
    assert forked == [True]


def test_a_fork_during_a_call_of_another_thread_is_not_busy() -> None:
    subscription = FakeSubscription()
    gate = Gate()
    dispatcher = dispatcher_of(subscription, gate)
    subscription.publish()
    subscription.publish()
    call = Call(dispatcher.dispatch_one)
    gate.wait_until_entered()

    def check() -> bool:
        gate.open()
        return dispatcher.dispatch_one(block=False)

    assert in_a_fork(check)
    gate.open()
    assert call.result() is True
