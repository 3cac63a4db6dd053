"""A broker to be hostile to: one for all tests of a module, since it is to survive each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker import BrokerManager, BrokerProxy
from mpbroker.process.naming import Located, locate_at
from tests.hostile.support import LONG, assert_serves


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is done more often takes longer."""
    for item in items:
        if LONG and item.path.parent.name == "hostile":
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="module")
def manager() -> Iterator[BrokerManager]:
    with BrokerManager("hostile") as manager:
        yield manager


@pytest.fixture
def broker(manager: BrokerManager) -> Iterator[BrokerProxy]:
    """It has the topic "orders", and serves before and after the test."""
    broker = manager.broker()
    broker.create_topic("orders")
    yield broker
    for topic in broker.topics():
        if topic != "orders":
            broker.delete_topic(topic)
    assert_serves(broker)
    broker.delete_topic("orders")
    broker.close()


@pytest.fixture
def located(broker: BrokerProxy) -> Located:
    return locate_at(Path(broker._address.folder))
