"""Who publishes blocks and who looks at them, in the part of the proof about the arena: processes of their own.

Each block's bytes are a range of one text that all know, and its headers say which, so whoever looks sees at once
whether it is another block's. A role works until a file says that it is enough; it may be killed and stopped anywhere.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any, Final

import numpy as np

from mpbroker import Delivery
from mpbroker.process.proxy import BrokerProxy

SMALLEST: Final = 64 * 1024
LARGEST: Final = 1 << 20
"""Bytes of a block, between these, each power of two as often."""

KEPT: Final = 16
"""Views that a reader keeps beside what it works on."""

TOPIC: Final = "arena"
WORK: Final = "work"
COPIES: Final = "copies"
"""The subscriptions."""

LEASE_S: Final = 1.0
"""Ends while its holder is stopped, and of what was forgotten."""

_TEXT: Final = np.random.default_rng(20_11).integers(0, 256, 2 * LARGEST, np.uint8)
_TEXT.setflags(write=False)


@dataclass(frozen=True, slots=True)
class Signs:
    """The folder in which roles and whoever started them tell each other."""

    folder: Path

    def say(self, word: str) -> None:
        (self.folder / word).touch()

    def said(self, word: str) -> bool:
        return (self.folder / word).exists()

    def complain(self, text: str) -> None:
        with (self.folder / "wrong").open("a") as file:
            file.write(text + "\0")

    def complaints(self) -> list[str]:
        path = self.folder / "wrong"
        return path.read_text().split("\0")[:-1] if path.exists() else []


def live(
    role: Callable[[BrokerProxy, Signs, random.Random], None], broker: BrokerProxy, signs: Signs, seed: int
) -> None:
    """The life of a role in a process."""
    try:
        role(broker, signs, random.Random(seed))
        broker.close()
    except BaseException:
        signs.complain(traceback.format_exc())


# -- publishers -------------------------------------------------------------------------------------------------------


def _ranges(signs: Signs, rng: random.Random) -> Iterator[tuple[Any, dict[str, str]]]:
    while not signs.said("published"):
        size = int(exp(rng.uniform(log(SMALLEST), log(LARGEST))))
        at = rng.randrange(_TEXT.size - size)
        yield _TEXT[at : at + size], {"at": str(at), "size": str(size)}


def calls(broker: BrokerProxy, signs: Signs, rng: random.Random) -> None:
    """One call a block; now and then a loan, and one that is given back."""
    for content, headers in _ranges(signs, rng):
        way = rng.random()
        if way < 0.8:
            broker.publish(TOPIC, content.data, headers)
            continue
        with broker.loan(content.nbytes) as loan:
            loan.buffer[: content.nbytes // 2] = content[: content.nbytes // 2].data
            if way < 0.9:
                loan.buffer[content.nbytes // 2 :] = content[content.nbytes // 2 :].data
                broker.publish(TOPIC, loan, headers)


def streams(broker: BrokerProxy, signs: Signs, rng: random.Random) -> None:
    """Without waiting for the answers."""
    with broker.publisher(TOPIC) as publisher:
        for content, headers in _ranges(signs, rng):
            publisher.publish(content.data, headers)


# -- readers ----------------------------------------------------------------------------------------------------------


class Views:
    """What a reader has kept, and looks at again."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._kept: list[tuple[Any, int, int]] = []
        self._children: list[int] = []

    def look(self, delivery: Delivery) -> None:
        """Look at a payload, and perhaps keep it, or a part of it."""
        view, at = delivery.payload, int(delivery.headers["at"])
        assert view.nbytes == int(delivery.headers["size"]), f"{view.nbytes} bytes, not {delivery.headers}"
        _check(view, at)
        if self._rng.random() < 0.3:
            first = self._rng.randrange(view.nbytes)
            self._kept.append((view[first:], at + first, os.getpid()))
        while len(self._kept) > self._rng.randrange(KEPT):
            kept, at, _ = self._kept.pop(self._rng.randrange(len(self._kept)))
            _check(kept, at)

    def check(self) -> None:
        for view, at, _ in self._kept:
            _check(view, at)

    def fork(self, signs: Signs) -> None:
        """Have a child look at all of it, while this process goes on, and drops it."""
        self.reap(os.WNOHANG)
        child = os.fork()
        if child:
            self._children.append(child)
            return
        code = 1
        try:
            for _ in range(20):
                self.check()
                os.sched_yield()
            code = 0
        except BaseException:
            signs.complain(f"in a forked child: {traceback.format_exc()}")
        finally:
            os._exit(code)

    def reap(self, options: int = 0) -> None:
        for child in list(self._children):
            found, status = os.waitpid(child, options)
            if found:
                self._children.remove(child)
                assert status == 0, f"a forked child that looked at views ended with {status}"

    def close(self) -> None:
        self.check()
        self._kept.clear()
        self.reap()


def _check(view: Any, at: int) -> None:
    if not np.array_equal(np.frombuffer(view, np.uint8), _TEXT[at : at + view.nbytes]):
        raise AssertionError(f"a view of {view.nbytes} bytes has other bytes than were published")


def reads(broker: BrokerProxy, signs: Signs, rng: random.Random) -> None:
    """Acks most, gives some back, forgets some; forks now and then."""
    subscription, views = broker.subscription(TOPIC, WORK), Views(rng)
    member = f"w{os.getpid()}"
    while True:
        deliveries = subscription.poll(member, max_messages=rng.randrange(1, 5), timeout=0.2)
        if not deliveries and signs.said("read"):
            break
        for delivery in deliveries:
            views.look(delivery)
            fate = rng.random()
            if fate < 0.9:
                delivery.ack()
            elif fate < 0.95:
                delivery.nack()
            elif fate < 0.99:
                delivery.release()
        if rng.random() < 0.002:
            views.fork(signs)
    del deliveries
    views.close()


def consumes(broker: BrokerProxy, signs: Signs, rng: random.Random) -> None:
    """The other subscription, of which half is copied."""
    subscription, views = broker.subscription(TOPIC, COPIES), Views(rng)
    while not signs.said("read"):
        with subscription.consume(
            f"c{os.getpid()}", prefetch=8, idle_timeout=0.2, copy=rng.random() < 0.5
        ) as deliveries:
            for number, delivery in enumerate(deliveries):
                views.look(delivery)
                delivery.ack()
                if number == 1000:
                    break
    views.close()
