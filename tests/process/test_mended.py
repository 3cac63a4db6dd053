"""Laws that were broken once, each found by reading or by force."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from mpbroker import (
    AccessRefused,
    BrokerManager,
    BrokerProxy,
    CallbackSubscriber,
    LimitReached,
    MessageBroker,
    PayloadError,
)
from mpbroker.process import channel, handle, presence, proxy
from mpbroker.process.channel import Channel, Ended
from mpbroker.process.presence import Session
from mpbroker.push.dispatcher import Dispatcher
from tests.conformance.support import Call
from tests.process import payloads

LIMIT_S = 30.0


@pytest.fixture
def broker() -> Iterator[BrokerProxy]:
    with BrokerManager() as manager:
        proxy = manager.broker()
        proxy.create_topic("orders")
        yield proxy


def _ignore(_: object) -> None:
    """A handler returns nothing."""


@pytest.mark.parametrize("refusal", [AccessRefused("no handshake within 5 s"), Ended(None)])
def test_a_process_that_was_stopped_in_the_middle_of_a_handshake_tries_again(
    broker: BrokerProxy, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    opened = channel.open_channel
    refused: list[int] = []

    def stopped(*args: Any, **kwargs: Any) -> Channel:
        if refused:
            return opened(*args, **kwargs)
        refused.append(kwargs["number"])
        raise refusal

    work = broker.subscribe("orders", "billing")
    broker.publish_many("orders", range(3))
    with work.consume("w", idle_timeout=LIMIT_S) as consumer:
        taken = [next(consumer)]
        consumer._wire._line.close()  # type: ignore[attr-defined]
        monkeypatch.setattr(presence, "open_channel", stopped)
        monkeypatch.setattr(presence, "HANDSHAKE_S", 0.0)
        broker.publish("orders", 3)
        taken += [next(consumer) for _ in range(3)]
        assert [each.ack() for each in taken] == [True] * 4
    assert len(refused) == 1
    assert [each.payload for each in taken] == [0, 1, 2, 3]
    assert work.stats().acked == 4


def test_who_is_refused_at_once_is_told_so(broker: BrokerProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AccessRefused("it was given another key than this broker has")

    monkeypatch.setattr(presence, "open_channel", refuse)
    call = Call(broker.topics)  # in a thread without a connection
    with pytest.raises(AccessRefused, match="another key"):
        call.result()


def test_the_status_can_be_told_however_large_the_bounds_are(broker: BrokerProxy) -> None:
    for number in range(9):
        broker.subscribe("orders", f"s{number}", max_queue=sys.maxsize)
    assert broker._status().incarnation == broker._status().incarnation
    assert len(broker.subscriptions()) == 9


def test_a_call_out_of_a_signal_handler_in_the_middle_of_a_call_leaves_both_their_answers(
    broker: BrokerProxy,
) -> None:
    billing = broker.subscribe("orders", "billing")
    before = signal.signal(signal.SIGALRM, lambda *_: _ignore(broker.publish("orders", "from the handler")))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        (delivery,) = billing.poll("w", timeout=LIMIT_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert (delivery.payload, delivery.ack()) == ("from the handler", True)
    assert billing.stats().accepted == 1


def test_an_answer_put_to_no_use_goes_back_with_the_next_call_where_nothing_can_replace_its_connection(
    broker: BrokerProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise LimitReached("connections", 1, "max_connections")

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    billing = broker.subscribe("orders", "billing", ack_timeout=3600)
    broker.publish("orders", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "connect", refuse)
        patch.setattr(handle, "Delivery", interrupt)
        with pytest.raises(KeyboardInterrupt):
            billing.poll("w")
    stats = billing.stats()
    assert (stats.ready, stats.in_flight) == (1, 0)
    (again,) = billing.poll("w")
    assert (again.attempt, again.redelivered) == (1, False)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_signal_handler_that_calls_the_broker_and_then_raises_leaves_nothing_of_the_poll_in_flight(
    broker: BrokerProxy, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    def interrupt(*_: object) -> NoReturn:
        for _call in range(calls):
            broker.publish("orders", "from the handler")
        raise KeyboardInterrupt

    billing = broker.subscribe("orders", "billing", ack_timeout=3600)
    broker.publish("orders", 1)
    with monkeypatch.context() as patch:
        patch.setattr(handle, "Delivery", interrupt)
        with pytest.raises(KeyboardInterrupt):
            billing.poll("w")
    stats = billing.stats()
    assert (stats.ready, stats.in_flight) == (1 + calls, 0)
    again = billing.poll("w", None, 10)
    assert [(each.payload, each.attempt) for each in again] == [(1, 1)] + [("from the handler", 1)] * calls


def test_a_place_as_dispatcher_is_given_back_when_its_taker_is_interrupted_in_a_handler_that_calls(
    broker: BrokerProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> NoReturn:
        monkeypatch.undo()
        broker.topics()
        raise KeyboardInterrupt

    billing = broker.subscribe("orders", "billing")
    monkeypatch.setattr(proxy, "_as_it_is", interrupt)
    with pytest.raises(KeyboardInterrupt):
        billing._attach_dispatcher()
    assert billing.poll("w") == []


def test_a_retry_that_is_interrupted_before_its_caller_has_the_next_attempt_gives_it_back(
    broker: BrokerProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    billing = broker.subscribe("orders", "billing", ack_timeout=3600)
    broker.publish("orders", 1)
    (delivery,) = billing.poll("w")
    with monkeypatch.context() as patch:
        patch.setattr(handle, "Delivery", interrupt)
        with pytest.raises(KeyboardInterrupt):
            delivery.retry("once more")
    assert billing.stats().in_flight == 0
    (again,) = billing.poll("w")
    assert again.attempt == 2


def test_a_subscription_that_ends_takes_its_dispatcher_along(broker: BrokerProxy) -> None:
    for number in range(20):
        broker.subscribe("orders", CallbackSubscriber(f"audit{number}", print))
        broker.unsubscribe("orders", f"audit{number}")
    broker.create_topic("others")
    broker.subscribe("others", CallbackSubscriber("audit", print))
    broker.delete_topic("others")
    assert broker._pool._all() == []


def test_the_id_and_headers_of_a_message_are_there_though_its_payload_cannot_be_opened(
    broker: BrokerProxy,
) -> None:
    billing = broker.subscribe("orders", "billing")
    first = broker.publish_many("orders", [1, payloads.CannotArrive(), 3], {"type": "created"})
    deliveries = billing.poll("w", max_messages=3)
    assert [each.message_id for each in deliveries] == [each.message_id for each in first]
    assert [each.headers for each in deliveries] == [{"type": "created"}] * 3
    assert billing.ack_many([each.message_id for each in deliveries], "w") == [True, True, True]
    with pytest.raises(PayloadError):
        _ = deliveries[1].payload


def test_threads_that_subscribe_at_once_share_one_dispatcher() -> None:
    subscriber = CallbackSubscriber("audit", print)
    for _ in range(50):
        with MessageBroker() as broker:
            broker.create_topic("orders")
            together = threading.Barrier(8)
            got: list[Dispatcher | None] = []

            def subscribe(
                broker: MessageBroker = broker,
                together: threading.Barrier = together,
                got: list[Dispatcher | None] = got,
            ) -> None:
                together.wait(LIMIT_S)
                got.append(broker.subscribe("orders", subscriber)._dispatcher)

            threads = [threading.Thread(target=subscribe) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT_S)
            assert len(got) == 8
            assert len(set(got)) == 1
