"""Whatever a client sends is a request of the protocol, whole, or a ProtocolViolation."""

from __future__ import annotations

from typing import get_args

from mpbroker.errors import ProtocolViolation
from mpbroker.process import frames
from tests.fuzz.shape import shape_of

_KINDS = get_args(frames.Request)
_shape = shape_of(_KINDS)


def target(data: bytes) -> None:
    try:
        request = frames.decode_request(data)
    except ProtocolViolation as error:
        assert isinstance(error.args[0], str)
        str(error)
        return
    _shape(request)
    assert type(request) in _KINDS
    body = frames.encode(request)
    # The shortest form of a number may have been given longer; of a float it may have been an int.
    assert len(body) <= 9 * len(data) + 16
    # By their bytes, since no NaN equals itself.
    assert frames.encode(frames.decode_request(memoryview(body))) == body
