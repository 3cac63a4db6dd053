"""All dispatchers of a process together."""

from __future__ import annotations

import threading

import pytest

from mpbroker import Message, SubscriptionStats
from mpbroker.errors import BrokerGone, SubscriptionBusy
from mpbroker.push.dispatcher import Dispatcher, DispatcherPool
from tests.push.support import (
    BROKER_GONE,
    LIMIT_S,
    Call,
    Failing,
    FakeSubscription,
    Gate,
    dispatcher_of,
    happens,
)


def ignore(message: Message) -> None:
    """Process a message without a trace."""


def pool_of(*dispatchers: Dispatcher) -> DispatcherPool:
    pool = DispatcherPool()
    for dispatcher in dispatchers:
        pool.add(dispatcher)
    return pool


# -- in the caller's thread ------------------------------------------------------------------------


def test_pumping_finishes_all_there_is_and_counts_it() -> None:
    first, second = FakeSubscription(), FakeSubscription()
    for subscription in (first, second, second):
        subscription.publish()
    pool = pool_of(dispatcher_of(first, ignore), dispatcher_of(second, ignore))
    assert pool.run_until_idle() == 3
    assert pool.run_until_idle() == 0
    assert (first.acked, second.acked) == (["m1"], ["m1", "m2"])


def test_pumping_takes_one_message_of_each_in_turn() -> None:
    order: list[str] = []
    first, second = FakeSubscription(), FakeSubscription()
    pool = pool_of(
        dispatcher_of(first, lambda m: order.append(f"first {m.message_id}")),
        dispatcher_of(second, lambda m: order.append(f"second {m.message_id}")),
    )
    for _ in range(2):
        first.publish()
        second.publish()
    pool.run_until_idle()
    assert order == ["first m1", "second m1", "first m2", "second m2"]


def test_pumping_includes_what_subscribers_publish_to_each_other() -> None:
    ping, pong = FakeSubscription(), FakeSubscription()
    pool = pool_of(
        dispatcher_of(ping, lambda m: pong.publish(m.payload)),
        dispatcher_of(pong, lambda m: ping.publish(m.payload - 1) if m.payload else None),
    )
    ping.publish(3)
    assert pool.run_until_idle() == 8
    assert (ping.ready, pong.ready) == ([], [])


def test_pumping_includes_dispatchers_that_are_added_meanwhile() -> None:
    first, second = FakeSubscription(), FakeSubscription()
    pool = pool_of(dispatcher_of(first, lambda _: pool.add(dispatcher_of(second, ignore))))
    first.publish()
    second.publish()
    assert pool.run_until_idle() == 2


def test_dead_letters_count_as_finished_and_what_was_taken_away_does_not() -> None:
    dead, taken = FakeSubscription(), FakeSubscription()
    calls: list[str] = []

    def take_away_once(message: Message) -> None:
        calls.append(message.message_id)
        if len(calls) == 1:
            taken.take_away()

    pool = pool_of(dispatcher_of(dead, Failing(), lambda _: None), dispatcher_of(taken, take_away_once))
    dead.publish()
    assert pool.run_until_idle() == 1
    taken.publish()
    assert pool.run_until_idle() == 1
    assert ([each for each, _ in dead.dead], calls, taken.acked) == (["m1"], ["m1", "m1"], ["m1"])


def test_a_dispatcher_added_twice_is_pumped_once_a_round() -> None:
    order: list[str] = []
    first, second = FakeSubscription(), FakeSubscription()
    twice = dispatcher_of(first, lambda _: order.append("first"))
    pool = pool_of(twice, twice, dispatcher_of(second, lambda _: order.append("second")))
    for _ in range(2):
        first.publish()
        second.publish()
    pool.run_until_idle()
    assert order == ["first", "second", "first", "second"]


def test_pumping_drops_a_dispatcher_whose_subscription_was_deleted() -> None:
    deleted, other = FakeSubscription(), FakeSubscription()
    pool = pool_of(dispatcher_of(deleted, ignore), dispatcher_of(other, ignore))
    deleted.end()
    other.publish()
    assert pool.run_until_idle() == 1
    deleted.gone = None
    deleted.publish()
    assert pool.run_until_idle() == 0


