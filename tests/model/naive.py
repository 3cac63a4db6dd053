"""A broker so simple that it is plainly right: one list a subscription, looked through for everything.

Time is an argument and never goes back. Knows nothing of runs, heaps, leases or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpbroker import (
    AttemptOutcome,
    DeadLetterReason,
    MessagePriority,
    Overflow,
    RetryPolicy,
    SubscriptionStats,
    TopicStats,
    WaitForRoom,
)

KEPT_FILTER_ERRORS = 100
KEPT_ATTEMPTS = 100

Failed = tuple[int, str, float, float, AttemptOutcome, str]
"""number, member, started, ended, outcome, error."""


class Full(Exception):
    """A subscription that rejects is full. Args: subscription id, limit."""


@dataclass
class Copy:
    """One message in one subscription."""

    sequence: int
    priority: MessagePriority
    payload: Any
    headers: dict[str, str]
    place: str = "ready"
    attempts: int = 0
    handed_over: bool = False
    redelivered: bool = False  # as its last hand-over said
    due: float = 0.0
    deadline: float = 0.0
    started: float = 0.0
    member: str = ""
    token: int = -1
    history: list[Failed] = field(default_factory=list)
    reason: DeadLetterReason | None = None
    error: str = ""
    dead_since: float = 0.0

    @property
    def order(self) -> tuple[int, int]:
        return -self.priority, self.sequence


@dataclass(frozen=True)
class Rules:
    """The settings of a subscription."""

    filter: Callable[[Mapping[str, str]], object] | None = None
    ack_timeout: float = 30.0
    max_deliveries: int = 5
    retry: RetryPolicy | None = None
    max_queue: int = 1_000_000
    overflow: Overflow | WaitForRoom = Overflow.DEAD_LETTER


class NaiveSubscription:
    def __init__(self, topic: str, name: str, rules: Rules) -> None:
        self.topic = topic
        self.name = name
        self.rules = rules
        self.ended = False
        self.copies: list[Copy] = []  # ready, delayed or held
        self.letters: list[Copy] = []  # oldest first
        self.letters_changed = False
        self.accepted = 0
        self.acked = 0
        self.dropped = 0
        self.deliveries = 0
        self.redelivered = 0
        self.late_acks = 0
        self.filtered_out = 0
        self.filter_errors = 0
        self.dead_lettered = 0

    @property
    def subscription_id(self) -> str:
        return f"{self.topic}/{self.name}"

    # -- taking in --------------------------------------------------------------------------------

    def verdict(self, headers: Mapping[str, str]) -> bool | str:
        """Whether it wants a message, or the error of its filter."""
        if self.rules.filter is None:
            return True
        try:
            return bool(self.rules.filter(headers))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def room(self) -> int:
        return self.rules.max_queue - len(self.copies)

    def refuses(self, count: int) -> bool:
        """Whether so many are too many for a publish; whoever waits for room in a single thread does so in vain."""
        return self.rules.overflow.patience is not None and count > self.room()

    def accept(self, copy: Copy, now: float) -> bool:
        """Take a message that the filter was asked about; False when it is not queued."""
        verdict = self.verdict(copy.headers)
        if isinstance(verdict, str):
            self.filter_errors += 1
            self.accepted += 1
            kept = [x for x in self.letters if x.reason is DeadLetterReason.FILTER_ERROR]
            if len(kept) < KEPT_FILTER_ERRORS:
                self.bury(copy, DeadLetterReason.FILTER_ERROR, verdict, now)
            else:
                self.dropped += 1
                self.dead_lettered += 1
            return False
        if not verdict:
            self.filtered_out += 1
            return False
        self.accepted += 1
        if self.room() > 0:
            self.copies.append(copy)
            return True
        victim = copy
        if self.rules.overflow is Overflow.DROP_OLDEST:
            ready = self.ready(now)
            lowest = min((x.priority for x in ready), default=None)
            if lowest is not None and lowest <= copy.priority:
                victim = min((x for x in ready if x.priority == lowest), key=lambda x: x.sequence)
                self.copies.remove(victim)
                self.copies.append(copy)
        self.bury(victim, DeadLetterReason.OVERFLOW, "", now)
        return victim is not copy

    def bury(self, copy: Copy, reason: DeadLetterReason, error: str, now: float) -> None:
        copy.place, copy.reason, copy.error, copy.dead_since = "dead", reason, error, now
        copy.token = -1
        self.letters.append(copy)
        self.letters_changed = True
        self.dead_lettered += 1

    # -- handing out ------------------------------------------------------------------------------

    def ready(self, now: float) -> list[Copy]:
        for copy in self.copies:
            if copy.place == "delayed" and now >= copy.due:
                copy.place = "ready"
        return sorted((x for x in self.copies if x.place == "ready"), key=lambda x: x.order)

    def expire(self, now: float) -> int:
        ended = [x for x in self.copies if x.place == "held" and now >= x.deadline]
        for copy in sorted(ended, key=lambda x: (x.deadline, x.order)):
            self.fail(copy, AttemptOutcome.LEASE_ENDED, "", None, now)
        return len(ended)

    def poll(self, member: str, now: float, limit: int) -> list[Copy]:
        self.expire(now)
        taken = self.ready(now)[:limit]
        for copy in taken:
            self.hand_over(copy, member, now)
        return taken

    def hand_over(self, copy: Copy, member: str, now: float) -> None:
        self.deliveries += 1
        self.redelivered += copy.handed_over
        copy.redelivered, copy.handed_over = copy.handed_over, True
        copy.attempts += 1
        copy.place, copy.member, copy.started = "held", member, now
        copy.deadline = now + self.rules.ack_timeout

    # -- settling ---------------------------------------------------------------------------------

    def by_token(self, token: int) -> Copy | None:
        return self._held(lambda copy: copy.token == token)

    def by_id(self, sequence: int, member: str) -> Copy | None:
        return self._held(lambda copy: copy.sequence == sequence and copy.member == member)

    def _held(self, wanted: Callable[[Copy], bool]) -> Copy | None:
        found = [x for x in self.copies if x.place == "held" and wanted(x)]
        assert len(found) <= 1
        return found[0] if found else None

    def ack(self, copy: Copy | None) -> bool:
        if copy is None:
            self.late_acks += 1
            return False
        self.copies.remove(copy)
        self.acked += 1
        return True

    def release(self, copy: Copy | None) -> bool:
        if copy is None:
            return False
        copy.attempts -= 1
        copy.place, copy.token = "ready", -1
        return True

    def nack(self, copy: Copy | None, delay: float | None, error: str, now: float) -> bool:
        if copy is None:
            return False
        self.fail(copy, AttemptOutcome.FAILED, error, delay, now)
        return True

    def reject(self, copy: Copy | None, error: str, now: float) -> bool:
        if copy is None:
            return False
        self.note(copy, AttemptOutcome.REJECTED, error, now)
        self.copies.remove(copy)
        self.bury(copy, DeadLetterReason.REJECTED, error, now)
        return True

    def extend(self, copy: Copy | None, seconds: float | None, now: float) -> bool:
        if copy is None:
            return False
        copy.deadline = now + (self.rules.ack_timeout if seconds is None else seconds)
        return True

    def retry(self, copy: Copy | None, error: str, now: float) -> bool:
        """Whether it is held again."""
        if copy is None:
            return False
        if copy.attempts >= self.rules.max_deliveries:
            self.fail(copy, AttemptOutcome.FAILED, error, None, now)
            return False
        self.note(copy, AttemptOutcome.FAILED, error, now)
        self.hand_over(copy, copy.member, now)
        return True

    def fail(self, copy: Copy, outcome: AttemptOutcome, error: str, delay: float | None, now: float) -> None:
        self.note(copy, outcome, error, now)
        copy.token = -1
        if copy.attempts >= self.rules.max_deliveries:
            self.copies.remove(copy)
            self.bury(copy, DeadLetterReason.RETRIES_EXHAUSTED, error, now)
            return
        if delay is None:
            delay = self.rules.retry.delay(copy.attempts) if self.rules.retry else 0.0
        copy.place, copy.due = "delayed", now + delay

    def note(self, copy: Copy, outcome: AttemptOutcome, error: str, now: float) -> None:
        attempt = (copy.attempts, copy.member, copy.started, now, outcome, error)
        copy.history = [*copy.history, attempt][-KEPT_ATTEMPTS:]

    # -- dead letters -----------------------------------------------------------------------------

    def chosen(self, sequences: Sequence[int] | None, limit: int | None) -> list[Copy]:
        wanted = [x for x in self.letters if sequences is None or x.sequence in sequences]
        return wanted if limit is None else wanted[:limit]

    def redrive(self, sequences: Sequence[int] | None, limit: int | None) -> int:
        chosen = self.chosen(sequences, limit)[: max(0, self.room())]
        for copy in chosen:
            self.letters.remove(copy)
            copy.place, copy.attempts, copy.reason = "ready", 0, None
            self.copies.append(copy)
        self.letters_changed |= bool(chosen)
        return len(chosen)

    def purge(self, sequences: Sequence[int] | None, limit: int | None) -> int:
        chosen = self.chosen(sequences, limit)
        for copy in chosen:
            self.letters.remove(copy)
        self.dropped += len(chosen)
        self.letters_changed |= bool(chosen)
        return len(chosen)

    # -- looking ----------------------------------------------------------------------------------

    def has(self, sequence: int) -> bool:
        return any(x.sequence == sequence for x in self.copies + self.letters)

    def due_times(self, now: float) -> list[float]:
        """When something will happen by itself (what is due already has happened)."""
        self.ready(now)
        return [copy.deadline if copy.place == "held" else copy.due for copy in self.copies if copy.place != "ready"]

    def stats(self, now: float) -> SubscriptionStats:
        self.ready(now)
        places = [copy.place for copy in self.copies]
        ready, delayed = places.count("ready"), places.count("delayed")
        return SubscriptionStats(
            accepted=self.accepted,
            acked=self.acked,
            ready=ready,
            delayed=delayed,
            in_flight=places.count("held"),
            dead=len(self.letters),
            dropped=self.dropped,
            backlog=ready + delayed,
            deliveries=self.deliveries,
            redelivered=self.redelivered,
            late_acks=self.late_acks,
            filtered_out=self.filtered_out,
            filter_errors=self.filter_errors,
            dead_lettered=self.dead_lettered,
        )


@dataclass
class NaiveTopic:
    published: int = 0
    unrouted: int = 0
    subscriptions: dict[str, NaiveSubscription] = field(default_factory=dict)


class NaiveBroker:
    def __init__(self) -> None:
        self.topics: dict[str, NaiveTopic] = {}
        self.last = 0

    def subscriptions(self) -> list[NaiveSubscription]:
        return [s for topic in self.topics.values() for s in topic.subscriptions.values()]

    def publish(
        self,
        topic: str,
        payloads: Sequence[Any],
        headers: dict[str, str],
        priority: MessagePriority,
        now: float,
    ) -> list[int]:
        """The sequences given. Raises Full before anything changed."""
        place = self.topics[topic]
        for subscription in place.subscriptions.values():
            if subscription.refuses(len(payloads)) and subscription.verdict(headers) is True:
                raise Full(subscription.subscription_id, subscription.rules.max_queue)
        sequences = [self.last + 1 + index for index in range(len(payloads))]
        self.last += len(payloads)
        place.published += len(payloads)
        for sequence, payload in zip(sequences, payloads, strict=True):
            before = sum(s.accepted for s in place.subscriptions.values())
            for subscription in place.subscriptions.values():
                subscription.accept(Copy(sequence, priority, payload, headers), now)
            after = sum(s.accepted for s in place.subscriptions.values())
            place.unrouted += before == after
        return sequences

    def end(self, subscription: NaiveSubscription) -> None:
        subscription.ended = True
        del self.topics[subscription.topic].subscriptions[subscription.name]

    def delete_topic(self, name: str) -> None:
        for subscription in list(self.topics[name].subscriptions.values()):
            self.end(subscription)
        del self.topics[name]

    def next_deadline(self, now: float) -> float | None:
        times = [time for s in self.subscriptions() for time in s.due_times(now)]
        return min(times, default=None)

    def topic_stats(self) -> dict[str, TopicStats]:
        return {
            name: TopicStats(topic.published, topic.unrouted, len(topic.subscriptions))
            for name, topic in self.topics.items()
        }
