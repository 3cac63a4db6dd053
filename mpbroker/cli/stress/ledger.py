"""The ledger: whether a run came to what its plan says, beyond what every run must keep to.

Owns the verdict. Pure: it reads the histories of the processes once they are over, is told what the broker counted and
what the checker found, and names the ids that contradict the plan. Keeps some bytes a message, in flat arrays, so
millions fit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mpbroker.cli.stress.histogram import Histogram
from mpbroker.cli.stress.plan import Plan
from mpbroker.messages import SubscriptionStats, TopicStats
from mpbroker.testing.checker import Law, Verdict
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

SHOWN: Final = 20
"""Offenders that are named; the rest is counted."""


@dataclass(slots=True)
class Offenders:
    """What breaks a law: all of them counted, the first ones named."""

    count: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.named) < SHOWN:
            self.named.append(text)

    def merge(self, problem: str, others: Offenders) -> None:
        """Take over what was noted elsewhere."""
        for text in others.named:
            self.add(f"{problem}{text}")
        self.count += others.count - len(others.named)

    def add_ids(self, problem: str, sequences: Iterable[int]) -> None:
        """One entry for many messages with one problem."""
        ids = [f"m{sequence}" for sequence in sequences]
        if ids:
            more = f" and {len(ids) - SHOWN:,} more" if len(ids) > SHOWN else ""
            self.count += len(ids) - 1
            self.add(f"{len(ids):,} {problem}: {', '.join(ids[:SHOWN])}{more}")


@dataclass(frozen=True, slots=True)
class Check:
    """A law, and what breaks it."""

    law: str
    offenders: Offenders

    @property
    def holds(self) -> bool:
        return self.offenders.count == 0


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed: how many messages it said it held, and how many the broker knew its group held."""

    group: int
    worker: str
    held: int
    in_flight: int


class _Group:
    """One subscription: a byte a message for each of two facts, and the few exceptions by id."""

    def __init__(self, total: int) -> None:
        self.taken = bytearray(total + 1)
        self.acked = bytearray(total + 1)
        self.again: dict[int, list[int]] = {}
        self.struck: dict[int, int] = {}
        self.deliveries = 0
        self.refused = Offenders()
        self.doubly = Offenders()
        self.unreported: list[int] = []


