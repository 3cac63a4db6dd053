"""The fake clock."""

from __future__ import annotations

import math
import threading

import pytest

from mpbroker.testing import FakeClock


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    assert clock.advance(2.5) == 7.5
    assert clock() == 7.5


def test_sleeping_moves_the_clock_and_is_noted(clock: FakeClock) -> None:
    clock.sleep(3)
    clock.advance(1)
    clock.sleep(0.5)
    assert clock() == 1004.5
    assert clock.sleeps == [3.0, 0.5]


def test_what_was_slept_is_handed_out_as_a_copy(clock: FakeClock) -> None:
    clock.sleep(1)
    clock.sleeps.clear()
    assert clock.sleeps == [1.0]


@pytest.mark.parametrize("step", [-1, math.nan, math.inf, 10**400])
def test_time_moves_forward_by_finite_steps_only(clock: FakeClock, step: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        clock.advance(step)
    with pytest.raises(ValueError, match="seconds"):
        clock.sleep(step)
    assert (clock(), clock.sleeps) == (1000.0, [])


@pytest.mark.parametrize("step", ["1", None, True])
def test_a_step_that_is_no_number_is_a_type_error(clock: FakeClock, step: object) -> None:
    with pytest.raises(TypeError, match="seconds"):
        clock.advance(step)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="start"):
        FakeClock(step)  # type: ignore[arg-type]


def test_no_move_is_lost_between_threads(clock: FakeClock) -> None:
    def move() -> None:
        for _ in range(1000):
            clock.sleep(1)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert clock() == 5000.0
    assert len(clock.sleeps) == 4000
