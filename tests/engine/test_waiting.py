"""A take that waits: for what comes, for what comes back, and at which time it takes it."""

from __future__ import annotations

import pytest

from mpbroker.engine.leases import Lease
from mpbroker.testing import FakeClock
from tests.conformance.support import Call, until
from tests.engine.bench import Bench, sequences


@pytest.fixture
def clock() -> FakeClock:
    """It stands still: only the wait itself takes time."""
    return FakeClock()


def waiting(bench: Bench, clock: FakeClock, timeout: float | None) -> Call[list[Lease]]:
    """A take that has begun to wait."""
    call = Call(lambda: bench.s.take_waiting("v", clock, 10, timeout))
    until(lambda: bench.s._waiting == 1)
    return call


def test_it_gets_what_comes_back_at_the_end_of_a_lease_though_nobody_tells_it(clock: FakeClock) -> None:
    bench = Bench(ack_timeout=0.05)
    bench.publish(1)
    (lost,) = bench.take(now=clock())
    (lease,) = Call(lambda: bench.s.take_waiting("v", clock, 10, None)).result()
    assert (sequences([lease]), lease.attempt) == ([1], 2)
    # It was taken at that moment, and no later one: that is where its own lease begins.
    assert lease.deadline == pytest.approx(lost.deadline + 0.05)


@pytest.mark.parametrize("timeout", [None, 1000.0])
def test_what_comes_while_it_waits_is_taken_at_the_time_at_which_it_comes(
    clock: FakeClock, timeout: float | None
) -> None:
    bench = Bench(ack_timeout=5.0)
    call = waiting(bench, clock, timeout)
    clock.advance(2.0)
    bench.publish(1)
    (lease,) = call.result()
    assert lease.deadline == clock() + 5.0


def test_who_waits_no_more_is_not_counted_as_waiting(clock: FakeClock) -> None:
    bench = Bench()
    call = waiting(bench, clock, None)
    bench.publish(1)
    assert sequences(call.result()) == [1]
    assert bench.s._waiting == 0


def test_a_dispatcher_waits_while_the_subscription_is_its_own(clock: FakeClock) -> None:
    bench = Bench()
    member = bench.s.attach_dispatcher("owner")
    call = Call(lambda: bench.s.take_waiting(member, clock, 10, None, dispatcher=True))
    until(lambda: bench.s._waiting == 1)
    bench.s.detach_dispatcher(member, "owner")
    assert call.result() == []
    bench.publish(1)
    assert bench.s.take_waiting(member, clock, 10, None, dispatcher=True) == []
