"""Whatever a broker answers is a reply of the protocol, whole, or a ProtocolViolation; an error in it can be raised."""

from __future__ import annotations

from typing import get_args

from mpbroker.errors import MpbrokerError, ProtocolViolation
from mpbroker.process import frames
from mpbroker.process.channel import rebuild
from tests.fuzz.shape import shape_of

_KINDS = get_args(frames.Reply)
_shape = shape_of(_KINDS)
_grant_shape = shape_of((frames.Grant,))
_letter_shape = shape_of((frames.Letter, frames.AttemptRecord))


def target(data: bytes) -> None:
    try:
        reply = frames.decode_reply(data)
    except ProtocolViolation as error:
        assert isinstance(error.args[0], str)
        str(error)
        return
    _shape(reply)
    assert type(reply) in _KINDS
    body = frames.encode(reply)
    assert len(body) <= 9 * len(data) + 16
    assert frames.encode(frames.decode_reply(memoryview(body))) == body
    if isinstance(reply, frames.Granted):
        for grant in reply.grants:
            _grant_shape(grant)
    elif isinstance(reply, frames.Letters):
        for letter in reply.letters:
            _letter_shape(letter)
            for attempt in letter.history:
                _letter_shape(attempt)
    elif isinstance(reply, frames.Failed):
        told = rebuild(reply)
        assert type(told) in (TypeError, ValueError) or isinstance(told, MpbrokerError)
