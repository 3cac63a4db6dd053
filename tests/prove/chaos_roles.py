"""What the processes of a chaos run do: publish, and work in a group, whatever is done to them.

Owns the loops of publishers, of workers and of workers that consume; each records what it asks. A worker lets itself be
struck: SIGUSR1 cuts one of its connections, SIGUSR2 has it fork. Words come by way of one shared byte, which nobody can
die holding.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from mpbroker import RetryPolicy
from mpbroker.deliveries import Delivery
from mpbroker.errors import BrokerGone, MpbrokerError
from mpbroker.messages import MessagePriority
from mpbroker.pipeline import Consumer, Publisher
from mpbroker.process.naming import Transport
from mpbroker.process.proxy import BrokerProxy
from mpbroker.testing.history import Recorder
from mpbroker.testing.payloads import Payloads
from mpbroker.testing.recorded import RecordedBroker, RecordedSubscription
from mpbroker.testing.streaming import RecordedConsumer, RecordedPublisher
from tests.prove.planes import plane_of, plane_of_line

TOPIC: Final = "chaos"
PAYLOAD_BYTES: Final = 48
POLL_S: Final = 0.2
"""How long a poll waits: a worker looks at the word about so often."""

_OUT: Final = 4
"""Calls of one publisher that are out at once."""

_PREFETCH: Final = (1, 2, 8, 64, 256)
"""Of a consumer, drawn."""

_CLOSES: Final = 0.1
"""How often a worker that consumes ends its consumer after a take, and begins another;"""

_LASTS_S: Final = 0.1
"""which lasts so many seconds at least, or it would do little but open connections."""

_Deed = Callable[[RecordedSubscription, Delivery], Delivery | None]

GONE: Final = 4
"""Exit code of a process that was told that the broker is gone, while it runs."""

SUBSCRIPTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"ack_timeout": 1.5, "max_deliveries": 20},
    "retried": {"ack_timeout": 1.0, "retry": RetryPolicy(6, 0.05, 2.0, 0.4)},
    "strict": {"ack_timeout": 1.0, "max_deliveries": 2},
    "filtered": {"ack_timeout": 2.0, "filter": 'headers.kind = "a" OR headers.size = "2"'},
}


class Word(IntEnum):
    """What all processes of a run are told."""

    GO = 0
    DRAIN = 1
    LEAVE = 2


@dataclass(frozen=True, slots=True)
class Part:
    """What a process is given.

    group: the subscription a worker reads, "" for a publisher. plane: how its calls go. number: unique in the run.
    pause_s: between publishes, at most. work_s: of a worker, with what it was handed, at most.
    forgets: whether a worker may leave what it holds to the end of its lease.
    wild: the share of polls in which it does something else with one message than ack it.
    streams: whether a publisher sends, or a worker consumes, without waiting for each answer.
    """

    name: str
    group: str
    number: int
    seed: int
    folder: Path
    word: mmap.mmap
    broker: BrokerProxy
    plane: Transport
    batch: int
    backlog: int
    pause_s: float
    work_s: float
    forgets: bool
    wild: float
    streams: bool = False

    def said(self) -> int:
        return self.word[0]

    def recorded(self, name: str) -> tuple[Recorder, RecordedBroker]:
        recorder = Recorder.in_file(self.folder / name, name)
        return recorder, RecordedBroker(self.broker, recorder, Payloads(PAYLOAD_BYTES, self.seed), self.number)


def play(part: Part) -> None:
    """The whole life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    draw = random.Random(f"{part.seed}/{part.name}")
    _, broker = part.recorded(part.name)
    try:
        part.broker.topics()
        assert plane_of(part.broker) is part.plane
        if part.group:
            (_Consuming if part.streams else _Worker)(part, broker, draw).work()
        else:
            _publish(part, broker, draw)
        with suppress(MpbrokerError):
            broker.close()
    except BrokerGone:
        os._exit(GONE)


