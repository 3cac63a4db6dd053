"""One stress run from its first process to its verdict.

Owns the order of things: the private broker, the crew, the word to go, the kills, the end, and the folder of the
histories, which the checker and the ledger judge. Whatever comes, no process is left and nothing waits for ever.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mpbroker.api import BrokerAPI
from mpbroker.cli.crew import Crew, Interrupts, Member, TimeUp
from mpbroker.cli.link import LAST_WORDS
from mpbroker.cli.stress import roles
from mpbroker.cli.stress.histogram import Histogram
from mpbroker.cli.stress.ledger import Check, Kill, Ledger
from mpbroker.cli.stress.plan import Plan
from mpbroker.cli.stress.records import (
    GO,
    Answered,
    Finished,
    Published,
    Ready,
    Record,
    Standing,
    Taken,
    Waited,
    decode,
)
from mpbroker.cli.usage import Usage, UsageMeter
from mpbroker.errors import MpbrokerError
from mpbroker.messages import SubscriptionStats, TopicStats
from mpbroker.overflow import Overflow
from mpbroker.process.manager import BrokerManager
from mpbroker.testing.checker import check
from mpbroker.testing.history import Event, Recorder, read

_LOOK_S: Final = 0.2
"""How often the broker's figures are read once all is published: the end is found by them when a message is lost."""

_LEAVING_S: Final = 30.0
"""Seconds that the processes have to end once the topic is gone."""

_PATIENCE_S: Final = 10.0
"""Seconds over the limit until a call that does not return is taken for one that never will."""


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    plan: Plan
    start_method: str
    checks: list[Check] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    stats: dict[str, SubscriptionStats] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)
    publish_s: float = 0.0
    total_s: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    waits: int = 0
    broker: Usage = field(default_factory=Usage)

    @property
    def passed(self) -> bool:
        return all(check.holds for check in self.checks)


@dataclass(slots=True)
class _Reader:
    """What the conductor knows of a worker, or of the observer, whose group is None."""

    group: int | None
    held: int = 0
    acked: int = 0
    told_to_go: bool = False
    killed: bool = False


