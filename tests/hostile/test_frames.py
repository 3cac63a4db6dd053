"""Bytes that are no frames, half frames, slow frames: whoever sends them harms itself alone."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from mpbroker import BrokerManager, BrokerProxy, ProtocolViolation
from mpbroker._version import __version__
from mpbroker.process import frames, handshake
from mpbroker.process.frames import Challenge, Failed, Hello, Welcome
from mpbroker.process.naming import Located, locate_at
from mpbroker.process.payloads import encode_batches
from tests.conformance.support import Call, until
from tests.hostile.support import Peer, assert_serves, error_of, let_in, packed
from tests.process.puppets import LIMIT_S

# -- garbage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f" + b"x" * 100_000,
        b"\x00\x00\x00\x00",
        b"\x05\x00\x00\x00hello",
        (4097).to_bytes(4, "little"),
        len(frames.encode(frames.Topics())).to_bytes(4, "little") + frames.encode(frames.Topics()),
        os.urandom(5000),
        (-1).to_bytes(4, "little", signed=True) + b"x",
        (-(2**31)).to_bytes(4, "little", signed=True) + b"x",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    ],
    ids=[
        "http",
        "4 GiB",
        "2 GiB",
        "nothing",
        "text",
        "too long a hello",
        "a request at once",
        "noise",
        "length -1",
        "length -2 GiB",
        "tls",
    ],
)
def test_garbage_is_told_so_and_cut(data: bytes, broker: BrokerProxy, located: Located) -> None:
    with Peer(located) as peer:
        peer.send(data)
        peer.sock.shutdown(socket.SHUT_WR)
        assert isinstance(error_of(peer.reply()), ProtocolViolation)
        assert peer.reply() is None
    assert_serves(broker)


def test_a_frame_may_come_byte_by_byte(broker: BrokerProxy, located: Located) -> None:
    hello = Hello(frames.PROTOCOL, __version__, "presence", os.urandom(16), 1, 0, os.urandom(handshake.NONCE_BYTES))
    body = frames.encode(hello)
    with Peer(located) as peer:
        for byte in len(body).to_bytes(4, "little") + body:
            peer.send(bytes([byte]))
            assert_serves(broker)
        assert isinstance(peer.reply(), Challenge)


def test_a_connection_that_ends_in_the_middle_of_a_frame_is_forgotten(broker: BrokerProxy, located: Located) -> None:
    before = broker._status().limits["connections"][0]
    for size in (1, 3, 4, 20, 60):
        with Peer(located) as peer:
            peer.send(
                (100).to_bytes(4, "little") + b"x" * 56 if size == 60 else b"\x40\x00\x00\x00xxxxxxxxxxxxxxxx"[:size]
            )
    until(lambda: broker._status().limits["connections"][0] <= before)  # others may just have been leaving


def test_many_calls_at_once_on_one_connection_are_answered_in_order(broker: BrokerProxy, located: Located) -> None:
    with Peer(located) as presence, Peer(located) as peer:
        session = os.urandom(16)
        presence.hello("presence", session, 1)
        assert isinstance(presence.reply(), Welcome)
        peer.hello("call", session, 2)
        assert isinstance(peer.reply(), Welcome)

        def flood() -> None:
            for number in range(500):
                peer.frame(frames.CreateTopic(f"t{number}", False))
                peer.frame(frames.CreateTopic(f"t{number}", False))

        flooding = Call(flood)
        for _ in range(500):
            assert isinstance(peer.reply(), frames.Done)
            assert isinstance(peer.reply(), Failed)
        flooding.result()


def test_a_peer_that_does_not_read_is_not_answered_without_bound(broker: BrokerProxy, located: Located) -> None:
    """What waits for it stays small, and others are served."""
    for number in range(200):
        broker.create_topic(f"topic {number} " + "x" * 200)
    with Peer(located) as presence, Peer(located) as peer:
        session = os.urandom(16)
        presence.hello("presence", session, 1)
        presence.reply()
        peer.hello("call", session, 2)
        peer.reply()
        peer.sock.settimeout(0.2)
        body = frames.encode(frames.Topics())
        flood = (len(body).to_bytes(4, "little") + body) * 1000
        before = broker._status().memory_bytes
        with pytest.raises(TimeoutError):
            peer.sock.sendall(flood * 1000)
        assert broker._status().memory_bytes - before < 20 << 20
        assert len(broker.topics()) == 201


@pytest.mark.parametrize("length", [2**32 - 1, 2**31, 64 * 1024 * 1024 + 1])
def test_a_giant_length_is_refused_after_the_handshake_too_and_costs_no_memory(
    length: int, broker: BrokerProxy, located: Located
) -> None:
    before = broker._status().memory_bytes
    with let_in(located) as (_, peer):
        peer.send(length.to_bytes(4, "little") + b"x" * 1000)
        assert isinstance(error_of(peer.reply()), ProtocolViolation)
        assert peer.reply() is None
    assert broker._status().memory_bytes - before < 20 << 20
    assert_serves(broker)


def test_a_request_may_come_byte_by_byte(broker: BrokerProxy, located: Located) -> None:
    with let_in(located) as (_, peer):
        for byte in packed(frames.encode(frames.Topics())):
            peer.send(bytes([byte]))
            assert_serves(broker)
        assert isinstance(peer.reply(), frames.TopicsReply)


def test_a_frame_that_is_begun_and_not_completed_is_cut_and_its_process_goes_on() -> None:
    with BrokerManager(frame_timeout=0.2) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        with let_in(locate_at(Path(broker._address.folder))) as (presence, peer):
            peer.send(packed(b"x" * 100)[:20])
            assert isinstance(error_of(peer.reply()), ProtocolViolation)
            assert peer.reply() is None
            with Peer(presence.located) as another:
                another.hello("call", presence.session, 3)
                assert isinstance(another.reply(), Welcome)
        assert_serves(broker)


@pytest.mark.parametrize("sent", [1, 3, 4, 5], ids=str)
def test_a_trickle_of_bytes_does_not_keep_a_frame_alive(sent: int) -> None:
    with BrokerManager(frame_timeout=0.3) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        with let_in(locate_at(Path(broker._address.folder))) as (_, peer):
            peer.send(packed(b"x" * 100_000)[:sent])
            ended = Call(peer.reply)
            pause = threading.Event()
            for _ in range(int(LIMIT_S / 0.05)):
                if not ended.running:
                    break
                pause.wait(0.05)
                if sent > 3:
                    peer.send(b"x")
            assert isinstance(error_of(ended.result()), ProtocolViolation)
        assert_serves(broker)


def test_a_large_upload_that_is_slow_but_gets_on_passes() -> None:
    """A frame has a second for each MiB beside frame_timeout."""
    with BrokerManager(frame_timeout=0.1) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing")
        payload = os.urandom(20 << 20)
        batches = [msgspec.Raw(batch) for batch in encode_batches([payload])]
        frame = packed(frames.encode(frames.Publish("orders", batches, {}, 1)))
        with let_in(locate_at(Path(broker._address.folder))) as (_, peer):
            pause = threading.Event()
            step = len(frame) // 4
            for at in range(0, len(frame), step):
                peer.send(frame[at : at + step])
                pause.wait(0.1)
            assert isinstance(peer.reply(), frames.Published)
        assert billing.poll("w")[0].payload == payload


def test_a_client_that_does_not_read_its_replies_is_cut_and_what_it_was_given_goes_back() -> None:
    with BrokerManager(frame_timeout=0.2, arena_threshold=0) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing")
        broker.publish("orders", bytes(1 << 20))
        status = broker._status()
        before = status.limits["connections"][0]
        with let_in(locate_at(Path(broker._address.folder))) as (_, peer):
            peer.frame(frames.FindSubscription("orders", "billing"))
            found = peer.reply()
            assert isinstance(found, frames.Subscribed)
            until(lambda: broker._status().limits["connections"][0] == before + 2)
            peer.frame(frames.Poll(found.number, "deaf", None, 1, 0.0))
            until(lambda: broker._status().limits["connections"][0] == before + 1)
            (delivery,) = billing.poll("w", timeout=LIMIT_S)
            assert (delivery.attempt, delivery.redelivered) == (1, False)
            assert delivery.ack()
        assert broker._status().memory_bytes - status.memory_bytes < 20 << 20


def test_what_waits_for_readers_is_bounded_over_all_connections(
    broker: BrokerProxy, located: Located, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time: while it is too much together, each reply waits shorter."""
    from mpbroker.process import transit
    from mpbroker.process.limits import UNREAD_S, Limits
    from mpbroker.process.link import Link

    monkeypatch.setattr(transit, "MOST_UNSENT_BYTES", 1000)
    waiting = transit.Transit(Limits())
    pairs = [socket.socketpair() for _ in range(3)]
    links = [Link(ours, number) for number, (ours, _) in enumerate(pairs)]
    for now, link in enumerate(links[:2]):
        link._out_bytes = 600
        waiting.waits(link, float(now))
    assert waiting.overdue(UNREAD_S - 0.5) == []
    assert waiting.overdue(UNREAD_S + 0.5) == links[:1]
    assert waiting.overdue(UNREAD_S + 1.0) == links[:2]
    waiting.comes(links[2], 0.0, anew=True)
    assert links[2] not in waiting.overdue(UNREAD_S + 1.0)
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
