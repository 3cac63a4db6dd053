"""What comes back when its owner ends, and what is as if it had never been handed over."""

from __future__ import annotations

import pytest

from mpbroker.engine import Payloads
from mpbroker.errors import QueueFull, UnknownSubscription
from mpbroker.messages import AttemptOutcome, DeadLetterReason, Headers, MessagePriority
from mpbroker.overflow import Overflow
from tests.engine.bench import Bench, sequences, tokens


def test_what_an_owner_died_with_is_a_failed_attempt_of_each_copy() -> None:
    bench = Bench(max_deliveries=2)
    bench.publish(1, 2, 3)
    first = bench.take(2, owner="p")
    bench.take(1, owner="q")
    bench.s.ack_tokens(tokens(first)[:1])
    assert bench.s.end_owner("p", 3.0, died=True, error="worker died: signal 9") == 1
    bench.check()
    assert bench.s.end_owner("p", 3.0, died=True) == 0
    (lease,) = bench.take(now=4.0, owner="r")
    assert (sequences([lease]), lease.attempt, lease.redelivered) == ([2], 2, True)
    (attempt,) = lease.history
    assert (attempt.number, attempt.member, attempt.started, attempt.ended) == (1, "w", 0.0, 3.0)
    assert (attempt.outcome, attempt.error) == (AttemptOutcome.WORKER_DIED, "worker died: signal 9")
    assert bench.s.end_owner("r", 5.0, died=True, error="again") == 1
    (record,) = bench.s.dead_letters(None, 0)
    assert (record.sequence, record.reason, record.error) == (2, DeadLetterReason.RETRIES_EXHAUSTED, "again")
    assert (record.attempts, record.dead_since, record.last_member) == (2, 5.0, "w")


def test_what_an_owner_leaves_comes_back_uncounted() -> None:
    bench = Bench(max_deliveries=1)
    bench.publish(1, 2, 3)
    held = tokens(bench.take(2, owner="p"))
    assert bench.s.end_owner("p", 3.0, died=False) == 2
    bench.check()
    assert bench.s.ack_tokens(held) == [False, False]
    (again, last) = bench.take(now=4.0)
    assert (sequences([again]), again.attempt, again.redelivered, again.history) == ([1, 2], 1, True, ())
    assert (sequences([last]), last.attempt, last.redelivered) == ([3], 1, False)
    assert bench.stats()["redelivered"] == 2


def test_nobody_is_told_of_an_owner_that_is_not_known() -> None:
    bench = Bench()
    bench.publish(1)
    (lease,) = bench.take(owner="p")
    assert bench.s.end_owner("q", 0.0, died=True, error="x") == 0
    assert bench.s.extend(lease.token, None, 9.0, 0.0) == 9.0
    assert bench.s.end_owner("p", 0.0, died=True) == 1
    (lease,) = bench.take()
    assert [attempt.error for attempt in lease.history] == [""]


@pytest.mark.parametrize("before", [0, 1])
def test_a_hand_over_that_is_undone_never_was(before: int) -> None:
    bench = Bench(max_deliveries=3)
    bench.publish(1, 2, 3)
    for _ in range(before):
        for token in tokens(bench.take()):
            bench.s.nack(token, None, None, "", 0.0)
    was = bench.stats()
    leases = bench.take()
    assert bench.s.undo([lease.number for lease in leases]) == 3
    bench.check()
    assert bench.stats() == was
    again = bench.take()
    assert sequences(again) == [1, 2, 3]
    assert {(lease.attempt, lease.redelivered) for lease in again} == {(before + 1, before > 0)}


def test_only_what_is_still_held_of_a_hand_over_is_undone() -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    (lease,) = bench.take()
    first, _, third = tokens([lease])
    bench.s.ack_tokens([first])
    bench.s.nack(third, None, 5.0, "", 0.0)
    assert bench.s.undo([lease.number, 77]) == 1
    bench.check()
    assert bench.s.undo([lease.number]) == 0
    assert bench.stats() == {
        "accepted": 3,
        "acked": 1,
        "ready": 1,
        "delayed": 1,
        "backlog": 2,
        "deliveries": 2,
    }


def test_the_stand_in_for_deleted_subscriptions_holds_nothing_and_says_no() -> None:
    bench = Bench()
    ended = bench.engine.ended_subscription()
    assert ended.ended
    assert (ended.number, ended.topic, ended.name) == (0, "", "")
    assert ended.ack([1], "w") == [False]
    assert ended.ack_tokens([256]) == [False]
    assert ended.nack(256, None, None, "", 0.0) is False
    assert ended.extend(256, None, None, 0.0) is None
    assert ended.retry_held(256, "", 0.0) is None
    with pytest.raises(UnknownSubscription):
        ended.take("w", 0.0, 1)
    assert bench.engine.by_number(0) is None
    assert bench.engine.all_subscriptions() == [bench.s]


def test_what_was_published_is_known_by_its_sequence_and_nothing_else_is() -> None:
    bench = Bench()
    assert not bench.engine.was_published(1)
    bench.publish(1, 2)
    assert [bench.engine.was_published(n) for n in range(-1, 5)] == [False, False, True, True, False, False]


def test_a_settled_copy_is_not_held_by_its_id_while_its_neighbours_are() -> None:
    bench = Bench()
    bench.publish(1, 2)
    bench.take()
    assert bench.s.ack([1], "w") == [True]
    assert bench.s.nack(1, "w", None, "", 0.0) is False
    assert bench.s.release(1, "w") is False
    assert bench.s.reject(1, "w", "", 0.0) is False
    bench.check()
    assert bench.s.ack([1, 2], "w") == [False, True]


