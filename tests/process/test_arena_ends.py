"""Whoever ends, however: what was accepted is delivered, what is looked at stays right, and the memory comes back."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest

from mpbroker import BrokerManager, BrokerProxy, SubscriptionAPI
from mpbroker.process import channel, presence
from mpbroker.process.naming import Transport
from tests.process.test_arena import BASE, MIB, THRESHOLD, churn, digest, noise, one, pinned, used
from tests.prove.points_scene import wait_until
from tests.prove.points_trap import is_stopped

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="arenas are for Linux"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

_FORK: Final = multiprocessing.get_context("fork")


@pytest.fixture
def manager(broker_folder: Path) -> Iterator[BrokerManager]:
    with BrokerManager(directory=broker_folder, transport="ring", arena_threshold=THRESHOLD) as manager:
        manager.broker().create_topic("t")
        yield manager


@pytest.fixture
def broker(manager: BrokerManager) -> BrokerProxy:
    return manager.broker()


@pytest.fixture
def subscription(broker: BrokerProxy) -> SubscriptionAPI:
    return broker.subscribe("t", "s")


@contextmanager
def child(target: Callable[..., None], *args: Any) -> Iterator[tuple[Any, Connection]]:
    """A forked process, and the pipe that it has as its last argument."""
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=_in_child, args=(ours, target, *args, theirs))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join(20.0)
        process.close()
        ours.close()


def _in_child(ours: Connection, target: Callable[..., None], *args: Any) -> None:
    # So that it, and whatever it forks, sees the end of the test.
    ours.close()
    with suppress(EOFError):
        target(*args)


def told(pipe: Connection) -> Any:
    assert pipe.poll(30.0), "the child says nothing"
    return pipe.recv()


def arena_bytes(broker: BrokerProxy) -> int:
    return broker._status().limits["arena_bytes"][0]


# -- publishers -------------------------------------------------------------------------------------------------------


def _publish(broker: BrokerProxy, count: int, pipe: Connection) -> None:
    for number in range(count):
        broker.publish("t", memoryview(noise(MIB, number)))
    loan = broker.loan(2 * MIB)
    loan.buffer[:MIB] = noise(MIB, 99)  # killed in the middle of it
    pipe.send("published")
    pipe.recv()


def test_what_a_publisher_published_is_delivered_after_it_was_killed_and_its_memory_goes_with_the_last_of_it(
    broker: BrokerProxy, subscription: SubscriptionAPI
) -> None:
    with child(_publish, broker, 3) as (process, pipe):
        assert told(pipe) == "published"
        process.kill()
        process.join(20.0)
    wait_until("the end of its session", lambda: broker._status().limits["sessions"][0] == 1)
    views = []
    for number in range(3):
        delivery = one(subscription)
        views.append(delivery.payload)
        assert digest(views[-1]) == digest(noise(MIB, number))
        delivery.ack()
    del delivery
    assert used(broker) == 3 * MIB
    views.clear()
    wait_until("the end of its memory", lambda: arena_bytes(broker) == 0)


def test_a_publisher_killed_in_the_middle_of_a_block_leaves_nothing(
    broker: BrokerProxy, subscription: SubscriptionAPI
) -> None:
    with child(_publish, broker, 0) as (process, pipe):
        assert told(pipe) == "published"
        assert arena_bytes(broker) > 0
        process.kill()
        process.join(20.0)
    wait_until("the end of its memory", lambda: arena_bytes(broker) == 0)
    assert subscription.poll("w") == []


def test_a_publisher_that_is_stopped_in_the_middle_of_a_block_holds_up_nobody(
    broker: BrokerProxy, subscription: SubscriptionAPI
) -> None:
    with child(_publish, broker, 1) as (process, pipe):
        assert told(pipe) == "published"
        os.kill(process.pid, signal.SIGSTOP)
        wait_until("the stop", lambda: is_stopped(process.pid))
        churn(broker, count=20)
        delivery = one(subscription)
        assert digest(delivery.payload) == digest(noise(MIB, 0))
        delivery.ack()
        os.kill(process.pid, signal.SIGCONT)


# -- readers ----------------------------------------------------------------------------------------------------------


def _look(broker: BrokerProxy, pipe: Connection) -> None:
    delivery = one(broker.subscription("t", "s"))
    view = delivery.payload
    pipe.send(digest(view))
    pipe.recv()
    pipe.send(digest(view))
    pipe.recv()


def test_the_pins_of_a_worker_that_is_killed_end_and_its_message_is_with_another(
    broker: BrokerProxy, subscription: SubscriptionAPI
) -> None:
    broker.publish("t", memoryview(noise()))
    with child(_look, broker) as (process, pipe):
        told(pipe)
        assert pinned(broker) == MIB
        process.kill()
        process.join(20.0)
    again = one(subscription)
    assert (again.attempt, digest(again.payload)) == (2, digest(noise()))
    again.ack()
    del again
    wait_until("the end of the block", lambda: used(broker) == 0)


def test_a_worker_that_was_stopped_beyond_its_lease_still_sees_what_it_saw(broker: BrokerProxy) -> None:
    subscription = broker.subscribe("t", "s", ack_timeout=0.1)
    broker.publish("t", memoryview(noise()))
    with child(_look, broker) as (process, pipe):
        before = told(pipe)
        os.kill(process.pid, signal.SIGSTOP)
        wait_until("the stop", lambda: is_stopped(process.pid))
        again = one(subscription)
        assert again.redelivered
        again.ack()
        del again
        churn(broker)
        os.kill(process.pid, signal.SIGCONT)
        pipe.send("look")
        assert told(pipe) == before == digest(noise())


# -- forks ------------------------------------------------------------------------------------------------------------


def _look_at(views: list[Any], pipe: Connection) -> None:
    pipe.send([digest(view) for view in views])
    pipe.recv()
    pipe.send([digest(view) for view in views])
    views.clear()
    pipe.send("dropped")
    pipe.recv()


def test_an_array_kept_over_a_fork_stays_right_in_the_child_whatever_the_parent_does(
    broker: BrokerProxy, subscription: SubscriptionAPI
) -> None:
    broker.publish("t", memoryview(noise()))
    # Nothing else refers to it: a forked child never lets go of what is in the parent's frames.
    views = [one(subscription).payload]
    with child(_look_at, views) as (_, pipe):
        assert told(pipe) == [digest(noise())]
        views.clear()
        assert subscription.ack("m1", "w")
        churn(broker)
        wait_until("the end of all other blocks", lambda: used(broker) == MIB)
        pipe.send("look")
        assert told(pipe) == [digest(noise())]
        assert told(pipe) == "dropped"
        wait_until("the end of the block", lambda: used(broker) == 0)
    churn(broker)
    wait_until("the end of the shared lane", lambda: broker._status().limits["connections"][0] == 3)


def _fork_and_die(broker: BrokerProxy, pipe: Connection) -> None:
    delivery = one(broker.subscription("t", "s"))
    views = [delivery.payload]
    delivery.ack()
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        del delivery
        _look_at(views, pipe)
    finally:
        os._exit(0)


def test_an_array_kept_over_a_fork_stays_right_in_the_child_when_the_parent_is_killed(
    broker: BrokerProxy, subscription: SubscriptionAPI
) -> None:
    broker.publish("t", memoryview(noise()))
    with child(_fork_and_die, broker) as (_, pipe):
        assert told(pipe) == [digest(noise())]
        wait_until("the end of its session", lambda: broker._status().limits["sessions"][0] == 1)
        assert subscription.stats().acked == 1
        churn(broker)
        wait_until("the end of all other blocks", lambda: (used(broker), pinned(broker)) == (MIB, MIB))
        pipe.send("look")
        assert told(pipe) == [digest(noise())]
        assert told(pipe) == "dropped"
        wait_until("the end of the block", lambda: used(broker) == 0)


def test_the_parent_goes_on_after_a_fork_with_another_lane(broker: BrokerProxy, subscription: SubscriptionAPI) -> None:
    broker.publish("t", memoryview(noise()))
    views = [one(subscription).payload]
    with child(_look_at, views) as (_, pipe):
        told(pipe)
        for number in range(20):
            broker.publish("t", memoryview(noise(MIB, number)))
            delivery = one(subscription)
            assert digest(delivery.payload) == digest(noise(MIB, number))
            delivery.ack()
        del delivery
        wait_until("all but the shared one", lambda: used(broker) == MIB)
        views.clear()
        pipe.send("look")
        assert told(pipe) == [digest(noise())]


def _read_unread(delivery: Any, pipe: Connection) -> None:
    pipe.send(digest(delivery.payload))
    pipe.recv()


def test_a_delivery_that_nobody_looked_at_can_be_read_in_a_forked_child(
    broker: BrokerProxy, subscription: SubscriptionAPI
) -> None:
    broker.publish("t", memoryview(noise()))
    delivery = one(subscription)
    with child(_read_unread, delivery) as (_, pipe):
        assert told(pipe) == digest(noise())


def _write_into(loan: Any, pipe: Connection) -> None:
    loan.buffer[:] = bytes(loan.nbytes)
    pipe.send("written")
    pipe.recv()


def test_what_a_child_writes_into_an_inherited_loan_nobody_sees(
    broker: BrokerProxy, subscription: SubscriptionAPI
) -> None:
    loan = broker.loan(MIB)
    loan.buffer[:] = noise()
    with child(_write_into, loan) as (_, pipe):
        assert told(pipe) == "written"
    broker.publish("t", loan)
    assert digest(one(subscription).payload) == digest(noise())


def _publish_inherited(broker: BrokerProxy, pipe: Connection) -> None:
    for number in range(10):
        broker.publish("t", memoryview(noise(MIB, number)))
    pipe.send("published")
    pipe.recv()


def test_a_child_publishes_into_an_arena_of_its_own(broker: BrokerProxy, subscription: SubscriptionAPI) -> None:
    broker.publish("t", BASE)
    with child(_publish_inherited, broker) as (_, pipe):
        assert told(pipe) == "published"
        for number in range(10):
            broker.publish("t", BASE + number)
        first, *rest = subscription.poll("w", max_messages=50)
        assert np.array_equal(first.payload, BASE)
        assert [digest(each.payload) for each in rest[:10]] == [digest(noise(MIB, n)) for n in range(10)]
        assert all(np.array_equal(each.payload, BASE + n) for n, each in enumerate(rest[10:]))


# -- descriptors ------------------------------------------------------------------------------------------------------


def _hold_many(broker: BrokerProxy, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    subscription = broker.subscription("t", "s")
    for first in range(0, 1000, 100):
        broker.publish_many("t", [memoryview(bytes([n % 251]) * THRESHOLD) for n in range(first, first + 100)])
    held = subscription.poll("w", max_messages=1000, timeout=20.0)
    views = [each.payload for each in held]
    pipe.send(len(views) == 1000 and all(view[0] == view[-1] == n % 251 for n, view in enumerate(views)))
    pipe.send(len(os.listdir("/proc/self/fd")))
    pipe.recv()


def test_a_thousand_unacked_messages_cost_no_descriptors(broker_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        manager = BrokerManager(directory=broker_folder, transport="ring", arena_threshold=THRESHOLD)
        manager.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with manager:
        broker = manager.broker()
        broker.create_topic("t")
        broker.subscribe("t", "s", ack_timeout=600)
        with child(_hold_many, broker) as (_, pipe):
            assert told(pipe) is True
            assert told(pipe) < 60


def test_where_no_lane_is_to_be_had_payloads_travel_and_are_copied(
    broker: BrokerProxy, subscription: SubscriptionAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = channel.open_channel

    def refuses(*asked: Any, role: str, **named: Any) -> Any:
        if role == "lane":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return honest(*asked, role=role, **named)

    broker.publish("t", memoryview(noise()))
    other = BrokerProxy(broker._address._replace(transport=Transport.AUTO))
    theirs = other.subscription("t", "s")
    with monkeypatch.context() as patch:
        patch.setattr(presence, "open_channel", refuses)
        first = one(theirs)
        assert digest(first.payload) == digest(noise())
        first.ack()
        del first
        other.publish("t", memoryview(noise(MIB, 1)))
        assert used(broker) == MIB  # of the first one, whose pin nobody can end
        assert digest(one(theirs).payload) == digest(noise(MIB, 1))
    broker.publish("t", memoryview(noise(MIB, 2)))
    last = one(theirs)
    assert digest(last.payload) == digest(noise(MIB, 2))
    wait_until("the end of the first pin", lambda: pinned(broker) == MIB)
    other.close()


# -- memory -----------------------------------------------------------------------------------------------------------


def _take_no_more_memory(more: int) -> None:
    size = psutil.Process().memory_info().vms + more
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _publish_beyond(broker: BrokerProxy, pipe: Connection) -> None:
    for number in range(16):  # two segments of 8 MiB, full; the next one has 16
        broker.publish("t", memoryview(noise(MIB, number)))
    pipe.send(arena_bytes(broker))
    _take_no_more_memory(14 * MIB)
    broker.publish("t", memoryview(noise(MIB, 16)))
    pipe.send(arena_bytes(broker))
    pipe.recv()


def test_a_publisher_that_may_have_no_more_memory_sends_what_no_block_is_left_for(
    broker: BrokerProxy, subscription: SubscriptionAPI
) -> None:
    with child(_publish_beyond, broker) as (_, pipe):
        assert told(pipe) == told(pipe) == 16 * MIB
        for number in range(17):
            delivery = one(subscription)
            assert digest(delivery.payload) == digest(noise(MIB, number))
            delivery.ack()


def _look_beyond(broker: BrokerProxy, pipe: Connection) -> None:
    delivery = one(broker.subscription("t", "s"))
    _take_no_more_memory(7 * MIB)  # a segment has 8
    pipe.send(digest(delivery.payload))
    pipe.recv()


def test_a_reader_that_may_map_no_more_memory_gets_copies(broker: BrokerProxy, subscription: SubscriptionAPI) -> None:
    broker.publish("t", memoryview(noise()))
    with child(_look_beyond, broker) as (_, pipe):
        assert told(pipe) == digest(noise())
        assert pinned(broker) == MIB


def test_a_client_that_may_open_no_more_files_gets_copies(broker: BrokerProxy, subscription: SubscriptionAPI) -> None:
    broker.publish("t", memoryview(noise()))
    broker.publish("t", memoryview(noise(MIB, 1)))
    reader = BrokerProxy(broker._address._replace(transport=Transport.AUTO))
    theirs = reader.subscription("t", "s")
    first, second = theirs.poll("w", max_messages=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
    try:
        payload = first.payload
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert digest(payload) == digest(noise())
    assert digest(second.payload) == digest(noise(MIB, 1))
    reader.close()
