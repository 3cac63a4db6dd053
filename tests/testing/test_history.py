"""A history says what was asked and answered, and outlives its writer."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker import MessageBroker, UnknownTopic
from mpbroker.errors import BrokerGone, CallFailed, QueueFull
from mpbroker.messages import MessagePriority
from mpbroker.testing import FakeClock
from mpbroker.testing.history import (
    NOBODY,
    Answers,
    Begin,
    Count,
    Delivered,
    End,
    Event,
    Fail,
    Fault,
    Figures,
    Info,
    Invoke,
    Letters,
    Ok,
    Poll,
    Publish,
    Published,
    Recorder,
    Settle,
    Stretch,
    Subscribe,
    Target,
    happened_nothing,
    in_order,
    read,
)
from mpbroker.testing.payloads import Payloads
from mpbroker.testing.recorded import RecordedBroker
from mpbroker.testing.results import targets_of


class Ticks:
    """A clock in nanoseconds that goes on by one each time it is read."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def recorder() -> Recorder:
    return Recorder.in_memory("c", Ticks())


@pytest.fixture
def broker(recorder: Recorder, clock: FakeClock) -> Iterator[RecordedBroker]:
    with MessageBroker(clock=clock) as plain:
        plain.create_topic("t")
        yield RecordedBroker(plain, recorder, Payloads(64, seed=1), publisher=3)


def calls(recorder: Recorder) -> list[tuple[object, object]]:
    """What was asked, and what came of it."""
    asked = {event.call: event.request for event in recorder.events if isinstance(event, Invoke)}
    ends = [event for event in recorder.events if isinstance(event, (Ok, Fail, Info))]
    return [(asked[end.call], end.result if isinstance(end, Ok) else type(end)) for end in ends]


def test_a_history_begins_with_whose_it_is(recorder: Recorder) -> None:
    assert recorder.events == [Begin(1, "c", os.getpid())]


def test_times_come_from_the_clock_that_was_given(recorder: Recorder) -> None:
    recorder.fault("kill", "w")
    recorder.end("w", died=True)

    assert recorder.events[1:] == [Fault(2, "kill", "w"), End(3, "w", died=True)]


def test_a_batch_is_one_record_whatever_its_size(broker: RecordedBroker, recorder: Recorder) -> None:
    group = broker.subscribe("t", "s")
    messages = broker.publish_many("t", 100, {"k": "v"}, priority=MessagePriority.HIGH)
    held = group.poll("w", max_messages=100)
    assert group.ack_many([each.message_id for each in held], "w") == [True] * 100

    uid = messages[0].uid
    stretch = Stretch(1, held[0].token, 100, 3, 0, 1, False, 2, 1030.0, 0)
    assert calls(recorder)[1:] == [
        (Publish("t", 3, 0, 100, 2, {"k": "v"}), Published(1, uid, [])),
        (Poll("t/s", "w", 100, 0.0, None), Delivered([stretch], [{"k": "v"}], uid, [])),
        (Settle("t/s", "ack", "w", [Target(1, 0, 100)], None, "", None), Answers(bytes([1] * 100), None)),
    ]


def test_deliveries_that_differ_are_stretches_of_their_own(broker: RecordedBroker, recorder: Recorder) -> None:
    group = broker.subscribe("t", "s")
    for priority in (MessagePriority.NORMAL, MessagePriority.HIGH, MessagePriority.NORMAL):
        broker.publish("t", priority=priority)
    first = group.poll("w")[0]
    assert group.nack_delivery(first, error="no")
    group.poll("w", max_messages=3)

    result = calls(recorder)[-1][1]
    assert isinstance(result, Delivered)
    assert [(s.sequence, s.count, s.attempt, s.redelivered, s.priority) for s in result.stretches] == [
        (2, 1, 2, True, 2),
        (1, 1, 1, False, 1),
        (3, 1, 1, False, 1),
    ]


def test_settling_a_delivery_names_its_token(broker: RecordedBroker, recorder: Recorder, clock: FakeClock) -> None:
    group = broker.subscribe("t", "s", max_deliveries=3)
    for _ in range(3):
        broker.publish("t")
    one, two, three = group.poll("w", max_messages=3)
    clock.advance(5.0)
    assert group.extend_delivery(one, 7.0)
    again = group.retry_delivery(one, "once more")
    assert again is not None
    assert group.retry_delivery(one) is None
    assert group.release_delivery(two)
    assert not group.ack_delivery(two)
    assert group.reject_delivery(three, error="bad")
    assert [each.message.sequence for each in broker.dead_letters("t/s")] == [3]
    assert broker.redrive("t/s") == 1
    assert group.stats().in_flight == 1

    target = [Target(1, one.token, 1)]
    said = calls(recorder)
    asked = [(each.verb, each.targets[0].token, each.seconds, each.error) for each, _ in said if type(each) is Settle]
    assert asked == [
        ("extend", one.token, 7.0, ""),
        ("retry", one.token, None, "once more"),
        ("retry", one.token, None, ""),
        ("release", two.token, None, ""),
        ("ack", two.token, None, ""),
        ("reject", three.token, None, "bad"),
    ]
    assert (Settle("t/s", "extend", "w", target, 7.0, "", None), Answers(b"\1", 1012.0)) in said
    results = [result for _, result in said]
    retried = [each for each in results if isinstance(each, Delivered)][1:]
    assert [[s.token for s in each.stretches] for each in retried] == [[again.token], []]
    letters = next(each for each in results if isinstance(each, Letters)).letters
    assert [(each.sequence, each.reason, each.attempts, each.publisher, each.number) for each in letters] == [
        (3, "rejected", 1, 3, 2)
    ]
    assert Count(1) in results
    assert isinstance(results[-1], Figures)
    assert results[-1].values[:5] == [3, 0, 2, 0, 1]


