"""The wheel: pure unless MPBROKER_COMPILE asks for more, and pure as well, with a line, where that cannot be had."""

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


def build(kind: str, target: Path, **variables: str) -> str:
    """Build a wheel as pip does, and see that it is pure; what was said."""
    script = (
        f"import sys; from hatchling.build import *; print(get_requires_for_build_{kind}()); build_{kind}(sys.argv[1])"
    )
    done = run(ROOT, "-c", script, target, **variables)
    assert done.returncode == 0, done.stderr
    (wheel,) = target.iterdir()
    with ZipFile(wheel) as archive:
        files = archive.namelist()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert files
    assert not [each for each in files if each.endswith((".so", ".pyd"))]
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "variables"),
    [("wheel", {}), ("wheel", {"MPBROKER_COMPILE": "0"}), ("editable", {"MPBROKER_COMPILE": "1"})],
)
def test_nothing_is_compiled_unless_a_wheel_is_asked_for_that_is(
    kind: str, variables: dict[str, str], tmp_path: Path
) -> None:
    said = build(kind, tmp_path, **variables)

    assert "not compiled" not in said


def test_without_a_compiler_the_wheel_is_pure_asks_for_no_mypy_and_says_so_in_one_line(tmp_path: Path) -> None:
    said = build("wheel", tmp_path, MPBROKER_COMPILE="1", CC="no-such-compiler -pthread")

    assert "mypy>" not in said
    assert [line for line in said.splitlines() if "compile" in line] == [
        "MPBROKER_COMPILE=1, but mpbroker is not compiled: there is no C compiler 'no-such-compiler' here"
    ]


def test_where_compiling_fails_the_wheel_is_pure_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "mypyc.py").write_text("raise ImportError('a mypy that is broken')\n", encoding="utf-8")
    (tmp_path / "dist").mkdir()

    said = build("wheel", tmp_path / "dist", MPBROKER_COMPILE="1", PYTHONPATH=str(tmp_path))

    assert "MPBROKER_COMPILE=1, but mpbroker is not compiled" in said
