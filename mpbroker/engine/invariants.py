"""What must always hold, checked from the structures themselves. Tests call it after every step.

Reads the engine's inside and changes nothing; only tests and tools import it.
"""

from __future__ import annotations

from mpbroker.engine.broker import Engine
from mpbroker.engine.leases import offsets
from mpbroker.engine.subscription import Subscription


class InvariantBroken(AssertionError):
    """The engine disagrees with itself."""


def check(engine: Engine) -> None:
    """Check every subscription of an engine. Raises InvariantBroken."""
    for subscription in engine.all_subscriptions():
        check_subscription(subscription)


def check_subscription(subscription: Subscription) -> None:
    """Check that counts, order and indices of one subscription agree. Raises InvariantBroken."""
    with subscription._lock:
        _check_places(subscription)
        _check_order(subscription)
        _check_leases(subscription)
    stats = subscription.stats(None)
    held = stats.ready + stats.delayed + stats.in_flight
    _require(
        stats.accepted == stats.acked + held + stats.dead + stats.dropped,
        f"{subscription.subscription_id} does not conserve its copies: {stats}",
    )
    _require(
        held <= subscription.settings.max_queue,
        f"{subscription.subscription_id} holds {held} copies",
    )
    _require(stats.backlog == stats.ready + stats.delayed, f"backlog of {stats}")
    _check_line(subscription)


def _check_places(subscription: Subscription) -> None:
    ready, delayed, leases = subscription._places.ready, subscription._places.delayed, subscription._places.leases
    for lane in ready.lanes:
        _require(lane.count == sum(map(len, lane.runs())), f"a lane counts {lane.count}")
    _require(
        ready.count == sum(lane.count for lane in ready.lanes),
        f"the ready queue counts {ready.count}",
    )
    _require(delayed.count == sum(map(len, delayed.runs())), f"the delayed copies count {delayed.count}")
    _require(
        leases.count == sum(lease.left for lease in leases.by_number.values()),
        f"leases count {leases.count}",
    )
    _require(subscription._places.letters.is_sound(), "the dead letters miscount filter errors")
    seen: set[int] = set()
    for run in (*ready.runs(), *delayed.runs()):
        # Texts are made only when needed: a run of a million steps comes by here as often.
        if not 0 <= run.start < run.stop <= run.batch.count:
            raise InvariantBroken(f"{run!r} is outside its batch")
        if run.sequence != run.batch.first + run.start:
            raise InvariantBroken(f"{run!r} has the wrong sequence")
        if run.attempts >= subscription.settings.max_deliveries:
            raise InvariantBroken(f"{run!r} should be dead")
        for sequence in range(run.sequence, run.sequence + len(run)):
            if sequence in seen:
                raise InvariantBroken(f"m{sequence} is in two places")
            seen.add(sequence)
    for lease in leases.by_number.values():
        for offset in offsets(lease.open):
            sequence = lease.sequence + offset
            if sequence in seen:
                raise InvariantBroken(f"m{sequence} is in two places")
            seen.add(sequence)


def _check_order(subscription: Subscription) -> None:
    for priority, lane in enumerate(subscription._places.ready.lanes):
        fresh = [run.sequence for run in lane.fresh]
        if fresh != sorted(fresh):
            raise InvariantBroken(f"fresh runs of priority {priority} are out of order: {fresh}")
        _require(
            all(run.batch.priority == priority for run in lane.runs()),
            f"a run is in lane {priority} by mistake",
        )
        for index, (sequence, run) in enumerate(lane.returned):
            if sequence != run.sequence:
                raise InvariantBroken(f"{run!r} is filed under m{sequence}")
            _require(
                lane.returned[(index - 1) // 2][0] <= sequence or index == 0,
                "the returned runs are no heap",
            )


def _check_leases(subscription: Subscription) -> None:
    leases = subscription._places.leases
    known = len(leases.by_number)
    _require(leases.sizes() == (known, known), f"indices of leases know {leases.sizes()} of {known}")
    for number, lease in leases.by_number.items():
        _require(
            number == lease.number and lease.left == lease.open.bit_count() > 0,
            f"lease {number} is not sound",
        )
        _require(leases.is_indexed(lease), f"lease {number} is missing from an index")
        _require(
            1 <= lease.attempt <= subscription.settings.max_deliveries,
            f"lease {number}: {lease.attempt}",
        )


def _check_line(subscription: Subscription) -> None:
    """Publishes that wait stand in one order, and none that could go was left asleep."""
    line, name = subscription.line, subscription.subscription_id
    orders = [waiter.order for waiter in line.waiters]
    _require(orders == sorted(set(orders)), f"publishes wait for {name} in the order {orders}")
    for waiter in line.waiters:
        _require(line in waiter.lines, f"a publish waits for {name} and does not know it")
        if all(each.has_room(waiter.count, waiter) for each in waiter.lines):
            _require(waiter.woken, f"nobody told a publish that waits for {name} that there is room")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(what)
