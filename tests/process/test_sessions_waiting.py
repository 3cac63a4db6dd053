"""Polls that wait: in fair order, answered exactly when due and exactly once."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.process import frames, payloads
from mpbroker.process.frames import Answers, Failed, Granted
from tests.process.driver import Broker, publish, sequences, tokens


@pytest.fixture
def broker() -> Broker:
    return Broker()


# -- order ------------------------------------------------------------------------------------------------------------


def test_a_poll_with_no_timeout_answers_at_once(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    assert call.poll(number) == []
    assert broker.sessions.next_due() is None


def test_a_waiting_poll_gets_the_first_message(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    call.wait(number)
    broker.call().publish("t", "hello")
    assert sequences(call.granted()) == [1]


def test_who_came_first_is_served_first(broker: Broker) -> None:
    publisher = broker.call()
    number = publisher.subscribe("t", "s")
    workers = [broker.call() for _ in range(4)]
    for worker in workers:
        worker.wait(number)
    publisher.publish("t", 1, 2)
    publisher.publish("t", 3)
    assert [sequences(worker.granted()) for worker in workers[:3]] == [[1], [2], [3]]
    assert workers[3].waits


def test_who_was_served_goes_to_the_end_of_the_line(broker: Broker) -> None:
    publisher = broker.call()
    number = publisher.subscribe("t", "s")
    first, second = broker.call(), broker.call()
    for worker in (first, second):
        worker.wait(number)
    served = []
    for _ in range(6):
        publisher.publish("t", 1)
        worker = first if first.inbox else second
        served.append(worker)
        worker.granted()
        worker.wait(number)
    assert served == [first, second] * 3


def test_one_who_waits_for_many_gets_what_is_there(broker: Broker) -> None:
    publisher = broker.call()
    number = publisher.subscribe("t", "s")
    worker = broker.call()
    worker.wait(number, count=100)
    publisher.publish("t", *range(5))
    assert sequences(worker.granted()) == [1, 2, 3, 4, 5]


def test_what_comes_back_goes_to_whoever_waits(broker: Broker) -> None:
    publisher = broker.call()
    number = publisher.subscribe("t", "s")
    holder, worker = broker.call(), broker.call()
    publisher.publish("t", 1, 2, 3)
    held = tokens(holder.poll(number, count=3))
    for token, request in zip(
        held,
        (
            frames.Nack(number, held[0], None, None, "no", None),
            frames.Release(number, held[1], None),
            frames.Nack(number, held[2], None, 0.0, "no", None),
        ),
        strict=True,
    ):
        worker.wait(number)
        assert holder.ask(request, Answers).values == [True]
        (grant,) = worker.granted()
        assert grant.redelivered
        assert worker.ack(number, *tokens([grant])) == [True]
        assert token not in tokens([grant])


def test_what_is_redriven_or_offered_goes_to_whoever_waits(broker: Broker) -> None:
    call, worker = broker.call(), broker.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    assert call.ask(frames.Reject(number, token, None, "bad"), Answers).values == [True]
    worker.wait(number)
    assert call.ask(frames.Redrive("t/s", None, None), frames.Number).value == 1
    assert sequences(worker.granted()) == [1]
    other = call.subscribe("t", "other")
    worker.wait(other)
    payload = msgspec.Raw(payloads.encode_payload(1))
    offer = frames.Offer(other, payload, {}, 1, 5.0, 1, f"{broker.engine.incarnation}-1")
    assert call.ask(offer, Answers).values == [True]
    assert sequences(worker.granted()) == [1]


def test_polls_of_other_subscriptions_go_on_waiting(broker: Broker) -> None:
    call = broker.call()
    first, second = call.subscribe("t", "a"), call.subscribe("u", "b")
    one, two = broker.call(), broker.call()
    one.wait(first)
    two.wait(second)
    call.publish("t", 1)
    assert one.granted()
    assert two.waits


def test_every_subscription_wakes_its_own_polls(broker: Broker) -> None:
    call = broker.call()
    numbers = [call.subscribe("t", f"s{n}") for n in range(5)]
    workers = [broker.call() for _ in numbers]
    for worker, number in zip(workers, numbers, strict=True):
        worker.wait(number)
    call.publish("t", 1)
    assert [sequences(worker.granted()) for worker in workers] == [[1]] * 5


def test_a_message_that_killed_its_worker_comes_alone_to_one_that_waits(broker: Broker) -> None:
    call, worker = broker.call(), broker.call()
    number = call.subscribe("t", "s")
    victim = broker.process()
    call.publish("t", 1, 2, 3)
    assert len(tokens(victim.call().poll(number, count=3))) == 3
    worker.wait(number, count=10)
    others = broker.call()
    others.wait(number, count=10)
    victim.die()
    assert sequences(worker.granted()) == [1]
    assert sequences(others.granted()) == [2]


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_poll_times_out_exactly_when_due(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    call.wait(number, timeout=2.5)
    assert broker.sessions.next_due() == broker.now + 2.5
    broker.later(2.4)
    assert call.waits
    broker.later(0.1)
    assert call.granted() == []
    assert broker.sessions.next_due() is None


def test_a_tick_before_the_time_changes_nothing(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    call.wait(number, timeout=2.5)
    broker.now += 2.0
    broker.carry_out(broker.sessions.tick(broker.now))
    assert call.waits


def test_an_answered_poll_does_not_time_out_as_well(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s", ack_timeout=1000.0)
    call.wait(number, timeout=2.5)
    broker.call().publish("t", 1)
    assert call.granted()
    broker.later(10.0)
    assert call.waits


def test_polls_without_end_wait_for_ever(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    call.wait(number, timeout=None)
    broker.later(1e9)
    assert call.waits


def test_a_lease_that_ends_wakes_a_poll_exactly_then(broker: Broker) -> None:
    holder, worker = broker.call(), broker.call()
    number = holder.subscribe("t", "s", ack_timeout=7.0)
    holder.publish("t", 1)
    holder.poll(number)
    worker.wait(number, timeout=60.0)
    assert broker.sessions.next_due() == broker.now + 7.0
    broker.later(6.999)
    assert worker.waits
    broker.later(0.001)
    (grant,) = worker.granted()
    assert (grant.attempt, grant.redelivered) == (2, True)


def test_a_delayed_copy_wakes_a_poll_exactly_when_it_is_due(broker: Broker) -> None:
    holder, worker = broker.call(), broker.call()
    number = holder.subscribe("t", "s")
    holder.publish("t", 1)
    (token,) = tokens(holder.poll(number))
    worker.wait(number)
    holder.ask(frames.Nack(number, token, None, 3.0, "later", None), Answers)
    assert worker.waits
    assert broker.sessions.next_due() == broker.now + 3.0
    broker.later(3.0)
    assert sequences(worker.granted()) == [1]


def test_a_copy_that_is_due_with_the_timeout_is_handed_over(broker: Broker) -> None:
    holder, worker = broker.call(), broker.call()
    number = holder.subscribe("t", "s", ack_timeout=5.0)
    holder.publish("t", 1)
    holder.poll(number)
    worker.wait(number, timeout=5.0)
    broker.later(5.0)
    assert sequences(worker.granted()) == [1]


def test_leases_end_without_anybody_polling(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s", ack_timeout=5.0, max_deliveries=1)
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    broker.later(5.0)
    assert call.stats(number)["dead"] == 1
    assert call.ack(number, token) == [False]


def test_an_ack_before_the_lease_is_taken_back_counts(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s", ack_timeout=5.0)
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    broker.now += 50.0
    assert call.ack(number, token) == [True]
    assert broker.sessions.next_due() is None


def test_an_extended_lease_is_next_due_at_its_new_time(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s", ack_timeout=5.0)
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    started = broker.now
    broker.later(4.0)
    assert call.ask(frames.Extend(number, token, None, 10.0, None), frames.Moment).value == started + 14.0
    assert broker.sessions.next_due() == started + 14.0
    assert call.ask(frames.NextDeadline(), frames.Moment).value == started + 14.0
    assert call.ask(frames.Extend(number, token, None, 1.0, None), frames.Moment).value == started + 5.0
    assert broker.sessions.next_due() == started + 5.0


def test_what_is_due_first_of_many_subscriptions_is_next(broker: Broker) -> None:
    call = broker.call()
    numbers = [call.subscribe("t", f"s{n}", ack_timeout=100.0 - n) for n in range(5)]
    call.publish("t", 1)
    held = [tokens(call.poll(number)) for number in numbers]
    for number, token in reversed(list(zip(numbers, held, strict=True))):
        assert broker.sessions.next_due() == broker.now + 100.0 - numbers.index(number)
        call.ack(number, *token)
    assert broker.sessions.next_due() is None


def test_work_does_not_grow_with_subscriptions_that_are_not_touched() -> None:
    broker = Broker(is_checked=False)
    call = broker.call()
    numbers = [call.subscribe("t", f"s{n}") for n in range(200)]
    call.publish("t", 1)
    for number in numbers:
        call.poll(number)
    looked_at = []
    for subscription in broker.engine.all_subscriptions():
        true = subscription.next_deadline

        def looked(number: int = subscription.number, true: object = true) -> float | None:
            looked_at.append(number)
            return true()  # type: ignore[operator,no-any-return]

        subscription.next_deadline = looked  # type: ignore[method-assign]
    one = broker.engine.by_number(numbers[100])
    assert one is not None
    body = frames.encode(frames.Poll(one.number, "w", None, 1, 0.0))
    broker.sessions.received(call.id, body, broker.now)
    broker.sessions.next_due()
    broker.sessions.tick(broker.now)
    assert len(looked_at) < 10


def test_a_newcomer_does_not_overtake_who_waits_for_what_is_due_now(broker: Broker) -> None:
    holder, waiting, newcomer = broker.call(), broker.call(), broker.call()
    number = holder.subscribe("t", "s", ack_timeout=5.0)
    holder.publish("t", 1)
    holder.poll(number)
    waiting.wait(number)
    broker.now += 6.0  # the loop is late: the frame is read before the tick
    assert newcomer.poll(number) == []
    assert sequences(waiting.granted()) == [1]


def test_many_polls_that_are_answered_early_leave_no_timers_behind(broker: Broker) -> None:
    call, worker = broker.call(), broker.call()
    number = call.subscribe("t", "s")
    for _ in range(500):
        worker.wait(number, timeout=1000.0)
        call.publish("t", 1)
        worker.ack(number, *tokens(worker.granted()))
    assert len(broker.sessions._desk.timers._heap) < 200


# -- one call on a connection -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [frames.Topics(), frames.Poll(1, "w", None, 1, None)])
def test_a_request_while_another_waits_is_a_violation_and_cancels_the_poll(
    broker: Broker, request_: frames.Frame
) -> None:
    process = broker.process()
    call, other = process.call(), process.call()
    number = other.subscribe("t", "s")
    call.wait(number)
    call.send(request_)
    failed = call.take()
    assert isinstance(failed, Failed)
    assert failed.kind == "ProtocolViolation"
    assert call.is_closed
    other.publish("t", 1)
    assert sequences(other.poll(number)) == [1]


def test_a_waiting_poll_ends_with_its_connection(broker: Broker) -> None:
    process = broker.process()
    call, other = process.call(), process.call()
    number = other.subscribe("t", "s")
    call.wait(number, timeout=5.0)
    call.close()
    assert broker.sessions.next_due() is None
    other.publish("t", 1)
    assert sequences(other.poll(number)) == [1]


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [frames.Unsubscribe("t", "s"), frames.DeleteTopic("t")])
def test_deletion_ends_waiting_calls_with_unknown_subscription(broker: Broker, request_: frames.Frame) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    call.poll(number)
    polls = [broker.call() for _ in range(3)]
    for worker in polls:
        worker.wait(number, timeout=5.0)
    idle = broker.call()
    idle.send(frames.WaitIdle(number, 5.0))
    assert idle.waits
    call.ask(request_, frames.Done)
    for worker in (*polls, idle):
        assert worker.got(Failed) == Failed("UnknownSubscription", ["t/s"])
        assert not worker.is_closed
    assert broker.sessions.next_due() is None
    assert call.failed(frames.Poll(number, "w", None, 1, 0.0)) == Failed("UnknownSubscription", ["t/s"])


def test_a_new_subscription_of_the_same_name_is_another_one(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    call.ask(frames.Unsubscribe("t", "s"), frames.Done)
    again = call.subscribe("t", "s")
    assert again != number
    assert call.ack(number, token) == [False]
    call.publish("t", 2)
    assert call.failed(frames.Poll(number, "w", None, 1, 0.0)).kind == "UnknownSubscription"
    assert sequences(call.poll(again)) == [2]


# -- wait_idle --------------------------------------------------------------------------------------------------------


def test_wait_idle_answers_at_once_when_it_is_or_may_not_wait(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    assert call.ask(frames.WaitIdle(number, None), Answers).values == [True]
    call.publish("t", 1)
    assert call.ask(frames.WaitIdle(number, 0.0), Answers).values == [False]


def test_wait_idle_ends_with_the_last_copy(broker: Broker) -> None:
    call, idle = broker.call(), broker.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1, 2)
    idle.send(frames.WaitIdle(number, None))
    first, second = tokens(call.poll(number, count=2))
    call.ack(number, first)
    assert idle.waits
    call.ack(number, second)
    assert idle.got(Answers).values == [True]


def test_wait_idle_ends_when_the_last_copy_is_set_aside(broker: Broker) -> None:
    call, idle = broker.call(), broker.call()
    number = call.subscribe("t", "s", ack_timeout=5.0, max_deliveries=1)
    call.publish("t", 1)
    call.poll(number)
    idle.send(frames.WaitIdle(number, 60.0))
    broker.later(5.0)
    assert idle.got(Answers).values == [True]


def test_wait_idle_times_out_exactly_when_due(broker: Broker) -> None:
    call, idle = broker.call(), broker.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    idle.send(frames.WaitIdle(number, 4.0))
    broker.later(3.999)
    assert idle.waits
    broker.later(0.001)
    assert idle.got(Answers).values == [False]


# -- dispatchers ------------------------------------------------------------------------------------------------------


def test_a_dispatcher_alone_may_poll(broker: Broker) -> None:
    call, other = broker.call(), broker.call()
    number = call.subscribe("t", "s", push=True)
    member = call.ask(frames.Attach(number), frames.Text).value
    other.publish("t", 1)
    assert other.failed(frames.Poll(number, "w", None, 1, None)) == Failed("SubscriptionBusy", ["t/s"])
    assert other.failed(frames.Attach(number)) == Failed("SubscriptionBusy", ["t/s"])
    (grant,) = call.poll(number, member)
    assert grant.deadline == float("inf")
    assert broker.sessions.next_due() is None


def test_polls_that_wait_are_told_when_a_dispatcher_comes(broker: Broker) -> None:
    call, worker, idle = broker.call(), broker.call(), broker.call()
    number = call.subscribe("t", "s")
    worker.wait(number)
    call.ask(frames.Attach(number), frames.Text)
    assert worker.got(Failed) == Failed("SubscriptionBusy", ["t/s"])
    idle.send(frames.WaitIdle(number, None))
    assert idle.got(Answers).values == [True]


def test_a_dispatchers_poll_waits_too(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    member = call.ask(frames.Attach(number), frames.Text).value
    call.wait(number, member)
    broker.call().publish("t", 1)
    assert sequences(call.granted()) == [1]


def test_detaching_ends_the_dispatchers_poll_with_nothing(broker: Broker) -> None:
    process = broker.process()
    call, other = process.call(), process.call()
    number = call.subscribe("t", "s")
    member = call.ask(frames.Attach(number), frames.Text).value
    call.wait(number, member, timeout=50.0)
    other.ask(frames.Detach(number, member), frames.Done)
    assert call.granted() == []
    assert broker.sessions.next_due() is None


def test_detaching_releases_what_the_dispatcher_holds(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    member = call.ask(frames.Attach(number), frames.Text).value
    call.poll(number, member)
    call.ask(frames.Detach(number, member), frames.Done)
    (grant,) = call.poll(number)
    assert (grant.attempt, grant.redelivered) == (1, True)


def test_a_dispatcher_that_polls_once_detached_gets_nothing_and_is_told_so(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    member = call.ask(frames.Attach(number), frames.Text).value
    call.ask(frames.Detach(number, member), frames.Done)
    call.publish("t", 1)
    assert call.failed(frames.Poll(number, member, None, 1, None)) == Failed("SubscriptionBusy", ["t/s"])
    assert call.stats(number)["ready"] == 1


@pytest.mark.parametrize("member", ["$", "$me", "$dispatcher", "$dispatcher-1"])
def test_nobody_polls_under_the_name_of_anothers_dispatcher(broker: Broker, member: str) -> None:
    call, other = broker.call(), broker.call()
    number = call.subscribe("t", "s")
    assert call.ask(frames.Attach(number), frames.Text).value == "$dispatcher-1"
    call.publish("t", 1)
    polled = other.failed(frames.Poll(number, member, None, 1, 0.0)).kind
    assert polled == ("SubscriptionBusy" if member == "$dispatcher-1" else "InvalidName")
    assert other.failed(frames.Ack(number, member, [1])).kind == "InvalidName"
    assert other.failed(frames.Nack(number, 1, member, None, "", None)).kind == "InvalidName"


def test_nobody_detaches_anothers_dispatcher(broker: Broker) -> None:
    call, other = broker.call(), broker.call()
    number = call.subscribe("t", "s")
    member = call.ask(frames.Attach(number), frames.Text).value
    other.ask(frames.Detach(number, member), frames.Done)
    assert other.failed(frames.Attach(number)).kind == "SubscriptionBusy"
    call.publish("t", 1)
    assert call.poll(number, member)


def test_a_dispatcher_retries_in_place(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s", max_deliveries=2)
    member = call.ask(frames.Attach(number), frames.Text).value
    call.publish("t", 1)
    (grant,) = call.poll(number, member)
    (again,) = call.ask(frames.RetryHeld(number, grant.token, "first"), Granted).grants
    assert (again.attempt, again.redelivered, again.deadline) == (2, True, float("inf"))
    assert call.ask(frames.RetryHeld(number, grant.token, "old"), Granted).grants == []
    assert call.ask(frames.RetryHeld(number, again.token, "second"), Granted).grants == []
    (letter,) = call.ask(frames.DeadLetters("t/s", None, 0), frames.Letters).letters
    assert [attempt.error for attempt in letter.history] == ["first", "second"]


def test_publish_through_one_connection_serves_a_poll_of_the_same_process(broker: Broker) -> None:
    process = broker.process()
    call, worker = process.call(), process.call()
    number = call.subscribe("t", "s")
    worker.wait(number)
    call.send(publish("t", 1))
    assert isinstance(call.take(), frames.Published)
    assert sequences(worker.granted()) == [1]
