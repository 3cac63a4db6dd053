"""Publishers and consumers of a broker process: who dies, is interrupted, forks, is cut off; what becomes of it."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from mpbroker import (
    AccessRefused,
    BrokerGone,
    BrokerManager,
    BrokerProxy,
    Overflow,
    QueueFull,
    UnknownTopic,
)
from mpbroker.api import SubscriptionAPI
from mpbroker.engine import OFFSET_BITS
from mpbroker.pipeline.settling import LEASE_TOKENS
from mpbroker.process.naming import Transport
from tests.conformance.support import Call, places, until
from tests.process.puppets import LIMIT_S, Program, Puppet, signal_until, waits

NEVER_S = 3600.0
INTERRUPTIONS = 60


@pytest.fixture
def work(broker: BrokerProxy) -> SubscriptionAPI:
    """Leases of an hour: whatever comes back, comes back for another reason."""
    broker.create_topic("t")
    return broker.subscribe("t", "work", ack_timeout=3600)


def drained(subscription: SubscriptionAPI) -> list[object]:
    """The payloads of all that is ready, in order; acked."""
    found: list[object] = []
    while deliveries := subscription.poll("reader", max_messages=10_000):
        found += [delivery.payload for delivery in deliveries]
        subscription.ack_many([delivery.message_id for delivery in deliveries], "reader")
    return found


class Interrupted(BaseException):
    """What the handler of `interruptions` raises."""


@contextmanager
def interruptions() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Gives a function that has Interrupted raised somewhere in the next milliseconds, and one that calls it off."""
    lots = random.Random()
    armed = [False]

    def strike(_: int, __: FrameType | None) -> None:
        if armed[0]:
            armed[0] = False
            raise Interrupted

    def disarm() -> None:
        armed[0] = False

    def arm() -> None:
        disarm()
        signal.setitimer(signal.ITIMER_REAL, lots.choice((0.0002, 0.001, 0.004)) * (0.01 + lots.random()))
        armed[0] = True

    before = signal.signal(signal.SIGALRM, strike)
    try:
        yield arm, disarm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_both_sides_agree_on_what_a_lease_is() -> None:
    assert LEASE_TOKENS == 1 << OFFSET_BITS


# -- SIGKILL ----------------------------------------------------------------------------------------------------------


def publish_until_killed(broker: BrokerProxy, confirmed: Path) -> None:
    with broker.publisher("t", max_messages=1000) as publisher, confirmed.open("w") as told:
        for number in itertools.count():
            publisher.publish(number)
            if number % 500 == 499:
                publisher.flush()
                told.write(f"{number + 1}\n")
                told.flush()


def test_what_a_killed_publisher_had_confirmed_is_there_in_order_and_once(
    broker: BrokerProxy, work: SubscriptionAPI, tmp_path: Path
) -> None:
    confirmed = tmp_path / "confirmed"
    with Puppet(broker) as publisher:
        publisher.begin(publish_until_killed, confirmed)
        until(lambda: confirmed.exists() and len(confirmed.read_text().split()) >= 5)
        publisher.kill()
    found = drained(work)
    assert found == list(range(len(found)))
    assert len(found) >= int(confirmed.read_text().split()[-1])


def consume_and_stay(work: SubscriptionAPI) -> None:
    with work.consume("w", prefetch=8) as consumer:
        for delivery in consumer:
            if delivery.payload == 5:
                until(lambda: work.stats().acked == 5)
                os.kill(os.getpid(), signal.SIGKILL)
            delivery.ack()


def test_what_a_killed_consumer_held_is_redelivered_and_counted(broker: BrokerProxy, work: SubscriptionAPI) -> None:
    broker.publish_many("t", range(20))
    with Puppet(work) as consumer:
        consumer.begin(consume_and_stay)
        consumer.join()
    until(lambda: work.stats().in_flight == 0)
    found = []
    while deliveries := work.poll("v", max_messages=100):
        found += [(delivery.payload, delivery.attempt) for delivery in deliveries]
    assert [payload for payload, _ in found] == list(range(5, 20))
    assert {attempt for payload, attempt in found if payload < 8} == {2}
    assert {attempt for payload, attempt in found if payload >= 15} == {1}


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


