"""The checks that must hold under ``python -O`` as well: a program, so that no assert of a test is among them.

`python [-O] -m tests.hostile.essentials FOLDER` plays every attack once against a broker that runs with the same flags,
and prints the name of each that was refused. Whatever is let through, or ends the broker, is an exception.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from mpbroker import (
    AccessRefused,
    BrokerFull,
    BrokerManager,
    BrokerProxy,
    HeadersTooLarge,
    InsecureFolder,
    InvalidName,
    LimitReached,
    NameTaken,
    PayloadTooLarge,
    ProtocolViolation,
    connect,
)
from mpbroker._version import __version__
from mpbroker.process import frames, handshake
from mpbroker.process.channel import open_channel
from mpbroker.process.frames import Challenge, Hello, Proof, Reply, Welcome
from mpbroker.process.naming import KEY, SOCKET, Located, locate
from tests.hostile.support import Peer, error_of, let_in, packed
from tests.process.holders import NOBODY
from tests.process.payloads import Canary
from tests.process.puppets import LIMIT_S


class LetThrough(Exception):
    """Something was not refused."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise LetThrough(what)


def refused(reply: Reply | None, kind: type[Exception]) -> None:
    if type(reply) is not frames.Failed:
        raise LetThrough(f"{reply} instead of {kind.__name__}")
    error = error_of(reply)
    must(isinstance(error, kind), f"{error!r} instead of {kind.__name__}")


