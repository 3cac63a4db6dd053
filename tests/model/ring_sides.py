"""Two programs over the ring protocol: a client that writes, reads and waits for both at once; a broker of many rings.

Owns when each side looks, sleeps and ends. Only `ring_model` imports it.
"""

from __future__ import annotations

from tests.model.machine import Act, Taken
from tests.model.ring import BLOCKED, Actor, Bounds, Defect, End, Lane, Mode, Side, whole


class Client(Side):
    """Writes its frames, reads every answer, closes. With nothing to do it blocks for room and for answers together."""

    name = "client"
    quiet = Side.quiet | {"begin", "arm"}

    def __init__(self, bounds: Bounds, lanes: list[Lane]) -> None:
        super().__init__(bounds, lanes)
        self.incoming = bounds.replies

    def may_write(self, end: End) -> int:
        """To the end of the frame under way: a client hands frames over one by one."""
        frames = whole(self.bounds.requests, end.written)
        if frames == len(self.bounds.requests) or (self.bounds.in_step and end.handed < frames):
            return end.written
        return sum(self.bounds.requests[: frames + 1])

    def wants_more(self, end: End) -> bool:
        return end.read < sum(self.bounds.replies)

    def begin(self, _actor: Actor, end: End, _lane: Lane, _act: Act) -> str:
        if end.written < self.may_write(end):
            return "write_piece" if self.has_room(end) else "look_for_room"
        if self.wants_more(end):
            return "look_for_more"
        return "close"

    def written(self, *_: object) -> str:
        return "begin"

    def read_done(self, *_: object) -> str:
        return "begin"

    def no_room(self, _actor: Actor, end: End, _lane: Lane, _act: Act) -> str:
        if self.wants_more(end) and Defect.WAITS_FOR_ROOM_ONLY not in self.defects:
            return "look_for_more"
        return self.nothing_new()

    def nothing_new(self, *_: object) -> str:
        return "empty_before_arming" if self.bounds.empties_first else "arm"

    def empty_before_arming(self, _actor: Actor, _end: End, lane: Lane, act: Act) -> str:
        return "last_look" if act.take(lane.bell_in, lane.peer) is Taken.END else "arm"

    def arm(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        end.moved = 0
        if Defect.FLAG_AFTER_SECOND_LOOK in self.defects:
            return self._second_look(end)
        self.set_flags(end, lane, act)
        if Defect.NO_SECOND_LOOK in self.defects:
            return "asleep"
        return self._second_look(end) if Defect.NO_FENCE_BEFORE_SECOND_LOOK in self.defects else "fence_after_flags"

    def fence_after_flags(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.fence(end, lane, act)
        return self._second_look(end)

    def _second_look(self, end: End) -> str:
        reads = end.asleep or (self.wants_more(end) and Defect.WAITS_FOR_ROOM_ONLY not in self.defects)
        return "second_look_at_tail" if reads else "look_at_head_too"

    def second_look_found(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.clear_flags(end, lane, act)
        return "begin"

    def second_look_nothing(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        if Defect.FLAG_AFTER_SECOND_LOOK in self.defects:
            self.set_flags(end, lane, act)
            return "fence_then_sleep"
        return "empty_socket" if Defect.BELL_TAKEN_AFTER_SECOND_LOOK in self.defects else "asleep"

    def fence_then_sleep(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.fence(end, lane, act)
        return "asleep"

    def empty_socket(self, _actor: Actor, _end: End, lane: Lane, act: Act) -> str:
        return "last_look" if act.take(lane.bell_in, lane.peer) is Taken.END else "asleep"

    def asleep(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        if not act.readable(lane.bell_in, lane.peer):
            if end.woken_early == self.bounds.early_wakes:
                return BLOCKED
            end.woken_early += 1
            act.say("wakes without a bell")
            self.clear_flags(end, lane, act)
            return "begin"
        act.say("wakes")
        self.clear_flags(end, lane, act)
        return "take_bell"

    def take_bell(self, _actor: Actor, _end: End, lane: Lane, act: Act) -> str:
        if act.take(lane.bell_in, lane.peer) is Taken.END:
            return "last_look"
        return "look_after_wake" if Defect.SLEEPS_ON_AFTER_EMPTY_WAKE in self.defects else "begin"

    def look_after_wake(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        """Part of a defect: woken for nothing, it goes on to sleep with its flags cleared."""
        if end.written < self.may_write(end) and self.has_room(end):
            return "begin"
        return "begin" if act.load(lane.theirs.tail, lane.peer) > end.read else "asleep"

    def parted(self, *_: object) -> str:
        return "gone"

    def close(self, actor: Actor, _end: End, _lane: Lane, act: Act) -> str:
        act.close()
        return "ended"


class Broker(Side):
    """Serves what is active, arms what is not, and blocks when all is armed. It never waits for one client's room: what
    does not fit stays with it, as the difference between what it may write and what it has written."""

    name = "broker"
    quiet = Side.quiet | {"turn", "next_rung", "next_active", "reply", "arm", "next_second_look", "parted"}

    def may_write(self, end: End) -> int:
        owed = sum(self.bounds.replies[: end.handed])
        return min(owed, self.bounds.capacity) if Defect.FORGETS_THE_REST in self.defects else owed

    def wants_more(self, end: End) -> bool:
        return self.bounds.reads_on or end.written == self.may_write(end)

    # A turn: bells, then what is active, then what goes to sleep.

    def turn(self, actor: Actor, *_: object) -> str:
        actor.now = 0
        for end in actor.ends:
            end.moved = 0
        return "ended" if all(end.mode == Mode.CLOSED for end in actor.ends) else "select"

    def select(self, actor: Actor, _end: End, _lane: Lane, act: Act) -> str:
        pairs = [(end, lane) for end, lane in zip(actor.ends, self.lanes, strict=True) if end.mode != Mode.CLOSED]
        rung = [(end, lane) for end, lane in pairs if act.readable(lane.bell_in, lane.peer)]
        enough = any if Defect.BLOCKS_WITH_ONE_ACTIVE in self.defects else all
        if not rung and enough(end.mode == Mode.ARMED for end, _ in pairs):
            return BLOCKED
        act.say(f"selects: {len(rung)} readable")
        for end, lane in rung:
            end.mode = Mode.RUNG
            self.clear_flags(end, lane, act)
        return "next_rung"

    def next_rung(self, actor: Actor, *_: object) -> str:
        return self._next(actor, Mode.RUNG, "take_bell", "next_active")

    def take_bell(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        if act.take(lane.bell_in, lane.peer) is Taken.END:
            return "last_look"
        end.mode = Mode.ACTIVE
        if Defect.SLEEPS_ON_AFTER_EMPTY_WAKE in self.defects:
            return "look_after_wake"
        return "next_rung"

    def look_after_wake(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        """Part of a defect: woken for nothing, the ring counts as armed with its flags cleared."""
        if end.written == self.may_write(end) and act.load(lane.theirs.tail, lane.peer) == end.read:
            end.mode = Mode.ARMED
        return "next_rung"

    def parted(self, *_: object) -> str:
        return "next_rung"

    def next_active(self, actor: Actor, *_: object) -> str:
        """The first in the order of rings that has not had its share in this turn."""
        for place in range(actor.now, len(actor.ends)):
            if actor.ends[place].mode == Mode.ACTIVE:
                actor.now = place
                return "reply" if not self.wants_more(actor.ends[place]) else "look_for_more"
        actor.now = 0
        return "arm"

    def _next(self, actor: Actor, mode: Mode, found: str, none: str) -> str:
        for place, end in enumerate(actor.ends):
            if end.mode == mode:
                actor.now = place
                return found
        actor.now = 0
        return none

    def nothing_new(self, *_: object) -> str:
        return "reply"

    def read_done(self, *_: object) -> str:
        return "reply"

    def reply(self, _actor: Actor, end: End, _lane: Lane, _act: Act) -> str:
        if end.written < self.may_write(end):
            return "write_piece" if self.has_room(end) else "look_for_room"
        return "no_room"

    def written(self, *_: object) -> str:
        return "reply"

    def no_room(self, actor: Actor, *_: object) -> str:
        """Nothing more for this ring in this turn."""
        actor.now += 1
        return "next_active"

    # Going to sleep, all that had nothing to do together.

    def arm(self, actor: Actor, _end: End, _lane: Lane, act: Act) -> str:
        idle = [place for place, end in enumerate(actor.ends) if end.mode == Mode.ACTIVE and not end.moved]
        if not idle:
            return "turn"
        for place in idle:
            actor.ends[place].mode = Mode.ARMING
            if Defect.FLAG_AFTER_SECOND_LOOK not in self.defects:
                self.set_flags(actor.ends[place], self.lanes[place], act)
        if Defect.NO_SECOND_LOOK in self.defects:
            for place in idle:
                actor.ends[place].mode = Mode.ARMED
            return "turn"
        if self.defects & {Defect.FLAG_AFTER_SECOND_LOOK, Defect.NO_FENCE_BEFORE_SECOND_LOOK}:
            return "next_second_look"
        return "fence_after_flags"

    def fence_after_flags(self, actor: Actor, _end: End, _lane: Lane, act: Act) -> str:
        for end, lane in zip(actor.ends, self.lanes, strict=True):
            self.settle(end, lane, act)
        act.fence()
        return "next_second_look"

    def next_second_look(self, actor: Actor, *_: object) -> str:
        for place, end in enumerate(actor.ends):
            if end.mode == Mode.ARMING:
                actor.now = place
                return "second_look_at_tail" if self.wants_more(end) else "look_at_head_too"
        return "turn"

    def second_look_found(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        self.clear_flags(end, lane, act)
        end.mode = Mode.ACTIVE
        return "next_second_look"

    def second_look_nothing(self, _actor: Actor, end: End, lane: Lane, act: Act) -> str:
        end.mode = Mode.ARMED
        if Defect.FLAG_AFTER_SECOND_LOOK in self.defects:
            self.set_flags(end, lane, act)
        return "empty_socket" if Defect.BELL_TAKEN_AFTER_SECOND_LOOK in self.defects else "next_second_look"

    def empty_socket(self, _actor: Actor, _end: End, lane: Lane, act: Act) -> str:
        return "last_look" if act.take(lane.bell_in, lane.peer) is Taken.END else "next_second_look"