def test_a_copy_handed_over_anew_is_found_by_its_id_beside_what_it_first_came_with() -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    first = bench.take()
    bench.s.release(1, "w")
    (again,) = bench.take(1)
    assert sequences([again]) == [1]
    assert bench.s.extend(1, "w", 50.0, 0.0) == 50.0
    assert bench.s.ack([1], "w") == [True]
    bench.check()
    assert bench.s.ack_tokens(tokens(first)) == [True, True]
    bench.check()


def test_an_offer_takes_the_last_place_there_is() -> None:
    bench = Bench(max_queue=1, overflow=Overflow.REJECT)
    first, second = (Payloads([1]).batch("t", n, MessagePriority.NORMAL, 0.0, Headers(), "abc") for n in (8, 9))
    assert bench.s.offer(first, 0.0) is True
    with pytest.raises(QueueFull):
        bench.s.offer(second, 0.0)
    assert bench.stats() == {"accepted": 1, "ready": 1, "backlog": 1}


def test_a_run_is_shown_by_its_messages() -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    (run,) = bench.s._places.ready.runs()
    assert repr(run) == "<Run m1..m3 attempts=0>"


def test_a_copy_that_is_retried_in_place_stays_its_owners() -> None:
    bench = Bench(max_deliveries=3, ack_timeout=10.0)
    bench.publish(1, 2)
    (lease,) = bench.take(owner="p")
    again = bench.s.retry_held(lease.token, "trouble", 2.0)
    assert again is not None
    bench.check()
    assert (again.sequence, again.attempt, again.redelivered, again.member) == (1, 2, True, "w")
    assert (again.owner, again.granted, again.deadline) == ("p", 2.0, 12.0)
    assert [(each.outcome, each.error) for each in again.history] == [(AttemptOutcome.FAILED, "trouble")]
    assert bench.s.end_owner("p", 3.0, died=False) == 2
    assert bench.s.retry_held(again.token, "", 3.0) is None


def test_dead_letters_come_in_pages_oldest_first() -> None:
    bench = Bench()
    bench.publish(*range(5))
    for token in tokens(bench.take()):
        bench.s.reject(token, None, "", 0.0)
    pages = {
        (limit, offset): [record.sequence for record in bench.s.dead_letters(limit, offset)]
        for limit in (None, 2)
        for offset in (0, 1, 4, 9)
    }
    assert pages == {
        (None, 0): [1, 2, 3, 4, 5],
        (None, 1): [2, 3, 4, 5],
        (None, 4): [5],
        (None, 9): [],
        (2, 0): [1, 2],
        (2, 1): [2, 3],
        (2, 4): [5],
        (2, 9): [],
    }


def test_redrive_and_purge_take_the_chosen_and_no_more_than_asked() -> None:
    bench = Bench(max_queue=5)
    bench.publish(*range(5))
    for token in tokens(bench.take()):
        bench.s.reject(token, None, "", 0.0)
    assert bench.s.purge([2, 4, 77], 1) == 1
    assert [record.sequence for record in bench.s.dead_letters(None, 0)] == [1, 3, 4, 5]
    bench.publish(*range(3))
    assert bench.s.redrive([3, 4, 5], None) == 2
    bench.check()
    assert [record.sequence for record in bench.s.dead_letters(None, 0)] == [1, 5]
    assert bench.s.redrive(None, None) == 0
    assert sequences(bench.take()) == [3, 4, 6, 7, 8]
    assert bench.s.purge(None, None) == 2
    assert bench.stats()["dropped"] == 3


def test_a_part_of_what_came_back_together_says_what_it_went_through() -> None:
    bench = Bench()
    bench.publish(*range(4))
    bench.take(owner="p")
    bench.s.end_owner("p", 1.0, died=False)
    (part,) = bench.take(2)
    assert (part.attempt, part.redelivered, part.alone, part.history) == (1, True, False, ())
    bench.s.expire(100.0)
    (part,) = bench.take(1, now=100.0)
    assert (part.attempt, part.redelivered, len(part.history)) == (2, True, 1)
    (rest,) = bench.take(1, now=100.0)
    assert (rest.attempt, rest.redelivered, rest.history) == (2, True, part.history)


def test_a_rejected_copy_says_when_by_whom_and_why() -> None:
    bench = Bench()
    bench.publish(1, k="v")
    (lease,) = bench.take(now=1.0)
    assert bench.s.reject(lease.token, None, "cannot work", 4.0) is True
    (record,) = bench.s.dead_letters(None, 0)
    assert (record.reason, record.error) == (DeadLetterReason.REJECTED, "cannot work")
    assert (record.attempts, record.dead_since, record.last_member) == (1, 4.0, "w")
    (attempt,) = record.history
    assert (attempt.outcome, attempt.started, attempt.ended) == (AttemptOutcome.REJECTED, 1.0, 4.0)
    letter = record.letter("t/s")
    assert (letter.message.payload, letter.message.headers, letter.message.uid) == (1, {"k": "v"}, "abc-1")
    assert bench.s.redrive(None, None) == 1
    (lease,) = bench.take(now=5.0)
    assert (lease.attempt, lease.redelivered, lease.history) == (1, True, record.history)
