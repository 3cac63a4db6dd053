"""The tester is tested: defects are planted, one at a time, and the checker must notice each.

And where none is planted it must find nothing. For each defect the cheapest work that shows it: a dense run in this
process for the engine's, rounds of real processes for those of the broker process and of clients.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import tests.prove.bugs.consumers
import tests.prove.bugs.engine
import tests.prove.bugs.outcomes
import tests.prove.bugs.processes  # noqa: F401 - all fill the list
from mpbroker import RetryPolicy
from mpbroker.testing.checker import Verdict, check
from tests.prove.bugs.dense import dense
from tests.prove.bugs.plant import BUGS, DENSE, Bug
from tests.prove.bugs.planted import VARIABLE
from tests.prove.chaos import LIMIT_S, Scale, Totals, one_round
from tests.prove.part import Outcome

STEPS: Final = 600
"""Of a dense run: enough for most defects, and checked in a moment."""

DENSE_TRIES: Final = 60
ROUND_TRIES: Final = 25
ROUND_S: Final = 1.2
QUIET_S: Final = 4.0
"""Where little is published, little happens."""


_LONG: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {"ack_timeout": 60.0, "max_deliveries": 20},
    "retried": {"ack_timeout": 60.0, "retry": RetryPolicy(6, 0.05, 2.0, 0.2)},
}
"""No lease ends within a round, so that nothing mends what a defect broke."""

_SHORT: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {"ack_timeout": 0.3, "max_deliveries": 20},
    "retried": {"ack_timeout": 0.3, "retry": RetryPolicy(6, 0.05, 2.0, 0.2)},
}

CALM: Final = Scale(1, 2, _LONG, 20, {}, 3.0, 200, pause_s=0.03, forgets=False, streams=0.0, consumes=0.0, messages=300)
QUIET: Final = Scale(1, 1, _LONG, 2, {}, 3.0, 200, pause_s=0.5, forgets=False, wild=1.0, consumes=0.0, messages=15)
STRUCK: Final = Scale(
    1, 3, _LONG, 20, {"kill": 50, "fork": 40, "kill group": 10}, 3.0, 200, forgets=False, consumes=0.0, faults=8
)
KILLED: Final = replace(STRUCK, workers=1, weights={"kill": 1}, work_s=0.05)
FORKED: Final = replace(STRUCK, workers=1, weights={"fork": 1})
IDLE: Final = replace(STRUCK, pause_s=0.05)
CONSUMING: Final = replace(CALM, consumes=1.0)
LATE: Final = replace(CONSUMING, subscriptions=_SHORT, workers=3, consumes=0.7, work_s=0.4, limit_s=20.0)
FALLEN: Final = replace(STRUCK, consumes=1.0)
SCALES: Final = {
    "calm": CALM,
    "quiet": QUIET,
    "struck": STRUCK,
    "killed": KILLED,
    "forked": FORKED,
    "idle": IDLE,
    "consuming": CONSUMING,
    "late": LATE,
    "fallen": FALLEN,
}


@dataclass(frozen=True, slots=True)
class Catch:
    """What became of a defect. law: under which it was noticed first, "" when it was not."""

    bug: Bug
    seconds: float
    law: str


def hunt(bugs: Iterable[Bug], seed: int) -> list[Catch]:
    """Plant each, work, and see whether it is noticed."""
    catches = []
    for bug in bugs:
        began = time.monotonic()
        law = _noticed(bug, seed)
        catches.append(Catch(bug, time.monotonic() - began, law))
    return catches


def _noticed(bug: Bug, seed: int) -> str:
    tries = DENSE_TRIES if bug.kind == DENSE else ROUND_TRIES
    for number in range(tries):
        law = shown(bug, seed + number)
        if law:
            return law
    return ""


def shown(bug: Bug, seed: int) -> str:
    """Try once; the law under which the defect is noticed, "" when it is not."""
    return next((law.value for law in _worked(bug, seed).by_law if law in bug.laws), "")


def _worked(bug: Bug, seed: int) -> Verdict:
    """Work with a defect once."""
    if bug.kind == DENSE:
        with bug.plant():
            histories = dense(seed, STEPS)
        return check(histories, stops=False)
    work, _, where = bug.kind.partition(" ")
    scale, seconds = SCALES[work], QUIET_S if work == "quiet" else ROUND_S
    if where == "broker":
        with _environment(VARIABLE, bug.name):
            return one_round(seconds, seed, scale, Totals(), filter_modules=("tests.prove.bugs.planted",))
    with bug.plant():
        return one_round(seconds, seed, scale, Totals())


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def innocent(seed: int, *, rounds: bool) -> list[str]:
    """Work without any defect: what the checker finds all the same. rounds: of real processes, too."""
    found: list[str] = []
    for number in range(3):
        verdict = check(dense(seed + number, STEPS), stops=False)
        found += [f"dense, seed {seed + number}: {text}" for text in verdict.report()]
    totals = Totals()
    for scale in SCALES.values() if rounds else ():
        # What is broken is given up soon; what is whole may take its time on a slow machine.
        one_round(ROUND_S, seed, replace(scale, limit_s=LIMIT_S), totals)
    return found + totals.failures


def run(seconds: float, seed: int, *, quick: bool) -> Outcome:
    """All of them, however long that takes; quick: of those that need processes only every fifth."""
    began = time.monotonic()
    needing = [bug for bug in BUGS if bug.kind != DENSE]
    if quick:
        needing = needing[seed % 5 :: 5]
    failures = innocent(seed, rounds=not quick)
    catches = hunt([bug for bug in BUGS if bug.kind == DENSE] + needing, seed)
    failures += [f"seed {seed}: nobody noticed that {each.bug.name}" for each in catches if not each.law]
    slowest = max(catches, key=lambda each: each.seconds)
    figures: dict[str, int | float | str] = {
        "defects planted": len(catches),
        "noticed": sum(bool(each.law) for each in catches),
        "median seconds to notice": round(median(each.seconds for each in catches), 2),
        "longest seconds to notice": round(slowest.seconds, 2),
        "longest": slowest.bug.name,
        "seconds": round(time.monotonic() - began, 1),
        "of": seconds,
    }
    return Outcome("seeded", figures, failures)
