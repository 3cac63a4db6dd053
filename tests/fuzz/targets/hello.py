"""The first two frames of a connection: nobody passes for another version, role or connection."""

from __future__ import annotations

from mpbroker._version import __version__
from mpbroker.errors import ProtocolViolation, VersionMismatch
from mpbroker.process import frames, handshake
from mpbroker.process.frames import Hello, Proof
from tests.fuzz.shape import shape_of

_KEY = bytes(range(32))
_NONCE = bytes(reversed(range(32)))
_shape = shape_of((Hello, Proof))


def target(data: bytes) -> None:
    frame = decoded(data)
    try:
        hello = handshake.read_hello(data)
    except VersionMismatch as error:
        theirs, ours = error.args
        assert len(theirs) <= 64
        assert ours == __version__
        assert type(frame) is not Proof
        assert not isinstance(frame, Hello) or frame.protocol != frames.PROTOCOL
        str(error)
        return
    except ProtocolViolation as error:
        str(error)
        return
    assert hello == frame
    assert hello.protocol == frames.PROTOCOL
    assert (len(hello.session), len(hello.nonce)) == (16, 32)
    assert hello.connection >= 1
    assert hello.replaces >= 0
    assert hello.replaces != hello.connection
    proofs = {handshake.broker_proof(_KEY, data, _NONCE), handshake.client_proof(_KEY, data, _NONCE)}
    assert len(proofs) == 2
    assert handshake.client_proof(_KEY, data + b"\0", _NONCE) not in proofs


def decoded(body: bytes) -> Hello | Proof | None:
    """None for what is neither."""
    try:
        frame = frames.decode_hello(body)
    except ProtocolViolation as error:
        assert isinstance(error.args[0], str)
        return None
    _shape(frame)
    assert type(frame) in (Hello, Proof)
    assert frames.decode_hello(frames.encode(frame)) == frame
    return frame