def test_pumping_goes_on_when_a_subscriber_ends_its_own_subscription() -> None:
    first, second = FakeSubscription(), FakeSubscription()
    pool = DispatcherPool()

    def end_first(_: Message) -> None:
        pool.discard(of_first)

    of_first = dispatcher_of(first, end_first)
    pool.add(of_first)
    pool.add(dispatcher_of(second, ignore))
    for subscription in (first, first, second):
        subscription.publish()
    assert pool.run_until_idle() == 2
    assert first.ready == ["m2"]


def test_pumping_from_within_a_subscriber_leaves_its_own_dispatcher_out() -> None:
    first, second = FakeSubscription(), FakeSubscription()
    counts: list[int] = []
    pool = pool_of(
        dispatcher_of(first, lambda _: counts.append(pool.run_until_idle())),
        dispatcher_of(second, ignore),
    )
    for subscription in (first, first, second):
        subscription.publish()
    assert pool.run_until_idle() == 2
    assert counts == [1, 0]


def test_pumping_leaves_out_dispatchers_that_have_a_thread() -> None:
    threaded, pumped = FakeSubscription(), FakeSubscription()
    gate = Gate()
    in_a_thread = dispatcher_of(threaded, gate)
    pool = pool_of(in_a_thread, dispatcher_of(pumped, ignore))
    in_a_thread.start()
    threaded.publish()
    gate.wait_until_entered()
    pumped.publish()
    assert pool.run_until_idle() == 1
    gate.open()
    pool.close()


def test_pumping_ends_when_a_subscriber_closes_the_pool() -> None:
    subscription = FakeSubscription()
    pool = pool_of(dispatcher_of(subscription, lambda _: pool.close()))
    for _ in range(2):
        subscription.publish()
    assert pool.run_until_idle() == 1
    assert (subscription.ready, subscription.member) == (["m2"], None)
    assert pool.run_until_idle() == 1


def test_pumping_what_another_process_dispatches_is_refused() -> None:
    subscription = FakeSubscription()
    subscription.member = "$dispatcher-99"
    with pytest.raises(SubscriptionBusy):
        pool_of(dispatcher_of(subscription, ignore)).run_until_idle()


def test_the_end_of_the_broker_is_told_to_who_pumps_or_waits() -> None:
    subscription = FakeSubscription()
    pool = pool_of(dispatcher_of(subscription, ignore))
    subscription.end(BROKER_GONE)
    with pytest.raises(BrokerGone):
        pool.run_until_idle()
    with pytest.raises(BrokerGone):
        pool.wait_idle()
    pool.close()


def test_an_interrupt_ends_the_pump_and_loses_nothing() -> None:
    subscription = FakeSubscription()
    interrupts = [KeyboardInterrupt()]

    def callback(_: Message) -> None:
        if interrupts:
            raise interrupts.pop()

    pool = pool_of(dispatcher_of(subscription, callback))
    subscription.publish()
    with pytest.raises(KeyboardInterrupt):
        pool.run_until_idle()
    assert pool.run_until_idle() == 1


# -- in threads ------------------------------------------------------------------------------------


def test_a_started_pool_gives_a_thread_to_each_dispatcher_now_and_later() -> None:
    now, later = FakeSubscription(), FakeSubscription()
    pool = pool_of(dispatcher_of(now, ignore))
    pool.start()
    pool.start()
    pool.add(dispatcher_of(later, ignore))
    now.publish()
    later.publish()
    assert pool.wait_idle(LIMIT_S) is True
    assert (now.acked, later.acked) == (["m1"], ["m1"])
    pool.close()


def test_a_dispatcher_whose_thread_ended_gets_a_new_one_when_it_is_added_again() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, ignore)
    pool = pool_of(dispatcher)
    pool.start()
    dispatcher.close()
    pool.add(dispatcher)
    subscription.publish()
    assert pool.wait_idle(LIMIT_S) is True
    pool.close()


