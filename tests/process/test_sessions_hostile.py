"""A client may send anything: it gets an error, and changes and hurts nothing."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.process import frames, payloads
from mpbroker.process.encoded import MAX_PUBLISH
from mpbroker.process.frames import MAX_LISTED, Failed
from mpbroker.process.verbs import MAX_ASKED
from tests.process.driver import Broker, Connection, publish, subscribe, tokens

NUMBER = 1
NAN, INF = math.nan, math.inf
BAD_NAMES = ["", "$x", "$dispatcher-1", "a/b", "a*", "a>b", "x" * 256, "tab\t", "nul\0"]
FULL = msgspec.Raw(b"\xdc\x01\x00" + b"\x01" * 256)
ONE_BATCH = msgspec.Raw(b"\x91\x01")
ONE = msgspec.Raw(payloads.encode_payload(1))


def poll(**fields: Any) -> frames.Poll:
    return msgspec.structs.replace(frames.Poll(NUMBER, "w", None, 1, 0.0), **fields)


def offer(**fields: Any) -> frames.Offer:
    return msgspec.structs.replace(frames.Offer(NUMBER, ONE, {}, 1, 0.0, 1, "0123456789abcdef-1"), **fields)


REFUSED: list[tuple[frames.Frame, str]] = [
    *((frames.CreateTopic(name, True), "InvalidName") for name in BAD_NAMES),
    *((frames.DeleteTopic(name), "InvalidName") for name in BAD_NAMES),
    *((frames.Subscriptions(name), "InvalidName") for name in BAD_NAMES),
    *((subscribe(name, "s"), "InvalidName") for name in BAD_NAMES),
    *((subscribe("t", name), "InvalidName") for name in BAD_NAMES),
    *((frames.FindSubscription("t", name), "InvalidName") for name in BAD_NAMES),
    *((frames.FindSubscription(name, "s"), "InvalidName") for name in BAD_NAMES),
    *((frames.Unsubscribe("t", name), "InvalidName") for name in BAD_NAMES),
    *((frames.Unsubscribe(name, "s"), "InvalidName") for name in BAD_NAMES),
    *((publish(name, 1), "InvalidName") for name in BAD_NAMES),
    *((poll(member=name), "InvalidName") for name in BAD_NAMES if name != "$dispatcher-1"),
    (poll(member="$dispatcher-77"), "SubscriptionBusy"),
    (poll(member="$dispatcher-" + "9" * 10_000), "SubscriptionBusy"),
    *((frames.Ack(NUMBER, name, [1]), "InvalidName") for name in BAD_NAMES),
    *((frames.Nack(NUMBER, 1, name, None, "", None), "InvalidName") for name in BAD_NAMES),
    *((frames.Release(NUMBER, 1, name), "InvalidName") for name in BAD_NAMES),
    *((frames.Reject(NUMBER, 1, name, ""), "InvalidName") for name in BAD_NAMES),
    *((frames.Extend(NUMBER, 1, name, None, None), "InvalidName") for name in BAD_NAMES),
    *((poll(timeout=value), "ValueError") for value in (NAN, INF, -INF, -1.0, -1e-9)),
    *((poll(max_messages=value), "ValueError") for value in (0, -1, -(2**63), 2**63, 2**64 - 1)),
    *((frames.Nack(NUMBER, 1, "w", value, "", None), "ValueError") for value in (NAN, INF, -INF, -1.0)),
    *((frames.Extend(NUMBER, 1, "w", value, None), "ValueError") for value in (NAN, INF, -INF, -1.0)),
    *((frames.WaitIdle(NUMBER, value), "ValueError") for value in (NAN, INF, -INF, -1.0)),
    *((publish("t", 1, priority=value), "ValueError") for value in (-1, 4, 2**40)),
    *((offer(priority=value), "ValueError") for value in (-1, 4, 2**40)),
    *((offer(sequence=value), "ValueError") for value in (0, -1, 2, 2**63)),
    *((offer(timestamp=value), "ValueError") for value in (NAN, INF, -INF)),
    *((subscribe("t", "n", ack_timeout=value), "ValueError") for value in (NAN, INF, 0.0, -1.0)),
    *((subscribe("t", "n", max_deliveries=value), "ValueError") for value in (0, -1)),
    *((subscribe("t", "n", max_queue=value), "ValueError") for value in (0, -1)),
    *((subscribe("t", "n", overflow=value), "ValueError") for value in ("", "wait", "WAIT", "DEAD_LETTER")),
    *((subscribe("t", "n", overflow="wait", overflow_wait=value), "ValueError") for value in (NAN, INF, 0.0, -1.0)),
    *(
        (subscribe("t", "n", retry=frames.Retry(*value)), "ValueError")
        for value in (
            (0, 1.0, 1.0, 1.0),
            (5, -1.0, 1.0, 1.0),
            (5, NAN, 1.0, 1.0),
            (5, 1.0, 0.5, 1.0),
            (5, 1.0, INF, 1.0),
            (5, 1.0, 1.0, -1.0),
        )
    ),
    (subscribe("t", "n", max_deliveries=3, retry=frames.Retry(4, 1.0, 1.0, 1.0)), "ValueError"),
    (subscribe("t", "n", filter=""), "InvalidFilter"),
    (subscribe("t", "n", filter="headers.a = " + "(" * 200), "InvalidFilter"),
    (subscribe("t", "n", filter="x" * 100_000), "InvalidFilter"),
    (subscribe("t", "n", function="os:system"), "InvalidFilter"),
    (frames.Subscribe("t", "n", False, ["filter"], "code", "", 1.0, 1, None, 1, ""), "ValueError"),
    (frames.Subscribe("t", "n", False, ["owner"], "none", "", 1.0, 1, None, 1, ""), "ValueError"),
    (frames.Subscribe("t", "n", False, ["filter"] * 9, "none", "", 1.0, 1, None, 1, ""), "ValueError"),
    (frames.Ack(NUMBER, "w", [1] * (MAX_ASKED + 1)), "ValueError"),
    (frames.AckTokens(NUMBER, [1] * (MAX_ASKED + 1)), "ValueError"),
    *(
        (verb(NUMBER, ranges), "ValueError")
        for verb in (frames.AckRanges, frames.ReleaseRanges)
        for ranges in (
            [1] * (MAX_ASKED + 2),
            [256],
            [256, 256, 256],
            [256, 255],
            [256, 512],
            [256, 256, 255, 256],
            [0, 2**64 - 1],
            [-1, 0],
        )
    ),
    (frames.Publish("t", [FULL] * (MAX_PUBLISH // 256 + 1), {}, 1), "ValueError"),
    (frames.DeadLetters(None, 0, 0), "ValueError"),
    (frames.DeadLetters(None, -1, 0), "ValueError"),
    (frames.DeadLetters(None, None, -1), "ValueError"),
    (frames.DeadLetters("x" * 5_000_000, None, 0), "UnknownSubscription"),
    (frames.Redrive("t/s", None, 0), "ValueError"),
    (frames.Purge("t/s", [1], -5), "ValueError"),
    *(
        (request, "UnknownSubscription")
        for number in (0, -1, 2, 2**64 - 1, -(2**63))
        for request in (
            poll(subscription=number),
            offer(subscription=number),
            frames.Stats(number, None),
            frames.WaitIdle(number, 0.0),
            frames.Attach(number),
            frames.Detach(number, "$dispatcher-1"),
            frames.Expire(number, None),
        )
    ),
]


def snapshot(broker: Broker) -> object:
    engine = broker.engine
    return (
        engine.topics(),
        engine.subscriptions(None, None),
        [(each.settings, each.dispatcher, each.next_deadline()) for each in engine.all_subscriptions()],
        broker.sessions.next_due(),
    )


def with_everything(broker: Broker) -> Connection:
    """A connection of a process that holds m1 as "w"; m2 is ready, m3 a dead letter."""
    call = broker.call()
    assert call.subscribe("t", "s") == NUMBER
    call.publish("t", 1, 2, 3)
    _, _, third = tokens(call.poll(NUMBER, "w", 3))
    call.ask(frames.Reject(NUMBER, third, None, "bad"), frames.Answers)
    call.ask(frames.Release(NUMBER, 2, "w"), frames.Answers)
    return call


@pytest.mark.parametrize(("request_", "kind"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_is_refused_and_changes_nothing(request_: frames.Frame, kind: str) -> None:
    broker = Broker()
    call = with_everything(broker)
    before = snapshot(broker)
    failed = call.failed(request_)
    assert failed.kind == kind, failed
    assert len(frames.encode(failed)) < 100_000
    assert snapshot(broker) == before


@pytest.mark.parametrize(
    "request_",
    [
        poll(max_messages=2**63 - 1),
        poll(timeout=1e308, max_messages=1),
        frames.Nack(NUMBER, 1, "w", 1e308, "", None),
        frames.Extend(NUMBER, 1, "w", 1e308, None),
        frames.Nack(NUMBER, 2**64 - 1, "w", None, "", None),
        frames.Nack(NUMBER, -(2**63), None, None, "x" * 1_000_000, None),
        frames.Reject(NUMBER, 1, "w", "\x00\U0010ffff" * 100_000),
        frames.Ack(NUMBER, "w", list(range(-5, 10_000))),
        frames.AckTokens(NUMBER, [2**64 - 1, -(2**63), 0] * 1000),
        frames.DeadLetters(None, 2**63 - 1, 2**63 - 1),
        frames.Redrive("t/s", [2**64 - 1, -1], 2**63 - 1),
        *(frames.Ack(number, "w", [1]) for number in (0, -1, 2, 2**64 - 1)),
        frames.AckTokens(77, [256]),
        *(
            verb(number, ranges)
            for verb in (frames.AckRanges, frames.ReleaseRanges)
            for number, ranges in (
                (77, [256, 256]),
                (NUMBER, []),
                (NUMBER, [0, 255, -256, -1, 2**64 - 256, 2**64 - 1]),
                (NUMBER, [257, 511] * 1000),
            )
        ),
        frames.Nack(77, 256, None, None, "", None),
        frames.Release(77, 1, "w"),
        frames.Reject(77, 256, None, ""),
        frames.Extend(77, 256, None, None, None),
        frames.RetryHeld(77, 256, ""),
        frames.Detach(NUMBER, "$dispatcher-77"),
        frames.Detach(NUMBER, "x" * 100_000),
        frames.Publish("t", [], {}, 1),
        frames.Publish("t", [FULL] * 50, {"": ""}, 1),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_is_odd_but_possible_is_served(request_: frames.Frame) -> None:
    broker = Broker()
    call = with_everything(broker)
    call.send(request_)
    assert not isinstance(call.take(), Failed)
    due = broker.sessions.next_due()
    assert due is None or math.isfinite(due)
    broker.at(due or broker.now)
    call.stats(NUMBER)


def test_an_error_text_is_kept_short() -> None:
    call = with_everything(Broker())
    call.ask(frames.Reject(NUMBER, 1, "w", "é" * 1_000_000), frames.Answers)
    letters = call.ask(frames.DeadLetters("t/s", None, 0), frames.Letters).letters
    assert [len(letter.error) for letter in letters] == [3, 4096]


# -- payloads ---------------------------------------------------------------------------------------------------------

BROKEN_BATCHES = [
    b"\xc0",
    b"\x01",
    b"\x90",
    b"\xa1x",
    b"\x81\x01\x02",
    b"\x91\x90",
    b"\x91\x91\x01",
    b"\x91\x80",
    b"\x92\x01\x81\x01\x02",
    b"\xdc\x01\x01" + b"\x01" * 257,
    msgspec.msgpack.encode([msgspec.msgpack.Ext(2, b"x")]),
    msgspec.msgpack.encode([msgspec.msgpack.Ext(-1, bytes(4))]),
    msgspec.msgpack.encode([msgspec.msgpack.Ext(-1, bytes(12))]),
    msgspec.msgpack.encode([msgspec.msgpack.Ext(-1, b"\xff" * 12)]),
    msgspec.msgpack.encode([1, msgspec.msgpack.Ext(0, b"")]),
    b"\x91\xa1\xff",
]


@pytest.mark.parametrize("batch", BROKEN_BATCHES, ids=range(len(BROKEN_BATCHES)))
def test_batches_that_are_none_close_the_connection_and_publish_nothing(batch: bytes) -> None:
    broker = Broker()
    call = with_everything(broker)
    other = broker.call()
    before = snapshot(broker)
    good = msgspec.Raw(b"\x91\x01")
    call.send(frames.Publish("t", [good, msgspec.Raw(batch)], {}, 1))
    failed = call.take()
    assert isinstance(failed, Failed)
    assert failed.kind == "ProtocolViolation"
    assert call.is_closed
    assert snapshot(broker) == before
    other.ask(frames.Topics(), frames.TopicsReply)


def test_a_publish_in_needlessly_many_batches_is_a_violation() -> None:
    """A batch costs the broker hundreds of bytes, and could be one of a single byte."""
    broker = Broker()
    call = with_everything(broker)
    before = snapshot(broker)
    call.send(frames.Publish("t", [ONE_BATCH] * 100_000, {}, 1))
    failed = call.take()
    assert isinstance(failed, Failed)
    assert failed.kind == "ProtocolViolation"
    assert snapshot(broker) == before


@given(st.lists(st.sampled_from([0, 0, 0, 50, 200, 40_000, 65_530, 65_540, 70_000]), max_size=600))
@settings(max_examples=20)
def test_no_publish_of_a_client_has_too_many_batches(sizes: list[int]) -> None:
    call = with_everything(Broker(is_checked=False))
    call.publish("t", *[bytes(size) if size else None for size in sizes])


@pytest.mark.parametrize("payload", [b"\x90", b"\x91\x01", b"\x80", b"\xc7\x00\x05", b"\xa1\xff"])
def test_an_offer_of_what_is_no_payload_is_a_violation(payload: bytes) -> None:
    broker = Broker()
    call = with_everything(broker)
    before = snapshot(broker)
    call.send(offer(payload=msgspec.Raw(payload)))
    failed = call.take()
    assert isinstance(failed, Failed)
    assert failed.kind == "ProtocolViolation"
    assert snapshot(broker) == before


# -- bytes ------------------------------------------------------------------------------------------------------------

BROKEN_FRAMES = [
    b"",
    b"\xc1",
    b"\x90",
    b"\x91\xa4Nope",
    b"\x91\xa4Poll",
    b"\xff" * 1000,
    b"\x91" * 100_000,
    b"\xdd\xff\xff\xff\xff",
    msgspec.msgpack.encode(["Poll", "one", "w", None, 1, 0.0]),
    msgspec.msgpack.encode(["Poll", 1, "w", None, 1.5, 0.0]),
    msgspec.msgpack.encode(["Poll", 1, "w", None, True, 0.0]),
    msgspec.msgpack.encode(["Poll", 1, None, None, 1, 0.0]),
    msgspec.msgpack.encode(["Publish", "t", ["no list"], {1: 2}, 1]),
    msgspec.msgpack.encode(["Publish", "t", [], {"a": None}, 1]),
    msgspec.msgpack.encode(["Ack", 1, "w", ["m1"]]),
    msgspec.msgpack.encode(["Ack", 1, "w", [2**63, None]]),
    msgspec.msgpack.encode({"type": "Topics"}),
    frames.encode(frames.Topics()) + b"\x00",
    msgspec.msgpack.encode(["Ack", 1, "w", [1] * (MAX_LISTED + 1)]),
    frames.encode(frames.Publish("t", [ONE] * (MAX_LISTED + 1), {}, 1)),
    frames.encode(frames.Hello(frames.PROTOCOL, "1", "call", b"x" * 16, 1, 0, b"x" * 32)),
    frames.encode(frames.Proof(b"x" * 32)),
    frames.encode(frames.Welcome("x", 1, 1, False)),
    frames.encode(frames.Gone("x", False)),
    b"\x93\xa8DeadLett\xa1\xff\xc0",
]


@pytest.mark.parametrize("body", BROKEN_FRAMES, ids=range(len(BROKEN_FRAMES)))
def test_what_is_no_request_closes_that_connection_and_hurts_nothing_else(body: bytes) -> None:
    broker = Broker()
    process = broker.process()
    bad, waiting = process.call(), process.call()
    number = waiting.subscribe("t", "s")
    waiting.wait(number)
    before = snapshot(broker)
    bad.send_bytes(body)
    failed = bad.take()
    assert isinstance(failed, Failed)
    assert failed.kind == "ProtocolViolation"
    assert bad.is_closed
    assert snapshot(broker) == before
    assert waiting.waits
    process.call().publish("t", 1)
    assert waiting.granted()


SEEDS = [frames.encode(request) for request, _ in REFUSED[::7]] + [
    frames.encode(publish("t", 1, "a", b"b", {})),
    frames.encode(poll()),
    frames.encode(frames.Ack(NUMBER, "w", [1, 2])),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        if not body:
            break
        at = draw(st.integers(0, len(body) - 1))
        match draw(st.sampled_from(["set", "cut", "insert", "drop"])):
            case "set":
                body[at] = draw(st.integers(0, 255))
            case "cut":
                del body[at:]
            case "insert":
                body[at:at] = draw(st.binary(max_size=5))
            case _:
                del body[at]
    return bytes(body)


@given(st.lists(damaged() | st.binary(max_size=60), max_size=8))
def test_no_bytes_whatever_hurt_the_broker(bodies: list[bytes]) -> None:
    broker = Broker()
    process = broker.process()
    with_everything(broker)
    for body in bodies:
        call = process.call()
        call.send_bytes(body)
        assert len(call.inbox) == 1 or call.waits
        if call.is_closed:
            (failed,) = call.inbox
            assert isinstance(failed, Failed)
            assert failed.kind == "ProtocolViolation"
    assert process.call().ask(frames.Status(), frames.Report).counters["calls"] >= 0


@given(st.lists(damaged() | st.binary(max_size=60), max_size=4))
def test_no_bytes_whatever_pass_for_a_handshake(bodies: list[bytes]) -> None:
    broker = Broker()
    connection = broker.open(b"x" * 16, "call", 1)
    for body in bodies:
        connection.send_bytes(body)
    assert not broker.sessions._desk.sessions
    broker.later(5.0)
    assert connection.is_closed
