"""Push over a broker in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from mpbroker import (
    AttemptOutcome,
    CallbackSubscriber,
    DeadLetterReason,
    DedupingSubscriber,
    Message,
    MessageBroker,
    MessagePriority,
    RetryPolicy,
    SubscriptionStats,
)
from mpbroker.errors import SubscriptionBusy, UnknownSubscription
from mpbroker.testing import FakeClock
from tests.push.support import LIMIT_S, Call, Failing, Gate

PUBLISHERS = 4
EACH = 250


def broker_with(*topics: str, clock: FakeClock | None = None) -> MessageBroker:
    broker = MessageBroker() if clock is None else MessageBroker(clock=clock, sleep=clock.sleep)
    for topic in topics:
        broker.create_topic(topic)
    return broker


def ignore(message: Message) -> None:
    """Process a message without a trace."""


class Watching:
    """A callback that notes what came, and how many calls ran at once."""

    def __init__(self) -> None:
        self.payloads: list[tuple[int, int]] = []
        self.sequences: list[int] = []
        self.most = 0
        self._active = 0

    def __call__(self, message: Message) -> None:
        self._active += 1
        self.most = max(self.most, self._active)
        self.payloads.append(message.payload)
        self.sequences.append(message.sequence)
        self._active -= 1


# -- order and isolation ---------------------------------------------------------------------------


def test_under_many_publishers_each_subscriber_gets_all_in_one_order_one_call_at_a_time() -> None:
    first, second = Watching(), Watching()
    begin = threading.Barrier(PUBLISHERS, timeout=LIMIT_S)
    with broker_with("orders") as broker:
        broker.subscribe("orders", CallbackSubscriber("first", first))
        broker.subscribe("orders", CallbackSubscriber("second", second))
        broker.start()

        def publish(publisher: int) -> None:
            begin.wait()
            for number in range(EACH):
                broker.publish("orders", (publisher, number))

        calls = [Call(partial(publish, publisher)) for publisher in range(PUBLISHERS)]
        for call in calls:
            call.result()
        assert broker.wait_idle(LIMIT_S) is True
    assert first.sequences == second.sequences == list(range(1, PUBLISHERS * EACH + 1))
    for publisher in range(PUBLISHERS):
        numbers = [number for origin, number in first.payloads if origin == publisher]
        assert numbers == list(range(EACH))
    assert (first.most, second.most) == (1, 1)


def test_a_subscriber_that_is_stuck_holds_up_neither_publishers_nor_other_subscribers() -> None:
    gate, quick = Gate(), Watching()
    with broker_with("orders") as broker:
        stuck = broker.subscribe("orders", CallbackSubscriber("stuck", gate))
        other = broker.subscribe("orders", CallbackSubscriber("quick", quick))
        broker.start()
        broker.publish_many("orders", [(0, number) for number in range(100)])
        gate.wait_until_entered()
        assert other.wait_idle(LIMIT_S) is True
        assert (stuck.stats().in_flight, stuck.pending) == (1, 99)
        gate.open()
        assert broker.wait_idle(LIMIT_S) is True
    assert gate.seen == [f"m{number}" for number in range(1, 101)]


def test_more_urgent_messages_come_first() -> None:
    seen: list[str] = []
    broker = broker_with("orders")
    broker.subscribe("orders", CallbackSubscriber("billing", lambda m: seen.append(m.payload)))
    for priority in MessagePriority:
        broker.publish("orders", priority.name, priority=priority)
    assert broker.run_until_idle() == 4
    assert seen == ["CRITICAL", "HIGH", "NORMAL", "LOW"]


# -- attempts --------------------------------------------------------------------------------------


def test_a_failing_message_is_tried_on_the_schedule_of_its_policy_and_then_dead() -> None:
    clock = FakeClock()
    broker = broker_with("orders", clock=clock)
    callback = Failing()
    policy = RetryPolicy(max_attempts=4, base_delay=1.0, multiplier=3.0, max_delay=5.0)
    billing = broker.subscribe("orders", CallbackSubscriber("billing", callback), retry=policy)
    message = broker.publish("orders", "first")
    assert broker.run_until_idle() == 1
    assert clock.sleeps == [1.0, 3.0, 5.0]
    assert callback.seen == ["m1"] * 4
    [letter] = broker.dead_letters(billing.subscription_id)
    assert (letter.message, letter.reason) == (message, DeadLetterReason.RETRIES_EXHAUSTED)
    assert (letter.error, letter.attempts) == ("ValueError: failure 4", 4)
    assert [(each.number, each.outcome, each.error) for each in letter.history] == [
        (number, AttemptOutcome.FAILED, f"ValueError: failure {number}") for number in range(1, 5)
    ]
    assert [each.ended - each.started for each in letter.history] == [0.0, 1.0, 3.0, 5.0]


def test_a_push_subscription_has_the_default_policy() -> None:
    clock = FakeClock()
    broker = broker_with("orders", clock=clock)
    broker.subscribe("orders", CallbackSubscriber("billing", Failing()))
    broker.publish("orders", "first")
    broker.run_until_idle()
    assert clock.sleeps == [RetryPolicy().delay(attempt) for attempt in range(1, 5)]


def test_messages_of_any_priority_wait_behind_one_that_is_retried() -> None:
    clock = FakeClock()
    broker = broker_with("orders", clock=clock)
    seen: list[str] = []

    def callback(message: Message) -> None:
        seen.append(message.payload)
        if seen == ["slow"]:
            broker.publish("orders", "urgent", priority=MessagePriority.CRITICAL)
        if len(seen) < 3:
            raise ValueError

    broker.subscribe("orders", CallbackSubscriber("billing", callback))
    broker.publish("orders", "slow", priority=MessagePriority.LOW)
    assert broker.run_until_idle() == 2
    assert seen == ["slow", "slow", "slow", "urgent"]


def test_what_a_dispatcher_holds_is_not_taken_back_however_long_it_takes() -> None:
    clock = FakeClock()
    broker = broker_with("orders", clock=clock)
    expired: list[int] = []

    def callback(_: Message) -> None:
        clock.advance(1_000_000.0)
        expired.append(broker.expire())

    billing = broker.subscribe("orders", CallbackSubscriber("billing", callback), ack_timeout=1.0)
    broker.publish("orders", "first")
    assert billing.dispatch_one() is True
    assert (expired, billing.delivered) == ([0], 1)


def test_a_redriven_dead_letter_is_dispatched_again() -> None:
    clock = FakeClock()
    broker = broker_with("orders", clock=clock)
    callback = Failing(times=2)
    billing = broker.subscribe("orders", CallbackSubscriber("billing", callback), retry=RetryPolicy(max_attempts=2))
    broker.publish("orders", "first")
    assert broker.run_until_idle() == 1
    assert broker.redrive(billing.subscription_id) == 1
    assert broker.run_until_idle() == 1
    assert (len(callback.seen), billing.delivered) == (3, 1)


def test_a_message_offered_again_is_processed_once_behind_deduplication() -> None:
    broker = broker_with("orders")
    seen: list[Message] = []
    inner = CallbackSubscriber("billing", seen.append)
    billing = broker.subscribe("orders", DedupingSubscriber(inner))
    message = broker.publish("orders", "first")
    broker.run_until_idle()
    assert billing.offer(message) is True
    assert broker.run_until_idle() == 1
    assert (seen, billing.delivered) == ([message], 2)


def test_an_interrupt_in_a_subscriber_leaves_the_message_ready_and_uncounted() -> None:
    broker = broker_with("orders")
    callback = Failing(times=1, error=KeyboardInterrupt())
    billing = broker.subscribe("orders", CallbackSubscriber("billing", callback), retry=None)
    broker.publish("orders", "first")
    with pytest.raises(KeyboardInterrupt):
        broker.run_until_idle()
    assert (billing.stats().ready, billing.stats().in_flight) == (1, 0)
    billing.close()
    [delivery] = billing.poll("w")
    assert (delivery.attempt, delivery.redelivered) == (1, True)


# -- exclusive -------------------------------------------------------------------------------------


def test_while_a_dispatcher_is_attached_nobody_polls() -> None:
    broker = broker_with("orders")
    billing = broker.subscribe("orders", CallbackSubscriber("billing", ignore))
    broker.publish("orders", "first")
    assert billing.poll("w") != []
    billing.dispatch_one(block=False)
    with pytest.raises(SubscriptionBusy):
        billing.poll("w")
    billing.close()
    assert billing.poll("w") == []


def test_a_poll_that_waits_is_refused_when_a_dispatcher_comes() -> None:
    broker = broker_with("orders")
    billing = broker.subscribe("orders", CallbackSubscriber("billing", ignore))
    begun = threading.Event()

    def poll() -> object:
        begun.set()
        return billing.poll("w", timeout=LIMIT_S)

    waiting = Call(poll)
    assert begun.wait(LIMIT_S)
    billing.dispatch_one(block=False)
    with pytest.raises(SubscriptionBusy):
        waiting.result()


def test_a_subscription_without_a_subscriber_cannot_be_dispatched() -> None:
    broker = broker_with("orders")
    with pytest.raises(TypeError, match="no subscriber"):
        broker.subscribe("orders", "billing").dispatch_one()


# -- threads and their end -------------------------------------------------------------------------


def test_a_closed_broker_has_finished_its_call_and_keeps_the_rest() -> None:
    gate = Gate()
    broker = broker_with("orders")
    billing = broker.subscribe("orders", CallbackSubscriber("billing", gate))
    broker.start()
    broker.publish_many("orders", ["first", "second"])
    gate.wait_until_entered()
    closing = Call(broker.close)
    gate.open()
    closing.result()
    assert billing.stats().acked >= 1
    assert billing.stats().acked + billing.stats().ready == 2
    broker.close()


def test_a_close_while_a_message_waits_for_its_next_attempt_gives_it_back() -> None:
    broker = broker_with("orders")
    failed = threading.Event()

    def callback(_: Message) -> None:
        failed.set()
        raise ValueError

    policy = RetryPolicy(max_attempts=2, base_delay=1e9, max_delay=1e9)
    billing = broker.subscribe("orders", CallbackSubscriber("billing", callback), retry=policy)
    broker.start()
    broker.publish("orders", "first")
    assert failed.wait(LIMIT_S)
    broker.close()
    [delivery] = billing.poll("w")
    assert delivery.attempt == 2


@pytest.mark.parametrize("threaded", [False, True])
def test_a_subscriber_may_end_its_own_subscription(threaded: bool) -> None:
    with broker_with("orders", "other") as broker:
        seen: list[Message] = []

        def callback(message: Message) -> None:
            seen.append(message)
            broker.unsubscribe("orders", "billing")

        broker.subscribe("orders", CallbackSubscriber("billing", callback))
        for _ in range(2):
            broker.publish("orders", "first")
        if threaded:
            broker.start()
        else:
            broker.run_until_idle()
        assert broker.wait_idle(LIMIT_S) is True
    assert len(seen) == 1
    with pytest.raises(UnknownSubscription):
        broker.subscription("orders", "billing")


def test_a_deleted_topic_ends_the_threads_of_its_subscribers() -> None:
    with broker_with("orders") as broker:
        before = threading.active_count()
        for name in ("first", "second"):
            broker.subscribe("orders", CallbackSubscriber(name, ignore))
        broker.start()
        broker.delete_topic("orders")
        for thread in threading.enumerate():
            if thread.name.startswith("mpbroker-push"):
                thread.join(LIMIT_S)
        # The janitor is the one that start() adds besides.
        assert threading.active_count() == before + 1
        assert broker.wait_idle(LIMIT_S) is True


def test_a_subscription_made_anew_under_the_same_name_is_dispatched_anew() -> None:
    with broker_with("orders") as broker:
        seen: list[str] = []
        subscriber = CallbackSubscriber("billing", lambda m: seen.append(m.payload))
        broker.start()
        for number in range(5):
            broker.subscribe("orders", subscriber)
            broker.publish("orders", f"{number}")
            assert broker.wait_idle(LIMIT_S) is True
            broker.unsubscribe("orders", "billing")
    assert seen == ["0", "1", "2", "3", "4"]


# -- no lock is held while a subscriber runs -------------------------------------------------------


def every_verb(broker: MessageBroker) -> None:
    """Everything that takes a lock of the broker or of the subscription that is being pushed."""
    billing = broker.subscription("orders", "billing")
    broker.publish("orders", "again", {"made": "within"})
    broker.create_topic("more", exist_ok=True)
    worker = broker.subscribe("more", "worker")
    broker.publish("more", "work")
    [delivery] = worker.poll("w")
    assert delivery.ack()
    broker.subscribe("more", CallbackSubscriber("pushed", ignore))
    broker.unsubscribe("more", "pushed")
    broker.expire()
    broker.next_deadline()
    billing.stats()
    billing.ack("m1", "nobody")
    broker.dead_letters()
    broker.delete_topic("more")


@pytest.mark.parametrize("run", [lambda job: job(), lambda job: Call(job).result()])
@pytest.mark.parametrize("threaded", [False, True])
def test_a_subscriber_may_use_every_verb_from_its_own_thread_and_wait_for_another_that_does(
    threaded: bool, run: Callable[[Callable[[], None]], None]
) -> None:
    done: list[str] = []
    with broker_with("orders") as broker:

        def callback(message: Message) -> None:
            if "made" not in message.headers:
                run(lambda: every_verb(broker))
            done.append(message.payload)

        billing = broker.subscribe("orders", CallbackSubscriber("billing", callback), retry=None)
        broker.publish("orders", "first")
        if threaded:
            broker.start()
        else:
            broker.run_until_idle()
        assert broker.wait_idle(LIMIT_S) is True
    assert (done, billing.dead_lettered) == (["first", "again"], 0)


def test_a_subscriber_may_pump_the_others_and_close_the_broker() -> None:
    broker = broker_with("orders", "mails")
    order: list[str] = []

    def bill(message: Message) -> None:
        broker.publish("mails", f"mail of {message.payload}")
        assert broker.run_until_idle() == 1
        order.append("billed")
        broker.close()

    broker.subscribe("orders", CallbackSubscriber("billing", bill))
    broker.subscribe("mails", CallbackSubscriber("mailer", lambda m: order.append(m.payload)))
    broker.publish("orders", "first")
    broker.publish("orders", "second")
    assert broker.run_until_idle() == 1
    assert order == ["mail of first", "billed"]
    assert broker.run_until_idle() == 1
    assert order == ["mail of first", "billed", "mail of second", "billed"]


# -- waiting for idle ------------------------------------------------------------------------------


def test_a_chain_of_subscribers_is_idle_only_when_the_last_has_finished() -> None:
    topics = [f"step-{number}" for number in range(6)]
    with broker_with(*topics) as broker:
        ended: list[object] = []

        def pass_on(position: int) -> Callable[[Message], object]:
            def callback(message: Message) -> None:
                if position:
                    broker.publish(topics[position - 1], message.payload)
                else:
                    ended.append(message.payload)

            return callback

        subscriptions = [
            broker.subscribe(topic, CallbackSubscriber("worker", pass_on(position)))
            for position, topic in enumerate(topics)
        ]
        broker.start()
        for number in range(50):
            broker.publish(topics[-1], number)
            assert broker.wait_idle(LIMIT_S) is True
            assert len(ended) == number + 1
        stats: list[SubscriptionStats] = [each.stats() for each in subscriptions]
        assert [(each.acked, each.backlog, each.in_flight) for each in stats] == [(50, 0, 0)] * 6


def test_waiting_for_idle_gives_up_when_its_time_is_over() -> None:
    broker = broker_with("orders")
    broker.subscribe("orders", CallbackSubscriber("billing", ignore))
    broker.publish("orders", "first")
    assert broker.wait_idle(0.0) is False
    assert broker.wait_idle(0.001) is False
    broker.run_until_idle()
    assert broker.wait_idle(0.0) is True
