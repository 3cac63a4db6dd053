"""What the hostile tests share: a peer that says what it likes, and brokers to say it to.

With MPBROKER_LONG=1 in the environment the tests that repeat something do it as often as they are meant to; without it,
often enough to find what a change broke.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import pytest

from mpbroker import BrokerProxy, connect
from mpbroker._version import __version__
from mpbroker.engine import Engine
from mpbroker.process import frames, handshake
from mpbroker.process.channel import rebuild
from mpbroker.process.claims import BrokerFolder
from mpbroker.process.frames import Challenge, Failed, Frame, Hello, Proof, Reply, Welcome
from mpbroker.process.limits import Limits
from mpbroker.process.loop import Loop
from mpbroker.process.naming import BrokerInfo, Located
from mpbroker.process.sessions import Sessions
from mpbroker.testing import FakeClock
from tests.conformance.support import Call
from tests.process.puppets import LIMIT_S

LONG: Final = os.environ.get("MPBROKER_LONG") == "1"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def times(short: int, long: int) -> int:
    """How often to repeat something."""
    return long if LONG else short


def packed(body: bytes) -> bytes:
    """A frame on the wire."""
    return len(body).to_bytes(frames.HEADER_BYTES, "little") + body


class Peer:
    """A connection on which anything may be sent."""

    def __init__(self, located: Located) -> None:
        self.located = located
        self.sock = located.connect(LIMIT_S)
        self.sock.settimeout(LIMIT_S)
        self.session = b""
        self._rest = b""
        self._refusal: Reply | None = None

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError:
            pass  # it was cut already; reading tells

    def frame(self, frame: Frame) -> None:
        self.send(packed(frames.encode(frame)))

    def reply(self) -> Reply | None:
        """The next frame; None at the end of the connection."""
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            return refusal
        while len(self._rest) < 4 or len(self._rest) < 4 + int.from_bytes(self._rest[:4], "little"):
            try:
                data = self.sock.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._rest += data
        end = 4 + int.from_bytes(self._rest[:4], "little")
        body, self._rest = self._rest[4:end], self._rest[end:]
        return frames.decode_reply(body)

    def hello(self, role: str, session: bytes, number: int, *, key: bytes | None = None) -> None:
        """The client's half of the handshake."""
        self.session = session
        hello = Hello(frames.PROTOCOL, __version__, role, session, number, 0, os.urandom(handshake.NONCE_BYTES))
        self.frame(hello)
        challenge = self.reply()
        if isinstance(challenge, Challenge):
            proof = handshake.client_proof(key or self.located.key, frames.encode(hello), challenge.nonce)
            self.frame(Proof(proof))
        else:
            self._refusal = challenge

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def error_of(reply: Reply | None) -> Exception:
    assert isinstance(reply, Failed), reply
    return rebuild(reply)


def assert_serves(broker: BrokerProxy) -> None:
    assert list(broker.topics()) == ["orders"]


@contextmanager
def let_in(located: Located) -> Iterator[tuple[Peer, Peer]]:
    """The presence of a client process that has proved itself, and a connection of it for calls."""
    with Peer(located) as presence, Peer(located) as call:
        session = os.urandom(handshake.SESSION_BYTES)
        for number, (peer, role) in enumerate([(presence, "presence"), (call, "call")], 1):
            peer.hello(role, session, number)
            reply = peer.reply()  # not in the assert, which -O takes away
            assert isinstance(reply, Welcome), reply
        yield presence, call


@contextmanager
def stepped_broker(folder: Path, clock: FakeClock) -> Iterator[BrokerProxy]:
    """A broker whose loop runs in a thread of this process, by a clock that the test moves."""
    info = BrokerInfo(os.getpid(), __version__, frames.PROTOCOL, "0123456789abcdef", time.time())
    with BrokerFolder.claim("stepped", folder, info) as place:
        sessions = Sessions(
            Engine(incarnation=info.incarnation),
            key=place.key,
            limits=Limits(),
            manual_time=False,
            functions={},
            nonce=os.urandom,
            wall_clock=time.time,
            version=__version__,
            pid=info.pid,
            started=clock(),
        )
        running = Call(Loop(sessions, place.listener, release=place.release, clock=clock).run)
        broker = connect("stepped", directory=folder)
        try:
            broker.create_topic("orders")
            yield broker
        finally:
            broker._stop()
            broker.close()
            running.result()
