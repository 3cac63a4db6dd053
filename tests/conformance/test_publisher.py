"""Publisher: without waiting for each answer, in order, each message once, bounded."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator

import pytest

from mpbroker import MessagePriority, PayloadError, QueueFull, Receipt, UnknownTopic
from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.overflow import Overflow
from mpbroker.pipeline.publisher import WINDOW
from tests.conformance.support import LIMIT_S, m, numbers, only_one, together, until

NEVER_S = 3600.0
"""A linger that does not come."""


@pytest.fixture
def everything(broker: BrokerAPI) -> SubscriptionAPI:
    broker.create_topic("t")
    return broker.subscribe("t", "everything")


def payloads(subscription: SubscriptionAPI) -> list[object]:
    """Of all that is ready, in order; acked."""
    found: list[object] = []
    while deliveries := subscription.poll("reader", max_messages=10_000):
        found += [delivery.payload for delivery in deliveries]
        subscription.ack_many([delivery.message_id for delivery in deliveries], "reader")
    return found


# -- what arrives -----------------------------------------------------------------------------------------------------


def test_what_was_flushed_is_there_in_the_order_of_publish(broker: BrokerAPI, everything: SubscriptionAPI) -> None:
    with broker.publisher("t", linger=NEVER_S) as publisher:
        for number in range(1000):
            publisher.publish(number)
        assert publisher.flush()
        assert everything.pending == 1000
        assert payloads(everything) == list(range(1000))


def test_any_mix_of_headers_and_priorities_arrives_as_published(broker: BrokerAPI, everything: SubscriptionAPI) -> None:
    some = broker.subscribe("t", "some", 'headers.kind = "a"')
    kinds = [{"kind": "a"}, None, {}, {"kind": "b"}, {"kind": "a"}, {"kind": "a"}]
    priorities = [MessagePriority.NORMAL, MessagePriority.HIGH, MessagePriority.LOW, MessagePriority.NORMAL]
    published = []
    with broker.publisher("t", linger=NEVER_S) as publisher:
        for number in range(200):
            headers, priority = kinds[number % 6], priorities[number % 4]
            publisher.publish(number, headers, priority=priority)
            published.append((number, headers or {}, priority))
    polled = [(each.payload, dict(each.headers), each.priority) for each in everything.poll("w", max_messages=200)]
    assert polled == sorted(published, key=lambda each: (-each[2], each[0]))
    assert some.pending == sum(1 for _, headers, _ in published if headers.get("kind") == "a")


def test_payloads_of_every_kind_and_size_arrive(broker: BrokerAPI, everything: SubscriptionAPI) -> None:
    sent: list[object] = [b"", b"x" * 100_000, "text", "\ud800", 1, -(2**70), 1.5, None, True, [1, {"a": (2,)}], b"y"]
    with broker.publisher("t") as publisher:
        for payload in sent * 3:
            publisher.publish(payload)
    assert payloads(everything) == sent * 3


def test_headers_that_change_after_publish_do_not_change_what_was_published(
    broker: BrokerAPI, everything: SubscriptionAPI
) -> None:
    headers = {"n": "0"}
    with broker.publisher("t", linger=NEVER_S) as publisher:
        for number in range(3):
            headers["n"] = str(number)
            publisher.publish(number, headers)
    assert [delivery.headers["n"] for delivery in everything.poll("w", max_messages=3)] == ["0", "1", "2"]


def test_a_batch_that_does_not_fill_up_is_sent_after_its_linger(live: BrokerAPI) -> None:
    live.create_topic("t")
    everything = live.subscribe("t", "everything")
    with live.publisher("t") as publisher:
        publisher.publish("alone")
        (delivery,) = everything.poll("w", timeout=LIMIT_S)
        assert delivery.payload == "alone"


def test_a_publisher_that_nobody_has_any_more_sends_what_it_was_given(live: BrokerAPI) -> None:
    live.create_topic("t")
    everything = live.subscribe("t", "everything")
    before = set(threading.enumerate())
    live.publisher("t").publish("left")
    gc.collect()
    (delivery,) = everything.poll("w", timeout=LIMIT_S)
    assert delivery.payload == "left"
    until(lambda: before >= set(threading.enumerate()))


def test_without_linger_each_message_leaves_by_itself_at_once(live: BrokerAPI) -> None:
    live.create_topic("t")
    everything = live.subscribe("t", "everything")
    with live.publisher("t", linger=0) as publisher:
        for number in range(3):
            publisher.publish(number)
            (delivery,) = everything.poll("w", timeout=LIMIT_S)
            assert delivery.payload == number


def test_leaving_the_block_sends_what_was_published_before_whatever_ended_it(
    broker: BrokerAPI, everything: SubscriptionAPI
) -> None:
    def interrupted() -> None:
        with broker.publisher("t", linger=NEVER_S) as publisher:
            publisher.publish("before")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert payloads(everything) == ["before"]


def test_threads_share_a_publisher_and_each_keeps_its_order(broker: BrokerAPI, everything: SubscriptionAPI) -> None:
    with broker.publisher("t", max_messages=300) as publisher:

        def publish(thread: int) -> None:
            for number in range(500):
                publisher.publish((thread, number), {"thread": str(thread)} if number % 3 else None)

        together([lambda thread=thread: publish(thread) for thread in range(3)])  # type: ignore[misc]
    found = payloads(everything)
    assert len(found) == 1500
    for thread in range(3):
        assert [each for each in found if each[0] == thread] == [(thread, number) for number in range(500)]  # type: ignore[index]


def test_plain_publishes_go_on_beside_it(broker: BrokerAPI, everything: SubscriptionAPI) -> None:
    with broker.publisher("t", linger=NEVER_S) as publisher:
        publisher.publish("pipelined")
        broker.publish("t", "plain")
        publisher.flush()
        broker.publish("t", "plain again")
    assert payloads(everything) == ["plain", "pipelined", "plain again"]


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [{"max_messages": 1}, {"max_messages": 7}, {"max_bytes": 1}, {"max_bytes": 500}])
def test_no_more_is_unconfirmed_than_allowed(
    broker: BrokerAPI, everything: SubscriptionAPI, bounds: dict[str, int]
) -> None:
    with broker.publisher("t", linger=NEVER_S, **bounds) as publisher:
        for _ in range(100):
            publisher.publish(b"x" * 95)
            messages, used = publisher._unconfirmed()
            assert messages <= bounds.get("max_messages", 100)
            assert used <= max(100, bounds.get("max_bytes", 10**6))
    assert everything.pending == 100


def test_batches_that_are_out_are_bounded_however_small_they_are(
    broker: BrokerAPI, everything: SubscriptionAPI
) -> None:
    with broker.publisher("t", linger=NEVER_S) as publisher:
        for number in range(5 * WINDOW):
            publisher.publish(number, {"n": str(number)})
            assert len(publisher._queue) <= WINDOW + 1
    assert payloads(everything) == list(range(5 * WINDOW))


@pytest.mark.parametrize(
    "options", [{"max_messages": 0}, {"max_bytes": 0}, {"linger": -1.0}, {"max_messages": 1.5}, {"linger": "1"}]
)
def test_options_that_cannot_be_are_refused(broker: BrokerAPI, options: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        broker.publisher("t", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["", "a/b", 5])
def test_a_name_that_no_topic_has_is_refused(broker: BrokerAPI, topic: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        broker.publisher(topic)  # type: ignore[arg-type]


# -- receipts ---------------------------------------------------------------------------------------------------------


def receipt(made: Receipt | None) -> Receipt:
    assert made is not None
    return made


def test_a_receipt_knows_the_message_as_it_was_published(broker: BrokerAPI, everything: SubscriptionAPI) -> None:
    with broker.publisher("t", linger=NEVER_S) as publisher:
        assert publisher.publish("first") is None
        second = receipt(publisher.publish("second", {"k": "v"}, priority=MessagePriority.HIGH, receipt=True))
        assert not second.done()
        message = second.result(LIMIT_S)
        assert second.done()
    delivered = everything.poll("w", max_messages=2)
    assert message == delivered[0].message
    assert numbers([message]) == [2]


def test_receipts_of_one_batch_are_of_its_messages_each(broker: BrokerAPI, everything: SubscriptionAPI) -> None:
    with broker.publisher("t", linger=NEVER_S) as publisher:
        receipts = [receipt(publisher.publish(number, receipt=True)) for number in range(600)]
        assert [each.result(LIMIT_S).payload for each in receipts] == list(range(600))
        assert [each.result().message_id for each in receipts] == [m(number + 1) for number in range(600)]
    assert everything.pending == 600


def test_a_receipt_is_done_by_itself(live: BrokerAPI) -> None:
    live.create_topic("t")
    with live.publisher("t") as publisher:
        until(receipt(publisher.publish("x", receipt=True)).done)


def test_a_receipt_tells_the_error_and_then_nobody_else_does(broker: BrokerAPI) -> None:
    with broker.publisher("later", linger=NEVER_S) as publisher:
        refused = receipt(publisher.publish("x", receipt=True))
        with pytest.raises(UnknownTopic):
            refused.result(LIMIT_S)
        assert refused.done()
        assert publisher.flush()


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["publish", "flush", "close"])
def test_an_error_that_nobody_looked_at_is_raised_by_the_next_call(broker: BrokerAPI, call: str) -> None:
    publisher = broker.publisher("later", linger=NEVER_S)
    for number in range(256):
        publisher.publish(number)
    until(lambda: publisher._tend() is None or publisher._error is not None)
    with pytest.raises(UnknownTopic) as caught:
        publisher.publish("not taken") if call == "publish" else getattr(publisher, call)()
    assert "256 messages" in caught.value.__notes__[0]
    broker.create_topic("later")
    everything = broker.subscribe("later", "everything")
    if call != "close":
        publisher.publish("taken")
        assert publisher.flush()
        assert payloads(everything) == ["taken"]
    publisher.close()
    assert not payloads(everything)


def test_a_batch_that_is_refused_keeps_no_other_back(broker: BrokerAPI) -> None:
    broker.create_topic("t")
    full = broker.subscribe("t", "full", 'headers.to = "full"', max_queue=1, overflow=Overflow.REJECT)
    everything = broker.subscribe("t", "everything")
    publisher = broker.publisher("t", linger=NEVER_S)
    errors = []
    for number in range(30):
        headers = {"to": "full" if number // 10 == 1 else "others"}
        try:
            publisher.publish(number, headers)
        except QueueFull as error:
            errors.append(error)
            publisher.publish(number, headers)  # it was not taken
    try:
        publisher.flush()
    except QueueFull as error:
        errors.append(error)
    assert "10 messages" in only_one(errors).__notes__[0]
    publisher.close()
    assert full.pending == 0
    assert payloads(everything) == [*range(10), *range(20, 30)]


def test_what_cannot_be_published_raises_at_once_and_changes_nothing(
    broker: BrokerAPI, everything: SubscriptionAPI
) -> None:
    with broker.publisher("t", linger=NEVER_S) as publisher:
        publisher.publish("before")
        for arguments, options in (
            (("x", {"k": 1}), {}),
            (("x", ["k"]), {}),
            (("x",), {"priority": 4}),
            (("x",), {"priority": "high"}),
            (("x", {"k": "\ud800"}), {}),
        ):
            with pytest.raises((TypeError, ValueError)):
                publisher.publish(*arguments, **options)
        publisher.publish("after")
    assert payloads(everything) == ["before", "after"]


def test_a_payload_that_cannot_travel_raises_at_once(live: BrokerAPI, plane: object) -> None:
    live.create_topic("t")
    with live.publisher("t") as publisher:
        if getattr(plane, "name", "") == "local":
            publisher.publish(threading.Lock())  # it goes nowhere
        else:
            with pytest.raises(PayloadError):
                publisher.publish(threading.Lock())


# -- the end ----------------------------------------------------------------------------------------------------------


def test_closing_twice_is_fine_and_use_after_close_says_what_to_do(
    broker: BrokerAPI, everything: SubscriptionAPI
) -> None:
    publisher = broker.publisher("t")
    publisher.publish("x")
    publisher.close()
    publisher.close()
    for call in (lambda: publisher.publish("y"), publisher.flush):
        with pytest.raises(ValueError, match=r"closed; broker.publisher\(\) makes another one"):
            call()
    assert payloads(everything) == ["x"]


def test_a_publisher_that_never_published_does_nothing(broker: BrokerAPI) -> None:
    publisher = broker.publisher("nowhere")
    assert publisher.flush(timeout=0)
    publisher.close()


@pytest.fixture
def _interruptible() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("_interruptible")
def test_a_signal_handler_may_publish_in_the_middle_of_publish(broker: BrokerAPI, everything: SubscriptionAPI) -> None:
    with broker.publisher("t", linger=NEVER_S, max_messages=50) as publisher:
        signal.signal(signal.SIGUSR1, lambda *_: publisher.publish("handler"))
        for number in range(2000):
            if number % 40 == 0:
                signal.raise_signal(signal.SIGUSR1)
            publisher.publish(number)
    found = payloads(everything)
    assert [each for each in found if each != "handler"] == list(range(2000))
    assert found.count("handler") == 50


def test_the_message_of_a_receipt_is_only_one(broker: BrokerAPI, everything: SubscriptionAPI) -> None:
    with broker.publisher("t") as publisher:
        sent = receipt(publisher.publish("x", receipt=True))
        assert sent.result() == sent.result()
    assert only_one(everything.poll("w", max_messages=5)).message == sent.result()
