"""One subscription: who may have its copies and when, under one lock.

The moves themselves are in places; here is the lock around them, who waits, and the place of the push dispatcher. Time
is a number that callers pass in. Every public method takes the subscription's lock; those that let it grow take the
broker's lock first, always in that order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Final

from mpbroker.engine.batch import Batch
from mpbroker.engine.leases import Lease
from mpbroker.engine.letters import MAX_LETTERS, DeadRecord
from mpbroker.engine.places import Places
from mpbroker.engine.room import Line
from mpbroker.errors import QueueFull, SubscriptionBusy, UnknownSubscription
from mpbroker.filters import Expression
from mpbroker.messages import AttemptOutcome, Headers, SubscriptionStats, error_text
from mpbroker.settings import Settings

DISPATCHER_PREFIX: Final = "$dispatcher-"
"""Members of push dispatchers; a leading $ keeps the name out of users' reach."""


class Subscription:
    """Attributes:
    number: names this incarnation; never used again by its broker.
    ended: it was deleted; it holds nothing, and answers like something unknown.
    read_at: when copies were last asked for; None: never.
    dispatcher: the member that alone may poll, or None.
    patience: seconds that a publish waits for room until it is refused; None: it is never refused.
    line: where it waits.
    """

    def __init__(
        self,
        number: int,
        topic: str,
        name: str,
        settings: Settings,
        broker_lock: AbstractContextManager[object],
        on_ready: Callable[[Subscription], None] | None,
        trash: deque[object],
        max_letters: int = MAX_LETTERS,
    ) -> None:
        self.number = number
        self.topic = topic
        self.name = name
        self.subscription_id = f"{topic}/{name}"
        self.settings = settings
        self.ended = False
        self.read_at: float | None = None
        self.dispatcher: str | None = None
        self.patience = settings.overflow.patience
        accepts = settings.filter
        self._accepts = accepts.predicate if isinstance(accepts, Expression) else accepts
        self._broker_lock = broker_lock
        self._on_ready = on_ready
        self._lock = threading.Lock()  # guards everything below, ended and dispatcher
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._dispatcher_owner: object = None
        self._dispatchers = 0
        self._places = Places(settings, trash, max_letters)
        self.line = Line(self._lock, self._places, settings.max_queue)

    # -- in: called under the broker's lock ---------------------------------------------------------------------------

    def judge(self, headers: Headers) -> bool | str:
        """Whether the filter accepts headers; a str is the error it raised. Runs user code; takes no lock."""
        if self._accepts is None:
            return True
        try:
            return bool(self._accepts(headers))
        except Exception as error:  # noqa: BLE001 - a filter is user code, and its failure becomes a dead letter
            return error_text(error)

    def put(self, batches: Sequence[Batch], now: float) -> bool:
        """Take a copy of every message; what does not fit becomes dead letters. Whether any was queued."""
        with self._lock:
            queued = False
            for batch in batches:
                queued |= self._places.put(batch, now)
            if queued:
                self._announce()
            return queued

    def skip(self, count: int) -> None:
        """Count messages that the filter did not accept."""
        with self._lock:
            self._places.filtered_out += count

    def put_filter_errors(self, batches: Sequence[Batch], error: str, now: float) -> None:
        """Set messages aside on which the filter raised."""
        with self._lock:
            for batch in batches:
                self._places.put_filter_errors(batch, error, now)

    def end(self) -> None:
        """Drop everything and wake who waits; from now on it is unknown."""
        with self._lock:
            self.ended = True
            self.dispatcher = None
            self._places.drop_everything()
            self._announce()
            self.line.end()

    def offer(self, batch: Batch, now: float) -> bool:
        """Take a copy of one message, published before; whether it was queued. Takes the broker's lock itself.

        Raises:
            UnknownSubscription; QueueFull: it is full, with Overflow.REJECT or WAIT: an offer never waits.
        """
        with self._broker_lock:
            verdict = self.judge(batch.headers)
            with self._lock:
                if self.ended:
                    raise UnknownSubscription(self.subscription_id)
                if batch.first <= self._places.newest and self._places.holds(batch.first):
                    return False
                is_full = self._places.size >= self.settings.max_queue
            if verdict is False:
                self.skip(1)
                return False
            if isinstance(verdict, str):
                self.put_filter_errors((batch,), verdict, now)
                return False
            if self.patience is not None and is_full:
                raise QueueFull(self.subscription_id, self.settings.max_queue)
            return self.put((batch,), now)

    # -- out ----------------------------------------------------------------------------------------------------------

    def take(
        self,
        member: str,
        now: float,
        max_messages: int,
        *,
        owner: object = None,
        max_bytes: int | None = None,
        dispatcher: bool = False,
    ) -> list[Lease]:
        """Hand ready copies to a member, after taking back what is due; an empty list when nothing is ready.

        Args:
            owner: whose death or end gives the leases back (see end_owner).
            max_bytes: bound on the encoded size of all but the first run.
            dispatcher: ``member`` is what attach_dispatcher gave; once detached it gets nothing.
        """
        with self._lock:
            return self._take(member, now, max_messages, owner, max_bytes, dispatcher)

    def take_waiting(
        self,
        member: str,
        clock: Callable[[], float],
        max_messages: int,
        timeout: float | None,
        *,
        dispatcher: bool = False,
    ) -> list[Lease]:
        """take, waiting up to ``timeout`` seconds (None: for ever) for the first copy. For threads of one process."""
        now = clock()
        limit = inf if timeout is None else now + timeout
        while True:
            with self._lock:
                leases = self._take(member, now, max_messages, None, None, dispatcher)
                if leases or now >= limit or (dispatcher and self.dispatcher != member):
                    return leases
                due = self._places.next_deadline()
                wait = min(limit, inf if due is None else due) - now
                self._waiting += 1
                try:
                    woken = self._changed.wait(min(wait, threading.TIMEOUT_MAX))
                finally:
                    self._waiting -= 1
            until, now = now + wait, clock()
            if not woken and now < until:
                now = until  # the wait took its time, even where an injected clock stands still

    def undo(self, numbers: Iterable[int]) -> int:
        """Take back leases as if they had never been handed over; returns how many copies."""
        with self._lock:
            leases = [self._places.leases.by_number.get(number) for number in numbers]
            count = sum(self._places.undo(lease) for lease in leases if lease is not None)
            self._announce()
            return count

    # -- settled by the reader ----------------------------------------------------------------------------------------

    def ack(self, sequences: Sequence[int], member: str) -> list[bool]:
        """Finish the copies that ``member`` holds."""
        with self._lock:
            return self._ack([self._held(sequence, member) for sequence in sequences])

    def ack_tokens(self, tokens: Sequence[int]) -> list[bool]:
        """Finish the copies of exactly these hand-overs."""
        with self._lock:
            return self._ack([self._places.leases.by_token(token) for token in tokens])

    def ack_ranges(self, ranges: Sequence[int]) -> int:
        """ack_tokens for ranges within one lease each: first and last token in turn. How many copies were held."""
        with self._lock:
            count = sum(map(self._places.ack_range, ranges[::2], ranges[1::2]))
            self._wake()
            return count

    def nack(self, target: int, member: str | None, delay: float | None, error: str, now: float) -> bool:
        """Count the attempt as failed; ``target`` is a sequence held by a member, or a token where member is None."""
        with self._lock:
            held = self._held(target, member)
            if held is None:
                return False
            lease, offset = held
            self._places.fail(lease, 1 << offset, now, AttemptOutcome.FAILED, error, delay=delay)
            self._announce()
            return True

    def release(self, target: int, member: str | None) -> bool:
        """Take the copy back uncounted."""
        with self._lock:
            held = self._held(target, member)
            if held is None:
                return False
            lease, offset = held
            self._places.give_back(lease, 1 << offset)
            self._announce()
            return True

    def release_ranges(self, ranges: Sequence[int]) -> int:
        """release for ranges as in ack_ranges. How many copies were held."""
        with self._lock:
            count = sum(map(self._places.give_back_range, ranges[::2], ranges[1::2]))
            self._announce()
            return count

    def reject(self, target: int, member: str | None, error: str, now: float) -> bool:
        """Set the copy aside."""
        with self._lock:
            held = self._held(target, member)
            if held is None:
                return False
            self._places.reject(*held, error, now)
            self._wake()
            return True

    def extend(self, target: int, member: str | None, seconds: float | None, now: float) -> float | None:
        """Move the deadline of a copy; the new one, or None when it is not held."""
        with self._lock:
            held = self._held(target, member)
            if held is None:
                return None
            lease, offset = held
            if lease.deadline == inf:
                return inf
            deadline = now + (self.settings.ack_timeout if seconds is None else seconds)
            self._places.leases.extend(lease, offset, deadline)
            self._wake()  # a poll that waits for the next deadline has another one now
            return deadline

    def retry_held(self, token: int, error: str, now: float) -> Lease | None:
        """Count an attempt as failed and hand the copy to the same member again; None: dead-lettered, or not held."""
        with self._lock:
            held = self._held(token, None)
            if held is None:
                return None
            lease, offset = held
            if lease.attempt >= self.settings.max_deliveries:
                self._places.fail(lease, 1 << offset, now, AttemptOutcome.FAILED, error)
                self._wake()
                return None
            return self._places.retry_held(lease, offset, error, now, self._deadline(lease.member, now))

    # -- taken back ---------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> int:
        """End every lease with ``now >= deadline``; how many copies that were, dead-lettered ones included."""
        with self._lock:
            return self._expire(now)

    def next_deadline(self) -> float | None:
        """When the next lease ends or the next delayed copy is due."""
        with self._lock:
            return self._places.next_deadline()

    def end_owner(self, owner: object, now: float, *, died: bool, error: str = "") -> int:
        """Take back what an owner holds, and its dispatcher place: counted when it died, else uncounted."""
        count = 0
        with self._lock:
            for lease in self._places.leases.of_owner(owner):
                count += lease.left
                if died:
                    self._places.fail(lease, lease.open, now, AttemptOutcome.WORKER_DIED, error)
                else:
                    self._places.give_back(lease, lease.open)
            if self.dispatcher is not None and self._dispatcher_owner == owner:
                self.dispatcher = None
            self._announce()
        return count

    # -- push ---------------------------------------------------------------------------------------------------------

    def attach_dispatcher(self, owner: object) -> str:
        """Become the only one who may poll; the member name to do it with.

        Raises:
            UnknownSubscription; SubscriptionBusy: there is one.
        """
        with self._lock:
            if self.ended:
                raise UnknownSubscription(self.subscription_id)
            if self.dispatcher is not None:
                raise SubscriptionBusy(self.subscription_id)
            self._dispatchers += 1
            self.dispatcher = f"{DISPATCHER_PREFIX}{self._dispatchers}"
            self._dispatcher_owner = owner
            self._announce()
            return self.dispatcher

    def dispatches(self, member: str, owner: object) -> bool:
        """Whether it is the dispatcher, and this owner's."""
        return self.dispatcher == member and self._dispatcher_owner == owner

    def detach_dispatcher(self, member: str, owner: object) -> None:
        """End the place of an owner's dispatcher: what it holds is released, and its waiting poll gets nothing."""
        with self._lock:
            if not self.dispatches(member, owner):
                return
            self.dispatcher = None
            for lease in list(self._places.leases.by_number.values()):
                if lease.member == member:
                    self._places.give_back(lease, lease.open)
            self._announce()

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_letters(self, limit: int | None, offset: int) -> list[DeadRecord]:
        """A page of them, oldest first."""
        with self._lock:
            return self._places.letters.page(limit, offset)

    def redrive(self, sequences: Iterable[int] | None, limit: int | None) -> int:
        """Make dead letters ready again, oldest first, as far as they fit; takes the broker's lock itself."""
        with self._broker_lock, self._lock:
            count = self._places.redrive(None if sequences is None else frozenset(sequences), limit)
            self._announce()
            return count

    def purge(self, sequences: Iterable[int] | None, limit: int | None) -> int:
        """Forget dead letters, oldest first."""
        with self._lock:
            return self._places.purge(None if sequences is None else frozenset(sequences), limit)

    # -- figures ------------------------------------------------------------------------------------------------------

    def stats(self, now: float | None) -> SubscriptionStats:
        """The counts; with ``now``, delayed copies that are due count as ready."""
        with self._lock:
            if now is not None:
                self._make_ready(now)
            return self._places.stats()

    def overhead_bytes(self) -> int:
        """What its copies take in memory beside their batches, about. For a broker of one thread: takes no lock."""
        return self._places.overhead_bytes

    def is_idle(self) -> bool:
        """Whether nothing is ready, delayed or in flight."""
        with self._lock:
            return self._places.size == 0

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until is_idle; False after ``timeout`` seconds. For threads of one process."""
        with self._lock:
            self._waiting += 1
            try:
                longest = threading.TIMEOUT_MAX
                limit = longest if timeout is None else min(timeout, longest)
                return self._changed.wait_for(lambda: self._places.size == 0, limit)
            finally:
                self._waiting -= 1

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _take(
        self, member: str, now: float, max_messages: int, owner: object, max_bytes: int | None, dispatcher: bool
    ) -> list[Lease]:
        if self.ended:
            raise UnknownSubscription(self.subscription_id)
        if self.dispatcher != member:
            if dispatcher:
                return []
            if self.dispatcher is not None:
                raise SubscriptionBusy(self.subscription_id)
        self.read_at = now
        self._expire(now)
        places, deadline = self._places, self._deadline(member, now)
        return [places.grant(run, member, owner, now, deadline) for run in places.ready.take(max_messages, max_bytes)]

    def _deadline(self, member: str, now: float) -> float:
        # What a dispatcher holds ends with the dispatcher.
        return inf if member == self.dispatcher else now + self.settings.ack_timeout

    def _held(self, target: int, member: str | None) -> tuple[Lease, int] | None:
        if member is None:
            return self._places.leases.by_token(target)
        held = self._places.leases.find(target)
        return held if held is not None and held[0].member == member else None

    def _ack(self, held: Sequence[tuple[Lease, int] | None]) -> list[bool]:
        answers = self._places.ack_each(held)
        self._wake()
        return answers

    def _expire(self, now: float) -> int:
        count = 0
        for lease, mask in self._places.leases.due(now):
            count += mask.bit_count()
            error = f"not acked in {now - lease.granted:g} s, and its lease ended"
            self._places.fail(lease, mask, now, AttemptOutcome.LEASE_ENDED, error)
        if count:
            self._announce()
        self._make_ready(now)
        return count

    def _make_ready(self, now: float) -> None:
        if self._places.make_ready(now):
            self._announce()

    def _announce(self) -> None:
        """Copies became ready, or who may have them changed."""
        if self._on_ready is not None:
            self._on_ready(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            self._changed.notify_all()
        if self.line.waiters:
            self.line.wake()