# Connecting opens the broker's folder and a socket, and an interruption just there leaves them to the collector; one
# in the middle of Thread.start leaves a thread that is named and does not run.
@pytest.mark.leaves("descriptors", "threads")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_publisher_loses_nothing_and_publishes_nothing_twice(
    broker: BrokerProxy, work: SubscriptionAPI
) -> None:
    publisher = broker.publisher("t", max_messages=700, linger=0.001)
    taken: list[int] = []
    numbers, struck = itertools.count(1), 0
    with interruptions() as (arm, disarm):

        def some() -> None:
            arm()
            for number in itertools.islice(numbers, 20_000):
                publisher.publish(number, {"k": "v"} if number % 50 else None)
                taken.append(number)
                if number % 300 == 0:
                    publisher.flush()
            disarm()

        while struck < INTERRUPTIONS:
            try:
                some()
            except Interrupted:
                struck += 1
    publisher.close()
    found = drained(work)
    assert found == sorted(set(found))  # type: ignore[type-var]
    # One that was interrupted itself may have been taken or not.
    assert set(taken) <= set(found)


@pytest.mark.leaves("descriptors", "threads")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_consumer_loses_nothing_and_charges_nothing(broker: BrokerProxy, work: SubscriptionAPI) -> None:
    count = 5000
    with broker.publisher("t") as publisher:
        for number in range(count):
            publisher.publish(number)
    acked: set[object] = set()
    struck = 0
    consumer = work.consume("w", prefetch=50, idle_timeout=0)
    with interruptions() as (arm, disarm):

        def some() -> None:
            arm()
            for delivery in consumer:
                assert delivery.attempt == 1
                payload = delivery.payload
                assert payload not in acked
                if delivery.ack():
                    acked.add(payload)
            disarm()

        while struck < INTERRUPTIONS and work.stats().acked < count:
            try:
                some()
            except Interrupted:
                struck += 1
    consumer.close()
    assert places(work.stats()).keys() <= {"acked", "ready"}
    with work.consume("v", idle_timeout=0) as rest:
        for delivery in rest:
            assert delivery.attempt == 1
            assert delivery.payload not in acked
            delivery.ack()
    assert places(work.stats()) == {"acked": count}


def test_ctrl_c_ends_a_consumer_that_waits_and_hands_nothing_over(broker: BrokerProxy, work: SubscriptionAPI) -> None:
    struck = threading.Event()

    def strike(_: int, __: FrameType | None) -> None:
        if not struck.is_set():
            struck.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, strike)
    call = Call(lambda: signal_until(broker, signal.SIGINT, struck))
    try:
        with pytest.raises(KeyboardInterrupt), work.consume("w") as consumer:
            next(consumer)
    finally:
        call.result()
        signal.signal(signal.SIGINT, before)
    broker.publish("t", 1)
    assert places(work.stats()) == {"ready": 1}


# -- fork, exit -------------------------------------------------------------------------------------------------------


def in_child(act: Callable[[], object]) -> None:
    """Do it in a forked child, which ends like a program's; raises if it fails there."""
    child = os.fork()
    if not child:
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_starts_with_an_empty_publisher_of_its_own(broker: BrokerProxy, work: SubscriptionAPI) -> None:
    publisher = broker.publisher("t", linger=NEVER_S)
    for number in range(5):
        publisher.publish(number)
    receipt = publisher.publish("asked", receipt=True)
    assert receipt is not None

    def act() -> None:
        with suppress(RuntimeError):  # known in the process that published it, unless the fork heard of it
            assert receipt.result(0).payload == "asked"
        publisher.publish("child")
        publisher.close()
        broker.close()

    in_child(act)
    publisher.publish("after")
    publisher.close()
    assert drained(work) == [0, 1, 2, 3, 4, "asked", "child", "after"]


def test_a_fork_sends_what_waits(broker: BrokerProxy, work: SubscriptionAPI) -> None:
    with broker.publisher("t", linger=NEVER_S) as publisher:
        publisher.publish("waits")
        in_child(lambda: None)
        until(lambda: work.stats().ready == 1)


