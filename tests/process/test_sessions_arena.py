"""What the broker process knows of blocks, without a socket: who needs one, who is told, and what ends a pin."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.process import frames
from mpbroker.process.effects import Keep
from mpbroker.process.frames import Done, FreedReply
from mpbroker.process.limits import Limits
from mpbroker.process.meter import PIN_BYTES
from tests.process.driver import Broker, Connection, Process, placed

SIZE = 16 * 4096
ONE, TWO = (1, 0, 1), (1, 8192, 2)
"""Blocks, as segment, offset and serial."""


@pytest.fixture
def broker() -> Broker:
    return Broker(limits=Limits(max_waiting_calls=2))


@pytest.fixture
def process(broker: Broker) -> Process:
    return broker.process()


@pytest.fixture
def call(process: Process) -> Connection:
    return process.call()


@pytest.fixture
def lane(process: Process, call: Connection) -> Connection:
    """With a segment, number 1; there is a subscription, number 1."""
    assert call.subscribe("t", "s") == 1
    lane = process.connect("lane")
    assert lane.ask(frames.OfferSegment(SIZE), frames.Number).value == 1
    return lane


def send(call: Connection, block: tuple[int, int, int], topic: str = "t") -> None:
    segment, offset, serial = block
    call.ask(placed(topic, segment, serial, offset), frames.Published)


def freed(call: Connection, seen: int = 0, doubtful: tuple[int, ...] = (), timeout: float = 0.0) -> list[int]:
    return call.ask(frames.Freed(seen, list(doubtful), timeout), FreedReply).freed


def used(broker: Broker) -> int:
    return broker.sessions._desk.blocks.count


def test_a_block_is_free_once_its_message_is_finished_and_its_pin_has_ended(
    broker: Broker, call: Connection, lane: Connection
) -> None:
    send(call, ONE)
    (grant,) = call.poll(1)
    assert grant.pin == lane.number
    assert call.ack(1, grant.token) == [True]
    assert (freed(call), used(broker)) == ([], 1)
    lane.ask(frames.Unpin([1, grant.token]), Done)
    assert (freed(call), used(broker)) == ([*ONE], 0)


def test_a_pin_that_ends_first_frees_nothing_before_the_ack(call: Connection, lane: Connection) -> None:
    send(call, ONE)
    (grant,) = call.poll(1)
    lane.ask(frames.Unpin([1, grant.token]), Done)
    assert freed(call) == []
    call.ack(1, grant.token)
    assert freed(call) == [*ONE]


def test_what_nobody_subscribed_to_is_free_at_once(broker: Broker, call: Connection, lane: Connection) -> None:
    call.ask(frames.CreateTopic("quiet", False), Done)
    send(call, ONE, "quiet")
    assert used(broker) == 0
    assert freed(call) == [*ONE]


def test_what_is_refused_is_free_once_it_is_in_doubt(broker: Broker, call: Connection, lane: Connection) -> None:
    assert call.failed(placed("nowhere", 1, 1)).kind == "UnknownTopic"
    assert used(broker) == 0
    assert freed(call, 0, ONE) == [*ONE]
    assert call.failed(placed("t", 1, 1)).kind == "PayloadError"


def test_a_publish_that_names_a_block_twice_ends_its_connection_and_takes_none(
    broker: Broker, call: Connection, lane: Connection
) -> None:
    (batch,) = placed("t", 1, 1).batches
    call.send(frames.Publish("t", [msgspec.Raw(bytes(batch))] * 2, {}, 1))
    assert call.is_closed
    assert used(broker) == 0


def test_a_block_needs_a_lane_and_is_refused_from_who_has_none(broker: Broker, call: Connection) -> None:
    call.subscribe("t", "s")
    call.send(placed("t", 1, 1))
    assert call.is_closed


def test_what_is_handed_over_before_there_is_a_lane_is_pinned_on_the_first_one(
    broker: Broker, call: Connection, lane: Connection
) -> None:
    send(call, ONE)
    reader = broker.process()
    (grant,) = reader.call().poll(1)
    assert grant.pin == reader.presence.number
    theirs = reader.connect("lane")
    call.ack(1, grant.token)
    assert used(broker) == 1
    theirs.ask(frames.MapSegment(1), Done)
    theirs.ask(frames.Unpin([1, grant.token]), Done)
    assert used(broker) == 0


def test_a_segment_of_which_nothing_was_handed_over_is_not_passed(broker: Broker, lane: Connection) -> None:
    other = broker.process().connect("lane")
    other.send(frames.MapSegment(1))
    assert other.is_closed


def test_the_undoing_of_a_hand_over_ends_its_pin(broker: Broker, process: Process, lane: Connection) -> None:
    first = process.call()
    send(first, ONE)
    (grant,) = first.poll(1)
    first.close()
    again = process.call(replaces=first.number, answered=0)
    assert not lane.broker.sessions._desk.connections[lane.id].pins
    (back,) = again.poll(1)
    assert (back.attempt, back.redelivered) == (1, False)
    assert back.token != grant.token


def test_pins_last_as_long_as_the_lane_and_not_as_the_session(
    broker: Broker, call: Connection, lane: Connection
) -> None:
    send(call, ONE)
    reader = broker.process()
    theirs, polls = reader.connect("lane"), reader.call()
    (grant,) = polls.poll(1)
    polls.ack(1, grant.token)
    reader.goodbye()
    assert (used(broker), theirs.is_closed) == (1, False)
    theirs.close()
    assert used(broker) == 0


def test_a_dead_publishers_segment_goes_with_the_last_need_of_its_blocks(
    broker: Broker, process: Process, call: Connection, lane: Connection
) -> None:
    send(call, ONE)
    process.die()
    lane.close()
    assert broker.kept == {1}
    reader = broker.process()
    theirs, polls = reader.connect("lane"), reader.call()
    (grant,) = polls.poll(1)
    polls.ack(1, grant.token)
    assert broker.kept == {1}
    theirs.ask(frames.Unpin([1, grant.token]), Done)
    assert broker.kept == set()


def test_a_call_that_waits_for_a_block_is_answered_when_one_is_free(
    broker: Broker, process: Process, call: Connection, lane: Connection
) -> None:
    send(call, ONE)
    waiting = process.call()
    waiting.send(frames.Freed(0, [], 10.0))
    assert waiting.waits
    (grant,) = call.poll(1)
    lane.ask(frames.Unpin([1, grant.token]), Done)
    assert waiting.waits
    call.ack(1, grant.token)
    assert waiting.got(FreedReply).freed == [*ONE]


def test_it_is_answered_too_when_another_one_says_what_was_never_published(
    process: Process, call: Connection, lane: Connection
) -> None:
    waiting = process.call()
    waiting.send(frames.Freed(0, [], 10.0))
    assert freed(call, 0, TWO) == [*TWO]
    assert waiting.got(FreedReply).freed == [*TWO]


def test_it_waits_no_longer_than_it_said(broker: Broker, call: Connection, lane: Connection) -> None:
    call.send(frames.Freed(0, [], 2.5))
    broker.later(2.4)
    assert call.waits
    broker.later(0.1)
    assert call.got(FreedReply).freed == []


def test_calls_that_wait_for_blocks_are_bounded_with_all_others(
    process: Process, call: Connection, lane: Connection
) -> None:
    others = [process.call(), process.call()]
    for each in others:
        each.send(frames.Freed(0, [], 10.0))
    assert call.failed(frames.Freed(0, [], 10.0)).kind == "LimitReached"


def test_pins_count_in_the_memory_that_messages_take(broker: Broker, call: Connection, lane: Connection) -> None:
    meter = broker.sessions._desk.meter
    before = meter.used
    send(call, ONE)
    (grant,) = call.poll(1)
    call.ack(1, grant.token)
    assert meter.used >= before + PIN_BYTES
    lane.ask(frames.Unpin([1, grant.token]), Done)
    assert meter.used == before


def test_a_descriptor_that_cannot_be_kept_leaves_no_segment(broker: Broker, call: Connection, lane: Connection) -> None:
    lane.ask(frames.OfferSegment(SIZE), frames.Number)
    broker.carry_out(broker.sessions.unshared(Keep(lane.id, 2, SIZE), "no memory"))
    assert lane.got(frames.Failed).kind == "AccessRefused"
    assert broker.kept == {1}


def test_what_two_processes_lend_is_told_to_each(broker: Broker, call: Connection, lane: Connection) -> None:
    other = broker.process()
    theirs, calls = other.connect("lane"), other.call()
    assert theirs.ask(frames.OfferSegment(SIZE), frames.Number).value == 2
    send(call, ONE)
    send(calls, (2, 0, 1))
    grants = call.poll(1, count=2)
    call.ack(1, *[each.token for each in grants])
    lane.ask(frames.Unpin([number for each in grants for number in (1, each.token)]), Done)
    assert (freed(call), freed(calls)) == ([1, 0, 1], [2, 0, 1])
