"""Every limit is kept, has an error that names what raises it, and leaves the broker as it was."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mpbroker import (
    BrokerFull,
    BrokerManager,
    BrokerProxy,
    HeadersTooLarge,
    InvalidName,
    LimitReached,
    PayloadTooLarge,
    QueueFull,
)
from mpbroker.api import BrokerAPI
from mpbroker.cli.app import app
from mpbroker.cli.serve import serve
from mpbroker.engine import HELD_BYTES
from mpbroker.process.limits import LimitOptions, Limits
from tests.cli.support import mpbroker
from tests.conformance.support import Call, until
from tests.process.puppets import Puppet, waits

SMALL: LimitOptions = {
    "max_topics": 3,
    "max_subscriptions": 4,
    "max_name_length": 12,
    "max_headers": 3,
    "max_header_bytes": 100,
    "max_payload_bytes": 10_000,
    "max_queue_bytes": 100_000,
    "max_dead_letters": 2,
    "max_waiting_calls": 1,
}


@pytest.fixture(scope="module")
def manager() -> Iterator[BrokerManager]:
    with BrokerManager("small", **SMALL) as manager:
        yield manager


@pytest.fixture
def broker(manager: BrokerManager) -> Iterator[BrokerProxy]:
    broker = manager.broker()
    broker.create_topic("orders")
    yield broker
    for topic in broker.topics():
        broker.delete_topic(topic)
    assert used(broker, "queue_bytes") == 0
    broker.close()


def used(broker: BrokerProxy, name: str) -> int:
    return broker._status().limits[name][0]


def test_every_limit_is_an_option_of_serve_and_of_the_manager_with_the_same_default() -> None:
    options = {
        name: each.default for name, each in signature(serve).parameters.items() if name in LimitOptions.__annotations__
    }
    defaults = {each.name: each.default for each in fields(Limits)}
    assert options == {name: defaults[name] for name in LimitOptions.__annotations__}
    described = BrokerManager.__doc__ or ""
    assert [name for name in LimitOptions.__annotations__ if name not in described] == []


def test_an_option_that_there_is_not_is_named() -> None:
    with pytest.raises(TypeError, match="max_topic'"):
        BrokerManager(max_topic=3)  # type: ignore[call-arg]


def test_topics(broker: BrokerProxy) -> None:
    for name in ("a", "b"):
        broker.create_topic(name)
    with pytest.raises(LimitReached, match="3 topics; max_topics raises it"):
        broker.create_topic("c")
    broker.create_topic("a", exist_ok=True)
    broker.delete_topic("a")
    broker.create_topic("c")


def test_subscriptions(broker: BrokerProxy) -> None:
    for name in "abcd":
        broker.subscribe("orders", name)
    with pytest.raises(LimitReached, match="4 subscriptions; max_subscriptions raises it"):
        broker.subscribe("orders", "e")
    broker.subscribe("orders", "a")
    broker.unsubscribe("orders", "a")
    broker.subscribe("orders", "e")


def test_the_length_of_names(broker: BrokerProxy) -> None:
    long = "n" * 13
    with pytest.raises(InvalidName, match="max_name_length is 12"):
        broker.create_topic(long)
    with pytest.raises(InvalidName, match="max_name_length is 12"):
        broker.subscribe("orders", long)
    billing = broker.subscribe("orders", long[:12])
    with pytest.raises(InvalidName, match="max_name_length is 12"):
        billing.poll(long)
    assert billing.poll(long[:12]) == []
    assert list(broker.topics()) == ["orders"]


def test_headers(broker: BrokerProxy) -> None:
    billing = broker.subscribe("orders", "billing")
    broker.publish("orders", 1, {"a": "1", "b": "2", "c": "3"})
    with pytest.raises(HeadersTooLarge, match=r"4 headers.* 3; .*max_headers"):
        broker.publish("orders", 1, {"a": "1", "b": "2", "c": "3", "d": "4"})
    broker.publish("orders", 1, {"a": "ä" * 49 + "x"})
    with pytest.raises(HeadersTooLarge, match=r"101 bytes of headers.* 100; .*max_header_bytes"):
        broker.publish("orders", 1, {"a": "ä" * 50})
    assert billing.stats().accepted == 2


def test_payloads(broker: BrokerProxy) -> None:
    """Each is bounded by itself, also among many."""
    billing = broker.subscribe("orders", "billing")
    broker.publish("orders", bytes(9_000))
    broker.publish_many("orders", [bytes(4_000)] * 5)
    for payloads in ([bytes(10_001)], [b"", bytes(10_001), b""], [{"a": bytes(10_001)}]):
        with pytest.raises(
            PayloadTooLarge, match=r"a payload takes 10,.* accepts 10,000 in one message.*max_payload_bytes"
        ):
            broker.publish_many("orders", payloads)
    assert billing.stats().accepted == 6


def test_a_full_broker_refuses_a_publish_and_nothing_else(broker: BrokerProxy) -> None:
    billing = broker.subscribe("orders", "billing", max_deliveries=2)
    accepted = 0
    room = Limits(**SMALL).max_queue_bytes
    while used(broker, "queue_bytes") + 10_000 < room:
        broker.publish("orders", bytes(9_000))
        accepted += 1
    with pytest.raises(BrokerFull) as caught:
        broker.publish_many("orders", [bytes(9_000)] * 2)
    assert isinstance(caught.value, (QueueFull, queue.Full))
    held, more, limit = caught.value.args
    assert held == used(broker, "queue_bytes")
    assert held + more > limit == 100_000
    assert "max_queue_bytes" in str(caught.value)
    assert "nothing was published" in str(caught.value)
    # What workers hold and give back, in whatever way, always fits.
    held_by_w = billing.poll("w", max_messages=accepted)
    assert len(held_by_w) == accepted
    assert all(delivery.nack() for delivery in held_by_w[:3])
    assert all(delivery.release() for delivery in held_by_w[3:])
    with Puppet(billing) as worker:
        assert worker.do(_poll_all) == accepted
        worker.kill()
    until(lambda: billing.stats().in_flight == 0)
    stats = billing.stats()
    assert (stats.ready, stats.dead, stats.dropped) == (accepted - 3, 2, 1)
    with pytest.raises(BrokerFull):
        broker.publish_many("orders", [bytes(9_000)] * 3)
    # There is room again for as much as has gone.
    delivery = billing.poll("w")[0]
    with pytest.raises(BrokerFull):
        broker.publish_many("orders", [bytes(9_000)] * 4)
    assert delivery.ack()
    assert broker.purge_dead_letters("orders/billing") == 2
    broker.publish_many("orders", [bytes(9_000)] * 3)


def _poll_all(billing: Any) -> int:
    return len(billing.poll("victim", max_messages=1000)) + sum(len(billing.poll("victim")) for _ in range(20))


def test_bytes_count_once_however_many_share_them_and_go_with_the_last(broker: BrokerProxy) -> None:
    broker.publish("orders", bytes(5_000))
    assert used(broker, "queue_bytes") == 0  # nobody took it
    subscriptions = [broker.subscribe("orders", name) for name in "abc"]
    broker.publish_many("orders", [bytes(2_000)] * 10, {"a": "b"})
    bytes_held = used(broker, "queue_bytes")
    assert 20_000 < bytes_held < 22_000
    for subscription in subscriptions:
        assert bytes_held - 1000 < used(broker, "queue_bytes") <= bytes_held
        deliveries = subscription.poll("w", max_messages=10)
        # What is in flight counts with what its leases take.
        assert bytes_held < used(broker, "queue_bytes") <= bytes_held + 10 * HELD_BYTES
        subscription.ack_many([delivery.message_id for delivery in deliveries], "w")
    assert used(broker, "queue_bytes") == 0


def test_what_a_deleted_subscription_held_is_free(broker: BrokerProxy) -> None:
    broker.subscribe("orders", "a")
    broker.publish_many("orders", [bytes(2_000)] * 10)
    assert used(broker, "queue_bytes") > 20_000
    broker.unsubscribe("orders", "a")
    assert used(broker, "queue_bytes") == 0


def test_dead_letters(broker: BrokerProxy) -> None:
    billing = broker.subscribe("orders", "billing")
    broker.publish_many("orders", range(5))
    for delivery in billing.poll("w", max_messages=5):
        delivery.reject()
    stats = billing.stats()
    assert (stats.dead, stats.dropped, stats.dead_lettered) == (2, 3, 5)
    assert [letter.message.payload for letter in broker.dead_letters()] == [3, 4]


def test_calls_that_wait(broker: BrokerProxy) -> None:
    billing = broker.subscribe("orders", "billing")
    waiting = Call(lambda: billing.poll("w", timeout=None))
    waits(broker)
    with pytest.raises(LimitReached, match="1 calls that wait; max_waiting_calls raises it"):
        billing.poll("another", timeout=1.0)
    with pytest.raises(LimitReached, match="max_waiting_calls"):
        broker.subscribe("orders", "other").poll("another", timeout=None)
    assert billing.poll("another") == []
    broker.publish("orders", "at last")
    assert [delivery.payload for delivery in waiting.result()] == ["at last"]


def test_without_a_limit_of_their_own_calls_wait_on_every_connection() -> None:
    assert Limits(max_connections=7).waiting_calls == 7
    assert Limits(max_waiting_calls=3).waiting_calls == 3


def test_status_shows_the_use_of_every_limit(broker: BrokerProxy) -> None:
    broker.subscribe("orders", "billing")
    broker.publish("orders", bytes(9_000))
    text = mpbroker("status", "--name", "small", "--directory", str(_base(broker))).stdout
    for words in ("topics 1 of 3", "subscriptions 1 of 4", "queue bytes 9,", "of 100,000", "dead letters 0 of 2"):
        assert words in text
    for words in ("max_name_length 12", "max_headers 3", "max_header_bytes 100", "max_payload_bytes 10,000"):
        assert words in text
    report = json.loads(mpbroker("status", "--json", "--name", "small", "--directory", str(_base(broker))).stdout)
    assert report["limits"]["topics"] == {"used": 1, "limit": 3}
    assert report["limits"]["waiting_calls"] == {"used": 0, "limit": 1}
    # 1024, or fewer where this system gives the broker few descriptors.
    assert report["limits"]["connections"]["limit"] == broker._status().limits["connections"][1] <= 1024
    assert report["bounds"]["frame_timeout"] == 30.0
    assert report["bounds"]["max_payload_bytes"] == 10_000
    assert report["warnings"] == []


def test_status_warns_of_what_is_nearly_full(broker: BrokerProxy) -> None:
    broker.subscribe("orders", "a", max_queue=10)
    broker.publish_many("orders", range(8))
    broker.create_topic("b")
    broker.create_topic("c")
    run = mpbroker("status", "--name", "small", "--directory", str(_base(broker)))
    warnings = [line for line in run.stdout.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: topics are 3 of 3",
        "warning: orders/a holds 8 of its max_queue of 10 messages",
    ]


def _base(broker: BrokerAPI) -> Path:
    assert isinstance(broker, BrokerProxy)
    return Path(broker._address.folder).parent


@pytest.mark.parametrize("option", LimitOptions.__annotations__)
def test_serve_takes_the_limit(option: str) -> None:
    # Of some none is allowed.
    refused = {"ring_bytes": "1", "arena_threshold": "1", "arena_timeout": "nan"}.get(option, "0")
    run = CliRunner().invoke(app, ["serve", "--" + option.replace("_", "-"), refused, "--name", "orders"])
    assert run.exit_code == 2
    assert option in run.output


@pytest.mark.parametrize("descriptors", [40, 100, 200, 1024, 2000, 4096, 100_000])
@pytest.mark.parametrize("rings", [1, 512, 10_000])
def test_rings_and_connections_fit_in_the_descriptors_there_are(descriptors: int, rings: int) -> None:
    fitting = Limits(max_rings=rings).within(descriptors)
    assert fitting.descriptors <= descriptors
    assert 1 <= fitting.max_rings <= rings
    assert fitting.max_connections >= 2
