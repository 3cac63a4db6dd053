"""A kill point: a place at the boundary of a function of the product, and what is done to the process that gets there.

The product has no code for it. A point is put into a running process by wrapping the function that it names, so where
none is put there is nothing that could cost anything. A trap strikes once in all the processes that have it, and says
so in its folder. Imported by clients and broker processes alike; starts nothing, and wraps nothing until it is told.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NoReturn

MARK: Final = "__kill_point__"
"""An attribute that every wrapper has and no function of the product."""

LIMIT_S: Final = 20.0
"""The hard limit of every wait; far from what any of them takes on a busy machine."""


class Action(StrEnum):
    """What is done at a point. RAISE: KeyboardInterrupt in clients, RuntimeError in a broker; where a thread of the
    product's own gets there, a Ctrl-C, which comes to the main thread and to no other.

    STOP: SIGSTOP, and SIGCONT once the leases of that time have ended. FORK: a child that goes on with what it
    inherited, and then exits.
    """

    KILL = "kill"
    STOP = "stop"
    RAISE = "raise"
    FORK = "fork"


class When(StrEnum):
    """MIDWAY: of a function that sends bytes, and may say how many, when half of them are sent."""

    BEFORE = "before"
    AFTER = "after"
    MIDWAY = "midway"


Asked = tuple[Any, ...]
"""The positional arguments of a call, self included."""


def always(*_: Any) -> bool:
    return True


def nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a point is.

    Attributes:
        target: ``module:Class.method`` or ``module:function``, as it is looked up when it is called.
        nth: which call of it, from 1; counted anew in each call of ``within``, where that is given.
        within: a function that must be running, named like target; outer: which calls of it, by their arguments.
        only: which calls of target count, by its arguments and (AFTER) its result.
        ready: waits, just before the strike, until things are as the point's name says.
        outside: the strike comes from another process, once it sees things as the point's name says.
    """

    target: str
    when: When = When.BEFORE
    nth: int = 1
    within: str = ""
    outer: Callable[[Asked], bool] = always
    only: Callable[[Asked, Any], bool] = always
    ready: Callable[[Asked], None] = nothing
    outside: bool = False


class Signs:
    """The folder by which a trap and whoever set it know of each other."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder

    def open(self) -> None:
        """From now on the trap may strike."""
        (self.folder / "open").touch()

    @property
    def is_open(self) -> bool:
        return (self.folder / "open").exists()

    def take(self) -> bool:
        """Whether the caller is the first to reach the point."""
        try:
            fd = os.open(self.folder / "taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        os.write(fd, json.dumps([os.getpid(), time.monotonic()]).encode())
        os.close(fd)
        # What is read is complete.
        os.link(self.folder / "taken", self.folder / "reached")
        return True

    @property
    def reached(self) -> tuple[int, float] | None:
        """Which process reached the point, and when by the clock that all share."""
        try:
            pid, when = json.loads((self.folder / "reached").read_bytes())
        except FileNotFoundError:
            return None
        return int(pid), float(when)


class Trap:
    """One point, in this process.

    Args:
        error: what RAISE raises.
        on_fork: what the child of FORK does.
        waits: for the end of that child, at once.
    """

    def __init__(
        self,
        spot: Spot,
        action: Action,
        signs: Signs,
        error: Callable[[], BaseException],
        on_fork: Callable[[], None] = nothing,
        *,
        waits: bool = False,
    ) -> None:
        self._waits = waits
        self._spot = spot
        self._action = action
        self._signs = signs
        self._error = error
        self._on_fork = on_fork
        self._calls = 0
        self._inside = 0
        self._undo: list[Callable[[], None]] = []
        self.children: list[int] = []

    def arm(self) -> None:
        """Wrap what the point is made of."""
        spot = self._spot
        if spot.within:
            self._wrap(spot.within, self._around)
        wrappers = {When.BEFORE: self._before, When.AFTER: self._after, When.MIDWAY: self._midway}
        self._wrap(spot.target, wrappers[spot.when])

    def disarm(self) -> None:
        """Everything is as it was."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, target: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        owner, name = place(target)
        own = vars(owner).get(name)
        wrapped = wrapper(getattr(owner, name))
        setattr(wrapped, MARK, target)
        setattr(owner, name, wrapped)
        self._undo.append((lambda: delattr(owner, name)) if own is None else (lambda: setattr(owner, name, own)))

    # -- wrappers -----------------------------------------------------------------------------------------------------

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def around(*asked: Any, **named: Any) -> Any:
            if self._inside == 0 and not self._spot.outer(asked):
                return function(*asked, **named)
            if self._inside == 0:
                self._calls = 0
            self._inside += 1
            try:
                return function(*asked, **named)
            finally:
                self._inside -= 1

        return around

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def before(*asked: Any, **named: Any) -> Any:
            if self._hits(asked, None):
                if self._raises_here():
                    # What the caller has is kept by its own frame only, as when the interpreter raises.
                    asked, named = (), {}
                self.strike()
            return function(*asked, **named)

        return before

    def _after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def after(*asked: Any, **named: Any) -> Any:
            result = function(*asked, **named)
            if self._hits(asked, result):
                if self._raises_here():
                    asked, named, result = (), {}, None
                self.strike()
            return result

        return after

    def _midway(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def midway(sock: Any, body: bytes, *more: Any) -> Any:
            half = len(body) // 2
            first = function(sock, body[:half], *more)
            if self._hits((sock, body, *more), None):
                self.strike()
            if first is not None and first < half:
                return first  # there was room for no more
            second = function(sock, body[half:], *more)
            return second if first is None else first + second

        return midway

    # -- the strike ---------------------------------------------------------------------------------------------------

    def _hits(self, asked: Asked, result: Any) -> bool:
        """Whether this call is the point, and the first to get there."""
        spot = self._spot
        if (spot.within and not self._inside) or not self._signs.is_open or not spot.only(asked, result):
            return False
        self._calls += 1
        if self._calls != spot.nth:
            return False
        spot.ready(asked)
        return self._signs.take() and not spot.outside

    def strike(self) -> None:
        match self._action:
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Action.RAISE if not self._raises_here():
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGINT)
            case Action.RAISE:
                raise self._error()
            case Action.FORK:
                self._fork()

    def _raises_here(self) -> bool:
        return self._action is Action.RAISE and threading.current_thread() is threading.main_thread()

    def _fork(self) -> None:
        child = os.fork()
        if child == 0:
            self._be_child()
        self.children.append(child)
        if self._waits:
            self.reap()

    def _be_child(self) -> NoReturn:
        try:
            self.disarm()
            self._on_fork()
        finally:
            os._exit(0)

    def reap(self) -> None:
        """Wait for the children of FORK; raises when one does not end."""
        for child in self.children:
            pidfd = os.pidfd_open(child)
            try:
                ended, _, _ = select.select([pidfd], [], [], LIMIT_S)
            finally:
                os.close(pidfd)
            if not ended:
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            if not ended:
                raise AssertionError("the forked child did not end")
        self.children.clear()


def place(target: str) -> tuple[Any, str]:
    """What has a function as an attribute, and the attribute's name."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


def is_wrapped(target: str) -> bool:
    owner, name = place(target)
    return hasattr(getattr(owner, name), MARK)


def is_stopped(pid: int) -> bool:
    return _state(pid) in (b"T", b"t")


def is_asleep(pid: int) -> bool:
    """Whether a process with one thread waits for something outside it."""
    return _state(pid) == b"S"


def _state(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return b""
