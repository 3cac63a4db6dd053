"""Deadlines of copies that share a lease, and order where a copy is handed over alone."""

from __future__ import annotations

import pytest

from mpbroker.engine import MessageBatch
from mpbroker.engine.batch import MAX_BATCH
from mpbroker.engine.leases import OFFSET_BITS, offsets
from mpbroker.messages import Headers, Message, MessagePriority
from tests.engine.bench import Bench, sequences, tokens


def test_each_copy_of_a_lease_has_its_own_deadline_once_one_was_extended() -> None:
    bench = Bench(ack_timeout=10.0)
    bench.publish(1, 2, 3)
    _, second, _ = tokens(bench.take())
    assert bench.s.extend(second, None, 20.0, 0.0) == 20.0
    assert bench.s.next_deadline() == 10.0
    assert bench.s.expire(10.0) == 2
    assert bench.s.next_deadline() == 20.0
    bench.check()
    assert bench.s.extend(second, None, 20.0, 5.0) == 25.0
    assert bench.s.next_deadline() == 25.0
    assert bench.s.expire(20.0) == 0
    assert bench.s.expire(25.0) == 1
    assert bench.s.next_deadline() is None
    bench.check()


def test_an_extended_copy_may_be_due_before_the_others() -> None:
    bench = Bench(ack_timeout=10.0)
    bench.publish(1, 2, 3)
    first, _, third = tokens(bench.take())
    assert bench.s.extend(third, None, 1.0, 0.0) == 1.0
    assert bench.s.next_deadline() == 1.0
    assert bench.s.expire(5.0) == 1
    assert sequences(bench.take(now=5.0)) == [3]
    assert bench.s.ack_tokens([third, first]) == [False, True]
    bench.check()


def test_the_deadline_of_an_acked_copy_is_nobodys() -> None:
    bench = Bench(ack_timeout=10.0)
    bench.publish(1, 2)
    first, second = tokens(bench.take())
    bench.s.extend(first, None, 1.0, 0.0)
    bench.s.ack_tokens([first])
    assert bench.s.next_deadline() == 10.0
    assert bench.s.expire(2.0) == 0
    bench.s.ack_tokens([second])
    assert bench.s.next_deadline() is None


def test_a_deadline_beyond_all_numbers_is_none() -> None:
    bench = Bench(ack_timeout=10.0)
    bench.publish(1, 2)
    first, second = tokens(bench.take())
    assert bench.s.extend(first, None, 1e308, 1e308) == float("inf")
    assert bench.s.next_deadline() == 10.0
    assert bench.s.expire(1e308) == 1
    assert bench.s.next_deadline() is None
    assert bench.s.ack_tokens([first, second]) == [True, False]
    bench.check()


def test_deadlines_moved_again_and_again_take_no_more_room() -> None:
    bench = Bench(ack_timeout=10.0)
    bench.publish(1, 2)
    first, second = tokens(bench.take())
    for n in range(1000):
        bench.s.extend(first, None, 10.0, float(n))
    assert len(bench.s._places.leases._due) < 100
    assert bench.s.next_deadline() == 10.0
    bench.s.ack_tokens([second])
    assert bench.s.next_deadline() == 1009.0
    bench.check()


def test_what_its_worker_died_with_comes_alone_and_after_what_is_before_it() -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    first = bench.take(1, owner="living")
    bench.take(1, owner="dying")
    bench.s.end_owner("dying", 0.0, died=True)
    bench.s.release(first[0].token, None)
    assert sequences(bench.take()) == [1]
    assert sequences(bench.take()) == [2]
    assert sequences(bench.take()) == [3]


def test_a_copy_to_be_handed_over_alone_is_not_in_the_company_of_higher_ones() -> None:
    bench = Bench()
    bench.publish(1)
    bench.take(owner="dying")
    bench.s.end_owner("dying", 0.0, died=True)
    bench.publish(2, priority=MessagePriority.CRITICAL)
    bench.publish(3, priority=MessagePriority.LOW)
    assert [sequences(bench.take()) for _ in range(4)] == [[2], [1], [3], []]


def test_payloads_that_are_objects_take_no_bytes_and_any_mapping_may_be_their_headers() -> None:
    message = Message("t", object(), headers={"k": "v"}, sequence=4)
    batch = MessageBatch([message])
    assert batch.nbytes == 0
    assert (batch.headers, batch.first, batch.count) == (Headers({"k": "v"}), 4, 1)
    assert batch.alone(0) == (batch, 0)


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_ends_at_the_same_time_ends_together_whatever_was_settled_before(is_asked: bool) -> None:
    bench = Bench(ack_timeout=5.0)
    bench.publish(*range(6))
    leases = [bench.take(2)[0] for _ in range(3)]
    bench.s.ack_tokens(tokens(leases[:1]))
    if is_asked:
        assert bench.s.next_deadline() == 5.0
    assert bench.s.expire(5.0) == 4
    bench.check()
    assert bench.s.next_deadline() is None


def test_tokens_only_grow() -> None:
    bench = Bench()
    bench.publish(*range(3))
    seen: list[int] = []
    for _ in range(4):
        leases = [lease for _ in range(3) for lease in bench.take(1)]
        seen += tokens(leases)
        bench.s.undo([lease.number for lease in leases])
    assert seen == sorted(set(seen))
    assert min(seen) > 0


def test_a_lease_is_filed_under_the_stretches_of_sequences_that_it_touches_and_no_others() -> None:
    bench = Bench()
    for _ in range(8):
        bench.publish(*range(100))
    leases = bench.take(250) + bench.take(12) + bench.take(300)
    assert [(lease.sequence, lease.left) for lease in leases] == [
        (1, 100),
        (101, 100),
        (201, 50),
        (251, 12),
        (263, 38),
        (301, 100),
        (401, 100),
        (501, 62),
    ]
    assert [list(lease.buckets()) for lease in leases] == [[0], [0], [0], [0, 1], [1], [1], [1], [1, 2]]
    held = bench.s._places.leases
    for lease in leases:
        assert held.find(lease.sequence) == (lease, 0)
        assert held.find(lease.sequence + lease.left - 1) == (lease, lease.left - 1)
    assert held.find(563) is None
    bench.s.ack_tokens(tokens(leases))
    assert held._buckets == {}
    bench.check()


@pytest.mark.parametrize("bits", [[], [0], [3], [0, 1, 2], [0, 2, 4, 6], [1, 2, 5, 6, 7, 9], [0, 3, 4, 255]])
def test_the_bits_of_a_mask_are_found_whatever_lies_between_them(bits: list[int]) -> None:
    assert list(offsets(sum(1 << bit for bit in bits))) == bits


def test_the_last_copy_of_a_lease_is_found_where_it_lies_alone_beyond_a_boundary() -> None:
    bench = Bench()
    bench.publish(*range(MAX_BATCH))
    (lease,) = bench.take()
    assert lease.sequence >> OFFSET_BITS != (lease.sequence + MAX_BATCH - 1) >> OFFSET_BITS
    assert bench.s.ack([MAX_BATCH], "w") == [True]
