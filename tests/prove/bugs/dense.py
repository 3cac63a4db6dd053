"""A dense run: a broker in this process, many clients taking turns on one thread, in virtual time.

Every verb, drawn from a seed; in the end everything is drained and looked at. Thousands of messages a second, each
recorded: the cheapest work that finds a defect of the engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from mpbroker import MessageBroker, RetryPolicy
from mpbroker.deliveries import Delivery
from mpbroker.errors import MpbrokerError
from mpbroker.messages import MessagePriority
from mpbroker.overflow import Overflow
from mpbroker.testing import FakeClock
from mpbroker.testing.history import Event, Recorder, Ticks
from mpbroker.testing.payloads import Payloads
from mpbroker.testing.recorded import RecordedBroker, RecordedSubscription

TOPIC: Final = "t"
ROUNDS: Final = 400
"""Drains take fewer; one that does not end is a finding, not a hang."""

_MOMENT_S: Final = 1e-6
"""Whether a time that is met exactly has come is a matter of rounding; so much later it has."""

SUBSCRIPTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"ack_timeout": 10.0},
    "retried": {"ack_timeout": 5.0, "retry": RetryPolicy(3, 1.0, 2.0, 5.0)},
    "strict": {"ack_timeout": 3.0, "max_deliveries": 2},
    "filtered": {"filter": 'headers.kind = "a" OR (headers.kind = "b" AND NOT headers.size = "1")'},
    "small": {"max_queue": 25, "max_deliveries": 3},
    "newest": {"max_queue": 25, "overflow": Overflow.DROP_OLDEST},
}


@dataclass
class Reader:
    """A member of a group, and what it holds."""

    name: str
    group: RecordedSubscription
    held: list[Delivery] = field(default_factory=list)
    old: list[Delivery] = field(default_factory=list)


class Dense:
    """One run; `histories` is what it leaves."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._clock = FakeClock()
        self._ticks = Ticks(self._clock)
        self._payloads = Payloads(40, seed)
        self._recorders: list[Recorder] = []
        self._broker = MessageBroker(clock=self._clock)
        self._broker.create_topic(TOPIC)
        self._chief = self._client("chief", 0)
        groups = {name: self._chief.subscribe(TOPIC, name, **made) for name, made in SUBSCRIPTIONS.items()}
        self._publishers = [self._client(f"publisher {number}", number) for number in (1, 2)]
        self._groups = groups
        self._readers = [
            Reader(f"{name}-{number}", self._reader(f"{name}-{number}", name)) for name in groups for number in range(3)
        ]

    @property
    def histories(self) -> list[list[Event]]:
        return [recorder.events for recorder in self._recorders]

    def run(self, steps: int) -> None:
        """So many steps, and the drain."""
        with self._broker:
            for _ in range(steps):
                self._step()
            self._drain()

    def _client(self, name: str, publisher: int) -> RecordedBroker:
        recorder = Recorder.in_memory(name, self._ticks)
        self._recorders.append(recorder)
        return RecordedBroker(self._broker, recorder, self._payloads, publisher)

    def _reader(self, name: str, group: str) -> RecordedSubscription:
        return self._client(name, 0).subscription(TOPIC, group)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        kind = self._draw.random()
        if kind < 0.25:
            self._publish()
        elif kind < 0.55:
            self._poll(self._draw.choice(self._readers))
        elif kind < 0.93:
            reader = self._draw.choice(self._readers)
            if reader.held:
                self._settle(reader)
        elif kind < 0.97:
            self._pass(self._draw.choice((0.1, 0.5, 1.0, 3.0)))
        else:
            self._look()

    def _publish(self) -> None:
        draw, publisher = self._draw, self._draw.choice(self._publishers)
        headers = {"kind": draw.choice("abc")} if draw.random() < 0.8 else {}
        if draw.random() < 0.3:
            headers["size"] = draw.choice("12")
        priority = MessagePriority(draw.choice((0, 1, 1, 1, 2, 3)))
        if draw.random() < 0.5:
            publisher.publish(TOPIC, headers, priority=priority)
        else:
            publisher.publish_many(TOPIC, draw.randint(1, 12), headers, priority=priority)

    def _poll(self, reader: Reader) -> None:
        reader.held += reader.group.poll(reader.name, max_messages=self._draw.choice((1, 1, 3, 10)))

    def _settle(self, reader: Reader) -> None:
        draw, group = self._draw, reader.group
        if draw.random() < 0.02:
            reader.held = []  # forgotten: their leases end
            return
        if draw.random() < 0.4:
            held, reader.held = reader.held, []
            group.ack_many([each.message_id for each in held], reader.name)
            reader.old += held[:1]
            return
        delivery = reader.held.pop(draw.randrange(len(reader.held)))
        verb = draw.choice(_VERBS)
        again = verb(group, delivery, draw)
        if again is not None:
            reader.held.append(again)
        reader.old = [*reader.old[-3:], delivery]
        if draw.random() < 0.2:
            # What is over: every answer must be False.
            group.ack_delivery(draw.choice(reader.old))
        if draw.random() < 0.1:
            draw.choice(self._readers).group.ack(delivery.message_id, "nobody")

    def _look(self) -> None:
        draw, name = self._draw, self._draw.choice(list(self._groups))
        self._groups[name].stats()
        if draw.random() < 0.5:
            return
        dead = self._chief.dead_letters(f"{TOPIC}/{name}")
        some = [letter.message.message_id for letter in dead if draw.random() < 0.5]
        if some and draw.random() < 0.7:
            self._chief.redrive(f"{TOPIC}/{name}", some)
        elif some:
            self._chief.purge_dead_letters(f"{TOPIC}/{name}", some)

    def _pass(self, seconds: float) -> None:
        """Let time go by, and have the broker take back what is due just then, as one with a janitor does."""
        until = self._clock() + seconds
        for _ in range(ROUNDS):
            due = self._broker.next_deadline()
            if due is None or due > until:
                break
            self._clock.advance(max(0.0, due - self._clock()) + _MOMENT_S)
            self._broker.expire()
        self._clock.advance(max(0.0, until - self._clock()))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        self._wait_out()
        for _ in range(ROUNDS):
            busy = False
            for reader in self._readers:
                reader.held += reader.group.poll(reader.name, max_messages=50)
                busy |= bool(reader.held)
                while reader.held:
                    reader.group.ack_delivery(reader.held.pop(0))
            deadline = self._broker.next_deadline()
            if not busy and deadline is None:
                break
            step = self._draw.uniform(0.1, 2.0)
            if deadline is not None and self._draw.random() < 0.5:
                # To when the broker says that something is due: what comes early is seen early.
                step = max(0.0, deadline - self._clock()) + _MOMENT_S
            self._pass(step)
        for name, group in self._groups.items():
            group.stats()
            self._chief.dead_letters(f"{TOPIC}/{name}")

    def _wait_out(self) -> None:
        """Of what is held now, let some leases end, and hold some beyond the time they had at first."""
        for reader in self._readers:
            kind = self._draw.random()
            if kind < 0.4:
                reader.held = []
            elif kind < 0.8:
                for each in reader.held:
                    reader.group.extend_delivery(each, 30.0)
        self._pass(11.0)
        for reader in self._readers:
            held, reader.held = reader.held, []
            self._poll(reader)
            # Those of before last: whoever got them meanwhile has them still.
            reader.held += held


