"""Messages and dead letters looked at from the shell."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from mpbroker import BrokerManager, BrokerProxy
from tests.cli.support import mpbroker, running
from tests.conformance.support import until


@pytest.fixture
def broker() -> Iterator[BrokerProxy]:
    with BrokerManager("default") as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        yield broker


def test_tail_shows_messages_as_they_come_and_takes_none_from_anybody(broker: BrokerProxy) -> None:
    billing = broker.subscribe("orders", "billing")
    with running("tail", "orders") as command:
        command.wait_for("tail of orders")
        broker.publish("orders", {"id": 1}, {"type": "created"})
        command.wait_for("m1 [normal] type=created {'id': 1}\n")
        command.interrupt()
        assert command.end() == 130
    assert billing.pending == 1
    until(lambda: list(broker.subscriptions()) == ["orders/billing"])


def test_tail_ends_after_so_many_that_its_filter_accepts(broker: BrokerProxy) -> None:
    with running("tail", "orders", "--filter", 'headers.type = "a"', "--count", "2", "--json") as command:
        until(lambda: broker.topics()["orders"].subscriptions == 1)
        for kind in "abab":
            broker.publish("orders", kind.encode(), {"type": kind})
        assert command.end() == 0
        lines = [json.loads(line) for line in command.written.splitlines()]
        assert [line["message_id"] for line in lines] == ["m1", "m3"]
        assert lines[0]["payload"] == "b'a'"


def test_tail_leaves_nothing_behind_when_it_is_killed(broker: BrokerProxy) -> None:
    with running("tail", "orders") as command:
        command.wait_for("tail of orders")
        command.process.kill()
        command.end()
    until(lambda: broker.topics()["orders"].subscriptions == 0)


def test_tail_of_an_unknown_topic_is_refused(broker: BrokerProxy) -> None:
    done = mpbroker("tail", "nothing")
    assert (done.returncode, done.stdout) == (5, "")
    assert "nothing" in done.stderr


def test_dead_letters_are_listed_shown_put_back_and_thrown_away(broker: BrokerProxy) -> None:
    billing = broker.subscribe("orders", "billing", max_deliveries=1)
    assert mpbroker("dead-letters", "list").stdout == "no dead letters\n"
    for number in range(3):
        broker.publish("orders", {"id": number}, {"type": "created"})
        billing.poll("w")[0].nack(error=f"no customer {number}\nand a traceback")

    listed = [line.split() for line in mpbroker("dead-letters", "list").stdout.splitlines()]
    assert listed[0] == ["message", "subscription", "reason", "attempts", "error"]
    assert listed[1] == ["m1", "orders/billing", "retries_exhausted", "1", "no", "customer", "0"]
    assert len(listed) == 4
    as_json = json.loads(mpbroker("dead-letters", "list", "orders/billing", "--limit", "1", "--json").stdout)
    assert [(letter["message_id"], letter["payload"]) for letter in as_json] == [("m1", {"id": 0})]

    shown = mpbroker("dead-letters", "show", "orders/billing", "m2").stdout.splitlines()
    assert shown[:4] == [
        "m2 of orders/billing: retries_exhausted",
        "attempts: 1",
        "payload: {'id': 1}",
        "header: type=created",
    ]
    assert shown[4].startswith("attempt 1 by w, ")
    assert shown[5:] == ["  no customer 1", "  and a traceback"]
    assert mpbroker("dead-letters", "show", "orders/billing", "m9").returncode == 2

    assert mpbroker("dead-letters", "redrive", "orders/billing", "m2").stdout == "1 message put back\n"
    assert billing.poll("w")[0].message_id == "m2"
    assert mpbroker("dead-letters", "purge", "orders/billing").returncode == 2
    assert mpbroker("dead-letters", "purge", "orders/billing", "m1").stdout == "1 message thrown away\n"
    assert mpbroker("dead-letters", "purge", "orders/billing", "--all").stdout == "1 message thrown away\n"
    assert mpbroker("dead-letters", "list", "orders/other").returncode == 5
