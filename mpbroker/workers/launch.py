"""A supervisor process, from the side of the process that started it.

Owns the child and the socket to it. The supervisor is a fresh interpreter, so that the owner's threads, locks, memory
and script are none of its business.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from mpbroker.errors import HandlerError, PoolEnded
from mpbroker.workers.config import PoolConfig
from mpbroker.workers.deaths import in_words
from mpbroker.workers.figures import PoolStats
from mpbroker.workers.looking import groups_left, open_board

_BOOTSTRAP: Final = """\
import sys
from multiprocessing.connection import Connection
lifeline = Connection(int(sys.argv[1]))
sys.path[:] = lifeline.recv()
lifeline._handle = None
from mpbroker.workers.entry import main
main(int(sys.argv[1]))
"""
"""Only the standard library until sys.path is the owner's. The connection must not close what the next one has."""

_ANSWER_S: Final = 30.0
"""For the supervisor to answer: it may be asking a broker that is busy, and a machine may be overloaded."""

_LOOK_S: Final = 0.05


class Supervising:
    """The supervisor of one pool.

    Attributes:
        final: what it said last, once it has ended: why, and its figures; None where it was killed.
    """

    def __init__(self, config: PoolConfig) -> None:
        """Start it, and wait until the first worker works.

        Raises:
            HandlerError: that could not load the handler. PoolEnded: the supervisor did not come up.
        """
        self.final: tuple[str, PoolStats | None] | None = None
        self._talking = threading.RLock()  # guards the connection: one request and its answer at a time
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._popen = _spawn(theirs)
            except BaseException:
                ours.close()
                raise
        self._lifeline = Connection(ours.detach())
        self._board: int | None = None
        _see_to_forks()
        _running.add(self)
        try:
            self._start(config)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    def _start(self, config: PoolConfig) -> None:
        try:
            self._lifeline.send(_path())
            self._lifeline.send(config)
            kind, *words = self._next(config.start_timeout_s + _ANSWER_S)
        except (EOFError, OSError) as error:
            how = in_words(self._popen.wait(_ANSWER_S))
            raise PoolEnded(f"its supervisor did not come up ({how})") from error
        # Kept open: it says which workers there were, when their supervisor can't.
        self._board = open_board(self.pid)
        if kind == "failed":
            reason, cause = words
            raise cause if isinstance(cause, HandlerError) else HandlerError(config.handler.name, reason)
        if kind == "ended":
            self.final = (words[0], words[1])
            self._popen.wait(_ANSWER_S)
            raise PoolEnded(words[0])

    def _next(self, timeout_s: float) -> tuple[Any, ...]:
        if not self._lifeline.poll(timeout_s):
            raise PoolEnded(f"its supervisor, process {self.pid}, did not answer within {timeout_s:g} s")
        said: tuple[Any, ...] = self._lifeline.recv()
        return said

    def stats(self) -> PoolStats:
        """Now; the last ones when it has ended. Raises PoolEnded where there are none."""
        with self._talking:
            if self.final is None:
                try:
                    self._lifeline.send("stats")
                    kind, *words = self._next(_ANSWER_S)
                    while kind not in ("stats", "ended"):
                        kind, *words = self._next(_ANSWER_S)
                except (EOFError, OSError):
                    self._is_over()
                else:
                    if kind == "stats":
                        stats: PoolStats = words[0]
                        return stats
                    self.final = (words[0], words[1])
            assert self.final is not None
            reason, last = self.final
            if last is None:
                raise PoolEnded(reason)
            return last

    def tell(self, request: str | int) -> None:
        """Ask for a stage, or "replace". One that is gone needs nothing."""
        with self._talking, suppress(OSError):
            self._lifeline.send(request)

    def wait(self, timeout_s: float | None) -> bool:
        """Until it has ended; False when it runs on after so long. Signal handlers may raise out of it."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            step = _LOOK_S if deadline is None else min(_LOOK_S, max(0.0, deadline - time.monotonic()))
            with self._talking:
                # Its last words are read while it waits, or it could wait for room to say them.
                self._hear(step)
                if self.final is not None or self._popen.poll() is not None:
                    self._is_over()
                    return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def _hear(self, timeout_s: float) -> None:
        try:
            if self.final is None and self._lifeline.poll(timeout_s):
                kind, *words = self._lifeline.recv()
                if kind == "ended":
                    self.final = (words[0], words[1])
        except (EOFError, OSError):
            self._is_over()

    def _is_over(self) -> None:
        """It has ended, or is about to: wait for it, and let go."""
        if self._popen.returncode is None:
            try:
                self._popen.wait(_ANSWER_S)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        if self.final is None:
            self._hear_last()
        if self.final is None:
            self.final = (f"its supervisor, process {self.pid}, died: {in_words(self._popen.returncode)}", None)
            self._end_left_over()
        self._lifeline.close()
        self._let_board_go()

    def _hear_last(self) -> None:
        try:
            while self._lifeline.poll():
                kind, *words = self._lifeline.recv()
                if kind == "ended":
                    self.final = (words[0], words[1])
        except (EOFError, OSError):
            pass

    def _end_left_over(self) -> None:
        """A killed supervisor's workers are killed by the kernel; what they had started is in their groups."""
        for group in () if self._board is None else groups_left(self._board):
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)

    def _let_board_go(self) -> None:
        board, self._board = self._board, None
        if board is not None:
            os.close(board)

    def kill(self) -> None:
        """End it and its workers at once: they die with it."""
        with self._talking:
            if self._popen.poll() is None:
                self._popen.kill()
                self._popen.wait()
            self._is_over()

    def forget(self) -> None:
        """In a forked child: it is the parent's."""
        with suppress(OSError):
            self._lifeline.close()
        self._let_board_go()
        self._popen.returncode = 0
        self.final = ("it belongs to the process that started it", None)
        self._talking = threading.RLock()


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    interpreter = os.fsdecode(spawn.get_executable() or "")
    if not interpreter:
        raise PoolEnded("this process does not know its interpreter; multiprocessing.set_executable names it")
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    try:
        return subprocess.Popen(
            # -P: what lies in the current folder is not the standard library.
            [interpreter, *flags, "-P", "-c", _BOOTSTRAP, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            # Ctrl-C in a terminal is for the owner, who says what it means.
            start_new_session=True,
        )
    except OSError as error:
        raise PoolEnded(f"{interpreter} cannot be run: {error}") from error


def _path() -> list[str]:
    """sys.path for another process, and where this package is."""
    path: list[str] = []
    for entry in sys.path:
        with suppress(FileNotFoundError):  # "" is the current folder, and that was removed
            path.append(os.path.abspath(os.fsdecode(entry)))
    own = os.fspath(Path(__file__).absolute().parents[2])
    return path if own in path else [*path, own]


_running: weakref.WeakSet[Supervising] = weakref.WeakSet()


@functools.cache
def _see_to_forks() -> None:
    os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    for supervising in list(_running):
        supervising.forget()
    _running.clear()
