"""How payloads are bytes: one MessagePack value each, several as a list.

bytes, str, float, bool, None and 64-bit ints travel as such (exact types only), everything else as extension 1, a
pickle, which only the reader opens. What is large may lie in a block of its publisher's arena; then extension 2 says
where, and how it is made of that. Imported by client and broker side alike; the broker uses what checks and cuts, and
opens nothing.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from mpbroker.errors import PayloadError, ProtocolViolation
from mpbroker.loans import Loan
from mpbroker.messages import Undecoded
from mpbroker.process.frames import MALFORMED

BATCH_MESSAGES: Final = 256
"""Payloads of one batch: what the engine takes in one, so that an offset fits the low byte of a token."""

BATCH_BYTES: Final = 64 * 1024
"""Bytes of one batch that has several payloads, so that one message that is not acked keeps little alive."""

PICKLED: Final = 1
"""MessagePack extension code of a pickled payload."""

PLACED: Final = 2
"""MessagePack extension code of a payload that lies in a block: a Placed. A batch has one of these, or none."""

_ALIGN: Final = 64
"""Buffers begin at multiples of it: what processors and numpy like."""

_CODE_AT: Final = {0xC7: 2, 0xC8: 3, 0xC9: 5, **dict.fromkeys(range(0xD4, 0xD9), 1)}
"""Where the code of an extension is, by the first byte of its head."""

_IN_FRONT: Final = b"\x80"
"""In the place of a pickle that is the first buffer: the first byte of every pickle, and never a whole one."""

MAX_BUFFERS: Final = 100_000
"""Of one payload: each costs the broker an integer, and is larger than the threshold in an honest one."""

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


class Placed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A payload in a block.

    segment, offset: where; serial: the block's number in its process, never used again.
    sizes: of the buffers in it, in bytes, each at the next multiple of 64.
    pickled: the pickle that is made of them; empty: the payload is the bytes in the one buffer; its first byte alone:
    the pickle is the first buffer.
    """

    segment: int
    serial: int
    offset: int
    sizes: list[int]
    pickled: bytes


_placed_decoder: Final = msgspec.msgpack.Decoder(Placed)


class Place(Protocol):
    """Where large payloads are put."""

    @property
    def threshold(self) -> int:
        """From so many bytes on."""

    def put(self, pickled: bytes, buffers: Sequence[Buffer]) -> Kept | None:
        """Put buffers into a block: the encoded payload, which keeps the block; None: there is none to be had, and the
        payload has to travel itself."""

    def settle(self, loan: Loan, pickled: bytes) -> Kept | None:
        """The same, of what was written into a block; None: it is not of this place."""


Buffer = bytes | bytearray | memoryview


class Kept(bytes):
    """Bytes that keep something: the block that they speak of."""

    keeps: object = None

    @classmethod
    def of(cls, content: bytes, keeps: object) -> Kept:
        kept = cls(content)
        kept.keeps = keeps
        return kept


def encode_payload(payload: Any, place: Place | None = None) -> bytes:
    """One payload as MessagePack; put into its place where that is given, and the payload large.

    Raises:
        PayloadError: it is of a type that only pickle can carry, and pickle cannot. And what the place raises.
    """
    kind = type(payload)
    try:
        if kind in _PLAIN or (kind is int and _INT_MIN <= payload <= _INT_MAX):
            if place is None or kind is not bytes or len(payload) < place.threshold:
                return _encoder.encode(payload)
            return place.put(b"", [payload]) or _encoder.encode(payload)
    except UnicodeEncodeError:
        pass  # a str with lone surrogates: pickle carries those
    if kind is Loan:
        written = payload.take()
        if place is not None:
            settled = place.settle(payload, _pickle(_Rebuilt(_flat, written), kind, lambda _: False))
            if settled is not None:
                return settled
        payload, kind = written, memoryview
    if place is not None:
        part = _pickle_apart(payload, kind, place)
        if part is not None:
            return part
    if kind is memoryview:
        payload = _Viewed(payload)
    return _encoder.encode(msgspec.msgpack.Ext(PICKLED, _pickle(payload, kind)))


