"""Time that jumps, a broker that is stopped, and signals at the wrong moment."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

from mpbroker import BrokerGone, BrokerManager, BrokerNotFound, Delivery, connect
from mpbroker.process import connection
from mpbroker.process.pace import GRACE_S, LATE_S, Pace
from mpbroker.testing import FakeClock
from tests.conformance.support import Call, until
from tests.hostile.support import LONG, stepped_broker
from tests.process.puppets import LIMIT_S, Program, wait_for_end

STOP_S = 30.0
"""Seconds for which the broker is stopped."""


# -- the rule ---------------------------------------------------------------------------------------------------------


def test_the_time_of_a_loop_that_is_in_time_is_the_clocks(clock: FakeClock) -> None:
    pace = Pace(clock)
    pace.due = clock() + 5.0
    clock.advance(5.0 + LATE_S)
    assert pace() == clock()
    assert pace.lost == 0.0


def test_a_loop_that_comes_too_late_finds_what_was_due_not_due_yet(clock: FakeClock) -> None:
    pace = Pace(clock)
    due = pace.due = clock() + 5.0
    clock.advance(5.0 + STOP_S)
    assert pace() == due - GRACE_S
    assert pace.lost == STOP_S + GRACE_S
    clock.advance(GRACE_S)
    assert pace() == due


def test_time_never_goes_back_for_a_loop(clock: FakeClock) -> None:
    pace = Pace(clock)
    due = pace.due = clock() + 5.0
    clock.advance(5.0 - GRACE_S / 2)
    before = pace()
    clock.advance(STOP_S)
    assert pace() == before
    assert due - GRACE_S < before < due


def test_time_does_not_stand_still_for_a_loop_that_does_not_look(clock: FakeClock) -> None:
    pace = Pace(clock)
    pace.due = clock() + 5.0
    clock.advance(3600.0)
    before = pace()
    assert pace.due == inf
    for hour in range(1, 5):
        clock.advance(3600.0)
        assert pace() == before + 3600.0 * hour


def test_without_anything_due_a_stop_is_no_stop(clock: FakeClock) -> None:
    pace = Pace(clock)
    clock.advance(3600.0)
    assert pace() == clock()


# -- a clock that steps -----------------------------------------------------------------------------------------------


def test_leases_that_ran_out_while_the_broker_was_stopped_can_be_acked_and_extended(
    broker_folder: Path, clock: FakeClock
) -> None:
    with stepped_broker(broker_folder, clock) as broker:
        billing = broker.subscribe("orders", "billing", ack_timeout=10.0)
        broker.publish_many("orders", range(40))
        held = billing.poll("w", max_messages=40)
        clock.advance(STOP_S)
        # The first thing it hears is a poll, which takes back what is due.
        assert billing.poll("another") == []
        assert all(delivery.ack() for delivery in held[:20])
        assert all(delivery.extend(10.0) for delivery in held[20:])
        stats = billing.stats()
        assert (stats.acked, stats.in_flight, stats.ready, stats.redelivered) == (20, 20, 0, 0)


def test_after_a_stop_leases_end_one_after_the_other_as_they_would_have(broker_folder: Path, clock: FakeClock) -> None:
    with stepped_broker(broker_folder, clock) as broker:
        billing = broker.subscribe("orders", "billing", ack_timeout=10.0)
        broker.publish_many("orders", range(5))
        for _ in range(5):
            assert len(billing.poll("w")) == 1
            clock.advance(1.0)
        ended = [billing.stats().in_flight]
        clock.advance(STOP_S)
        for _ in range(14):
            ended.append(billing.stats().in_flight)
            clock.advance(LATE_S / 2)
            billing.stats()
        assert ended[0] == ended[1] == 5
        assert ended[-1] == 0
        assert {before - after for before, after in pairwise(ended)} <= {0, 1}


def test_a_clock_that_steps_on_by_hours_loses_nothing_and_ends_every_lease(
    broker_folder: Path, clock: FakeClock
) -> None:
    with stepped_broker(broker_folder, clock) as broker:
        billing = broker.subscribe("orders", "billing", ack_timeout=10.0, max_deliveries=100)
        broker.publish_many("orders", range(10))
        acked = 0
        for hours in range(1, 8):
            deliveries = billing.poll("w", max_messages=4)
            clock.advance(3600.0 * hours)
            acked += sum(delivery.ack() for delivery in deliveries[:1])
            clock.advance(GRACE_S)
            billing.stats()
            clock.advance(LATE_S)
            until(lambda: billing.stats().in_flight == 0)
            stats = billing.stats()
            assert (stats.acked, stats.ready, stats.dead) == (acked, 10 - acked, 0)
        assert acked == 7


def test_a_call_that_waits_still_ends_after_a_stop(broker_folder: Path, clock: FakeClock) -> None:
    with stepped_broker(broker_folder, clock) as broker:
        billing = broker.subscribe("orders", "billing")
        waiting = Call(lambda: billing.poll("w", timeout=5.0))
        until(lambda: broker._status().limits["waiting_calls"][0] == 1)
        clock.advance(5.0 + STOP_S)
        broker.topics()
        clock.advance(GRACE_S)
        broker.topics()
        assert waiting.result() == []


# -- a broker that is really stopped ----------------------------------------------------------------------------------


def test_a_broker_that_was_stopped_and_continued_expires_nothing_that_is_acked_then() -> None:
    lease_s = 20.0 if LONG else 1.0
    with BrokerManager() as manager:
        assert manager.pid is not None
        broker = manager.broker()
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing", ack_timeout=lease_s)
        broker.publish_many("orders", range(20))
        connected, stopped = threading.Barrier(5), threading.Event()
        held: list[Delivery] = []

        def ack_all(part: int) -> list[bool]:
            broker.topics()  # a thread without a connection would wait for one, and not for ever
            connected.wait(LIMIT_S)
            stopped.wait(LIMIT_S)
            return [delivery.ack() for delivery in held[part::4]]

        threads = [Call(partial(ack_all, part)) for part in range(4)]
        connected.wait(LIMIT_S)
        held += billing.poll("w", max_messages=20)
        os.kill(manager.pid, signal.SIGSTOP)
        try:
            stopped.set()
            pause = threading.Event()
            continued = held[0].deadline + LATE_S + (STOP_S - lease_s if LONG else 0.3)
            while time.monotonic() < continued:
                pause.wait(0.05)
        finally:
            os.kill(manager.pid, signal.SIGCONT)
        assert all(all(each.result()) for each in threads)
        stats = billing.stats()
        assert (stats.acked, stats.redelivered, stats.ready) == (20, 0, 0)


def test_connect_to_a_stopped_broker_gives_up_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """And looks no second time whether it lives, which here would take longer than any test may."""
    monkeypatch.setattr(connection, "_END_S", 1000.0)
    with BrokerManager("orders") as manager:
        assert manager.pid is not None
        os.kill(manager.pid, signal.SIGSTOP)
        try:
            with pytest.raises(BrokerNotFound, match="stopped or overloaded"):
                Call(lambda: connect("orders", timeout=0.3)).result()
        finally:
            os.kill(manager.pid, signal.SIGCONT)
        with connect("orders") as broker:
            assert broker.topics() == {}


# -- signals ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_for_a_whole_group_in_the_middle_of_work_finishes_what_was_begun_and_ends_the_broker_last() -> None:
    with Program("-c", GROUP, group=True) as program:
        broker_pid = int(program.line().split()[1])
        worked: list[str] = []
        while len(worked) < 30 or len({*worked}) < 3:  # who has just been forked does not handle the signal yet
            worked.append(program.line())
        assert {*worked} == {"worked w0", "worked w1", "worked w2"}
        os.killpg(program.process.pid, signal.SIGINT)
        code, said, errors = program.end()
        wait_for_end(broker_pid)
    lines = [line for line in said.splitlines() if not line.startswith("worked")]
    assert (code, errors) == (0, "")
    assert lines[:-1] == ["finished True"] * 3
    assert lines[-1] == "ended"


GROUP = """
import multiprocessing, os, signal, sys, threading
import mpbroker
signal.signal(signal.SIGINT, signal.default_int_handler)

