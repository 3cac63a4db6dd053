"""Other processes for tests: children that do what they are told, and programs of their own.

Every wait has a hard limit, and nothing is left running when the ``with`` block of a Puppet or Program ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from mpbroker.api import BrokerAPI
from mpbroker.process import peers
from mpbroker.process.proxy import BrokerProxy

LIMIT_S: Final = 30.0
"""The hard limit of every wait; far from what any of them takes on a busy machine."""

ROOT: Final = Path(__file__).resolve().parents[2]


class Puppet:
    """A child process that calls functions of its master with whatever was handed to it.

    Args:
        given: what every function gets first; a proxy, usually.
        method: how the child is started.
    """

    def __init__(self, given: Any, method: str = "fork") -> None:
        context: Any = multiprocessing.get_context(method)
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_obey, args=(theirs, given))
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        pid = self.process.pid
        assert isinstance(pid, int)
        return pid

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have it call a function (of a module) without waiting for it."""
        self._pipe.send((function, arguments))

    def result(self) -> Any:
        """What the call that began returned or raised."""
        assert self._pipe.poll(LIMIT_S), "the child did not answer"
        succeeded, value = self._pipe.recv()
        if not succeeded:
            raise value
        return value

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.begin(function, *arguments)
        return self.result()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL, and wait for that."""
        self.process.kill()
        self.join()

    def finish(self) -> None:
        """Let it exit as programs do, and wait for that."""
        self._pipe.send(None)
        self.join()

    def join(self) -> int:
        self.process.join(LIMIT_S)
        assert self.process.exitcode is not None, "the child did not end"
        return int(self.process.exitcode)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(LIMIT_S)
        self.process.close()
        self._pipe.close()


def _obey(pipe: Connection, given: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while (order := pipe.recv()) is not None:
        function, arguments = order
        try:
            answer = True, function(given, *arguments)
        except BaseException as error:
            answer = False, error
        pipe.send(answer)


class Program:
    """A Python program in a process of its own.

    Args:
        arguments: of the interpreter, such as ``"-c", text``.
        stdin: what it reads; None: nothing.
        group: whether it is the leader of a process group of its own, as if started from a terminal.
    """

    def __init__(self, *arguments: str, stdin: str | None = None, group: bool = False, cwd: Path | None = None) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=cwd or ROOT,
            process_group=0 if group else None,
        )
        self.errors = ""
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()
        self._alarm = threading.Timer(2 * LIMIT_S, self.process.kill)
        self._alarm.start()
        if stdin is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(stdin)
            self.process.stdin.close()

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program said no more; its errors:\n{self.finish_errors()}"
        return line.rstrip("\n")

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, what else it printed, its errors."""
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        code = self.process.wait(LIMIT_S)
        return code, rest, self.finish_errors()

    def finish_errors(self) -> str:
        self._reader.join(LIMIT_S)
        return self.errors

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        self._alarm.join()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def wait_for_end(pid: int) -> None:
    """Wait until a process is gone that may be nobody's child here."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert peers.has_ended(pidfd, LIMIT_S), f"process {pid} did not end"
    finally:
        os.close(pidfd)


def waits(broker: BrokerAPI, calls: int = 1) -> None:
    """Wait until so many calls wait in the broker process."""
    assert isinstance(broker, BrokerProxy)
    deadline = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while broker._status().limits["waiting_calls"][0] != calls:
        assert time.monotonic() < deadline, "nobody waits"
        pause.wait(0.002)


def signal_until(broker: BrokerAPI, number: int, struck: threading.Event) -> None:
    """Signal this process, once a call waits in the broker, until its handler says that it was there.

    A signal that comes just before the wait begins does not end it; a person would press the keys again.
    """
    waits(broker)
    deadline = time.monotonic() + LIMIT_S
    while not struck.is_set():
        assert time.monotonic() < deadline, "nobody handles the signal"
        os.kill(os.getpid(), number)
        struck.wait(0.05)
