"""Who is let in, and who is turned away without harm to the others."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker._version import __version__
from mpbroker.process import frames, handshake
from mpbroker.process.frames import Challenge, Failed, Hello, Proof
from mpbroker.process.handshake import HANDSHAKE_S
from mpbroker.process.limits import RESERVED_CONNECTIONS, LimitOptions, Limits
from tests.process.driver import INCARNATION, KEY, Broker, Connection, hello_of

SESSION = b"\xaa" * 16


@pytest.fixture
def broker() -> Broker:
    return Broker()


def turned_away(connection: Connection, kind: str) -> list[object]:
    """The arguments of the error that a connection was closed with."""
    failed = connection.take()
    assert isinstance(failed, Failed)
    assert failed.kind == kind
    assert connection.is_closed
    return list(failed.args)


def changed(hello: Hello, **fields: object) -> bytes:
    return frames.encode(msgspec.structs.replace(hello, **fields))


def test_who_has_the_key_is_let_in_and_told_about_the_broker() -> None:
    limits = Limits(max_frame_bytes=5_000_000, arena_threshold=1 << 20, max_client_arena_bytes=1 << 26, arena_timeout=2)
    broker = Broker(limits=limits, manual_time=True)
    connection = broker.open(SESSION, "presence", 1)
    hello = hello_of(connection)
    connection.send(hello)
    challenge = connection.take()
    assert isinstance(challenge, Challenge)
    assert (challenge.protocol, challenge.version) == (frames.PROTOCOL, __version__)
    proof = handshake.client_proof(KEY, frames.encode(hello), challenge.nonce)
    connection.send(Proof(proof))
    assert connection.take() == frames.Welcome(INCARNATION, 4711, 5_000_000, True, 0, 1 << 20, 1 << 26, 2.0)
    assert broker.watched == {SESSION}


def test_the_broker_proves_first_that_it_has_the_key(broker: Broker) -> None:
    connection = broker.open(SESSION, "presence", 1)
    hello = hello_of(connection)
    connection.send(hello)
    challenge = connection.take()
    assert isinstance(challenge, Challenge)
    sent = frames.encode(hello)
    assert challenge.proof == handshake.broker_proof(KEY, sent, challenge.nonce)
    assert challenge.proof != handshake.client_proof(KEY, sent, challenge.nonce)


def test_who_has_another_key_is_refused(broker: Broker) -> None:
    connection = broker.open(SESSION, "presence", 1)
    failed = broker.greet(connection, key=b"another")
    assert failed is not None
    assert failed.kind == "AccessRefused"
    assert connection.is_closed
    assert broker.watched == set()


def test_the_brokers_own_proof_does_not_serve_a_client(broker: Broker) -> None:
    connection = broker.open(SESSION, "presence", 1)
    connection.send(hello_of(connection))
    challenge = connection.take()
    assert isinstance(challenge, Challenge)
    connection.send(Proof(challenge.proof))
    turned_away(connection, "AccessRefused")


@pytest.mark.parametrize("field", ["session", "role", "connection", "replaces", "nonce", "version", "answered"])
def test_a_proof_serves_only_the_hello_it_was_made_for(broker: Broker, field: str) -> None:
    others = {
        "session": b"\xbb" * 16,
        "role": "admin",
        "connection": 7,
        "replaces": 9,
        "nonce": b"\xcc" * 32,
        "version": "9.9",
        "answered": 3,
    }
    connection = broker.open(SESSION, "presence", 1)
    hello = hello_of(connection)
    connection.send_bytes(changed(hello, **{field: others[field]}))
    challenge = connection.take()
    assert isinstance(challenge, Challenge)
    connection.send(Proof(handshake.client_proof(KEY, frames.encode(hello), challenge.nonce)))
    turned_away(connection, "AccessRefused")


def test_a_proof_serves_only_one_connection(broker: Broker) -> None:
    proofs = []
    for number in (1, 2):
        connection = broker.open(SESSION, "presence", 1)
        hello = msgspec.structs.replace(hello_of(connection), nonce=b"\xcc" * 32)
        connection.send(hello)
        challenge = connection.take()
        assert isinstance(challenge, Challenge)
        if number == 1:
            proofs.append(handshake.client_proof(KEY, frames.encode(hello), challenge.nonce))
        connection.send(Proof(proofs[0]))
        if number == 1:
            assert isinstance(connection.take(), frames.Welcome)
            connection.close()
    turned_away(connection, "AccessRefused")


@pytest.mark.parametrize("protocol", [0, frames.PROTOCOL - 1, frames.PROTOCOL + 1, 2**63])
def test_another_protocol_is_a_version_mismatch_that_names_both(broker: Broker, protocol: int) -> None:
    connection = broker.open(SESSION, "presence", 1)
    connection.send_bytes(changed(hello_of(connection, version="7.8.9"), protocol=protocol))
    assert turned_away(connection, "VersionMismatch") == ["7.8.9", __version__]


@pytest.mark.parametrize("rest", [[], [1, 2, 3], ["presence", {"x": 1}], ["a"] * 40])
def test_a_hello_of_another_version_may_have_any_other_fields(broker: Broker, rest: list[object]) -> None:
    connection = broker.open(SESSION, "presence", 1)
    connection.send_bytes(msgspec.msgpack.encode(["Hello", 77, "7.8.9", *rest]))
    assert turned_away(connection, "VersionMismatch") == ["7.8.9", __version__]


def test_another_version_with_the_same_protocol_is_let_in(broker: Broker) -> None:
    connection = broker.open(SESSION, "presence", 1)
    connection.send(hello_of(connection, version="0.1.99"))
    assert isinstance(connection.take(), Challenge)


def test_an_endless_version_is_cut(broker: Broker) -> None:
    connection = broker.open(SESSION, "presence", 1)
    connection.send_bytes(msgspec.msgpack.encode(["Hello", 77, "7" * 4000]))
    assert turned_away(connection, "VersionMismatch")[0] == "7" * 64


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\xff" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x91" * 3000,
        b"\x81" * 3000,
        msgspec.msgpack.encode(["Hello"]),
        msgspec.msgpack.encode(["Hello", "1", "x"]),
        msgspec.msgpack.encode(["Hello", 2.5, "x"]),
        msgspec.msgpack.encode(["Hello", 2, 3]),
        msgspec.msgpack.encode({"Hello": 1}),
        msgspec.msgpack.encode(["Other", 2, "x"]),
        b"\x93\xa5Hello\x02\xa1\xff",
        frames.encode(Proof(b"x" * 32)),
        frames.encode(frames.Stop()),
        frames.encode(frames.Goodbye()),
        frames.encode(frames.Topics()),
        b"x" * (frames.MAX_HELLO_BYTES + 1),
    ],
    ids=range(18),
)
def test_what_is_no_hello_is_a_protocol_violation(broker: Broker, body: bytes) -> None:
    other = broker.call()
    connection = broker.open(SESSION, "presence", 1)
    connection.send_bytes(body)
    turned_away(connection, "ProtocolViolation")
    other.ask(frames.Topics(), frames.TopicsReply)


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "boss"},
        {"role": ""},
        {"session": b"short"},
        {"session": b"x" * 17},
        {"nonce": b""},
        {"nonce": b"x" * 33},
        {"connection": 0},
        {"connection": -1},
        {"replaces": -1},
        {"replaces": 1},
    ],
)
def test_a_hello_that_cannot_be_is_a_protocol_violation(broker: Broker, fields: dict[str, object]) -> None:
    connection = broker.open(SESSION, "presence", 1)
    connection.send_bytes(changed(hello_of(connection), **fields))
    turned_away(connection, "ProtocolViolation")


@pytest.mark.parametrize("body", [b"", b"\xc0", frames.encode(frames.Topics()), frames.encode(frames.Goodbye())])
def test_what_is_no_proof_is_a_protocol_violation(broker: Broker, body: bytes) -> None:
    connection = broker.open(SESSION, "presence", 1)
    connection.send(hello_of(connection))
    connection.take()
    connection.send_bytes(body)
    turned_away(connection, "ProtocolViolation")


def test_a_second_hello_is_a_protocol_violation(broker: Broker) -> None:
    connection = broker.open(SESSION, "presence", 1)
    connection.send(hello_of(connection))
    connection.take()
    connection.send(hello_of(connection))
    turned_away(connection, "ProtocolViolation")


@pytest.mark.parametrize("after_hello", [False, True])
def test_a_peer_that_falls_silent_is_turned_away_exactly_at_the_deadline(broker: Broker, after_hello: bool) -> None:
    connection = broker.open(SESSION, "presence", 1)
    opened = broker.now
    broker.later(3.0)
    if after_hello:
        connection.send(hello_of(connection))
        connection.take()
    assert broker.sessions.next_due() == opened + HANDSHAKE_S
    broker.at(opened + HANDSHAKE_S - 0.001)
    assert connection.waits
    broker.at(opened + HANDSHAKE_S)
    turned_away(connection, "AccessRefused")
    assert broker.sessions.next_due() is None


def test_who_is_let_in_has_no_deadline_any_more(broker: Broker) -> None:
    presence = broker.process().presence
    assert broker.sessions.next_due() is None
    broker.later(1000.0)
    assert presence.waits


def test_a_process_has_one_presence(broker: Broker) -> None:
    process = broker.process()
    second = broker.open(process.session, "presence", 9)
    failed = broker.greet(second)
    assert failed is not None
    assert failed.kind == "AccessRefused"
    assert second.is_closed
    process.call().ask(frames.Topics(), frames.TopicsReply)


def test_a_call_without_a_presence_is_refused(broker: Broker) -> None:
    connection = broker.open(SESSION, "call", 1)
    failed = broker.greet(connection)
    assert failed is not None
    assert failed.kind == "AccessRefused"
    assert connection.is_closed


def test_a_call_of_a_process_that_is_dead_is_refused(broker: Broker) -> None:
    process = broker.process()
    connection = broker.open(process.session, "call", 5)
    hello = hello_of(connection)
    connection.send(hello)
    challenge = connection.take()
    assert isinstance(challenge, Challenge)
    process.die()
    connection.send(Proof(handshake.client_proof(KEY, frames.encode(hello), challenge.nonce)))
    turned_away(connection, "AccessRefused")


def test_an_admin_needs_no_presence_and_can_hold_nothing_without(broker: Broker) -> None:
    number = broker.call().subscribe("t", "s")
    admin = broker.connect(SESSION, "admin", 1)
    admin.publish("t", 1)
    assert admin.failed(frames.Poll(number, "w", None, 1, 0.0)).kind == "AccessRefused"
    assert admin.failed(frames.Attach(number)).kind == "AccessRefused"
    assert admin.stats(number)["ready"] == 1


def test_two_connections_of_a_process_cannot_have_one_number(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    twin = broker.open(process.session, "call", call.number)
    failed = broker.greet(twin)
    assert failed is not None
    assert failed.kind == "ProtocolViolation"
    call.ask(frames.Topics(), frames.TopicsReply)


# -- limits -----------------------------------------------------------------------------------------------------------


def test_at_the_limit_calls_are_refused_by_the_name_of_the_option() -> None:
    broker = Broker(limits=Limits(max_connections=3))
    process = broker.process()
    process.call()
    process.call()
    refused = broker.open(process.session, "call", 50)
    failed = broker.greet(refused)
    assert failed == Failed("LimitReached", ["connections", 3, "max_connections"])
    assert refused.is_closed


def test_at_the_limit_of_calls_processes_can_announce_themselves_and_admins_stop() -> None:
    broker = Broker(limits=Limits(max_connections=1))
    presences = [broker.process().presence for _ in range(1 + RESERVED_CONNECTIONS)]
    refused = broker.open(SESSION, "presence", 1)
    failed = broker.greet(refused)
    assert failed is not None
    assert failed.kind == "LimitReached"
    admin = broker.connect(SESSION, "admin", 1)
    admin.send(frames.Stop())
    assert broker.quit is not None
    assert not any(presence.is_closed for presence in presences)


def test_a_connection_that_closes_makes_room() -> None:
    broker = Broker(limits=Limits(max_connections=2))
    process = broker.process()
    process.call().close()
    process.call()


def test_an_interrupted_call_finds_room_at_the_limit_by_the_one_it_replaces() -> None:
    broker = Broker(limits=Limits(max_connections=2))
    process = broker.process()
    old = process.call()
    process.call(replaces=old.number)
    assert old.is_closed


def test_silent_peers_do_not_keep_others_out() -> None:
    limits = Limits(max_connections=1)
    broker = Broker(limits=limits)
    silent = [broker.open(SESSION, "call", 1) for _ in range(limits.sockets)]
    admin = broker.connect(SESSION, "admin", 1)
    turned_away(silent[0], "LimitReached")
    assert all(each.waits for each in silent[1:])
    admin.send(frames.Stop())
    assert broker.quit is not None


def test_when_every_connection_is_open_the_next_one_is_told_so_at_once() -> None:
    limits = Limits(max_connections=1)
    broker = Broker(limits=limits)
    for _ in range(1 + RESERVED_CONNECTIONS):
        broker.process()
    for number in range(RESERVED_CONNECTIONS):
        broker.connect(SESSION, "admin", number + 1)
    turned_away(broker.open(SESSION, "admin", 99), "LimitReached")


@pytest.mark.parametrize(
    "options",
    [
        {"max_connections": 0},
        {"max_topics": -1},
        {"max_frame_bytes": frames.ROOM_BYTES},
        {"max_frame_bytes": 2**32},
        {"max_name_length": 256},
        {"max_headers": 0},
        {"max_payload_bytes": 0},
        {"max_waiting_calls": 0},
        {"max_queue_bytes": -1},
        {"frame_timeout": 0.0},
        {"frame_timeout": float("nan")},
    ],
    ids=str,
)
def test_limits_that_cannot_work_are_refused(options: LimitOptions) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Limits(**options)


def test_a_limit_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match="max_topics"):
        Limits(max_topics=True)


# -- how much may come ------------------------------------------------------------------------------------------------


def test_large_frames_may_come_once_a_call_is_let_in(broker: Broker) -> None:
    process = broker.process()
    connection = broker.open(process.session, "call", 9)
    assert broker.sessions.frame_limit(connection.id) == frames.MAX_HELLO_BYTES
    broker.greet(connection)
    assert broker.sessions.frame_limit(connection.id) == frames.MAX_FRAME_BYTES
    assert broker.sessions.frame_limit(process.presence.id) == frames.MAX_HELLO_BYTES
    connection.close()
    assert broker.sessions.frame_limit(connection.id) == frames.MAX_HELLO_BYTES


def test_what_the_loop_could_not_read_closes_that_connection_alone(broker: Broker) -> None:
    process = broker.process()
    bad, good = process.call(), process.call()
    broker.carry_out(broker.sessions.violated(bad.id, "a frame of a terabyte", broker.now))
    assert turned_away(bad, "ProtocolViolation") == ["a frame of a terabyte"]
    good.ask(frames.Topics(), frames.TopicsReply)


def test_events_of_closed_and_unknown_connections_have_no_effect(broker: Broker) -> None:
    call = broker.call()
    call.close()
    sessions = broker.sessions
    assert sessions.received(call.id, frames.encode(frames.Topics()), broker.now) == []
    assert sessions.closed(call.id, broker.now) == []
    assert sessions.violated(call.id, "x", broker.now) == []
    assert sessions.closed(12345, broker.now) == []
    assert sessions.process_ended(b"nobody", None, broker.now) == []
