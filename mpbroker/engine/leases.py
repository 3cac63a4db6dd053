"""What is in flight: leases, found by token, by sequence, by owner and by deadline.

One object holds the table and all its indices, and each method changes them together: a lease is in all of them or in
none. Belongs to one subscription, under its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from mpbroker.engine.batch import Batch, Run
from mpbroker.messages import Attempt

OFFSET_BITS: Final = 8
"""A token is ``lease number << OFFSET_BITS | offset in the lease``."""

_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


class Lease:
    """One run of copies, held by one member until acked, given back or taken back.

    Attributes:
        number: never used again in this subscription.
        start, stop: indices in the batch.
        attempt: number of this hand-over; redelivered: not their first one.
        deadline: taken back from then on, unless ``extended`` says otherwise for an offset.
        open: a bit for each copy that is not settled yet; ``left`` counts them.
    """

    __slots__ = (
        "alone",
        "attempt",
        "batch",
        "deadline",
        "extended",
        "granted",
        "history",
        "left",
        "member",
        "number",
        "open",
        "owner",
        "redelivered",
        "start",
        "stop",
    )

    def __init__(
        self,
        number: int,
        run: Run,
        attempt: int,
        member: str,
        owner: object,
        granted: float,
        deadline: float,
    ) -> None:
        self.number = number
        self.batch: Batch = run.batch
        self.start = run.start
        self.stop = run.stop
        self.attempt = attempt
        self.redelivered = run.seen
        self.alone = run.alone
        self.history: tuple[Attempt, ...] = run.history
        self.member = member
        self.owner = owner
        self.granted = granted
        self.deadline = deadline
        self.extended: dict[int, float] | None = None
        self.left = run.stop - run.start
        self.open = (1 << self.left) - 1

    @property
    def sequence(self) -> int:
        """Of the first copy it was granted with."""
        return self.batch.first + self.start

    @property
    def token(self) -> int:
        """Of the first copy; the others follow."""
        return self.number << OFFSET_BITS

    def buckets(self) -> range:
        """The stretches of 2 ** OFFSET_BITS sequences that it touches."""
        first = self.sequence
        return range(first >> OFFSET_BITS, ((first + self.stop - self.start - 1) >> OFFSET_BITS) + 1)

    def deadline_of(self, offset: int) -> float:
        return self.deadline if self.extended is None else self.extended.get(offset, self.deadline)


def stretches(mask: int) -> Iterator[tuple[int, int]]:
    """The stretches (from, to) of set bits in a mask of offsets, in order."""
    offset = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        yield offset + zeros, offset + zeros + ones
        mask >>= ones
        offset += zeros + ones


def offsets(mask: int) -> Iterator[int]:
    """The set bits of a mask, in order."""
    for start, stop in stretches(mask):
        yield from range(start, stop)


class LeaseTable:
    """The leases of one subscription. ``trash``: gets what is forgotten; see Engine."""

    __slots__ = ("_buckets", "_by_owner", "_due", "_next", "_trash", "by_number", "count")

    def __init__(self, trash: deque[object]) -> None:
        self._trash = trash
        self.by_number: dict[int, Lease] = {}
        self.count = 0
        self._next = 1
        self._by_owner: dict[object, dict[int, Lease]] = {}
        self._due: list[tuple[float, int]] = []
        self._buckets: dict[int, dict[int, Lease]] = {}

    def grant(self, run: Run, attempt: int, member: str, owner: object, now: float, deadline: float) -> Lease:
        """Hold a run for a member."""
        lease = Lease(self._next, run, attempt, member, owner, now, deadline)
        self._next += 1
        self.by_number[lease.number] = lease
        self.count += lease.left
        owned = self._by_owner.get(owner)
        if owned is None:
            owned = self._by_owner[owner] = {}
        owned[lease.number] = lease
        first = run.sequence
        for bucket in lease.buckets():
            held = self._buckets.get(bucket)
            if held is None:
                held = self._buckets[bucket] = {}
            # An older lease may have begun with the same message, and still hold others: it keeps the short way.
            held[first if first not in held else -lease.number] = lease
        if deadline != inf:
            self._arm(deadline, lease.number)
        return lease

    def find(self, sequence: int) -> tuple[Lease, int] | None:
        """The lease that holds a sequence unsettled, and the offset in it."""
        held = self._buckets.get(sequence >> OFFSET_BITS)
        if held is None:
            return None
        lease = held.get(sequence)
        if lease is not None and lease.open & 1:
            return lease, 0
        for lease in held.values():
            offset = sequence - lease.sequence
            if offset >= 0 and lease.open >> offset & 1:
                return lease, offset
        return None

    def by_token(self, token: int) -> tuple[Lease, int] | None:
        """The lease and offset a token means, while that copy is unsettled."""
        lease = self.by_number.get(token >> OFFSET_BITS)
        if lease is None:
            return None
        offset = token & _OFFSET_MASK
        return (lease, offset) if lease.open >> offset & 1 else None

    def by_range(self, first: int, last: int) -> tuple[Lease, int] | None:
        """The lease that has the tokens from ``first`` to ``last``, all of one, and the mask of those unsettled."""
        lease = self.by_number.get(first >> OFFSET_BITS)
        if lease is None:
            return None
        return lease, lease.open & ((2 << last - first) - 1) << (first & _OFFSET_MASK)

    def settle(self, lease: Lease, mask: int) -> None:
        """Let go of the copies in a mask of open offsets; a lease with none left is gone."""
        gone = mask.bit_count()
        lease.open &= ~mask
        lease.left -= gone
        self.count -= gone
        if lease.left:
            return
        number = lease.number
        self._trash.append(lease)
        del self.by_number[number]
        owned = self._by_owner[lease.owner]
        del owned[number]
        if not owned:
            del self._by_owner[lease.owner]
        first = lease.sequence
        for bucket in lease.buckets():
            held = self._buckets[bucket]
            del held[first if held.get(first) is lease else -number]
            if not held:
                del self._buckets[bucket]

    def extend(self, lease: Lease, offset: int, deadline: float) -> None:
        """Give one copy a deadline of its own."""
        if lease.left == 1:
            lease.deadline = deadline
            lease.extended = None
        else:
            if lease.extended is None:
                lease.extended = {}
            lease.extended[offset] = deadline
        if deadline != inf:
            self._arm(deadline, lease.number)

    def due(self, now: float) -> Iterator[tuple[Lease, int]]:
        """Each lease with copies whose deadline has come, and the mask of those; they are settled by the caller."""
        while self._due and self._due[0][0] <= now:
            lease = self.by_number.get(heappop(self._due)[1])
            if lease is None:
                continue
            if lease.extended is None:
                if lease.deadline <= now:
                    yield lease, lease.open
                continue
            mask = 0
            for offset in offsets(lease.open):
                if lease.deadline_of(offset) <= now:
                    mask |= 1 << offset
            if mask:
                yield lease, mask

    def next_deadline(self) -> float | None:
        """The earliest deadline of a copy in flight; None when there is none. O(1) over time: stale entries go."""
        while self._due:
            if self._is_current(self._due[0]):
                return self._due[0][0]
            heappop(self._due)
        return None

    def of_owner(self, owner: object) -> list[Lease]:
        """What an owner holds, in the order it was granted."""
        return list(self._by_owner.get(owner, {}).values())

    def is_indexed(self, lease: Lease) -> bool:
        """Whether every index that should know a lease does; for the invariants."""
        deadlines = {lease.deadline_of(offset) for offset in offsets(lease.open)}
        return (
            self._by_owner.get(lease.owner, {}).get(lease.number) is lease
            and all(lease in self._buckets.get(bucket, {}).values() for bucket in lease.buckets())
            and all((deadline, lease.number) in self._due for deadline in deadlines - {inf})
        )

    def sizes(self) -> tuple[int, int]:
        """Leases known to the owner index and to the sequence index; for the invariants."""
        numbers = {lease.number for held in self._buckets.values() for lease in held.values()}
        return sum(len(owned) for owned in self._by_owner.values()), len(numbers)

    def _is_current(self, entry: tuple[float, int]) -> bool:
        deadline, number = entry
        lease = self.by_number.get(number)
        if lease is None:
            return False
        if lease.extended is None:
            return lease.deadline == deadline
        return any(lease.deadline_of(offset) == deadline for offset in offsets(lease.open))

    def _arm(self, deadline: float, number: int) -> None:
        heappush(self._due, (deadline, number))
        # What is acked or extended long before its deadline leaves an entry behind one that is held for long.
        if len(self._due) > 64 + 4 * self.count:
            self._due = [entry for entry in set(self._due) if self._is_current(entry)]
            heapify(self._due)
