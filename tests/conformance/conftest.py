"""Every test here runs over every plane, and conservation is looked at after each call it makes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mpbroker import BrokerGone, Delivery, UnknownSubscription, UnknownTopic
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import PLANES, Plane, Source, check_all_conserved, check_conserved, count_from

_SUBSCRIPTION_VERBS = (
    "poll",
    "ack",
    "ack_many",
    "nack",
    "release",
    "reject",
    "extend",
    "expire",
    "offer",
)
_BROKER_VERBS = (
    "create_topic",
    "delete_topic",
    "subscribe",
    "unsubscribe",
    "publish",
    "publish_many",
    "redrive",
    "purge_dead_letters",
    "expire",
)
_DELIVERY_VERBS = ("ack", "nack", "release", "reject", "extend", "retry")


@pytest.fixture(scope="session", params=PLANES)
def plane(request: pytest.FixtureRequest) -> Plane:
    return PLANES[request.param]


@pytest.fixture(scope="session")
def exact_source(plane: Plane) -> Iterator[Source]:
    with plane.exact_source() as source:
        yield source


@pytest.fixture(scope="session")
def live_source(plane: Plane) -> Iterator[Source]:
    with plane.live_source() as source:
        yield source


@pytest.fixture
def broker(exact_source: Source) -> Iterator[BrokerAPI]:
    """A broker without topics; time is what the test passes as ``now``, from 0."""
    with exact_source() as broker:
        count_from(broker)
        yield broker


@pytest.fixture
def live(live_source: Source) -> Iterator[BrokerAPI]:
    """A broker without topics in real time, for tests that wait."""
    with live_source() as broker:
        count_from(broker)
        yield broker


@pytest.fixture
def fresh(plane: Plane) -> Iterator[BrokerAPI]:
    """As ``broker``, and new: its first message is m1."""
    with plane.exact() as broker:
        yield broker


@pytest.fixture(autouse=True)
def conserving(monkeypatch: pytest.MonkeyPatch) -> None:
    """accepted = acked + ready + delayed + in flight + dead + dropped, after every public call."""
    for owner, verbs, look in (
        (SubscriptionAPI, _SUBSCRIPTION_VERBS, _look_at_subscription),
        (BrokerAPI, _BROKER_VERBS, check_all_conserved),
        (Delivery, _DELIVERY_VERBS, _look_at_holder),
    ):
        for verb in verbs:
            monkeypatch.setattr(owner, verb, _then(getattr(owner, verb), look))


def _then(verb: Callable[..., Any], look: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def looked_at(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return verb(self, *arguments, **named)
        finally:
            try:
                look(self)
            except (UnknownSubscription, UnknownTopic, BrokerGone):
                pass  # there is nothing to look at any more

    return looked_at


def _look_at_subscription(subscription: SubscriptionAPI) -> None:
    check_conserved(subscription.stats())


def _look_at_holder(delivery: Delivery) -> None:
    if isinstance(delivery._holder, SubscriptionAPI):
        check_conserved(delivery._holder.stats())
