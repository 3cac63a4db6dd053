"""`scripts/prove` runs parts side by side, shows what they did, and ends with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prove import __main__ as prove
from tests.prove import memory
from tests.prove.part import Outcome
from tests.prove.parts import PARTS, Entry


def test_the_memory_of_a_broker_does_not_grow() -> None:
    outcome = memory.run(0.0, 1, quick=True)
    assert outcome.failures == []
    assert outcome.figures["messages published, polled and acked"] >= 100_000  # type: ignore[operator]


def test_every_part_has_a_name_of_its_own_and_can_be_loaded() -> None:
    assert len({entry.name for entry in PARTS}) == len(PARTS)
    for entry in PARTS:
        assert callable(entry.load())


def test_nothing_failed_ends_with_what_was_proved(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [Outcome("chaos", {"messages verified": 12_345, "by": "hand"}), Outcome("fuzz", {"executions": 7})]
    assert prove._say(outcomes, 5, 61.0) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "proved in 61 s: 12,345 messages verified; 7 executions; 0 lost, 0 wrong; seed 5"


def test_one_failure_ends_with_where_it_was_and_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [Outcome("chaos", failures=["m3 was lost", "m4 was lost"]), Outcome("fuzz", {"executions": 7})]
    assert prove._say(outcomes, 5, 61.0) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "FAILED: 2 found in chaos; seed 5, 61 s"


def test_a_part_that_breaks_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    entry = Entry("no such part", "tests.prove.memory", 1.0, 1.0)
    (outcome,) = prove._run_all([entry], {entry.name: 1.0}, 1, 1, True, tmp_path)
    (failure,) = outcome.failures
    assert failure.startswith("it ended with 1 after")
    assert "StopIteration" in failure


def test_no_part_gets_more_than_the_whole_time() -> None:
    options = prove._options(["--minutes", "10"])
    seconds = prove._seconds(PARTS, options, 64)
    assert max(seconds.values()) <= 600.0
    assert sum(prove._seconds(PARTS, options, 2).values()) <= 1200.0 + 1e-6
