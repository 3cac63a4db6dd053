"""What the victims of kill points do with a publisher or a consumer, as points_deeds has it for single calls.

Whatever interrupts a deed, it closes what it has, and once more where the interruption came in the middle of that: as a
program does that wants to end well. What a publisher or consumer does by itself after a while it does at once here, or
never, so that a point is reached in one thread only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from mpbroker import Delivery
from mpbroker.errors import ProtocolViolation
from mpbroker.pipeline import Answer, Consumer, Publisher
from mpbroker.process.consuming import ProcessFetchWire, ProcessSettleWire
from mpbroker.process.publishing import ProcessPublishWire
from tests.prove.planes import plane_of_line
from tests.prove.points_deeds import Play, key_of
from tests.prove.points_trap import LIMIT_S

_NEVER_S: Final = 600.0
"""After what no scene lasts."""


# -- publishers -------------------------------------------------------------------------------------------------------


class Source:
    """A publisher, and what its user knows of it."""

    def __init__(self, play: Play, publisher: Publisher) -> None:
        self.publisher = publisher
        self._play = play
        self._told: list[str] = []

    @property
    def wire(self) -> ProcessPublishWire:
        wire = self.publisher._wire
        assert isinstance(wire, ProcessPublishWire)
        return wire

    def put(self, *keys: str) -> None:
        for key in keys:
            self._play.note("invoke", "publish", key)
            self.publisher.publish(key)
            self._told.append(key)

    def put_with_receipt(self, key: str) -> Any:
        self._play.note("invoke", "publish", key)
        return self.publisher.publish(key, receipt=True)

    def flush(self) -> None:
        self.publisher.flush()
        self._confirmed()

    def close(self) -> None:
        self.publisher.close()
        self._confirmed()

    def _confirmed(self) -> None:
        self._play.note("ok", "publish", *self._told)
        self._told.clear()
        self._play.note("plane", plane_of_line(self.wire._line))


@contextmanager
def _source(play: Play, **options: Any) -> Iterator[Source]:
    """Whose first message is confirmed."""
    source = Source(play, play.broker.publisher(play.topic, **options))
    with _closing(source.close):
        source.put("p0")
        source.flush()
        yield source


@contextmanager
def _closing(close: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        try:
            close()
        except KeyboardInterrupt:
            close()
            raise


def streams(play: Play) -> None:
    """Two messages in one batch."""
    with _source(play, linger=_NEVER_S) as source:
        play.arm()
        source.put("p1", "p2")
        source.flush()


def streams_and_closes(play: Play) -> None:
    """The same, and leaves the sending to the end."""
    with _source(play, linger=_NEVER_S) as source:
        play.arm()
        source.put("p1", "p2")


def streams_within_a_bound(play: Play) -> None:
    """One message at a time may be unconfirmed."""
    with _source(play, linger=_NEVER_S, max_messages=1) as source:
        play.arm()
        source.put("p1", "p2")


def streams_on_a_line_that_breaks(play: Play) -> None:
    """The connection is lost once the batch was sent, with its answer."""
    with _source(play, linger=_NEVER_S) as source:
        wire = source.wire
        receive = wire.receive

        def lost(timeout_s: float | None) -> Answer | Exception | None:
            wire.receive = receive  # type: ignore[method-assign]
            raise ProtocolViolation("the connection broke")

        wire.receive = lost  # type: ignore[method-assign]
        play.arm()
        source.put("p1", "p2")
        source.flush()


def streams_for_a_receipt(play: Play) -> None:
    with _source(play, linger=_NEVER_S) as source:
        play.arm()
        receipt = source.put_with_receipt("p1")
        receipt.result()
        play.note("ok", "publish", "p1")


def streams_and_goes_on(play: Play) -> None:
    """Leaves the sending to the publisher's own thread."""
    with _source(play) as source:
        # It may still be at the message before, and what began before the trap was set is not seen by it.
        _wait("the thread's rest", lambda: not source.publisher._is_tended)
        play.arm()
        receipt = source.put_with_receipt("p1")
        _wait("the answer", receipt.done)
        play.note("ok", "publish", "p1")


# -- consumers --------------------------------------------------------------------------------------------------------


class Drain:
    """A consumer, and what its user has of it.

    An ack that was noted is no ack yet: the book claims nothing of it.
    """

    def __init__(self, play: Play, consumer: Consumer) -> None:
        self.consumer = consumer
        self._play = play

    def take(self, count: int) -> list[Delivery]:
        taken = list(islice(self.consumer, count))
        for each in taken:
            self._play.note("got", key_of(each.payload), each.attempt)
        self._say_the_planes()
        return taken

    def ack(self, *deliveries: Delivery) -> None:
        for each in deliveries:
            self._play.note("noted", "ack", key_of(each.payload), each.ack())

    def close(self) -> None:
        self._say_the_planes()
        self.consumer.close()
        self._play.note("closed")

    def _say_the_planes(self) -> None:
        fetch, settle = self.consumer._wire, self.consumer._settler.wire
        assert isinstance(fetch, ProcessFetchWire)
        assert isinstance(settle, ProcessSettleWire)
        for line in (fetch._line, settle._line):
            self._play.note("plane", plane_of_line(line))


@contextmanager
def _drain(
    play: Play, prefetch: int, *, patience: float | None = _NEVER_S, idle_timeout: float | None = 0.0
) -> Iterator[Drain]:
    """patience: seconds until its own thread sends acks; None: as the product has it."""
    consumer = play.reader().consume("victim", prefetch=prefetch, idle_timeout=idle_timeout)
    if patience is not None:
        consumer._settler._patience = patience
    drain = Drain(play, consumer)
    with _closing(drain.close):
        play.arm()
        yield drain


def consumes(play: Play) -> None:
    """Takes two of three, and acks them."""
    with _drain(play, 2) as drain:
        drain.ack(*drain.take(2))


def consumes_what_comes(play: Play) -> None:
    with _drain(play, 1, idle_timeout=None) as drain:
        drain.ack(*drain.take(1))


def consumes_twice(play: Play) -> None:
    """Takes and acks two of four, then the other two; the first acks leave before it asks for more."""
    with _drain(play, 2) as drain:
        drain.ack(*drain.take(2))
        drain.ack(*drain.take(2))


def consumes_ahead(play: Play) -> None:
    """Acks two; the third of three is on its way meanwhile."""
    with _drain(play, 2) as drain:
        drain.ack(*drain.take(1))
        drain.ack(*drain.take(1))


def consumes_some(play: Play) -> None:
    """Has three: one acked, one yielded, one not even that."""
    with _drain(play, 3) as drain:
        drain.ack(*drain.take(2)[:1])


def consumes_and_goes_on(play: Play) -> None:
    """Acks one of three, and leaves the sending to the consumer's own thread."""
    with _drain(play, 1, patience=None) as drain:
        drain.ack(*drain.take(1))
        settler = drain.consumer._settler
        _wait("the ack", lambda: not settler.noted)


def _wait(what: str, there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not there():
        assert time.monotonic() < deadline, f"{what} does not come"
        pause.wait(0.001)
