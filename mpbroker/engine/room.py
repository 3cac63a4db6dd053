"""Publishes that wait for room: what one of them is, and the error that tells a publish it may wait.

A publish that finds a subscription with Overflow.WAIT full stands in the line of every such subscription that its
messages are for, and goes once it is the first in all of them and fits into all of them. So nobody overtakes a large
one with small ones, and two of them cannot wait for each other: all lines have the same order, that in which their
publishes came. Owns the lines and their order; reads no clock, and wakes by a callback.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from threading import TIMEOUT_MAX, Event, Lock

from mpbroker.engine.places import Places
from mpbroker.errors import QueueFull


class NoRoom(QueueFull):
    """QueueFull, for a publish that may wait. Args as there; seconds: how long after it was asked for, at most."""

    def __init__(self, subscription_id: str, limit: int, seconds: float) -> None:
        super().__init__(subscription_id, limit)
        self.seconds = seconds

    def final(self) -> QueueFull:
        """What the publisher is told when it waited that long."""
        return QueueFull(*self.args)


class Waiter:
    """One publish that waits.

    Attributes:
        count: messages that it brings.
        order: its place among all that ever waited; 0 until it stands in a line.
        topic: the topic it was meant for, as it was when it began to wait.
        lines: those it stands in; perhaps more, never fewer.
        woken: it was told to try again, and has not yet.
    """

    __slots__ = ("_notify", "count", "lines", "order", "topic", "woken")

    def __init__(self, count: int, notify: Callable[[], object]) -> None:
        """notify: called under a subscription's lock when it is worth to try again; may only take note."""
        self.count = count
        self.order = 0
        self.topic: object = None
        self.lines: set[Line] = set()
        self.woken = False
        self._notify = notify

    def wake(self) -> None:
        if not self.woken:
            self.woken = True
            self._notify()

    def stand_in(self, lines: set[Line]) -> None:
        """Stand in these lines and in no other."""
        gone, new = self.lines - lines, lines - self.lines
        # First noted, then done: whatever interrupts this, leave finds every line it stands in.
        self.lines |= new
        for each in new:
            each.stand(self)
        for each in gone:
            each.leave(self)
            self.lines.discard(each)

    def leave(self) -> None:
        """Stand nowhere any more: it went, or gives up. Who is first now is woken."""
        self.stand_in(set())


class ThreadWaiter(Waiter):
    """The publish of a thread, which sleeps until it is woken."""

    __slots__ = ("_roused",)

    def __init__(self, count: int) -> None:
        self._roused = Event()
        super().__init__(count, self._roused.set)

    def begin(self) -> None:
        """An attempt begins: what wakes from now on counts for the next wait."""
        self._roused.clear()

    def wait(self, seconds: float) -> bool:
        """Whether it was woken within so many seconds."""
        return self._roused.wait(min(seconds, TIMEOUT_MAX))


class Line:
    """The publishes that wait for room in one subscription, in their order. Guarded by the subscription's lock.

    Attributes:
        waiters: to be looked at, not changed, by others.
    """

    __slots__ = ("_ended", "_lock", "_max_queue", "_places", "waiters")

    def __init__(self, lock: Lock, places: Places, max_queue: int) -> None:
        self.waiters: list[Waiter] = []
        self._ended = False
        self._lock = lock
        self._places = places
        self._max_queue = max_queue

    def has_room(self, count: int, waiter: Waiter | None) -> bool:
        """Whether a publish of so many copies may go now: they fit, and nobody else stands before it. Takes the lock;
        room is only taken under the broker's lock, so it is still there while that is held."""
        with self._lock:
            waiters = self.waiters
            return (not waiters or waiters[0] is waiter) and count <= self._max_queue - self._places.size

    def stand(self, waiter: Waiter) -> None:
        """Let a publish wait here, behind those that came before it. Takes the lock."""
        with self._lock:
            insort(self.waiters, waiter, key=_order)

    def leave(self, waiter: Waiter) -> None:
        """It waits here no longer, if it did; whoever is first now is woken. Takes the lock."""
        with self._lock:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
                self.wake()

    def wake(self) -> None:
        """Tell the first when it fits; all of them once there is nothing to wait for. Under the lock."""
        if self._ended:
            for each in self.waiters:
                each.wake()
        elif self.waiters and self.waiters[0].count <= self._max_queue - self._places.size:
            self.waiters[0].wake()

    def end(self) -> None:
        """The subscription is no more. Under the lock."""
        self._ended = True
        self.wake()


def _order(waiter: Waiter) -> int:
    return waiter.order
