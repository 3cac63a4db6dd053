"""Ranges of tokens: one step for each, with the same result as token by token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpbroker.engine import Subscription
from tests.engine.bench import Bench, sequences, tokens

OFFSETS = st.integers(0, 12)
RANGES = st.lists(st.tuples(OFFSETS, OFFSETS).map(sorted), max_size=5)


def test_a_range_is_acked_in_one_step_and_the_rest_stays_held() -> None:
    bench = Bench()
    bench.publish(*range(10))
    (lease,) = bench.take()
    assert bench.s.ack_ranges([lease.token + 2, lease.token + 7]) == 6
    assert sequences([lease]) == [1, 2, 9, 10]
    assert (bench.stats()["acked"], bench.stats()["in_flight"]) == (6, 4)
    bench.check()


def test_what_a_range_names_and_nobody_holds_is_a_late_ack_each() -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    (lease,) = bench.take()
    bench.s.ack_tokens([lease.token + 1])
    assert bench.s.ack_ranges([lease.token, lease.token + 255]) == 2
    assert bench.stats()["late_acks"] == 254
    assert bench.s.ack_ranges([lease.token, lease.token]) == 0
    assert bench.stats()["late_acks"] == 255
    bench.check()


def test_a_range_in_an_old_lease_does_not_finish_the_newer_delivery() -> None:
    bench = Bench()
    bench.publish(1, 2)
    (old,) = bench.take()
    bench.s.expire(1e9)
    bench.take()
    assert bench.s.ack_ranges([old.token, old.token + 1]) == 0
    assert bench.s.release_ranges([old.token, old.token + 1]) == 0
    assert bench.stats()["in_flight"] == 2


def test_a_range_that_is_released_is_ready_at_once_uncounted_in_its_place() -> None:
    bench = Bench(max_deliveries=1)
    bench.publish(*range(6))
    (lease,) = bench.take()
    bench.readied.clear()
    assert bench.s.release_ranges([lease.token + 1, lease.token + 3]) == 3
    assert bench.readied == [bench.s]
    again = bench.take()
    assert sequences(again) == [2, 3, 4]
    assert {each.attempt for each in again} == {1}


def test_a_subscription_that_ended_holds_no_range() -> None:
    bench = Bench()
    bench.publish(1)
    (lease,) = bench.take()
    bench.engine.unsubscribe("t", "s")
    assert bench.s.ack_ranges([lease.token, lease.token]) == 0
    assert bench.s.release_ranges([lease.token, lease.token]) == 0
    bench.check()


@given(RANGES, RANGES)
def test_ranges_do_what_their_tokens_do_one_by_one(acks: list[list[int]], releases: list[list[int]]) -> None:
    by_range, by_token = Bench(), Bench()
    for bench in (by_range, by_token):
        bench.publish(*range(10))
        bench.take()
    for asked, ranged, single in (
        (acks, Subscription.ack_ranges, _ack),
        (releases, Subscription.release_ranges, _release),
    ):
        count = ranged(by_range.s, [256 + offset for pair in asked for offset in pair])
        one_by_one = [256 + offset for first, last in asked for offset in range(first, last + 1)]
        assert count == sum([single(by_token.s, token) for token in one_by_one])
        assert by_range.stats() == by_token.stats()
        by_range.check()
    assert sequences(by_range.take()) == sequences(by_token.take())
    assert tokens(by_range.take()) == tokens(by_token.take())


def _ack(subscription: Subscription, token: int) -> bool:
    return subscription.ack_tokens([token])[0]


def _release(subscription: Subscription, token: int) -> bool:
    return subscription.release(token, None)