def _publish(part: Part, broker: RecordedBroker, draw: random.Random) -> None:
    _cut_on_signal(part.broker, draw)
    stream = None
    if part.streams:
        # The first is this history's, which has no other call until all are answered.
        more = [Recorder.in_file(part.folder / f"{part.name}.{each}", part.name) for each in range(1, _OUT)]
        stream = RecordedPublisher(broker, TOPIC, [broker.recorder, *more])
        assert type(stream.publisher) is Publisher
    calls = 0
    busiest = part.broker.subscription(TOPIC, "plain")
    while part.said() == Word.GO:
        headers = {"kind": draw.choice("abc"), "size": draw.choice("12")}
        priority = MessagePriority(draw.choice((0, 1, 1, 1, 1, 2, 3)))
        with _survived():
            if stream is not None:
                stream.publish_many(draw.randint(1, part.batch), headers, priority=priority)
                if draw.random() < 0.1:
                    stream.flush()
            elif draw.random() < 0.1:
                broker.publish(TOPIC, headers, priority=priority)
            else:
                broker.publish_many(TOPIC, draw.randint(2, part.batch), headers, priority=priority)
        calls += 1
        if part.pause_s:
            time.sleep(draw.uniform(0.0, part.pause_s))
        if calls % 8 == 0:
            with _survived():
                while busiest.pending > part.backlog and part.said() == Word.GO:
                    time.sleep(0.01)
    if stream is not None:
        with _survived():
            stream.close()


class _Worker:
    """A member of a group."""

    _deeds: tuple[_Deed, ...]

    def __init__(self, part: Part, broker: RecordedBroker, draw: random.Random) -> None:
        self._part = part
        self._broker = broker
        self._draw = draw
        self._group = broker.subscription(TOPIC, part.group)
        self._old: Delivery | None = None
        self._forks = 0
        self._forked = False
        self._deeds = _DEEDS
        _cut_on_signal(part.broker, draw)
        signal.signal(signal.SIGUSR2, self._to_fork)

    def work(self) -> None:
        while (said := self._part.said()) != Word.LEAVE:
            with _survived():
                self._turn(said)
            if self._forked:
                self._forked = False
                self._fork()
        with _survived():
            self._leave()
        for _ in range(self._forks):
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)

    def _turn(self, said: int) -> None:
        held = self._group.poll(self._part.name, max_messages=self._part.batch, timeout=POLL_S)
        if said == Word.GO:
            self._toil(held)
            held = self._misbehave(held)
        if held:
            self._group.ack_many([each.message_id for each in held], self._part.name)

    def _leave(self) -> None:
        pass

    def _toil(self, held: list[Delivery]) -> None:
        if held and self._part.work_s:
            time.sleep(self._draw.uniform(0.0, self._part.work_s))

    def _misbehave(self, held: list[Delivery]) -> list[Delivery]:
        """Do something else with some of them; what is left is to be acked."""
        draw, group = self._draw, self._group
        if not held or draw.random() >= self._part.wild:
            return held
        if self._part.forgets and draw.random() < 0.01:
            return []  # forgotten: their leases end
        chosen = held.pop(draw.randrange(len(held)))
        again = draw.choice(self._deeds)(group, chosen)
        if again is not None:
            held.append(again)
        if self._old is not None and draw.random() < 0.2:
            self._ack_late(self._old)
        self._old = chosen
        return held

    def _ack_late(self, old: Delivery) -> None:
        """What was settled before."""
        self._group.ack_delivery(old)

    def _inherited(self, group: RecordedSubscription) -> None:
        """In a child: something with what the parent holds."""

    def _to_fork(self, *_: object) -> None:
        self._forked = True

    def _fork(self) -> None:
        """A child that works with the same proxy for one poll, and leaves."""
        self._forks += 1
        name = f"{self._part.name}-{self._forks}"
        if os.fork():
            return
        code = 1
        try:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            _, broker = self._part.recorded(name)
            group = broker.subscription(TOPIC, self._part.group)
            self._inherited(group)
            held = group.poll(name, max_messages=self._part.batch, timeout=POLL_S)
            for each in held[:2]:
                group.ack_delivery(each)
            broker.close()
            code = 0
        finally:
            os._exit(code)


