"""Publishers in processes of their own that wait for room: who dies, who interrupts, and what the others see."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from mpbroker import (
    BrokerGone,
    BrokerManager,
    BrokerProxy,
    MessageBroker,
    Overflow,
    QueueFull,
    UnknownTopic,
)
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import Call, only_one, until
from tests.process import deeds
from tests.process.puppets import LIMIT_S, Puppet, signal_until, wait_for_end, waits

AT = ("orders", "billing")


@pytest.fixture
def billing(broker: BrokerProxy) -> SubscriptionAPI:
    """It holds one message, and as many as it may."""
    return one_that_is_full(broker)


def one_that_is_full(broker: BrokerAPI) -> SubscriptionAPI:
    broker.create_topic("orders")
    billing = broker.subscribe(*AT, ack_timeout=3600, max_queue=1, overflow=Overflow.WAIT(3600))
    broker.publish("orders", "fills it")
    return billing


def drain(subscription: SubscriptionAPI) -> list[Any]:
    """All that comes until nothing is there; the payloads."""
    found = []
    while taken := subscription.poll("w"):
        found += [delivery.payload for delivery in taken]
        assert all(delivery.ack() for delivery in taken)
    return found


# -- it goes on -------------------------------------------------------------------------------------------------------


def test_acks_of_another_process_let_publishers_of_others_go_on_in_order(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    with ExitStack() as stack:
        publishers = [stack.enter_context(Puppet(broker)) for _ in range(3)]
        worker = stack.enter_context(Puppet(broker))
        for number, publisher in enumerate(publishers):
            publisher.begin(deeds.publish, "orders", number)
            waits(broker, number + 1)
        for number, publisher in enumerate(publishers):
            assert worker.do(deeds.poll, *AT, "w") == [(f"m{number + 1}", 1)]
            assert worker.do(deeds.ack_held) == [True]
            assert publisher.result() == f"m{number + 2}"
    assert drain(billing) == [2]


def test_the_end_of_the_subscription_lets_it_go_on_and_that_of_the_topic_ends_it(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    with Puppet(broker) as publisher:
        publisher.begin(deeds.publish, "orders", 1)
        waits(broker)
        broker.unsubscribe(*AT)
        assert publisher.result() == "m2"
        broker.subscribe(*AT, max_queue=1, overflow=Overflow.WAIT(3600))
        broker.publish("orders", 1)
        publisher.begin(deeds.publish, "orders", 1)
        waits(broker)
        broker.delete_topic("orders")
        with pytest.raises(UnknownTopic):
            publisher.result()


def test_a_refusal_reaches_a_process_that_waited(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    broker.subscribe(*AT, max_queue=1, overflow=Overflow.WAIT(0.05))
    broker.publish("orders", 1)
    with Puppet(broker) as publisher:
        with pytest.raises(QueueFull) as caught:
            publisher.do(deeds.publish, "orders", 1)
        assert caught.value.args == ("orders/billing", 1)


def test_eight_publishers_and_one_slow_worker_exactly_once(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe(*AT, max_queue=2, overflow=Overflow.WAIT(LIMIT_S))
    with ExitStack() as stack:
        publishers = [stack.enter_context(Puppet(broker)) for _ in range(8)]
        for number, publisher in enumerate(publishers):
            publisher.begin(deeds.publish_numbers, "orders", number, 12)
        waits(broker, 8)
        found: list[Any] = []
        while len(found) < 8 * 12:
            delivery = only_one(billing.poll("w", timeout=LIMIT_S))
            found.append(tuple(delivery.payload))
            assert delivery.ack()
        for publisher in publishers:
            publisher.result()
    assert set(Counter(found).values()) == {1}
    for number in range(8):
        assert [at for who, at in found if who == number] == list(range(12))
    assert drain(billing) == []


# -- it ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_publisher_that_dies_while_it_waits_publishes_nothing_and_is_in_nobodys_way(
    broker: BrokerProxy, billing: SubscriptionAPI, number: int
) -> None:
    with Puppet(broker) as dies, Puppet(broker) as lives:
        dies.begin(deeds.publish, "orders", "of the dead")
        waits(broker)
        lives.begin(deeds.publish, "orders", "of the living")
        waits(broker, 2)
        dies.signal(number)
        dies.join()
        waits(broker, 1)
        assert broker._status().limits["queue_bytes"][0] < 10_000
        first = drain(billing)  # the living one may come while it is drained
        lives.result()
        assert first + drain(billing) == ["fills it", "of the living"]
    assert broker.topics()["orders"].published == 2


def test_when_the_broker_dies_it_is_told_so(manager: BrokerManager, broker: BrokerProxy, billing: object) -> None:
    with Puppet(broker) as publisher:
        publisher.begin(deeds.publish, "orders", 1)
        waits(broker)
        assert manager.pid is not None
        os.kill(manager.pid, signal.SIGKILL)
        with pytest.raises(BrokerGone):
            publisher.result()
        wait_for_end(manager.pid)


def test_when_the_broker_is_shut_down_it_is_told_so(
    manager: BrokerManager, broker: BrokerProxy, billing: object
) -> None:
    call = Call(lambda: broker.publish("orders", 1))
    waits(broker)
    manager.shutdown()
    with pytest.raises(BrokerGone, match="shut it down"):
        call.result()


def test_closing_the_connections_of_its_process_ends_it(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    with Puppet(broker) as other:
        call = Call(lambda: broker.publish("orders", "in vain"))
        waits(broker)
        broker.close()
        with pytest.raises(BrokerGone):
            call.result()
        assert other.do(deeds.poll, *AT, "w") == [("m1", 1)]
        assert other.do(deeds.ack_held) == [True]
    assert drain(billing) == []
    assert broker.topics()["orders"].published == 1


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted], ids=["Ctrl-C", "a handler that raises"])
def test_an_interruption_publishes_nothing(
    error: type[BaseException], broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    struck = threading.Event()

    def strike(*_: object) -> None:
        if not struck.is_set():
            struck.set()
            raise error

    old = signal.signal(signal.SIGUSR2, strike)
    sender = Call(lambda: signal_until(broker, signal.SIGUSR2, struck))
    try:
        with pytest.raises(error):
            broker.publish("orders", "interrupted")
        sender.result()
    finally:
        signal.signal(signal.SIGUSR2, old)
    assert drain(billing) == ["fills it"]
    broker.publish("orders", "next")
    assert drain(billing) == ["next"]
    assert broker.topics()["orders"].published == 2


def test_an_interruption_publishes_nothing_in_one_process() -> None:
    broker = MessageBroker()
    billing = one_that_is_full(broker)
    line = broker._engine.all_subscriptions()[0].line
    struck = threading.Event()

    def strike(*_: object) -> None:
        if not struck.is_set():
            struck.set()
            raise KeyboardInterrupt

    def send() -> None:
        until(lambda: bool(line.waiters))
        # A signal that comes just before the wait begins does not end it.
        while not struck.wait(0.05):
            os.kill(os.getpid(), signal.SIGUSR2)

    old = signal.signal(signal.SIGUSR2, strike)
    sender = Call(send)
    try:
        with pytest.raises(KeyboardInterrupt):
            broker.publish("orders", "interrupted")
        sender.result()
    finally:
        signal.signal(signal.SIGUSR2, old)
    assert struck.is_set()
    assert line.waiters == []
    assert drain(billing) == ["fills it"]
    broker.publish("orders", "next")
    assert drain(billing) == ["next"]


def test_a_handler_may_make_the_room_that_the_publish_it_interrupts_waits_for(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    struck = threading.Event()
    found: list[Any] = []

    def strike(*_: object) -> None:
        if not struck.is_set():
            struck.set()
            found.extend(drain(billing))

    old = signal.signal(signal.SIGUSR2, strike)
    sender = Call(lambda: signal_until(broker, signal.SIGUSR2, struck))
    try:
        broker.publish("orders", "next")
        sender.result()
    finally:
        signal.signal(signal.SIGUSR2, old)
    assert found + drain(billing) == ["fills it", "next"]