def _pickle(payload: Any, kind: type, apart: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    try:
        return pickle.dumps(payload, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=apart)
    except Exception as error:
        raise PayloadError(
            f"a payload of type {kind.__name__} cannot travel to another process",
            f"{type(error).__name__}: {error}",
        ) from error


def _pickle_apart(payload: Any, kind: type, place: Place) -> bytes | None:
    """A payload pickled, its large buffers in a block; None: there is no block to be had."""
    threshold = place.threshold
    buffers: list[Buffer] = []
    if kind is memoryview:
        payload = _Viewed(payload)
    elif kind is array and len(payload) * payload.itemsize >= threshold:
        payload = _Rebuilt(_array_of, payload.typecode, payload)
    elif kind is bytearray and len(payload) >= threshold:
        payload = _Rebuilt(bytearray, payload)

    def apart(buffer: pickle.PickleBuffer) -> bool:
        """Whether it stays in the pickle."""
        raw = buffer.raw()
        if raw.nbytes < threshold or len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(raw)
        return False

    pickled = _pickle(payload, kind, apart)
    if len(pickled) >= threshold:
        return place.put(_IN_FRONT, [pickled, *buffers])
    if not buffers:
        return _encoder.encode(msgspec.msgpack.Ext(PICKLED, pickled))
    return place.put(pickled, buffers)


def encode_placed(placed: Placed) -> bytes:
    """A payload in a block, as MessagePack."""
    return _encoder.encode(msgspec.msgpack.Ext(PLACED, _encoder.encode(placed)))


def places(sizes: Iterable[int]) -> list[int]:
    """Where in a block buffers of these sizes begin, and where the last one ends."""
    at, found = 0, []
    end = 0
    for size in sizes:
        found.append(at)
        end = at + size
        at = -(-end // _ALIGN) * _ALIGN
    return [*found, end]


def placed_bytes(placed: Placed) -> int:
    """What its buffers take in the block."""
    return places(placed.sizes)[-1]


def read_placed(content: bytes) -> Placed:
    """Raises ProtocolViolation."""
    try:
        placed = _placed_decoder.decode(content)
    except MALFORMED as error:
        raise ProtocolViolation(f"a payload in a block: {error}") from None
    if not 1 <= len(placed.sizes) <= MAX_BUFFERS or min(placed.sizes) < 0:
        raise ProtocolViolation(f"a payload of {len(placed.sizes)} buffers in a block")
    return placed


class _Rebuilt:
    """Stands for a payload whose own pickle would carry its bytes: made of a buffer again. The last argument is it."""

    __slots__ = ("_arguments", "_make")

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make = make
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        *first, buffer = self._arguments
        return self._make, (*first, pickle.PickleBuffer(buffer))


class _Viewed:
    """Stands for a memoryview, which pickle does not take."""

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __reduce__(self) -> tuple[Any, ...]:
        view = self._view
        flat = view if view.c_contiguous else memoryview(view.tobytes())
        # Read-only for who gets it, so that pickle has no reason to make it a bytearray.
        return _view_of, (pickle.PickleBuffer(flat.toreadonly()), view.format, view.shape)


def _view_of(buffer: Any, form: str, shape: tuple[int, ...]) -> memoryview:
    """A memoryview as it was published, read-only; of bytes where its format is not one that a view can have."""
    view = memoryview(buffer).toreadonly().cast("B")
    try:
        return view.cast(form) if not view.nbytes or len(shape) == 1 else view.cast(form, shape)  # type: ignore[call-overload,no-any-return]
    except ValueError:
        return view


def _flat(buffer: Any) -> memoryview:
    return memoryview(buffer).toreadonly().cast("B")


def _array_of(typecode: str, buffer: Any) -> array[Any]:
    made = array(typecode)
    made.frombytes(buffer)
    return made


def encode_batches(payloads: Iterable[Any], place: Place | None = None) -> list[bytes]:
    """Payloads as MessagePack lists of at most BATCH_MESSAGES values and (several values) BATCH_BYTES bytes; one that
    was put into its place is alone.

    Raises what encode_payload raises for the first that cannot travel.
    """
    batches: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for payload in payloads:
        part = encode_payload(payload, place)
        if is_placed(part):
            if parts:
                batches.append(join(parts))
                parts, size = [], 0
            batches.append(Kept.of(join([part]), part))
            continue
        if parts and (len(parts) == BATCH_MESSAGES or size + len(part) > BATCH_BYTES):
            batches.append(join(parts))
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        batches.append(join(parts))
    return batches


def is_placed(part: bytes | memoryview) -> bool:
    """Whether an encoded payload is one in a block."""
    at = _CODE_AT.get(part[0])
    return at is not None and part[at] == PLACED


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
    """How many payloads an encoded batch from a client has, all of which travel themselves.

    Raises ProtocolViolation when it is not a list of 1 to BATCH_MESSAGES of these.
    """
    count, placed = look_over(batch)
    if placed is not None:
        raise ProtocolViolation("a payload in a block, where none can be")
    return count


def look_over(batch: bytes | memoryview) -> tuple[int, Placed | None]:
    """How many payloads an encoded batch from a client has, and where the one is that lies in a block.

    Raises ProtocolViolation when it is not a list of 1 to BATCH_MESSAGES payloads, or one of several is in a block.
    """
    payloads = _all_bytes(batch)
    are_bytes = payloads is not None
    if payloads is None:
        payloads = _any_values(batch)
    if not 1 <= len(payloads) <= BATCH_MESSAGES:
        raise ProtocolViolation(f"a batch of {len(payloads)} payloads")
    if are_bytes:
        return len(payloads), None
    kinds = set(map(type, payloads))
    if not kinds <= _ON_THE_WIRE:
        raise ProtocolViolation(f"payloads of types {sorted(kind.__name__ for kind in kinds - _ON_THE_WIRE)}")
    if msgspec.msgpack.Ext in kinds:
        for payload in payloads:
            if type(payload) is msgspec.msgpack.Ext and payload.code != PICKLED:
                if payload.code == PLACED and len(payloads) == 1:
                    return 1, read_placed(bytes(payload.data))
                raise ProtocolViolation(f"a payload of extension {payload.code} among {len(payloads)}")
    return len(payloads), None


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


def placed_in(payload: Any) -> Placed | None:
    """Where a decoded payload is, when that is in a block."""
    if type(payload) is not msgspec.msgpack.Ext or payload.code != PLACED:
        return None
    return read_placed(bytes(payload.data))


def open_placed(placed: Placed, block: memoryview) -> Any:
    """The payload in a block, made over the bytes there where its type can be. Raises PayloadError."""
    *begins, _ = places(placed.sizes)
    buffers = [block[begin : begin + size] for begin, size in zip(begins, placed.sizes, strict=True)]
    if not placed.pickled:
        return bytes(buffers[0])
    pickled: Any = placed.pickled
    if pickled == _IN_FRONT:
        pickled = buffers.pop(0)
    return _load(pickled, buffers)


def open_payload(payload: Any) -> Any:
    """The payload itself. Raises PayloadError when its pickle cannot be loaded here."""
    if type(payload) is not msgspec.msgpack.Ext:
        return payload
    if payload.code == PLACED:
        raise PayloadError("the payload", "it lies in a block, and nobody said where that is to be looked at")
    return _load(payload.data)


def _load(pickled: Any, buffers: Iterable[memoryview] | None = None) -> Any:
    try:
        return pickle.loads(pickled, buffers=buffers)
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
