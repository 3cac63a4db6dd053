"""A report of fixed figures, and a temporary folder of each test's own that must be empty again at its end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.sharedctypes import RawArray
from pathlib import Path

import pytest

from bench.chart import draw
from bench.results import Figure, Report, Result
from bench.workload import Side, Target


@pytest.fixture(scope="session", autouse=True)
def _heap_of_multiprocessing() -> None:
    """What multiprocessing keeps for the life of a process once a peer shares memory through it: not the round's."""
    RawArray("b", 2**18)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What TMPDIR is for the test and its children; short, because sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="mpt-", dir="/tmp" if Path("/tmp").is_dir() else None))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For tests that draw: matplotlib is here, and keeps its fonts open for the life of the process already."""
    pytest.importorskip("matplotlib")
    draw(fixed_report(), tmp_path_factory.mktemp("chart") / "first")


@pytest.fixture
def report() -> Report:
    return fixed_report()


def fixed_report() -> Report:
    """Fast beats slow by 4, gone is not here, and of the targets two are reached and two are not."""
    speed = Result(
        key="P1",
        title="how fast",
        unit="messages/s",
        higher_is_better=True,
        figures=[
            Figure("fast", Side.OURS, [400_000.0, 300_000.0, 500_000.0]),
            Figure("slow", Side.PEER, [100_000.0, 100_000.0, 50_000.0], {"99th percentile": [7.0, 8.0, 9.0]}),
            Figure("gone", Side.PEER, absent="it is not installed"),
        ],
        targets=[
            Target("fast", "slow", 4.0, at_least=True),
            Target("fast", "slow", 4.5, at_least=True),
            Target("fast", "gone", 1.0, at_least=True),
        ],
    )
    idle = Result(
        key="P11",
        title="how idle",
        unit="s",
        higher_is_better=False,
        figures=[Figure("still", Side.OURS, [0.0, 0.0, 0.1]), Figure("busy", Side.OURS, [0.1, 0.1, 0.1])],
        targets=[Target("still", None, 0.1, below=True), Target("busy", None, 0.1, below=True)],
    )
    machine = {
        "mpbroker": "1.2.3",
        "transport": "ring",
        "python": "3.11.7",
        "system": "Linux 6",
        "machine": "x86_64",
        "cpus": "2",
        "memory": "4 GiB",
        "date": "2026-01-02",
    }
    return Report(machine, "full", 3, [speed, idle])
