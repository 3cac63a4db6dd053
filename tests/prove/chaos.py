"""Chaos: real processes that are killed, stopped, cut off and forked while they work, and a checker that judges them.

A run is made of rounds. In each a conductor starts a broker, publishers and worker groups, strikes them for some
seconds as the seed says, replacing who died, then lets everything be drained, and has the histories of all processes
judged.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from mpbroker import BrokerManager
from mpbroker.errors import MpbrokerError
from mpbroker.process.naming import Transport
from mpbroker.process.proxy import BrokerProxy
from mpbroker.testing.checker import Verdict, check
from mpbroker.testing.history import Begin, Delivered, Event, Invoke, Ok, Publish, Published, Recorder, read
from mpbroker.testing.payloads import Payloads
from mpbroker.testing.recorded import RecordedBroker
from tests.prove.chaos_roles import GONE, PAYLOAD_BYTES, SUBSCRIPTIONS, TOPIC, Part, Word, play
from tests.prove.part import Outcome
from tests.prove.planes import BOTH, broker_on

ROUND_S: Final = 30.0
"""Seconds of faults in a round at most: its histories must fit on a disk, and their verdict in memory."""

FAULTS_PER_S: Final = 10.0
"""Drawn; what a fault takes comes on top."""

WEIGHTS: Final = {"kill": 45, "stop": 20, "cut": 15, "fork": 15, "kill group": 5}
"""How often which fault is drawn."""

LIMIT_S: Final = 120.0
"""The hard limit of every wait, where nothing is planted; far from what any of them takes on a busy machine."""

SLOW: Final = 5.0
"""A round that has so many times its seconds is over, whatever it came to."""

STOPPED_S: Final = 2.5
"""Longer than every lease."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much runs at a time, and what is done to it.

    Attributes:
        publishers: of all; workers: of each subscription.
        batch: messages of a call at most.
        streams: the share of publishers that send without waiting for each answer.
        weights: how often which fault is drawn; without any, nobody is struck.
        limit_s: of a drain, and of every wait for a process.
        backlog: messages that may wait where there are most; publishers pause beyond that, or a drain would not end.
        pause_s, work_s, forgets, wild: see Part.
        streams, consumes: the share of publishers and of workers that do not wait for each answer.
        faults, messages: a round goes on until there were so many, whatever a slow machine takes for that.
    """

    publishers: int = 2
    workers: int = 2
    subscriptions: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: SUBSCRIPTIONS)
    batch: int = 200
    weights: Mapping[str, int] = field(default_factory=lambda: WEIGHTS)
    limit_s: float = LIMIT_S
    backlog: int = 20_000
    pause_s: float = 0.0
    work_s: float = 0.0
    forgets: bool = True
    wild: float = 0.5
    streams: float = 0.5
    consumes: float = 0.5
    faults: int = 0
    messages: int = 0


QUICK: Final = Scale(1, 2, {name: SUBSCRIPTIONS[name] for name in ("plain", "retried", "strict")}, 100)


@dataclass(eq=False)
class Actor:
    """A process of a round."""

    name: str
    group: str
    process: BaseProcess
    stopped_until: float | None = None

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


@dataclass
class Totals:
    """What all rounds came to. published, handed_over: messages that clients of each plane were answered."""

    rounds: int = 0
    messages: int = 0
    copies: int = 0
    deliveries: int = 0
    acked: int = 0
    dead: int = 0
    unknown: int = 0
    events: int = 0
    told: int = 0
    struck_s: float = 0.0
    check_s: float = 0.0
    streamed: int = 0
    consumed: Counter[str] = field(default_factory=Counter)
    published: Counter[str] = field(default_factory=Counter)
    handed_over: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        for name in ("messages", "copies", "deliveries", "acked", "dead", "unknown", "events"):
            setattr(self, name, getattr(self, name) + getattr(verdict, name))
        # Each message was published, each delivery handed over and settled.
        self.told += verdict.messages + 2 * verdict.deliveries
        self.rounds += 1


class Round:
    """One broker, its clients, and what is done to them."""

    def __init__(self, broker: BrokerProxy, folder: Path, seed: int, scale: Scale) -> None:
        # By sockets, whatever the others use: who conducts must not hang where a ring is broken on purpose.
        self._proxy = broker_on(broker, Transport.MANAGER)
        self._folder = folder
        self._seed = seed
        self._scale = scale
        self._draw = random.Random(seed)
        self._word = mmap.mmap(-1, 1)
        self._context: Any = multiprocessing.get_context("fork")
        self._recorder = Recorder.in_file(folder / "conductor", "conductor")
        self._broker = RecordedBroker(self._proxy, self._recorder, Payloads(PAYLOAD_BYTES, seed))
        self._actors: list[Actor] = []
        self._started = 0
        self.faults: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self, seconds: float) -> None:
        """Everything but the verdict."""
        self._proxy.create_topic(TOPIC)
        groups = {name: self._broker.subscribe(TOPIC, name, **made) for name, made in self._scale.subscriptions.items()}
        # Whoever was just forked has no handlers yet.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGUSR1, signal.SIGUSR2)}
        try:
            for _ in range(self._scale.publishers):
                self._start("")
            for name in groups:
                for _ in range(self._scale.workers):
                    self._start(name)
            self._strike_for(seconds)
            self._drain()
            for name, group in groups.items():
                group.stats()
                self._broker.dead_letters(f"{TOPIC}/{name}")
        finally:
            for actor in self._actors:
                actor.process.kill()
                actor.process.join(self._scale.limit_s)
                actor.process.close()
            for number, handler in before.items():
                signal.signal(number, handler)
            self._broker.close()
            self._recorder.close()
            self._word.close()

    # -- processes -----------------------------------------------------------------------------------------------------

    def _start(self, group: str) -> None:
        self._started += 1
        # Side by side in each group, and with the next seed the other way round.
        plane = BOTH[(self._started + self._seed) % len(BOTH)]
        # By its number alone: what is drawn from the seed's sequence depends on what took how long.
        drawn = random.Random(f"{self._seed}/{self._started}").random()
        streams = drawn < (self._scale.consumes if group else self._scale.streams)
        kind = ("consumer" if streams else "worker") if group else ("stream" if streams else "publisher")
        name = f"{kind}-{group}-{plane}-{self._started}" if group else f"{kind}-{plane}-{self._started}"
        part = Part(
            name,
            group,
            self._started,
            self._seed,
            self._folder,
            self._word,
            broker_on(self._proxy, plane),
            plane,
            self._scale.batch,
            self._scale.backlog,
            self._scale.pause_s,
            self._scale.work_s,
            self._scale.forgets,
            self._scale.wild,
            streams=streams,
        )
        process = self._context.Process(target=play, args=(part,), name=name, daemon=False)
        process.start()
        self._actors.append(Actor(name, group, process))

    def _buried(self, actor: Actor, *, died: bool, by: float | None = None) -> None:
        """Wait for its end. by: until when; else for as long as for anything."""
        actor.process.join(self._scale.limit_s if by is None else max(0.0, by - time.monotonic()))
        code = actor.process.exitcode
        if code is None:
            self.failures.append(f"{actor.name} did not end")
            return
        self._actors.remove(actor)
        actor.process.close()
        self._recorder.end(actor.name, died=died)
        if code != (-signal.SIGKILL if died else 0):
            what = "was told that the broker is gone" if code == GONE else f"ended with exit code {code}"
            self.failures.append(f"{actor.name} {what}")

    # -- faults --------------------------------------------------------------------------------------------------------

    def _strike_for(self, seconds: float) -> None:
        now = time.monotonic()
        end = now + seconds
        moved_at = now + seconds / 3
        late = now + SLOW * seconds
        while now < end or (now < late and not self._is_enough()):
            time.sleep(self._draw.expovariate(FAULTS_PER_S))
            now = time.monotonic()
            self._wake(now)
            self._strike(now)
            if now >= moved_at:
                moved_at = now + seconds / 3
                self._move_letters()

    def _is_enough(self) -> bool:
        """Whether there was as much as there must be."""
        scale = self._scale
        if self.faults.total() < scale.faults:
            return False
        if not scale.messages:
            return True
        try:
            return self._proxy.topics()[TOPIC].published >= scale.messages
        except MpbrokerError:
            return True  # there is more to come of that

    def _wake(self, now: float) -> None:
        for actor in self._actors:
            if actor.stopped_until is not None and actor.stopped_until <= now:
                self._continue(actor)

    def _continue(self, actor: Actor) -> None:
        actor.stopped_until = None
        self._recorder.fault("continue", actor.name)
        os.kill(actor.pid, signal.SIGCONT)

    def _strike(self, now: float) -> None:
        draw, weights = self._draw, self._scale.weights
        if not weights:
            return
        kind = draw.choices([*weights], [*weights.values()])[0]
        awake = [actor for actor in self._actors if actor.stopped_until is None]
        victim = draw.choice(awake if kind != "kill" and awake else self._actors)
        if kind == "kill":
            self._kill([victim])
        elif kind == "kill group":
            self._kill([actor for actor in self._actors if actor.group == victim.group])
        elif not awake or (kind == "fork" and not victim.group):
            return
        elif kind == "stop":
            self._recorder.fault("stop", victim.name)
            os.kill(victim.pid, signal.SIGSTOP)
            victim.stopped_until = now + STOPPED_S
        else:
            self._recorder.fault(kind, victim.name)
            os.kill(victim.pid, signal.SIGUSR1 if kind == "cut" else signal.SIGUSR2)
        self.faults[kind] += 1

    def _kill(self, victims: list[Actor]) -> None:
        for victim in victims:
            self._recorder.fault("kill", victim.name)
            victim.process.kill()
        for victim in victims:
            self._buried(victim, died=True)
            self._start(victim.group)

    def _move_letters(self) -> None:
        name = f"{TOPIC}/{self._draw.choice([*self._scale.subscriptions])}"
        letters = self._broker.dead_letters(name)
        if letters:
            self._broker.purge_dead_letters(name, [letter.message.message_id for letter in letters[:3]])
        self._broker.redrive(name)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """No faults any more: everything must come to an end."""
        for actor in self._actors:
            if actor.stopped_until is not None:
                self._continue(actor)
        self._word[0] = Word.DRAIN
        for actor in [each for each in self._actors if not each.group]:
            self._buried(actor, died=False)
        left = self._left()
        if left:
            self.failures.append(f"after {self._scale.limit_s:g} s without faults there is left: {left}")
        self._word[0] = Word.LEAVE
        leaving = time.monotonic() + self._scale.limit_s
        for actor in list(self._actors):
            self._buried(actor, died=False, by=leaving)

    def _left(self) -> str:
        """Wait until all is done; what is left when that took too long."""
        deadline = time.monotonic() + self._scale.limit_s
        try:
            for name in self._scale.subscriptions:
                group = self._proxy.subscription(TOPIC, name)
                if not group.wait_idle(max(0.0, deadline - time.monotonic())):
                    stats = group.stats()
                    return f"{name}: {stats.ready} ready, {stats.delayed} delayed, {stats.in_flight} in flight"
        except MpbrokerError as error:
            return f"the broker does not answer: {error}"
        return ""


class File:
    """A history in a file, which can be read more than once.

    Attributes:
        plane: of its client; streams, consumes: that does not wait for each answer. published, handed_over: how many
            messages. Counted while it is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.plane = ""
        self.streams = False
        self.consumes = False
        self.published = 0
        self.handed_over = 0

    def __iter__(self) -> Iterator[Event]:
        self.published = self.handed_over = 0
        count = 0
        for event in read(self._path):
            if isinstance(event, Ok):
                if isinstance(event.result, Published):
                    self.published += count
                elif isinstance(event.result, Delivered):
                    self.handed_over += sum(each.count for each in event.result.stretches)
            elif isinstance(event, Invoke):
                if isinstance(event.request, Publish):
                    count = event.request.count
            elif isinstance(event, Begin):
                self.streams = event.client.startswith("stream-")
                self.consumes = event.client.startswith("consumer-")
                self.plane = next((plane for plane in BOTH if f"-{plane}-" in event.client), "")
            yield event


