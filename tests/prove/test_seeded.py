"""Some of the defects that the checker must notice, and none where there is none; `scripts/prove` takes them all."""

from __future__ import annotations

import pytest

from mpbroker.engine.places import Places
from tests.prove.bugs.plant import BUGS, DENSE, Bug, every, instead
from tests.prove.seeded import hunt, innocent

ENGINE = [bug for bug in BUGS if bug.kind == DENSE]
NAMED = {"a publish is applied twice", "a consumer yields the last message of a run twice"}


def test_there_are_enough_defects_and_each_has_a_name() -> None:
    assert len(BUGS) >= 85
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert all(bug.laws for bug in BUGS)


def test_work_without_a_defect_breaks_no_law() -> None:
    assert innocent(3, rounds=False) == []


@pytest.mark.parametrize("bug", ENGINE[::6], ids=lambda bug: bug.name)
def test_a_defect_of_the_engine_is_noticed(bug: Bug) -> None:
    assert hunt([bug], 1)[0].law


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in NAMED], ids=lambda bug: bug.name)
def test_a_defect_of_a_process_is_noticed(bug: Bug) -> None:
    assert hunt([bug], 1)[0].law


def test_a_defect_is_gone_once_it_was_planted() -> None:
    before = [vars(Places)["put"], vars(Places)["grant"]]
    for bug in ENGINE[:6]:
        with bug.plant():
            pass

    assert [vars(Places)["put"], vars(Places)["grant"]] == before


def test_what_is_inherited_is_so_again() -> None:
    class Parent:
        word = "one"

    class Child(Parent):
        pass

    with instead(Child, "word", lambda word: word + " two"):
        assert Child.word == "one two"
    assert "word" not in vars(Child)
    assert Child.word == "one"


def test_a_rare_defect_strikes_every_so_many_times() -> None:
    strikes = every(3)

    assert [strikes() for _ in range(7)] == [False, False, True, False, False, True, False]
