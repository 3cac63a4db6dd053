"""What max_queue_bytes promises: a broker that is filled to it, by whatever costs most, grows by about twice that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Final

import msgspec
import psutil
import pytest

from mpbroker import BrokerManager, BrokerProxy
from mpbroker.engine import HELD_BYTES
from mpbroker.process import frames
from mpbroker.process.desk import MAX_POLL
from mpbroker.process.frames import Failed, Frame, Granted, Published, Reply
from mpbroker.process.naming import locate_at
from mpbroker.process.payloads import list_length
from tests.hostile.support import Peer, let_in
from tests.process.driver import publish, subscribe

pytestmark = pytest.mark.timeout(180)

N: Final = 4 << 20
"""max_queue_bytes."""

CONSTANT: Final = 6 << 20
"""What buffers and an allocator keep."""

IN_FLIGHT: Final = MAX_POLL * HELD_BYTES
"""One full answer, where something is polled."""

ABREAST: Final = 50
"""Requests that are sent at once."""

MANY: Final = 200_000
"""Requests after which a shape that was not stopped would have shown."""


@dataclass
class Filled:
    """A broker that a client fills as it likes. grown: bytes of memory since it had its subscriptions."""

    broker: BrokerProxy
    process: psutil.Process
    call: Peer
    before: int = 0

    def ask(self, requests: Iterable[Frame]) -> Iterator[Reply]:
        """The answers to requests, many under way at once."""
        rest = iter(requests)
        while some := [*islice(rest, ABREAST)]:
            self.call.send(b"".join(len(body).to_bytes(4, "little") + body for body in map(frames.encode, some)))
            replies = [self.call.reply() for _ in some]
            yield from (reply for reply in replies if reply is not None)

    def subscribed(self, many: int, max_queue: int = 10_000_000) -> list[int]:
        """The numbers of so many subscriptions of the topic."""
        names = [f"s{n}" for n in range(many)]
        each = {"max_queue": max_queue, "max_deliveries": 1_000_000}
        replies = [*self.ask(subscribe("orders", name, push=False, **each) for name in names)]
        self.before = self.process.memory_info().rss
        return [reply.number for reply in replies if isinstance(reply, frames.Subscribed)]

    def fill(self, requests: Iterable[Frame]) -> int:
        """Publish until the broker is full; how many it took."""
        for taken, reply in enumerate(self.ask(requests)):
            if isinstance(reply, Failed):
                assert reply.kind == "BrokerFull", reply
                return taken
            assert isinstance(reply, Published)
        raise AssertionError("the broker was never full")

    def polled(self, number: int, at_once: int) -> list[int]:
        """Poll until nothing more is handed out; the tokens of all that was."""
        tokens: list[int] = []
        for reply in self.ask(frames.Poll(number, "w", None, at_once, 0.0) for _ in range(MANY)):
            assert isinstance(reply, Granted), reply
            if not reply.grants:
                return tokens
            for each in reply.grants:
                tokens += range(each.token, each.token + list_length(each.payloads))
        raise AssertionError("a broker that is full hands out ever more")

    @property
    def grown(self) -> int:
        return self.process.memory_info().rss - self.before


@pytest.fixture
def filled() -> Iterator[Filled]:
    with BrokerManager(max_queue_bytes=N) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        assert manager.pid is not None
        with let_in(locate_at(Path(broker._address.folder))) as (_, call):
            yield Filled(broker, psutil.Process(manager.pid), call)
        assert "orders" in broker.topics()


def _empty_to_many(filled: Filled) -> None:
    filled.subscribed(100)
    filled.fill(publish("orders", None) for _ in range(MANY))


def _empty_to_one(filled: Filled) -> None:
    filled.subscribed(1)
    filled.fill(publish("orders", None) for _ in range(MANY))


def _many_headers(filled: Filled) -> None:
    filled.subscribed(1)
    numbers = count()

    def headed() -> Frame:
        plain = publish("orders", None)
        headers = {f"h{number}": f"v{number}" for number in islice(numbers, 500)}
        return frames.Publish("orders", plain.batches, headers, 1)

    filled.fill(headed() for _ in range(MANY))


def _wide_headers(filled: Filled) -> None:
    filled.subscribed(1)
    filled.fill(publish("orders", None, h="x" * 50_000 + "\U0001f600") for _ in range(MANY))


def _wide_topic(filled: Filled) -> None:
    topic = "\U0001f600" * 255
    filled.broker.create_topic(topic)
    filled.broker.subscribe(topic, "s", max_queue=10_000_000)
    filled.before = filled.process.memory_info().rss
    filled.fill(publish(topic, None) for _ in range(MANY))


def _junk_in_the_frame(filled: Filled) -> None:
    """Fields that nobody reads stay in the frame that its one batch is in."""
    filled.subscribed(1)
    fields = msgspec.msgpack.decode(frames.encode(publish("orders", None)))
    body = msgspec.msgpack.encode([*fields, 0, bytes(450)])

    def brought() -> Iterator[Reply]:
        for _ in range(MANY):
            filled.call.send(len(body).to_bytes(4, "little") + body)
            reply = filled.call.reply()
            assert reply is not None
            yield reply

    assert any(isinstance(reply, Failed) and reply.kind == "BrokerFull" for reply in brought())


def _held_one_by_one(filled: Filled) -> None:
    """What is published in batches and polled one by one."""
    numbers = filled.subscribed(2)
    for reply in filled.ask(publish("orders", *[None] * 256) for _ in range(300)):
        assert isinstance(reply, Published)
    for number in numbers:
        filled.polled(number, 1)


def _given_back_in_pieces(filled: Filled) -> None:
    """What is polled in batches and given back one by one, again and again."""
    numbers = filled.subscribed(2)
    for reply in filled.ask(publish("orders", *[None] * 256) for _ in range(300)):
        assert isinstance(reply, Published)
    for number in numbers * 2:
        tokens = filled.polled(number, 256)
        for _ in filled.ask(frames.Release(number, token, None) for token in tokens):
            pass


def _failed_with_long_errors(filled: Filled) -> None:
    """A few messages that are given back with texts, ever again."""
    (number,) = filled.subscribed(1)
    filled.call.frame(publish("orders", *range(20)))
    assert isinstance(filled.call.reply(), Published)
    for round_ in range(150):
        tokens = filled.polled(number, 20)
        assert len(tokens) == 20
        error = f"{round_}" + "\U0001f600" * (4000 if round_ > 100 else 1000)
        for _ in filled.ask(frames.Nack(number, token, None, None, error, None) for token in tokens):
            pass


def _dead_letters_of_large_batches(filled: Filled) -> None:
    """Each that is set aside is copied out of its batch, and each subscription has its own."""
    numbers = filled.subscribed(8)
    filled.fill(publish("orders", *[bytes(8_000)] * 8) for _ in range(MANY))
    for number in numbers:
        tokens = filled.polled(number, 200)
        for _ in filled.ask(frames.Reject(number, token, None, "no") for token in tokens[1::2]):
            pass


def _overflow(filled: Filled) -> None:
    """Each publish of very many becomes very many dead letters, of which few are kept."""
    filled.subscribed(2, max_queue=1)
    batches = [msgspec.Raw(b"\xdc\x01\x00" + b"\xc0" * 256)] * 100
    taken = filled.fill(frames.Publish("orders", batches, {}, 1) for _ in range(40))
    assert taken < 40


PUBLISHED: Final = [
    _empty_to_many,
    _empty_to_one,
    _many_headers,
    _wide_headers,
    _wide_topic,
    _junk_in_the_frame,
    _overflow,
]
POLLED: Final = [
    _held_one_by_one,
    _given_back_in_pieces,
    _failed_with_long_errors,
    _dead_letters_of_large_batches,
]


@pytest.mark.parametrize("shape", [*PUBLISHED, *POLLED], ids=lambda shape: shape.__name__.lstrip("_"))
def test_a_full_broker_has_grown_by_twice_its_bound_at_most(filled: Filled, shape: Callable[[Filled], None]) -> None:
    shape(filled)
    grown = filled.grown
    counted = filled.broker._status().limits["queue_bytes"][0]
    print(f"{shape.__name__}: grown by {grown / N:.2f} of max_queue_bytes, counted {counted / N:.2f}")
    assert grown <= 2 * N + CONSTANT + (IN_FLIGHT if shape in POLLED else 0)
