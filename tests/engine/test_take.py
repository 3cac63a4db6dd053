"""How much one poll gets, what an ended lease says, and which subscriptions there are."""

from __future__ import annotations

import pytest

from mpbroker.engine import Batch, MessageBatch, Payloads
from mpbroker.errors import UnknownTopic
from mpbroker.messages import AttemptOutcome, Headers, MessagePriority
from mpbroker.settings import Given
from tests.engine.bench import NORMAL, Bench, sequences


class SizedBatch(MessageBatch):
    @property
    def nbytes(self) -> int:
        return 10 * self.count


class SizedPayloads(Payloads):
    """Each takes ten bytes in a reply."""

    def batch(
        self,
        topic: str,
        first: int,
        priority: MessagePriority,
        timestamp: float,
        headers: Headers,
        incarnation: str,
    ) -> SizedBatch:
        made: Batch = super().batch(topic, first, priority, timestamp, headers, incarnation)
        return SizedBatch([made.message(index) for index in range(made.count)])


@pytest.mark.parametrize(
    ("max_bytes", "taken"),
    [
        (None, [1, 2, 3, 4, 5, 6]),
        (60, [1, 2, 3, 4, 5, 6]),
        (59, [1, 2, 3, 4, 5]),
        (50, [1, 2, 3, 4, 5]),
        (49, [1, 2]),
        (20, [1, 2]),
        (1, [1, 2]),
    ],
)
def test_all_but_the_first_batch_of_a_poll_are_bounded_in_bytes(max_bytes: int | None, taken: list[int]) -> None:
    bench = Bench()
    for payloads in ([1, 2], [3, 4, 5], [6]):
        bench.engine.publish("t", [SizedPayloads(payloads)], Headers(), NORMAL, 0.0, 0.0)
    assert sequences(bench.take(max_bytes=max_bytes)) == taken


def test_an_ended_lease_is_counted_and_says_so_in_the_history_of_each_copy() -> None:
    bench = Bench(ack_timeout=5.0)
    bench.publish(*range(5))
    bench.take(2, now=1.0)
    bench.take(3, now=1.0, member="v")
    assert bench.s.expire(5.9) == 0
    assert bench.s.expire(7.0) == 5
    bench.check()
    leases = bench.take(now=8.0)
    assert sequences(leases) == [1, 2, 3, 4, 5]
    attempts = [lease.history for lease in leases]
    assert [[(each.member, each.started, each.ended) for each in history] for history in attempts] == [
        [("w", 1.0, 7.0)],
        [("v", 1.0, 7.0)],
    ]
    assert {(each.outcome, each.error) for history in attempts for each in history} == {
        (AttemptOutcome.LEASE_ENDED, "not acked in 6 s, and its lease ended")
    }


def test_subscriptions_are_those_of_the_topic_that_is_named_or_all() -> None:
    bench = Bench(ack_timeout=5.0)
    engine = bench.engine
    engine.create_topic("u")
    other = engine.subscribe("u", "s", Given.check(ack_timeout=2.0))
    assert engine.all_subscriptions("t") == [bench.s]
    assert engine.all_subscriptions("u") == [other]
    assert engine.all_subscriptions() == [bench.s, other]
    assert set(engine.subscriptions("u", None)) == {"u/s"}
    with pytest.raises(UnknownTopic):
        engine.all_subscriptions("v")
    assert engine.next_deadline() is None
    bench.publish(1)
    bench.take()
    assert engine.next_deadline() == 5.0
    engine.publish("u", [Payloads([1, 2])], Headers(), NORMAL, 0.0, 0.0)
    other.take("w", 0.0, 5)
    assert engine.next_deadline() == 2.0
    assert engine.expire(4.0) == 2
    assert engine.next_deadline() == 5.0
    assert engine.expire(9.0) == 1
    assert engine.by_number(other.number) is other
    assert engine.delete_topic("u") == [other]
    assert engine.by_number(other.number) is None
