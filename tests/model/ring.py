"""The protocol of the ring plane as steps of a machine: hand-over, sleep and wake, close and death.

Owns what is common to both ends of a pair of rings; `ring_sides` makes a client and a broker of it. Knows nothing
of the product's code: it says what that code must do, and `Defect` what it must not.

A pair is two byte rings, requests and replies. Bytes are units; the unit at a position of a stream has the position
plus one as its value, so a reader sees at once whether it read what was written there. A frame is so many units, and
passes in pieces if the ring has fewer.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from tests.model.machine import Act, Frozen, Order
from tests.model.search import Wrong


class Defect(enum.Enum):
    """What can be planted: one deviation from the protocol each."""

    NO_FENCE_BEFORE_SECOND_LOOK = enum.auto()
    NO_FENCE_BEFORE_LOOK_AT_BELL = enum.auto()
    FLAG_AFTER_SECOND_LOOK = enum.auto()
    BELL_BEFORE_TAIL = enum.auto()
    TAIL_BEFORE_DATA = enum.auto()
    HEAD_BEFORE_READING = enum.auto()
    NO_SECOND_LOOK = enum.auto()
    BELL_TAKEN_AFTER_SECOND_LOOK = enum.auto()
    SLEEPS_ON_AFTER_EMPTY_WAKE = enum.auto()
    SECOND_LOOK_AT_CACHED_HEAD = enum.auto()
    WRITES_WITHOUT_ROOM = enum.auto()
    NO_LAST_LOOK = enum.auto()
    PART_HANDED_OVER = enum.auto()
    NEVER_ASKS_FOR_ROOM = enum.auto()
    WAITS_FOR_ROOM_ONLY = enum.auto()
    NEVER_TELLS_OF_ROOM = enum.auto()
    BROKEN_BELL_IS_THE_END = enum.auto()
    FORGETS_THE_REST = enum.auto()
    BLOCKS_WITH_ONE_ACTIVE = enum.auto()
    CHILD_HOLDS_SOCKET = enum.auto()
    # Of the weak order alone:
    NO_FENCE_BEFORE_TAIL = enum.auto()
    NO_FENCE_AFTER_TAIL = enum.auto()
    NO_FENCE_BEFORE_HEAD = enum.auto()


@dataclass(frozen=True, slots=True)
class Bounds:
    """One model: how many clients there are, the ring, the frames, and what may happen."""

    requests: tuple[int, ...]
    """The units of each frame that a client sends."""
    replies: tuple[int, ...] = ()
    """The units of each frame that answers, one a request; none at all if empty."""
    capacity: int = 2
    clients: int = 1
    silent: int = 0
    """So many of them are there, and do nothing."""
    order: Order = Order.TSO
    in_step: bool = False
    """A client sends a request only when the one before is answered."""
    reads_on: bool = True
    """The broker reads from a client that has not room for its replies; else that has to wait."""
    deaths: bool = True
    empties_first: bool = False
    """A client reads its socket empty before it sets its flags; else only when it has slept."""
    early_wakes: int = 0
    """So often a client's sleep ends without a bell: a time-out, a signal."""
    ends_pass_bells: bool = False
    """The end of a process is seen before the bytes it sent: it is a pidfd that tells, not the socket."""
    room_for_bells: int = 8
    most_bells: int = 8
    defects: frozenset[Defect] = frozenset()
    planted_in: tuple[str, ...] = ("client", "broker")


class Mode(enum.IntEnum):
    """How a process stands to one pair of rings."""

    ACTIVE = 0
    ARMING = 1
    ARMED = 2
    RUNG = 3
    CLOSED = 4


@dataclass(slots=True)
class End:
    """What one process keeps of one pair: its own indices, what it last saw of the other's, the flags it set itself."""

    mode: int = Mode.ACTIVE
    read: int = 0
    """Head of the ring that is read here."""
    tail: int = 0
    """What was seen of that ring's tail."""
    written: int = 0
    """Tail of the ring that is written here."""
    head: int = 0
    """What was seen of that ring's head."""
    filled: int = 0
    """Up to where data was stored, beyond `written`."""
    asleep: int = 0
    waits_for_room: int = 0
    moved: int = 0
    """Something was read or written in this turn."""
    sure: int = 0
    """Up to where reads are known to have happened before what was stored later. Only the weak order lets it lag."""
    handed: int = 0
    """Frames handed over."""
    woken_early: int = 0


_end_fields = attrgetter(*(each.name for each in fields(End)))


