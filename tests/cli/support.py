"""What the tests of the command line share: real commands in processes of their own, each wait with a limit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LIMIT_S: Final = 40.0
"""The hard limit of every wait; far from what any of them takes on a busy machine."""

ROOT: Final = Path(__file__).resolve().parents[2]
COMMAND: Final = (sys.executable, "-m", "mpbroker")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def mpbroker(
    *arguments: str | bytes, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        timeout=LIMIT_S,
        env=environment(**(env or {})),
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode("utf-8", "backslashreplace")
    )


class Running:
    """A command that runs, and what it wrote on stdout so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.written = ""

    def wait_for(self, text: str) -> None:
        """Read until it wrote that."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + LIMIT_S
        while text not in self.written:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, left))
            assert readable, f"{text!r} did not come; there is {self.written!r}"
            chunk = os.read(self.process.stdout.fileno(), 65536)
            assert chunk, f"it ended without {text!r}: {self.written!r}, {self.errors()!r}"
            self.written += chunk.decode()

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal does: SIGINT for the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """Wait for the end; the exit code. What it wrote meanwhile is kept."""
        output, errors = self.process.communicate(timeout=LIMIT_S)
        self.written += output.decode()
        self._errors = errors.decode()
        return self.process.returncode

    def errors(self) -> str:
        """What it wrote on stderr; it has ended."""
        if not hasattr(self, "_errors"):
            self.end()
        return self._errors


@contextmanager
def running(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Iterator[Running]:
    """A command in a process group of its own; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**(env or {})),
        start_new_session=True,
        cwd=cwd,
    )
    with process:
        try:
            yield Running(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def serving(*options: str, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """A broker that is ready; ended at the end."""
    with running("serve", *options, env=env) as broker:
        broker.wait_for("ready")
        yield broker
        if broker.process.poll() is None:
            broker.process.terminate()
            assert broker.end() == 0
