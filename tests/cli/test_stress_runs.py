"""The stress as a command: real processes, real kills."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mpbroker.cli.app import app
from mpbroker.cli.stress import conductor
from mpbroker.cli.stress.conductor import Outcome
from mpbroker.cli.stress.ledger import Check, Offenders
from mpbroker.cli.stress.plan import Plan
from tests.cli.support import mpbroker, running

METHODS = ["fork", "spawn", "forkserver"]
SHORT = ("--publishers", "2", "--messages", "40", "--workers", "2")


def stress(*options: str) -> dict[str, Any]:
    """Run it and return its report; it must have passed."""
    done = mpbroker("stress", *options, "--json")
    assert done.stderr == ""
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, [check for check in report["checks"] if not check["holds"]]
    assert report["passed"]
    return report


def test_a_thousand_messages_are_each_acked_once_by_one_of_three_workers() -> None:
    done = mpbroker("stress")

    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert done.stdout.startswith("stress: 4 publishers x 250 messages, 1 group of 3 workers, 1 observer")
    assert done.stdout.endswith("all checks passed\n")
    assert set("\x1b\r").isdisjoint(done.stdout)


@pytest.mark.parametrize("method", METHODS)
def test_without_kills_nothing_is_delivered_twice(method: str) -> None:
    report = stress(*SHORT, "--start-method", method)

    assert report["plan"]["start_method"] == method
    assert report["redelivered"] == 0
    assert sum(report["shares"].values()) == 80


@pytest.mark.parametrize("method", METHODS)
def test_each_kill_strikes_a_worker_that_holds_messages(method: str) -> None:
    report = stress(*SHORT, "--start-method", method, "--kill-workers", "2", "--batch", "3")

    assert len(report["kills"]) == 2
    assert all(kill["held"] >= 1 for kill in report["kills"])
    assert report["redelivered"] == sum(kill["held"] for kill in report["kills"])
    assert sum(report["shares"].values()) == 80


def test_more_workers_are_killed_than_there_are_at_a_time() -> None:
    report = stress("--publishers", "1", "--messages", "30", "--workers", "2", "--kill-workers", "7")

    assert len(report["kills"]) == 7
    assert len(report["shares"]) == 9


def test_the_one_message_survives_all_its_workers() -> None:
    report = stress("--publishers", "1", "--messages", "1", "--workers", "1", "--kill-workers", "4")

    assert [kill["held"] for kill in report["kills"]] == [1, 1, 1, 1]
    assert report["redelivered"] == 4
    assert list(report["shares"].values()) == [0, 0, 0, 0, 1]


def test_groups_priorities_batches_and_kills_go_together() -> None:
    report = stress(
        *SHORT,
        "--subscriptions",
        "2",
        "--priorities",
        "--batch",
        "7",
        "--kill-workers",
        "3",
        "--payload-bytes",
        "5000",
        "--seed",
        "9",
    )

    assert len(report["kills"]) == 3
    assert sum(report["shares"].values()) == 160
    assert report["subscriptions"]["observer"]["acked"] == 80


@pytest.mark.slow
def test_many_messages_are_verified_one_by_one() -> None:
    report = stress("--messages", "10000", "--batch", "100", "--kill-workers", "2")

    assert sum(report["shares"].values()) == 40_000
    assert report["broker"]["peak_memory"] >= report["broker"]["memory"] > 0
    assert report["latency_seconds"]["p50"] <= report["latency_seconds"]["max"]


def test_a_run_that_takes_too_long_says_what_is_left_of_it() -> None:
    done = mpbroker("stress", "--timeout", "0.001")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("mpbroker: the run did not end in 0.001 s; what is left of it:\n  observer: ")
    assert "publisher 3: " in done.stderr


def test_a_check_that_fails_is_told_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    offenders = Offenders()
    offenders.add_ids("were never acked", [7, 8])
    outcome = Outcome(Plan(), "fork", [Check("every id was acked", offenders)])
    monkeypatch.setattr(conductor, "run", lambda *_: outcome)

    text = CliRunner().invoke(app, ["stress"])
    report = CliRunner().invoke(app, ["stress", "--json"])

    assert text.exit_code == report.exit_code == 1
    assert "FAILED  every id was acked\n            2 were never acked: m7, m8" in text.output
    assert json.loads(report.output)["checks"] == [
        {"law": "every id was acked", "holds": False, "offenders": 2, "named": ["2 were never acked: m7, m8"]}
    ]


def test_sigterm_ends_a_run_in_order() -> None:
    with running("stress", "--messages", "1000000") as run:
        _wait_for_children(run.process.pid)
        run.process.terminate()

        assert run.end() == 128 + signal.SIGTERM
        assert (run.written, run.errors()) == ("", "")


def test_nobody_survives_a_run_that_is_killed(tmp_path: Path) -> None:
    # What it wrote down stays, as there is nobody to remove it.
    with running("stress", "--messages", "1000000", env={"TMPDIR": str(tmp_path)}) as run:
        _wait_for_children(run.process.pid)
        os.kill(run.process.pid, signal.SIGKILL)

        assert run.end() == -signal.SIGKILL
        assert (run.written, run.errors()) == ("", "")


def _wait_for_children(pid: int) -> None:
    """Until the broker, all publishers, workers and the observer run."""
    import psutil

    from tests.conformance.support import until

    until(lambda: len(psutil.Process(pid).children()) >= 9)