class _History:
    """The history of one process, read anew each time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Event]:
        return read(self._path)


class Conductor:
    """Runs a plan once. folder: an empty one, for the histories."""

    def __init__(self, plan: Plan, crew: Crew, broker: BrokerAPI, outcome: Outcome, folder: Path) -> None:
        self._plan = plan
        self._crew = crew
        self._broker = broker
        self._outcome = outcome
        self._folder = folder
        self._histories: list[_History] = []
        self._recorder = Recorder.in_file(self._new_history(), "conductor")
        self._recorded = roles.recorded(broker, self._recorder, plan)
        self._allowances = [iter(plan.allowances(group)) for group in range(plan.subscriptions)]
        self._kills_left = [plan.kills(group) for group in range(plan.subscriptions)]
        self._started = [0] * plan.subscriptions
        self._publishers: list[Member] = []
        self._readers: dict[Member, _Reader] = {}
        self._published: Counter[Member] = Counter()
        self._ready: set[Member] = set()
        self._finished: set[Member] = set()
        self._unplanned: list[str] = []
        self._next_look = 0.0
        self._began_ns = 0
        self._published_ns = 0
        self._acked_ns = 0

    # -- the course of a run -----------------------------------------------------------------------------------------

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Do it all and fill in the outcome.

        Raises:
            Interrupted: a signal asked for the end.
            TimeUp: it was not done in time; with what is stuck.
            BrokerGone: the broker died.
        """
        deadline = time.monotonic() + self._plan.limit
        self._subscribe()
        self._start_all()
        self._until(deadline, lambda: self._are_ready(progress))
        self._began_ns = self._published_ns = self._acked_ns = time.monotonic_ns()
        for member in self._publishers:
            member.tell(GO)

        def looked() -> bool:
            progress(self._published.total(), self._acked_least())
            return self._is_over()

        self._until(deadline, looked)
        # The readers' own reports end with the topic, and the figures are of before.
        topic = self._broker.topics()[roles.TOPIC]
        stats = self._stats()
        self._picture()
        self._recorded.delete_topic(roles.TOPIC)
        self._until(min(deadline, time.monotonic() + _LEAVING_S), lambda: not self._crew.running)
        for member in self._crew.members:
            if member not in self._finished and member.exit_code == 0:
                self._unplanned.append(f"{member.name} ended before its work did, last: {member.note}")
        self._outcome.stats = stats
        self._judge(topic, stats)
        self._outcome.publish_s = (self._published_ns - self._began_ns) / 1e9
        self._outcome.total_s = (self._acked_ns - self._began_ns) / 1e9
        self._outcome.shares = {
            member.name: reader.acked for member, reader in self._readers.items() if reader.group is not None
        }

    def close(self) -> None:
        """Write nothing more."""
        self._recorder.close()

    def _picture(self) -> None:
        """The end, as the checker wants to see it."""
        for name in (*self._plan.groups, roles.OBSERVER):
            self._recorded.subscription(roles.TOPIC, name).stats()
            self._recorded.dead_letters(f"{roles.TOPIC}/{name}")

    def _judge(self, topic: TopicStats, stats: dict[str, SubscriptionStats]) -> None:
        outcome = self._outcome
        ledger = Ledger(self._plan, [kill.worker for kill in outcome.kills])
        for history in self._histories:
            ledger.read(history)
        verdict = check(self._histories)
        outcome.checks = ledger.judge(topic, stats, outcome.kills, self._unplanned, verdict)
        outcome.latency = ledger.latency

    def _new_history(self) -> Path:
        path = self._folder / str(len(self._histories))
        self._histories.append(_History(path))
        return path

    def call_off(self) -> None:
        """Let everybody leave: polls and publishes end with the topic."""
        try:
            self._broker.delete_topic(roles.TOPIC)
        except MpbrokerError:
            pass  # it was deleted already, or the broker is gone, which ends them too

    def _subscribe(self) -> None:
        plan = self._plan
        self._broker.create_topic(roles.TOPIC)
        for name in (*plan.groups, roles.OBSERVER):
            self._recorded.subscribe(
                roles.TOPIC,
                name,
                # Only the death of a worker gives anything back.
                ack_timeout=plan.limit + 60.0,
                max_deliveries=plan.kill_workers + 2,
                max_queue=plan.max_queue,
                overflow=Overflow.REJECT,
            )

    def _start_all(self) -> None:
        plan = self._plan
        # What the ledger reads of readers it measures by what publishers did, so their histories come first.
        published = [self._new_history() for _ in range(plan.publishers)]
        member = self._crew.start("observer", roles.observer, self._broker, plan, self._new_history())
        self._readers[member] = _Reader(None)
        for group in range(plan.subscriptions):
            for _ in range(plan.workers):
                self._start_worker(group)
        for number, history in enumerate(published):
            name = f"publisher {number}"
            self._publishers.append(self._crew.start(name, roles.publisher, self._broker, plan, history, name, number))

    def _are_ready(self, progress: Callable[[int, int], None]) -> bool:
        progress(0, 0)
        return len(self._ready) == len(self._crew.members) or bool(self._unplanned)

    def _start_worker(self, group: int) -> None:
        """Start one more of a group; as long as kills are left, it will stand still somewhere."""
        self._started[group] += 1
        name = f"w{self._started[group]}"
        if self._plan.subscriptions > 1:
            name = f"{self._plan.groups[group]} {name}"
        allowance = next(self._allowances[group]) if self._kills_left[group] else None
        history = self._new_history()
        member = self._crew.start(
            name, roles.worker, self._broker, self._plan, history, name, self._plan.groups[group], allowance
        )
        self._readers[member] = _Reader(group)

    def _until(self, deadline: float, done: Callable[[], bool]) -> None:
        """Take reports until it is done. Raises TimeUp."""
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeUp(self.stuck())
            for member, report in self._crew.events(min(left, _LOOK_S)):
                self._hear(member, report)

    def _is_over(self) -> bool:
        """Everything is acked; or nothing more will be."""
        if any(member.running and member not in self._finished for member in self._publishers):
            return False
        if self._acked_least() == self._plan.total == self._acked_in(None):
            return True
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + _LOOK_S
        if any(not any(member.running for member in group) for group in self._by_group()):
            return True
        return all(each.backlog + each.in_flight == 0 for each in self._stats().values())

    def _by_group(self) -> list[list[Member]]:
        """The readers of each subscription."""
        groups: dict[int | None, list[Member]] = {}
        for member, reader in self._readers.items():
            groups.setdefault(reader.group, []).append(member)
        return list(groups.values())

    def _acked_least(self) -> int:
        return min(self._acked_in(group) for group in range(self._plan.subscriptions))

    def _acked_in(self, group: int | None) -> int:
        return sum(reader.acked for reader in self._readers.values() if reader.group == group)

    def _stats(self) -> dict[str, SubscriptionStats]:
        found = self._broker.subscriptions(roles.TOPIC)
        return {name.partition("/")[2]: stats for name, stats in found.items()}

    # -- what is reported ---------------------------------------------------------------------------------------------

    def _hear(self, member: Member, report: bytes | None) -> None:
        if report is None:
            self._ended(member)
        elif report.startswith(LAST_WORDS):
            text = report[len(LAST_WORDS) :].decode("utf-8", "replace").strip()
            self._unplanned.append(f"{member.name} failed:\n{text}")
        else:
            self._note(member, decode(report))

    def _note(self, member: Member, record: Record) -> None:
        match record:
            case Ready():
                self._ready.add(member)
                member.note = "ready"
            case Published():
                self._published[member] += record.count
                self._published_ns = time.monotonic_ns()
                member.note = f"published {self._published[member]:,} of {self._plan.messages:,}"
            case Waited():
                self._outcome.waits += record.times
            case Taken():
                self._readers[member].held = record.count
                member.note = f"holds {record.count:,}"
            case Answered():
                reader = self._readers[member]
                reader.held = 0
                reader.acked += record.finished
                self._acked_ns = max(self._acked_ns, record.at_ns)
                member.note = f"acked {reader.acked:,}, and polls"
            case Standing():
                self._standing(member)
            case Finished():
                self._finished.add(member)
                member.note = "finished"

    def _standing(self, member: Member) -> None:
        """A worker stands still, and holds what it said last: now it can be killed."""
        reader = self._readers[member]
        group = reader.group
        member.note = f"stands still and holds {reader.held:,}"
        if group is None or reader.told_to_go or not self._kills_left[group]:
            return
        self._kills_left[group] -= 1
        in_flight = self._stats()[self._plan.groups[group]].in_flight
        self._recorder.fault("kill", member.name)
        member.kill()
        reader.killed = True
        member.note = f"was killed and held {reader.held:,}"
        self._outcome.kills.append(Kill(group, member.name, reader.held, in_flight))
        self._start_worker(group)
        if not self._kills_left[group]:
            self._let_go(group)

    def _let_go(self, group: int) -> None:
        for member, reader in self._readers.items():
            if reader.group == group and not reader.killed and not reader.told_to_go:
                reader.told_to_go = True
                member.tell(GO)

    def _ended(self, member: Member) -> None:
        reader = self._readers.get(member)
        killed = reader is not None and reader.killed
        self._recorder.end(member.name, died=killed)
        if member.exit_code != (-9 if killed else 0):
            self._unplanned.append(f"{member.name} ended with exit code {member.exit_code}, last: {member.note}")

    # -- a run that hangs ---------------------------------------------------------------------------------------------

    def stuck(self) -> str:
        """What is left of a run that should have ended."""
        lines = [f"the run did not end in {self._plan.limit:g} s; what is left of it:"]
        lines += [f"  {member.name}: {member.note}" for member in self._crew.running]
        lines += [f"  {text}" for text in self._unplanned]
        try:
            for name, stats in self._stats().items():
                figures = ", ".join(f"{figure} {getattr(stats, figure):,}" for figure in stats.__slots__)
                lines.append(f"  {name}: {figures}")
        except MpbrokerError as error:
            lines.append(f"  the broker does not say how it is: {error}")
        return "\n".join(lines)


def run(plan: Plan, interrupts: Interrupts, progress: Callable[[int, int], None]) -> Outcome:
    """Run a plan over a broker of its own; returns what it came to, passed or not.

    Raises:
        Interrupted: a signal asked for the end; everything has ended.
        TimeUp: it was not done in time; everything was killed.
    """
    with (
        tempfile.TemporaryDirectory(prefix="mpbroker-stress-") as folder,
        BrokerManager() as manager,
        manager.broker() as broker,
        Crew(plan.start_method, interrupts) as crew,
    ):
        outcome = Outcome(plan, crew.start_method)
        meter = UsageMeter(manager.pid or 0)
        conductor = Conductor(plan, crew, broker, outcome, Path(folder))
        try:
            with interrupts.limit(plan.limit + _PATIENCE_S, "the broker did not answer"):
                conductor.run(progress)
            outcome.broker = meter.read()
        except TimeUp:
            crew.kill()
            raise
        except BaseException:
            with interrupts.limit(_PATIENCE_S, "the broker did not answer"), suppress(TimeUp):
                conductor.call_off()
            raise
        finally:
            conductor.close()
    return outcome
