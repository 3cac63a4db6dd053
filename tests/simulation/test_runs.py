"""Seeds that run clean, and that one seed is one run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.part import run
from tests.simulation.recorded import run_recorded
from tests.simulation.simulation import run_seed

ONE = """
from tests.simulation.simulation import run_seed
print(*(run_seed(seed, 500).trace for seed in (3, 5)))
"""


@pytest.mark.parametrize("seed", range(1, 7))
def test_what_was_accepted_is_delivered_and_everything_ends_whatever_goes_wrong(seed: int) -> None:
    result = run_seed(seed, 2_000)
    assert result.failures == []
    assert result.calls > 100


def test_one_seed_is_one_run() -> None:
    first, second, other = run_seed(3, 500), run_seed(3, 500), run_seed(4, 500)
    assert first == second
    assert first.trace != other.trace


def test_one_seed_is_one_run_whatever_hashes_strings_have() -> None:
    traces = {
        subprocess.run(
            [sys.executable, "-c", ONE],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=True,
            capture_output=True,
            text=True,
            timeout=50,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(traces) == 1
    assert traces.pop().split() == [run_seed(seed, 500).trace for seed in (3, 5)]


def test_the_part_tells_what_it_did() -> None:
    outcome = run(1.0, 100, quick=True)
    assert outcome.failures == []
    assert outcome.figures["seeds"]
    assert outcome.figures["operations"]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_checker_finds_nothing_in_the_histories_of_a_run(seed: int) -> None:
    verdict, failures = run_recorded(seed, 1_500)
    assert failures == []
    assert verdict.violations == []
    assert verdict.acked > 50
