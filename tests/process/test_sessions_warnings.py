"""What the status warns of: queues that nobody reads, and bounds that are nearly reached."""

from __future__ import annotations

import pytest

from mpbroker import checks
from mpbroker.process import frames
from mpbroker.process.frames import Answers, Warned
from mpbroker.process.limits import Limits
from mpbroker.process.reports import MAX_WARNINGS, UNREAD_S
from tests.process.driver import Broker, Connection, tokens


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def call(broker: Broker) -> Connection:
    return broker.call()


def warnings(call: Connection) -> list[Warned]:
    return call.ask(frames.Status(), frames.Report).warnings


def test_a_queue_that_nobody_ever_read_is_unread_after_a_while(broker: Broker, call: Connection) -> None:
    call.subscribe("t", "s")
    call.publish("t", 1, 2)
    broker.later(UNREAD_S - 1)
    assert warnings(call) == []
    broker.later(2)
    assert warnings(call) == [Warned("unread", "t/s", 2, 61)]


def test_a_silence_longer_than_any_number_can_be_told() -> None:
    call = Broker(manual_time=True).call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    call.stats(number, now=1e300)
    assert warnings(call) == [Warned("unread", "t/s", 1, checks.MAX_COUNT)]


def test_a_queue_that_was_just_made_is_not_unread(broker: Broker, call: Connection) -> None:
    broker.later(1000)
    call.subscribe("t", "s")
    call.publish("t", 1)
    assert warnings(call) == []


def test_a_poll_makes_a_queue_read(broker: Broker, call: Connection) -> None:
    number = call.subscribe("t", "s")
    call.publish("t", 1, 2)
    broker.later(1000)
    call.poll(number)
    assert warnings(call) == []
    broker.later(UNREAD_S)
    assert [each.kind for each in warnings(call)] == ["unread"]


def test_an_empty_queue_is_never_unread(broker: Broker, call: Connection) -> None:
    number = call.subscribe("t", "s", ack_timeout=100_000.0)
    broker.later(1000)
    assert warnings(call) == []
    call.publish("t", 1)
    call.poll(number)
    broker.later(1000)
    assert warnings(call) == []  # in flight: somebody works on it


def test_what_is_delayed_is_not_there_to_be_read(broker: Broker, call: Connection) -> None:
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    call.ask(frames.Nack(number, token, None, 5000.0, "", None), Answers)
    broker.later(1000)
    assert warnings(call) == []


def test_a_poll_that_waited_long_counts_until_its_end(broker: Broker, call: Connection) -> None:
    number = call.subscribe("t", "s")
    waiting = broker.call()
    waiting.wait(number)
    broker.later(1000)
    call.publish("t", 1, 2)
    waiting.granted()
    assert warnings(call) == []
    broker.later(UNREAD_S)
    assert [each.kind for each in warnings(call)] == ["unread"]


def test_the_bounds_of_queues_and_dead_letters_are_warned_of_from_four_fifths() -> None:
    broker = Broker(limits=Limits(max_dead_letters=5))
    call = broker.call()
    number = call.subscribe("t", "s", max_queue=10)
    call.publish("t", *range(7))
    assert warnings(call) == []
    call.publish("t", 7)
    assert warnings(call) == [Warned("queue", "t/s", 8, 10)]
    for token in tokens(call.poll(number, count=4)):
        call.ask(frames.Reject(number, token, None, ""), Answers)
    assert warnings(call) == [Warned("dead_letters", "t/s", 4, 5)]


def test_the_bounds_of_the_broker_are_warned_of_first() -> None:
    broker = Broker(limits=Limits(max_topics=5, max_queue_bytes=10_000))
    call = broker.call()
    for topic in "abcd":
        call.subscribe(topic, "s", max_queue=1)
    call.publish("a", bytes(8000))
    assert [(each.kind, each.name) for each in warnings(call)] == [("limit", "topics"), ("limit", "queue_bytes")]


def test_warnings_are_as_many_as_anybody_reads(broker: Broker) -> None:
    broker = Broker(is_checked=False)
    call = broker.call()
    for number in range(MAX_WARNINGS + 20):
        call.subscribe("t", f"s{number}")
    call.publish("t", 1)
    broker.later(UNREAD_S)
    assert len(warnings(call)) == MAX_WARNINGS