def test_a_subscription_is_recorded_with_the_settings_it_gets(broker: RecordedBroker, recorder: Recorder) -> None:
    broker.subscribe("t", "s", filter='headers.a = "1"', max_deliveries=2)

    assert calls(recorder) == [
        (Subscribe("t", "s", 30.0, 2, None, 1_000_000, "dead_letter", 'headers.a = "1"'), calls(recorder)[0][1])
    ]


def test_a_payload_that_is_not_what_was_published_is_noted(broker: RecordedBroker, recorder: Recorder) -> None:
    group = broker.subscribe("t", "s")
    broker.publish("t")
    broker.broker.publish("t", b"foreign")
    group.poll("w", max_messages=2)

    result = calls(recorder)[-1][1]
    assert isinstance(result, Delivered)
    assert result.wrong == [(2, "not 64 bytes but 7")]
    assert [each.publisher for each in result.stretches] == [3, NOBODY]


def test_a_call_that_did_nothing_fails_and_its_numbers_are_used_again(
    broker: RecordedBroker, recorder: Recorder
) -> None:
    with pytest.raises(UnknownTopic):
        broker.publish_many("none", 5)
    broker.publish("t")

    (first, failed), (second, _) = calls(recorder)
    assert failed is Fail
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert (first.number, second.number) == (0, 0)


def test_a_call_of_unknown_outcome_is_info_and_its_numbers_are_not_used_again(
    broker: RecordedBroker, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise BrokerGone("it fell over")

    with monkeypatch.context() as patch:
        patch.setattr(MessageBroker, "_publish", gone)
        with pytest.raises(BrokerGone):
            broker.publish_many("t", 5)
    broker.publish("t")

    (_, unknown), (second, _) = calls(recorder)
    assert unknown is Info
    assert isinstance(second, Publish)
    assert second.number == 5


@pytest.mark.parametrize("error", [QueueFull("t/s", 1), UnknownTopic("t"), TypeError("x"), ValueError("x")])
def test_errors_that_say_so_changed_nothing(error: Exception) -> None:
    assert happened_nothing(error)


@pytest.mark.parametrize("error", [BrokerGone("x"), CallFailed("x"), KeyboardInterrupt(), RuntimeError("x")])
def test_other_errors_leave_the_outcome_open(error: BaseException) -> None:
    assert not happened_nothing(error)


def test_ids_are_kept_as_stretches() -> None:
    assert targets_of(["m1", "m2", "m4", "m3", "nonsense"]) == [
        Target(1, 0, 2),
        Target(4, 0, 1),
        Target(3, 0, 1),
        Target(0, 0, 1),
    ]


# -- files ---------------------------------------------------------------------------------------------------------


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    with Recorder.in_file(tmp_path / "h", "c", Ticks()) as recorder:
        call = recorder.invoke(Poll("t/s", "w", 1, None, None))
        recorder.ok(call, Delivered([Stretch(1, 2, 3, 4, 5, 6, True, 1, 8.5, 0)], [{"a": "b"}], "u-1", [(1, "x")]))
        recorder.raised(recorder.invoke(Publish("t", 1, 2, 3, 1, {})), UnknownTopic("t"))

    assert list(read(tmp_path / "h")) == [
        Begin(1, "c", os.getpid()),
        Invoke(2, 1, Poll("t/s", "w", 1, None, None)),
        Ok(3, 1, Delivered([Stretch(1, 2, 3, 4, 5, 6, True, 1, 8.5, 0)], [{"a": "b"}], "u-1", [(1, "x")])),
        Invoke(4, 2, Publish("t", 1, 2, 3, 1, {})),
        Fail(5, 2, "UnknownTopic: no topic named 't'; create_topic('t') makes it"),
    ]


def test_a_half_last_record_is_left_out(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    with Recorder.in_file(whole, "c") as recorder:
        recorder.fault("kill", "w")
        recorder.fault("stop", "w")
    content = whole.read_bytes()
    events = list(read(whole))
    lengths = []
    for cut in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:cut])
        found = list(read(tmp_path / "cut"))
        assert found == events[: len(found)]
        lengths.append(len(found))

    assert lengths == sorted(lengths)
    assert {*lengths} == {0, 1, 2}


def test_what_a_killed_process_recorded_is_there(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        recorder = Recorder.in_file(tmp_path / "h", "child")
        recorder.fault("kill", "child")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    begin, fault = read(tmp_path / "h")
    assert isinstance(begin, Begin)
    assert isinstance(fault, Fault)
    assert begin.pid == child


def test_histories_are_merged_by_time() -> None:
    one: list[Event] = [Fault(1, "a", ""), Fault(4, "a", ""), Fault(5, "a", "")]
    two: list[Event] = [Fault(2, "b", ""), Fault(4, "b", "")]

    assert [(number, event.at) for number, event in in_order([one, two])] == [(0, 1), (1, 2), (0, 4), (1, 4), (0, 5)]
