"""Every verb of a recorded client does what the plain one does, and is in the history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from mpbroker import MessageBroker, UnknownSubscription, UnknownTopic
from mpbroker.testing import FakeClock
from mpbroker.testing.checker import check
from mpbroker.testing.history import (
    NOBODY,
    Answers,
    Consume,
    Count,
    Delivered,
    Done,
    Expire,
    Fail,
    Info,
    Invoke,
    Leave,
    Ok,
    Publish,
    Purge,
    Recorder,
    Redrive,
    Settle,
    Ticks,
    Unsubscribe,
)
from mpbroker.testing.payloads import Payloads
from mpbroker.testing.recorded import RecordedBroker
from mpbroker.testing.results import letter_of, published
from mpbroker.testing.streaming import RecordedConsumer, RecordedPublisher


@pytest.fixture
def ticks(clock: FakeClock) -> Ticks:
    return Ticks(clock)


@pytest.fixture
def recorder(ticks: Ticks) -> Recorder:
    return Recorder.in_memory("c", ticks)


@pytest.fixture
def broker(recorder: Recorder, clock: FakeClock) -> Iterator[RecordedBroker]:
    with MessageBroker(clock=clock) as plain:
        plain.create_topic("t")
        yield RecordedBroker(plain, recorder, Payloads(64, seed=1), publisher=3)


def asked(recorder: Recorder) -> list[object]:
    return [event.request for event in recorder.events if isinstance(event, Invoke)]


def answered(recorder: Recorder) -> list[object]:
    return [event.result for event in recorder.events if isinstance(event, Ok)]


def test_the_verbs_by_id_are_recorded_with_their_member(broker: RecordedBroker, recorder: Recorder) -> None:
    group = broker.subscribe("t", "s", max_deliveries=2)
    broker.publish_many("t", 4)
    group.poll("w", max_messages=4)
    assert group.extend("m1", "w", 5.0)
    assert group.release("m1", "w")
    assert group.nack("m2", "w", delay=1.0, error="no")
    assert group.reject("m3", "w", error="bad")
    assert group.ack("m4", "w")
    assert not group.ack("m4", "w")

    settled = [each for each in asked(recorder) if isinstance(each, Settle)]
    assert [(each.verb, each.member, each.targets[0].sequence, each.targets[0].token) for each in settled] == [
        (verb, "w", sequence, 0)
        for verb, sequence in (("extend", 1), ("release", 1), ("nack", 2), ("reject", 3), ("ack", 4), ("ack", 4))
    ]
    assert [(each.seconds, each.error) for each in settled[:4]] == [(5.0, ""), (None, ""), (1.0, "no"), (None, "bad")]
    assert [each.answers for each in answered(recorder) if isinstance(each, Answers)] == [b"\1"] * 5 + [b"\0"]


def test_dead_letters_are_moved_and_recorded(broker: RecordedBroker, recorder: Recorder) -> None:
    group = broker.subscribe("t", "s")
    broker.publish_many("t", 3)
    for delivery in group.poll("w", max_messages=3):
        group.reject_delivery(delivery)
    assert broker.redrive("t/s", ["m1"]) == 1
    assert broker.purge_dead_letters("t/s", limit=1) == 1
    assert [letter.message.message_id for letter in broker.dead_letters("t/s")] == ["m3"]

    assert Redrive("t/s", [1], None) in asked(recorder)
    assert Purge("t/s", None, 1) in asked(recorder)
    assert answered(recorder).count(Count(1)) == 2


def test_ends_are_recorded(broker: RecordedBroker, recorder: Recorder, clock: FakeClock) -> None:
    group = broker.subscribe("t", "s", ack_timeout=1.0)
    broker.subscribe("t", "other")
    broker.publish("t")
    group.poll("w")
    clock.advance(2.0)
    assert group.expire() == 1
    assert broker.expire() == 0
    broker.unsubscribe("t", "s")
    with pytest.raises(UnknownSubscription):
        group.poll("w")
    broker.delete_topic("t")
    broker.close()

    assert asked(recorder)[-6:-3] == [Expire("t/s", None), Expire("", None), Unsubscribe("t", "s")]
    assert asked(recorder)[-2:] == [Unsubscribe("t", ""), Leave()]
    assert sum(isinstance(event, Fail) for event in recorder.events) == 1
    assert check([recorder.events]).report() == []


def test_a_handle_that_is_found_is_recorded_when_it_is_used(broker: RecordedBroker, recorder: Recorder) -> None:
    broker.subscribe("t", "s")
    before = len(recorder.events)
    group = broker.subscription("t", "s")

    assert len(recorder.events) == before
    assert group.poll("w") == []
    assert len(recorder.events) == before + 2


def test_an_answer_to_a_publish_that_is_wrong_is_noted(broker: RecordedBroker) -> None:
    broker.subscribe("t", "s")
    messages = broker.publish_many("t", 3, {"a": "1"})
    bodies = [message.payload for message in messages]
    assert published(messages, "t", bodies, {"a": "1"}, 1).wrong == []

    for change in ({"sequence": 9}, {"message_id": "m9"}, {"uid": "x-9"}, {"payload": b""}, {"topic": "u"}):
        changed = [messages[0], replace(messages[1], **change), messages[2]]
        assert len(published(changed, "t", bodies, {"a": "1"}, 1).wrong) == 1
    assert published(messages[:2], "t", bodies, {"a": "1"}, 1).wrong == ["2 messages for 3 payloads"]


def test_a_dead_letter_of_a_foreign_payload_claims_nobody(broker: RecordedBroker) -> None:
    group = broker.subscribe("t", "s")
    broker.broker.publish("t", "foreign")
    group.reject_delivery(group.subscription.poll("w")[0])
    (letter,) = broker.broker.dead_letters("t/s")

    assert letter_of(letter, broker.payloads).publisher == NOBODY


def test_ticks_follow_the_clock_and_never_come_twice(ticks: Ticks, clock: FakeClock) -> None:
    first = [ticks() for _ in range(3)]
    clock.advance(0.5)
    then = ticks()

    assert first == [1000 * 10**9, 1000 * 10**9 + 1, 1000 * 10**9 + 2]
    assert then == 1000 * 10**9 + 5 * 10**8


def test_calls_that_are_out_at_once_have_a_history_each(broker: RecordedBroker, ticks: Ticks) -> None:
    group = broker.subscribe("t", "s")
    recorders = [Recorder.in_memory("stream", ticks) for _ in range(2)]
    stream = RecordedPublisher(broker, "t", recorders)
    for _ in range(3):
        stream.publish_many(2)
    stream.close()
    for delivery in group.poll("w", max_messages=9):
        group.ack_delivery(delivery)
    group.stats()
    broker.dead_letters("t/s")

    assert [len(asked(each)) for each in recorders] == [2, 1]
    assert [len(answered(each)) for each in recorders] == [2, 1]
    verdict = check([broker.recorder.events, *(each.events for each in recorders)])
    assert verdict.report() == []
    assert (verdict.messages, verdict.unknown) == (6, 0)


def test_a_call_that_fails_has_an_outcome_that_nobody_knows_and_those_before_have_theirs(
    broker: RecordedBroker, ticks: Ticks
) -> None:
    broker.subscribe("t", "s")
    recorders = [Recorder.in_memory("stream", ticks) for _ in range(2)]
    stream = RecordedPublisher(broker, "t", recorders)
    stream.publish_many(2)
    broker.delete_topic("t")
    with pytest.raises(UnknownTopic):
        stream.publish_many(1)
    stream.close()

    assert [type(each.events[-1]) for each in recorders] == [Ok, Info]


@pytest.mark.parametrize("late", [False, True])
def test_who_is_struck_is_struck_in_each_of_its_histories(broker: RecordedBroker, ticks: Ticks, *, late: bool) -> None:
    """Also in one that begins once it was said."""
    broker.subscribe("t", "s")
    call = Publish("t", 4, 0, 1, 1, {})
    first = Recorder.in_memory("stream", ticks)
    first.invoke(call)
    if late:
        broker.recorder.fault("kill", "stream")
    second = Recorder.in_memory("stream", ticks)
    second.invoke(call)
    if not late:
        broker.recorder.fault("kill", "stream")
    broker.recorder.end("stream", died=True)

    assert check([broker.recorder.events, first.events, second.events], drained=False).report() == []


def test_what_a_consumer_yields_notes_and_gives_back_is_recorded(broker: RecordedBroker, recorder: Recorder) -> None:
    group = broker.subscribe("t", "s")
    broker.publish_many("t", 5)
    began = len(recorder.events)
    consumer = RecordedConsumer(group, "w", 9, 0.0)
    one, two, three = consumer.take(3, 60.0)
    assert consumer.ack([one, two, two]) == [True, True, False]
    consumer.close()
    assert consumer.ack([three]) == [False]  # given back by the close, and asked of the broker
    rest = group.poll("w", max_messages=9)
    group.ack_many([each.message_id for each in rest], "w")
    group.stats()
    broker.dead_letters("t/s")

    calls = [event.request for event in recorder.events[began:] if isinstance(event, Invoke)]
    assert [each.step if isinstance(each, Consume) else type(each).__name__ for each in calls] == [
        *("begin", "take", "Settle", "close", "Settle"),
        *("Poll", "Settle", "Look", "Look"),
    ]
    noted, late = [each for each in calls if isinstance(each, Settle)][:2]
    assert (noted.verb, [(each.sequence, each.count) for each in noted.targets]) == ("note", [(1, 2), (2, 1)])
    assert (late.verb, late.targets[0].token) == ("ack", three.token)
    verdict = check([recorder.events])
    assert verdict.report() == []
    assert (verdict.deliveries, verdict.acked) == (6, 5)


def test_a_take_ends_with_what_may_be_held_and_says_whether_it_could_wait(
    broker: RecordedBroker, recorder: Recorder
) -> None:
    group = broker.subscribe("t", "s")
    broker.publish_many("t", 3)
    consumer = RecordedConsumer(group, "w", 2, 0.0)
    held = consumer.take(9, 60.0)
    assert len(held) == 2
    assert consumer.take(9, 60.0) == []
    consumer.ack(held)
    assert len(consumer.take(9, 60.0)) == 1
    consumer.close()

    takes = [each for each in asked(recorder) if isinstance(each, Consume) and each.step == "take"]
    assert [each.timeout for each in takes] == [0.0, None, 0.0]


def test_what_a_consumer_raises_is_recorded_behind_what_it_yielded(broker: RecordedBroker, recorder: Recorder) -> None:
    group = broker.subscribe("t", "s")
    broker.publish_many("t", 2)
    consumer = RecordedConsumer(group, "w", 9, 1.0)
    assert len(consumer.take(1, 60.0)) == 1
    broker.unsubscribe("t", "s")
    with pytest.raises(UnknownSubscription):
        consumer.take(9, 60.0)
    consumer.close()

    last = recorder.events[-5:]
    assert [type(each) for each in last] == [Ok, Invoke, Fail, Invoke, Ok]
    assert isinstance(last[0], Ok)
    assert isinstance(last[0].result, Delivered)
    assert isinstance(last[-1], Ok)
    assert isinstance(last[-1].result, Done)
    assert check([recorder.events], drained=False).report() == []