def _extend(group: RecordedSubscription, delivery: Delivery, draw: random.Random) -> Delivery:
    group.extend_delivery(delivery, draw.choice((None, 1.0, 20.0)))
    return delivery


def _nack(group: RecordedSubscription, delivery: Delivery, draw: random.Random) -> None:
    group.nack_delivery(delivery, delay=draw.choice((None, 0.0, 2.0)), error="it failed")


def _retry(group: RecordedSubscription, delivery: Delivery, draw: random.Random) -> Delivery | None:
    return group.retry_delivery(delivery, "once more")


_VERBS: Final[tuple[Callable[[RecordedSubscription, Delivery, random.Random], Delivery | None], ...]] = (
    lambda group, delivery, _: _settled(group.ack_delivery(delivery)),
    lambda group, delivery, _: _settled(group.release_delivery(delivery)),
    lambda group, delivery, _: _settled(group.reject_delivery(delivery, error="it cannot work")),
    lambda group, delivery, _: _settled(group.nack(delivery.message_id, delivery.member, error="by id")),
    _nack,
    _extend,
    _retry,
)


def _settled(_: bool) -> None:
    return None


def dense(seed: int, steps: int) -> list[list[Event]]:
    """The histories of a dense run. A defect may make a verb raise; that is in the histories, and ends the run."""
    run = Dense(seed)
    try:
        run.run(steps)
    except (MpbrokerError, ArithmeticError, LookupError, TypeError, ValueError, AssertionError, AttributeError):
        pass
    return run.histories