@dataclass(slots=True)
class Actor:
    """One process: where it is in its program, which pair it is busy with, and its end of each."""

    at: str
    now: int
    ends: list[End]

    def frozen(self) -> Frozen:
        return (self.at, self.now, *map(_end_fields, self.ends))

    @classmethod
    def thawed(cls, frozen: Frozen) -> Actor:
        at, now, *ends = frozen
        return cls(at, now, [End(*end) for end in ends])  # type: ignore[arg-type, misc]


class Words(NamedTuple):
    """What one end of a pair has in shared memory, for the other to read."""

    data: tuple[int, ...]
    tail: int
    head: int
    asleep: int
    waits_for_room: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One pair of rings as one of its ends sees it: its own words, the other's, and who and which socket that is."""

    me: int
    peer: int
    mine: Words
    theirs: Words
    bell_in: int
    bell_out: int


BLOCKED = "(blocked)"


class Side:
    """The steps that are the same at both ends. A step does what can be noticed first, and returns where to go on; a
    step of ``quiet`` does nothing that can be noticed, and belongs to the one before it."""

    quiet = frozenset({
        "write_piece", "store_tail", "found", "read_done", "written", "no_room", "nothing_new",
        "second_look_found", "second_look_nothing", "look_at_head_too",
    })  # fmt: skip

    name = "side"

    def __init__(self, bounds: Bounds, lanes: list[Lane]) -> None:
        self.bounds = bounds
        self.lanes = lanes
        self.defects = bounds.defects if self.name in bounds.planted_in else frozenset()
        self.weak = bounds.order is Order.WEAK
        self.incoming = bounds.requests
        """The frames that are read here."""

    # What a side decides for itself.

    def may_write(self, end: End) -> int:
        """Up to which position there is something to write."""
        raise NotImplementedError

    def wants_more(self, end: End) -> bool:
        """Something is read here, now, if it comes."""
        raise NotImplementedError

    # Writing.

    def has_room(self, end: End) -> bool:
        if Defect.WRITES_WITHOUT_ROOM in self.defects:
            return True
        return end.written - end.head < self.bounds.capacity

    def look_for_room(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        end.head = act.load(lane.theirs.head, lane.peer)
        return "write_piece" if self.has_room(end) else "no_room"

    def write_piece(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        room = self.bounds.capacity - (end.written - end.head)
        if Defect.WRITES_WITHOUT_ROOM in self.defects:
            room = max(room, 1)
        end.filled = min(self.may_write(end), end.written + room)
        if Defect.TAIL_BEFORE_DATA in self.defects:
            act.store(lane.mine.tail, end.filled)
        if Defect.BELL_BEFORE_TAIL in self.defects:
            self._fill(end, lane, act)
            return "look_at_bell"
        self._fill(end, lane, act)
        if self.weak and Defect.NO_FENCE_BEFORE_TAIL not in self.defects:
            return "fence_before_tail"
        return "store_tail"

    def _fill(self, end: End, lane: Lane, act: Act) -> None:
        for position in range(end.written, end.filled):
            act.store(lane.mine.data[position % self.bounds.capacity], position + 1)

    def fence_before_tail(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.fence(end, lane, act)
        return "store_tail"

    def store_tail(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        end.written = end.filled
        end.filled = 0
        end.moved = 1
        if Defect.TAIL_BEFORE_DATA not in self.defects:
            act.store(lane.mine.tail, end.written)
        if Defect.BELL_BEFORE_TAIL in self.defects:
            return "written"
        return "look_at_bell" if Defect.NO_FENCE_BEFORE_LOOK_AT_BELL in self.defects else "fence_after_tail"

    def fence_after_tail(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.fence(end, lane, act)
        return "look_at_bell"

    def look_at_bell(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        if act.load(lane.theirs.asleep, lane.peer):
            return "ring_for_data"
        return "store_tail" if end.filled else "written"

    def ring_for_data(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        if not act.ring(lane.bell_out, lane.peer) and Defect.BROKEN_BELL_IS_THE_END in self.defects:
            return self.part(end, act)
        return "store_tail" if end.filled else "written"

    # Reading.

    def look_for_more(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        end.tail = act.load(lane.theirs.tail, lane.peer)
        if end.tail == end.read:
            end.tail = 0
            return "nothing_new"
        if self.weak and Defect.NO_FENCE_AFTER_TAIL not in self.defects:
            return "fence_after_their_tail"
        return "found"

    def fence_after_their_tail(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.fence(end, lane, act)
        return "found"

    def found(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        """The earliest moment at which the data can be read; the latest is just before the head is stored."""
        if Defect.HEAD_BEFORE_READING in self.defects:
            act.store(lane.mine.head, end.tail)
            return "read_late"
        self.read_units(end.read, end.tail, lane, act)
        if self.weak and Defect.NO_FENCE_BEFORE_HEAD not in self.defects:
            return "fence_before_head"
        return "store_head"

    def fence_before_head(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.read_units(end.read, end.tail, lane, act)
        self.fence(end, lane, act)
        end.sure = end.tail
        return "store_head"

    def read_late(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.read_units(end.read, end.tail, lane, act)
        return self._advance(end)

    def store_head(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.read_units(end.read, end.tail, lane, act)
        act.store(lane.mine.head, end.tail)
        return self._advance(end)

    def _advance(self, end: End) -> str:
        end.read, end.tail = end.tail, 0
        if not self.weak:
            end.sure = end.read
        end.moved = 1
        end.handed = whole(self.incoming, end.read)
        return "fence_after_head"

    def fence_after_head(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.fence(end, lane, act)
        return "read_done" if Defect.NEVER_TELLS_OF_ROOM in self.defects else "look_who_waits_for_room"

    def look_who_waits_for_room(self, _actor: Actor, _end: End, lane: Lane, act: Act) -> str:
        return "ring_for_room" if act.load(lane.theirs.waits_for_room, lane.peer) else "read_done"

    def ring_for_room(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        if not act.ring(lane.bell_out, lane.peer) and Defect.BROKEN_BELL_IS_THE_END in self.defects:
            return self.part(end, act)
        return "read_done"

    def read_units(self, start: int, stop: int, lane: Lane, act: Act) -> None:
        """No branch for what may be read: every value that may be seen must be the one that was written there."""
        for position in range(start, stop):
            seen = act.may_see(lane.theirs.data[position % self.bounds.capacity], lane.peer)
            wrong = [value for value in seen if value != position + 1]
            if wrong:
                raise act.fail(Wrong.TORN, f"may read unit {wrong[0]} where unit {position + 1} belongs")

    def fence(self, end: End, lane: Lane, act: Act) -> None:
        self.settle(end, lane, act)
        act.fence()

    def settle(self, end: End, lane: Lane, act: Act) -> None:
        """Reads that no fence has kept before later stores may have happened as late as now."""
        if end.sure < end.read:
            self.read_units(max(end.sure, end.read - self.bounds.capacity), end.read, lane, act)
            end.sure = end.read

    # Going to sleep and waking.

    def set_flags(self, end: End, lane: Lane, act: Act) -> None:
        wants_room = end.written < self.may_write(end)
        if wants_room and Defect.NEVER_ASKS_FOR_ROOM not in self.defects:
            end.waits_for_room = 1
            act.store(lane.mine.waits_for_room, 1)
        if self.wants_more(end) and not (wants_room and Defect.WAITS_FOR_ROOM_ONLY in self.defects):
            end.asleep = 1
            act.store(lane.mine.asleep, 1)

    def clear_flags(self, end: End, lane: Lane, act: Act) -> None:
        if end.asleep:
            end.asleep = 0
            act.store(lane.mine.asleep, 0)
        if end.waits_for_room:
            end.waits_for_room = 0
            act.store(lane.mine.waits_for_room, 0)

    def second_look_at_tail(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        if act.load(lane.theirs.tail, lane.peer) > end.read:
            return "second_look_found"
        return "look_at_head_too"

    def look_at_head_too(self, _actor: Actor, end: End, _lane: Lane, _act: Act) -> str:
        if end.written < self.may_write(end) and Defect.SECOND_LOOK_AT_CACHED_HEAD not in self.defects:
            return "second_look_at_head"
        return "second_look_nothing"

    def second_look_at_head(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        end.head = act.load(lane.theirs.head, lane.peer)
        return "second_look_found" if self.has_room(end) else "second_look_nothing"

    # The end of the other side.

    def last_look(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        """What was complete before the socket ended is read; a part of a frame goes with its writer."""
        if Defect.NO_LAST_LOOK not in self.defects:
            tail = act.load(lane.theirs.tail, lane.peer)
            self.read_units(end.read, tail, lane, act)
            end.read = end.sure = tail
        act.say("the other is gone")
        return self.part(end, act)

    def part(self, end: End, act: Act) -> str:
        end.handed = whole(self.incoming, end.read)
        if Defect.PART_HANDED_OVER in self.defects and end.read > sum(self.incoming[: end.handed]):
            end.handed += 1
        if end.handed > whole(self.incoming, end.read):
            raise act.fail(Wrong.UNFINISHED, f"frame {end.handed} was handed over, of which only a part was there")
        end.mode = Mode.CLOSED
        end.head = end.tail = end.filled = end.asleep = end.waits_for_room = end.moved = 0
        return "parted"


def whole(frames: tuple[int, ...], position: int) -> int:
    """How many frames are complete at that position of their stream."""
    return sum(1 for stop in accumulate(frames) if stop <= position)