class Ledger:
    """Reads the histories of a run, those of the publishers first; `judge` at the end.

    Attributes:
        latency: from publish to first delivery in the groups, microseconds.
    """

    def __init__(self, plan: Plan, killed: Iterable[str] = ()) -> None:
        """killed: the names of the workers that were."""
        self._plan = plan
        self._total = plan.total
        self._killed = frozenset(killed)
        self._groups = {name: _Group(plan.total) for name in (*plan.groups, "observer")}
        self._said = bytearray(plan.total + 1)
        self._published_ns = array("q", bytes(8 * (plan.total + 1)))
        self._published = [0] * plan.publishers
        self._highest = [0] * 4
        self._publishing = Offenders()
        self._order = Offenders()
        self.latency: Final = Histogram()

    # -- what happened -------------------------------------------------------------------------------------------------

    def read(self, history: Iterable[Event]) -> None:
        """One process, from its beginning to its end."""
        name = ""
        asked: Invoke | None = None
        group: _Group | None = None
        held: list[Stretch] = []
        for event in history:
            if isinstance(event, Invoke):
                asked = event
            elif isinstance(event, Ok) and asked is not None:
                request, result = asked.request, event.result
                if isinstance(request, Publish) and isinstance(result, Published):
                    self._publish(asked.at, request, result.first)
                elif isinstance(request, Poll) and isinstance(result, Delivered):
                    group = self._groups[request.subscription.partition("/")[2]]
                    group.unreported.extend(_sequences(held))
                    held = result.stretches
                    self._take(group, held, event.at)
                elif isinstance(request, Settle) and isinstance(result, Answers) and group is not None:
                    self._answer(group, request, result.answers, name)
                    held = []
            elif isinstance(event, Begin):
                name = event.client
        if group is None:
            return
        if name in self._killed:
            for sequence in _sequences(held):
                group.struck[sequence] = group.struck.get(sequence, 0) + 1
        else:
            group.unreported.extend(_sequences(held))

    def _publish(self, at: int, request: Publish, first: int) -> None:
        end = first + request.count
        if not 0 < first < end <= self._total + 1:
            self._publishing.add(f"m{first} to m{end - 1} are not among m1 to m{self._total}")
            return
        if any(self._said[first:end]):
            self._publishing.add(f"m{first} was given twice")
        self._said[first:end] = b"\x01" * request.count
        self._published_ns[first:end] = array("q", [at]) * request.count
        self._published[request.publisher] += request.count

    def _take(self, group: _Group, stretches: list[Stretch], at: int) -> None:
        taken, published, observed = group.taken, self._published_ns, group is self._groups["observer"]
        for stretch in stretches:
            first, count = stretch.sequence, stretch.count
            end = first + count
            group.deliveries += count
            if not 0 < first < end <= self._total + 1:
                continue  # the checker says that it is none
            if stretch.attempt == 1 and not any(taken[first:end]):
                taken[first:end] = b"\x01" * count
            else:
                for sequence in range(first, end):
                    group.again.setdefault(sequence, []).append(stretch.attempt)
            if observed:
                self._in_order(stretch)
            elif stretch.attempt == 1:
                self.latency.add(max(0, at - begun) // 1000 for begun in published[first:end])

    def _answer(self, group: _Group, request: Settle, answers: bytes, name: str) -> None:
        acked = group.acked
        at = 0
        for target in request.targets:
            first, end = target.sequence, target.sequence + target.count
            said = answers[at : at + target.count]
            at += target.count
            if not 0 < first < end <= self._total + 1:
                continue
            if all(said) and not any(acked[first:end]):
                acked[first:end] = b"\x01" * target.count
                continue
            for sequence, answer in zip(range(first, end), said, strict=True):
                if not answer:
                    group.refused.add(f"m{sequence} by {name}")
                elif acked[sequence]:
                    group.doubly.add(f"m{sequence}, the second time by {name}")
                else:
                    acked[sequence] = 1

    def _in_order(self, stretch: Stretch) -> None:
        """What the observer got goes up in each priority."""
        level = stretch.priority if self._plan.priorities else 0
        if stretch.sequence <= self._highest[level]:
            self._order.add(f"m{stretch.sequence} came after m{self._highest[level]}")
        self._highest[level] = max(self._highest[level], stretch.sequence + stretch.count - 1)

    # -- what the broker counted, and the verdict --------------------------------------------------------------------

    def judge(
        self,
        topic: TopicStats,
        stats: dict[str, SubscriptionStats],
        kills: Sequence[Kill],
        unplanned: Sequence[str],
        verdict: Verdict,
    ) -> list[Check]:
        """Every law, in the order of reports.

        Args:
            stats: by the name of the subscription.
            unplanned: what processes did that they should not have, one text each.
            verdict: of the checker, on the same histories.
        """
        checks = [
            self._judge_publishing(topic),
            _found("every payload is the one published under its id", verdict, only=True),
        ]
        for number, name in enumerate(self._plan.groups):
            group = self._groups[name]
            own = [kill for kill in kills if kill.group == number]
            checks.append(self._judge_acks(name, group))
            checks.append(self._judge_deliveries(name, group))
            if self._plan.kills(number):
                checks.append(self._judge_kills(name, number, own, stats[name]))
            checks.append(self._judge_figures(name, group, stats[name]))
        checks.append(self._judge_observer())
        checks.append(self._judge_figures("observer", self._groups["observer"], stats["observer"]))
        checks.append(_found("the histories of all processes keep the laws of the broker", verdict, only=False))
        ended = Offenders()
        for text in unplanned:
            ended.add(text)
        checks.append(Check("every process ended as planned", ended))
        return checks

    def _judge_publishing(self, topic: TopicStats) -> Check:
        found = self._publishing
        found.add_ids("were not published", _without(self._said))
        for publisher, count in enumerate(self._published):
            if count != self._plan.messages:
                found.add(f"publisher {publisher} published {count} of {self._plan.messages}")
        if topic.published != self._total:
            found.add(f"the broker counted {topic.published:,} of {self._total:,} messages")
        if topic.unrouted:
            found.add(f"{topic.unrouted:,} messages reached no subscription")
        return Check("every message was published once, and the ids have no gap", found)

    def _judge_acks(self, name: str, group: _Group) -> Check:
        found = Offenders()
        found.add_ids("were never acked", _without(group.acked))
        found.merge("acked twice: ", group.doubly)
        found.merge("an ack was refused: ", group.refused)
        found.add_ids("were held and never acked or given back", group.unreported)
        return Check(f"{name}: every id was acked exactly once", found)

    def _judge_deliveries(self, name: str, group: _Group) -> Check:
        found = Offenders()
        found.add_ids("were never delivered", _without(group.taken))
        for sequence in sorted(group.again.keys() | group.struck.keys()):
            attempts = sorted(group.again.get(sequence, []))
            struck = group.struck.get(sequence, 0)
            if attempts != list(range(2, 2 + struck)):
                found.add(f"m{sequence}: held by {struck} killed workers, and delivered again as attempts {attempts}")
        law = "every id was delivered exactly once"
        if group.struck or self._plan.kill_workers:
            law = "every id was delivered once, and once more for each worker killed holding it"
        return Check(f"{name}: {law}", found)

    def _judge_kills(self, name: str, number: int, kills: Sequence[Kill], stats: SubscriptionStats) -> Check:
        found = Offenders()
        planned = self._plan.kills(number)
        if len(kills) != planned:
            found.add(f"{len(kills)} of {planned} kills were made")
        for kill in kills:
            if kill.held < 1 or kill.in_flight < kill.held:
                found.add(f"{kill.worker} said that it held {kill.held}, and the broker knew of {kill.in_flight}")
        if stats.redelivered < planned:
            found.add(f"{stats.redelivered} redeliveries after {planned} kills")
        return Check(f"{name}: each kill struck a worker that held messages; they came again", found)

    def _judge_observer(self) -> Check:
        group = self._groups["observer"]
        found = Offenders()
        found.add_ids("were never seen", _without(group.taken))
        for sequence, attempts in sorted(group.again.items()):
            found.add(f"m{sequence} was seen again, as attempt {attempts[0]}")
        found.merge("", self._order)
        found.merge("an ack was refused: ", group.refused)
        within = " within its priority" if self._plan.priorities else ""
        return Check(f"observer: saw every id once, in id order{within}", found)

    def _judge_figures(self, name: str, group: _Group, stats: SubscriptionStats) -> Check:
        found = Offenders()
        places = stats.acked + stats.ready + stats.delayed + stats.in_flight + stats.dead + stats.dropped
        if stats.accepted != places:
            found.add(f"accepted {stats.accepted:,}, and the places hold {places:,}")
        expected = {
            "accepted": self._total,
            "acked": self._total,
            "deliveries": group.deliveries,
            "redelivered": sum(map(len, group.again.values())),
        }
        for figure in SubscriptionStats.__slots__:
            value, wanted = getattr(stats, figure), expected.get(figure, 0)
            if value != wanted:
                found.add(f"{figure} is {value:,} and should be {wanted:,}")
        return Check(f"{name}: the broker's figures agree; nothing is left, dead or dropped", found)


def _found(law: str, verdict: Verdict, *, only: bool) -> Check:
    """What the checker found: of payloads only, or of everything else."""
    offenders = Offenders()
    for violation in verdict.violations:
        if (violation.law is Law.GENUINE) is only:
            offenders.add(violation.text if only else str(violation))
    counted = sum(count for each, count in verdict.by_law.items() if (each is Law.GENUINE) is only)
    offenders.count = max(offenders.count, counted)
    return Check(law, offenders)


def _sequences(stretches: Iterable[Stretch]) -> list[int]:
    return [sequence for stretch in stretches for sequence in range(stretch.sequence, stretch.sequence + stretch.count)]


def _without(marks: bytearray) -> list[int]:
    """The sequences that have no mark; the first byte stands for none."""
    if marks.count(0) == 1:
        return []
    return [sequence for sequence in range(1, len(marks)) if not marks[sequence]]
