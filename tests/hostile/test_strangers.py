"""Peers that want in and may not, or want what they may not have."""

from __future__ import annotations

import multiprocessing.connection
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.managers import Server
from pathlib import Path

import msgspec
import pytest

from mpbroker import (
    AccessRefused,
    BrokerGone,
    BrokerManager,
    BrokerProxy,
    MpbrokerError,
    ProtocolViolation,
    VersionMismatch,
    connect,
)
from mpbroker._version import __version__
from mpbroker.process import frames, handshake
from mpbroker.process.channel import open_channel
from mpbroker.process.claims import BrokerFolder
from mpbroker.process.frames import Challenge, Failed, Hello, Proof, Welcome
from mpbroker.process.naming import SOCKET, BrokerInfo, Located, locate_at
from tests.conformance.support import Call
from tests.hostile.support import Peer, as_root, assert_serves, error_of, let_in, packed, times
from tests.process.holders import NOBODY
from tests.process.payloads import Canary
from tests.process.puppets import LIMIT_S, ROOT

# -- who may in -------------------------------------------------------------------------------------------------------


def test_the_wrong_key_is_refused(broker: BrokerProxy, located: Located) -> None:
    with Peer(located) as peer:
        peer.hello("presence", os.urandom(16), 1, key=os.urandom(32))
        assert isinstance(error_of(peer.reply()), AccessRefused)
        assert peer.reply() is None
    assert_serves(broker)


def test_a_client_finds_out_a_broker_that_does_not_have_the_key(broker: BrokerProxy, located: Located) -> None:
    impostor = Located(located.folder, os.urandom(32), located.info)
    with pytest.raises(AccessRefused, match="does not have the key"):
        open_channel(impostor, role="presence", session=os.urandom(16), number=1, timeout_s=LIMIT_S)
    assert_serves(broker)


def test_a_proof_cannot_be_played_back(broker: BrokerProxy, located: Located) -> None:
    hello = Hello(frames.PROTOCOL, __version__, "presence", os.urandom(16), 1, 0, os.urandom(handshake.NONCE_BYTES))
    with Peer(located) as first, Peer(located) as second:
        first.frame(hello)
        challenge = first.reply()
        assert isinstance(challenge, Challenge)
        second.frame(hello)
        assert isinstance(second.reply(), Challenge)
        second.frame(Proof(handshake.client_proof(located.key, frames.encode(hello), challenge.nonce)))
        assert isinstance(error_of(second.reply()), AccessRefused)


def test_calls_need_the_presence_of_their_process(broker: BrokerProxy, located: Located) -> None:
    with Peer(located) as peer:
        peer.hello("call", os.urandom(16), 1)
        assert isinstance(error_of(peer.reply()), AccessRefused)


def test_only_an_admin_connection_stops_the_broker(broker: BrokerProxy, located: Located) -> None:
    with Peer(located) as presence, Peer(located) as peer:
        session = os.urandom(16)
        presence.hello("presence", session, 1)
        presence.reply()
        peer.hello("call", session, 2)
        peer.reply()
        peer.frame(frames.Stop())
        assert isinstance(error_of(peer.reply()), ProtocolViolation)
    assert_serves(broker)


def test_another_version_is_told_both(broker: BrokerProxy, located: Located) -> None:
    with Peer(located) as peer:
        peer.frame(Hello(999, "9.9.9", "presence", os.urandom(16), 1, 0, b""))
        error = error_of(peer.reply())
    assert isinstance(error, VersionMismatch)
    assert error.args == ("9.9.9", __version__)
    assert_serves(broker)


def test_a_broker_of_another_version_is_told_from_its_folder(broker_folder: Path) -> None:
    info = BrokerInfo(os.getpid(), "9.9.9", 999, "0" * 16, 0.0)
    with BrokerFolder.claim("orders", broker_folder, info), pytest.raises(VersionMismatch) as caught:
        connect("orders")
    assert caught.value.args == (__version__, "9.9.9")


