"""The search itself, on models small enough to know the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.search import TooLarge, Violation, Wrong, search


class Stairs:
    """From 0 upwards, by one or by two; a fault may throw down to a cellar, out of which only some find the way."""

    def __init__(self, top: int, *, bad: int = -1, cellar_leads_to: int | None = None) -> None:
        self._top = top
        self._bad = bad
        self._cellar_leads_to = cellar_leads_to

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[tuple[int, bool]]:
        if state < 0:
            yield (state if self._cellar_leads_to is None else self._cellar_leads_to), False
            return
        for step in (1, 2):
            if state + step <= self._top:
                yield state + step, False
        yield -1, True

    def judge_end(self, state: int) -> None:
        if state == self._bad:
            raise Violation(Wrong.DEADLOCK, f"ends at {state}")

    def explain(self, state: int, following: int) -> str:
        return f"{state} to {following}"

    def describe(self, state: int) -> str:
        return f"at {state}"


def test_every_state_is_counted_once_and_every_step() -> None:
    result = search(Stairs(10, cellar_leads_to=0))
    assert (result.states, result.steps, result.ends, result.wrong) == (12, 10 + 9 + 11 + 1, 1, None)


def test_a_violation_comes_with_the_shortest_way_to_it() -> None:
    result = search(Stairs(5, bad=5, cellar_leads_to=0))
    assert result.wrong is Wrong.DEADLOCK
    assert len(result.trace) == 3 + 1
    assert result.trace[-1] == "=> ends at 5"
    assert "   1. 0 to " in str(result)


def test_a_fault_is_no_way_to_an_end_and_a_circle_without_one_is_found() -> None:
    result = search(Stairs(3))
    assert result.wrong is Wrong.NO_WAY_TO_AN_END
    assert result.trace == ("0 to -1", "=> at -1")


def test_a_search_that_grows_too_large_says_so() -> None:
    with pytest.raises(TooLarge, match="more than 50 states"):
        search(Stairs(1000, cellar_leads_to=0), at_most=50)