def test_a_slow_subscriber_holds_up_nobody_else() -> None:
    slow, quick = FakeSubscription(), FakeSubscription()
    gate = Gate()
    pool = pool_of(dispatcher_of(slow, gate), dispatcher_of(quick, ignore))
    pool.start()
    slow.publish()
    gate.wait_until_entered()
    for _ in range(10):
        slow.publish()
        quick.publish()
    assert quick._wait_idle(LIMIT_S)
    assert len(slow.ready) == 10
    gate.open()
    assert pool.wait_idle(LIMIT_S) is True
    assert slow.acked == [f"m{number}" for number in range(1, 12)]
    pool.close()


def test_a_closed_pool_has_no_thread_and_can_be_started_again() -> None:
    subscription = FakeSubscription()
    pool = pool_of(dispatcher_of(subscription, ignore))
    for number in range(1, 3):
        pool.start()
        subscription.publish()
        assert pool.wait_idle(LIMIT_S) is True
        pool.close()
        pool.close()
        assert (len(subscription.acked), subscription.member) == (number, None)


def test_a_dispatcher_added_to_a_closed_pool_gets_no_thread() -> None:
    subscription = FakeSubscription()
    pool = DispatcherPool()
    pool.start()
    pool.close()
    pool.add(dispatcher_of(subscription, ignore))
    subscription.publish()
    assert pool.wait_idle(0.0) is False


def test_a_subscriber_may_close_the_pool_whose_thread_it_is_in() -> None:
    first, second = FakeSubscription(), FakeSubscription()
    both = threading.Barrier(2, timeout=LIMIT_S)

    def close(_: Message) -> None:
        both.wait()
        pool.close()

    pool = pool_of(dispatcher_of(first, close), dispatcher_of(second, close))
    first.publish()
    second.publish()
    pool.start()
    assert pool.wait_idle(LIMIT_S) is True
    pool.close()
    assert (first.acked, second.acked) == (["m1"], ["m1"])


def test_a_close_waits_for_the_call_of_a_discarded_dispatcher() -> None:
    subscription = FakeSubscription()
    gate = Gate()
    dispatcher = dispatcher_of(subscription, gate)
    pool = pool_of(dispatcher)
    pool.start()
    subscription.publish()
    gate.wait_until_entered()
    pool.discard(dispatcher)
    closing = Call(pool.close)
    gate.open()
    closing.result()
    assert (subscription.acked, subscription.member) == (["m1"], None)


def test_a_discarded_dispatcher_stops_waiting_for_messages() -> None:
    subscription = FakeSubscription()
    dispatcher = dispatcher_of(subscription, ignore)
    pool = pool_of(dispatcher)
    pool.start()
    happens(subscription.parked)
    pool.discard(dispatcher)
    pool.discard(dispatcher)
    for thread in threading.enumerate():
        if thread.name.startswith("mpbroker-push"):
            thread.join(LIMIT_S)
    assert subscription.member is None
    pool.close()
    subscription.publish()
    assert pool.run_until_idle() == 0


def test_a_started_pool_forgets_what_was_deleted() -> None:
    subscription = FakeSubscription()
    pool = pool_of(dispatcher_of(subscription, ignore))
    pool.start()
    happens(subscription.parked)
    subscription.end()
    pool.close()
    assert pool._all() == []


def test_a_close_that_fails_for_one_dispatcher_still_reaches_the_others() -> None:
    refusing, others = FakeSubscription(), [FakeSubscription(), FakeSubscription()]
    pool = pool_of(*(dispatcher_of(each, ignore) for each in (others[0], refusing, others[1])))
    pool.run_until_idle()
    refusing.gone = SubscriptionBusy("a refusal that no broker gives")
    with pytest.raises(SubscriptionBusy):
        pool.close()
    assert [each.member for each in others] == [None, None]


# -- waiting for idle ------------------------------------------------------------------------------


def test_without_a_dispatcher_all_is_idle() -> None:
    assert DispatcherPool().wait_idle() is True


