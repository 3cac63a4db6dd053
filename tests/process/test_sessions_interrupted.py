"""A call that is interrupted in the client hands nothing over, in whatever order its traces come."""

from __future__ import annotations

import pytest

from mpbroker.process import frames
from mpbroker.process.clients import MAX_LOST
from mpbroker.process.frames import Answers, Done
from tests.process.driver import Broker, Connection, sequences, tokens


@pytest.fixture
def broker() -> Broker:
    return Broker()


def untouched(call: Connection, number: int, count: int = 1) -> None:
    """As if the copies had never been handed over."""
    stats = call.stats(number)
    assert (stats["ready"], stats["in_flight"]) == (count, 0)
    assert (stats["deliveries"], stats["redelivered"]) == (0, 0)


# -- the poll still waits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["close first", "hello first", "no close"])
def test_a_waiting_poll_that_is_interrupted_gets_nothing(broker: Broker, order: str) -> None:
    process, other = broker.process(), broker.call()
    number = other.subscribe("t", "s")
    call = process.call()
    call.wait(number, timeout=60.0)
    if order == "close first":
        call.close()
    process.call(replaces=call.number, answered=call.answered)
    if order == "hello first":
        assert call.is_closed
        call.close()
    other.publish("t", 1)
    untouched(other, number)
    assert not call.inbox
    assert broker.sessions.next_due() is None


# -- the answer is on its way -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [-1, 2])
@pytest.mark.parametrize("order", ["close first", "hello first", "no close"])
@pytest.mark.parametrize("was_parked", [False, True])
def test_an_answer_that_was_never_taken_is_undone(broker: Broker, order: str, answered: int, was_parked: bool) -> None:
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s", max_deliveries=1)  # two calls that were answered
    if was_parked:
        call.wait(number, count=5)
    other.publish("t", 1, 2, 3)
    if not was_parked:
        call.send(frames.Poll(number, "w", None, 5, 0.0))
    assert call.inbox
    if order == "close first":
        call.close()
        assert other.stats(number)["in_flight"] == 3
    process.call(replaces=call.number, answered=answered)
    if order == "hello first":
        call.close()
    untouched(other, number, 3)
    (grant,) = other.poll(number, count=5)
    assert (sequences([grant]), grant.attempt, grant.redelivered) == ([1, 2, 3], 1, False)


def test_what_is_undone_goes_to_whoever_waits(broker: Broker) -> None:
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s")
    other.publish("t", 1)
    call.send(frames.Poll(number, "w", None, 1, 0.0))
    other.wait(number)
    process.call(replaces=call.number, answered=2)
    assert sequences(other.granted()) == [1]


