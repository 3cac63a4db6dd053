"""Small modules, no loose ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.arch.source import ROOT

FOLDERS = ("mpbroker", "tests", "bench", "scripts", ".ci")
LONGEST = 450
"""Lines: past that a module has two ideas."""

LONGEST_OF_TABLES = {"mpbroker/process/frames.py": 700}
"""One list of many small entries, which two modules would only scatter."""

LONGEST_TEST = 650
"""Tests may be longer: their tables of cases say one thing many times."""

MARKERS = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")


def sources(*suffixes: str) -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts
    ]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sources(".py"), ids=name)
def test_no_module_outgrows_one_idea(path: Path) -> None:
    limit = LONGEST_TEST if name(path).startswith("tests/") else LONGEST_OF_TABLES.get(name(path), LONGEST)
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= limit


def test_nothing_is_left_for_later_in_the_source() -> None:
    found = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in sources(".py", ".lark", "")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MARKERS.search(line)
    ]
    assert found == []


def test_a_planted_marker_is_found() -> None:
    assert MARKERS.search("# TO" + "DO: later")
    assert not MARKERS.search("# TO" + "DOS")


def test_every_folder_of_tests_is_a_package() -> None:
    """So that two test modules may have one name, and child processes can import them."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [name(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (ROOT / "mpbroker" / "py.typed").is_file()
