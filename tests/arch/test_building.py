"""The wheel: pure unless MPBROKER_COMPILE asks for more, and an error where that cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 50


def run(folder: Path, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "MPBROKER_COMPILE"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def build(kind: str, target: Path, **variables: str) -> list[str]:
    """Build a wheel as pip does; its name, and the names of what is in it."""
    script = f"import sys; from hatchling.build import build_{kind} as build; build(sys.argv[1])"
    done = run(ROOT, "-c", script, target, **variables)
    assert done.returncode == 0, done.stderr
    (wheel,) = target.iterdir()
    with ZipFile(wheel) as archive:
        return [wheel.name, *archive.namelist()]


@pytest.mark.parametrize(
    ("kind", "variables"),
    [("wheel", {}), ("wheel", {"MPBROKER_COMPILE": "0"}), ("editable", {"MPBROKER_COMPILE": "1"})],
)
def test_nothing_is_compiled_unless_a_wheel_is_asked_for_that_is(
    kind: str, variables: dict[str, str], tmp_path: Path
) -> None:
    name, *files = build(kind, tmp_path, **variables)

    assert name.endswith("-py3-none-any.whl")
    assert files
    assert not [each for each in files if each.endswith((".so", ".pyd"))]


def test_a_compilation_that_cannot_be_is_an_error_that_says_what_it_needs(tmp_path: Path) -> None:
    # -S: without what is installed, and so without mypy.
    done = run(tmp_path, "-I", "-S", ROOT / "scripts" / "_compile.py", ROOT, tmp_path)

    assert done.returncode == 1
    assert "mypyc" in done.stderr
    assert "MPBROKER_COMPILE=1 needs a C compiler" in done.stderr
    assert not list(tmp_path.iterdir())
