"""Publishes that wait for room in the broker process: exactly as long as they may, in order, and at nobody's cost."""

from __future__ import annotations

import pytest

from mpbroker.process import frames
from mpbroker.process.encoded import contents
from mpbroker.process.frames import Answers, Done, Failed, Published
from mpbroker.process.limits import Limits
from tests.process.driver import Broker, Connection, payloads, publish, subscribe, tokens

SECONDS = 10.0


@pytest.fixture
def broker() -> Broker:
    return Broker()


def full(call: Connection, name: str = "s", *, max_queue: int = 1, wait: float = SECONDS, **settings: float) -> int:
    """A subscription that holds as much as it may; its number."""
    call.ask(frames.CreateTopic("t", True), Done)
    request = subscribe("t", name, push=False, max_queue=max_queue, overflow="wait", overflow_wait=wait, **settings)
    number = call.ask(request, frames.Subscribed).number
    call.publish("t", *range(max_queue))
    return number


def settle(call: Connection, number: int, count: int = 1) -> list[object]:
    """Poll and ack; the payloads."""
    grants = call.poll(number, count=count)
    assert all(call.ack(number, *tokens(grants)))
    return payloads(grants)


def refused(call: Connection) -> list[object]:
    failed = call.got(Failed)
    assert failed.kind == "QueueFull"
    return list(failed.args)


def status(call: Connection) -> frames.Report:
    return call.ask(frames.Status(), frames.Report)


# -- how long ---------------------------------------------------------------------------------------------------------


def test_it_is_refused_exactly_when_its_time_is_over(broker: Broker) -> None:
    call, publisher = broker.call(), broker.call()
    full(call)
    publisher.publish_waiting("t", "x")
    assert broker.sessions.next_due() == broker.now + SECONDS
    broker.later(SECONDS - 0.001)
    assert publisher.waits
    broker.later(0.001)
    assert refused(publisher) == ["t/s", 1]
    assert broker.sessions.next_due() is None


def test_it_goes_at_the_ack_that_makes_room(broker: Broker) -> None:
    call, publisher = broker.call(), broker.call()
    number = full(call)
    publisher.publish_waiting("t", "x")
    assert settle(call, number) == [0]
    assert publisher.got(Published).first == 2
    assert broker.sessions.next_due() is None
    assert settle(call, number) == ["x"]


def test_its_time_follows_the_subscriptions_that_are_full(broker: Broker) -> None:
    call, publisher = broker.call(), broker.call()
    hasty = full(call, "hasty", wait=2.0)
    call.subscribe("t", "patient", max_queue=1, overflow="wait", overflow_wait=SECONDS)
    settle(call, hasty)
    call.publish("t", 1)
    publisher.publish_waiting("t", "x")
    began = broker.now
    assert broker.sessions.next_due() == began + 2.0
    broker.later(1.0)
    settle(call, hasty)
    assert broker.sessions.next_due() == began + SECONDS
    broker.later(5.0)
    assert publisher.waits
    broker.at(began + SECONDS)
    assert refused(publisher) == ["t/patient", 1]


def test_who_is_tried_again_after_its_time_is_refused_then(broker: Broker) -> None:
    """The hasty one had room when the wait began, and is filled by dead letters that come back."""
    call, publisher = broker.call(), broker.call()
    hasty = call.subscribe("t", "hasty", max_queue=2, overflow="wait", overflow_wait=1.0)
    patient = full(call, "patient", max_queue=2)
    for token in tokens(call.poll(hasty, count=2)):
        call.ask(frames.Reject(hasty, token, None, "bad"), Answers)
    publisher.publish_waiting("t", "x")
    broker.later(2.0)
    assert call.ask(frames.Redrive("t/hasty", None, None), frames.Number).value == 2
    assert publisher.waits
    settle(call, patient)
    assert refused(publisher) == ["t/hasty", 2]
    assert broker.sessions.next_due() is None


def test_with_manual_time_its_seconds_are_the_loops(broker: Broker) -> None:
    broker = Broker(manual_time=True)
    call, publisher = broker.call(), broker.call()
    full(call)
    publisher.publish_waiting("t", "x")
    call.ask(frames.Expire(None, 1e6), frames.Number)
    assert publisher.waits
    broker.later(SECONDS)
    assert refused(publisher) == ["t/s", 1]


# -- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "die", "goodbye", "replaced", "replaced after a close", "violation"])
def test_when_its_connection_ends_nothing_is_published(broker: Broker, end: str) -> None:
    call, process = broker.call(), broker.process()
    number = full(call)
    publisher = process.call()
    publisher.publish_waiting("t", "x")
    behind = broker.call()
    behind.publish_waiting("t", "y")
    match end:
        case "close":
            publisher.close()
        case "die":
            process.die("signal 9 (SIGKILL)")
        case "goodbye":
            process.goodbye()
        case "violation":
            broker.carry_out(broker.sessions.violated(publisher.id, "nonsense", broker.now))
        case _:
            if end.endswith("close"):
                publisher.close()
            process.call(replaces=publisher.number, answered=publisher.answered)
    assert publisher.is_closed
    assert settle(call, number) == [0]
    assert behind.got(Published).first == 2
    assert settle(call, number) == ["y"]
    assert status(call).counters["published"] == 2
    assert broker.sessions.next_due() is None


