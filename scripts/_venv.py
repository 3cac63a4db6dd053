"""Make or reuse the virtual environment of this checkout; print the path of its interpreter.

Usage: _venv.py FOLDER EXTRA. Run by scripts/_env with Python 3.11 or newer and nothing installed,
so it uses the standard library alone. What it has to say goes to stderr.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDES = {
    "dev": {"bench", "proctitle", "test"},
    "fuzz": {"proctitle", "test"},
    "test": {"proctitle"},
}
"""Extras that bring other extras along, as pyproject.toml has it."""

PROBE = """
import importlib.util, sys
print(sys.version_info[0], sys.version_info[1], importlib.util.find_spec("pip") is not None)
"""


def main() -> int:
    folder, extra = Path(sys.argv[1]).absolute(), sys.argv[2]
    python = folder / "bin" / "python"
    with only_one():
        if not usable(python):
            make(folder)
        wanted = {extra} if extra else set()
        installed = read_stamp(folder)
        if installed is None or not wanted <= installed:
            install(python, folder, wanted | (installed or set()))
    print(python)
    return 0


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Two scripts started at once must not build one environment together."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another script is setting up the environment; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def usable(python: Path) -> bool:
    """Whether the environment runs, has pip, and is of the version that called."""
    try:
        probe = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    expected = f"{sys.version_info[0]} {sys.version_info[1]} True"
    return probe.returncode == 0 and probe.stdout.strip() == expected


def make(folder: Path) -> None:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        fail(
            f"{sys.executable} comes without venv or ensurepip, so it cannot make an environment.\n"
            "Install them (Debian and Ubuntu: apt install python3-venv), or name another Python:\n"
            "MPBROKER_PYTHON=/path/to/python3"
        )
    if folder.exists():
        ours = folder.is_dir() and ((folder / "pyvenv.cfg").is_file() or not any(folder.iterdir()))
        if not ours:
            fail(f"{folder} exists and is no virtual environment; move it or set MPBROKER_VENV")
        say(f"{folder} is of another Python or incomplete: making it anew")
        shutil.rmtree(folder)
    run(
        [sys.executable, "-I", "-m", "venv", folder],
        f"{sys.executable} could not make an environment in {folder}",
    )


def install(python: Path, folder: Path, extras: set[str]) -> None:
    say(f"installing mpbroker into {folder}; this is done once and takes up to a minute")
    stamp_path(folder).unlink(missing_ok=True)
    target = str(ROOT) + (f"[{','.join(sorted(extras))}]" if extras else "")
    run(
        [python, "-I", "-m", "pip", "install", "--quiet", "--editable", target],
        "pip could not install mpbroker and what it needs; is a package index within reach?",
    )
    stamp = {"key": key(), "extras": sorted(extras)}
    stamp_path(folder).write_text(json.dumps(stamp), encoding="utf-8")


def run(command: list[str | Path], complaint: str) -> None:
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PIP_USER="0")
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    if result.returncode != 0:
        fail(f"{result.stdout}\n{complaint}")


def key() -> str:
    """Changes when what is installed may no longer be what this checkout asks for."""
    digest = hashlib.sha256(f"{ROOT}\0{sys.version_info[:2]}\0".encode())
    for name in ("pyproject.toml", "mpbroker/_version.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def stamp_path(folder: Path) -> Path:
    return folder / "mpbroker-installed.json"


def read_stamp(folder: Path) -> set[str] | None:
    """The extras installed for the present key; None when it is not installed."""
    try:
        stamp = json.loads(stamp_path(folder).read_text(encoding="utf-8"))
        if stamp["key"] != key():
            return None
        extras = set(stamp["extras"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return extras.union(*(INCLUDES.get(extra, set()) for extra in extras))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fail(text: str) -> None:
    say(text)
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
