"""The blocks of publishers' arenas that somebody needs: the broker's knowledge of them, and of nothing in them.

A block is a range of a publisher process's segment that holds one message's payload. It is needed for as long as
something here refers to its Block: the publish that is served or waits, the batch (and with it every queue, lease and
dead letter), a pin. When the last reference goes, wherever that was, the publisher hears of it from its log; nothing
counts, and no other place tells. A segment is kept beyond its publisher's end, until its last block goes.

For the broker's side; knows no descriptor, and reads no clock.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Final

from mpbroker.errors import LimitReached, PayloadError, ProtocolViolation
from mpbroker.process.limits import Limits
from mpbroker.process.payloads import Placed, placed_bytes

PAGE_BYTES: Final = 4096

MAX_SEGMENTS: Final = 256
"""Of all publishers: each takes a descriptor of the broker."""

MOST_HEARD: Final = 4096
"""Entries of a log in one answer; the rest is for the next."""


class Segment:
    """Attributes:
    number: over all publishers, never used again.
    lender: whose it is; None: that process has ended, or wants nothing of it back.
    blocks: those that are needed, by serial.
    last: offset -> the serial last seen there; a later block at the same place has a higher one.
    """

    __slots__ = ("__weakref__", "blocks", "last", "lender", "nbytes", "number")

    def __init__(self, number: int, nbytes: int, lender: Lender) -> None:
        self.number = number
        self.nbytes = nbytes
        self.lender: Lender | None = lender
        self.blocks: dict[int, weakref.ref[Block]] = {}
        self.last: dict[int, int] = {}


class Block:
    """A block that is needed, while anything refers to this."""

    __slots__ = ("__weakref__", "_table", "nbytes", "offset", "segment", "serial")

    def __init__(self, table: Blocks, segment: Segment, serial: int, offset: int, nbytes: int) -> None:
        self._table = table
        self.segment = segment
        self.serial = serial
        self.offset = offset
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._table.gone(self)


class Lender:
    """What a publisher process has in the arena, and the log of its blocks that nobody needs any more.

    position: of the last entry of the log, from 1. The log keeps what its process has not said that it has seen.
    waiting: calls that wait for the log to grow.
    """

    __slots__ = ("log", "position", "segments", "waiting")

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self.log: deque[tuple[int, int, int]] = deque()  # segment, offset, serial
        self.position = 0
        self.waiting = 0

    @property
    def reserved(self) -> int:
        return sum([segment.nbytes for segment in self.segments.values()])

    @property
    def used(self) -> int:
        blocks = [ref() for segment in self.segments.values() for ref in segment.blocks.values()]
        return sum([block.nbytes for block in blocks if block is not None])

    def tell(self, segment: int, offset: int, serial: int) -> None:
        """A block is free."""
        self.log.append((segment, offset, serial))
        self.position += 1

    def after(self, seen: int) -> tuple[int, list[int]]:
        """The log after the entry that its process has seen, as (position of the last, flat triples).

        Raises ProtocolViolation when it cannot have seen that.
        """
        first = self.position - len(self.log)
        if not 0 <= seen <= self.position:
            raise ProtocolViolation(f"it has seen {seen} entries of a log of {self.position}")
        for _ in range(seen - first):
            self.log.popleft()
        first = self.position - len(self.log)
        entries = [self.log[at] for at in range(min(len(self.log), MOST_HEARD))]
        return first + len(entries), [number for entry in entries for number in entry]


class Blocks:
    """All of them.

    Attributes:
        count, used: blocks that are needed, and their bytes. reserved: bytes of the segments.
        over: segments that nobody needs any more, to be closed.
        woken: lenders whose log grew while somebody waits for that.
        has_room: a segment went, so that others may make one.
    """

    __slots__ = ("_limits", "_next_number", "count", "has_room", "over", "reserved", "segments", "used", "woken")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._next_number = 1
        self.segments: dict[int, Segment] = {}
        self.count = 0
        self.used = 0
        self.reserved = 0
        self.over: list[int] = []
        self.woken: list[Lender] = []
        self.has_room = False

    # -- segments -----------------------------------------------------------------------------------------------------

    def offer(self, lender: Lender, nbytes: int) -> Segment:
        """One more segment of a publisher.

        Raises:
            ProtocolViolation: there is no arena, or no segment has that size.
            LimitReached: it would be too much, of one process or of all.
        """
        limits = self._limits
        if not limits.has_arena:
            raise ProtocolViolation("a segment for an arena that is not there")
        if nbytes <= 0 or nbytes % PAGE_BYTES:
            raise ProtocolViolation(f"a segment of {nbytes} bytes")
        if lender.reserved + nbytes > limits.max_client_arena_bytes:
            raise LimitReached("bytes of one process's arena", limits.max_client_arena_bytes, "max_client_arena_bytes")
        if self.reserved + nbytes > limits.max_arena_bytes:
            raise LimitReached("bytes of all arenas", limits.max_arena_bytes, "max_arena_bytes")
        if len(self.segments) >= MAX_SEGMENTS:
            raise LimitReached("segments of all arenas", MAX_SEGMENTS, "")
        segment = Segment(self._next_number, nbytes, lender)
        self._next_number += 1
        self.segments[segment.number] = lender.segments[segment.number] = segment
        self.reserved += nbytes
        return segment

    def drop(self, lender: Lender, number: int) -> None:
        """Its publisher lends nothing of a segment any more. Raises ProtocolViolation: it is not its own."""
        segment = lender.segments.pop(number, None)
        if segment is None:
            raise ProtocolViolation(f"a segment {number} that is not its own")
        self._leave(segment)

    def end(self, lender: Lender) -> None:
        """Its process is gone."""
        segments, lender.segments = lender.segments, {}
        for segment in segments.values():
            self._leave(segment)
        lender.log.clear()

    def _leave(self, segment: Segment) -> None:
        segment.lender = None
        if not segment.blocks:
            self._close(segment)

    def _close(self, segment: Segment) -> None:
        del self.segments[segment.number]
        self.reserved -= segment.nbytes
        self.over.append(segment.number)
        self.has_room = True

    # -- blocks -------------------------------------------------------------------------------------------------------

    def claim(self, lender: Lender | None, placed: Placed) -> Block:
        """The block that a publish names, needed from now on.

        Raises:
            ProtocolViolation: it is not in a segment of its publisher's, or is needed already.
            PayloadError: its place was given to a later one, or its publisher has taken it back.
        """
        segment = None if lender is None else lender.segments.get(placed.segment)
        if segment is None:
            raise ProtocolViolation(f"a block in segment {placed.segment}, which is not its own")
        nbytes = placed_bytes(placed)
        offset = placed.offset
        if offset < 0 or offset % PAGE_BYTES or offset + nbytes > segment.nbytes or placed.serial <= 0:
            raise ProtocolViolation(f"a block at {offset} of {nbytes} bytes in a segment of {segment.nbytes}")
        if placed.serial in segment.blocks:
            raise ProtocolViolation(f"block {placed.serial} is published already")
        if placed.serial <= segment.last.get(offset, 0):
            raise PayloadError("the payload", "its block of the arena is not its own any more")
        block = Block(self, segment, placed.serial, offset, nbytes)
        segment.last[offset] = placed.serial
        segment.blocks[placed.serial] = weakref.ref(block)
        self.count += 1
        self.used += nbytes
        return block

    def find(self, segment: int, serial: int) -> Block | None:
        """A block that is needed."""
        found = self.segments.get(segment)
        reference = None if found is None else found.blocks.get(serial)
        return None if reference is None else reference()

    def doubt(self, lender: Lender, doubtful: list[int]) -> None:
        """Its publisher does not know what became of these blocks, as flat triples.

        Those that no publish ever brought are free, which goes into the log as any other, and void: a publish that
        still names one is refused. Of all others the log tells, or has told.

        Raises ProtocolViolation when it asks for what is not its own.
        """
        for at in range(0, len(doubtful) - len(doubtful) % 3, 3):
            number, offset, serial = doubtful[at : at + 3]
            segment = lender.segments.get(number)
            if segment is None or not 0 <= offset < segment.nbytes or offset % PAGE_BYTES or serial <= 0:
                raise ProtocolViolation(f"a block at {offset} of segment {number}, which is not its own")
            if segment.last.get(offset, 0) < serial:
                segment.last[offset] = serial
                lender.tell(number, offset, serial)

    def gone(self, block: Block) -> None:
        """For Block: nobody needs it any more."""
        segment = block.segment
        del segment.blocks[block.serial]
        self.count -= 1
        self.used -= block.nbytes
        lender = segment.lender
        if lender is not None:
            lender.tell(segment.number, block.offset, block.serial)
            if lender.waiting:
                self.woken.append(lender)
        elif not segment.blocks:
            self._close(segment)
