"""The places a copy can be in, and every move between them.

Ready, delayed, in flight, dead; acked and dropped copies are counted. Each method moves copies and counts in one step,
so ``accepted = acked + ready + delayed + in_flight + dead + dropped`` holds before and after each. Belongs to one
subscription, which holds its lock around every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from mpbroker.engine.batch import Batch, Run
from mpbroker.engine.leases import Lease, LeaseTable, stretches
from mpbroker.engine.letters import MAX_LETTERS, DeadLetters, DeadRecord
from mpbroker.engine.ready import Delayed, ReadyQueue
from mpbroker.messages import Attempt, AttemptOutcome, DeadLetterReason, MessagePriority, SubscriptionStats
from mpbroker.overflow import Overflow
from mpbroker.settings import Settings

FRESH_BYTES: Final = 144
"""What a run that was never handed over takes in memory: itself, its number, its place in a deque."""

RETURNED_BYTES: Final = 256
"""What a run takes that came back, or is delayed: the entry of a heap and a time as well."""

HELD_BYTES: Final = 512
"""What is counted for each copy in flight: a lease of one message with its place in all indices takes about as much.
A lease of many takes far less, but each of them may come back by itself, and nothing could be refused then."""

LETTER_BYTES: Final = 256
"""What a dead letter takes beside its batch and its history."""


class Places:
    """Attributes:
    newest: the highest sequence that ever came in.
    filtered_out, late_acks: counted here for their place in the figures.
    trash: what is forgotten goes here; see Engine.
    """

    def __init__(self, settings: Settings, trash: deque[object], max_letters: int = MAX_LETTERS) -> None:
        self.ready = ReadyQueue()
        self.delayed = Delayed()
        self.leases = LeaseTable(trash)
        self.letters = DeadLetters(trash, max_letters)
        self.trash = trash
        self.newest = 0
        self.filtered_out = 0
        self.late_acks = 0
        self._settings = settings
        self._accepted = 0
        self._acked = 0
        self._dropped = 0
        self._deliveries = 0
        self._redelivered = 0
        self._filter_errors = 0
        self._dead_lettered = 0

    @property
    def size(self) -> int:
        """What max_queue bounds: ready + delayed + in flight."""
        return self.ready.count + self.delayed.count + self.leases.count

    @property
    def overhead_bytes(self) -> int:
        """What all copies here take in memory beside their batches and histories, about. O(1)."""
        size = HELD_BYTES * self.leases.count + LETTER_BYTES * len(self.letters)
        if self.delayed.count:
            size += RETURNED_BYTES * len(self.delayed.heap)
        if self.ready.count:
            for lane in self.ready.lanes:
                if lane.count:
                    size += FRESH_BYTES * len(lane.fresh) + RETURNED_BYTES * len(lane.returned)
        return size

    def holds(self, sequence: int) -> bool:
        """Whether a copy of that message is here, a dead one included. Looks at every run."""
        waiting = (run for queue in (self.ready, self.delayed) for run in queue.runs())
        return (
            self.leases.find(sequence) is not None
            or any(run.sequence <= sequence < run.sequence + len(run) for run in waiting)
            or any(record.sequence == sequence for record in self.letters)
        )

    def next_deadline(self) -> float | None:
        """When the next lease ends or the next delayed copy is due."""
        deadline, due = self.leases.next_deadline(), self.delayed.next_due()
        if deadline is None or due is None:
            return due if deadline is None else deadline
        return min(deadline, due)

    # -- in -----------------------------------------------------------------------------------------------------------

    def put(self, batch: Batch, now: float) -> bool:
        """Take a copy of each message; what does not fit overflows. Whether any was queued."""
        self._accept(batch)
        room = min(batch.count, max(0, self._settings.max_queue - self.size))
        if room:
            self.ready.add(Run(batch, 0, room))
        queued = room > 0
        for index in range(room, batch.count):
            queued |= self._overflow(Run(batch, index, index + 1), now)
        return queued

    def put_filter_errors(self, batch: Batch, error: str, now: float) -> None:
        """Set messages aside on which the filter raised."""
        self._accept(batch)
        self._filter_errors += batch.count
        self._bury(Run(batch, 0, batch.count), DeadLetterReason.FILTER_ERROR, error, now)

    # -- out ----------------------------------------------------------------------------------------------------------

    def grant(self, run: Run, member: str, owner: object, now: float, deadline: float) -> Lease:
        """Hand a run that is in no place now to a member."""
        count = len(run)
        self._deliveries += count
        if run.seen:
            self._redelivered += count
        return self.leases.grant(run, run.attempts + 1, member, owner, now, deadline)

    def ack_each(self, held: Iterable[tuple[Lease, int] | None]) -> list[bool]:
        """Finish copies; False, and counted, for what nobody holds, and for what is asked for twice."""
        answers = []
        for each in held:
            if each is None or not each[0].open >> each[1] & 1:
                self.late_acks += 1
                answers.append(False)
            else:
                self.ack(*each)
                answers.append(True)
        return answers

    def ack(self, lease: Lease, offset: int) -> None:
        self.leases.settle(lease, 1 << offset)
        self._acked += 1

    def ack_range(self, first: int, last: int) -> int:
        """Finish what is held of a range of tokens of one lease; how many copies."""
        held = self.leases.by_range(first, last)
        count = 0
        if held is not None and held[1]:
            count = held[1].bit_count()
            self.leases.settle(*held)
            self._acked += count
        self.late_acks += last - first + 1 - count
        return count

    # -- back ---------------------------------------------------------------------------------------------------------

    def make_ready(self, now: float) -> bool:
        """Move delayed copies that are due to their place among the ready ones; whether there were any."""
        moved = False
        for run in self.delayed.pop_due(now):
            self.ready.put_back(run)
            moved = True
        return moved

    def fail(
        self,
        lease: Lease,
        mask: int,
        now: float,
        outcome: AttemptOutcome,
        error: str,
        *,
        delay: float | None = None,
    ) -> None:
        """End the attempt of the copies in a mask: they come back, or are set aside after their last one."""
        if delay is None:
            retry = self._settings.retry
            delay = 0.0 if retry is None else retry.delay(lease.attempt)
        for run in self._failed(lease, mask, now, outcome, error):
            if run.attempts >= self._settings.max_deliveries:
                self._bury(run, DeadLetterReason.RETRIES_EXHAUSTED, error, now)
            elif delay > 0.0:
                self.delayed.add(now + delay, run)
            else:
                self.ready.put_back(run)

    def reject(self, lease: Lease, offset: int, error: str, now: float) -> None:
        """Set a copy in flight aside."""
        for run in self._failed(lease, 1 << offset, now, AttemptOutcome.REJECTED, error):
            self._bury(run, DeadLetterReason.REJECTED, error, now)

    def retry_held(self, lease: Lease, offset: int, error: str, now: float, deadline: float) -> Lease:
        """End the attempt of a copy and begin the next with the same member; it was not the last."""
        (run,) = self._failed(lease, 1 << offset, now, AttemptOutcome.FAILED, error)
        return self.grant(run, lease.member, lease.owner, now, deadline)

    def give_back(self, lease: Lease, mask: int) -> None:
        """Make the copies in a mask ready again, uncounted."""
        self._back(lease, mask, seen=True)

    def give_back_range(self, first: int, last: int) -> int:
        """give_back for what is held of a range of tokens of one lease; how many copies."""
        held = self.leases.by_range(first, last)
        if held is None or not held[1]:
            return 0
        self.give_back(*held)
        return held[1].bit_count()

    def undo(self, lease: Lease) -> int:
        """Make a lease's copies ready again as if it had never been; how many."""
        count = lease.left
        self._deliveries -= count
        if lease.redelivered:
            self._redelivered -= count
        self._back(lease, lease.open, seen=lease.redelivered)
        return count

    # -- dead letters -------------------------------------------------------------------------------------------------

    def redrive(self, wanted: frozenset[int] | None, limit: int | None) -> int:
        """Make dead letters ready again as far as they fit: attempts start anew, history stays."""
        room = max(0, self._settings.max_queue - self.size)
        records = self.letters.take(room if limit is None else min(limit, room), wanted)
        for record in records:
            batch, at = record.batch, record.index
            self.ready.put_back(Run(batch, at, at + 1, seen=record.seen, alone=record.alone, history=record.history))
        return len(records)

    def purge(self, wanted: frozenset[int] | None, limit: int | None) -> int:
        gone = len(self.letters.take(limit, wanted))
        self._dropped += gone
        return gone

    # -- all ----------------------------------------------------------------------------------------------------------

    def drop_everything(self) -> None:
        self._dropped += self.size + self.letters.clear()
        self.trash.append((self.ready, self.delayed, self.leases))
        self.ready = ReadyQueue()
        self.delayed = Delayed()
        self.leases = LeaseTable(self.trash)

    def stats(self) -> SubscriptionStats:
        return SubscriptionStats(
            accepted=self._accepted,
            acked=self._acked,
            ready=self.ready.count,
            delayed=self.delayed.count,
            in_flight=self.leases.count,
            dead=len(self.letters),
            dropped=self._dropped,
            backlog=self.ready.count + self.delayed.count,
            deliveries=self._deliveries,
            redelivered=self._redelivered,
            late_acks=self.late_acks,
            filtered_out=self.filtered_out,
            filter_errors=self._filter_errors,
            dead_lettered=self._dead_lettered,
        )

    # -- steps of a move ----------------------------------------------------------------------------------------------

    def _accept(self, batch: Batch) -> None:
        self._accepted += batch.count
        self.newest = max(self.newest, batch.first + batch.count - 1)

    def _failed(self, lease: Lease, mask: int, now: float, outcome: AttemptOutcome, error: str) -> Sequence[Run]:
        """Take the copies in a mask out of flight, as runs with the ended attempt in their history."""
        attempt = Attempt(lease.attempt, lease.member, lease.granted, now, outcome, error)
        history = lease.batch.remembered(attempt, lease.history)
        alone = lease.alone or outcome is AttemptOutcome.WORKER_DIED
        self.leases.settle(lease, mask)
        return [
            Run(
                lease.batch,
                lease.start + start,
                lease.start + stop,
                attempts=lease.attempt,
                seen=True,
                alone=alone,
                history=history,
            )
            for start, stop in stretches(mask)
        ]

    def _back(self, lease: Lease, mask: int, *, seen: bool) -> None:
        self.leases.settle(lease, mask)
        attempts = lease.attempt - 1
        at = lease.start
        for start, stop in stretches(mask):
            self.ready.put_back(Run(lease.batch, at + start, at + stop, attempts, seen, lease.alone, lease.history))

    def _overflow(self, run: Run, now: float) -> bool:
        """Deal with one new copy that does not fit; whether it was queued in another's place."""
        oldest = None
        if self._settings.overflow is Overflow.DROP_OLDEST:
            oldest = self.ready.evict(MessagePriority(run.batch.priority))
        error = f"the queue held its max_queue of {self._settings.max_queue} messages"
        self._bury(run if oldest is None else oldest, DeadLetterReason.OVERFLOW, error, now)
        if oldest is not None:
            self.ready.add(run)
        return oldest is not None

    def _bury(self, run: Run, reason: DeadLetterReason, error: str, now: float) -> None:
        """Set the copies of a run aside, each by itself."""
        self._dead_lettered += len(run)
        for index in range(run.start, run.stop):
            self._dropped += self.letters.add(DeadRecord(run, index, reason, error, now))
