"""What the conformance tests share: the planes they run over, and short ways to say things.

A plane is one way to reach a broker. A new one joins the suite by a class here and a line in
PLANES; a test that holds for one alone says so with ``@only("local")``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Generic, TypeAlias, TypeVar

import pytest

from mpbroker import (
    BrokerManager,
    DeadLetter,
    Delivery,
    Message,
    MessageBroker,
    SubscriptionStats,
)
from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.engine import invariants
from mpbroker.shm.ring import is_known_machine
from mpbroker.shm.segment import is_there
from mpbroker.testing import FakeClock

LIMIT_S: Final = 20.0
"""The hard limit of every wait; far from what any of them takes on a busy machine."""

FILTERS: Final = "tests.conformance.named_filters"
"""The module whose functions a broker process may use as filters."""

T = TypeVar("T")

Source: TypeAlias = Callable[[], AbstractContextManager[BrokerAPI]]


class Plane(ABC):
    """One way to reach a broker.

    A source gives brokers one after the other, each without topics; where starting one is dear they
    are the same broker, so a test tells ids by ``m(1)``, its own first message, and not by "m1".
    """

    name: str

    @abstractmethod
    def exact(self) -> AbstractContextManager[BrokerAPI]:
        """A new broker whose time is what the test says, from 0."""

    @abstractmethod
    def exact_source(self) -> AbstractContextManager[Source]:
        """Brokers whose time is what the test says, from 0."""

    @abstractmethod
    def live_source(self) -> AbstractContextManager[Source]:
        """Brokers that live in real time."""


class LocalPlane(Plane):
    name = "local"

    @contextmanager
    def exact(self) -> Iterator[BrokerAPI]:
        clock = FakeClock(0.0)
        with MessageBroker(clock=clock, sleep=clock.sleep) as broker:
            yield broker
            self.check(broker)

    @contextmanager
    def exact_source(self) -> Iterator[Source]:
        yield self.exact

    @contextmanager
    def live_source(self) -> Iterator[Source]:
        yield self.live

    @contextmanager
    def live(self) -> Iterator[BrokerAPI]:
        with MessageBroker() as broker:
            yield broker
            self.check(broker)

    def check(self, broker: MessageBroker) -> None:
        invariants.check(broker._engine)
        check_all_conserved(broker)


class ManagerPlane(Plane):
    """Another process, by sockets. Processes that a test starts get their proxies, and with them the way."""

    name = "manager"
    transport = "manager"

    @contextmanager
    def exact(self) -> Iterator[BrokerAPI]:
        with self.exact_source() as source, source() as broker:
            yield broker

    @contextmanager
    def exact_source(self) -> Iterator[Source]:
        with BrokerManager(manual_time=True, filter_modules=[FILTERS], transport=self.transport) as manager:
            yield lambda: self.emptied(manager, 0.0)

    @contextmanager
    def live_source(self) -> Iterator[Source]:
        with BrokerManager(filter_modules=[FILTERS], transport=self.transport) as manager:
            yield lambda: self.emptied(manager, None)

    @contextmanager
    def emptied(self, manager: BrokerManager, now: float | None) -> Iterator[BrokerAPI]:
        with manager.broker() as broker:
            broker.expire(now)
            try:
                yield broker
                check_all_conserved(broker)
            finally:
                for topic in broker.topics():
                    broker.delete_topic(topic)


class RingPlane(ManagerPlane):
    """Another process, by shared memory."""

    name = "ring"
    transport = "ring"


PLANES: Final[dict[str, Plane]] = {
    plane.name: plane
    for plane in (LocalPlane(), ManagerPlane(), *([RingPlane()] if is_there() and is_known_machine() else []))
}

PROCESS_PLANES: Final = [name for name in PLANES if name != LocalPlane.name]


def only(*names: str) -> pytest.MarkDecorator:
    """The law holds for some planes alone."""
    return pytest.mark.parametrize("plane", names, indirect=True)


# -- short ways to say things ---------------------------------------------------------------------

_before = 0


def count_from(broker: BrokerAPI) -> None:
    """The next message of this broker is message 1 of the test."""
    global _before  # noqa: PLW0603 (one test runs at a time)
    broker.create_topic("nobody listens")
    _before = broker.publish("nobody listens", None).sequence
    broker.delete_topic("nobody listens")


def m(number: int) -> str:
    """The id of the test's message of that number, from 1."""
    return f"m{_before + number}"


def numbers(messages: Iterable[Message]) -> list[int]:
    """Which messages of the test these are, from 1."""
    return [message.sequence - _before for message in messages]


def ids(things: Iterable[Message | Delivery]) -> list[str]:
    return [thing.message_id for thing in things]


def dead_ids(broker: BrokerAPI, subscription: SubscriptionAPI) -> list[str]:
    return [letter.message.message_id for letter in letters(broker, subscription)]


def letters(broker: BrokerAPI, subscription: SubscriptionAPI) -> list[DeadLetter]:
    return broker.dead_letters(subscription.subscription_id)


def fill(broker: BrokerAPI, topic: str, count: int, **arguments: Any) -> list[str]:
    """Publish ``count`` messages, one by one; their ids."""
    return [broker.publish(topic, number, **arguments).message_id for number in range(count)]


def attempts(deliveries: Iterable[Delivery]) -> list[int]:
    return [delivery.attempt for delivery in deliveries]


def only_one(things: Sequence[T]) -> T:
    assert len(things) == 1, things
    return things[0]


def places(stats: SubscriptionStats) -> dict[str, int]:
    """Where the copies are, without the places that have none."""
    names = ("acked", "ready", "delayed", "in_flight", "dead", "dropped")
    return {name: getattr(stats, name) for name in names if getattr(stats, name)}


# -- laws that hold all the time ------------------------------------------------------------------


def check_conserved(stats: SubscriptionStats) -> None:
    assert stats.accepted == stats.acked + stats.ready + stats.delayed + stats.in_flight + stats.dead + stats.dropped, (
        stats
    )
    assert stats.backlog == stats.ready + stats.delayed, stats
    assert min(getattr(stats, name) for name in stats.__slots__) >= 0, stats


def check_all_conserved(broker: BrokerAPI) -> None:
    for stats in broker.subscriptions().values():
        check_conserved(stats)


# -- calls that wait ------------------------------------------------------------------------------


class Call(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._function())
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> T:
        """What the call returned or raised; it must have ended within the limit."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the call did not end"
        if self._error is not None:
            raise self._error
        return self._answer[0]


def together(functions: Iterable[Callable[[], T]]) -> list[T]:
    """Run them at once; their results, in order. Raises what the first that failed raised."""
    calls = [Call(function) for function in functions]
    return [call.result() for call in calls]


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no call that waits for it."""
    pause = threading.Event()
    for _ in range(int(LIMIT_S / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not become true")
