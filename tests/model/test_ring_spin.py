"""The same protocol in Promela, searched by spin where it is installed: another search, store buffers written anew."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("ring.pml")
PLANTED = {
    "NO_FENCE_BEFORE_SECOND_LOOK": "invalid end state",
    "NO_FENCE_BEFORE_LOOK_AT_BELL": "invalid end state",
    "NO_SECOND_LOOK": "invalid end state",
    "NEVER_ASKS_FOR_ROOM": "invalid end state",
    "TAIL_BEFORE_DATA": "assertion violated",
    "NO_LAST_LOOK": "assertion violated",
}
AT_MOST_S = 50

pytestmark = pytest.mark.skipif(shutil.which("spin") is None or shutil.which("gcc") is None, reason="skipped: no spin")


def verify(folder: Path, *defects: str) -> str:
    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=AT_MOST_S, check=True)
        return done.stdout

    run("spin", *(f"-D{defect}" for defect in defects), "-a", str(MODEL))
    run("gcc", "-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c")
    return run("./pan", "-m100000")


def test_spin_finds_nothing_in_the_protocol(tmp_path: Path) -> None:
    told = verify(tmp_path)
    assert re.search(r"errors: 0\b", told), told
    assert "max search depth too small" not in told
    assert "unreached in proctype" in told
    states = re.search(r"(\d+) states, stored", told)
    assert states is not None
    assert int(states[1]) > 1000


@pytest.mark.parametrize(("defect", "finding"), PLANTED.items())
def test_spin_finds_what_is_planted(tmp_path: Path, defect: str, finding: str) -> None:
    told = verify(tmp_path, defect)
    assert finding in told, told
