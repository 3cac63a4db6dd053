"""The check of the engine's inside sees whatever disagrees there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpbroker.engine import Subscription, Waiter, invariants
from mpbroker.engine.invariants import InvariantBroken
from mpbroker.messages import DeadLetterReason, MessagePriority
from tests.engine.bench import Bench, tokens


def full() -> Bench:
    """Every place holds something: ready, returned, delayed, held by two leases, dead."""
    bench = Bench(max_deliveries=3)
    bench.publish(*range(20))
    leases = bench.take(12)
    held = tokens(leases)
    for token in held[0:6:2]:
        bench.s.release(token, None)
    bench.s.nack(held[7], None, 5.0, "", 0.0)
    bench.s.reject(held[9], None, "", 0.0)
    bench.publish(*range(5))
    bench.take(1)
    bench.check()
    return bench


def _lane(s: Subscription) -> None:
    s._places.ready.lanes[1].count += 1


def _ready(s: Subscription) -> None:
    s._places.ready.count += 1


def _delayed(s: Subscription) -> None:
    s._places.delayed.count -= 1


def _leases(s: Subscription) -> None:
    s._places.leases.count += 1


def _letters(s: Subscription) -> None:
    next(iter(s._places.letters)).reason = DeadLetterReason.FILTER_ERROR


def _outside(s: Subscription) -> None:
    run = s._places.ready.lanes[1].fresh[0]
    run.stop = run.batch.count + 1
    _recount(s)


def _sequence(s: Subscription) -> None:
    s._places.ready.lanes[1].fresh[0].sequence += 1000


def _attempts(s: Subscription) -> None:
    s._places.ready.lanes[1].fresh[0].attempts = 3


def _twice(s: Subscription) -> None:
    lane = s._places.ready.lanes[1]
    lane.fresh.append(lane.fresh[-1])
    _recount(s)


def _held_and_ready(s: Subscription) -> None:
    lease = next(iter(s._places.leases.by_number.values()))
    lease.open |= 1
    lease.left = lease.open.bit_count()
    s._places.leases.count = sum(each.left for each in s._places.leases.by_number.values())


def _order(s: Subscription) -> None:
    s._places.ready.lanes[1].fresh.reverse()


def _wrong_lane(s: Subscription) -> None:
    for run in s._places.ready.lanes[1].runs():
        run.batch.priority = MessagePriority.LOW


def _filed(s: Subscription) -> None:
    lane = s._places.ready.lanes[1]
    lane.returned = [(sequence + 1, run) for sequence, run in lane.returned]


def _heap(s: Subscription) -> None:
    s._places.ready.lanes[1].returned.sort(reverse=True)


def _owner(s: Subscription) -> None:
    s._places.leases._by_owner.clear()


def _index(s: Subscription) -> None:
    lease = next(iter(s._places.leases.by_number.values()))
    lease.owner = "another"


def _due(s: Subscription) -> None:
    s._places.leases._due.clear()


def _left(s: Subscription) -> None:
    leases = list(s._places.leases.by_number.values())
    leases[0].left -= 1
    leases[-1].left += 1


def _attempt(s: Subscription) -> None:
    next(iter(s._places.leases.by_number.values())).attempt = 4


def _accepted(s: Subscription) -> None:
    s._places._accepted += 1


def _too_many(s: Subscription) -> None:
    object.__setattr__(s.settings, "max_queue", 3)


def _recount(s: Subscription) -> None:
    """Only what is meant is wrong."""
    ready = s._places.ready
    for lane in ready.lanes:
        lane.count = sum(map(len, lane.runs()))
    ready.count = sum(lane.count for lane in ready.lanes)


def _waiters(s: Subscription) -> list[Waiter]:
    """Two publishes that wait, in their order."""
    s.line._max_queue = s._places.size
    waiters = [Waiter(1, lambda: None) for _ in range(2)]
    for order, waiter in enumerate(waiters, 1):
        waiter.order = order
        waiter.stand_in({s.line})
    return waiters


def _line_order(s: Subscription) -> None:
    _waiters(s)
    s.line.waiters.reverse()


def _unknown_line(s: Subscription) -> None:
    _waiters(s)[1].lines.clear()


def _asleep(s: Subscription) -> None:
    _waiters(s)
    s.line._max_queue = s._places.size + 1


DAMAGES: list[tuple[Callable[[Subscription], None], str]] = [
    (_lane, "a lane counts"),
    (_ready, "the ready queue counts"),
    (_delayed, "the delayed copies count"),
    (_leases, "leases count"),
    (_letters, "miscount filter errors"),
    (_outside, "is outside its batch"),
    (_sequence, "has the wrong sequence"),
    (_attempts, "should be dead"),
    (_twice, "is in two places"),
    (_held_and_ready, "is in two places"),
    (_order, "out of order"),
    (_wrong_lane, "in lane 1 by mistake"),
    (_filed, "is filed under"),
    (_heap, "are no heap"),
    (_owner, "indices of leases know"),
    (_index, "is missing from an index"),
    (_due, "is missing from an index"),
    (_left, "is not sound"),
    (_attempt, "lease 1: 4"),
    (_accepted, "does not conserve its copies"),
    (_too_many, "holds"),
    (_line_order, "publishes wait for t/s in the order"),
    (_unknown_line, "does not know it"),
    (_asleep, "nobody told a publish"),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_damage_is_seen_and_told(damage: Callable[[Subscription], None], told: str) -> None:
    bench = full()
    damage(bench.s)
    with pytest.raises(InvariantBroken, match=told):
        invariants.check(bench.engine)
