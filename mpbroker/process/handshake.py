"""The handshake: how client and broker prove to each other that they have the broker's key.

Owns what is proved, and the first look at a peer's first frame. Pure functions of bytes, for both sides; who is let in
is decided elsewhere. Imports frames and errors.

    client                                broker
    Hello{…, nonce}             ->
                                <-        Challenge{…, nonce, proof}
    Proof{proof}                ->
                                <-        Welcome

Each proof is an HMAC-SHA256 with the key over a label of its side, the broker's nonce and the whole Hello as it was
sent: versions, role, session, connection numbers and the client's nonce. So no proof serves the other side, another
connection or another role, and the key never travels.
"""

from __future__ import annotations

import hmac
from typing import Final

import msgspec

from mpbroker._version import __version__
from mpbroker.errors import ProtocolViolation, VersionMismatch
from mpbroker.process import frames
from mpbroker.process.frames import Hello

NONCE_BYTES: Final = 32
"""As long as the proof: a nonce is never the shorter part."""

SESSION_BYTES: Final = 16

HANDSHAKE_S: Final = 5.0
"""Seconds from the connection to the Welcome. Between processes of one host it takes one millisecond; a busy or
stopped machine gets some more, and a silent peer holds a descriptor no longer than that."""

_BROKER_LABEL: Final = b"mpbroker handshake: broker\0"
_CLIENT_LABEL: Final = b"mpbroker handshake: client\0"
_MAX_VERSION: Final = 64


def broker_proof(key: bytes, hello: bytes, nonce: bytes) -> bytes:
    """What the Challenge carries. hello: the encoded Hello; nonce: the broker's."""
    return hmac.digest(key, _BROKER_LABEL + nonce + hello, "sha256")


def client_proof(key: bytes, hello: bytes, nonce: bytes) -> bytes:
    """What the Proof carries. hello: the encoded Hello; nonce: the broker's."""
    return hmac.digest(key, _CLIENT_LABEL + nonce + hello, "sha256")


def is_proof(given: bytes, expected: bytes) -> bool:
    """Compare proofs in a time that tells nothing about them."""
    return hmac.compare_digest(given, expected)


def read_hello(body: bytes) -> Hello:
    """The first frame of a connection.

    Raises:
        VersionMismatch: the peer speaks another protocol, whatever else its Hello may have.
        ProtocolViolation: it is not a Hello, or one that cannot be.
    """
    try:
        frame = frames.decode_hello(body)
    except ProtocolViolation:
        _refuse_other_version(body)
        raise
    if not isinstance(frame, Hello):
        raise ProtocolViolation("the first frame is not a hello")
    if frame.protocol != frames.PROTOCOL:
        raise VersionMismatch(frame.version[:_MAX_VERSION], __version__)
    if len(frame.session) != SESSION_BYTES or len(frame.nonce) != NONCE_BYTES:
        raise ProtocolViolation("the hello has a session or a nonce of the wrong size")
    if frame.connection < 1 or frame.replaces < 0 or frame.replaces == frame.connection:
        raise ProtocolViolation("the hello has connection numbers that cannot be")
    return frame


def _refuse_other_version(body: bytes) -> None:
    """The fields that keep their place in every version are enough to tell a stranger from another version."""
    try:
        fields = msgspec.msgpack.decode(body)
    except frames.MALFORMED:
        return
    match fields:
        case ["Hello", int(protocol), str(version), *_] if protocol != frames.PROTOCOL:
            raise VersionMismatch(version[:_MAX_VERSION], __version__)
