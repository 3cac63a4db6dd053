"""Clients, a broker and their pairs of rings as a model that can be searched, and what may be true when nobody moves.

Owns the layout of words and sockets, and the verdict on an end. Only tests import it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.machine import DEAD, Act, Frozen, Machine, State
from tests.model.ring import BLOCKED, Actor, Bounds, Defect, End, Lane, Mode, Side, Words, whole
from tests.model.ring_sides import Broker, Client
from tests.model.search import Violation, Wrong

_SILENT = "silent"
_OVER = ("ended", "gone", _SILENT)


class RingModel:
    """One broker (the last actor) and its clients; each process may die before every step and every store."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        clients = bounds.clients
        words: list[str] = []
        readers: list[int] = []
        mine: list[Lane] = []
        theirs: list[Lane] = []

        def place(name: str, reader: int) -> int:
            words.append(name)
            readers.append(reader)
            return len(words) - 1

        def end_of(owner: str, out: str, back: str, reader: int) -> Words:
            return Words(
                tuple(place(f"{owner}.{out}.data[{number}]", reader) for number in range(bounds.capacity)),
                place(f"{owner}.{out}.tail", reader),
                place(f"{owner}.{back}.head", reader),
                place(f"{owner}.{back}.asleep", reader),
                place(f"{owner}.{out}.waits_for_room", reader),
            )

        for client in range(clients):
            ours = end_of(f"client{client}", "requests", "replies", clients)
            its = end_of("broker", f"replies{client}", f"requests{client}", client)
            to_broker, to_client = 2 * client, 2 * client + 1
            mine.append(Lane(client, clients, ours, its, to_client, to_broker))
            theirs.append(Lane(clients, client, its, ours, to_broker, to_client))
        actors = (*(f"client{client}" for client in range(clients)), "broker")
        self._machine = Machine(
            bounds.order,
            tuple(readers),
            tuple(words),
            actors,
            bounds.room_for_bells,
            bounds.most_bells,
            bounds.ends_pass_bells,
            Defect.CHILD_HOLDS_SOCKET not in bounds.defects,
        )
        self._sides: list[Side] = [*(Client(bounds, [lane]) for lane in mine), Broker(bounds, theirs)]
        self._mine = mine

    def initial(self) -> State:
        clients = self._bounds.clients
        busy = clients - self._bounds.silent
        actors = [Actor("begin" if client < busy else _SILENT, 0, [End()]) for client in range(clients)]
        actors.append(Actor("turn", 0, [End() for _ in range(clients)]))
        nothing = (0,) * len(self._machine.words)
        return State(
            nothing,
            ((),) * (clients + 1),
            (),
            (0,) * (2 * clients),
            (False,) * (clients + 1),
            tuple(actor.frozen() for actor in actors),
        )

    def steps(self, state: State) -> Iterator[tuple[State, bool]]:
        for who, frozen in enumerate(state.actors):
            if _is_over(frozen):
                continue
            for act, after in self._acts(state, who):
                if after is not None:
                    yield act.after(after), False
                if self._bounds.deaths:
                    for death in act.dies:
                        yield death, True

    def _acts(self, state: State, who: int, notes: list[str] | None = None) -> Iterator[tuple[Act, Frozen | None]]:
        """Each way one process may go on; none, but death, if it is blocked."""
        choice = choices = 0
        while choice <= choices:
            if notes is not None:
                notes[:] = [f"{self._machine.actors[who]}:"]
            act = Act(self._machine, state, who, choice, notes=notes)
            if choice == 0:
                act.dies.append(act.die())
            yield act, self._run(act, who, state.actors[who])
            choice, choices = choice + 1, act.choices - 1

    def _run(self, act: Act, who: int, frozen: Frozen) -> Frozen | None:
        side = self._sides[who]
        actor = Actor.thawed(frozen)
        while True:
            act.say(f"[{actor.at}]")
            now = min(actor.now, len(actor.ends) - 1)
            at: str = getattr(side, actor.at)(actor, actor.ends[now], side.lanes[now], act)
            if at == BLOCKED:
                return None
            actor.at = at
            if at not in side.quiet:
                return actor.frozen()

    def explain(self, state: State, following: State) -> str:
        for who, frozen in enumerate(state.actors):
            notes: list[str] = []
            if _is_over(frozen):
                continue
            for act, after in self._acts(state, who, notes):
                if after is not None and act.after(after) == following:
                    return " ".join(notes)
                if following in act.dies:
                    return f"{self._machine.actors[who]}: is killed at [{frozen[0]}], its socket ends"
        return "?"

    def describe(self, state: State) -> str:
        places = (f"{name} at {actor[0]}" for name, actor in zip(self._machine.actors, state.actors, strict=True))
        return f"{', '.join(places)}; bells {state.bells}"

    def judge_end(self, state: State) -> None:
        alive = [who for who, frozen in enumerate(state.actors) if frozen != DEAD and frozen[0] != _SILENT]
        sleepers = [who for who in alive if not _is_over(state.actors[who])]
        for who in sleepers:
            self._judge_sleeper(state, who, Actor.thawed(state.actors[who]))
        if any(who < self._bounds.clients for who in sleepers):  # a broker may sleep as long as nobody wants anything
            raise Violation(Wrong.DEADLOCK, self.describe(state))
        for who in alive:
            self._judge_reading(state, who, Actor.thawed(state.actors[who]))

    def _judge_sleeper(self, state: State, who: int, actor: Actor) -> None:
        """It is blocked, and so is everybody else: has it what it waits for, or nobody to wait for?"""
        side = self._sides[who]
        for end, lane in zip(actor.ends, side.lanes, strict=True):
            other = state.actors[lane.peer]
            if other[0] == _SILENT:
                continue
            if _is_over(other):
                if end.mode != Mode.CLOSED:
                    raise Violation(Wrong.UNNOTICED_DEATH, self.describe(state))
                continue
            there = Actor.thawed(other).ends[self._place(lane)]
            if side.wants_more(end) and there.written > end.read:
                raise Violation(Wrong.LOST_WAKE_UP, f"{self.describe(state)}; data that nobody looks at")
            if end.written < side.may_write(end) and end.written - there.read < self._bounds.capacity:
                raise Violation(Wrong.LOST_WAKE_UP, f"{self.describe(state)}; room that nobody looks at")

    def _place(self, lane: Lane) -> int:
        """Which of the peer's ends is the other one of this pair."""
        return next(place for place, each in enumerate(self._sides[lane.peer].lanes) if each.peer == lane.me)

    def _judge_reading(self, state: State, who: int, actor: Actor) -> None:
        side = self._sides[who]
        for end, lane in zip(actor.ends, side.lanes, strict=True):
            tail = state.memory[lane.theirs.tail]
            if actor.at == "ended" and lane in self._mine:
                tail = sum(side.incoming)
            due = whole(side.incoming, tail)
            if end.handed != due:
                raise Violation(
                    Wrong.LOST_FRAME, f"{self._machine.actors[who]} handed over {end.handed} of {due} frames"
                )


def _is_over(frozen: Frozen) -> bool:
    return frozen == DEAD or frozen[0] in _OVER
