"""The real work, twice: plainly in this process, and over a broker by worker processes, one of which is killed.

Owns the two passes and their clocks. What they came to is compared elsewhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.cli.crew import Crew, Interrupts, Member, TimeUp
from mpbroker.cli.demo import roles, work
from mpbroker.cli.demo.compare import Outcomes
from mpbroker.cli.demo.files import File
from mpbroker.cli.demo.work import Failed
from mpbroker.cli.exits import CheckFailed
from mpbroker.cli.link import LAST_WORDS
from mpbroker.errors import MpbrokerError
from mpbroker.overflow import Overflow
from mpbroker.process.manager import BrokerManager

WARM_UP_S: Final = 8.0
PLAIN_S: Final = 15.0
BROKER_S: Final = 60.0
"""Seconds for each pass. The first two are cut there, and what they did not reach is left out of the comparison; the
third has failed."""

MOST_WORKERS: Final = 32
_CALL: Final = 256
_LOOK_S: Final = 0.05
_PATIENCE_S: Final = 5.0

Progress = Callable[[str], None]


@dataclass(slots=True)
class Pass:
    """What one pass over the files came to."""

    outcomes: Outcomes = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(slots=True)
class BrokerPass(Pass):
    """With what only the second one has. shares: settled messages by worker."""

    shares: dict[str, int] = field(default_factory=dict)
    killed: str = ""
    killed_held: int = 0
    redelivered: int = 0
    results_twice: int = 0
    dead: int = 0


def warm_up(files: Sequence[File], interrupts: Interrupts, progress: Progress) -> list[File]:
    """Have the system cache the files; returns those that it got to in its time."""
    deadline = time.monotonic() + WARM_UP_S
    for number, file in enumerate(files):
        interrupts.check()
        if time.monotonic() > deadline:
            return list(files[:number])
        work.read_once(file.path)
        progress(f"reading {number:,} of {len(files):,} files once")
    return list(files)


def kinds_for(file: File) -> tuple[str, ...]:
    """The kinds of work on a file."""
    return ("digest", "census") if file.suffix == work.PYTHON else ("digest",)


def plain(files: Sequence[File], interrupts: Interrupts, progress: Progress) -> tuple[Pass, list[File]]:
    """One process, one file after the other; returns also the files that it got to in its time."""
    done = Pass()
    began = time.monotonic()
    reached = list(files)
    for number, file in enumerate(files):
        interrupts.check()
        if time.monotonic() > began + PLAIN_S:
            reached = list(files[:number])
            break
        for kind in kinds_for(file):
            done.outcomes[kind, file.path] = work.outcome(kind, file.path)
        progress(f"plainly: {number:,} of {len(files):,} files")
    done.seconds = time.monotonic() - began
    return done, reached


def workers_of_a_kind() -> int:
    """As many as there are processors for this process, and two at least, so that one can be killed."""
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(MOST_WORKERS, max(2, processors))


def over_broker(files: Sequence[File], interrupts: Interrupts, progress: Progress) -> BrokerPass:
    """The same work by worker processes; one of them is killed while it holds messages, and replaced.

    Raises:
        Interrupted: a signal asked for the end; everything has ended.
        TimeUp: it was not done in time; everything was killed.
        CheckFailed: a worker failed.
    """
    with BrokerManager() as manager, manager.broker() as broker, Crew(None, interrupts) as crew:
        run = _Run(files, broker, crew, progress)
        try:
            with interrupts.limit(BROKER_S + _PATIENCE_S, "the broker did not answer"):
                run.run()
        except TimeUp:
            crew.kill()
            raise
        finally:
            with interrupts.limit(_PATIENCE_S, "the broker did not answer"), suppress(TimeUp):
                run.call_off()
            crew.close()
    return run.done


class _Run:
    """One pass over a broker."""

    def __init__(self, files: Sequence[File], broker: BrokerAPI, crew: Crew, progress: Progress) -> None:
        self._files = files
        self._broker = broker
        self._crew = crew
        self._progress = progress
        self._expected = sum(len(kinds_for(file)) for file in files)
        self._settled = 0
        self._held: dict[Member, int] = {}
        self._ready = 0
        self._victim: Member | None = None
        self._ending = False
        self.done = BrokerPass()

    def run(self) -> None:
        deadline = time.monotonic() + BROKER_S
        broker = self._broker
        broker.create_topic(roles.FILES)
        broker.create_topic(roles.RESULTS)
        broker.subscribe(roles.FILES, "digest", ack_timeout=60.0)
        broker.subscribe(roles.FILES, "census", f'headers.suffix = "{work.PYTHON}"', ack_timeout=60.0)
        results = broker.subscribe(roles.RESULTS, roles.COLLECTOR, overflow=Overflow.REJECT)
        count = workers_of_a_kind()
        for number in range(1, count + 1):
            # Together less than there is to do, so somebody is left that holds messages and may settle no more.
            self._start("digest", number, (len(self._files) - 1) // (2 * count))
            self._start("census", number, None)
        while self._ready < 2 * count:
            self._listen(_LOOK_S, deadline)
        began = time.monotonic()
        self._publish()
        while self._settled < self._expected:
            self._listen(0.0, deadline)
            self._collect(results, _LOOK_S)
            self._progress(f"with mpbroker: {self._settled:,} of {self._expected:,} pieces of work")
        while self._collect(results, 0.0):
            pass
        self.done.seconds = time.monotonic() - began
        self._take_stock()
        self.call_off()
        while self._crew.running:
            self._listen(_LOOK_S, deadline)

    def call_off(self) -> None:
        """Let the workers leave: their polls end with the topic."""
        self._ending = True
        for topic in (roles.FILES, roles.RESULTS):
            try:
                self._broker.delete_topic(topic)
            except MpbrokerError:
                pass  # it is deleted already, or was never made, or the broker is gone

    def _start(self, kind: str, number: int, allowance: int | None) -> None:
        name = f"{kind} {number}"
        member = self._crew.start(name, roles.worker, self._broker, kind, name, allowance)
        self.done.shares[name] = 0
        self._held[member] = 0

    def _publish(self) -> None:
        for suffix, group in groupby(self._files, key=lambda file: file.suffix):
            paths = [file.path for file in group]
            for at in range(0, len(paths), _CALL):
                self._broker.publish_many(roles.FILES, paths[at : at + _CALL], {"suffix": suffix})

    # -- what comes back ----------------------------------------------------------------------------------------------

    def _collect(self, results: SubscriptionAPI, timeout: float) -> bool:
        """Take results that came; False when there were none."""
        held = results.poll("demo", max_messages=_CALL, timeout=timeout)
        outcomes = self.done.outcomes
        for delivery in held:
            kind, path, result = delivery.payload
            if (kind, path) in outcomes:
                self.done.results_twice += 1
            outcomes[kind, path] = result
        results.ack_many([delivery.message_id for delivery in held], "demo")
        return bool(held)

    def _listen(self, timeout: float, deadline: float) -> None:
        if time.monotonic() > deadline:
            notes = "\n".join(f"  {member.name}: {member.note}" for member in self._crew.running)
            raise TimeUp(f"the work was not done in {BROKER_S:g} s; what is left of it:\n{notes}")
        for member, report in self._crew.events(timeout):
            self._hear(member, report)

    def _hear(self, member: Member, report: bytes | None) -> None:
        if report is None:
            if member is not self._victim and (member.exit_code or not self._ending):
                raise CheckFailed(f"worker {member.name} ended with exit code {member.exit_code}: {member.note}")
        elif report.startswith(LAST_WORDS):
            member.note = report[len(LAST_WORDS) :].decode("utf-8", "replace")
        elif report.startswith(roles.SETTLED):
            settled, held = map(int, report[len(roles.SETTLED) :].split())
            self._settled += settled
            self._held[member] = held
            self.done.shares[member.name] += settled
            member.note = f"settled {self.done.shares[member.name]:,}"
        elif report == roles.STANDING:
            self._strike(member)
        elif report == roles.READY:
            self._ready += 1
            member.note = "ready"
        else:
            member.note = report.decode("ascii", "replace")

    def _strike(self, member: Member) -> None:
        """The first worker that stands still, holding messages, is killed and replaced; the others go on."""
        if self._victim is not None:
            return
        self._victim = member
        member.kill()
        self.done.killed = member.name
        self.done.killed_held = self._held[member]
        for other in self._crew.running:
            if other is not member:
                other.tell(roles.GO)
        self._start("digest", 1 + sum(name.startswith("digest") for name in self.done.shares), None)

    def _take_stock(self) -> None:
        """The figures of the broker, and the errors of what could not be done."""
        for kind in ("digest", "census"):
            subscription = self._broker.subscription(roles.FILES, kind)
            stats = subscription.stats()
            self.done.redelivered += stats.redelivered
            self.done.dead += stats.dead_lettered
            for letter in self._broker.dead_letters(subscription.subscription_id):
                self.done.outcomes[kind, letter.message.payload] = Failed(letter.error)
