"""The memory model, by the litmus tests that tell x86-TSO from what is stronger and from what is weaker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.machine import Act, Frozen, Machine, Order, State, Taken
from tests.model.search import Violation, Wrong, search

X, Y, Z = 0, 1, 2
"""X and Z are process 0's, Y is process 1's."""

Program = tuple[str, ...]


class Litmus:
    """Two programs of stores (``X=1``), loads (``X``), fences and bells; every end's loaded values are collected."""

    def __init__(self, order: Order, *programs: Program) -> None:
        self._machine = Machine(order, (1, 0, 1), ("X", "Y", "Z"), ("0", "1"), 2, 2, False, True)
        self._programs = programs
        self.outcomes: set[tuple[int, ...]] = set()

    def initial(self) -> State:
        return State((0, 0, 0), ((), ()), (), (0, 0), (False, False), ((0,), (0,)))

    def steps(self, state: State) -> Iterator[tuple[State, bool]]:
        for who in (0, 1):
            at, *loaded = state.actors[who]
            assert isinstance(at, int)
            if at < len(self._programs[who]):
                yield from ((after, False) for after in self._step(state, who, at, tuple(loaded)))

    def _step(self, state: State, who: int, at: int, loaded: Frozen) -> Iterator[State]:
        deed = self._programs[who][at]
        choice = 0
        while True:
            act = Act(self._machine, state, who, choice)
            new = loaded
            if deed == "fence":
                act.fence()
            elif deed == "ring":
                act.ring(who, 1 - who)
            elif deed == "take":
                if act.take(1 - who, 1 - who) is Taken.NOTHING:
                    return
            elif "=" in deed:
                act.store("XYZ".index(deed[0]), int(deed[2:]))
            else:
                new = (*loaded, act.load("XYZ".index(deed), 1 - who))
            yield act.after((at + 1, *new))
            choice += 1
            if choice >= act.choices:
                return

    def judge_end(self, state: State) -> None:
        loaded = [value for actor in state.actors for value in actor[1:]]
        self.outcomes.add(tuple(value for value in loaded if isinstance(value, int)))

    def explain(self, state: State, following: State) -> str:
        return f"{state} to {following}"

    def describe(self, state: State) -> str:
        return str(state)


def outcomes(order: Order, *programs: Program) -> set[tuple[int, ...]]:
    litmus = Litmus(order, *programs)
    assert search(litmus).wrong is None
    return litmus.outcomes


@pytest.mark.parametrize("order", Order)
def test_a_store_may_be_seen_after_the_load_behind_it_unless_a_fence_is_between(order: Order) -> None:
    assert (0, 0) in outcomes(order, ("X=1", "Y"), ("Y=1", "X"))
    assert (0, 0) in outcomes(order, ("X=1", "fence", "Y"), ("Y=1", "X"))
    assert outcomes(order, ("X=1", "fence", "Y"), ("Y=1", "fence", "X")) == {(0, 1), (1, 0), (1, 1)}


def test_stores_are_seen_in_order_on_x86() -> None:
    assert outcomes(Order.TSO, ("X=1", "Z=1"), ("Z", "X")) == {(0, 0), (0, 1), (1, 1)}


def test_weak_stores_are_seen_in_order_only_with_a_fence_on_both_sides() -> None:
    assert (1, 0) in outcomes(Order.WEAK, ("X=1", "Z=1"), ("Z", "X"))
    assert (1, 0) in outcomes(Order.WEAK, ("X=1", "fence", "Z=1"), ("Z", "X"))
    assert (1, 0) in outcomes(Order.WEAK, ("X=1", "Z=1"), ("Z", "fence", "X"))
    assert (1, 0) not in outcomes(Order.WEAK, ("X=1", "fence", "Z=1"), ("Z", "fence", "X"))


@pytest.mark.parametrize("order", Order)
def test_one_word_is_never_seen_going_back(order: Order) -> None:
    assert outcomes(order, ("X=1", "X=2"), ("X", "X")) == {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)}


@pytest.mark.parametrize("order", Order)
def test_who_takes_a_bell_sees_what_was_stored_before_it_rang(order: Order) -> None:
    assert outcomes(order, ("X=1", "Z=1", "ring"), ("take", "X", "Z")) == {(1, 1)}


@pytest.mark.parametrize("order", Order)
def test_a_death_shows_what_was_stored_before_it_and_then_the_end_of_the_socket(order: Order) -> None:
    machine = Machine(order, (1, 0, 1), ("X", "Y", "Z"), ("0", "1"), 2, 2, False, True)
    act = Act(machine, Litmus(order).initial(), 0, 0)
    act.ring(0, 1)
    act.store(X, 1)
    act.store(Z, 1)
    survivor = Act(machine, act.dies[-1], 1, 0)  # before the second store
    assert [survivor.take(0, 0), survivor.take(0, 0)] == [Taken.BYTES, Taken.END]
    assert [survivor.load(X, 0), survivor.load(Z, 0)] == [1, 0]


def test_a_full_socket_drops_the_bell_and_a_bound_on_bells_is_kept() -> None:
    machine = Machine(Order.TSO, (1, 0, 1), ("X", "Y", "Z"), ("0", "1"), 2, 1, False, True)
    act = Act(machine, Litmus(Order.TSO).initial(), 0, 0)
    act.ring(0, 1)
    with pytest.raises(Violation) as found:
        act.ring(0, 1)
    assert found.value.wrong is Wrong.TOO_MANY_BELLS
    act = Act(machine._replace(room_for_bells=1), Litmus(Order.TSO).initial(), 0, 0)
    assert act.ring(0, 1)
    assert act.ring(0, 1)
    assert act.after(()).bells == (1, 0)