def test_a_consumer_stays_with_the_process_that_made_it(broker: BrokerProxy, work: SubscriptionAPI) -> None:
    broker.publish_many("t", range(3))
    with work.consume("w") as consumer:
        first = next(consumer)

        def act() -> None:
            for use in (lambda: next(consumer), lambda: iter(consumer)):
                with pytest.raises(ValueError, match="belongs to the process that made it"):
                    use()
            assert first.ack()
            consumer.close()
            broker.close()

        in_child(act)
        assert [delivery.payload for delivery in (next(consumer), next(consumer)) if delivery.ack()] == [1, 2]
    assert places(work.stats()) == {"acked": 3}


LEFT_OPEN = """
import mpbroker, sys
broker = mpbroker.connect(sys.argv[1])
publisher = broker.publisher("t", linger=3600)
publisher.publish("at exit")
work = broker.subscription("t", "work")
consumer = work.consume("w", prefetch=3)
for delivery in consumer:
    delivery.ack()
    break
"""


def test_at_exit_batches_and_acks_are_sent_and_the_rest_goes_back_uncounted() -> None:
    with BrokerManager(name="exit") as manager:
        broker = manager.broker()
        broker.create_topic("t")
        work = broker.subscribe("t", "work", max_deliveries=1)
        broker.publish_many("t", range(5))
        with Program("-c", LEFT_OPEN, "exit") as program:
            code, _, errors = program.end()
        assert (code, errors) == (0, "")
        until(lambda: places(work.stats()) == {"acked": 1, "ready": 5})
        assert drained(work) == [1, 2, 3, 4, "at exit"]


# -- the broker, and the connection -----------------------------------------------------------------------------------


@pytest.mark.leaves("files")
def test_a_publisher_says_how_much_is_unconfirmed_when_the_broker_died() -> None:
    manager = BrokerManager()
    manager.start()
    broker = manager.broker()
    broker.create_topic("t")
    publisher = broker.publisher("t", linger=NEVER_S)
    publisher.publish("confirmed")
    publisher.flush()
    for number in range(3):
        publisher.publish(number)
    assert manager.pid is not None
    os.kill(manager.pid, signal.SIGKILL)
    with pytest.raises(BrokerGone, match="3 messages of the publisher to 't' are unconfirmed"):
        publisher.flush()
    with pytest.raises(BrokerGone, match="0 messages"):
        publisher.publish("x")
    publisher.close()
    manager.shutdown()


@pytest.mark.leaves("files")
def test_a_consumer_that_holds_all_it_may_sees_the_end_of_the_broker() -> None:
    manager = BrokerManager()
    manager.start()
    broker = manager.broker()
    broker.create_topic("t")
    work = broker.subscribe("t", "work", ack_timeout=3600)
    broker.publish_many("t", range(2))
    consumer = work.consume("w", prefetch=2)
    held = [next(consumer), next(consumer)]
    call = Call(lambda: next(consumer))
    until(lambda: consumer._settler.is_starved)
    assert manager.pid is not None
    os.kill(manager.pid, signal.SIGKILL)
    with pytest.raises(BrokerGone):
        call.result()
    assert [delivery.ack() for delivery in held] == [False, False]
    consumer.close()
    manager.shutdown()


@pytest.mark.leaves("files")
def test_the_end_of_the_broker_ends_a_consumer_with_its_reason() -> None:
    manager = BrokerManager()
    manager.start()
    broker = manager.broker()
    broker.create_topic("t")
    work = broker.subscribe("t", "work")
    consumer = work.consume("w")
    call = Call(lambda: next(consumer))
    waits(broker)
    assert manager.pid is not None
    os.kill(manager.pid, signal.SIGKILL)
    with pytest.raises(BrokerGone):
        call.result()
    consumer.close()
    manager.shutdown()


@pytest.mark.parametrize("moment", ["before", "middle"])
def test_a_connection_that_breaks_costs_a_publisher_nothing(
    broker: BrokerProxy, work: SubscriptionAPI, moment: str
) -> None:
    publisher = broker.publisher("t", linger=NEVER_S)
    wire = publisher._wire
    for number in range(2000):
        publisher.publish(number)
        if number == 1000:
            if moment == "before":
                publisher.flush()
            channel = wire._line.channel  # type: ignore[attr-defined]
            channel.stop()
    publisher.close()
    assert drained(work) == list(range(2000))


