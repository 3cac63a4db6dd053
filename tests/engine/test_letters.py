"""What is set aside without ever being handed over, and how subscriptions are found by id."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mpbroker.engine.letters import MAX_FILTER_ERRORS
from mpbroker.errors import UnknownSubscription
from mpbroker.messages import Attempt, AttemptOutcome, DeadLetter, DeadLetterReason, MessagePriority
from mpbroker.overflow import Overflow
from tests.engine.bench import Bench, sequences


def fails(_: Mapping[str, str]) -> bool:
    raise RuntimeError("too hard")


@pytest.mark.parametrize("size", [1, 60])
def test_filter_errors_are_kept_up_to_their_bound_and_counted_beyond_it(size: int) -> None:
    bench = Bench(filter=fails)
    while bench.s.stats(None).accepted < MAX_FILTER_ERRORS + 5:
        bench.publish(*range(size), now=3.0)
        bench.check()
    accepted = bench.s.stats(None).accepted
    records = bench.s.dead_letters(None, 0)
    assert [record.sequence for record in records] == list(range(1, MAX_FILTER_ERRORS + 1))
    assert {(each.reason, each.error, each.attempts, each.dead_since, each.last_member) for each in records} == {
        (DeadLetterReason.FILTER_ERROR, "RuntimeError: too hard", 0, 3.0, "")
    }
    assert bench.stats() == {
        "accepted": accepted,
        "dead": MAX_FILTER_ERRORS,
        "dropped": accepted - MAX_FILTER_ERRORS,
        "filter_errors": accepted,
        "dead_lettered": accepted,
    }
    assert bench.s.purge(None, 10) == 10
    bench.publish(*range(10))
    bench.check()
    assert bench.stats()["dead"] == MAX_FILTER_ERRORS
    assert bench.s.purge(None, None) == MAX_FILTER_ERRORS
    bench.check()
    bench.publish(*range(MAX_FILTER_ERRORS + 1))
    bench.check()
    assert bench.stats()["dead"] == MAX_FILTER_ERRORS


def test_a_letter_tells_all_that_happened_to_its_message() -> None:
    bench = Bench(max_deliveries=5)
    bench.publish("a", now=1.0)
    (lease,) = bench.take(now=2.0, member="first")
    assert bench.s.nack(lease.token, None, 0.0, "not yet", 3.0)
    (lease,) = bench.take(now=4.0, member="second")
    assert bench.s.reject(lease.token, None, "never", 5.0)
    (record,) = bench.s.dead_letters(None, 0)
    letter = record.letter("t/s")
    assert letter.message.payload == "a"
    assert letter == DeadLetter(
        "t/s",
        letter.message,
        DeadLetterReason.REJECTED,
        "never",
        2,
        5.0,
        "second",
        (
            Attempt(1, "first", 2.0, 3.0, AttemptOutcome.FAILED, "not yet"),
            Attempt(2, "second", 4.0, 5.0, AttemptOutcome.REJECTED, "never"),
        ),
    )


def test_what_overflows_says_when_and_why() -> None:
    bench = Bench(max_queue=2)
    bench.publish(1, 2, 3, 4, now=6.0)
    bench.check()
    records = bench.s.dead_letters(None, 0)
    assert [record.sequence for record in records] == [3, 4]
    assert {(each.reason, each.error, each.dead_since, each.attempts) for each in records} == {
        (DeadLetterReason.OVERFLOW, "the queue held its max_queue of 2 messages", 6.0, 0)
    }


def test_a_newer_message_pushes_the_oldest_of_the_lowest_priority_out() -> None:
    bench = Bench(max_queue=3, overflow=Overflow.DROP_OLDEST)
    bench.publish(1, 2)
    bench.publish(3, priority=MessagePriority.HIGH)
    bench.publish(4, now=2.0)
    bench.publish(5, priority=MessagePriority.LOW)
    bench.check()
    assert [(record.sequence, record.dead_since) for record in bench.s.dead_letters(None, 0)] == [(1, 2.0), (5, 0.0)]
    assert sequences(bench.take()) == [3, 2, 4]


def test_the_oldest_dead_letters_give_way_and_are_counted() -> None:
    bench = Bench(max_queue=1)
    bench.s._places.letters.most = 3
    bench.publish(*range(10))
    bench.check()
    assert [record.sequence for record in bench.s.dead_letters(None, 0)] == [8, 9, 10]
    assert bench.stats() == {
        "accepted": 10,
        "ready": 1,
        "backlog": 1,
        "dead": 3,
        "dropped": 6,
        "dead_lettered": 9,
    }


@pytest.mark.parametrize(
    ("name", "told"),
    [("", ""), ("t", "t"), ("s", "s"), ("t/", "t"), *[(name, name) for name in ("/s", "t/x", "u/s", "t/s/", "t//s")]],
)
def test_an_id_that_is_no_subscriptions_is_told_as_it_is(name: str, told: str) -> None:
    bench = Bench()
    assert bench.engine.by_id("t/s") is bench.s
    with pytest.raises(UnknownSubscription) as caught:
        bench.engine.by_id(name)
    assert caught.value.args == (told,)
