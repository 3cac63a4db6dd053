"""Commands in a terminal of their own, with somebody at the keyboard."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.cli.support import COMMAND, LIMIT_S, environment

_PATIENCE_S: Final = LIMIT_S / 4
"""After which a person presses a key once more; longer than any end takes."""


class Terminal:
    """A terminal in which one command runs; what it showed so far is in `shown`."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master

    def wait_for(self, text: str) -> None:
        """Until that is shown."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self.shown:
            assert self._read(deadline), f"it ended without {text!r}: {self.shown}"

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    def end(self) -> int:
        """Until it has ended; the exit code."""
        deadline = time.monotonic() + LIMIT_S
        while self._read(deadline):
            pass
        return self.process.wait(LIMIT_S)

    def end_by_ctrl_c(self) -> int:
        """Press it, and once more after a while, as a person would: what comes just before a read begins does not end
        it. The exit code."""
        self.press_ctrl_c()
        deadline = time.monotonic() + _PATIENCE_S
        while self._has_more(deadline):
            if not self._read(deadline):
                return self.end()
        self.press_ctrl_c()
        return self.end()

    def _has_more(self, deadline: float) -> bool:
        """Whether it shows more by then, or ends."""
        readable, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        return bool(readable)

    def _read(self, deadline: float) -> bool:
        assert self._has_more(deadline), f"nothing more came; there is {self.shown}"
        try:
            chunk = os.read(self._master, 65536)
        except OSError:
            return False  # Linux: the last process at the other side has ended
        self.shown += chunk.decode("utf-8", "replace")
        return bool(chunk)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    """Run a command as the foreground process group of a new terminal."""
    import fcntl
    import termios

    master, slave = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(TERM="xterm", COLUMNS="100"),
        start_new_session=True,
        preexec_fn=take_terminal,  # noqa: PLW1509 - one system call
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(master)
