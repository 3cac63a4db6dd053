"""The demonstration as a command, on folders that are not nice."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpbroker.cli.crew import Interrupts
from mpbroker.cli.demo import pipeline, work
from mpbroker.cli.demo.compare import compare
from mpbroker.cli.demo.files import find
from mpbroker.cli.demo.work import Failed
from tests.cli.support import LIMIT_S, mpbroker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of several kinds, and some that cannot be worked on."""
    for number in range(60):
        (tmp_path / f"module{number}.py").write_text(f"def f{number}():\n    return {number}\n")
        (tmp_path / f"text{number}.txt").write_text(f"{number}\n" * number)
    (tmp_path / "broken.py").write_text("def broken(:\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def over_broker(folder: Path, before: Callable[[], None] = lambda: None) -> tuple[pipeline.Pass, pipeline.BrokerPass]:
    """Both passes over a folder."""
    found = find(os.fsencode(folder)).files
    with Interrupts() as interrupts, interrupts.limit(LIMIT_S, "the test"):
        plain, reached = pipeline.plain(found, interrupts, lambda _: None)
        before()
        return plain, pipeline.over_broker(reached, interrupts, lambda _: None)


def test_everything_comes_out_as_expected_on_real_files(folder: Path) -> None:
    done = mpbroker("demo", "--path", str(folder))

    assert (done.returncode, done.stderr) == (0, "")
    assert "DIFFERS" not in done.stdout
    assert "all checks passed" in done.stdout
    assert "121 files" in done.stdout
    assert "(left out: 1 links, 1 no regular files)" in done.stdout
    assert "the same as the plain pass" in done.stdout
    assert "results: 121 digests, 60 censuses; dead letters: 1" in done.stdout
    assert re.search(r"census  \S+/broken.py  SyntaxError: ", done.stdout)
    assert re.search(r"killed: digest \d, while it held (\d+) messages?; redelivered: \1;", done.stdout)
    assert done.stdout.endswith("everything came out as expected\n")
    assert set("\x1b\r").isdisjoint(done.stdout)


def test_an_empty_folder_is_no_error(tmp_path: Path) -> None:
    done = mpbroker("demo", "--path", str(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")
    assert "There are no files to work on." in done.stdout


def test_one_worker_is_killed_while_it_holds_messages_and_nothing_is_lost(folder: Path) -> None:
    plain, done = over_broker(folder)

    assert compare(plain.outcomes, done.outcomes, work.outcome).differences == []
    assert len(done.outcomes) == 121 + 61
    assert done.killed.startswith("digest ")
    assert done.killed_held >= 1
    assert done.redelivered == done.killed_held
    assert done.results_twice >= 1
    assert sum(done.shares.values()) == 121 + 61


def test_a_single_file_is_worked_on_too(tmp_path: Path) -> None:
    (tmp_path / "only.py").write_text("x = 1\n")
    plain, done = over_broker(tmp_path)

    assert done.outcomes == plain.outcomes
    assert done.redelivered == done.killed_held == 1


def test_files_that_vanish_in_between_become_dead_letters(folder: Path) -> None:
    def remove() -> None:
        for path in folder.glob("*.txt"):
            path.unlink()

    plain, done = over_broker(folder, remove)

    comparison = compare(plain.outcomes, done.outcomes, work.outcome)
    assert comparison.differences == []
    assert len(comparison.changed) == 60
    assert done.dead == 61
    errors = [outcome for outcome in done.outcomes.values() if isinstance(outcome, Failed)]
    assert sum(error.error.startswith("FileNotFoundError: ") for error in errors) == 60


def test_names_that_are_no_text_are_worked_on_and_shown(tmp_path: Path) -> None:
    name = os.path.join(os.fsencode(tmp_path), b"bad\xff\n.py")
    try:
        fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    except OSError:
        pytest.skip("this file system takes names that are text alone")
    os.write(fd, b"def (:\n")
    os.close(fd)

    done = mpbroker("demo", "--path", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "bad\\udcff\\n.py  SyntaxError" in done.stdout


def test_a_result_that_differs_ends_with_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from mpbroker.cli.app import app

    over = pipeline.over_broker

    def tamper(*arguments: Any) -> pipeline.BrokerPass:
        done = over(*arguments)
        done.outcomes["digest", os.fsencode(folder / "text5.txt")] = "0" * 64
        return done

    monkeypatch.setattr(pipeline, "over_broker", tamper)
    result = CliRunner().invoke(app, ["demo", "--path", str(folder)])

    assert result.exit_code == 1
    assert "DIFFERENT from the plain pass: 1 result" in result.output
    assert "text5.txt" in result.output
    assert "the demonstration failed: real work" in result.output


def test_a_pass_that_is_too_long_is_cut_and_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PLAIN_S", 0.0)
    found = find(os.fsencode(folder)).files
    with Interrupts() as interrupts:
        plain, reached = pipeline.plain(found, interrupts, lambda _: None)

    assert len(reached) < len(found)
    assert {path for _, path in plain.outcomes} == {file.path for file in reached}


def test_a_worker_that_fails_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpbroker.cli.exits import CheckFailed

    def fails(path: bytes) -> str:
        raise RuntimeError("a defect")

    found = find(os.fsencode(folder)).files
    monkeypatch.setitem(work.KINDS, "digest", fails)
    monkeypatch.setattr("multiprocessing.get_context", _forking)
    with (
        Interrupts() as interrupts,
        interrupts.limit(LIMIT_S, "the test"),
        pytest.raises(CheckFailed, match="RuntimeError: a defect"),
    ):
        pipeline.over_broker(found, interrupts, lambda _: None)


def _forking(_: str | None) -> Any:
    """What was changed here is changed in the children, too."""
    from multiprocessing.context import ForkContext

    return ForkContext()
