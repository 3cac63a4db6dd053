"""How payloads are bytes: one MessagePack value each, several as a list.

bytes, str, float, bool, None and 64-bit ints travel as such (exact types only), everything else as extension 1, a
pickle, which only the reader opens. Imported by client and broker side alike; the broker uses what checks and cuts, and
opens nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from mpbroker.errors import PayloadError, ProtocolViolation
from mpbroker.messages import Undecoded
from mpbroker.process.frames import MALFORMED

BATCH_MESSAGES: Final = 256
"""Payloads of one batch: what the engine takes in one, so that an offset fits the low byte of a token."""

BATCH_BYTES: Final = 64 * 1024
"""Bytes of one batch that has several payloads, so that one message that is not acked keeps little alive."""

PICKLED: Final = 1
"""MessagePack extension code of a pickled payload."""

_encoder: Final = msgspec.msgpack.Encoder()
_raws_decoder: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_values_decoder: Final = msgspec.msgpack.Decoder(list[Any])
_bytes_decoder: Final = msgspec.msgpack.Decoder(list[bytes])

_PLAIN: Final = frozenset({bytes, str, float, bool, type(None)})
_ON_THE_WIRE: Final = _PLAIN | {int, msgspec.msgpack.Ext}
_BYTES: Final = frozenset({0xC4, 0xC5, 0xC6})
"""What stands in front of MessagePack's bytes."""

_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1


def encode_payload(payload: Any) -> bytes:
    """One payload as MessagePack.

    Raises:
        PayloadError: it is of a type that only pickle can carry, and pickle cannot.
    """
    kind = type(payload)
    try:
        if kind in _PLAIN or (kind is int and _INT_MIN <= payload <= _INT_MAX):
            return _encoder.encode(payload)
    except UnicodeEncodeError:
        pass  # a str with lone surrogates: pickle carries those
    try:
        pickled = pickle.dumps(payload, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise PayloadError(
            f"a payload of type {kind.__name__} cannot travel to another process",
            f"{type(error).__name__}: {error}",
        ) from error
    return _encoder.encode(msgspec.msgpack.Ext(PICKLED, pickled))


def encode_batches(payloads: Iterable[Any]) -> list[bytes]:
    """Payloads as MessagePack lists of at most BATCH_MESSAGES values and (several values) BATCH_BYTES bytes.

    Raises PayloadError for the first that cannot travel.
    """
    batches: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for payload in payloads:
        part = encode_payload(payload)
        if parts and (len(parts) == BATCH_MESSAGES or size + len(part) > BATCH_BYTES):
            batches.append(join(parts))
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        batches.append(join(parts))
    return batches


def join(parts: Sequence[bytes | memoryview]) -> bytes:
    """Encoded values as one encoded list."""
    return b"".join((list_head(len(parts)), *parts))


def list_head(count: int) -> bytes:
    """What stands in front of the values of an encoded list; at most 65,535 of them."""
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def list_length(batch: bytes | memoryview | msgspec.Raw) -> int:
    """How many values an encoded list has. Raises ProtocolViolation when it is none."""
    view = memoryview(batch)
    kind = view[0] if view else 0
    if kind & 0xF0 == 0x90:
        return kind & 0x0F
    if kind in {0xDC, 0xDD}:
        return int.from_bytes(view[1 : 3 if kind == 0xDC else 5], "big")
    raise ProtocolViolation("payloads that are no list")


def split(batch: bytes | memoryview) -> list[memoryview]:
    """The encoded values of an encoded list, as views into it."""
    return [memoryview(raw) for raw in _raws_decoder.decode(batch)]


def check_payloads(batch: bytes | memoryview) -> int:
    """How many payloads an encoded batch from a client has.

    Raises ProtocolViolation when it is not a list of 1 to BATCH_MESSAGES payloads.
    """
    payloads = _all_bytes(batch)
    are_bytes = payloads is not None
    if payloads is None:
        payloads = _any_values(batch)
    if not 1 <= len(payloads) <= BATCH_MESSAGES:
        raise ProtocolViolation(f"a batch of {len(payloads)} payloads")
    if are_bytes:
        return len(payloads)
    kinds = set(map(type, payloads))
    if not kinds <= _ON_THE_WIRE:
        raise ProtocolViolation(f"payloads of types {sorted(kind.__name__ for kind in kinds - _ON_THE_WIRE)}")
    if msgspec.msgpack.Ext in kinds:
        for payload in payloads:
            if type(payload) is msgspec.msgpack.Ext and payload.code != PICKLED:
                raise ProtocolViolation(f"a payload of extension {payload.code}")
    return len(payloads)


def _all_bytes(batch: bytes | memoryview) -> list[Any] | None:
    """The values of an encoded list of nothing but bytes, whose types their decoder sees to; None: it is another."""
    if len(batch) < 4 or batch[3 if batch[0] == 0xDC else 1] not in _BYTES:
        return None  # or who publishes others one by one would pay for an error each time
    try:
        return _bytes_decoder.decode(batch)
    except MALFORMED:
        return None


def _any_values(batch: bytes | memoryview) -> list[Any]:
    try:
        return _values_decoder.decode(batch)
    except MALFORMED as error:
        raise ProtocolViolation(f"payloads: {error}") from None


def decode_payloads(batch: bytes | memoryview) -> list[Any]:
    """The payloads of a batch, pickles still closed: pass each to open_payload."""
    return _values_decoder.decode(batch)


def open_payload(payload: Any) -> Any:
    """The payload itself. Raises PayloadError when its pickle cannot be loaded here."""
    if type(payload) is not msgspec.msgpack.Ext:
        return payload
    try:
        return pickle.loads(payload.data)
    except Exception as error:
        raise PayloadError(
            "this process cannot decode the payload (its class must be importable here)",
            f"{type(error).__name__}: {error}",
        ) from error


def open_or_mark(payload: Any) -> Any:
    """open_payload, with an Undecoded in the place of what cannot be opened."""
    try:
        return open_payload(payload)
    except PayloadError as error:
        return Undecoded(bytes(payload.data), error.args[1])
