"""The life of a block of the arena, step by step: publisher, broker, reader, and a child that the reader forks.

One place in one segment, which every block of the model takes in turn, so that whatever is freed too early is written
over. What each side knows of it, and the messages under way between them, are the state; what the code does beside
that (sizes, descriptors, maps) is not in it. SIGKILL may strike each process between any two steps; calls may be
interrupted, answers lost or heard late and in another order.

Must hold: nobody looks at a place that has other bytes than those of its block (`Wrong.OTHER_BYTES`); and where nobody
needs a block any more its publisher can use the place (`Wrong.LEAKED`). `Defect` plants what the code must not do.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from tests.model.search import Violation, Wrong

_T = TypeVar("_T")


class Defect(enum.Enum):
    """What is wrong on purpose."""

    NONE = "nothing"
    FREED_BY_ACK = "the broker frees a block with its message, whoever looks at it"
    UNPINNED_BY_LEASE = "the end of a lease ends its pin"
    UNPINNED_BY_SESSION = "the end of a process ends its pins, whoever has its lane"
    UNPINNED_WHILE_SHARED = "a process that has forked unpins one by one on the lane that it shares"
    NOT_RETIRED = "what was on its way at a fork stays pinned on the shared lane"
    HALF_KNOWN = "what was dropped since the fork is taken for what was on its way"
    NOT_VOID = "a block in doubt is free, and a publish that comes late still brings it"
    FREED_BY_PLACE = "what the broker frees is matched by its place alone, not by its serial"
    TRUSTED_UNDO = "the undoing of a hand-over does not end its pin"
    FORGOTTEN = "the log forgets what it has told once"


Pin = tuple[int, int]
"""A hand-over and its block."""

Told = tuple[tuple[tuple[str, frozenset[int]], ...], ...]
"""What the reader has said on each lane, and the broker has not heard."""

View = tuple[int, int, int]
"""A hand-over, its block, and the lane that it is noted on."""


class State(NamedTuple):
    """All there is.

    content: the serial of what was written last. lent: the block that the publisher has at the place, 0: none;
    phase: "w" it writes, "h" it has published and holds the handle, "d" it is in doubt. serial: the last given.
    pubs, asks, answers: under way between publisher and broker. last: the broker's last serial at the place. blocks:
    that are needed. batch: the message's block, 0: none. lease: of a hand-over. pins: of each lane. grant: under way.
    lane: that the reader uses; known: that the broker does. forked: the hand-overs that it forked with. shared: its
    first lane, with the child. holders: of each lane; told: on each. calls: of the reader. acked: hand-overs. retired:
    the broker has heard of the second lane all that it must.
    """

    content: int = 0
    publishes: bool = True
    lent: int = 0
    phase: str = ""
    serial: int = 0
    seen: int = 0
    pubs: tuple[int, ...] = ()
    asks: tuple[tuple[int, int], ...] = ()
    answers: tuple[tuple[int, tuple[int, ...]], ...] = ()
    last: int = 0
    blocks: frozenset[int] = frozenset()
    batch: int = 0
    lease: int = 0
    log: tuple[int, ...] = ()
    pins: tuple[frozenset[Pin], ...] = (frozenset(),)
    grant: View | None = None
    hand_overs: int = 0
    known: int = 0
    session: bool = True
    reads: bool = True
    views: frozenset[View] = frozenset()
    lane: int = 0
    shared: bool = False
    forked: frozenset[int] = frozenset()
    retired: bool = False
    holders: tuple[frozenset[str], ...] = (frozenset("R"),)
    told: Told = ((),)
    calls: tuple[tuple[str, int], ...] = ()
    acked: frozenset[int] = frozenset()
    child: str = ""
    child_views: frozenset[View] = frozenset()


class Arena:
    """The model: so many blocks one after the other at the place, so many hand-overs in all."""

    def __init__(
        self, blocks: int = 2, hand_overs: int = 2, defect: Defect = Defect.NONE, *, forks: bool = True
    ) -> None:
        self._blocks = blocks
        self._hand_overs = hand_overs
        self._defect = defect
        self._forks = forks

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[State, bool]]:
        for _, nxt, fault in self._named(state):
            yield nxt, fault

    def _named(self, state: State) -> Iterator[tuple[str, State, bool]]:
        for name, nxt in self._deeds(state):
            after = self._counted(state, nxt)
            for _, block, _ in after.views | after.child_views:
                if after.content != block:
                    raise Violation(
                        Wrong.OTHER_BYTES, f"block {block} is looked at, and {after.content} is written there", name
                    )
            yield name, after, False
        for name, nxt in self._deaths(state):
            yield name, nxt, True

    def _counted(self, before: State, state: State) -> State:
        """What the broker notices by itself: a block that nothing refers to any more."""
        pinned = {block for pins in state.pins for _, block in pins}
        if self._defect is Defect.FREED_BY_ACK:
            pinned = set()
        gone = [block for block in sorted(state.blocks) if block != state.batch and block not in pinned]
        if not gone:
            return state
        return state._replace(blocks=state.blocks - set(gone), log=(*state.log, *gone))

    # -- what happens -------------------------------------------------------------------------------------------------

    def _deeds(self, state: State) -> Iterator[tuple[str, State]]:
        if state.publishes:
            yield from self._publisher(state)
        yield from self._broker(state)
        yield from self._lanes(state)
        if state.reads:
            yield from self._reader(state)
        if state.child == "lives":
            for view in state.child_views:
                left = state.child_views - {view}
                nxt = state._replace(child_views=left)
                yield f"the child drops {view}", nxt if left else _lets_go(nxt, 0, "C")

    def _publisher(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.lent and state.serial < self._blocks:
            serial = state.serial + 1
            yield f"takes and writes {serial}", state._replace(content=serial, lent=serial, phase="w", serial=serial)
        if state.phase == "w":
            yield "publishes", state._replace(pubs=(*state.pubs, state.lent), phase="h")
        if state.phase in {"w", "h"}:
            yield "is done, or interrupted", state._replace(phase="d")
        if len(state.asks) + len(state.answers) < 2 and state.phase == "d":
            yield "asks", state._replace(asks=(*state.asks, (state.lent, state.seen)))
        for at, (position, freed) in enumerate(state.answers):
            rest = (*state.answers[:at], *state.answers[at + 1 :])
            is_free = state.lent in freed
            if self._defect is Defect.FREED_BY_PLACE:
                is_free = bool(freed)
            nxt = state._replace(answers=rest, seen=max(state.seen, position))
            yield "hears", nxt._replace(lent=0, phase="") if is_free else nxt
            yield "is interrupted before it hears", state._replace(answers=rest)

    def _broker(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._serves_publisher(state)
        yield from self._serves_reader(state)

    def _serves_publisher(self, state: State) -> Iterator[tuple[str, State]]:
        if state.pubs:
            serial, rest = state.pubs[0], state.pubs[1:]
            if serial <= state.last and self._defect is not Defect.NOT_VOID:
                yield "refuses a late publish", state._replace(pubs=rest)
            else:
                claimed = state._replace(pubs=rest, last=max(serial, state.last), blocks=state.blocks | {serial})
                yield "refuses a publish", claimed
                if not state.batch:
                    yield "takes a publish", claimed._replace(batch=serial)
        if state.asks:
            doubt, seen = state.asks[0]
            log, last = state.log, state.last
            if doubt > last:
                last, log = (doubt, (*log, doubt))
            told = log[seen:]
            if self._defect is Defect.FORGOTTEN and state.answers:
                told = log[max(position for position, _ in state.answers) :]
            nxt = state._replace(asks=state.asks[1:], last=last, log=log)
            yield "answers", nxt._replace(answers=(*state.answers, (len(log), told)))

    def _serves_reader(self, state: State) -> Iterator[tuple[str, State]]:
        if state.batch and not state.lease and state.session and not state.grant and self._may_hand_over(state):
            number = state.hand_overs + 1
            pins = _with(state.pins, state.known, state.pins[state.known] | {(number, state.batch)})
            grant = (number, state.batch, state.known)
            yield "hands over", state._replace(pins=pins, grant=grant, hand_overs=number, lease=number)
        if state.lease:
            nxt = state._replace(lease=0, batch=state.batch if self._may_hand_over(state) else 0)
            if self._defect is Defect.UNPINNED_BY_LEASE:
                nxt = _unpinned(nxt, state.lease)
            yield "ends a lease", nxt
        if state.batch and not state.lease and not (state.session and self._may_hand_over(state)):
            yield "forgets the message", state._replace(batch=0)
        if state.calls:
            yield self._call(state._replace(calls=state.calls[1:]), *state.calls[0])
        if state.session and not state.reads:
            nxt = state._replace(session=False, lease=0, calls=(), grant=None)
            if self._defect is Defect.UNPINNED_BY_SESSION:
                nxt = nxt._replace(pins=tuple(frozenset() for _ in nxt.pins))
            yield "sees the end of the reader", nxt

    def _may_hand_over(self, state: State) -> bool:
        return state.hand_overs < self._hand_overs

    def _call(self, state: State, kind: str, number: int) -> tuple[str, State]:
        if kind == "ack":
            return "takes an ack", state._replace(batch=0, lease=0) if state.lease == number else state
        if self._defect is not Defect.TRUSTED_UNDO:
            state = _unpinned(state, number)
        return "undoes a hand-over", state._replace(lease=0) if state.lease == number else state

    def _lanes(self, state: State) -> Iterator[tuple[str, State]]:
        for lane, told in enumerate(state.told):
            # The reader has one request out at a time, whatever the lane.
            if told and not (told[0][0] == "retire" and state.told[0]):
                kind, numbers = told[0]
                nxt = state._replace(told=_with(state.told, lane, told[1:]))
                if kind == "unpin":
                    pins = frozenset(pin for pin in nxt.pins[lane] if pin[0] not in numbers)
                    yield "unpins", nxt._replace(pins=_with(nxt.pins, lane, pins))
                elif kind == "join":
                    yield "knows of a lane", nxt._replace(known=lane)
                else:
                    yield "retires a lane", self._retired(nxt, numbers)
            elif not told and not state.holders[lane] and state.pins[lane]:
                yield "sees the end of a lane", state._replace(pins=_with(state.pins, lane, frozenset()))

    def _retired(self, state: State, known: frozenset[int]) -> State:
        if self._defect is Defect.NOT_RETIRED:
            return state._replace(retired=True)
        moved = frozenset(pin for pin in state.pins[0] if pin[0] not in known)
        return state._replace(retired=True, pins=(state.pins[0] - moved, state.pins[1] | moved))

    def _reader(self, state: State) -> Iterator[tuple[str, State]]:
        if state.grant is not None and not (state.shared and state.lane == 0):
            number, block, lane = state.grant
            got = state._replace(grant=None)
            # What the broker says of a lane that is retired is on the next one.
            yield "gets a message", got._replace(views=state.views | {(number, block, max(lane, state.lane))})
            yield "is interrupted", got._replace(calls=(*state.calls, ("undo", number)))
        for view in state.views:
            number, _, lane = view
            if number not in state.acked:
                acked = state._replace(acked=state.acked | {number}, calls=(*state.calls, ("ack", number)))
                yield f"acks {view}", acked
            nxt = state._replace(views=state.views - {view})
            if not (lane == 0 and state.shared) or self._defect is Defect.UNPINNED_WHILE_SHARED:
                more = (*state.told[lane], ("unpin", frozenset({number})))
                nxt = nxt._replace(told=_with(state.told, lane, more))
            yield f"drops {view}", nxt
        if self._forks and state.views and not state.child:
            known = frozenset(number for number, _, _ in state.views)
            forked = state._replace(child="lives", child_views=state.views, shared=True, forked=known)
            yield "forks", forked._replace(holders=_with(state.holders, 0, state.holders[0] | {"C"}))
        if state.shared and state.lane == 0:
            # Also those that it has dropped since.
            known = (
                state.forked if self._defect is not Defect.HALF_KNOWN else frozenset(view[0] for view in state.views)
            )
            told: Told = (*state.told, (("join", frozenset[int]()), ("retire", known)))
            pins, holders = (*state.pins, frozenset[Pin]()), (*state.holders, frozenset("R"))
            yield "opens a lane", state._replace(lane=1, pins=pins, holders=holders, told=told)
        if state.retired and "R" in state.holders[0] and all(lane for _, _, lane in state.views):
            yield "lets go of the shared lane", _lets_go(state, 0, "R")

    def _deaths(self, state: State) -> Iterator[tuple[str, State]]:
        if state.publishes:
            yield "the publisher is killed", state._replace(publishes=False, asks=(), answers=())
        if state.reads:
            nxt = state._replace(reads=False, views=frozenset())
            for lane in range(len(state.holders)):
                nxt = _lets_go(nxt, lane, "R")
            yield "the reader is killed", nxt
        if state.child == "lives":
            yield "the child is killed", _lets_go(state._replace(child="dead", child_views=frozenset()), 0, "C")

    # -- how it may end -----------------------------------------------------------------------------------------------

    def judge_end(self, state: State) -> None:
        if any(state.pins) or state.blocks:
            raise Violation(Wrong.LEAKED, f"the broker still has {sorted(state.blocks)}, {state.pins}")
        if state.publishes and state.lent:
            raise Violation(Wrong.LEAKED, f"the publisher never hears that {state.lent} is free")

    def explain(self, state: State, following: State) -> str:
        for name, nxt, _ in self._named(state):
            if nxt == following:
                return name
        return "?"

    def describe(self, state: State) -> str:
        return str(state)


def _with(items: tuple[_T, ...], at: int, item: _T) -> tuple[_T, ...]:
    return (*items[:at], item, *items[at + 1 :])


def _lets_go(state: State, lane: int, who: str) -> State:
    return state._replace(holders=_with(state.holders, lane, state.holders[lane] - {who}))


def _unpinned(state: State, number: int) -> State:
    return state._replace(pins=tuple(frozenset(pin for pin in pins if pin[0] != number) for pins in state.pins))
