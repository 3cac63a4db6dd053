"""The steps of a message: each of them is taken, in each of the three processes."""

from __future__ import annotations

from bench.steps import PROCESSES, measure


def test_every_step_of_every_process_takes_time() -> None:
    steps = measure(repeats=3)
    assert {step.process for step in steps} == PROCESSES.keys()
    assert len({(step.process, step.name) for step in steps}) == len(steps)
    # All but differences of two measurements, which may be anything where so few are made.
    assert sum(step.nanoseconds > 0.0 for step in steps) > len(steps) / 2
