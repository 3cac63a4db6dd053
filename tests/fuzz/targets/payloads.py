"""A batch of payloads is as many values as it says, each whole, or it is a ProtocolViolation; no pickle opens."""

from __future__ import annotations

import pickle
from typing import Any, NoReturn

import msgspec

from mpbroker.engine import Lease, Run
from mpbroker.errors import ProtocolViolation
from mpbroker.messages import Headers, MessagePriority
from mpbroker.process import payloads
from mpbroker.process.encoded import GRANT_BYTES, EncodedPayloads, contents, grant, one_payload
from tests.fuzz.draw import Draw


def target(data: bytes) -> None:
    opened, pickle.loads = pickle.loads, _never
    try:
        _check(data)
    finally:
        pickle.loads = opened


def _never(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a pickle was opened")


def _check(data: bytes) -> None:
    draw = Draw(data)
    at, size = draw.byte(), draw.byte()
    blob = draw.rest()
    _check_one(blob)
    try:
        count = payloads.check_payloads(blob)
    except ProtocolViolation as error:
        assert isinstance(error.args[0], str)
        return
    assert 1 <= count <= payloads.BATCH_MESSAGES
    assert payloads.list_length(blob) == count
    parts = payloads.split(blob)
    assert len(parts) == count
    assert b"".join(parts) == blob[len(blob) - sum(map(len, parts)) :]
    rejoined = payloads.join(parts)
    assert payloads.check_payloads(rejoined) == count
    assert _same(payloads.decode_payloads(rejoined), payloads.decode_payloads(blob))

    content = EncodedPayloads(msgspec.Raw(blob), 0)
    batch = content.batch("t", 7, MessagePriority.NORMAL, 0.0, Headers(), "x")
    start = at % count
    stop = start + 1 + size % (count - start)
    part = batch.payloads(start, stop)
    assert payloads.list_length(part) == stop - start
    assert payloads.split(memoryview(part)) == parts[start:stop]
    assert bytes(batch.message(start).payload) == bytes(parts[start])
    alone, place = batch.alone(start)
    assert (alone.first, alone.count, place) == (7 + start, 1, 0)
    assert payloads.split(memoryview(alone.payloads(0, 1))) == [parts[start]]
    lease = Lease(2**40, Run(batch, 0, count), 2**31, "w", None, 0.0, 1.0)
    assert len(msgspec.msgpack.encode(grant(lease))) <= batch.nbytes <= len(blob) + GRANT_BYTES
    assert sum(map(len, contents([msgspec.Raw(blob)], {}))) == count


def _check_one(blob: bytes) -> None:
    """An offered message: exactly one value, or none."""
    try:
        content = one_payload(msgspec.Raw(blob), {})
    except ProtocolViolation:
        return
    assert len(content) == 1
    message = content.batch("t", 1, MessagePriority.LOW, 0.0, Headers(), "x").message(0)
    assert bytes(message.payload) == blob


def _same(one: list[Any], other: list[Any]) -> bool:
    """By their bytes, since no NaN equals itself."""
    encode = msgspec.msgpack.encode
    return encode(one) == encode(other)
