"""What the victims of kill points do: clients that publish, and workers that read. They write down all of it.

A deed prepares, arms the trap, and goes on as programs do; it does not know what will happen to it. What it did is in
its book, line by line, also after SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from mpbroker import CallbackSubscriber, Delivery, Message, RetryPolicy
from mpbroker.process.handle import SubscriptionHandle
from mpbroker.process.proxy import BrokerProxy
from tests.prove.planes import plane_of, ring_of
from tests.prove.points_trap import LIMIT_S

LARGE_BYTES: Final = 300_000
"""More than a socket takes at once."""

READER: Final = "work"
"""The subscription that workers read, of every scene's topic."""


class Book:
    """An append-only file of lines, each a list; complete up to the moment its writer died."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def note(self, *words: Any) -> None:
        os.write(self._fd, json.dumps(words).encode() + b"\n")

    @staticmethod
    def read(path: Path) -> list[list[Any]]:
        try:
            return [json.loads(line) for line in path.read_bytes().splitlines()]
        except FileNotFoundError:
            return []


def key_of(payload: Any) -> str:
    """What names a message in books and tables."""
    return str(payload[0] if isinstance(payload, tuple) else payload)


class Play:
    """What a deed works with."""

    def __init__(self, broker: BrokerProxy, topic: str, book: Book, arm: Callable[[], None]) -> None:
        self.broker = broker
        self.topic = topic
        self.arm = arm
        self._book = book

    def note(self, *words: Any) -> None:
        self._book.note(*words)

    def reader(self) -> SubscriptionHandle:
        handle = self.broker.subscription(self.topic, READER)
        assert isinstance(handle, SubscriptionHandle)
        return handle

    def publish(self, *keys: str, large: bool = False) -> None:
        """Each in a call of its own, or large ones in one call."""
        if large:
            self._book.note("invoke", "publish", *keys)
            self.broker.publish_many(self.topic, [(key, bytes(LARGE_BYTES)) for key in keys])
            self._book.note("ok", "publish", *keys)
            self._say_the_plane()
            return
        for key in keys:
            self._book.note("invoke", "publish", key)
            self.broker.publish(self.topic, key)
            self._book.note("ok", "publish", key)
        self._say_the_plane()

    def lull(self) -> None:
        """Wait until the broker sleeps until this process rings."""
        ring = ring_of(self.broker)
        deadline = time.monotonic() + LIMIT_S
        pause = threading.Event()
        while not ring.peer_wants_bytes():
            assert time.monotonic() < deadline, "the broker does not sleep"
            pause.wait(0.001)

    def poll(self, count: int, timeout: float | None = 0.0) -> list[Delivery]:
        reader = self.reader()
        self._book.note("invoke", "poll")
        deliveries = reader.poll("victim", None, count, timeout=timeout)
        for delivery in deliveries:
            self._book.note("got", key_of(delivery.payload), delivery.attempt)
        self._say_the_plane()
        return deliveries

    def settle(self, verb: str, delivery: Delivery, *arguments: Any, **named: Any) -> None:
        key = key_of(delivery.payload)
        self._book.note("invoke", verb, key)
        answer = getattr(delivery, verb)(*arguments, **named)
        self._book.note("ok", verb, key, bool(answer))

    def ack(self, *deliveries: Delivery) -> None:
        for delivery in deliveries:
            self.settle("ack", delivery)

    @property
    def pid(self) -> int:
        return os.getpid()

    def note_plane(self) -> None:
        """How the calls of this process travel."""
        self._say_the_plane()

    def called(self, message: Message) -> None:
        """A subscriber was called."""
        self._book.note("called", key_of(message.payload))
        self._say_the_plane()

    def _say_the_plane(self) -> None:
        self._book.note("plane", plane_of(self.broker))


Deed = Callable[[Play], None]


# -- clients ----------------------------------------------------------------------------------------------------------


def connects(play: Play) -> None:
    """Its first call is a publish."""
    play.arm()
    play.publish("p0")


def publishes(play: Play) -> None:
    """The second of three is the one that is struck."""
    play.publish("p0")
    play.arm()
    play.publish("p1", "p2")


def publishes_to_a_sleeper(play: Play) -> None:
    """The same, once the broker has to be woken."""
    play.publish("p0")
    play.lull()
    play.arm()
    play.publish("p1", "p2")


def publishes_many(play: Play) -> None:
    """Two in one frame that no socket takes at once."""
    play.broker.topics()
    play.arm()
    play.publish("p0", "p1", large=True)


def publishes_and_closes(play: Play) -> None:
    play.publish("p0")
    play.arm()
    play.broker.close()


def publishes_and_ends(play: Play) -> None:
    """Leaves the rest to the interpreter's exit."""
    play.publish("p0")
    play.arm()


