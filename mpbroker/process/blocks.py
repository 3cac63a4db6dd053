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
from collections.abc import Callable
from functools import partial
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
        # Noted, and no more: a defect in a finalizer would end nothing, and be told to nobody.
        self._table.noted.append((self.segment, self.serial, self.offset, self.nbytes))


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
        """The log after the entry that its process has seen, as (position of the last, flat triples)."""
        first = self.position - len(self.log)
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
        noted: blocks that nobody needs any more, for `sweep`: segment, serial, offset, bytes.
    """

    __slots__ = (
        "_limits",
        "_next_number",
        "count",
        "has_room",
        "noted",
        "over",
        "reserved",
        "segments",
        "used",
        "woken",
    )

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
        self.noted: deque[tuple[Segment, int, int, int]] = deque()

    # -- segments -----------------------------------------------------------------------------------------------------

    def check_size(self, nbytes: int) -> None:
        """Raise ProtocolViolation when there is no arena, or no segment has that size."""
        if not self._limits.has_arena:
            raise ProtocolViolation("a segment for an arena that is not there")
        if nbytes <= 0 or nbytes % PAGE_BYTES:
            raise ProtocolViolation(f"a segment of {nbytes} bytes")

    def check_room(self, lender: Lender, nbytes: int) -> None:
        """Raise LimitReached when a segment of that size would be too much, of one process or of all."""
        limits = self._limits
        if lender.reserved + nbytes > limits.max_client_arena_bytes:
            raise LimitReached("bytes of one process's arena", limits.max_client_arena_bytes, "max_client_arena_bytes")
        if self.reserved + nbytes > limits.max_arena_bytes:
            raise LimitReached("bytes of all arenas", limits.max_arena_bytes, "max_arena_bytes")
        if len(self.segments) >= MAX_SEGMENTS:
            raise LimitReached("segments of all arenas", MAX_SEGMENTS, "")

    def offer(self, lender: Lender, nbytes: int) -> Segment:
        """One more segment of a publisher; there is room for it."""
        segment = Segment(self._next_number, nbytes, lender)
        self._next_number += 1
        self.segments[segment.number] = lender.segments[segment.number] = segment
        self.reserved += nbytes
        return segment

    def check_own(self, lender: Lender, number: int) -> None:
        """Raise ProtocolViolation when a segment is not its own."""
        if number not in lender.segments:
            raise ProtocolViolation(f"a segment {number} that is not its own")

    def drop(self, lender: Lender, number: int) -> None:
        """Its publisher lends nothing of a segment any more."""
        self._leave(lender.segments.pop(number))

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

    def claim(self, segment: Segment, placed: Placed, nbytes: int) -> Block:
        """The block that a publish names, checked by Claims: needed from now on."""
        block = Block(self, segment, placed.serial, placed.offset, nbytes)
        segment.last[placed.offset] = placed.serial
        segment.blocks[placed.serial] = weakref.ref(block)
        self.count += 1
        self.used += nbytes
        return block

    def find(self, segment: int, serial: int) -> Block | None:
        """A block that is needed."""
        found = self.segments.get(segment)
        reference = None if found is None else found.blocks.get(serial)
        return None if reference is None else reference()

    def check_doubts(self, lender: Lender, seen: int, doubtful: list[int]) -> None:
        """Raise ProtocolViolation when a publisher asks for what is not its own, or has not seen what it says."""
        if not 0 <= seen <= lender.position:
            raise ProtocolViolation(f"it has seen {seen} entries of a log of {lender.position}")
        if len(doubtful) % 3:
            raise ProtocolViolation("a block without its serial")
        for number, offset, serial in zip(doubtful[::3], doubtful[1::3], doubtful[2::3], strict=True):
            segment = lender.segments.get(number)
            if segment is None or not 0 <= offset < segment.nbytes or offset % PAGE_BYTES or serial <= 0:
                raise ProtocolViolation(f"a block at {offset} of segment {number}, which is not its own")
        unseen = min(len(lender.log), lender.position - seen)
        if doubtful and unseen + len(doubtful) // 3 > self._most_logged:
            raise ProtocolViolation(f"it does not say that it has seen {unseen} entries of its log")

    def doubt(self, lender: Lender, doubtful: list[int]) -> None:
        """Its publisher does not know what became of these blocks, as flat triples; checked.

        Those that no publish ever brought are free, which goes into the log as any other, and void: a publish that
        still names one is refused. Of all others the log tells, or has told.
        """
        for number, offset, serial in zip(doubtful[::3], doubtful[1::3], doubtful[2::3], strict=True):
            segment = lender.segments[number]
            if segment.last.get(offset, 0) < serial:
                segment.last[offset] = serial
                self._tell(lender, number, offset, serial)

    def sweep(self) -> None:
        """Tell of the blocks that nobody needs any more."""
        while self.noted:
            segment, serial, offset, nbytes = self.noted.popleft()
            del segment.blocks[serial]
            self.count -= 1
            self.used -= nbytes
            lender = segment.lender
            if lender is not None:
                self._tell(lender, segment.number, offset, serial)
            elif not segment.blocks:
                self._close(segment)

    def _tell(self, lender: Lender, segment: int, offset: int, serial: int) -> None:
        lender.tell(segment, offset, serial)
        if lender.waiting:
            self.woken.append(lender)

    @property
    def _most_logged(self) -> int:
        """Entries of a log that its process has not seen: each place of its segments, twice."""
        return 2 * self._limits.max_client_arena_bytes // PAGE_BYTES


class Claims:
    """The blocks that one publish names: all are checked before the first is taken."""

    __slots__ = ("_lender", "_named", "_table")

    def __init__(self, table: Blocks, lender: Lender) -> None:
        self._table = table
        self._lender = lender
        self._named: set[tuple[int, int]] = set()

    def check(self, placed: Placed) -> Callable[[], Block]:
        """What takes a block that a payload names.

        Raises:
            ProtocolViolation: it is not in a segment of its publisher's, or is needed already.
            PayloadError: its place was given to a later one, or its publisher has taken it back.
        """
        segment = self._lender.segments.get(placed.segment)
        if segment is None:
            raise ProtocolViolation(f"a block in segment {placed.segment}, which is not its own")
        nbytes, offset = placed_bytes(placed), placed.offset
        if offset < 0 or offset % PAGE_BYTES or offset + nbytes > segment.nbytes or placed.serial <= 0:
            raise ProtocolViolation(f"a block at {offset} of {nbytes} bytes in a segment of {segment.nbytes}")
        if placed.serial in segment.blocks or (placed.segment, placed.serial) in self._named:
            raise ProtocolViolation(f"block {placed.serial} is published already")
        if placed.serial <= segment.last.get(offset, 0):
            raise PayloadError("the payload", "its block of the arena is not its own any more")
        self._named.add((placed.segment, placed.serial))
        return partial(self._table.claim, segment, placed, nbytes)
