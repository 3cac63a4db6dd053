"""A broker whose time is what it is told: nothing ends by itself, and connections still live in real time."""

from __future__ import annotations

import pytest

from mpbroker.process import frames
from mpbroker.process.frames import Answers, Failed, Granted, Number
from mpbroker.process.handshake import HANDSHAKE_S
from tests.process.driver import Broker, Connection, sequences, tokens


@pytest.fixture
def broker() -> Broker:
    return Broker(manual_time=True)


def test_the_trace() -> None:
    broker = Broker(manual_time=True)
    w1, w2 = broker.call(), broker.call()
    billing = w1.subscribe("orders", "billing", ack_timeout=30.0, max_deliveries=2)
    email = w1.subscribe("orders", "email", filter='headers.type = "created"')
    for kind in ("created", "created", "paid"):
        w1.publish("orders", kind, type=kind)
    assert w1.stats(billing)["backlog"] == 3
    assert w1.stats(email)["backlog"] == 2
    assert sequences(w1.poll(billing, "w1", now=0.0)) == [1]
    assert sequences(w2.poll(billing, "w2", now=0.0)) == [2]
    assert [w1.ask(frames.Ack(billing, "w1", [1]), Answers).values for _ in range(2)] == [[True], [False]]
    assert w1.ask(frames.Expire(billing, 30.0), Number).value == 1
    grants = w1.poll(billing, "w1", 2, now=30.0)
    assert (sequences(grants), [grant.attempt for grant in grants]) == ([2, 3], [2, 1])
    assert w2.ask(frames.Ack(billing, "w2", [2]), Answers).values == [False]
    assert w1.ask(frames.Expire(billing, 60.0), Number).value == 2
    (letter,) = w1.ask(frames.DeadLetters("orders/billing", None, 0), frames.Letters).letters
    assert (letter.sequence, letter.reason) == (2, "retries_exhausted")
    stats = w1.stats(billing)
    assert (stats["ready"], stats["acked"], stats["dead"]) == (1, 1, 1)
    assert w1.stats(email)["backlog"] == 2


def test_time_starts_at_zero_and_is_the_last_that_was_given(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s", ack_timeout=10.0)
    call.publish("t", 1, 2, 3)
    (grant,) = call.poll(number)
    assert grant.deadline == 10.0
    (grant,) = call.poll(number, now=5.0)
    assert grant.deadline == 15.0
    broker.later(1000.0)
    (grant,) = call.poll(number)
    assert grant.deadline == 15.0


def test_each_call_happens_at_the_time_it_gives_be_it_an_earlier_one(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s", ack_timeout=10.0)
    call.publish("t", 1, 2)
    call.stats(number, now=50.0)
    (grant,) = call.poll(number, now=20.0)
    assert grant.deadline == 30.0
    (grant,) = call.poll(number)
    assert grant.deadline == 30.0


def test_nothing_ends_by_itself(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s", ack_timeout=1.0)
    call.publish("t", 1, 2)
    first, _ = tokens(call.poll(number, count=2))
    call.ask(frames.Nack(number, first, None, 1.0, "", None), Answers)
    assert broker.sessions.next_due() is None
    broker.later(1e6)
    stats = call.stats(number)
    assert (stats["in_flight"], stats["delayed"]) == (1, 1)
    assert call.ask(frames.NextDeadline(), frames.Moment).value == 1.0
    assert call.ask(frames.Expire(None, 1.0), Number).value == 1
    assert call.stats(number)["ready"] == 2


def test_expiring_one_subscription_leaves_the_others(broker: Broker) -> None:
    call = broker.call()
    first, second = (call.subscribe("t", name, ack_timeout=1.0) for name in "ab")
    call.publish("t", 1)
    for number in (first, second):
        call.poll(number)
    assert call.ask(frames.Expire(first, 5.0), Number).value == 1
    assert call.stats(second)["in_flight"] == 1
    assert call.ask(frames.Expire(None, None), Number).value == 1


def test_a_poll_cannot_wait_in_a_time_that_does_not_pass(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    for timeout in (1.0, None):
        failed = call.failed(frames.Poll(number, "w", 5.0, 1, timeout))
        assert failed.kind == "ValueError"
        assert "timeout must be 0" in str(failed.args[0])
    assert call.ask(frames.NextDeadline(), frames.Moment).value is None
    call.publish("t", 1)
    (grant,) = call.poll(number)
    assert grant.deadline == 30.0


def test_polls_without_now_wait_in_real_time(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s")
    call.wait(number, timeout=3.0)
    assert broker.sessions.next_due() == broker.now + 3.0
    broker.later(3.0)
    assert call.granted() == []
    call.wait(number, timeout=3.0)
    broker.call().publish("t", 1)
    assert sequences(call.granted()) == [1]


def test_handshakes_end_in_real_time(broker: Broker) -> None:
    silent = broker.open(b"x" * 16, "call", 1)
    broker.later(HANDSHAKE_S)
    assert silent.is_closed


def advance(call: Connection, how: str, number: int, now: float) -> None:
    requests: dict[str, frames.Frame] = {
        "expire one": frames.Expire(number, now),
        "expire all": frames.Expire(None, now),
        "poll": frames.Poll(number, "late", now, 1, 0.0),
        "stats": frames.Stats(number, now),
        "elsewhere": frames.Stats(number + 1, now),
    }
    call.send(requests[how])
    assert not isinstance(call.inbox.pop(), Failed)


@pytest.mark.parametrize("how", ["expire one", "expire all", "poll", "stats", "elsewhere"])
@pytest.mark.parametrize("what", ["lease", "delay"])
def test_a_poll_that_waits_sees_the_time_pass(broker: Broker, how: str, what: str) -> None:
    call, waiting = broker.call(), broker.call()
    number = call.subscribe("t", "s", ack_timeout=10.0)
    call.subscribe("other", "s")
    call.publish("t", 1)
    (token,) = tokens(call.poll(number))
    if what == "delay":
        call.ask(frames.Nack(number, token, None, 10.0, "", None), Answers)
    waiting.wait(number)
    advance(call, how, number, 9.0)
    assert waiting.waits
    advance(call, how, number, 10.0)
    assert sequences(waiting.granted()) == [1]


def test_expire_counts_before_who_waits_is_served(broker: Broker) -> None:
    call, waiting = broker.call(), broker.call()
    number = call.subscribe("t", "s", ack_timeout=10.0)
    call.publish("t", 1)
    call.poll(number)
    waiting.wait(number)
    assert call.ask(frames.Expire(number, 10.0), Number).value == 1
    (grant,) = waiting.granted()
    assert grant.deadline == 20.0


def test_deaths_and_goodbyes_happen_in_the_time_that_was_told(broker: Broker) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s", max_deliveries=1)
    call.publish("t", 1)
    victim.call().poll(number, now=40.0)
    broker.later(500.0)
    victim.die()
    (letter,) = call.ask(frames.DeadLetters(None, None, 0), frames.Letters).letters
    assert letter.dead_since == 40.0


def test_a_dispatchers_lease_does_not_end(broker: Broker) -> None:
    call = broker.call()
    number = call.subscribe("t", "s", push=True)
    member = call.ask(frames.Attach(number), frames.Text).value
    call.publish("t", 1)
    assert call.ask(frames.Poll(number, member, None, 1, 5.0), Granted).grants
    assert call.ask(frames.Expire(None, 1e12), Number).value == 0