def raises(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        answer = call()
    except kind:
        return
    raise LetThrough(f"{answer!r} instead of {kind.__name__}")


class Attacks:
    """One method an attack; its name is what is printed."""

    def __init__(self, broker: BrokerProxy, located: Located, folder: Path) -> None:
        self.broker = broker
        self.located = located
        self.folder = folder

    def garbage(self) -> None:
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, b"\x05\x00\x00\x00hello", bytes(4)):
            with Peer(self.located) as peer:
                peer.send(noise)
                refused(peer.reply(), ProtocolViolation)
                must(peer.reply() is None, "the connection stays")

    def giant_length(self) -> None:
        with let_in(self.located) as (_, peer):
            peer.send((2**32 - 1).to_bytes(4, "little") + b"x" * 100)
            refused(peer.reply(), ProtocolViolation)

    def malformed_requests(self) -> None:
        encode = msgspec.msgpack.encode
        for body in (encode(["Poll", "x", 1]), encode(["create"]), encode({"a": 1}), b"", b"\x93", encode(["Publish"])):
            with let_in(self.located) as (_, peer):
                peer.send(packed(body))
                refused(peer.reply(), ProtocolViolation)

    def payloads_that_are_none(self) -> None:
        encode = msgspec.msgpack.encode
        for raw in (
            encode({}),
            encode([]),
            encode([msgspec.msgpack.Ext(2, b"")]),
            encode([[1]]),
            b"\xc1",
            encode([1] * 257),
        ):
            with let_in(self.located) as (_, peer):
                peer.frame(frames.Publish("orders", [msgspec.Raw(raw)], {}, 1))
                try:
                    reply = peer.reply()
                except ProtocolViolation as error:
                    raise LetThrough(str(error)) from error
                refused(reply, ProtocolViolation)

    def wrong_key(self) -> None:
        with Peer(self.located) as peer:
            peer.hello("presence", os.urandom(16), 1, key=os.urandom(32))
            refused(peer.reply(), AccessRefused)

    def broker_without_the_key(self) -> None:
        impostor = Located(self.located.folder, os.urandom(32), self.located.info)
        raises(
            AccessRefused,
            lambda: open_channel(impostor, role="presence", session=os.urandom(16), number=1, timeout_s=LIMIT_S),
        )

    def replay(self) -> None:
        hello = Hello(frames.PROTOCOL, __version__, "presence", os.urandom(16), 1, 0, os.urandom(handshake.NONCE_BYTES))
        with Peer(self.located) as first:
            first.frame(hello)
            challenge = first.reply()
            if not isinstance(challenge, Challenge):
                raise LetThrough(str(challenge))
            proof = Proof(handshake.client_proof(self.located.key, frames.encode(hello), challenge.nonce))
            first.frame(proof)
            must(isinstance(first.reply(), Welcome), "the first was not let in")
        with Peer(self.located) as second:
            second.frame(hello)
            must(isinstance(second.reply(), Challenge), "no challenge")
            second.frame(proof)
            refused(second.reply(), AccessRefused)

    def call_without_presence(self) -> None:
        with Peer(self.located) as peer:
            peer.hello("call", os.urandom(16), 1)
            refused(peer.reply(), AccessRefused)

    def request_before_the_proof(self) -> None:
        with Peer(self.located) as peer:
            peer.frame(
                Hello(frames.PROTOCOL, __version__, "admin", os.urandom(16), 1, 0, os.urandom(handshake.NONCE_BYTES))
            )
            must(isinstance(peer.reply(), Challenge), "no challenge")
            peer.frame(frames.Stop())
            refused(peer.reply(), ProtocolViolation)

    def stop_by_others(self) -> None:
        for at in (0, 1):
            with let_in(self.located) as peers:
                peers[at].frame(frames.Stop())
                refused(peers[at].reply(), ProtocolViolation)

    def holding_without_presence(self) -> None:
        number = self.broker._ask(frames.FindSubscription("orders", "billing"), frames.Subscribed).number
        with Peer(self.located) as admin:
            admin.hello("admin", os.urandom(16), 1)
            must(isinstance(admin.reply(), Welcome), "not let in")
            admin.frame(frames.Poll(number, "w", None, 1, 0.0))
            refused(admin.reply(), AccessRefused)

    def canary(self) -> None:
        path = self.folder / "canary"
        bomb = pickle.dumps(Canary(path))
        for body in (
            bomb,
            msgspec.msgpack.encode([bomb.decode("latin-1")]),
            msgspec.msgpack.encode(["CreateTopic", bomb]),
        ):
            with let_in(self.located) as (_, peer):
                peer.send(packed(body))
                refused(peer.reply(), ProtocolViolation)
        self.broker.publish("orders", Canary(path), {"h": bomb.decode("latin-1")[:30]})
        billing = self.broker.subscription("orders", "billing")
        (delivery,) = billing.poll("w")
        must(delivery.reject(error=bomb.decode("latin-1")), "not rejected")
        must(self.broker.purge_dead_letters("orders/billing") == 1, "not purged")
        must(not path.exists(), "a pickle was opened")

    def limits(self) -> None:
        broker = self.broker
        broker.create_topic("second")
        broker.create_topic("third")
        raises(LimitReached, lambda: broker.create_topic("fourth"))
        raises(LimitReached, lambda: [broker.subscribe("orders", f"s{n}") for n in range(5)])
        raises(InvalidName, lambda: broker.subscribe("orders", "n" * 21))
        raises(InvalidName, lambda: broker.subscribe("orders", "a/b"))
        raises(HeadersTooLarge, lambda: broker.publish("orders", 1, {"a": "", "b": "", "c": ""}))
        raises(HeadersTooLarge, lambda: broker.publish("orders", 1, {"a": "x" * 51}))
        raises(PayloadTooLarge, lambda: broker.publish("orders", bytes(5001)))
        raises(BrokerFull, lambda: [broker.publish("orders", bytes(4000)) for _ in range(20)])
        raises(ValueError, lambda: broker.subscription("orders", "billing").poll("w", now=1.0))

    def one_name(self) -> None:
        raises(NameTaken, lambda: BrokerManager("essentials").start())

    def loose_places(self) -> None:
        base = self.located.folder.parent
        for path, mode in (
            (base, 0o755),
            (self.located.folder, 0o750),
            (self.located.folder / KEY, 0o644),
            (self.located.folder / SOCKET, 0o666),
        ):
            before = path.stat().st_mode & 0o777
            path.chmod(mode)
            try:
                raises(InsecureFolder, lambda: locate("essentials", base))
                raises(InsecureFolder, lambda: connect("essentials"))
                if path in {base, self.located.folder}:
                    raises(InsecureFolder, lambda: BrokerManager("essentials").start())
            finally:
                path.chmod(before)

    def places_of_another_user(self) -> None:
        for path in (self.located.folder, self.located.folder / KEY):
            os.chown(path, NOBODY, NOBODY)
            try:
                raises(InsecureFolder, lambda: connect("essentials"))
            finally:
                os.chown(path, 0, 0)

    def another_user(self) -> None:
        """In spite of a folder and a socket that are open to all: not a byte is read or sent."""
        base = self.located.folder.parent
        opened = [base.parent, base, self.located.folder, self.located.folder / SOCKET]
        modes = [path.stat().st_mode & 0o777 for path in opened]
        for path in opened:
            path.chmod(0o777)
        child = os.fork()
        if not child:
            os.setuid(NOBODY)
            try:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(LIMIT_S)
                    sock.connect(str(opened[-1]))
                    os._exit(1 if sock.recv(1) else 0)
            finally:
                os._exit(2)
        status = os.waitpid(child, 0)[1]
        for path, mode in zip(opened, modes, strict=True):
            path.chmod(mode)
        must(status == 0, f"another user got in ({status})")


AS_ROOT = {"places_of_another_user", "another_user"}
"""Those that only root can make, who can become another user."""

ATTACKS = [name for name in vars(Attacks) if not name.startswith("_") and (os.geteuid() == 0 or name not in AS_ROOT)]
"""The ones to be made here."""


def main(folder: Path) -> None:
    os.environ["MPBROKER_DIR"] = str(folder / "run")
    with BrokerManager(
        "essentials",
        max_topics=3,
        max_subscriptions=3,
        max_name_length=20,
        max_headers=2,
        max_header_bytes=50,
        max_payload_bytes=5000,
        max_queue_bytes=40_000,
    ) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        broker.subscribe("orders", "billing")
        attacks = Attacks(broker, locate("essentials", folder / "run"), folder)
        for name in ATTACKS:
            getattr(attacks, name)()
            must("orders" in broker.topics(), f"the broker is gone after {name}")
            print(name, flush=True)
    print("optimized" if sys.flags.optimize else "as usual", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
