"""The command line, turns, and contestants that are not here or fail."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import driver
from bench.driver import choose, main, measure, run
from bench.results import Report, read
from bench.terms import Scale, Terms
from bench.workload import Contestant, NotHere, Outcome, Side, Target, Workload
from bench.workloads import WORKLOADS

TINY = Terms(Scale.TINY)
HARD_LIMIT_S = 50.0


class Turns:
    """A workload of three: a is ours, b answers, and c does what it is told."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.taken: list[str] = []
        self._trouble = trouble
        self.workload = Workload(
            "T1",
            "turns",
            "turns",
            higher_is_better=True,
            contestants=(self._one("a", Side.OURS), self._one("b"), self._one("c")),
            targets=(Target("a", "b", 1.0),),
        )

    def _one(self, name: str, side: Side = Side.PEER) -> Contestant:
        def take(terms: Terms) -> Outcome:
            self.taken.append(name)
            if name == "c" and self._trouble is not None:
                raise self._trouble
            return Outcome(float(len(self.taken)), {"so far": 1.0})

        return Contestant(name, take, side)


def test_contestants_take_turns() -> None:
    turns = Turns()

    figures = run(turns.workload, TINY, 3)

    assert turns.taken == ["a", "b", "c"] * 3
    assert [figure.rounds for figure in figures] == [[1.0, 4.0, 7.0], [2.0, 5.0, 8.0], [3.0, 6.0, 9.0]]
    assert figures[0].also == {"so far": [1.0, 1.0, 1.0]}


def test_one_that_is_not_here_is_told_with_its_reason_and_not_asked_again() -> None:
    turns = Turns(NotHere("it needs another system"))

    figures = run(turns.workload, TINY, 3)

    assert turns.taken.count("c") == 1
    assert (figures[2].name, figures[2].absent, figures[2].rounds) == ("c", "it needs another system", [])


def test_one_that_fails_is_told_and_the_others_go_on() -> None:
    turns = Turns(RuntimeError("broken"))

    figures = run(turns.workload, TINY, 2)

    assert turns.taken == ["a", "b", "c", "a", "b"]
    assert figures[2].failed == "RuntimeError: broken"


def test_peers_are_chosen_by_a_part_of_their_name_and_ours_are_always_there() -> None:
    turns = Turns()

    assert [figure.name for figure in run(turns.workload, TINY, 1, ["B"])] == ["a", "b"]


def test_a_failure_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for trouble, code in ((RuntimeError("broken"), 1), (NotHere("away"), 0), (None, 0)):
        monkeypatch.setattr(driver, "WORKLOADS", (Turns(trouble).workload,))

        assert main(["--quick"]) == code
    assert "FAILED  RuntimeError: broken" in capsys.readouterr().out


def test_a_run_is_kept_and_shown_again_from_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "WORKLOADS", (Turns().workload,))
    kept = str(tmp_path / "results.json")

    assert main(["--rounds", "2", "--json", kept]) == 0
    first = capsys.readouterr().out
    assert main(["--from", kept]) == 0

    assert capsys.readouterr().out == first
    assert read(Path(kept)).rounds == 2


def test_the_readme_table_is_all_that_is_printed(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.write(tmp_path / "results.json")

    assert main(["--readme", "--from", str(tmp_path / "results.json")]) == 0

    assert capsys.readouterr().out.startswith("Measured on 2 CPUs")


@pytest.mark.timeout(300)  # the first may have to make the fonts known to matplotlib
@pytest.mark.usefixtures("drawing")
def test_a_chart_is_drawn_from_a_file(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "results.json")

    assert main(["--from", str(tmp_path / "results.json"), "--chart", str(tmp_path / "chart")]) == 0

    assert (tmp_path / "chart.png").is_file()
    assert (tmp_path / "chart.svg").is_file()


def test_the_list_names_every_workload_and_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0

    listed = capsys.readouterr().out
    for workload in WORKLOADS:
        assert f"{workload.key}: " in listed
        assert all(f"    {contestant.name}\n" in listed for contestant in workload.contestants)


def test_a_family_is_all_its_workloads() -> None:
    assert [workload.key for workload in choose(["P6"])] == ["P6-calls", "P6-batches", "P6-pipelined", "P6-memory"]
    assert [workload.key for workload in choose(["P7-broker", "P1"])] == ["P1", "P7-broker"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "P99"], "no workload P99; there are P1, P11"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--from", "/nowhere/at-all.json"], "/nowhere/at-all.json"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_run_has_a_broker_folder_of_its_own_and_gives_the_old_one_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MPBROKER_DIR", str(tmp_path))
    seen = []

    def look(terms: Terms) -> Outcome:
        seen.append(os.environ["MPBROKER_DIR"])
        return Outcome(1.0)

    workload = Workload("T2", "", "", higher_is_better=True, contestants=(Contestant("a", look, Side.OURS),))
    measure([workload], argparse.Namespace(quick=True, transport=None, rounds=1, peers=None, readme=True))

    assert seen != [str(tmp_path)]
    assert not Path(seen[0]).exists()
    assert os.environ["MPBROKER_DIR"] == str(tmp_path)


def test_a_run_that_is_told_to_end_takes_its_round_along(temporary: Path) -> None:
    """Its children, the server of a peer or a broker, and its folders."""
    command = [sys.executable, "-m", "bench", "--only", "P11", "--rounds", "1000"]
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]))
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run_of_it:
        assert run_of_it.stderr is not None
        assert "P11 round 1/1000" in run_of_it.stderr.readline()
        run_of_it.terminate()
        run_of_it.communicate(timeout=HARD_LIMIT_S)

    assert run_of_it.returncode == 128 + signal.SIGTERM
    assert list(temporary.iterdir()) == []


def test_a_transport_that_this_version_does_not_know_is_not_here() -> None:
    turns = [contestant for contestant in choose(["P11"])[0].contestants if contestant.name == "workers that poll"]

    with pytest.raises((NotHere, ValueError)):
        turns[0].round(Terms(Scale.TINY, "carrier pigeon"))