class _Consuming(_Worker):
    """A member of a group that consumes."""

    def __init__(self, part: Part, broker: RecordedBroker, draw: random.Random) -> None:
        super().__init__(part, broker, draw)
        # By its id the consumer may have fetched it again meanwhile, which no history would show.
        self._deeds = tuple(deed for deed in _DEEDS if deed is not _nack_late)
        self._consumer: RecordedConsumer | None = None
        self._kept: Delivery | None = None
        self._olds: RecordedConsumer | None = None
        self._looked = self._began = 0.0

    def _turn(self, said: int) -> None:
        draw, part = self._draw, self._part
        if self._consumer is None:
            prefetch, self._began = draw.choice(_PREFETCH), time.monotonic()
            self._consumer = RecordedConsumer(self._group, part.name, prefetch, POLL_S)
            assert type(self._consumer.consumer) is Consumer
        consumer = self._consumer
        held = consumer.take(draw.randint(1, part.batch), POLL_S)
        if held:
            assert plane_of_line(consumer.consumer._wire._line) in {part.plane, None}  # type: ignore[attr-defined]
        if said == Word.GO:
            self._toil(held)
            held = self._misbehave(held)
            if held and self._kept is None and draw.random() < 0.1:
                self._kept = held.pop()
        elif self._kept is not None:
            held.append(self._kept)
            self._kept = None
        if held:
            consumer.ack(held)
        if draw.random() < _CLOSES and time.monotonic() > self._began + _LASTS_S:
            self._close()
        self._look()

    def _leave(self) -> None:
        self._close()

    def _close(self) -> None:
        """Whatever is still held goes back."""
        consumer, self._consumer, self._kept = self._consumer, None, None
        if consumer is not None:
            consumer.close()

    def _look(self) -> None:
        """Call now and then, so that a connection for calls that was cut is not found out much later."""
        if time.monotonic() - self._looked > 1.0:
            self._looked = time.monotonic()
            self._group.stats()

    def _misbehave(self, held: list[Delivery]) -> list[Delivery]:
        before = self._old
        left = super()._misbehave(held)
        if self._old is not before:
            self._olds = self._consumer
        return left

    def _ack_late(self, old: Delivery) -> None:
        if self._olds is not None:
            self._olds.ack([old])

    def _inherited(self, group: RecordedSubscription) -> None:
        if self._kept is not None:
            group.ack_delivery(self._kept)


def _extend(group: RecordedSubscription, delivery: Delivery) -> Delivery:
    group.extend_delivery(delivery, 3.0)
    return delivery


def _retry(group: RecordedSubscription, delivery: Delivery) -> Delivery | None:
    return group.retry_delivery(delivery, "once more")


def _nack(group: RecordedSubscription, delivery: Delivery) -> None:
    group.nack_delivery(delivery, error="it failed")


def _nack_late(group: RecordedSubscription, delivery: Delivery) -> None:
    group.nack(delivery.message_id, delivery.member, delay=0.3, error="later")


def _release(group: RecordedSubscription, delivery: Delivery) -> None:
    group.release_delivery(delivery)


def _reject(group: RecordedSubscription, delivery: Delivery) -> None:
    group.reject_delivery(delivery, error="it cannot work")


_DEEDS: Final[tuple[_Deed, ...]] = (
    _extend,
    _retry,
    _nack,
    _nack_late,
    _release,
    _reject,
)


@contextmanager
def _survived() -> Iterator[None]:
    """Go on after a call that failed because this process was struck; its history has it. Unless the broker is gone."""
    try:
        yield
    except BrokerGone:
        raise
    except MpbrokerError:
        pass


def _cut_on_signal(broker: BrokerProxy, draw: random.Random) -> None:
    """Have SIGUSR1 cut one of this process's connections, as the kernel would."""

    def cut(*_: object) -> None:
        session = broker._client._session
        channels = [] if session is None else session._live()
        if channels:
            draw.choice(channels).stop()

    signal.signal(signal.SIGUSR1, cut)
