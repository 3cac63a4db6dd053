"""Every bound of what clients can make the broker process hold, and of what it remembers of things that are gone."""

from __future__ import annotations

import sys

import msgspec
import pytest

from mpbroker.process import desk, frames
from mpbroker.process.frames import Frame
from mpbroker.process.limits import Limits
from tests.process.driver import Broker, publish, subscribe, tokens


def test_only_the_newest_of_the_deleted_subscriptions_are_remembered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MAX_GONE", 2)
    call = Broker().call()
    numbers = [call.subscribe("t", name) for name in "abc"]
    for name in "abc":
        call.ask(frames.Unsubscribe("t", name), frames.Done)
    told = [call.failed(frames.Stats(number, None)) for number in numbers]
    assert [failed.kind for failed in told] == ["UnknownSubscription"] * 3
    assert [failed.args for failed in told] == [["number 1"], ["t/b"], ["t/c"]]


def test_sessions_tell_the_loop_their_limits() -> None:
    limits = Limits(max_topics=7)
    assert Broker(limits=limits).sessions.limits is limits


@pytest.mark.parametrize(
    ("limits", "waits", "told"),
    [
        (Limits(max_waiting_calls=2), 2, ["calls that wait", 2, "max_waiting_calls"]),
        (Limits(max_connections=4), 4, ["calls that wait", 4, "max_connections"]),
    ],
)
@pytest.mark.parametrize("kind", [frames.Poll, frames.WaitIdle])
def test_calls_that_wait_are_bounded_and_one_that_ends_makes_room(
    limits: Limits, waits: int, told: list[object], kind: type[Frame]
) -> None:
    broker = Broker(limits=limits)
    process = broker.process()
    setup = process.connect("admin")
    number = setup.subscribe("t", "s")
    setup.publish("t", 1)
    setup.poll(number, "holder")
    calls = [process.connect("admin") for _ in range(waits + 1)]
    asked = frames.WaitIdle(number, 9.0) if kind is frames.WaitIdle else frames.Poll(number, "w", None, 1, 9.0)
    for call in calls[:waits]:
        call.send(asked)
        assert call.waits
    failed = calls[-1].failed(asked)
    assert (failed.kind, failed.args) == ("LimitReached", told)
    calls[0].close()
    calls[-1].send(asked)
    assert calls[-1].waits


NAME = "n" * 11


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (frames.CreateTopic(NAME, True), "topic"),
        (subscribe("t", NAME), "subscription"),
        (frames.Poll(1, NAME, None, 1, 0.0), "member"),
    ],
)
def test_a_name_that_is_kept_is_no_longer_than_the_limit(request_: Frame, what: str) -> None:
    call = Broker(limits=Limits(max_name_length=10)).call()
    call.subscribe("t", "n" * 10)
    call.ask(frames.CreateTopic("n" * 10, False), frames.Done)
    call.poll(1, "n" * 10)
    failed = call.failed(request_)
    assert failed.kind == "InvalidName"
    assert failed.args == [what, NAME, "it has 11 characters, and the broker's max_name_length is 10"]


def test_headers_are_no_more_and_no_longer_than_the_limits() -> None:
    call = Broker(limits=Limits(max_headers=2, max_header_bytes=10)).call()
    call.subscribe("t", "s")
    call.publish("t", 1, a="1234", b="1234")
    assert call.failed(publish("t", 1, a="", b="", c="")).args == ["headers", 3, 2, "max_headers"]
    # A character that takes two bytes counts as two.
    refused = call.failed(publish("t", 1, a="1234", b="123\u00e9"))
    assert (refused.kind, refused.args) == ("HeadersTooLarge", ["bytes of headers", 11, 10, "max_header_bytes"])
    assert call.stats(1)["accepted"] == 1


def test_what_the_broker_holds_is_bounded_and_an_ack_makes_room() -> None:
    call = Broker(limits=Limits(max_queue_bytes=3000)).call()
    call.subscribe("t", "s")
    call.publish("t", bytes(1000))
    failed = call.failed(publish("t", bytes(2500)))
    assert failed.kind == "BrokerFull"
    assert failed.args[2] == 3000
    failed = call.failed(publish("t", *[bytes(1500)] * 2))
    assert failed.kind == "BrokerFull"
    assert call.stats(1)["accepted"] == 1
    assert call.ack(1, *tokens(call.poll(1))) == [True]
    call.publish("t", bytes(2400))
    assert call.stats(1)["ready"] == 1


def test_what_a_publish_brings_and_nobody_counts_is_not_held() -> None:
    call = Broker().call()
    call.subscribe("t", "s")
    plain = frames.encode(publish("t", 1))
    body = bytes([plain[0] + 1]) + plain[1:] + msgspec.msgpack.encode(bytes(100_000))
    before = sys.getrefcount(body)
    call.send_bytes(body)
    call.got(frames.Published)
    assert sys.getrefcount(body) == before
    assert call.stats(1)["ready"] == 1
