"""What the processes of a stress run report while it goes on, as bytes: how far they are.

Owns these records. What exactly happened is in the histories of the processes, which are judged when the run is over.
"""

from __future__ import annotations

from typing import Final

import msgspec

GO: Final = b"go"
"""The one order of a run: to a publisher, start; to a worker, no need to stand still any more."""


class Ready(msgspec.Struct, tag=True, array_like=True):
    """Connected, and about to begin."""


class Published(msgspec.Struct, tag=True, array_like=True):
    """So many more messages."""

    count: int


class Waited(msgspec.Struct, tag=True, array_like=True):
    """A publisher found a full subscription, so many times."""

    times: int


class Taken(msgspec.Struct, tag=True, array_like=True):
    """A reader holds so many messages; they are in its history. Written before anything is acked."""

    count: int


class Standing(msgspec.Struct, tag=True, array_like=True):
    """A worker stands still until it gets an order; it holds what its last Taken says."""


class Answered(msgspec.Struct, tag=True, array_like=True):
    """So many of the last Taken were acked; and when the answers came."""

    finished: int
    at_ns: int


class Finished(msgspec.Struct, tag=True, array_like=True):
    """Nothing more to do."""


Record = Ready | Published | Waited | Taken | Standing | Answered | Finished

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(body: bytes) -> Record:
    """Raises msgspec.MsgspecError for what is none."""
    return _decoder.decode(body)
