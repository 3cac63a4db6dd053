"""The copies that wait: ready ones in (priority, sequence) order, delayed ones until they are due.

Fresh runs are appended to a deque per priority, which keeps them sorted for free; runs that come back go to a small
heap beside it, and the next to leave is the smaller of the two heads. So the common case is O(1) and the order is
always exact. Belongs to one subscription, under its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from mpbroker.engine.batch import Run
from mpbroker.messages import MessagePriority


class Lane:
    """The ready copies of one priority."""

    __slots__ = ("count", "fresh", "returned")

    def __init__(self) -> None:
        self.fresh: deque[Run] = deque()
        self.returned: list[tuple[int, Run]] = []
        self.count = 0

    def add(self, run: Run) -> None:
        """Put a run in its place; O(1) for one that is newer than all."""
        if self.fresh and self.fresh[-1].sequence > run.sequence:
            self.put_back(run)
            return
        self.fresh.append(run)
        self.count += len(run)

    def put_back(self, run: Run) -> None:
        heappush(self.returned, (run.sequence, run))
        self.count += len(run)

    def head(self) -> Run:
        """The next run to leave; the lane is not empty."""
        if not self.fresh or (self.returned and self.returned[0][0] < self.fresh[0].sequence):
            return self.returned[0][1]
        return self.fresh[0]

    def take(self, limit: int) -> Run:
        """The first up to ``limit`` copies of the head run."""
        head = self.head()
        count = min(limit, len(head))
        self.count -= count
        if count < len(head):
            if self.fresh and head is self.fresh[0]:
                return head.split(count)
            taken = head.split(count)
            self.returned[0] = (head.sequence, head)  # still the smallest: runs never overlap
            return taken
        if self.fresh and head is self.fresh[0]:
            return self.fresh.popleft()
        return heappop(self.returned)[1]

    def runs(self) -> Iterator[Run]:
        """All runs, in no order."""
        yield from self.fresh
        for _, run in self.returned:
            yield run


class ReadyQueue:
    """Ready copies, highest priority first, then by sequence."""

    __slots__ = ("count", "lanes")

    def __init__(self) -> None:
        self.lanes = tuple(Lane() for _ in MessagePriority)
        self.count = 0

    def add(self, run: Run) -> None:
        """Put a fresh run in."""
        self.lanes[run.batch.priority].add(run)
        self.count += len(run)

    def put_back(self, run: Run) -> None:
        """Put a run back that was here before."""
        self.lanes[run.batch.priority].put_back(run)
        self.count += len(run)

    def take(self, limit: int, max_bytes: int | None = None) -> list[Run]:
        """Up to ``limit`` copies in order; of one or more at least one, if there is one.

        A copy that is to be handed over alone comes alone. ``max_bytes`` bounds the encoded size of all but the
        first run.
        """
        taken: list[Run] = []
        size = 0
        if not limit:
            return taken
        for lane in reversed(self.lanes):
            while lane.count:
                head = lane.head()
                if head.alone:
                    if not taken:
                        taken.append(lane.take(1))
                        self.count -= 1
                    return taken
                if max_bytes is not None:
                    size += head.batch.nbytes
                    if taken and size > max_bytes:
                        return taken
                run = lane.take(limit)
                self.count -= len(run)
                limit -= len(run)
                taken.append(run)
                if not limit:
                    return taken
        return taken

    def evict(self, priority: MessagePriority) -> Run | None:
        """The oldest copy of the lowest priority that has any, up to ``priority``; None when there is none."""
        for lane in self.lanes[: priority + 1]:
            if lane.count:
                self.count -= 1
                return lane.take(1)
        return None

    def runs(self) -> Iterator[Run]:
        """All runs, in no order."""
        for lane in self.lanes:
            yield from lane.runs()


class Delayed:
    """Copies that become ready at a time of their own."""

    __slots__ = ("count", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Run]] = []
        self.count = 0

    def add(self, due: float, run: Run) -> None:
        heappush(self.heap, (due, run.sequence, run))
        self.count += len(run)

    def pop_due(self, now: float) -> Iterator[Run]:
        """Take out what is due, ``now >= due``, one run at a time."""
        while self.heap and self.heap[0][0] <= now:
            run = heappop(self.heap)[2]
            self.count -= len(run)
            yield run

    def next_due(self) -> float | None:
        return self.heap[0][0] if self.heap else None

    def runs(self) -> Iterator[Run]:
        """All runs, in no order."""
        for _, _, run in self.heap:
            yield run
