"""Attempts of one copy among several of a lease: which one ends, how, and what its history keeps."""

from __future__ import annotations

import pytest

from mpbroker.engine.batch import MAX_HISTORY
from mpbroker.messages import AttemptOutcome, DeadLetterReason
from tests.engine.bench import Bench, sequences, tokens


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_the_next_attempt_of_a_copy_that_is_held_on_leaves_its_neighbours(chosen: int) -> None:
    bench = Bench(max_deliveries=2)
    bench.publish(1, 2, 3)
    held = tokens(bench.take(now=1.0))
    lease = bench.s.retry_held(held[chosen], "it failed", 4.0)
    assert lease is not None
    bench.check()
    assert (sequences([lease]), lease.attempt, lease.member, lease.deadline) == ([chosen + 1], 2, "w", 34.0)
    (attempt,) = lease.history
    assert (attempt.started, attempt.ended, attempt.outcome) == (1.0, 4.0, AttemptOutcome.FAILED)
    assert attempt.error == "it failed"
    assert bench.s.ack_tokens(held) == [each != chosen for each in range(3)]


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_the_last_attempt_of_a_copy_that_is_held_on_makes_a_dead_letter_with_its_error(chosen: int) -> None:
    bench = Bench(max_deliveries=1)
    bench.publish(1, 2, 3)
    held = tokens(bench.take())
    assert bench.s.retry_held(held[chosen], "it failed", 4.0) is None
    bench.check()
    (record,) = bench.s.dead_letters(None, 0)
    assert (record.sequence, record.error, record.dead_since) == (chosen + 1, "it failed", 4.0)
    assert record.reason is DeadLetterReason.RETRIES_EXHAUSTED
    assert [attempt.error for attempt in record.history] == ["it failed"]
    assert bench.s.ack_tokens(held) == [each != chosen for each in range(3)]


def test_a_nack_is_a_failed_attempt_in_the_history() -> None:
    bench = Bench()
    bench.publish(1, 2)
    bench.s.nack(tokens(bench.take(now=1.0))[1], None, None, "it failed", 2.0)
    (lease,) = bench.take(now=3.0)
    assert sequences([lease]) == [2]
    (attempt,) = lease.history
    assert (attempt.outcome, attempt.error, attempt.ended) == (AttemptOutcome.FAILED, "it failed", 2.0)


def test_a_redrive_puts_back_no_more_than_it_was_told_to() -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    for token in tokens(bench.take()):
        bench.s.reject(token, None, "never", 0.0)
    assert bench.s.redrive(None, 2) == 2
    assert sequences(bench.take()) == [1, 2]
    assert bench.stats()["dead"] == 1


def test_what_killed_a_worker_is_handed_over_alone_after_a_redrive_too() -> None:
    bench = Bench(max_deliveries=1)
    bench.publish(1, 2)
    bench.take(owner="p")
    assert bench.s.end_owner("p", 1.0, died=True, error="worker died") == 2
    assert bench.s.redrive(None, None) == 2
    assert sequences(bench.take()) == [1]
    assert sequences(bench.take()) == [2]


def test_a_subscription_is_idle_when_nothing_is_in_any_place_that_has_work() -> None:
    bench = Bench()
    assert bench.s.is_idle()
    bench.publish(1)
    assert not bench.s.is_idle()
    (token,) = tokens(bench.take())
    assert not bench.s.is_idle()
    assert bench.s.reject(token, None, "never", 0.0)
    assert bench.s.is_idle()
    assert bench.s.wait_idle(0.0)


def test_copies_that_their_worker_died_with_together_come_one_by_one() -> None:
    bench = Bench(max_deliveries=10)
    bench.publish(*range(3))
    bench.take(owner="o")
    assert bench.s.end_owner("o", 1.0, died=True) == 3
    for sequence in (1, 2, 3):
        leases = bench.take()
        assert sequences(leases) == [sequence]
        assert bench.s.ack_tokens(tokens(leases)) == [True]


def test_a_history_keeps_the_last_hundred_attempts_and_counts_all() -> None:
    bench = Bench(max_deliveries=1000)
    bench.publish(1)
    for _ in range(MAX_HISTORY + 3):
        (lease,) = bench.take()
        assert bench.s.nack(lease.token, None, 0.0, "", 0.0)
    (lease,) = bench.take()
    assert lease.attempt == MAX_HISTORY + 4
    assert [each.number for each in lease.history] == list(range(4, MAX_HISTORY + 4))


def test_what_is_delayed_is_counted_and_is_the_next_to_be_looked_at() -> None:
    bench = Bench(max_deliveries=10)
    bench.publish(*range(4))
    (lease,) = bench.take()
    for token, delay in zip(tokens([lease]), (7.0, 8.0, 8.0, 3.0), strict=True):
        assert bench.s.nack(token, None, delay, "", 1.0)
    assert bench.stats()["delayed"] == 4
    for now, left, following in ((4.0, 3, 8.0), (8.0, 2, 9.0), (9.0, 0, None)):
        bench.s.expire(now)
        bench.check()
        assert bench.stats().get("delayed", 0) == left
        assert bench.s.next_deadline() == following
    assert sequences(bench.take(now=9.0)) == [1, 2, 3, 4]
