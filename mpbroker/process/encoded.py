"""Messages in the broker process: payloads as the bytes that came, in and out.

Owns the batches that the engine queues here, and what a lease or a dead letter of them is on the wire. A batch's blob
is kept as it came and goes out the same; its payloads are told apart only where part of it is split off, and never
opened. For the broker's side; imports frames and the engine's batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

import msgspec

from mpbroker import checks
from mpbroker.engine import Batch, DeadRecord, Lease
from mpbroker.errors import PayloadTooLarge, ProtocolViolation
from mpbroker.messages import Attempt, Headers, Message, MessagePriority
from mpbroker.process import payloads
from mpbroker.process.blocks import Block, Claims
from mpbroker.process.frames import AttemptRecord, Grant, Letter
from mpbroker.process.meter import CountedAttempt, Meter

Blob = bytes | msgspec.Raw
"""A MessagePack list of payloads."""

GRANT_BYTES: Final = 96
"""What one grant takes in a reply beyond payloads and headers, at most: nine numbers of 9 bytes, and list heads."""

MAX_PUBLISH: Final = 1_000_000
"""Messages in one publish: as many as a subscription holds by default, and no reason for the others to wait long."""

_ONE: Final = 0x91  # the head of a list of one
_PLACED_BYTES: Final = 8  # the least that a payload in a block takes
_HEADER_BYTES: Final = 10  # in front of a key and its value
_ATTEMPT_BYTES: Final = 64  # an attempt without its texts
_LETTER_BYTES: Final = 128  # a dead letter without payload, headers, history and texts


BATCH_BYTES: Final = 384
"""What a batch takes in memory beside payloads and headers, about: the objects around them."""

HEADERS_BYTES: Final = 256
"""What the headers of a publish take in memory, about, if there are any, ..."""

_SMALL_BYTES: Final = 1024
"""Of a frame: up to here its payloads are copied out, which takes less memory than the whole of it and a look at it."""

HEADER_BYTES: Final = 160
"""... and each of them beside its characters: two objects, and its place in a table."""

BLOCK_BYTES: Final = 640
"""What the broker knows of a block, about."""

ATTEMPT_BYTES: Final = 224
"""What an attempt takes in memory beside its error text and the list of those before it, about."""

_WASTE_BYTES: Final = 512
"""What else may be in a frame that is kept for its one batch."""


class EncodedBatch(Batch):
    """A batch of messages whose payloads stay encoded.

    Attributes:
        nbytes: what a grant of all of it takes in a reply, at most.
        held_bytes: what the meter counts for as long as a copy is somewhere.
    """

    __slots__ = ("_incarnation", "_meter", "_places", "blob", "held_bytes", "nbytes")
    nbytes: int

    def __init__(
        self,
        topic: str,
        first: int,
        count: int,
        priority: MessagePriority,
        timestamp: float,
        headers: Headers,
        blob: Blob,
        incarnation: str,
        nbytes: int,
        meter: Meter,
        held_bytes: int,
    ) -> None:
        super().__init__(topic, first, count, priority, timestamp, headers)
        self.blob = blob
        self.nbytes = nbytes
        self._incarnation = incarnation
        self._places: array[int] | None = None
        self._meter = meter
        self.held_bytes = held_bytes
        meter.used += held_bytes

    def __del__(self) -> None:
        # The last run, lease or dead letter of it is gone, wherever that was: nothing else needs to tell.
        self._meter.used -= self.held_bytes

    def remembered(self, attempt: Attempt, history: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
        meter = self._meter
        if meter.used > meter.limit:
            return history
        nbytes = ATTEMPT_BYTES + 8 * len(history) + _text_memory(attempt.error)
        return super().remembered(CountedAttempt.of(attempt, nbytes, meter), history)

    def message(self, index: int) -> Message:
        """The message, with its encoded payload."""
        sequence = self.first + index
        start, stop = self._span(index, index + 1)
        return Message(
            self.topic,
            msgspec.Raw(bytes(memoryview(self.blob)[start:stop])),
            self.priority,
            self.headers,
            f"m{sequence}",
            self.timestamp,
            sequence,
            f"{self._incarnation}-{sequence}",
        )

    def alone(self, index: int) -> tuple[EncodedBatch, int]:
        meter = self._meter
        if self.count == 1 or meter.used > meter.limit:
            return self, index
        part = self._part(index, index + 1)
        less = len(memoryview(self.blob)) - len(part)
        made = EncodedBatch(
            self.topic,
            self.first + index,
            1,
            self.priority,
            self.timestamp,
            self.headers,
            part,
            self._incarnation,
            self.nbytes - less,
            meter,
            self.held_bytes - less,
        )
        return made, 0

    def payloads(self, start: int, stop: int) -> msgspec.Raw:
        """The payloads of some of its messages, as one encoded list."""
        if start == 0 and stop == self.count:
            return self.blob if isinstance(self.blob, msgspec.Raw) else msgspec.Raw(self.blob)
        return msgspec.Raw(self._part(start, stop))

    def _part(self, start: int, stop: int) -> bytes:
        from_byte, to_byte = self._span(start, stop)
        head = payloads.list_head(stop - start)
        return b"".join((head, memoryview(self.blob)[from_byte:to_byte]))

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        """Where in the blob the payloads from ``start`` to ``stop`` are; found once for all."""
        places = self._places
        if places is None:
            sizes = [len(part) for part in payloads.split(memoryview(self.blob))]
            place = len(memoryview(self.blob)) - sum(sizes)
            places = self._places = array("Q", [place])
            for size in sizes:
                place += size
                places.append(place)
        return places[start], places[stop]


class BlockBatch(EncodedBatch):
    """One message, whose payload is in a block, which is needed while anything refers to this."""

    __slots__ = ("block",)
    block: Block


class EncodedPayloads:
    """The payloads of a batch before it has sequences, as the engine's Content.

    Args:
        headers_bytes: what the headers of the batch take in a reply, and headers_memory in memory, from the functions
            of those names.
        sharing: batches that share the headers.
        meter: of what the broker holds.
        max_payload_bytes: bound of each.
        claims: of blocks, which `claim` takes; None: here none can be named.

    Attributes:
        held_bytes: what the broker will hold for it.

    Raises:
        ProtocolViolation: they are not what a batch may be.
        PayloadTooLarge: one is over its bound.
        PayloadError: it is in a block that its publisher has no more.
    """

    __slots__ = ("_blob", "_block", "_claim", "_count", "_meter", "_nbytes", "held_bytes")

    def __init__(
        self,
        blob: Blob,
        headers_bytes: int,
        meter: Meter | None = None,
        max_payload_bytes: int | None = None,
        sharing: int = 1,
        headers_memory: int = 0,
        claims: Claims | None = None,
    ) -> None:
        view = memoryview(blob)
        self._count, placed = payloads.look_over(view)
        self._claim: Callable[[], Block] | None = None
        self._block: Block | None = None
        if placed is not None:
            if claims is None:
                raise ProtocolViolation("a payload in a block, where none can be")
            if max_payload_bytes is not None and payloads.placed_bytes(placed) > max_payload_bytes:
                raise PayloadTooLarge(
                    "a payload", payloads.placed_bytes(placed), max_payload_bytes, "max_payload_bytes"
                )
            self._claim = claims.check(placed)
        elif max_payload_bytes is not None and len(view) > max_payload_bytes:
            # Only then can one of them be.
            largest = max(map(len, payloads.split(view)))
            if largest > max_payload_bytes:
                raise PayloadTooLarge("a payload", largest, max_payload_bytes, "max_payload_bytes")
        self._blob = blob
        size = len(view)
        self._nbytes = size + headers_bytes + GRANT_BYTES
        self._meter = meter if meter is not None else Meter()
        self.held_bytes = size + headers_memory // sharing + BATCH_BYTES + (BLOCK_BYTES if placed is not None else 0)

    def claim(self) -> None:
        """Take its block, where it has one: needed from now on."""
        if self._claim is not None:
            self._block = self._claim()
            self._claim = None

    def in_frame(self, frame_bytes: int) -> bool:
        """Whether it may stay in the frame that it came in, all of which is counted then."""
        size = len(memoryview(self._blob))
        if frame_bytes > self._nbytes + _WASTE_BYTES:
            return False
        self.held_bytes += max(0, frame_bytes - size)
        return True

    def __len__(self) -> int:
        return self._count

    def leave_frame(self) -> None:
        """Keep a copy of the payloads, and not the frame that they came in."""
        self._blob = bytes(memoryview(self._blob))

    def batch(
        self,
        topic: str,
        first: int,
        priority: MessagePriority,
        timestamp: float,
        headers: Headers,
        incarnation: str,
    ) -> EncodedBatch:
        kind = EncodedBatch if self._block is None else BlockBatch
        batch = kind(
            topic,
            first,
            self._count,
            priority,
            timestamp,
            headers,
            self._blob,
            incarnation,
            self._nbytes,
            self._meter,
            self.held_bytes,
        )
        if self._block is not None:
            assert isinstance(batch, BlockBatch)
            batch.block = self._block
        return batch


def contents(
    batches: list[msgspec.Raw],
    headers: dict[str, str],
    meter: Meter | None = None,
    max_payload_bytes: int | None = None,
    frame_bytes: int = 0,
    claims: Claims | None = None,
) -> list[EncodedPayloads]:
    """The batches of a publish, which came in a frame of so many bytes.

    A single one stays where it came, in its frame, unless that is small, or there is more in it than is counted (a
    header given again and again, fields that nobody reads). Of several each is copied, so that the last one that is not
    acked does not keep the whole frame.

    Raises:
        ProtocolViolation: one is no batch, or they are cut smaller than a client cuts them: each costs the broker a
            few hundred bytes, whatever is in it.
        PayloadTooLarge: a payload is over its bound.
        ValueError: more messages than MAX_PUBLISH.
    """
    # Each payload in a block is a batch, and may cut the one before it.
    least = 2 + 2 * sum(map(_is_placed, batches)) if len(batches) > 2 else len(batches)
    if len(batches) > least + sum(len(memoryview(blob)) for blob in batches) // payloads.BATCH_MESSAGES:
        raise ProtocolViolation(f"{len(batches)} batches for what fits in fewer")
    size, memory = headers_bytes(headers), headers_memory(headers)
    if len(batches) == 1 and frame_bytes > _SMALL_BYTES:
        single = EncodedPayloads(batches[0], size, meter, max_payload_bytes, 1, memory, claims)
        if not single.in_frame(frame_bytes):
            single.leave_frame()
        return [single]
    sharing = len(batches)
    made = [EncodedPayloads(bytes(blob), size, meter, max_payload_bytes, sharing, memory, claims) for blob in batches]
    checks.count(sum(map(len, made)), "the number of payloads", minimum=0, maximum=MAX_PUBLISH)
    return made


def one_payload(
    payload: msgspec.Raw, headers: dict[str, str], meter: Meter | None = None, max_payload_bytes: int | None = None
) -> EncodedPayloads:
    """A single payload, as Content. Raises ProtocolViolation, PayloadTooLarge."""
    view = memoryview(payload)
    if not view:
        raise ProtocolViolation("no payload")
    size, memory = headers_bytes(headers), headers_memory(headers)
    return EncodedPayloads(payloads.join([view]), size, meter, max_payload_bytes, 1, memory)


def headers_bytes(headers: dict[str, str]) -> int:
    """What headers take on the wire, at most."""
    if not headers:
        return 0
    return sum(_HEADER_BYTES + _text_bytes(key) + _text_bytes(value) for key, value in headers.items())


def headers_memory(headers: dict[str, str]) -> int:
    """What headers take in memory, about."""
    if not headers:
        return 0
    texts = sum([_text_memory(key) + _text_memory(value) for key, value in headers.items()])
    return HEADERS_BYTES + HEADER_BYTES * len(headers) + texts


def grant(lease: Lease, pin: int = 0) -> Grant:
    """A lease on the wire, while all its copies are held. pin: see Grant."""
    batch = lease.batch
    assert isinstance(batch, EncodedBatch)
    return Grant(
        lease.token,
        batch.first + lease.start,
        lease.attempt,
        lease.redelivered,
        lease.deadline,
        int(batch.priority),
        batch.timestamp,
        batch.headers,
        batch.payloads(lease.start, lease.stop),
        pin,
    )


def letter(subscription_id: str, record: DeadRecord, limit_bytes: int) -> tuple[Letter, int]:
    """A dead letter on the wire, and the bytes it takes there at most.

    Payload and error always travel; of the history as much as fits in ``limit_bytes``, the newest attempts.
    """
    batch = record.batch
    assert isinstance(batch, EncodedBatch)
    message = batch.message(record.index)
    payload: msgspec.Raw = message.payload
    texts = (subscription_id, batch.topic, message.uid, record.error, record.last_member)
    size = len(memoryview(payload)) + headers_bytes(batch.headers) + _LETTER_BYTES + sum(map(_text_bytes, texts))
    history: list[AttemptRecord] = []
    for attempt in reversed(record.history):
        size += _ATTEMPT_BYTES + _text_bytes(attempt.member) + _text_bytes(attempt.error)
        if size > limit_bytes:
            break
        history.append(
            AttemptRecord(
                attempt.number,
                attempt.member,
                attempt.started,
                attempt.ended,
                attempt.outcome.value,
                attempt.error,
            )
        )
    history.reverse()
    return (
        Letter(
            subscription_id,
            batch.topic,
            message.sequence,
            message.uid,
            int(batch.priority),
            batch.timestamp,
            batch.headers,
            payload,
            record.reason.value,
            record.error,
            record.attempts,
            record.dead_since,
            record.last_member,
            history,
        ),
        min(size, limit_bytes),
    )


def _text_memory(text: str) -> int:
    """What the characters of a text take in memory; one that is not ASCII takes up to four bytes for each, and the
    encoder leaves its UTF-8 there as well."""
    return len(text) if text.isascii() else text.__sizeof__() + len(text.encode())


def _is_placed(blob: msgspec.Raw) -> bool:
    view = memoryview(blob)
    return len(view) > _PLACED_BYTES and view[0] == _ONE and payloads.is_placed(view[1:])


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
