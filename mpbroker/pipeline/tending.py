"""What happens to publishers and consumers while nobody calls them: a thread each, forks, the interpreter's end.

Owns the thread that sends what waits too long, and the register of those that are in use. The thread sleeps for good
while there is nothing to do, and ends with what it tends.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from multiprocessing import util
from typing import Final

EXIT_PRIORITY: Final = 8
"""Of the flush at exit: after pools and queues, whose threads may publish, and before the goodbye of the process."""


class Tended(ABC):
    """Something that has work of its own now and then. It calls `wake` whenever there is some."""

    _is_tended = False
    """A thread is about to look, or will without being told."""
    _tender: Tender | None = None
    _patience = 0.0
    """Seconds from `_wake` to the first look."""

    @abstractmethod
    def _tend(self) -> float | None:
        """Do what is due; the seconds until something else may be, or None: nothing is until `wake`."""

    @abstractmethod
    def _before_fork(self) -> None:
        """Send what can be sent without waiting; raises nothing."""

    def _forked(self) -> None:  # noqa: B027 - most have nothing to do
        """In the parent, after a fork, whatever became of it."""

    @abstractmethod
    def _after_fork(self) -> None:
        """In the child, which has nothing of the parent's, and only one thread."""

    @abstractmethod
    def _at_exit(self) -> None:
        """The interpreter is about to end."""

    def _prepare(self) -> Tender:
        """Start the thread, if there is none; in one thread at a time."""
        tender = self._tender
        if tender is None:
            tender = self._tender = Tender(self)
        return tender

    def _wake(self) -> None:
        """Something waits from now on. Several threads may call it, once it is prepared."""
        tender = self._prepare()
        tender.holds = self
        # In this order, and nothing is called in between: interrupted before, the next call wakes it.
        self._is_tended = True
        tender.wakes.put(None)

    def _rest(self) -> None:
        """Nothing waits any more."""
        self._is_tended = False
        if self._tender is not None:
            self._tender.holds = None

    def _register(self) -> None:
        """Have it told of forks from now on, before anything of it waits."""
        _see_to_forks()
        _tended.add(self)

    def _end_tending(self) -> None:
        """Nothing is to be done any more. Any number of times."""
        tender, self._tender = self._tender, None
        _tended.discard(self)
        if tender is not None:
            tender.end()


class Tender:
    """The thread of one Tended, which it keeps alive while that has something to do, and no longer.

    holds: the one that has something to do. wakes: what the thread waits for: an Event or a Condition is not fit for
    that, as a signal handler that raises in the middle of one leaves its lock locked.
    """

    def __init__(self, tended: Tended) -> None:
        self.holds: Tended | None = None
        self.wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_ended = False
        self._reference = weakref.ref(tended, lambda _: self.end())
        self._finalizer = util.Finalize(None, _at_exit, args=(self._reference,), exitpriority=EXIT_PRIORITY)
        tended._register()
        threading.Thread(target=self._run, name="mpbroker-tender", daemon=True).start()

    def end(self) -> None:
        self._is_ended = True
        self._finalizer.cancel()
        self.holds = None
        self.wakes.put(None)

    def _run(self) -> None:
        while True:
            self.wakes.get()
            tended = self._reference()
            pause = None if tended is None else tended._patience
            while tended is not None and pause is not None and not self._is_ended:
                with suppress(queue.Empty):
                    self.wakes.get(timeout=pause)
                if not self._is_ended:
                    pause = tended._tend()
            if tended is None or self._is_ended:
                return
            del tended


_tended: weakref.WeakSet[Tended] = weakref.WeakSet()


def _at_exit(reference: weakref.ref[Tended]) -> None:
    tended = reference()
    if tended is not None:
        tended._at_exit()


@functools.cache
def _see_to_forks() -> None:
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(before=_before_fork, after_in_parent=_forked, after_in_child=_after_fork)


def _before_fork() -> None:
    for tended in list(_tended):
        tended._before_fork()


def _forked() -> None:
    for tended in list(_tended):
        tended._forked()


def _after_fork() -> None:
    for tended in list(_tended):
        if tended._tender is not None:
            tended._tender.holds = None
        tended._tender = None
        tended._is_tended = False
        tended._after_fork()
    _tended.clear()
