"""Batches that stay as the bytes that came."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.engine import Lease, Run
from mpbroker.errors import ProtocolViolation
from mpbroker.messages import Headers, MessagePriority
from mpbroker.process import frames
from mpbroker.process.encoded import EncodedBatch, EncodedPayloads, contents, grant, headers_bytes, one_payload
from mpbroker.process.payloads import decode_payloads, encode_batches, encode_payload, list_length, open_payload
from tests.process.driver import Broker, publish

PAYLOADS: list[Any] = [1, "two", b"three", None, 4.5, {"six": [7]}, True, "", b"", -1]


def batch_of(payloads: Sequence[Any], headers: dict[str, str] | None = None) -> EncodedBatch:
    (blob,) = encode_batches(payloads)
    content = EncodedPayloads(blob, headers_bytes(headers or {}))
    return content.batch("t", 10, MessagePriority.HIGH, 5.0, Headers(headers or {}), "abc")


def opened(blob: msgspec.Raw) -> list[Any]:
    return [open_payload(value) for value in decode_payloads(memoryview(blob))]


def test_the_whole_of_a_batch_is_the_object_that_came() -> None:
    raw = msgspec.Raw(encode_batches(PAYLOADS)[0])
    batch = EncodedPayloads(raw, 0).batch("t", 1, MessagePriority.LOW, 0.0, Headers(), "abc")
    assert batch.payloads(0, len(PAYLOADS)) is raw


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 255, 256])
def test_any_part_of_a_batch_has_the_payloads_of_that_part(count: int) -> None:
    payloads = [PAYLOADS[n % len(PAYLOADS)] for n in range(count)]
    batch = batch_of(payloads)
    for start in {0, count // 3, count - 1}:
        for stop in {start + 1, (start + count + 1) // 2, count} - {start}:
            assert opened(batch.payloads(start, stop)) == payloads[start:stop]


@given(st.lists(st.binary(max_size=300) | st.text(max_size=70) | st.none(), min_size=1, max_size=40), st.data())
def test_parts_of_parts_are_exact(payloads: list[Any], data: st.DataObject) -> None:
    batch = batch_of(payloads)
    start = data.draw(st.integers(0, len(payloads) - 1))
    stop = data.draw(st.integers(start + 1, len(payloads)))
    part = batch.payloads(start, stop)
    assert opened(part) == payloads[start:stop]
    assert list_length(part) == stop - start


@pytest.mark.parametrize("head", [b"\xdc\x00\x03", b"\xdd\x00\x00\x00\x03"])
def test_a_list_with_a_longer_head_than_needed_is_split_as_well(head: bytes) -> None:
    blob = head + b"\x01\xa1a\xc4\x01b"
    batch = EncodedPayloads(blob, 0).batch("t", 1, MessagePriority.LOW, 0.0, Headers(), "abc")
    assert opened(batch.payloads(1, 3)) == ["a", b"b"]


def test_messages_know_their_ids_and_keep_their_payload_closed() -> None:
    batch = batch_of(PAYLOADS, {"kind": "x"})
    message = batch.message(5)
    assert (message.topic, message.sequence, message.message_id, message.uid) == ("t", 15, "m15", "abc-15")
    assert (message.priority, message.timestamp, message.headers) == (MessagePriority.HIGH, 5.0, {"kind": "x"})
    assert bytes(message.payload) == encode_payload(PAYLOADS[5])


def test_a_message_alone_does_not_keep_its_batch() -> None:
    batch = batch_of([bytes(1000)] * 50)
    alone, at = batch.alone(7)
    assert (alone.count, alone.first, at) == (1, 17, 0)
    assert alone.nbytes < 1200
    assert opened(alone.payloads(0, 1)) == [bytes(1000)]
    assert alone.alone(0) == (alone, 0)
    assert alone.message(0) == batch.message(7)


@pytest.mark.parametrize(
    ("count", "size", "kept"), [(1, 2_000, True), (1, 200, False), (2, 2_000, False), (9, 2_000, False)]
)
def test_one_large_batch_stays_in_its_frame_and_others_are_copied_out_of_it(count: int, size: int, kept: bool) -> None:
    blob = msgspec.Raw(msgspec.msgpack.encode([bytes(size)]))
    body = frames.encode(frames.Publish("t", [blob] * count, {}, 1))
    before = sys.getrefcount(body)
    request = frames.decode_request(body)
    assert isinstance(request, frames.Publish)
    made = contents(request.batches, {}, frame_bytes=len(body))
    del request
    assert (sys.getrefcount(body) > before) is kept
    assert len(made) == count


@pytest.mark.parametrize(("batch", "most"), [(1, 400), (100, 60)])
def test_a_waiting_message_takes_few_bytes_beside_its_payload(batch: int, most: int) -> None:
    broker = Broker()
    call = broker.call()
    number = call.subscribe("t", "s")
    body = frames.encode(publish("t", *[bytes(100)] * batch))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2_000 // batch):
            # Past the driver, which looks at everything after each step.
            broker.sessions.received(call.id, bytes(bytearray(body)), broker.now)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert call.stats(number)["ready"] == 2_000
    assert grown / 2_000 - 100 <= most


@pytest.mark.parametrize("what", ["a header again and again", "a field too many"])
def test_a_batch_does_not_keep_what_else_came_in_its_frame(what: str) -> None:
    body = frames.encode(frames.Publish("t", [msgspec.Raw(b"\x91\x01")], {"a": "b"}, 1))
    if what == "a field too many":
        body = bytes([body[0] + 1]) + body[1:] + msgspec.msgpack.encode(bytes(1000))
    else:
        pair = msgspec.msgpack.encode({"a": "b"})[1:]
        body = body.replace(b"\x81" + pair, b"\xde\x01\x00" + pair * 256)
    before = sys.getrefcount(body)
    request = frames.decode_request(body)
    assert isinstance(request, frames.Publish)
    assert request.headers == {"a": "b"}
    made = contents(request.batches, request.headers, frame_bytes=len(body))
    del request
    assert sys.getrefcount(body) == before
    assert len(made) == 1


def test_size_counts_payloads_and_headers() -> None:
    small, large = batch_of(["x"]), batch_of(["x"], {"key": "é" * 500})
    assert small.nbytes >= len(frames.encode(frames.Granted([granted(small)]))) - 20
    assert large.nbytes - small.nbytes >= 1003


def granted(batch: EncodedBatch) -> frames.Grant:
    lease = Lease(2**40, Run(batch, 0, batch.count), 2**31, "w", None, 0.0, 1.0)
    return grant(lease)


@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=30),
    st.dictionaries(st.text(max_size=20), st.text(max_size=300), max_size=5),
)
def test_a_grant_never_takes_more_than_its_batch_says(payloads: list[bytes], headers: dict[str, str]) -> None:
    batch = batch_of(payloads, headers)
    assert len(msgspec.msgpack.encode(granted(batch))) <= batch.nbytes


def test_what_is_no_payload_is_refused() -> None:
    for raw in (b"", b"\x90", b"\x80"):
        with pytest.raises(ProtocolViolation):
            one_payload(msgspec.Raw(raw), {})