def say(text):
    os.write(1, text.encode() + b"\\n")  # whole lines, whoever else writes

def work(broker, name):
    billing = broker.subscription("orders", "billing")
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    answers = []
    while not stop.is_set():
        for delivery in billing.poll(name, max_messages=3, timeout=0.2):
            stop.wait(0.001)
            answers.append(delivery.ack())
        say(f"worked {name}")
    say(f"finished {all(answers)}")

try:
    with mpbroker.BrokerManager() as manager:
        say(f"broker {manager.pid}")
        broker = manager.broker()
        broker.create_topic("orders")
        broker.subscribe("orders", "billing")
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=work, args=(broker, f"w{n}")) for n in range(3)]
        for worker in workers:
            worker.start()
        while True:
            broker.publish_many("orders", range(50))
            threading.Event().wait(0.01)
except KeyboardInterrupt:
    say("ended")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_twice_ends_a_broker_once_and_cleanly(number: signal.Signals, broker_folder: Path) -> None:
    with BrokerManager("orders") as manager:
        assert manager.pid is not None
        broker = manager.broker()
        broker.create_topic("orders")
        waiting = Call(lambda: broker.subscribe("orders", "billing").poll("w", timeout=None))
        until(lambda: broker._status().limits["waiting_calls"][0] == 1)
        os.kill(manager.pid, number)
        os.kill(manager.pid, number)
        with pytest.raises(BrokerGone, match=number.name):
            waiting.result()
        manager.join(LIMIT_S)
        with pytest.raises(BrokerGone, match=number.name):
            broker.topics()
    assert list(broker_folder.iterdir()) == []


def test_a_served_broker_that_is_terminated_twice_says_goodbye_once() -> None:
    with Program("-m", "mpbroker", "serve", "--name", "orders") as program:
        assert program.line().startswith("ready")
        program.process.send_signal(signal.SIGTERM)
        program.process.send_signal(signal.SIGTERM)
        code, said, errors = program.end()
    assert (code, said, errors) == (0, "ended: it was stopped by SIGTERM\n", "")
