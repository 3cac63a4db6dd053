"""What a subscription of the engine does where the verbs of a broker seldom lead."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import pytest

from mpbroker.engine import Payloads
from mpbroker.errors import UnknownSubscription
from mpbroker.messages import Headers, MessagePriority
from tests.engine.bench import Bench, sequences, tokens


def test_a_deleted_subscription_takes_no_offer_and_no_dispatcher() -> None:
    bench = Bench()
    bench.publish(1)
    batch = Payloads([1]).batch("t", 1, MessagePriority.NORMAL, 0.0, Headers(), "abc")
    bench.engine.unsubscribe("t", "s")
    with pytest.raises(UnknownSubscription, match="t/s"):
        bench.s.offer(batch, 0.0)
    with pytest.raises(UnknownSubscription, match="t/s"):
        bench.s.attach_dispatcher("owner")
    assert bench.stats() == {"accepted": 1, "dropped": 1}


def test_what_a_dispatcher_holds_has_no_deadline_and_gets_none() -> None:
    bench = Bench(ack_timeout=5.0)
    bench.publish(1)
    member = bench.s.attach_dispatcher("owner")
    (lease,) = bench.take(member=member, dispatcher=True)
    assert lease.deadline == inf
    assert bench.s.extend(lease.token, None, 2.0, 1.0) == inf
    assert bench.s.next_deadline() is None
    assert bench.s.expire(1e300) == 0
    assert bench.s.ack_tokens([lease.token]) == [True]


def test_a_dispatcher_that_goes_releases_what_it_holds_and_nothing_else() -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    workers = bench.take(2)
    member = bench.s.attach_dispatcher("owner")
    assert sequences(bench.take(member=member, dispatcher=True)) == [3]
    bench.s.detach_dispatcher(member, "owner")
    bench.check()
    assert (bench.s.stats(None).ready, bench.s.stats(None).in_flight) == (1, 2)
    assert bench.s.ack_tokens(tokens(workers)) == [True, True]


def test_a_dispatcher_is_taken_away_by_its_owner_alone() -> None:
    bench = Bench()
    member = bench.s.attach_dispatcher("owner")
    bench.s.detach_dispatcher(member, "another")
    bench.s.detach_dispatcher("$dispatcher-2", "owner")
    bench.s.end_owner("another", 0.0, died=True)
    assert bench.s.dispatcher == member
    bench.s.end_owner("owner", 0.0, died=True)
    assert bench.s.dispatcher is None


def test_who_asked_is_told_when_copies_become_ready_and_when_it_ends() -> None:
    bench = Bench(ack_timeout=5.0)
    told = bench.readied
    bench.publish(1)
    (lease,) = bench.take()
    assert told == [bench.s]
    assert bench.s.ack_tokens([0]) == [False]
    assert told == [bench.s]
    bench.s.nack(lease.token, None, 3.0, "", 0.0)
    assert told == [bench.s] * 2
    bench.s.stats(2.0)
    assert told == [bench.s] * 2
    bench.s.stats(3.0)
    assert told == [bench.s] * 3
    bench.engine.unsubscribe("t", "s")
    assert told == [bench.s] * 4


def test_a_filter_that_calls_its_broker_fails_as_any_other_and_nobody_waits() -> None:
    def asks(_: Mapping[str, str]) -> bool:
        return bool(bench.engine.topics())

    bench = Bench(filter=asks)
    bench.publish(1)
    (record,) = bench.s.dead_letters(None, 0)
    assert record.error == "RuntimeError: a filter runs inside the broker and cannot call it"
    bench.check()
