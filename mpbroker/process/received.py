"""Messages that came from a broker process: payloads still encoded, or in a block that is pinned while it is needed.

Owns when which payload is decoded, and what it is made over: a mapping of its publisher's memory, or a copy of that.
Client side.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mpbroker.errors import PayloadError, ProtocolViolation
from mpbroker.messages import Headers, Message
from mpbroker.process import frames, payloads
from mpbroker.process.channel import Ended
from mpbroker.process.connection import ClientProcess
from mpbroker.process.frames import Chunk, Grant, ReadBlock, Reply
from mpbroker.process.holding import Holding
from mpbroker.process.payloads import Placed
from mpbroker.shm.view import Pin

_CHUNK_BYTES: Final = 1 << 20
"""Of a block in one answer, where it is copied: the broker serves others between two of them."""


def received(client: ClientProcess, topic: str, number: int, grant: Grant, *, copy: bool) -> ReceivedBatch:
    """What was handed over of the subscription of that number.

    Raises what opening a lane raises, where it is the first that is pinned; and Ended.
    """
    if not grant.pin:
        return ReceivedBatch(topic, client.incarnation, grant)
    session = client.session
    if session is None:
        raise Ended(None)
    (value,) = payloads.decode_payloads(memoryview(grant.payloads))
    placed = payloads.placed_in(value)
    if placed is None:
        raise ProtocolViolation("a pin without a block")
    block = _Block(client, session.holding, placed, session.holding.pin(number, grant.token, grant.pin))
    if copy:
        block.copy()
    return ReceivedBatch(topic, client.incarnation, grant, block)


def copied(client: ClientProcess, placed: Placed) -> memoryview:
    """The bytes of a block, of one's own. Raises PayloadError: nothing holds its message any more."""
    nbytes = payloads.placed_bytes(placed)
    content = memoryview(bytearray(nbytes))
    at = 0
    while at < nbytes:
        size = min(_CHUNK_BYTES, nbytes - at)
        chunk = client.exchange(ReadBlock(placed.segment, placed.serial, at, size), _as_it_is)
        if not isinstance(chunk, Chunk) or len(chunk.content) != size:
            raise ProtocolViolation(f"ReadBlock was answered with {type(chunk).__name__}")
        content[at : at + size] = chunk.content
        at += size
    return content


def _as_it_is(reply: Reply) -> Reply:
    return reply


class _Block:
    """Where the payload of a message is."""

    __slots__ = ("_client", "_content", "_holding", "_pin", "_placed")

    def __init__(self, client: ClientProcess, holding: Holding, placed: Placed, pin: Pin) -> None:
        self._client = client
        self._holding = holding
        self._placed = placed
        self._pin: Pin | None = pin
        self._content: memoryview | None = None

    def copy(self) -> None:
        """Have the bytes here, and look at nothing of another process's."""
        view = self._look()
        self._content = copied(self._client, self._placed) if view is None else memoryview(bytearray(view))
        self._pin = None

    def open(self) -> Any:
        """The payload; in memory that nobody writes, unless it was copied on purpose."""
        content = self._content
        if content is None:
            content = self._look()
            if content is None:
                content = copied(self._client, self._placed).toreadonly()
        return payloads.open_placed(self._placed, content)

    def _look(self) -> memoryview | None:
        """The block where it is; None: it cannot be mapped here."""
        placed, pin = self._placed, self._pin
        assert pin is not None
        return self._holding.look(placed.segment, placed.offset, payloads.placed_bytes(placed), pin)


class ReceivedBatch:
    """Messages that came together, their payloads still encoded; a Delivery asks for one at a time."""

    __slots__ = (
        "_block",
        "_encoded",
        "_incarnation",
        "_timestamp",
        "_topic",
        "_values",
        "first",
        "headers",
        "priority",
    )

    def __init__(self, topic: str, incarnation: str, grant: Grant, block: _Block | None = None) -> None:
        self._topic = topic
        self._incarnation = incarnation
        self.first = grant.first
        self.priority = frames.priority_of(grant.priority)
        self._timestamp = grant.timestamp
        self.headers = Headers(grant.headers)
        self._encoded: msgspec.Raw | bytes = grant.payloads
        self._values: list[Any] | None = None
        self._block = block

    def message(self, index: int) -> Message:
        """Raises PayloadError when the payload of this one cannot be decoded here."""
        sequence = self.first + index
        return Message(
            self._topic,
            self._payload(index),
            self.priority,
            self.headers,
            f"m{sequence}",
            self._timestamp,
            sequence,
            f"{self._incarnation}-{sequence}",
        )

    def _payload(self, index: int) -> Any:
        if self._block is not None:
            return self._block.open()
        # Looked at before the values: threads share a batch, and another one may be done with the bytes in between.
        encoded = self._encoded
        values = self._values
        if values is None:
            try:
                values = self._values = payloads.decode_payloads(memoryview(encoded))
            except frames.MALFORMED:
                return _payload_alone(encoded, index)
            self._encoded = b""
        return payloads.open_payload(values[index])


def _payload_alone(encoded: msgspec.Raw | bytes, index: int) -> Any:
    """When a neighbour's payload is broken."""
    try:
        part = payloads.split(memoryview(encoded))[index]
        (value,) = payloads.decode_payloads(payloads.join([part]))
    except frames.MALFORMED as error:
        raise PayloadError("the payload is malformed", str(error)) from error
    return payloads.open_payload(value)
