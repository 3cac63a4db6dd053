"""Subscriptions that end with whoever made them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker import BrokerProxy, SubscriptionConflict, UnknownSubscription
from mpbroker.api import BrokerAPI
from tests.conformance.support import LIMIT_S, PROCESS_PLANES, fill, ids, m, only, places, until

ROOT = Path(__file__).parents[2]


def test_it_works_like_any_other(broker: BrokerAPI) -> None:
    broker.create_topic("orders")
    replies = broker.subscribe("orders", "replies", ephemeral=True)
    fill(broker, "orders", 2)
    assert ids(replies.poll("w", max_messages=2)) == [m(1), m(2)]
    assert replies.ack(m(1), "w")
    assert places(replies.stats())["in_flight"] == 1
    assert broker.subscribe("orders", "replies", ephemeral=True).pending == 0
    with pytest.raises(SubscriptionConflict, match="ephemeral"):
        broker.subscribe("orders", "replies", ephemeral=False)
    lasting = broker.subscribe("orders", "lasting")
    with pytest.raises(SubscriptionConflict, match="ephemeral"):
        broker.subscribe("orders", "lasting", ephemeral=True)
    assert lasting.pending == 0


def test_it_ends_when_its_maker_closes(fresh: BrokerAPI) -> None:
    fresh.create_topic("orders")
    replies = fresh.subscribe("orders", "replies", ephemeral=True)
    lasting = fresh.subscribe("orders", "lasting")
    fill(fresh, "orders", 1)
    fresh.close()
    with pytest.raises(UnknownSubscription):
        replies.poll("w")
    assert lasting.pending == 1
    assert list(fresh.subscriptions()) == ["orders/lasting"]


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_it_is_or_it_is_not(broker: BrokerAPI, value: object) -> None:
    broker.create_topic("orders")
    with pytest.raises(TypeError, match="ephemeral must be a bool"):
        broker.subscribe("orders", "replies", ephemeral=value)  # type: ignore[arg-type]


MAKER = """
import pickle, sys
broker = pickle.load(sys.stdin.buffer)
broker.subscribe("orders", "replies", ephemeral=True)
print("made", flush=True)
sys.stdin.buffer.read()
"""


@only(*PROCESS_PLANES)
@pytest.mark.parametrize("end", [subprocess.Popen.kill, lambda process: process.stdin.close()], ids=["killed", "exit"])
def test_it_ends_with_its_process_however_that_ends(
    live: BrokerAPI, end: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    import pickle

    assert isinstance(live, BrokerProxy)
    live.create_topic("orders")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", MAKER], stdin=pipe, stdout=pipe, cwd=ROOT) as maker:
        assert maker.stdin is not None
        assert maker.stdout is not None
        maker.stdin.write(pickle.dumps(live))
        maker.stdin.flush()
        assert maker.stdout.readline() == b"made\n"
        assert "orders/replies" in live.subscriptions()
        with pytest.raises(SubscriptionConflict, match="ephemeral"):
            live.subscribe("orders", "replies", ephemeral=True)
        end(maker)
        maker.wait(LIMIT_S)
    until(lambda: "orders/replies" not in live.subscriptions())
