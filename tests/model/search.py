"""A breadth-first search through every state of a model: what it finds wrong, by the shortest way there.

Owns the search, its counts and the trace; knows nothing of what a state is, except that it hashes. Imported by models
and by their tests.
"""

from __future__ import annotations

import enum
import gc
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Wrong(enum.Enum):
    """Every kind of violation, so that a planted defect is found as what it is and not as something else."""

    LOST_WAKE_UP = "somebody sleeps, what it waits for is there, and no bell is on its way"
    DEADLOCK = "all sleep, and nothing that any of them waits for is there or will come"
    UNNOTICED_DEATH = "the survivor sleeps for ever"
    LOST_FRAME = "a frame that was complete in the ring was never read"
    TORN = "what was read is not what was written there"
    UNFINISHED = "a part of a frame was handed over as a frame"
    TOO_MANY_BELLS = "more bytes wait in a socket than the bound"
    OTHER_BYTES = "what is looked at has other bytes than what was handed over"
    LEAKED = "nobody needs it, and nobody can use it again"
    NO_WAY_TO_AN_END = "no end can be reached any more without a fault"


class Violation(Exception):
    """Raised by a model in the middle of a step; ``deed`` is that step in words, if the model can tell."""

    def __init__(self, wrong: Wrong, detail: str, deed: str = "") -> None:
        super().__init__(wrong, detail, deed)
        self.wrong = wrong
        self.detail = detail
        self.deed = deed


class Model(Protocol[State]):
    """What can be searched. ``steps`` gives each state that may come next, and whether only a fault leads there."""

    def initial(self) -> State: ...
    def steps(self, state: State) -> Iterable[tuple[State, bool]]: ...
    def judge_end(self, state: State) -> None:
        """Raise Violation if all may not end like this; asked where no step but a fault is left."""

    def explain(self, state: State, following: State) -> str: ...
    def describe(self, state: State) -> str: ...


@dataclass(frozen=True, slots=True)
class Result:
    """How large the search was, and the shortest way to what is wrong, if anything is."""

    states: int
    steps: int
    ends: int
    wrong: Wrong | None
    trace: tuple[str, ...]

    def __str__(self) -> str:
        if self.wrong is None:
            return f"{self.states} states, {self.steps} steps, {self.ends} ends: nothing wrong"
        lines = "\n".join(f"{number:4}. {line}" for number, line in enumerate(self.trace, 1))
        return f"{self.wrong.name} ({self.wrong.value}) after {self.states} states:\n{lines}"


class TooLarge(Exception):
    """The model has more states than its test allows: make it smaller, or raise ``at_most`` where time allows."""


@dataclass(slots=True)
class _Seen(Generic[State]):
    """All states in the order found; the number of a state is its place here."""

    states: list[State]
    parents: list[int]
    numbers: dict[State, int]
    following: list[list[int]]

    def number(self, state: State, parent: int) -> int:
        number = self.numbers.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self.parents.append(parent)
        return number


def search(model: Model[State], *, at_most: int = 2_000_000) -> Result:
    """Every state that can be reached, each once; stops at the first violation, which no shorter way leads to."""
    collecting = gc.isenabled()
    gc.disable()  # it would look through all that was kept, again and again, and nothing here is garbage in a circle
    try:
        return _search(model, at_most)
    finally:
        if collecting:
            gc.enable()


def _search(model: Model[State], at_most: int) -> Result:
    first = model.initial()
    seen = _Seen([first], [-1], {first: 0}, [])
    ends: list[int] = []
    taken = 0
    at = 0
    try:
        while at < len(seen.states):
            if len(seen.states) > at_most:
                raise TooLarge(f"more than {at_most} states")
            state = seen.states[at]
            following: list[int] = []
            for nxt, fault in model.steps(state):
                taken += 1
                number = seen.number(nxt, at)
                if not fault:
                    following.append(number)
            if not following:
                model.judge_end(state)
                ends.append(at)
            seen.following.append(following)
            at += 1
        at = _without_end(seen.following, ends)
        if at >= 0:
            raise Violation(Wrong.NO_WAY_TO_AN_END, model.describe(seen.states[at]))
    except Violation as found:
        trace = _trace(model, seen, at)
        if found.deed:
            trace.append(found.deed)
        trace.append(f"=> {found.detail}")
        return Result(len(seen.states), taken, len(ends), found.wrong, tuple(trace))
    return Result(len(seen.states), taken, len(ends), None, ())


def _trace(model: Model[State], seen: _Seen[State], at: int) -> list[str]:
    lines: list[str] = []
    while seen.parents[at] >= 0:
        before = seen.parents[at]
        lines.append(model.explain(seen.states[before], seen.states[at]))
        at = before
    lines.reverse()
    return lines


def _without_end(following: list[list[int]], ends: list[int]) -> int:
    """The first state from which no end can be reached, or -1."""
    before: list[list[int]] = [[] for _ in following]
    for number, successors in enumerate(following):
        for successor in successors:
            before[successor].append(number)
    good = bytearray(len(following))
    todo = list(ends)
    for number in todo:
        good[number] = 1
    while todo:
        for number in before[todo.pop()]:
            if not good[number]:
                good[number] = 1
                todo.append(number)
    return good.find(0)
