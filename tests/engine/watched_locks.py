"""Locks that tell who takes them, and in which order: for tests of the locking rules.

``Watch.install`` makes every lock that mpbroker's modules create from then on a watched one. Each is
known by the module that made it; those of the engine are the broker lock and the subscription locks.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import pytest

BROKER: Final = "engine.broker"
SUBSCRIPTION: Final = "engine.subscription"


class WatchedLock:
    """A lock, or a re-entrant one, that reports to its watch before it waits; fit for a Condition."""

    def __init__(self, watch: Watch, kind: str, real: Any) -> None:
        self.watch = watch
        self.kind = kind
        self.real = real

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.watch.wants(self)
        taken: bool = self.real.acquire(blocking, timeout)
        if taken:
            self.watch.held().append(self)
        return taken

    def release(self) -> None:
        held = self.watch.held()
        if self in held:
            held.remove(self)
        self.real.release()

    def locked(self) -> bool:
        return any(lock is self for lock in self.watch.held()) or bool(self.real.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    # what a Condition asks of its lock

    def _is_owned(self) -> bool:
        return self in self.watch.held()

    def _release_save(self) -> int:
        held = self.watch.held()
        count = held.count(self)
        self.watch.waits(self)
        for _ in range(count):
            self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        for _ in range(count):
            self.acquire()


class Watch:
    """What happened with the watched locks: offences, and which kind was taken under which."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._lock = threading.Lock()
        self.offences: list[str] = []
        self.seen: set[str] = set()
        self.under: set[tuple[str, str]] = set()
        self.user_code_seen: set[str] = set()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("Lock", "RLock"):
            monkeypatch.setattr(threading, name, self._factory(getattr(threading, name)))

    def _factory(self, make: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            frame = sys._getframe(1)
            while frame.f_back and frame.f_globals.get("__name__") in ("threading", __name__):
                frame = frame.f_back
            module = frame.f_globals.get("__name__", "")
            if not module.startswith("mpbroker.") or module.startswith("mpbroker.testing"):
                return make()
            return WatchedLock(self, module.removeprefix("mpbroker."), make())

        return made

    def held(self) -> list[WatchedLock]:
        """The locks that this thread holds, in the order in which it took them."""
        if not hasattr(self._here, "held"):
            self._here.held = []
        held: list[WatchedLock] = self._here.held
        return held

    def offence(self, text: str) -> None:
        with self._lock:
            self.offences.append(text)

    # -- the rules --------------------------------------------------------------------------------

    def wants(self, lock: WatchedLock) -> None:
        held = self.held()
        with self._lock:
            self.seen.add(lock.kind)
            self.under.update((other.kind, lock.kind) for other in held if other is not lock)
        for other in held:
            if other.kind == SUBSCRIPTION and lock.kind == BROKER:
                self.offence("the broker lock is wanted under a subscription lock")
            if other.kind == lock.kind == SUBSCRIPTION and other is not lock:
                self.offence("two subscription locks are wanted together")

    def waits(self, lock: WatchedLock) -> None:
        for other in self.held():
            if other is not lock and other.kind in (BROKER, SUBSCRIPTION):
                self.offence(f"a wait on {lock.kind} holds {other.kind}")

    def user_code(self, what: str) -> None:
        """To be called by code that stands for the user's."""
        held = self.held()
        with self._lock:
            self.user_code_seen.add(what)
        if held:
            self.offence(f"{what} runs under {' and '.join(lock.kind for lock in held)}")

    def filter_code(self, what: str) -> None:
        """To be called by filters: the broker lock may be held, and no other."""
        held = self.held()
        with self._lock:
            self.user_code_seen.add(what)
        if any(lock.kind != BROKER for lock in held):
            self.offence(f"{what} runs under {' and '.join(lock.kind for lock in held)}")

    def cycles(self) -> list[tuple[str, str]]:
        """Pairs of kinds that were each taken under the other, directly or through others."""
        reach = {pair for pair in self.under if pair[0] != pair[1]}
        while more := {(a, d) for a, b in reach for c, d in reach if b == c} - reach:
            reach |= more
        return sorted(pair for pair in reach if pair[::-1] in reach)
