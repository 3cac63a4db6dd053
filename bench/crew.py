"""Child processes of a round: they set themselves up, start together, report one result, and never outlive it."""

from __future__ import annotations

import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from types import TracebackType
from typing import Any, Final, Self

SPAWN: Final[SpawnContext] = multiprocessing.get_context("spawn")

DEADLINE_S: Final = 300.0
"""Seconds that any one wait may take: a full round takes a few, and a machine can be ten times busier."""

TIE_TO_PARENT: Final = "import ctypes; ctypes.CDLL(None).prctl(1, 9)"
"""Asks Linux to kill this process when the thread that started it ends (PR_SET_PDEATHSIG, SIGKILL).

So that a run that is killed leaves no worker and no server behind; runs start theirs from the main thread.
"""


class Gate:
    """The child's end: set up first, then ``wait``."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def wait(self) -> None:
        self._pipe.send(("ready", None))
        self._pipe.recv()


class Child:
    """A process that sets itself up, says so, waits for go, and reports one result."""

    def __init__(self, target: Callable[..., Any], args: Sequence[Any]) -> None:
        self._pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_run, args=(target, theirs, args), daemon=True)
        try:
            self.process.start()
        except BaseException:
            self._pipe.close()
            raise
        finally:
            theirs.close()

    def ready(self) -> None:
        """Wait until the child has set itself up."""
        self._receive()

    def go(self) -> None:
        self._pipe.send("go")

    def result(self) -> Any:
        """Wait for what the child's function returns, and for its end."""
        result = self._receive()
        self.process.join(DEADLINE_S)
        return result

    def end(self) -> None:
        """Kill it if it still runs; any number of times."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(DEADLINE_S)
        self._pipe.close()

    def _receive(self) -> Any:
        if not self._pipe.poll(DEADLINE_S):
            raise TimeoutError(f"{self.process.name} did not answer within {DEADLINE_S:g} s")
        try:
            kind, content = self._pipe.recv()
        except EOFError:
            self.process.join(DEADLINE_S)
            raise RuntimeError(f"{self.process.name} ended with {self.process.exitcode}") from None
        if kind == "failed":
            raise RuntimeError(f"{self.process.name} failed:\n{content}")
        return content


class Crew:
    """The children of one round, as a context manager: at its end none is left, whatever happened."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def add(self, target: Callable[..., Any], *args: Any) -> Child:
        """Start ``target(gate, *args)`` in a child; it goes on from its gate at ``begin``."""
        child = Child(target, args)
        self.children.append(child)
        return child

    def begin(self) -> float:
        """Wait until all are set up, let them go, and return when that was, on the clock of ``time.monotonic``."""
        for child in self.children:
            child.ready()
        started = time.monotonic()
        for child in self.children:
            child.go()
        return started

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.children:
            child.end()


def _run(target: Callable[..., Any], pipe: Connection, args: Sequence[Any]) -> None:
    if sys.platform == "linux":
        exec(TIE_TO_PARENT, {})
    try:
        message = ("result", target(Gate(pipe), *args))
    except BaseException:
        message = ("failed", traceback.format_exc())
    try:
        pipe.send(message)
    except BrokenPipeError:
        pass  # the round is over, and nobody waits for this
    pipe.close()
