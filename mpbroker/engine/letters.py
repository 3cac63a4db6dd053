"""Dead letters: the copies a subscription set aside, bounded.

Belongs to one subscription, under its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from mpbroker.engine.batch import Run
from mpbroker.messages import DeadLetter, DeadLetterReason

MAX_LETTERS: Final = 10_000
"""Dead letters kept in a subscription where nobody says otherwise; the oldest give way, counted."""

MAX_FILTER_ERRORS: Final = 100
"""Of those, made by a filter that raised: a broken filter fails on every message, and must not push the others out."""


class DeadRecord:
    """One copy set aside: the message at ``index`` of ``batch``, mostly alone there."""

    __slots__ = (
        "alone",
        "attempts",
        "batch",
        "dead_since",
        "error",
        "history",
        "index",
        "last_member",
        "reason",
        "seen",
    )

    def __init__(self, run: Run, index: int, reason: DeadLetterReason, error: str, now: float) -> None:
        self.batch, self.index = run.batch.alone(index)
        self.reason = reason
        self.error = error
        self.attempts = run.attempts
        self.dead_since = now
        self.last_member = run.history[-1].member if run.history else ""
        self.history = run.history
        self.alone = run.alone
        self.seen = run.seen

    @property
    def sequence(self) -> int:
        return self.batch.first + self.index

    def letter(self, subscription_id: str) -> DeadLetter:
        """The public form."""
        return DeadLetter(
            subscription_id,
            self.batch.message(self.index),
            self.reason,
            self.error,
            self.attempts,
            self.dead_since,
            self.last_member,
            self.history,
        )


class DeadLetters:
    """The dead letters of one subscription, oldest first. ``trash``: gets what is forgotten; see Engine."""

    __slots__ = ("_filter_errors", "_records", "_trash", "most")

    def __init__(self, trash: deque[object], most: int = MAX_LETTERS) -> None:
        self._trash = trash
        self.most = most
        self._records: deque[DeadRecord] = deque()
        self._filter_errors = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: DeadRecord) -> int:
        """Keep a record; returns how many copies (0 or 1) had to be dropped for the bounds."""
        if record.reason is DeadLetterReason.FILTER_ERROR:
            if self._filter_errors >= MAX_FILTER_ERRORS:
                self._trash.append(record)
                return 1
            self._filter_errors += 1
        self._records.append(record)
        if len(self._records) <= self.most:
            return 0
        self._forget(self._records.popleft())
        return 1

    def page(self, limit: int | None, offset: int) -> list[DeadRecord]:
        return list(islice(self._records, offset, None if limit is None else offset + limit))

    def take(self, limit: int | None, wanted: frozenset[int] | None) -> list[DeadRecord]:
        """Take out the oldest ``limit`` records, of the wanted sequences where given."""
        taken: list[DeadRecord] = []
        kept: deque[DeadRecord] = deque()
        for record in self._records:
            if (limit is None or len(taken) < limit) and (wanted is None or record.sequence in wanted):
                taken.append(record)
                self._forget(record)
            else:
                kept.append(record)
        self._records = kept
        return taken

    def clear(self) -> int:
        """Forget all; returns how many there were."""
        count = len(self._records)
        self._trash.append(self._records)
        self._records = deque()
        self._filter_errors = 0
        return count

    def __iter__(self) -> Iterator[DeadRecord]:
        return iter(self._records)

    def is_sound(self) -> bool:
        """Whether the count of filter errors is right; for the invariants."""
        return self._filter_errors == sum(r.reason is DeadLetterReason.FILTER_ERROR for r in self._records)

    def _forget(self, record: DeadRecord) -> None:
        self._trash.append(record)
        if record.reason is DeadLetterReason.FILTER_ERROR:
            self._filter_errors -= 1