def test_a_connection_that_breaks_costs_a_consumer_nothing(broker: BrokerProxy, work: SubscriptionAPI) -> None:
    broker.publish_many("t", range(2000))
    found = []
    with work.consume("w", prefetch=100, idle_timeout=0) as consumer:
        for delivery in consumer:
            found.append(delivery.payload)
            assert delivery.attempt == 1
            delivery.ack()
            if delivery.payload in (0, 600, 1200):
                consumer._wire._line.channel.stop()  # type: ignore[attr-defined]
            if delivery.payload in (700, 1300):
                consumer._settler.wire._line.channel.stop()  # type: ignore[attr-defined]
    assert found == list(range(2000))
    assert places(work.stats()) == {"acked": 2000}


def test_a_publisher_goes_on_after_its_process_closed_its_connections(
    broker: BrokerProxy, work: SubscriptionAPI
) -> None:
    publisher = broker.publisher("t", linger=NEVER_S)
    publisher.publish("before")
    publisher.flush()
    broker.close()
    publisher.publish("after")
    publisher.flush()
    publisher.publish("unsent")
    broker.close()
    publisher.close()
    assert drained(work) == ["before", "after", "unsent"]


def test_a_consumer_whose_process_closed_its_connections_says_so(broker: BrokerProxy, work: SubscriptionAPI) -> None:
    broker.publish_many("t", range(3))
    with work.consume("w", prefetch=4) as consumer:
        first = next(consumer)
        broker.close()
        with pytest.raises(BrokerGone, match="closed its connections"):
            for _ in consumer:
                pass
        assert next(consumer).payload == 0  # it went back, and goes on
        assert not first.ack()
    assert places(work.stats()) == {"ready": 3}


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_consumer_that_lost_acks_says_so_whoever_met_the_end(
    broker: BrokerProxy, work: SubscriptionAPI, *, goes_on: bool
) -> None:
    """Here its own thread did, once the broker had taken this process for dead."""
    broker.publish_many("t", range(2))
    consumer = work.consume("w", prefetch=1, idle_timeout=0.0)
    delivery = next(consumer)
    session = broker._client.session
    assert session is not None
    session.presence.stop()
    other = BrokerProxy(broker._address._replace(transport=Transport.MANAGER))
    until(lambda: other.subscription("t", "work").stats().in_flight == 0)
    other.close()
    assert delivery.ack()
    until(lambda: not consumer._settler._is_tended)

    with pytest.raises(AccessRefused):
        next(consumer) if goes_on else consumer.close()
    consumer.close()
    assert sorted(map(repr, drained(work))) == ["0", "1"]


def test_a_refused_batch_does_not_stop_those_that_are_out(broker: BrokerProxy) -> None:
    publisher = broker.publisher("later", linger=NEVER_S)
    publisher.publish("refused")
    with pytest.raises(UnknownTopic):
        publisher.flush()
    broker.create_topic("later")
    work = broker.subscribe("later", "work")
    publisher.publish("taken")
    publisher.close()
    assert drained(work) == ["taken"]


def test_refusals_fit_the_way_back_however_small_the_rings_are() -> None:
    """Else the broker stops reading, and the publisher waits for it to go on."""
    topic, name = "t" * 255, "s" * 255
    with BrokerManager(ring_bytes=4096, transport="ring") as manager:
        broker = manager.broker()
        broker.create_topic(topic)
        broker.subscribe(topic, name, max_queue=1, overflow=Overflow.REJECT)
        broker.publish(topic, "fills it")
        publisher = broker.publisher(topic, max_messages=1000)
        # As a signal handler's in the middle of a call: they are sent all at once.
        publisher._is_turning = True
        for number in range(60):
            publisher.publish(number, {"n": str(number)})
        publisher._is_turning = False
        with pytest.raises(QueueFull):
            publisher.flush(LIMIT_S)
        assert broker.subscription(topic, name).pending == 1
        publisher.close()
