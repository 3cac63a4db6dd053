"""The tester is tested: each planted defect is found, in few seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.defects import DEFECTS
from tests.simulation.simulation import run_seed

SEEDS = range(1, 41)


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        result = run_seed(seed, 2_000, interrupts=seed % 2 == 0)
        if result.failures:
            first = result.failures[0].splitlines()[0]
            print(first)
            assert "raised Traceback" not in first  # that would be a defect of the simulation's own
            return
    pytest.fail(f"not in {len(SEEDS)} seeds")