@pytest.mark.parametrize("end", [frames.Unsubscribe("t", "s"), frames.DeleteTopic("t")])
def test_deletion_lets_all_that_wait_go_on_or_ends_them(broker: Broker, end: frames.Frame) -> None:
    call, publishers = broker.call(), [broker.call() for _ in range(3)]
    full(call)
    for publisher in publishers:
        publisher.publish_waiting("t", 1)
    call.ask(end, Done)
    for number, publisher in enumerate(publishers):
        if isinstance(end, frames.Unsubscribe):
            assert publisher.got(Published) == Published(number + 2, 1_700_000_000.0, 0)
        else:
            failed = publisher.got(Failed)
            assert (failed.kind, failed.args) == ("UnknownTopic", ["t"])


def test_a_lease_that_ends_in_a_dead_letter_makes_room(broker: Broker) -> None:
    call, publisher = broker.call(), broker.call()
    number = full(call, max_deliveries=1, ack_timeout=3.0)
    call.poll(number)
    publisher.publish_waiting("t", "x")
    broker.later(3.0)
    assert publisher.got(Published).first == 2


def test_a_worker_that_dies_makes_room_when_its_copy_is_dead(broker: Broker) -> None:
    call, worker, publisher = broker.call(), broker.process(), broker.call()
    number = full(call, max_deliveries=1)
    worker.call().poll(number)
    publisher.publish_waiting("t", "x")
    worker.die()
    assert publisher.got(Published).first == 2


def test_a_poll_that_waits_gets_what_a_publish_that_waited_brings(broker: Broker) -> None:
    call, publisher, worker = broker.call(), broker.call(), broker.call()
    number = full(call)
    held = tokens(call.poll(number))
    publisher.publish_waiting("t", "x")
    worker.wait(number)
    assert call.ack(number, *held) == [True]
    assert publisher.got(Published).first == 2
    assert payloads(worker.granted()) == ["x"]


# -- what comes behind it ---------------------------------------------------------------------------------------------


def test_what_comes_behind_it_on_its_connection_waits_and_keeps_its_order(broker: Broker) -> None:
    call, publisher = broker.call(), broker.call()
    number = full(call, max_queue=2)
    publisher.publish_waiting("t", "a")
    for payload in ("b", "c", "d"):
        publisher.send(publish("t", payload))
    assert publisher.waits
    assert settle(call, number, 2) == [0, 1]
    assert [reply.first for reply in publisher.inbox if isinstance(reply, Published)] == [3, 4]
    publisher.inbox.clear()
    assert settle(call, number, 2) == ["a", "b"]
    assert settle(call, number, 2) == ["c", "d"]


def test_a_loop_that_brings_more_nevertheless_is_told_of_a_violation(broker: Broker) -> None:
    call, publisher = broker.call(), broker.call()
    full(call)
    publisher.publish_waiting("t", "a")
    broker.carry_out(broker.sessions.received(publisher.id, frames.encode(publish("t", "b")), broker.now))
    assert publisher.got(Failed).kind == "ProtocolViolation"
    assert publisher.is_closed


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_what_waits_counts_against_the_bytes_of_the_broker(broker: Broker) -> None:
    (held,) = contents([*publish("t", bytes(100_000)).batches], {})
    broker = Broker(limits=Limits(max_queue_bytes=2 * held.held_bytes + 10_000))
    call = broker.call()
    number = full(call)
    used = status(call).limits["queue_bytes"][0]
    one, two, three = (broker.call() for _ in range(3))
    one.publish_waiting("t", bytes(100_000))
    two.publish_waiting("t", bytes(100_000))
    counted = status(call).limits["queue_bytes"][0] - used
    assert 2 * held.held_bytes <= counted < 2 * (held.held_bytes + 100)  # with the frames that they are in
    assert three.failed(publish("t", bytes(100_000))).kind == "BrokerFull"
    two.close()
    three.publish_waiting("t", bytes(100_000))
    broker.later(SECONDS)
    assert refused(one) == refused(three) == ["t/s", 1]
    assert status(call).limits["queue_bytes"][0] == used
    one.publish_waiting("t", bytes(100_000))
    settle(call, number)
    one.got(Published)
    settle(call, number)
    assert status(call).limits["queue_bytes"][0] == 0


def test_it_is_one_of_the_calls_that_wait(broker: Broker) -> None:
    broker = Broker(limits=Limits(max_waiting_calls=2))
    call = broker.call()
    full(call)
    worker = broker.call()
    worker.wait(worker.subscribe("u", "s"))
    broker.call().publish_waiting("t", 1)
    assert status(call).limits["waiting_calls"] == [2, 2]
    failed = broker.call().failed(publish("t", 2))
    assert (failed.kind, failed.args) == ("LimitReached", ["calls that wait", 2, "max_waiting_calls"])
    assert status(call).limits["queue_bytes"][0] < 10_000


@pytest.mark.parametrize("wait", [0.0, -1.0, float("nan"), float("inf")])
def test_seconds_that_cannot_be_are_refused(broker: Broker, wait: float) -> None:
    call = broker.call()
    call.ask(frames.CreateTopic("t", True), Done)
    failed = call.failed(subscribe("t", "s", overflow="wait", overflow_wait=wait))
    assert failed.kind == "ValueError"
    assert "seconds" in str(failed.args)
