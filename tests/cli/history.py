"""A short stress run as its ledger reads of it, right in every point; tests change one and see what is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mpbroker.cli.stress.ledger import Check, Kill, Ledger
from mpbroker.cli.stress.plan import Plan
from mpbroker.messages import SubscriptionStats, TopicStats
from mpbroker.testing.checker import Verdict
from mpbroker.testing.history import (
    Answers,
    Begin,
    Delivered,
    Event,
    Invoke,
    Ok,
    Poll,
    Publish,
    Published,
    Settle,
    Stretch,
)
from mpbroker.testing.results import targets_of

PLAN: Final = Plan(publishers=2, messages=3, workers=2)
"""m1 to m6: publisher 0 has m1, m3, m5; publisher 1 has m2, m4, m6."""


@dataclass
class Batch:
    """What one reader took in one poll, and how its acks were answered; None: they were not."""

    reader: str
    sequences: list[int]
    attempts: list[int]
    answers: list[bool] | None
    priorities: list[int] | None = None

    def stretches(self) -> list[Stretch]:
        priorities = self.priorities or [1] * len(self.sequences)
        return [
            Stretch(sequence, sequence, 1, 0, 0, attempt, attempt > 1, priority, 0.0, 0)
            for sequence, attempt, priority in zip(self.sequences, self.attempts, priorities, strict=True)
        ]

    def events(self) -> list[Event]:
        name = "observer" if self.reader == "observer" else "workers"
        poll = Poll(f"stress/{name}", self.reader, 10, None, None)
        found: list[Event] = [Invoke(1, 1, poll), Ok(5000, 1, Delivered(self.stretches(), [{}], "", []))]
        if self.answers is not None:
            targets = targets_of([f"m{sequence}" for sequence in self.sequences])
            settle = Settle(f"stress/{name}", "ack", self.reader, targets, None, "", None)
            found += [Invoke(6000, 2, settle), Ok(7000, 2, Answers(bytes(self.answers), None))]
        return found


def batch(reader: str, *sequences: int, attempt: int = 1) -> Batch:
    return Batch(reader, [*sequences], [attempt] * len(sequences), [True] * len(sequences))


def figures(total: int, **changes: int) -> SubscriptionStats:
    """Of a subscription whose messages were all delivered and acked once."""
    zero = dict.fromkeys(SubscriptionStats.__slots__, 0)
    return replace(SubscriptionStats(**zero), accepted=total, acked=total, deliveries=total, **changes)


def publish(publisher: int, number: int, sequence: int) -> tuple[Publish, Published]:
    return Publish("stress", publisher, number, 1, 1, {}), Published(sequence, "", [])


@dataclass
class History:
    """A run; `failing` says which laws it breaks, and with what."""

    plan: Plan = PLAN
    published: list[tuple[Publish, Published]] = field(
        default_factory=lambda: [publish((sequence - 1) % 2, (sequence - 1) // 2, sequence) for sequence in range(1, 7)]
    )
    batches: list[Batch] = field(
        default_factory=lambda: [
            batch("w1", 1, 2),
            batch("w2", 3, 4, 5),
            batch("w1", 6),
            batch("observer", 1, 2, 3),
            batch("observer", 4, 5, 6),
        ]
    )
    topic: TopicStats = field(default_factory=lambda: TopicStats(6, 0, 2))
    stats: dict[str, SubscriptionStats] = field(default_factory=lambda: {"workers": figures(6), "observer": figures(6)})
    kills: list[Kill] = field(default_factory=list)
    unplanned: Sequence[str] = ()
    verdict: Verdict = field(default_factory=Verdict)

    def ledger(self) -> Ledger:
        ledger = Ledger(self.plan, [kill.worker for kill in self.kills])
        for request, result in self.published:
            ledger.read([Begin(0, f"publisher {request.publisher}", 1), Invoke(1000, 1, request), Ok(2000, 1, result)])
        for reader in {each.reader: None for each in self.batches}:
            events: list[Event] = [Begin(0, reader, 1)]
            for each in self.batches:
                if each.reader == reader:
                    events += each.events()
            ledger.read(events)
        return ledger

    def checks(self) -> list[Check]:
        return self.ledger().judge(self.topic, self.stats, self.kills, self.unplanned, self.verdict)

    def failing(self) -> dict[str, list[str]]:
        """The laws that do not hold -> what is said about them."""
        return {check.law: check.offenders.named for check in self.checks() if not check.holds}


def killing() -> History:
    """A run in which w2 was killed while it held m3 and m4, which w1 then got."""
    history = History(plan=replace(PLAN, kill_workers=1))
    lost = batch("w2", 3, 4)
    lost.answers = None
    history.batches = [
        batch("w1", 1, 2),
        lost,
        batch("w1", 3, attempt=2),
        batch("w1", 4, attempt=2),
        batch("w3", 5, 6),
        batch("observer", 1, 2, 3, 4, 5, 6),
    ]
    history.stats["workers"] = replace(figures(6), deliveries=8, redelivered=2)
    history.kills = [Kill(0, "w2", 2, 4)]
    return history
