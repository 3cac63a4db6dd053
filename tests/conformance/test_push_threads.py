"""Dispatchers that run as threads: nothing overlaps, nothing is invisible, and they stop when asked."""

from __future__ import annotations

import threading

import pytest

from mpbroker import (
    CallbackSubscriber,
    Message,
)
from mpbroker.api import BrokerAPI
from tests.conformance.subscribers import Recorder, audit_of
from tests.conformance.support import LIMIT_S, Call, fill, numbers, places


def test_started_dispatchers_bring_what_is_and_what_comes(live: BrokerAPI) -> None:
    first, second = Recorder("first"), Recorder("second", fails={2: 2})
    audit_of(live, first)
    fill(live, "orders", 3)
    live.start()
    audit_of(live, second)
    fill(live, "orders", 3)
    assert live.wait_idle(LIMIT_S) is True
    assert first.calls == [0, 1, 2, 0, 1, 2]
    assert second.calls == [0, 1, 2, 2, 2]


def test_calls_of_one_subscriber_never_overlap(live: BrokerAPI) -> None:
    running = threading.Lock()
    overlaps: list[Message] = []
    seen: list[int] = []

    def callback(message: Message) -> None:
        if not running.acquire(blocking=False):
            overlaps.append(message)
            return
        try:
            seen.extend(numbers([message]))
        finally:
            running.release()

    audit_of(live, CallbackSubscriber("audit", callback))
    live.start()
    for call in [Call(lambda: fill(live, "orders", 50)) for _ in range(3)]:
        call.result()
    assert live.wait_idle(LIMIT_S) is True
    assert overlaps == []
    assert seen == list(range(1, 151))


def test_a_slow_subscriber_holds_up_nobody_else(live: BrokerAPI) -> None:
    gate = threading.Event()
    slow = CallbackSubscriber("slow", lambda message: gate.wait(LIMIT_S))
    quick = Recorder("quick")
    audit_of(live, slow)
    quick_subscription = audit_of(live, quick)
    live.start()
    try:
        fill(live, "orders", 20)
        assert quick_subscription.wait_idle(LIMIT_S) is True
        assert quick.calls == list(range(20))
        assert live.wait_idle(0.01) is False
    finally:
        gate.set()
    assert live.wait_idle(LIMIT_S) is True


def test_a_message_in_hand_is_never_invisible(live: BrokerAPI) -> None:
    gate, working = threading.Event(), threading.Event()

    def callback(message: Message) -> None:
        working.set()
        assert gate.wait(LIMIT_S)

    audit = audit_of(live, CallbackSubscriber("audit", callback))
    live.start()
    try:
        live.publish("orders", "book")
        assert working.wait(LIMIT_S)
        assert places(audit.stats()) == {"in_flight": 1}
        assert live.wait_idle(0.01) is False
        assert audit.wait_idle(0.01) is False
        waiting = Call(lambda: live.wait_idle(LIMIT_S))
    finally:
        gate.set()
    assert waiting.result() is True
    assert places(audit.stats()) == {"acked": 1}


def test_close_stops_after_the_call_that_runs_and_messages_stay(live: BrokerAPI) -> None:
    gate, working = threading.Event(), threading.Event()
    seen: list[object] = []

    def callback(message: Message) -> None:
        working.set()
        assert gate.wait(LIMIT_S)
        seen.append(message.payload)

    audit = audit_of(live, CallbackSubscriber("audit", callback))
    live.start()
    fill(live, "orders", 3)
    assert working.wait(LIMIT_S)
    closing = Call(audit.close)
    gate.set()
    closing.result()
    finished = len(seen)
    assert seen == list(range(finished))
    assert 1 <= finished <= 3
    assert audit.stats().acked == finished
    assert audit.pending == 3 - finished
    audit.close()


def test_wait_idle_asks_push_subscriptions_alone(live: BrokerAPI) -> None:
    live.create_topic("orders")
    live.subscribe("orders", "pulled")
    fill(live, "orders", 1)
    assert live.wait_idle(0) is True
    audit_of(live, Recorder())
    assert live.wait_idle(0) is True
    fill(live, "orders", 1)
    assert live.wait_idle(0) is False
    live.run_until_idle()
    assert live.wait_idle(0) is True


@pytest.mark.parametrize("ending", ["unsubscribe", "delete_topic"])
def test_a_deleted_push_subscription_is_dispatched_no_more(live: BrokerAPI, ending: str) -> None:
    recorder, other = Recorder(), Recorder("other")
    audit_of(live, recorder)
    live.create_topic("returns")
    live.subscribe("returns", other)
    live.start()
    fill(live, "orders", 1)
    assert live.wait_idle(LIMIT_S) is True
    if ending == "unsubscribe":
        live.unsubscribe("orders", "audit")
    else:
        live.delete_topic("orders")
    fill(live, "returns", 2)
    assert live.wait_idle(LIMIT_S) is True
    assert (recorder.calls, other.calls) == ([0], [0, 1])