def histories(folder: Path) -> list[File]:
    """Those of a round."""
    return [File(path) for path in sorted(folder.iterdir())]


def one_round(
    seconds: float, seed: int, scale: Scale, totals: Totals, *, filter_modules: Sequence[str] = ()
) -> Verdict:
    """A round of so many seconds of faults, and its verdict; adds to the totals."""
    folder = Path(tempfile.mkdtemp(prefix="mpb-chaos-"))
    try:
        with BrokerManager(filter_modules=filter_modules) as manager, manager.broker() as broker:
            played = Round(broker, folder, seed, scale)
            played.run(seconds)
        began = time.monotonic()
        files = histories(folder)
        verdict = check(files)
        totals.check_s += time.monotonic() - began
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    totals.add(verdict)
    for file in files:
        totals.published[file.plane] += file.published
        totals.streamed += file.published if file.streams else 0
        totals.handed_over[file.plane] += file.handed_over
        totals.consumed[file.plane] += file.handed_over if file.consumes else 0
    totals.struck_s += seconds
    totals.faults.update(played.faults)
    totals.failures += [f"seed {seed}: {text}" for text in (*played.failures, *verdict.report())]
    return verdict


def run(seconds: float, seed: int, *, quick: bool) -> Outcome:
    """Rounds for about so many seconds."""
    began = time.monotonic()
    totals = Totals()
    scale = QUICK if quick else Scale()
    number = 0
    while not totals.failures:
        left = seconds - (time.monotonic() - began)
        if number and left < 8.0:
            break
        # Of its time a round is drained and judged for about a half.
        one_round(max(1.5, min(ROUND_S, left / 2)), seed + number, scale, totals)
        number += 1
    took = time.monotonic() - began
    figures: dict[str, int | float | str] = {
        "rounds": totals.rounds,
        "messages": totals.messages,
        "copies verified": totals.copies,
        "copies verified per second": round(totals.copies / took),
        "deliveries": totals.deliveries,
        "acked": totals.acked,
        "dead letters": totals.dead,
        "publishes of unknown outcome": totals.unknown,
        "events": totals.events,
        "microseconds of the checker a message": round(1e6 * totals.check_s / max(1, totals.told), 1),
        **{f"published on the {plane} plane": totals.published[plane] for plane in BOTH},
        "published without waiting": totals.streamed,
        **{f"handed over on the {plane} plane": totals.handed_over[plane] for plane in BOTH},
        **{f"of these to consumers, on the {plane} plane": totals.consumed[plane] for plane in BOTH},
        "faults": totals.faults.total(),
        "faults per second": round(totals.faults.total() / max(0.1, totals.struck_s), 1),
        **{f"faults: {kind}": count for kind, count in sorted(totals.faults.items())},
    }
    return Outcome("chaos", figures, totals.failures)
