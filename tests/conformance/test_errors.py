"""Errors as a program meets them: caught by class, named, and carried between processes."""

from __future__ import annotations

import pickle
import queue
from collections.abc import Callable
from typing import Any

import pytest

import mpbroker
from mpbroker import MpbrokerError, Overflow
from mpbroker.api import BrokerAPI
from tests.conformance.support import fill


def _conflict(broker: BrokerAPI) -> None:
    broker.subscribe("orders", "full", max_queue=2)


RAISED: dict[str, tuple[Callable[[BrokerAPI], object], type[Exception], tuple[Any, ...]]] = {
    "UnknownTopic": (lambda b: b.publish("nowhere", 1), LookupError, ("nowhere",)),
    "TopicExists": (lambda b: b.create_topic("orders"), MpbrokerError, ("orders",)),
    "UnknownSubscription": (
        lambda b: b.subscription("orders", "none"),
        LookupError,
        ("orders/none",),
    ),
    "SubscriptionConflict": (_conflict, MpbrokerError, ("orders/full", ["max_queue"])),
    "QueueFull": (lambda b: b.publish("orders", 1), queue.Full, ("orders/full", 1)),
}


@pytest.mark.parametrize("name", RAISED)
def test_errors_are_of_both_families_name_the_thing_and_survive_pickling(broker: BrokerAPI, name: str) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "full", max_queue=1, overflow=Overflow.REJECT)
    fill(broker, "orders", 1)
    call, family, arguments = RAISED[name]
    with pytest.raises(MpbrokerError) as caught:
        call(broker)
    error = caught.value
    assert type(error) is getattr(mpbroker, name)
    assert isinstance(error, family)
    assert error.args == arguments
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert str(copy) == str(error)
    assert arguments[0] in str(error)


@pytest.mark.parametrize("name", RAISED)
def test_an_error_changes_nothing(broker: BrokerAPI, name: str) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "full", max_queue=1, overflow=Overflow.REJECT)
    fill(broker, "orders", 1)
    before = broker.topics(), broker.subscriptions()
    with pytest.raises(MpbrokerError):
        RAISED[name][0](broker)
    assert (broker.topics(), broker.subscriptions()) == before
