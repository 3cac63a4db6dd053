"""Who waits in the broker process, and what is due when.

Owns the order of parked calls and the order of times. Reads no clock, and answers nobody: what follows is decided by
who asks. For the broker's side.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from mpbroker.engine import Subscription
from mpbroker.process.clients import Parked


class Timers:
    """One time for each key. Everything is O(log n) over time, n being the keys that have one."""

    __slots__ = ("_heap", "_serial", "_times")

    def __init__(self) -> None:
        self._times: dict[int, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: int, when: float) -> None:
        """Give a key its time, instead of the one it had."""
        self._serial += 1
        self._times[key] = (when, self._serial)
        heappush(self._heap, (when, self._serial, key))
        # A call that was answered long before its time leaves its entry in the heap.
        if len(self._heap) > 64 + 2 * len(self._times):
            self._heap = [(when, serial, key) for key, (when, serial) in self._times.items()]
            heapify(self._heap)

    def cancel(self, key: int) -> None:
        self._times.pop(key, None)

    def when(self, key: int) -> float | None:
        entry = self._times.get(key)
        return None if entry is None else entry[0]

    def first(self) -> tuple[float, int] | None:
        """The earliest time and its key; of equal times the one that was set first."""
        while self._heap:
            when, serial, key = self._heap[0]
            if self._times.get(key) == (when, serial):
                return when, key
            heappop(self._heap)
        return None

    def pop_due(self, now: float) -> Iterator[int]:
        """Take out each key with ``now >= time``, in the order of their times."""
        while (first := self.first()) is not None and first[0] <= now:
            del self._times[first[1]]
            yield first[1]


class Janitor:
    """When which subscription has a lease that ends or a delayed copy that is due.

    A subscription is known here by a time that is never later than its true one; the true one is looked up only when
    that comes first. So a change costs O(log n) at most, and nothing at all for subscriptions that are not touched.
    """

    __slots__ = ("_find", "_timers")

    def __init__(self, find: Callable[[int], Subscription | None]) -> None:
        self._find = find
        self._timers = Timers()

    def arm(self, subscription: Subscription) -> None:
        """Take note of a subscription that changed."""
        deadline = subscription.next_deadline()
        if deadline is None:
            return
        armed = self._timers.when(subscription.number)
        if armed is None or deadline < armed:
            self._timers.set(subscription.number, deadline)

    def forget(self, subscription: Subscription) -> None:
        self._timers.cancel(subscription.number)

    def next_deadline(self) -> float | None:
        """The earliest over all subscriptions, exactly."""
        while (first := self._timers.first()) is not None:
            armed, number = first
            subscription = self._find(number)
            deadline = None if subscription is None else subscription.next_deadline()
            if deadline is None:
                self._timers.cancel(number)
            elif deadline > armed:
                self._timers.set(number, deadline)
            else:
                return armed
        return None

    def pop_due(self, now: float) -> Iterator[Subscription]:
        """Each subscription that has something due; to be expired, and armed again."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            first = self._timers.first()
            assert first is not None
            self._timers.cancel(first[1])
            subscription = self._find(first[1])
            assert subscription is not None
            yield subscription


class Line:
    """Parked calls, one line for each subscription, first come first served. Everything is O(1)."""

    __slots__ = ("_count", "_lines")

    def __init__(self) -> None:
        self._lines: dict[int, OrderedDict[int, Parked]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, parked: Parked) -> None:
        line = self._lines.get(parked.subscription.number)
        if line is None:
            line = self._lines[parked.subscription.number] = OrderedDict()
        line[parked.connection.id] = parked
        self._count += 1

    def remove(self, parked: Parked) -> None:
        """Take out one that is in."""
        number = parked.subscription.number
        line = self._lines[number]
        del line[parked.connection.id]
        self._count -= 1
        if not line:
            del self._lines[number]

    def first(self, subscription: Subscription) -> Parked | None:
        """Whose turn it is."""
        line = self._lines.get(subscription.number)
        return None if line is None else next(iter(line.values()))

    def subscriptions(self) -> list[Subscription]:
        """Those that somebody waits for."""
        return [next(iter(line.values())).subscription for line in self._lines.values()]
