"""Times and lines: exact, in order, and no larger than what lives in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpbroker.process.waiting import Timers


def test_the_earliest_time_comes_first_and_of_equal_ones_the_first_set() -> None:
    timers = Timers()
    for key, when in ((1, 5.0), (2, 3.0), (3, 5.0), (4, 3.0)):
        timers.set(key, when)
    assert timers.first() == (3.0, 2)
    assert list(timers.pop_due(5.0)) == [2, 4, 1, 3]
    assert timers.first() is None


def test_a_key_has_one_time() -> None:
    timers = Timers()
    timers.set(1, 5.0)
    timers.set(1, 9.0)
    assert list(timers.pop_due(8.0)) == []
    timers.set(1, 2.0)
    assert timers.when(1) == 2.0
    assert list(timers.pop_due(9.0)) == [1]


def test_what_is_cancelled_while_others_are_due_does_not_come() -> None:
    timers = Timers()
    for key in (1, 2, 3):
        timers.set(key, float(key))
    seen = []
    for key in timers.pop_due(10.0):
        seen.append(key)
        timers.cancel(2)
    assert seen == [1, 3]


@given(st.lists(st.tuples(st.integers(1, 5), st.none() | st.floats(0, 100)), max_size=300), st.floats(0, 100))
def test_timers_are_a_sorted_table(steps: list[tuple[int, float | None]], now: float) -> None:
    timers = Timers()
    table: dict[int, float] = {}
    for key, when in steps:
        if when is None:
            timers.cancel(key)
            table.pop(key, None)
        else:
            timers.set(key, when)
            table[key] = when
        first = timers.first()
        assert (None if first is None else first[0]) == min(table.values(), default=None)
        assert len(timers) == len(table)
        assert len(timers._heap) <= 64 + 2 * 5
    due = list(timers.pop_due(now))
    assert [table[key] for key in due] == sorted(when for when in table.values() if when <= now)
    assert set(due) == {key for key, when in table.items() if when <= now}