def test_a_broker_of_another_version_is_told_from_its_words(broker_folder: Path) -> None:
    info = BrokerInfo(os.getpid(), __version__, frames.PROTOCOL, "0" * 16, 0.0)
    with BrokerFolder.claim("orders", broker_folder, info) as place:
        client = Call(lambda: connect("orders"))
        sock, _ = place.listener.accept()
        with sock:
            body = frames.encode(Challenge(999, "9.9.9", b"", b""))
            sock.sendall(packed(body))
            with pytest.raises(VersionMismatch) as caught:
                client.result()
    assert caught.value.args == (__version__, "9.9.9")


def test_a_broker_that_hangs_up_in_the_handshake_is_an_error_and_no_hang(broker_folder: Path) -> None:
    info = BrokerInfo(os.getpid(), __version__, frames.PROTOCOL, "0" * 16, 0.0)
    with BrokerFolder.claim("orders", broker_folder, info) as place:
        client = Call(lambda: connect("orders"))
        sock, _ = place.listener.accept()
        sock.close()
        with pytest.raises((AccessRefused, BrokerGone)):
            client.result()


def test_wrong_keys_at_speed_are_all_refused_and_keep_nobody_out(broker: BrokerProxy, located: Located) -> None:
    refused = broker._status().counters["refused"]
    tries = times(300, 20_000)
    for number in range(tries):
        with Peer(located) as peer:
            peer.hello("presence", os.urandom(16), 1, key=os.urandom(32))
            assert isinstance(error_of(peer.reply()), AccessRefused)
            assert peer.reply() is None
        if number % 100 == 0:
            connect("hostile", directory=located.folder.parent).close()
    assert broker._status().counters["refused"] == refused + tries


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "step by step"])
def test_a_recorded_handshake_that_is_sent_again_is_refused(
    at_once: bool, broker: BrokerProxy, located: Located
) -> None:
    hello = Hello(frames.PROTOCOL, __version__, "presence", os.urandom(16), 1, 0, os.urandom(handshake.NONCE_BYTES))
    with Peer(located) as first:
        first.frame(hello)
        challenge = first.reply()
        assert isinstance(challenge, Challenge)
        proof = Proof(handshake.client_proof(located.key, frames.encode(hello), challenge.nonce))
        first.frame(proof)
        assert isinstance(first.reply(), Welcome)
    for _ in range(3):
        with Peer(located) as again:
            if at_once:
                again.send(packed(frames.encode(hello)) + packed(frames.encode(proof)))
                assert isinstance(again.reply(), Challenge)
            else:
                again.frame(hello)
                assert isinstance(again.reply(), Challenge)
                again.frame(proof)
            assert isinstance(error_of(again.reply()), AccessRefused)
            assert again.reply() is None


# -- the standard manager's server ------------------------------------------------------------------------------------

STANDARD = sorted(
    {
        *Server.public,
        *(name for name in vars(Server) if not name.startswith("__")),
        "#GETVALUE",
        "__str__",
        "__repr__",
        "__reduce__",
        "__reduce_ex__",
        "__getattribute__",
        "__class__",
        "__dict__",
        "__init__",
        "_callmethod",
        "stop",
    }
)
"""What a client of a plain BaseManager's server may ask for, and a little more."""


def test_the_list_of_standard_methods_is_the_real_one() -> None:
    assert {"create", "shutdown", "incref", "decref", "debug_info", "number_of_objects", "dummy", "get_methods"} <= set(
        STANDARD
    )
    assert {"accept_connection", "serve_client", "serve_forever", "fallback_getvalue"} <= set(STANDARD)


@pytest.mark.parametrize("method", STANDARD)
def test_a_method_of_the_standard_server_gets_nothing(method: str, broker: BrokerProxy, located: Located) -> None:
    requests: list[bytes] = [
        msgspec.msgpack.encode([method]),
        msgspec.msgpack.encode([method, None, [], {}]),
        msgspec.msgpack.encode([None, method, [], {}]),
        pickle.dumps((None, method, (), {})),
        pickle.dumps(("broker", method, (), {})),
        pickle.dumps(("0", method, ("broker",), {})),
    ]
    for request in requests:
        with let_in(located) as (_, peer):
            peer.send(packed(request))
            assert isinstance(error_of(peer.reply()), ProtocolViolation)
            assert peer.reply() is None
    assert_serves(broker)


