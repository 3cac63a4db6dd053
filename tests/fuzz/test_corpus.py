"""Every kept input keeps the laws of its target, on every Python and without a fuzzer; and the targets see defects."""

from __future__ import annotations

import pytest

from tests.fuzz.child import load
from tests.fuzz.part import kept
from tests.fuzz.seeds import seeds
from tests.fuzz.table import CORPUS, KEPT_BYTES, KEPT_FILES, TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_kept_input_keeps_the_laws(name: str) -> None:
    target = load(name)
    for path in kept(name):
        try:
            target(path.read_bytes())
        except Exception as error:
            error.add_note(f"the input is {path}")
            raise


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_keeps_the_laws(name: str) -> None:
    target = load(name)
    for given in seeds(name):
        target(given)


@pytest.mark.parametrize("name", TARGETS)
def test_the_kept_inputs_of_a_target_are_few_and_small(name: str) -> None:
    files = kept(name)
    assert 1 <= len(files) <= KEPT_FILES
    assert sum(path.stat().st_size for path in files) <= KEPT_BYTES


def test_nothing_is_kept_for_a_target_that_is_none() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
