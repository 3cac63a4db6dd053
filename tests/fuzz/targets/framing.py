"""Frames come out of a connection as they went in, however their bytes are cut; and leave it so."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import cast

from mpbroker.errors import ProtocolViolation
from mpbroker.process.channel import Channel, Ended
from mpbroker.process.link import Closed, Link
from tests.fuzz.draw import Draw

_BUFFER = memoryview(bytearray(512))
_LIMITS = (0, 1, 5, 64, 1000, 70_000)


class Cut:
    """A socket that brings a stream in pieces and takes what is sent in pieces."""

    def __init__(self, stream: bytes, sizes: bytes) -> None:
        self._stream = stream
        self._sizes = sizes
        self._turn = 0
        self.sent = b""

    def _next(self) -> int:
        """The size of the next piece; 0 now and then, where there is nothing for the moment."""
        self._turn += 1
        return self._sizes[self._turn % len(self._sizes)] if self._sizes else 255

    def recv_into(self, room: memoryview) -> int:
        size = self._next()
        if not size:
            raise BlockingIOError
        piece = self._stream[: min(size, len(room))]
        self._stream = self._stream[len(piece) :]
        room[: len(piece)] = piece
        return len(piece)

    def recv(self, count: int) -> bytes:
        size = max(1, self._next())
        piece = self._stream[: min(size, count)]
        self._stream = self._stream[len(piece) :]
        return piece

    def send(self, part: bytes | memoryview) -> int:
        size = self._next()
        if not size:
            raise BlockingIOError
        self.sent += part[:size]
        return min(size, len(part))


class PatientCut(Cut):
    """The same for a reader that blocks."""

    def recv_into(self, room: memoryview) -> int:
        piece = self.recv(len(room))
        room[: len(piece)] = piece
        return len(piece)


def target(data: bytes) -> None:
    draw = Draw(data)
    limit = draw.one_of(_LIMITS)
    sizes = draw.take(draw.below(8))
    stream = draw.rest()
    if not any(sizes):
        sizes = b""
    bodies, is_over = frames_in(stream, limit)
    got, is_refused = read_by_broker(stream, sizes, limit)
    assert got == bodies
    assert is_over or not is_refused  # where nothing comes after it, the end may be told before the refusal
    assert read_by_client(stream, sizes, limit) == (bodies, is_over)
    written_by_broker(bodies, sizes)


def frames_in(stream: bytes, limit: int) -> tuple[list[bytes], bool]:
    """What is in a stream, by the words of the protocol; and whether a frame over the limit ended it."""
    bodies: list[bytes] = []
    while len(stream) >= 4:
        length = int.from_bytes(stream[:4], "little")
        if length > limit:
            return bodies, True
        if len(stream) < 4 + length:
            break
        bodies.append(stream[4 : 4 + length])
        stream = stream[4 + length :]
    return bodies, False


def read_by_broker(stream: bytes, sizes: bytes, limit: int) -> tuple[list[bytes], bool]:
    link = Link(cast(socket.socket, Cut(stream, sizes)), 1)
    link.limit = limit
    got: list[bytes] = []
    while True:
        try:
            bodies: Sequence[bytes | memoryview] = link.read(_BUFFER)
        except Closed:
            return got, False
        except ProtocolViolation:
            return got, True
        got += [bytes(body) for body in bodies]


def read_by_client(stream: bytes, sizes: bytes, limit: int) -> tuple[list[bytes], bool]:
    channel = Channel.__new__(Channel)
    channel._stream = cast(socket.socket, PatientCut(stream, sizes))
    channel._rest = b""
    channel._limit = limit
    got: list[bytes] = []
    while True:
        try:
            got.append(bytes(channel._read()))
        except Ended:
            return got, False
        except ProtocolViolation:
            return got, True


def written_by_broker(bodies: list[bytes], sizes: bytes) -> None:
    sock = Cut(b"", sizes)
    link = Link(cast(socket.socket, sock), 1)
    expected = b""
    for body in bodies:
        is_all = link.write(body)
        expected += len(body).to_bytes(4, "little") + body
        assert is_all == (link.unsent == 0)
        assert sock.sent == expected[: len(expected) - link.unsent]
    while link.unsent:
        link.flush()
    assert sock.sent == expected
