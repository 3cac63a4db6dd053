"""A peer's server for one round: in a temporary folder, gone with the round, and with the run if that is killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.crew import TIE_TO_PARENT

_START_S: Final = 30.0
_STOP_S: Final = 10.0
_PAUSE_S: Final = 0.01
_TIED: Final = (
    (sys.executable, "-I", "-S", "-c", f"{TIE_TO_PARENT}; import os, sys; os.execv(sys.argv[1], sys.argv[1:])")
    if sys.platform == "linux"
    else ()
)
"""A program that becomes the server, once it is tied to the run; a fork of the run that did it itself could hang."""

_SAID_BYTES: Final = 2_000
"""Of what a server wrote, shown when it does not come up."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder for one round, with a short path, since sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="mpb-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextlib.contextmanager
def served(command: Sequence[str], place: Path, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Run a server while the block runs.

    Raises:
        RuntimeError: it ended, or was not ready in time; with what it wrote.
    """
    log = place / "server.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*_TIED, *command],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            cwd=place,
        )
    try:
        deadline = time.monotonic() + _START_S
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-_SAID_BYTES:]
                raise RuntimeError(f"{command[0]} did not come up; it wrote:\n{said}")
            time.sleep(_PAUSE_S)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)
