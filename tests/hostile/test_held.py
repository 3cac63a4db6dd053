"""What a client sends behind a publish that waits for room: in order, bounded, seen when the client is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from mpbroker import BrokerProxy, Overflow
from mpbroker.api import SubscriptionAPI
from mpbroker.process import frames
from mpbroker.process.frames import Frame, Published
from mpbroker.process.link import READ_BYTES
from mpbroker.process.naming import Located, locate_at
from mpbroker.testing import FakeClock
from tests.conformance.support import Call, until
from tests.hostile.support import Peer, error_of, let_in, packed, stepped_broker
from tests.process.driver import publish
from tests.process.puppets import waits

MANY: Final = 300
"""Requests behind it: more than the broker takes of one connection in a turn."""


@contextmanager
def held(
    broker: BrokerProxy, located: Located, *behind: Frame, tail: bytes = b""
) -> Iterator[tuple[SubscriptionAPI, Peer, Peer]]:
    """A full subscription, and a peer whose publish waits, with what is behind it sent at once."""
    broker.create_topic("orders", exist_ok=True)
    billing = broker.subscribe("orders", "billing", max_queue=MANY, overflow=Overflow.WAIT(3600))
    broker.publish_many("orders", range(MANY))
    try:
        with let_in(located) as (presence, call):
            call.send(b"".join(packed(frames.encode(each)) for each in (publish("orders", "first"), *behind)) + tail)
            waits(broker)
            yield billing, presence, call
    finally:
        if "orders" in broker.topics():
            broker.unsubscribe("orders", "billing")


def drain(subscription: SubscriptionAPI, count: int) -> list[object]:
    found: list[object] = []
    while len(found) < count:
        taken = subscription.poll("w", max_messages=count - len(found))
        found += [delivery.payload for delivery in taken]
        assert all(delivery.ack() for delivery in taken)
    return found


def test_requests_behind_it_are_served_in_order_once_it_is_answered(broker: BrokerProxy, located: Located) -> None:
    behind = [publish("orders", number) for number in range(MANY)]
    with held(broker, located, *behind) as (billing, _, call):
        call.frame(frames.Topics())
        drain(billing, MANY)
        firsts = []
        for _ in range(MANY):
            reply = call.reply()
            assert isinstance(reply, Published)
            firsts.append(reply.first)
        assert firsts == list(range(firsts[0], firsts[0] + MANY))
        assert drain(billing, MANY) == ["first", *range(MANY - 1)]
        assert isinstance(call.reply(), Published)
        assert isinstance(call.reply(), frames.TopicsReply)
        assert drain(billing, 1) == [MANY - 1]


def test_a_large_request_behind_it_passes_when_it_is_answered(broker: BrokerProxy, located: Located) -> None:
    large = bytes(8 * READ_BYTES)
    with held(broker, located) as (billing, _, call):
        sending = Call(lambda: call.frame(publish("orders", large)))
        drain(billing, MANY)
        sending.result()
        assert isinstance(call.reply(), Published)
        assert isinstance(call.reply(), Published)
        assert drain(billing, 2) == ["first", large]


def test_what_is_behind_it_stays_with_its_sender(broker: BrokerProxy, located: Located) -> None:
    """The socket takes a part, and the broker one read; then it is the client who waits."""
    sent = 0
    body = packed(frames.encode(publish("orders", bytes(10_000))))
    with held(broker, located, publish("orders", 0)) as (billing, _, call):
        call.sock.settimeout(0.2)
        with suppress(TimeoutError):
            while sent < 100 * READ_BYTES:
                sent += call.sock.send(body)
        assert sent < 8 * READ_BYTES
        assert broker._status().limits["queue_bytes"][0] < 1_000_000
        waits(broker)
        assert billing.pending == MANY


@pytest.mark.parametrize("behind", [0, MANY])
def test_the_end_of_its_process_cancels_it_whatever_is_behind_it(
    behind: int, broker: BrokerProxy, located: Located
) -> None:
    with held(broker, located, *[publish("orders", "behind")] * behind) as (billing, presence, call):
        presence.close()
        until(lambda: broker._status().limits["waiting_calls"][0] == 0)
        assert call.reply() is None
        published = broker.topics()["orders"].published
        drain(billing, MANY)
        assert (billing.pending, broker.topics()["orders"].published) == (0, published)


def test_the_end_of_its_connection_cancels_it(broker: BrokerProxy, located: Located) -> None:
    with held(broker, located) as (billing, _, call):
        call.close()
        until(lambda: broker._status().limits["waiting_calls"][0] == 0)
        drain(billing, MANY)
        assert billing.pending == 0


def test_nonsense_behind_it_is_found_out_when_its_turn_comes(broker: BrokerProxy, located: Located) -> None:
    with held(broker, located) as (billing, _, call):
        call.send(packed(b"nonsense"))
        broker.topics()
        waits(broker)
        drain(billing, MANY)
        assert isinstance(call.reply(), Published)
        assert type(error_of(call.reply())).__name__ == "ProtocolViolation"
        assert call.reply() is None
        assert drain(billing, 1) == ["first"]


def test_an_endless_frame_behind_it_is_cut_at_once(broker: BrokerProxy, located: Located) -> None:
    with held(broker, located) as (billing, _, call):
        call.send(b"\xff\xff\xff\xff")
        assert type(error_of(call.reply())).__name__ == "ProtocolViolation"
        assert call.reply() is None
        until(lambda: broker._status().limits["waiting_calls"][0] == 0)
        drain(billing, MANY)
        assert billing.pending == 0


def test_a_process_that_is_killed_with_requests_behind_it_publishes_nothing(
    broker: BrokerProxy, located: Located
) -> None:
    with held(broker, located) as (billing, _, _call):
        pid = os.fork()
        if not pid:
            with let_in(located) as (_, own):
                own.send(packed(frames.encode(publish("orders", "in vain"))) * 50)
                signal.pause()
        waits(broker, 2)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        until(lambda: broker._status().limits["waiting_calls"][0] == 1)
        drain(billing, MANY)
        until(lambda: billing.pending == 1)
        assert drain(billing, 1) == ["first"]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_half_frame_behind_it_has_its_time_from_when_it_is_read_on(
    at_once: bool, tmp_path: Path, clock: FakeClock
) -> None:
    whole = packed(frames.encode(publish("orders", "second")))
    with (
        stepped_broker(tmp_path, clock) as broker,
        held(broker, locate_at(tmp_path / "stepped"), tail=whole[:-5] if at_once else b"") as (billing, _, call),
    ):
        if not at_once:
            call.send(whole[:-5])
        for _ in range(100):  # longer than a frame may take, in steps that are no stop of the broker
            clock.advance(0.9)
            broker.topics()
        waits(broker)
        drain(billing, MANY)
        assert isinstance(call.reply(), Published)
        call.send(whole[-5:])
        assert isinstance(call.reply(), Published)
        assert drain(billing, 2) == ["first", "second"]


def test_a_half_frame_that_does_not_go_on_afterwards_is_cut(tmp_path: Path, clock: FakeClock) -> None:
    whole = packed(frames.encode(publish("orders", "second")))
    with (
        stepped_broker(tmp_path, clock) as broker,
        held(broker, locate_at(tmp_path / "stepped"), tail=whole[:-5]) as (billing, _, call),
    ):
        drain(billing, MANY)
        assert isinstance(call.reply(), Published)
        for _ in range(40):
            clock.advance(1.0)
            broker.topics()
        assert "frame_timeout" in str(error_of(call.reply()))
        assert call.reply() is None