@pytest.mark.parametrize("method", ["create", "shutdown", "dummy"])
def test_a_client_of_the_standard_server_gets_nothing(method: str, broker: BrokerProxy, located: Located) -> None:
    with Peer(located) as peer:
        theirs = multiprocessing.connection.Connection(os.dup(peer.sock.fileno()))
        try:
            theirs.send((None, method, (), {}))
            assert isinstance(error_of(peer.reply()), ProtocolViolation)
            assert peer.reply() is None
        finally:
            theirs.close()


@pytest.mark.parametrize("method", ["shutdown", "create", "#GETVALUE", "__reduce__"])
def test_a_proxy_asks_for_no_method_of_the_standard_server(method: str, broker: BrokerProxy) -> None:
    call: Callable[..., object] = broker._callmethod
    with pytest.raises(TypeError, match="other managers"):
        call(method)


# -- pickles that must not be opened ----------------------------------------------------------------------------------


def test_no_pickle_that_a_peer_sends_is_ever_opened(broker: BrokerProxy, located: Located, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    bomb = pickle.dumps(Canary(canary))
    text = bomb.decode("latin-1")
    extension = msgspec.msgpack.encode([msgspec.msgpack.Ext(1, bomb)])
    # before the handshake, and in its place
    for body in (
        bomb,
        msgspec.msgpack.encode(bomb),
        msgspec.msgpack.encode(["Hello", 1, text, text, bomb, 1, 0, bomb]),
    ):
        with Peer(located) as peer:
            peer.send(packed(body))
            assert isinstance(peer.reply(), Failed)
    for role, session, nonce in ((text, bomb[:16], bytes(32)), ("presence", bomb[:16], (bomb * 2)[:32])):
        with Peer(located) as peer:
            peer.frame(Hello(frames.PROTOCOL, text, role, session, 1, 0, nonce))
            peer.frame(Proof(bomb))
            while peer.reply() is not None:
                pass
    # in every place that carries bytes or text
    requests: list[bytes] = [
        bomb,
        extension,
        frames.encode(frames.CreateTopic(text, True)),
        frames.encode(frames.FindSubscription(text, text)),
        frames.encode(
            frames.Subscribe("orders", "s", False, ["filter"], "expression", text, 1.0, 1, None, 1, "reject")
        ),
        frames.encode(frames.Subscribe("orders", "s", False, ["filter"], "function", text, 1.0, 1, None, 1, "reject")),
        frames.encode(frames.Subscribe("orders", "s", False, ["filter"], text, text, 1.0, 1, None, 1, text)),
        frames.encode(frames.Publish("orders", [msgspec.Raw(extension)], {text: text}, 1)),
        frames.encode(frames.Publish("orders", [msgspec.Raw(bomb)], {}, 1)),
        frames.encode(frames.Nack(1, 1, text, None, text, None)),
        frames.encode(frames.Reject(1, 1, None, text)),
        frames.encode(frames.DeadLetters(text, None, 0)),
        frames.encode(frames.Offer(1, msgspec.Raw(extension[1:]), {text: text}, 1, 0.0, 1, text)),
    ]
    for request in requests:
        with let_in(located) as (_, peer):
            peer.send(packed(request))
            assert peer.reply() is not None
    assert not canary.exists()


def test_a_pickle_goes_through_every_verb_unopened(broker: BrokerProxy, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    text = pickle.dumps(Canary(canary)).decode("latin-1")
    billing = broker.subscribe("orders", "billing", max_deliveries=2)
    message = broker.publish("orders", Canary(canary), {"bomb": text})
    for _ in range(2):
        (delivery,) = billing.poll("w")
        assert delivery.headers["bomb"] == text
        assert delivery.nack(error=text)
    assert billing.stats().dead == 1
    assert broker.redrive("orders/billing", [message.message_id]) == 1
    (delivery,) = billing.poll("w")
    assert delivery.reject(error=text)
    assert broker.purge_dead_letters("orders/billing") == 1
    with pytest.raises(MpbrokerError) as caught:
        broker.subscription("orders", "x" + text.translate(dict.fromkeys(range(256), "x")))
    pickle.loads(pickle.dumps(caught.value))
    assert not canary.exists()


# -- another user -----------------------------------------------------------------------------------------------------

STRANGER = """
import os, socket, sys
from pathlib import Path
import mpbroker
from mpbroker.cli.app import app
from mpbroker.cli.main import run
from typer.testing import CliRunner
what, folder = sys.argv[1], Path(sys.argv[2])
if what in ("status", "stop", "ping"):
    # All that it imports on its way: the other user may not read the interpreter's files.
    os.environ["MPBROKER_DIR"] = str(folder.parent)
    CliRunner().invoke(app, [what, "--name", "nobody-has-it"])
os.setgroups([])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[3]))
if what == "socket":
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        try:
            sock.connect(str(folder / "sock"))
            sock.sendall(bytes(100))
        except BrokenPipeError:
            pass
        try:
            print("read", sock.recv(1000))
        except ConnectionResetError:
            print("read", b"")
elif what == "key":
    print("read", len((folder / "key").read_bytes()))
elif what == "folder":
    print("read", os.listdir(folder))
elif what == "kill":
    os.kill(int(sys.argv[4]), 15)
else:
    sys.argv = ["mpbroker", what, "--name", folder.name]
    sys.exit(run())
"""


def stranger(what: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """What another user gets who tries something with a broker."""
    return subprocess.run(
        [sys.executable, "-c", STRANGER, what, str(folder), str(NOBODY), *more],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        check=False,
    )


@as_root
@pytest.mark.parametrize("what", ["socket", "key", "folder"])
def test_another_user_reaches_nothing_of_a_broker(what: str, located: Located) -> None:
    done = stranger(what, located.folder)
    assert done.stdout == ""
    assert "PermissionError" in done.stderr


@as_root
@pytest.mark.parametrize("verb", ["status", "stop", "ping"])
def test_a_command_of_another_user_is_refused(verb: str, located: Located) -> None:
    done = stranger(verb, located.folder)
    assert done.returncode != 0
    assert "belongs to user 0" in done.stderr or "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr


@as_root
def test_another_user_cannot_signal_a_broker(manager: BrokerManager, located: Located) -> None:
    assert "PermissionError" in stranger("kill", located.folder, str(manager.pid)).stderr


@as_root
def test_a_connection_of_another_user_is_closed_before_the_first_byte(broker: BrokerProxy, located: Located) -> None:
    """Even where somebody opened the folder and the socket to all."""
    opened = [located.folder.parent, located.folder, located.folder / SOCKET]
    modes = [path.stat().st_mode & 0o777 for path in opened]
    before = broker._status()
    try:
        for path in opened:
            path.chmod(0o777)
        done = stranger("socket", located.folder)
        assert (done.stdout, done.stderr) == ("read b''\n", "")
        assert_serves(broker)
    finally:
        for path, mode in zip(opened, modes, strict=True):
            path.chmod(mode)
    after = broker._status()
    # It never came so far as to be counted as a connection.
    assert after.limits["connections"] == before.limits["connections"]
    assert after.counters["violations"] == before.counters["violations"]


# -- who may end it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["presence", "call"])
def test_stop_is_refused_on_every_connection_but_an_admins(role: str, broker: BrokerProxy, located: Located) -> None:
    with let_in(located) as (presence, call):
        peer = presence if role == "presence" else call
        peer.frame(frames.Stop())
        assert isinstance(error_of(peer.reply()), ProtocolViolation)
        assert peer.reply() is None


def test_an_admin_of_the_same_user_may_stop_a_broker_that_it_did_not_start() -> None:
    with BrokerManager("mine") as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        with Peer(locate_at(Path(broker._address.folder))) as admin:
            admin.hello("admin", os.urandom(16), 1)
            assert isinstance(admin.reply(), Welcome)
            admin.frame(frames.Stop())
            assert isinstance(admin.reply(), frames.Gone)
        manager.join(LIMIT_S)
        with pytest.raises(BrokerGone, match="asked to stop"):
            broker.topics()
