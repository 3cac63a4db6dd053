"""Frames come out of a connection as they went in, however the bytes arrive, and leave in their order."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.errors import ProtocolViolation
from mpbroker.process.frames import MAX_HELLO_BYTES
from mpbroker.process.link import READ_BYTES, Closed, Link

BUFFER = memoryview(bytearray(READ_BYTES))


class Pair:
    """A link and its peer."""

    def __init__(self, limit: int = 1 << 30) -> None:
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.settimeout(5.0)
        self.link = Link(ours, 1)
        self.link.limit = limit

    def read(self) -> list[bytes]:
        """All that is there."""
        got: list[bytes] = []
        while bodies := [bytes(body) for body in self.link.read(BUFFER)]:
            got += bodies
        return got

    def close(self) -> None:
        self.link.sock.close()
        self.peer.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "little") + body for body in bodies)


@given(bodies=st.lists(st.binary(max_size=40), max_size=8), cuts=st.lists(st.integers(1, 30), max_size=30))
def test_frames_come_out_whole_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    pair = Pair()
    try:
        data = framed(*bodies)
        got: list[bytes] = []
        for size in [*cuts, 1000]:
            if part := data[:size]:
                data = data[size:]
                pair.peer.sendall(part)
                got += pair.read()
        assert got == bodies
    finally:
        pair.close()


@pytest.mark.parametrize("size", [READ_BYTES - 4, READ_BYTES, READ_BYTES + 1, 3 * READ_BYTES + 17])
def test_large_frames_come_out_whole_among_small_ones(size: int, pair: Pair) -> None:
    large = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    data = framed(b"before", large, b"after")
    got: list[bytes] = []
    while data or len(got) < 3:
        pair.peer.setblocking(False)
        try:
            data = data[pair.peer.send(data) :] if data else data
        except BlockingIOError:
            pass
        got += pair.read()
    assert got == [b"before", large, b"after"]


def test_nothing_to_read_is_nothing(pair: Pair) -> None:
    assert pair.read() == []


def test_the_end_is_told_after_what_came_before_it(pair: Pair) -> None:
    pair.peer.sendall(framed(b"last"))
    pair.peer.close()
    assert list(pair.link.read(BUFFER)) == [b"last"]
    with pytest.raises(Closed):
        pair.read()


@pytest.mark.parametrize("size", [MAX_HELLO_BYTES + 1, 1 << 31, (1 << 32) - 1])
def test_a_frame_over_the_limit_is_refused_as_soon_as_it_is_announced(size: int) -> None:
    pair = Pair(MAX_HELLO_BYTES)
    try:
        pair.peer.sendall(size.to_bytes(4, "little"))
        with pytest.raises(ProtocolViolation):
            pair.read()
    finally:
        pair.close()


@pytest.mark.parametrize("cut", range(20))
def test_what_is_whole_before_a_frame_over_the_limit_comes_out_however_it_is_cut(cut: int) -> None:
    pair = Pair(10)
    try:
        data = framed(b"one", b"two", b"x" * 11)
        got: list[bytes] = []

        def feed() -> None:
            for part in (data[:cut], data[cut:-1], data[-1:]):
                if part:
                    pair.peer.sendall(part)
                    while bodies := pair.link.read(BUFFER):
                        got.extend(bytes(body) for body in bodies)

        with pytest.raises(ProtocolViolation):
            feed()
        assert got == [b"one", b"two"]
    finally:
        pair.close()


def test_a_frame_that_is_only_announced_takes_no_more_memory_than_has_come(pair: Pair) -> None:
    size = 512 * 1024 * 1024
    tracemalloc.start()
    try:
        pair.peer.sendall(size.to_bytes(4, "little") + b"x")
        assert pair.read() == []
        pair.peer.sendall(b"x" * 100_000)
        assert pair.read() == []
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_frame_at_the_limit_passes() -> None:
    pair = Pair(MAX_HELLO_BYTES)
    try:
        pair.peer.sendall(framed(b"x" * MAX_HELLO_BYTES))
        assert pair.read() == [b"x" * MAX_HELLO_BYTES]
    finally:
        pair.close()


def test_what_the_peer_has_no_room_for_waits_and_keeps_its_order(pair: Pair) -> None:
    bodies = [bytes([number]) * size for number in range(40) for size in (1, 100_000)]
    for body in bodies:
        pair.link.write(body)
    assert pair.link.unsent > 0
    data = b""
    while pair.link.unsent:
        data += pair.peer.recv(1 << 20)
        pair.link.flush()
    while len(data) < len(framed(*bodies)):
        data += pair.peer.recv(1 << 20)
    assert data == framed(*bodies)


def test_what_is_written_to_a_peer_that_is_gone_is_dropped(pair: Pair) -> None:
    pair.peer.close()
    for _ in range(3):
        assert pair.link.write(b"x" * 100_000)
    assert pair.link.unsent == 0
