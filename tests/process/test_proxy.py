"""A broker process by way of its proxy: the same meaning as in one process, for any process."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mpbroker import (
    BrokerGone,
    BrokerManager,
    BrokerProxy,
    CallbackSubscriber,
    DeadLetterReason,
    Delivery,
    InvalidFilter,
    Message,
    PayloadError,
    PayloadTooLarge,
    SubscriptionBusy,
    SubscriptionConflict,
    Undecoded,
    UnknownSubscription,
    UnknownTopic,
    connect,
)
from mpbroker.api import SubscriptionAPI
from tests.conformance.support import Call, until
from tests.process import deeds, payloads
from tests.process.puppets import LIMIT_S, Puppet, signal_until, waits


@pytest.fixture
def broker() -> Iterator[BrokerProxy]:
    with BrokerManager() as manager:
        yield manager.broker()


@pytest.fixture
def billing(broker: BrokerProxy) -> SubscriptionAPI:
    broker.create_topic("orders")
    return broker.subscribe("orders", "billing", ack_timeout=3600)


# -- the contract, over several processes -----------------------------------------------------------------------------


def test_the_trace_holds_for_members_in_different_processes() -> None:
    with BrokerManager(manual_time=True) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing", ack_timeout=30, max_deliveries=2)
        email = broker.subscribe("orders", "email", 'headers.type = "created"')
        with Puppet(broker) as w1, Puppet(broker) as w2:
            for kind in ("created", "created", "paid"):
                broker.publish("orders", kind, {"type": kind})
            assert (billing.pending, email.pending) == (3, 2)
            at = ("orders", "billing")
            assert w1.do(deeds.poll_at, *at, "w1", 0.0, 1) == [("m1", 1)]
            assert w2.do(deeds.poll_at, *at, "w2", 0.0, 1) == [("m2", 1)]
            assert w1.do(deeds.ack, *at, "w1", "m1") is True
            assert w1.do(deeds.ack, *at, "w1", "m1") is False
            assert billing.expire(30.0) == 1
            assert w1.do(deeds.poll_at, *at, "w1", 30.0, 2) == [("m2", 2), ("m3", 1)]
            assert w2.do(deeds.ack, *at, "w2", "m2") is False
            assert billing.expire(60.0) == 2
            (letter,) = broker.dead_letters("orders/billing")
            assert (letter.message.message_id, letter.reason) == ("m2", DeadLetterReason.RETRIES_EXHAUSTED)
            assert w1.do(deeds.poll_at, *at, "w1", 60.0, 2) == [("m3", 2)]
            assert email.pending == 2


def test_what_one_process_publishes_a_waiting_one_gets(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    with Puppet(broker) as worker:
        worker.begin(deeds.poll, "orders", "billing", "w", 1, None)
        waits(broker)
        broker.publish("orders", "x")
        assert worker.result() == [("m1", 1)]


def test_publish_gives_back_the_callers_own_objects(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    payload = {"amount": 3}
    message = broker.publish("orders", payload, {"type": "paid"})
    assert message.payload is payload
    (delivery,) = billing.poll("w")
    assert delivery.message == message
    assert delivery.payload is not payload


def test_any_process_may_ack_by_token(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish("orders", {"amount": 3})
    (delivery,) = billing.poll("w")
    with Puppet(delivery) as other:
        assert other.do(payload_of) == {"amount": 3}
        assert other.do(Delivery.ack) is True
    assert delivery.ack() is False


def payload_of(delivery: Delivery) -> Any:
    return delivery.payload


def test_two_processes_may_use_one_member_name(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish_many("orders", [1, 2])
    with Puppet(broker) as other:
        assert other.do(deeds.poll, "orders", "billing", "w") == [("m1", 1)]
        assert [delivery.message_id for delivery in billing.poll("w")] == ["m2"]
        assert billing.ack_many(["m1", "m2"], "w") == [True, True]


def test_time_of_a_real_time_broker_cannot_be_given(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    for call in (
        lambda: billing.poll("w", 10),
        lambda: billing.expire(10),
        lambda: broker.expire(10),
        lambda: billing.nack("m1", "w", now=10),
        lambda: billing.extend("m1", "w", now=10),
        lambda: billing.stats(10),
    ):
        with pytest.raises(ValueError, match="not ten messages"):
            call()
    assert billing.poll("w") == []


def test_dead_letters_come_whole_however_many_frames_they_take() -> None:
    with BrokerManager(max_frame_bytes=2 << 20) as manager, manager.broker() as broker:
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing")
        for number in range(40):
            broker.publish("orders", bytes([number]) * 100_000)
        for delivery in billing.poll("w", max_messages=40):
            delivery.reject(error=delivery.message_id)
        while deliveries := billing.poll("w", max_messages=40):
            for delivery in deliveries:
                delivery.reject(error=delivery.message_id)
        letters = broker.dead_letters()
        assert [letter.error for letter in letters] == [f"m{n}" for n in range(1, 41)]
        assert [letter.message.payload[0] for letter in letters] == list(range(40))
        assert [each.error for each in broker.dead_letters(limit=25, offset=10)] == [f"m{n}" for n in range(11, 36)]


# -- payloads ---------------------------------------------------------------------------------------------------------


def test_a_payload_that_cannot_travel_is_not_published(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    with pytest.raises(PayloadError, match="lock"):
        broker.publish_many("orders", [1, threading.Lock()])
    assert broker.topics()["orders"].published == 0
    assert broker.publish("orders", 1).message_id == "m1"


def test_a_payload_that_pickles_by_raising_is_not_published(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    with pytest.raises(PayloadError, match="no way out"):
        broker.publish("orders", payloads.CannotLeave())
    assert billing.pending == 0


def test_what_is_too_large_is_not_sent_and_the_next_call_works() -> None:
    with BrokerManager(max_frame_bytes=2 << 20) as manager, manager.broker() as broker:
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing")
        with pytest.raises(PayloadTooLarge, match="max_frame_bytes"):
            broker.publish("orders", b"x" * (1 << 20))
        broker.publish("orders", b"x" * 1_000_000)
        assert len(billing.poll("w")[0].payload) == 1_000_000


def test_large_payloads_pass(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    sent = [os.urandom(1000) * 1000 * size for size in (1, 5, 20)]
    broker.publish_many("orders", sent)
    got: list[bytes] = []
    while len(got) < len(sent):
        got += [delivery.payload for delivery in billing.poll("w", max_messages=10)]
    assert got == sent


def test_many_messages_pass_in_one_call(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    messages = broker.publish_many("orders", range(5000), {"type": "number"})
    assert [message.sequence for message in messages] == list(range(1, 5001))
    deliveries = billing.poll("w", max_messages=5000)
    assert [delivery.payload for delivery in deliveries] == list(range(5000))
    assert billing.ack_many([delivery.message_id for delivery in deliveries], "w") == [True] * 5000


def test_a_reader_without_the_class_gets_an_error_for_that_message_alone(
    broker: BrokerProxy, billing: SubscriptionAPI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("class Thing:\n    pass\n")
    with Puppet(broker) as reader:
        monkeypatch.syspath_prepend(str(tmp_path))
        import only_here  # type: ignore[import-not-found]

        broker.publish_many("orders", ["before", only_here.Thing(), "after"])
        del sys.modules["only_here"]
        assert reader.do(deeds.look_at, "orders", "billing", 3) == ["before", "PayloadError", "after"]
    stats = billing.stats()
    assert (stats.acked, stats.ready, stats.in_flight) == (2, 1, 0)
    assert [(each.message_id, each.attempt) for each in billing.poll("w")] == [("m2", 2)]


def test_a_payload_that_raises_when_it_is_opened_is_that_readers_error_alone(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    broker.publish_many("orders", ["before", payloads.CannotArrive(), "after"])
    assert deeds.look_at(broker, "orders", "billing", 3) == ["before", "PayloadError", "after"]
    (delivery,) = billing.poll("w")
    with pytest.raises(PayloadError, match="no way in"):
        delivery.payload  # noqa: B018 - looking is the act


def test_an_unreadable_payload_ends_as_a_dead_letter_that_can_be_listed(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", max_deliveries=2)
    broker.publish("orders", payloads.CannotArrive())
    for _ in range(2):
        assert deeds.look_at(broker, "orders", "billing", 1) == ["PayloadError"]
    (letter,) = broker.dead_letters()
    assert isinstance(letter.message.payload, Undecoded)
    assert "no way in" in letter.message.payload.error
    assert "PayloadError" in letter.error
    assert billing.pending == 0


def test_the_broker_opens_no_payload(broker: BrokerProxy, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", 'headers.type = "paid"', max_deliveries=1)
    broker.publish("orders", payloads.Canary(canary), {"type": "paid"})
    (delivery,) = billing.poll("w")
    delivery.nack()
    billing.stats()
    assert broker.redrive("orders/billing") == 1
    assert not canary.exists()
    assert billing.poll("w")[0].payload == "opened"
    assert canary.exists()


# -- filters ----------------------------------------------------------------------------------------------------------


def wants_all(headers: Mapping[str, str]) -> bool:
    return True


class Wants:
    def all(self, headers: Mapping[str, str]) -> bool:
        return True


def test_a_callable_that_has_no_way_to_the_broker_is_refused_with_the_way(broker: BrokerProxy) -> None:
    broker.create_topic("orders")

    def nested(headers: Mapping[str, str]) -> bool:
        return True

    class Main:
        __module__ = "__main__"

    for wanted in (lambda _: True, nested, Wants().all, Wants.all, Main, print, len):
        with pytest.raises(InvalidFilter, match="filter_modules"):
            broker.subscribe("orders", "billing", wanted)  # type: ignore[arg-type]
    assert broker.subscriptions() == {}


def test_a_function_the_broker_was_not_told_of_is_refused_with_the_way(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    with pytest.raises(InvalidFilter, match=r"filter_modules=\['tests.process.test_proxy'\]"):
        broker.subscribe("orders", "billing", wants_all)


def test_a_function_the_broker_was_told_of_filters_there() -> None:
    from tests.process import wanted

    with BrokerManager(filter_modules=["tests.process.wanted"]) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        subscription = broker.subscribe("orders", "billing", wanted.paid)
        broker.publish("orders", 1, {"type": "created"})
        broker.publish("orders", 2, {"type": "paid"})
        assert [delivery.payload for delivery in subscription.poll("w", max_messages=9)] == [2]


# -- proxies and handles ----------------------------------------------------------------------------------------------


def test_a_proxy_survives_pickling_and_connects_only_when_used(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish("orders", 1)
    with Puppet(None, "spawn") as other:
        before = broker._status().limits["connections"][0]
        other.do(keep, broker)
        assert broker._status().limits["connections"][0] == before
        assert other.do(poll_kept, billing) == ["m1"]
        assert broker._status().limits["sessions"][0] == 2


_kept: list[Any] = []


def keep(_: None, value: Any) -> None:
    _kept.append(value)


def poll_kept(_: None, subscription: SubscriptionAPI) -> list[str]:
    (broker,) = _kept
    assert isinstance(broker, BrokerProxy)
    assert broker.subscription("orders", "billing").pending == 1
    return [delivery.message_id for delivery in subscription.poll("w")]


def test_nothing_secret_is_in_a_pickled_proxy(broker: BrokerProxy) -> None:
    folder = Path(broker._address.folder)
    assert (folder / "key").read_bytes() not in pickle.dumps(broker)


def test_copies_of_a_proxy_mean_the_same_broker(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    for other in (copy.copy(broker), copy.deepcopy(broker), pickle.loads(pickle.dumps(broker))):
        assert list(other.topics()) == ["orders"]
    assert broker._status().limits["sessions"][0] == 1


def test_the_text_of_a_proxy_asks_nobody(broker: BrokerProxy) -> None:
    with BrokerManager() as manager:
        other = manager.broker()
    assert str(other) == repr(other)
    assert str(other).startswith("<BrokerProxy")


def test_a_handle_outlives_the_process_that_subscribed(broker: BrokerProxy) -> None:
    with Puppet(broker) as maker:
        maker.do(deeds.create, "orders", "billing", {})
        maker.finish()
    broker.publish("orders", 1)
    assert [delivery.payload for delivery in broker.subscription("orders", "billing").poll("w")] == [1]


def test_a_handle_does_not_reach_a_later_subscription_of_its_name(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    again = pickle.loads(pickle.dumps(billing))
    broker.unsubscribe("orders", "billing")
    broker.subscribe("orders", "billing")
    for handle in (billing, again):
        with pytest.raises(UnknownSubscription, match="orders/billing"):
            handle.poll("w")


def test_errors_arrive_as_what_they_are(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    with pytest.raises(UnknownTopic) as unknown:
        broker.publish("nowhere", 1)
    assert unknown.value.args == ("nowhere",)
    with pytest.raises(SubscriptionConflict) as conflict:
        broker.subscribe("orders", "billing", ack_timeout=1, max_queue=5)
    assert conflict.value.args == ("orders/billing", ["ack_timeout", "max_queue"])


def test_close_releases_uncounted_and_the_proxy_goes_on(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish("orders", 1)
    (first,) = billing.poll("w")
    broker.close()
    (second,) = billing.poll("w")
    assert (second.message_id, second.attempt) == ("m1", 1)
    assert first.ack() is False
    assert second.ack() is True


def test_close_ends_the_calls_that_wait_in_this_process(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    polled = Call(lambda: billing.poll("w", timeout=None))
    waits(broker)
    broker.close()
    with pytest.raises(BrokerGone, match="this process closed"):
        polled.result()
    assert billing.pending == 0


def test_close_may_be_called_at_any_time_and_again(broker: BrokerProxy) -> None:
    broker.close()
    broker.close()
    broker.create_topic("orders")
    broker.close()


def test_a_proxy_belongs_to_one_incarnation() -> None:
    with BrokerManager("orders") as manager:
        old = connect("orders")
        old.create_topic("orders")
        billing = old.subscribe("orders", "billing")
        old.publish("orders", 1)
        (delivery,) = billing.poll("w")
        unused = pickle.loads(pickle.dumps(old))
        pickled = pickle.dumps(old)
        manager.shutdown()
    with BrokerManager("orders"):
        for call in (old.topics, unused.topics, delivery.ack, lambda: billing.poll("w", timeout=None)):
            with pytest.raises(BrokerGone):
                call()
        with Puppet(pickled, "spawn") as other, pytest.raises(BrokerGone, match="another one runs"):
            other.do(topics_of_pickled)
        with connect("orders") as new:
            assert new.topics() == {}


def topics_of_pickled(pickled: bytes) -> Any:
    return pickle.loads(pickled).topics()


# -- threads ----------------------------------------------------------------------------------------------------------


def test_each_thread_has_its_own_connection_and_takes_it_along(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    before = broker._status().limits["connections"][0]
    calls = [Call(lambda: billing.poll("w", timeout=None)) for _ in range(5)]
    waits(broker, 5)
    assert broker._status().limits["connections"][0] == before + 5
    broker.publish_many("orders", range(5))
    assert sorted(call.result()[0].payload for call in calls) == list(range(5))
    until(lambda: broker._status().limits["connections"][0] == before)


def test_what_a_thread_polled_stays_with_the_process_when_it_ends(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    broker.publish("orders", 1)
    before = broker._status().limits["connections"][0]
    (delivery,) = Call(lambda: billing.poll("w")).result()
    until(lambda: broker._status().limits["connections"][0] == before)
    assert billing.stats().in_flight == 1
    assert delivery.ack() is True


def test_many_threads_of_one_process_share_the_work(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish_many("orders", range(400))

    def work() -> list[int]:
        done: list[int] = []
        while deliveries := billing.poll("w", max_messages=3):
            for delivery in deliveries:
                done.append(delivery.payload)
                assert delivery.ack()
        return done

    calls = [Call(work) for _ in range(4)]
    done = [number for call in calls for number in call.result()]
    assert sorted(done) == list(range(400))


def test_a_signal_handler_may_call_while_a_call_waits(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    seen: list[Message] = []
    struck = threading.Event()

    def handle(*_: object) -> None:
        if not struck.is_set():
            struck.set()
            seen.append(broker.publish("orders", "from the handler"))

    old = signal.signal(signal.SIGUSR2, handle)
    try:
        sender = Call(lambda: signal_until(broker, signal.SIGUSR2, struck))
        (delivery,) = billing.poll("w", timeout=LIMIT_S)
        sender.result()
    finally:
        signal.signal(signal.SIGUSR2, old)
    assert [message.message_id for message in seen] == ["m1"]
    assert delivery.payload == "from the handler"
    assert delivery.ack() is True


# -- push -------------------------------------------------------------------------------------------------------------


def test_a_subscriber_in_this_process_gets_what_another_one_publishes(broker: BrokerProxy) -> None:
    got: list[Any] = []
    broker.create_topic("orders")
    broker.subscribe("orders", CallbackSubscriber("push", lambda message: got.append(message.payload)))
    broker.start()
    with Puppet(broker) as publisher:
        for number in range(20):
            publisher.do(deeds.publish, "orders", number)
    assert broker.wait_idle(LIMIT_S)
    assert got == list(range(20))
    broker.close()


def test_the_same_subscriber_means_the_same_handle(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    subscriber = CallbackSubscriber("push", print)
    handle = broker.subscribe("orders", subscriber)
    assert broker.subscribe("orders", subscriber) is handle
    assert pickle.loads(pickle.dumps(broker)).subscribe("orders", subscriber) is handle
    assert broker.subscription("orders", "push") is handle
    with pytest.raises(SubscriptionConflict):
        broker.subscribe("orders", CallbackSubscriber("push", print))


def test_a_push_subscription_has_one_dispatcher_over_all_processes(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    handle = broker.subscribe("orders", CallbackSubscriber("push", print))
    assert handle.dispatch_one(block=False) is False
    with Puppet(broker) as other, pytest.raises(SubscriptionBusy):
        other.do(deeds.poll, "orders", "push", "w")
    broker.close()


def test_a_dead_process_leaves_the_seat_of_the_dispatcher(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    with Puppet(broker) as other:
        other.do(take_the_seat)
        handle = broker.subscribe("orders", CallbackSubscriber("push", print))
        with pytest.raises(SubscriptionBusy):
            handle.dispatch_one(block=False)
        other.kill()
    until(lambda: broker._status().limits["sessions"][0] == 1)
    broker.publish("orders", 1)
    assert handle.dispatch_one(timeout=LIMIT_S) is True
    broker.close()


def take_the_seat(broker: BrokerProxy) -> None:
    broker.subscribe("orders", CallbackSubscriber("push", print)).dispatch_one(block=False)


def test_a_queue_of_multiprocessing_carries_handles_and_deliveries(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    queue: Any = multiprocessing.get_context("fork").Queue()
    broker.publish("orders", {"amount": 3})
    (delivery,) = billing.poll("w")
    queue.put((broker, billing, delivery))
    _, handle, moved = queue.get(timeout=LIMIT_S)
    assert moved.payload == {"amount": 3}
    assert moved.ack() is True
    assert handle.stats().acked == 1
    queue.close()
    queue.join_thread()
