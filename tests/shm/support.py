"""Both ends of shared memory in one process."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final, Self

from mpbroker.shm.link import RingEnd
from mpbroker.shm.ring import HEAD_BYTES, Ring
from mpbroker.shm.segment import Segment
from mpbroker.shm.stream import RingStream

TAIL: Final = 0
HEAD: Final = 8
WANTS_BYTES: Final = 16
WANTS_ROOM: Final = 24
"""Places of the words of a segment, as the protocol has them."""

U64: Final = 2**64 - 1


def segments(size: int) -> tuple[Segment, Segment]:
    """The same memory for who writes it, and for who reads it."""
    own, fd = Segment.create(size)
    return own, Segment.attach(fd, size)


class Sides:
    """Two processes' ends of a pair of rings.

    words_a, words_b: what a and b say of themselves, as one who lies could write it.
    """

    def __init__(self, capacity: int) -> None:
        size = HEAD_BYTES + capacity
        a, seen_a = segments(size)
        b, seen_b = segments(size)
        self.words_a, self.words_b = a.words, b.words
        self.memory_a, self.memory_b = a.view, b.view
        self.a = Ring(a, seen_b, capacity)
        self.b = Ring(b, seen_a, capacity)

    def moved_to(self, position: int) -> None:
        """As after so many bytes either way."""
        for ring, words in ((self.a, self.words_a), (self.b, self.words_b)):
            ring._tail = ring._head = ring._seen_head = position
            words[TAIL] = words[HEAD] = position

    def close(self) -> None:
        self.a.close()
        self.b.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Ends(Sides):
    """A client's stream and a broker's end, with the socket between them."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.stream = RingStream(self.ours, self.a, capacity)
        self.end = RingEnd(self.theirs, self.b)

    def received(self, count: int = 1 << 20) -> bytes:
        """What the broker's end takes out at once."""
        into = memoryview(bytearray(count))
        return bytes(into[: self.end.recv_into(into)])

    def rung(self) -> bool:
        """Whether the client rang since the last time."""
        try:
            return bool(self.theirs.recv(4096))
        except BlockingIOError:
            return False

    def rung_client(self) -> bool:
        """Whether the broker rang since the last time."""
        try:
            return bool(self.ours.recv(4096, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.stream.close()
        self.a.close()
        self.theirs.close()
        self.end.close()


def taken(ring: Ring, count: int) -> bytes:
    """Up to so many bytes out of a ring."""
    into = memoryview(bytearray(count))
    return bytes(into[: ring.receive(into)])


def descriptors() -> list[str]:
    """Of this process, what is open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the listing's own
    return sorted(found)


def mappings(pid: int | str = "self") -> int:
    """How many segments a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:mpbroker")