def subscribes(play: Play) -> None:
    """Makes a topic and a subscription beside the scene's, then publishes to the scene's."""
    play.broker.topics()
    play.arm()
    play.broker.create_topic(f"{play.topic} too")
    play.broker.subscribe(f"{play.topic} too", "own")
    play.publish("p0")


# -- workers ----------------------------------------------------------------------------------------------------------


def works(play: Play) -> None:
    """Takes two of three, and acks them."""
    play.reader()
    play.arm()
    play.ack(*play.poll(2))


def works_through_a_batch(play: Play) -> None:
    """Takes all four at once, and acks one after the other."""
    deliveries = play.poll(4)
    play.arm()
    play.ack(*deliveries)


def acks_many(play: Play) -> None:
    deliveries = play.poll(4)
    play.arm()
    play.reader().ack_many([each.message_id for each in deliveries[:2]], "victim")
    play.ack(*deliveries[2:])


def waits(play: Play) -> None:
    """Waits for the first message that comes."""
    play.reader()
    play.arm()
    play.ack(*play.poll(2, None))


def is_interrupted(play: Play) -> None:
    """A signal handler of its own ends its wait, which takes the call back; then it works."""
    play.reader()
    play.arm()
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        play.poll(2, None)
    except TimeoutError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    play.broker.topics()


def _give_up(_: int, frame: FrameType | None) -> None:
    """Only out of a poll that waits for its answer; before that the timer comes again, however slow the machine is."""
    under_way = set()
    while frame is not None:
        under_way.add(frame.f_code.co_qualname)
        frame = frame.f_back
    if not under_way >= {"SubscriptionHandle._poll", "Channel._read"}:
        return
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    raise TimeoutError("enough")


def acks(play: Play) -> None:
    _settles(play, "ack")


def nacks(play: Play) -> None:
    _settles(play, "nack", delay=0.0)


def releases(play: Play) -> None:
    _settles(play, "release")


def rejects(play: Play) -> None:
    _settles(play, "reject")


def extends(play: Play) -> None:
    """The first of two gets more time; then both are acked."""
    first, second = play.poll(2)
    play.arm()
    play.settle("extend", first, 60.0)
    play.ack(first, second)


def _settles(play: Play, verb: str, **named: Any) -> None:
    """The first of two by the verb, the other by ack."""
    first, second = play.poll(2)
    play.arm()
    play.settle(verb, first, **named)
    play.ack(second)


def works_with_care(play: Play) -> None:
    """Holds two in with blocks."""
    first, second = play.poll(2)
    play.arm()
    with first, second:
        play.broker.topics()


def works_on_one(play: Play) -> None:
    (only,) = play.poll(1)
    play.arm()
    play.broker.topics()
    play.ack(only)


def closes(play: Play) -> None:
    """Holds two, acks one, and closes."""
    first, _second = play.poll(2)
    play.ack(first)
    play.arm()
    play.broker.close()


def ends(play: Play) -> None:
    """Holds two, acks one, and leaves the rest to the interpreter's exit."""
    first, _second = play.poll(2)
    play.ack(first)
    play.arm()


def subscribed(play: Play) -> None:
    """Is called with two of three; the first call fails."""
    failed: list[str] = []

    def call(message: Message) -> None:
        play.called(message)
        if not failed:
            failed.append(message.message_id)
            raise ValueError("the first call fails")

    policy = RetryPolicy(max_attempts=5, base_delay=0.01, multiplier=1.0)
    subscription = play.broker.subscribe(play.topic, CallbackSubscriber(READER, call), retry=policy)
    play.arm()
    try:
        for _ in range(2):
            subscription.dispatch_one()
    except KeyboardInterrupt:
        # The dispatcher is as good as before, and so is its seat.
        subscription.dispatch_one(block=False)
        raise
    subscription.close()