def test_the_next_call_gets_its_own_answer(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    number = call.subscribe("t", "s")
    call.publish("t", "a", "b")
    call.send(frames.Poll(number, "w", None, 1, 0.0))
    again = process.call(replaces=call.number, answered=3)
    again.publish("t", "c")
    assert sequences(again.poll(number, count=5)) == [1, 2, 3]


def test_redelivered_copies_stay_redelivered_when_undone(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    call.ask(frames.Nack(number, token, None, None, "no", None), Answers)
    call.send(frames.Poll(number, "w", None, 1, 0.0))
    again = process.call(replaces=call.number, answered=call.answered)
    (grant,) = again.poll(number)
    assert (grant.attempt, grant.redelivered) == (2, True)
    assert again.stats(number)["redelivered"] == 1


# -- the answer before it was taken -----------------------------------------------------------------------------------


@pytest.mark.parametrize("closes_first", [False, True])
def test_what_a_caller_has_is_not_undone_by_a_later_interruption(broker: Broker, closes_first: bool) -> None:
    """The interrupted call was never read: its connection's last answer is one that the caller has."""
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    if closes_first:
        call.close()
    again = process.call(replaces=call.number, answered=call.answered)
    assert other.poll(number) == []
    assert again.ack(number, token) == [True]


@pytest.mark.parametrize("answered", [-1, 5])
def test_a_later_call_on_the_connection_confirms_the_answer(broker: Broker, answered: int) -> None:
    process = broker.process()
    call = process.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    call.ask(frames.Topics(), frames.TopicsReply)
    call.send(frames.Topics())
    again = process.call(replaces=call.number, answered=answered)
    assert again.ack(number, token) == [True]


def test_an_ack_that_is_interrupted_stands(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    call.send(frames.AckTokens(number, [token]))
    again = process.call(replaces=call.number, answered=3)
    assert again.stats(number)["acked"] == 1


def test_only_what_is_still_held_is_undone(broker: Broker) -> None:
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s", ack_timeout=5.0)
    other.publish("t", 1, 2)
    call.send(frames.Poll(number, "w", None, 2, 0.0))
    call.close()
    assert other.ask(frames.Ack(number, "w", [1]), Answers).values == [True]
    process.call(replaces=call.number, answered=2)
    stats = other.stats(number)
    assert (stats["acked"], stats["ready"], stats["in_flight"]) == (1, 1, 0)


def test_what_was_taken_back_meanwhile_is_not_undone_again(broker: Broker) -> None:
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s", ack_timeout=5.0)
    other.publish("t", 1)
    call.send(frames.Poll(number, "w", None, 1, 0.0))
    call.close()
    broker.later(5.0)
    (token,) = tokens(other.poll(number))
    process.call(replaces=call.number, answered=2)
    assert other.ack(number, token) == [True]


def test_a_deleted_subscription_has_nothing_to_undo(broker: Broker) -> None:
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s")
    other.publish("t", 1)
    call.send(frames.Poll(number, "w", None, 1, 0.0))
    other.ask(frames.Unsubscribe("t", "s"), frames.Done)
    assert process.call(replaces=call.number, answered=2).waits


# -- what else hands over ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closes_first", [False, True])
def test_a_dispatchers_place_that_was_never_learnt_of_is_free_again(broker: Broker, closes_first: bool) -> None:
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s")
    call.send(frames.Attach(number))
    if closes_first:
        call.close()
    assert other.failed(frames.Attach(number)).kind == "SubscriptionBusy"
    process.call(replaces=call.number, answered=2)
    other.publish("t", 1)
    assert sequences(other.poll(number)) == [1]


def test_a_retry_that_was_never_learnt_of_gives_the_copy_back(broker: Broker) -> None:
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s", max_deliveries=2)
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    call.send(frames.RetryHeld(number, token, "first"))
    process.call(replaces=call.number, answered=call.answered)
    (grant,) = other.poll(number)
    assert (grant.attempt, grant.redelivered) == (2, True)


# -- whose connection it is -------------------------------------------------------------------------------------------


def test_nobody_replaces_the_connection_of_another_process(broker: Broker) -> None:
    victim, other = broker.process(), broker.process()
    call = victim.call()
    number = call.subscribe("t", "s")
    call.wait(number)
    twin = other.call()
    assert twin.number == call.number
    other.call(replaces=call.number)
    assert twin.is_closed
    assert call.waits


def test_a_presence_is_not_replaced(broker: Broker) -> None:
    process = broker.process()
    connection = broker.open(process.session, "call", 9)
    failed = broker.greet(connection, replaces=process.presence.number)
    assert failed is not None
    assert failed.kind == "ProtocolViolation"
    assert process.presence.waits
    connection = broker.open(b"n" * 16, "presence", 9)
    failed = broker.greet(connection, replaces=1)
    assert failed is not None
    assert failed.kind == "ProtocolViolation"


def test_replacing_a_connection_that_never_was_is_no_fault(broker: Broker) -> None:
    process = broker.process()
    process.call(replaces=1000, answered=7).ask(frames.Topics(), frames.TopicsReply)


def test_a_connection_is_undone_once(broker: Broker) -> None:
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s")
    other.publish("t", 1)
    call.send(frames.Poll(number, "w", None, 1, 0.0))
    process.call(replaces=call.number, answered=2)
    assert other.poll(number)
    process.call(replaces=call.number, answered=2)
    assert other.stats(number)["in_flight"] == 1


def test_a_connection_that_was_refused_replaces_nothing_without_the_key(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    number = call.subscribe("t", "s")
    call.wait(number)
    thief = broker.open(process.session, "call", 99)
    failed = broker.greet(thief, replaces=call.number, key=b"guessed")
    assert failed is not None
    assert call.waits


def test_traces_of_closed_connections_are_bounded(broker: Broker) -> None:
    process = broker.process()
    number = process.call().subscribe("t", "s")
    for _ in range(MAX_LOST + 20):
        call = process.call()
        call.publish("t", 1)
        call.poll(number)
        call.close()
    assert len(broker.sessions._desk.sessions[process.session].lost) == MAX_LOST


def test_the_death_of_a_process_counts_what_was_on_its_way(broker: Broker) -> None:
    """It may have been read, and be what killed it."""
    process, other = broker.process(), broker.call()
    call = process.call()
    number = call.subscribe("t", "s")
    other.publish("t", 1)
    call.send(frames.Poll(number, "w", None, 1, 0.0))
    call.close()
    process.die()
    (grant,) = other.poll(number)
    assert grant.attempt == 2


def test_a_dispatchers_place_that_was_given_up_long_ago_takes_no_later_one_along(broker: Broker) -> None:
    process = broker.process()
    first, second = process.call(), process.call()
    number = first.subscribe("t", "s")
    early = first.ask(frames.Attach(number), frames.Text).value
    second.ask(frames.Detach(number, early), Done)
    late = second.ask(frames.Attach(number), frames.Text).value
    process.call(replaces=first.number, answered=1)

    second.publish("t", 1)
    assert sequences(second.poll(number, late)) == [1]
    second.ask(frames.Detach(number, late), Done)
    assert broker.call().stats(number)["ready"] == 1
    assert broker.process().call().ask(frames.Attach(number), frames.Text).value != late
