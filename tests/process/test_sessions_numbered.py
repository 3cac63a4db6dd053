"""Numbered publishes: whatever becomes of a connection, each is applied once, and answered as often as it is asked."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.process import frames
from mpbroker.process.clients import MAX_LOST
from mpbroker.process.frames import REMEMBERED, Failed, Published
from tests.process.driver import Broker, Connection, publish, sequences


@pytest.fixture
def broker() -> Broker:
    return Broker()


def numbered(number: int, *payloads: object, topic: str = "t") -> frames.Publish:
    return msgspec.structs.replace(publish(topic, *(payloads or (number,))), number=number)


def published(call: Connection, number: int, *payloads: object) -> int:
    return call.ask(numbered(number, *payloads), Published).first


def closed(connection: Connection, order: str) -> None:
    if order == "close first":
        connection.close()


def test_one_that_comes_again_is_answered_again_and_not_applied_again(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    first = call.ask(numbered(1, "a", "b"), Published)
    broker.now += 1.0
    assert call.ask(numbered(1, "a", "b"), Published) == first
    assert call.stats(number)["accepted"] == 2
    assert published(call, 2) == first.first + 2


@pytest.mark.parametrize("order", ["close first", "hello first"])
def test_what_was_applied_is_known_on_the_connection_that_takes_the_place(broker: Broker, order: str) -> None:
    process = broker.process()
    call = process.call()
    number = call.subscribe("t", "s")
    answers = [published(call, each) for each in (1, 2, 3)]
    closed(call, order)
    again = process.call(replaces=call.number)
    assert [published(again, each) for each in (2, 3, 4)] == [answers[1], answers[2], answers[2] + 1]
    assert again.stats(number)["accepted"] == 4


@pytest.mark.parametrize("order", ["close first", "hello first"])
def test_it_is_known_however_many_connections_took_the_place(broker: Broker, order: str) -> None:
    process = broker.process()
    first = process.call()
    number = first.subscribe("t", "s")
    published(first, 1)
    closed(first, order)
    second = process.call(replaces=first.number)
    closed(second, order)
    # Its client was interrupted before it knew of the second one.
    third = process.call(replaces=first.number)
    published(third, 1)
    published(third, 2)
    closed(third, order)
    fourth = process.call(replaces=third.number)
    published(fourth, 2)
    assert fourth.stats(number)["accepted"] == 2


def test_a_refusal_is_the_answer_for_good(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    refused = call.failed(numbered(1, topic="later"))
    assert refused.kind == "UnknownTopic"
    number = call.subscribe("later", "s")
    again = process.call(replaces=call.number)
    assert again.failed(numbered(1, topic="later")) == refused
    assert again.stats(number)["accepted"] == 0


@pytest.mark.parametrize("number", [0, 2, 3, 2**63, -1])
def test_a_number_out_of_its_turn_breaks_the_protocol(broker: Broker, number: int) -> None:
    call = broker.call()
    call.subscribe("t", "s")
    published(call, 1)
    if number == 0:
        assert published(call, 0) == 2
        return
    if number == 2:
        assert published(call, 2) == 2
        return
    call.send(numbered(number))
    assert call.is_closed
    assert isinstance(call.inbox[0], Failed)


def test_answers_are_remembered_for_all_that_a_client_may_have_out_and_no_more(broker: Broker) -> None:
    call = broker.call()
    call.subscribe("t", "s")
    for number in range(1, REMEMBERED + 2):
        published(call, number)
    assert published(call, 2) == 2
    call.send(numbered(1))
    assert call.is_closed


def test_a_publisher_whose_past_is_forgotten_is_refused_rather_than_applied_twice(broker: Broker) -> None:
    process = broker.process()
    first = process.call()
    number = first.subscribe("t", "s")
    published(first, 1)
    first.close()
    for _ in range(MAX_LOST):
        other = process.call()
        published(other, 1)
        other.close()
    again = process.call(replaces=first.number)
    again.send(numbered(1))
    assert again.is_closed
    (failed,) = again.inbox
    assert isinstance(failed, Failed)
    assert failed.kind == "AccessRefused"
    assert process.call().stats(number)["accepted"] == 1 + MAX_LOST


def test_connections_that_publish_nothing_numbered_are_not_remembered(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    call.subscribe("t", "s")
    call.publish("t", 1)
    call.close()
    (session,) = broker.sessions._desk.sessions.values()
    assert not session.numbered
    again = process.call(replaces=call.number)
    assert published(again, 1) == 2


def test_each_connection_counts_for_itself(broker: Broker) -> None:
    process = broker.process()
    one, other = process.call(), process.call()
    number = one.subscribe("t", "s")
    assert [published(one, 1), published(other, 1), published(one, 2), published(other, 2)] == [1, 2, 3, 4]
    assert sequences(one.poll(number, count=9)) == [1, 2, 3, 4]
