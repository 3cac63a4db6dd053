"""The fuzzing part counts what it does, and tells of a broken law with the input that broke it."""

from __future__ import annotations

import base64
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fuzz import child, part
from tests.fuzz.child import load
from tests.fuzz.part import fuzz, is_guided, kept
from tests.fuzz.table import TARGETS, Shape

SMALL = Shape(1, 8, (), ("tests.fuzz.planted",))

HOWS = [
    pytest.param(True, id="guided", marks=pytest.mark.skipif(not is_guided(), reason="there is no atheris")),
    pytest.param(False, id="blind"),
]


@pytest.fixture
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    is_guided: bool = request.param
    monkeypatch.setattr(part, "is_guided", lambda: is_guided)
    return is_guided


@pytest.mark.parametrize("how", HOWS, indirect=True)
def test_executions_are_counted_and_a_target_whose_laws_hold_has_no_failure(how: bool) -> None:
    before = kept("hello")
    outcome = fuzz({"hello": TARGETS["hello"]}, 1.0, 7)
    assert outcome.failures == []
    assert outcome.figures["fuzz_hello"] == outcome.figures["fuzz_executions"]
    assert int(outcome.figures["fuzz_executions"]) >= len(before)
    assert kept("hello") == before


@pytest.mark.parametrize("how", HOWS, indirect=True)
def test_a_broken_law_is_told_with_the_input_that_broke_it(how: bool) -> None:
    outcome = fuzz({"tests.fuzz.planted": SMALL}, 20.0, 7)
    (failure,) = outcome.failures
    assert "AssertionError: planted" in failure
    found = re.search(r"in base64: (\S+)", failure)
    assert found is not None
    with pytest.raises(AssertionError, match="planted"):
        load("tests.fuzz.planted")(base64.b64decode(found[1].encode()))


def test_the_same_seed_draws_the_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[bytes]] = []
    for _ in range(2):
        seen: list[bytes] = []
        looks = itertools.count()
        monkeypatch.setattr(child, "load", lambda _, seen=seen: seen.append)
        monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda looks=looks: next(looks)))
        child.blind("hello", 100, 5, 100, tmp_path)
        runs.append(seen)
    assert len(runs[0]) > 10
    assert runs[0] == runs[1]


def test_a_target_that_cannot_be_loaded_is_a_failure() -> None:
    outcome = fuzz({"tests.fuzz.no_such_target": SMALL}, 0.1, 7)
    (failure,) = outcome.failures
    assert "ModuleNotFoundError" in failure
