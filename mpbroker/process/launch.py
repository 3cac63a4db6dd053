"""A broker process of this process: how it is started, and how it is ended.

Owns the child: the fresh interpreter, the lifeline whose end is the broker's end, the wait until it is ready, and the
wait until it is gone. Client side; the broker's side of the lifeline is in main.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import spawn
from pathlib import Path
from typing import IO, Final

from mpbroker.errors import BrokerFailed
from mpbroker.process import peers
from mpbroker.process.channel import NO_SIGNAL, rebuild
from mpbroker.process.config import Config, Started, answer_in, line_of
from mpbroker.process.frames import Failed

START_S: Final = 60.0
"""Seconds until a broker must be ready. A start takes a fraction of one; an overloaded machine is no failure."""

_WORDS: Final = 8192  # characters kept of what a child that failed wrote
_BOOTSTRAP: Final = """\
import json, socket, sys
lifeline = socket.socket(fileno=int(sys.argv[1]))
line = lifeline.makefile("rb").readline()
sys.path[:] = json.loads(line)["path"]
from mpbroker.process.main import run_managed
run_managed(lifeline, line, int(sys.argv[2]))
"""
"""Only the standard library until sys.path is the creator's."""


class BrokerProcess:
    """A broker that this process started and that ends with it."""

    def __init__(self, config: Config, timeout_s: float = START_S) -> None:
        """Start it and wait until it is ready.

        Raises:
            NameTaken, InsecureFolder: as for `mpbroker serve`. BrokerFailed: it did not come up; with its last words.
        """
        self.started: Started
        with _standard_streams() as closed, tempfile.TemporaryFile() as words:
            self._lifeline, theirs = socket.socketpair()
            try:
                with theirs:
                    self._popen, errors = _spawn(theirs, words, None if 2 in closed else _duplicate(2))
            except BaseException:
                self._lifeline.close()
                raise
            try:
                config = dataclasses.replace(config, path=_path(), stderr=errors)
                self.started = self._wait_until_ready(config, words, timeout_s)
            except BaseException:
                self.kill()
                raise
        _see_to_forks()
        _processes.add(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit(self) -> str | None:
        """How it ended, None while it runs."""
        code = self._popen.poll()
        return None if code is None else _in_words(code)

    def how_it_ended(self, timeout_s: float) -> str | None:
        """`exit`, after waiting for it."""
        self.wait(timeout_s)
        return self.exit

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it has ended; False when it runs on after so long."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, timeout_s: float) -> None:
        """Have it end, and kill it if it does not in time. Any number of times, and when it is gone already."""
        with suppress(OSError):
            self._lifeline.sendall(b"stop", NO_SIGNAL)
        if not self.wait(timeout_s):
            self.kill()
        self._lifeline.close()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._lifeline.close()

    def forget(self) -> None:
        """In a forked child: it is the parent's. Its lifeline must end with the parent, whoever else lives."""
        self._lifeline.close()
        # Popen warns when one that it thinks is its own runs at its end.
        self._popen.returncode = 0

    def _wait_until_ready(self, config: Config, words: IO[bytes], timeout_s: float) -> Started:
        deadline = time.monotonic() + timeout_s
        line = b""
        try:
            self._lifeline.sendall(line_of(config), NO_SIGNAL)
            while b"\n" not in line:
                self._lifeline.settimeout(max(0.001, deadline - time.monotonic()))
                chunk = self._lifeline.recv(65536)
                if not chunk:
                    break
                line += chunk
        except TimeoutError:
            if time.monotonic() < deadline:
                raise  # a signal handler's
            raise BrokerFailed(f"it was not ready within {timeout_s:g} s{_said(words)}") from None
        except ConnectionError:
            pass  # it ended before it read what it was to be
        self._lifeline.settimeout(None)
        # A broker that crashes as soon as it is ready may have said both by now.
        line, end, _ = line.partition(b"\n")
        if not end:
            how = self.how_it_ended(5.0) or "it let go of its creator"
            raise BrokerFailed(f"{how}{_said(words)}")
        answer = answer_in(line)
        if isinstance(answer, Started):
            return answer
        raise rebuild(Failed(answer.kind, answer.args))


@contextmanager
def _standard_streams() -> Iterator[list[int]]:
    """Keep descriptors 0 to 2 taken, for a child gets others in their place; yields those that were closed."""
    closed: list[int] = []
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            closed.append(fd)
        os.close(fd)
        yield closed
    finally:
        for fd in closed:
            os.close(fd)


def _spawn(theirs: socket.socket, words: IO[bytes], errors: int | None) -> tuple[subprocess.Popen[bytes], int]:
    """The child, and its descriptor of what this process writes errors to (-1: none)."""
    interpreter = os.fsdecode(spawn.get_executable() or "")
    if not interpreter:
        raise BrokerFailed("this process does not know its Python interpreter; multiprocessing.set_executable names it")
    pidfd = peers.own_pidfd()
    handed = [fd for fd in (pidfd, errors) if fd is not None]
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    try:
        popen = subprocess.Popen(
            [
                interpreter,
                *flags,
                "-P",  # what lies in the current folder is not the standard library
                "-c",
                _BOOTSTRAP,
                str(theirs.fileno()),
                str(-1 if pidfd is None else pidfd),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            pass_fds=(theirs.fileno(), *handed),
            # Ctrl-C in a terminal is for its users: they finish first, and it ends after them.
            start_new_session=True,
        )
    except OSError as error:
        raise BrokerFailed(f"{interpreter} cannot be run: {error}") from error
    finally:
        for fd in handed:
            os.close(fd)
    return popen, -1 if errors is None else errors


def _duplicate(fd: int) -> int | None:
    try:
        return os.dup(fd)
    except OSError:
        return None


def _path() -> tuple[str, ...]:
    """sys.path for another process, and where this package is."""
    path: list[str] = []
    for entry in sys.path:
        with suppress(FileNotFoundError):  # "" is the current folder, and that was removed
            path.append(os.path.abspath(os.fsdecode(entry)))
    own = os.fspath(Path(__file__).absolute().parents[2])
    return tuple(path if own in path else [*path, own])


def _said(words: IO[bytes]) -> str:
    words.seek(0)
    text = words.read().decode(errors="replace").strip()[-_WORDS:]
    return f"; it wrote:\n{text}" if text else ""


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


_processes: weakref.WeakSet[BrokerProcess] = weakref.WeakSet()


@functools.cache
def _see_to_forks() -> None:
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(after_in_child=_let_go)


def _let_go() -> None:
    for process in list(_processes):
        process.forget()
    _processes.clear()