def test_a_message_that_nobody_dispatches_is_not_idle() -> None:
    subscription = FakeSubscription()
    pool = pool_of(dispatcher_of(subscription, ignore))
    subscription.publish()
    assert pool.wait_idle(0.0) is False
    pool.run_until_idle()
    assert pool.wait_idle(0.0) is True


def test_a_message_in_work_is_not_idle() -> None:
    subscription = FakeSubscription()
    gate = Gate()
    pool = pool_of(dispatcher_of(subscription, gate))
    pool.start()
    subscription.publish()
    gate.wait_until_entered()
    assert pool.wait_idle(0.0) is False
    gate.open()
    assert pool.wait_idle(LIMIT_S) is True
    pool.close()


def test_what_was_deleted_is_idle() -> None:
    subscription = FakeSubscription()
    pool = pool_of(dispatcher_of(subscription, ignore))
    subscription.publish()
    subscription.end()
    assert pool.wait_idle() is True


class Ball:
    """One message that moves on between two subscriptions whenever either is about to be looked at,
    to the one that is not; at most so many times.
    """

    def __init__(self, moves: float) -> None:
        self.left = moves
        self.sides = [Side(self), Side(self)]
        self.sides[1].publish()

    def dodge(self, side: Side) -> None:
        if self.left > 0 and side.ready:
            self.left -= 1
            self.sides[1 - self.sides.index(side)].publish()
            side.acked.append(side._ready.pop().message_id)


class Side(FakeSubscription):
    def __init__(self, ball: Ball) -> None:
        super().__init__()
        self._ball = ball

    def _wait_idle(self, timeout: float | None) -> bool:
        self._ball.dodge(self)
        return super()._wait_idle(timeout)

    def _stats(self, now: float | None) -> SubscriptionStats:
        self._ball.dodge(self)
        return super()._stats(now)


@pytest.mark.parametrize("moves", range(1, 9))
def test_a_message_that_moves_on_behind_the_back_of_every_look_is_seen(moves: int) -> None:
    ball = Ball(moves)
    pool = pool_of(*(dispatcher_of(side, ignore) for side in ball.sides))
    assert pool.wait_idle(0.001) is False
    pool.run_until_idle()
    assert pool.wait_idle() is True


def test_a_message_in_work_is_seen_by_the_look_itself() -> None:
    class Hasty(FakeSubscription):
        def _wait_idle(self, timeout: float | None) -> bool:
            return True

    subscription = Hasty()
    pool = pool_of(dispatcher_of(subscription, ignore))
    subscription.publish()
    subscription._poll(subscription._attach_dispatcher(), None, 1, 0.0)
    assert pool.wait_idle(0.0) is False


def test_waiting_ends_in_time_although_a_message_moves_on_all_the_time() -> None:
    ball = Ball(float("inf"))
    pool = pool_of(*(dispatcher_of(side, ignore) for side in ball.sides))
    assert pool.wait_idle(0.0) is False


def test_messages_that_go_round_in_circles_are_never_idle_until_they_end() -> None:
    first, second = FakeSubscription(), FakeSubscription()
    pool = pool_of(
        dispatcher_of(first, lambda m: second.publish(m.payload)),
        dispatcher_of(second, lambda m: first.publish(m.payload - 1) if m.payload else None),
    )
    pool.start()
    first.publish(200)
    assert pool.wait_idle(LIMIT_S) is True
    assert (len(first.acked), len(second.acked)) == (201, 201)
    pool.close()


def test_a_subscription_made_by_a_subscriber_is_waited_for_too() -> None:
    first, second = FakeSubscription(), FakeSubscription()
    gate = Gate()

    def add_another(_: Message) -> None:
        pool.add(dispatcher_of(second, gate))
        second.publish()

    pool = pool_of(dispatcher_of(first, add_another))
    pool.start()
    first.publish()
    gate.wait_until_entered()
    assert pool.wait_idle(0.0) is False
    gate.open()
    assert pool.wait_idle(LIMIT_S) is True
    assert second.acked == ["m1"]
    pool.close()
