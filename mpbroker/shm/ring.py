"""Two byte streams through shared memory: this process's end of a pair of single-producer single-consumer rings.

Each side has a segment that only it writes: the bytes it sends, how far it has written them (tail), how far it has
read the other side's (head), and what it sleeps for. No locks, and nothing that a dead process could leave locked.

Positions count bytes and never go back. Nothing that is read from the other side is believed: each position is read
once, and must lie where it can (`ProtocolViolation` otherwise); bytes are copied out before anybody looks at them.
Never blocks and wakes nobody; that is for `stream` (client) and `link` (broker). Order in memory: bytes before tail,
look at tail before bytes, and a fence between a store and a look at the other side's sleep. tests/model searches it.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable
from typing import Final

from mpbroker.errors import ProtocolViolation
from mpbroker.shm.segment import Segment

HEAD_BYTES: Final = 4096
"""In front of the bytes: a page, so that they begin on one."""

_TAIL: Final = 0
_HEAD: Final = 8
_WANTS_BYTES: Final = 16
_WANTS_ROOM: Final = 24
"""Words of the first page, each on a cache line of its own."""

_STRONG: Final = frozenset({"x86_64", "AMD64"})
"""Stores are seen in their order, and loads done in theirs. A store may still be seen after a later load."""

_WEAK: Final = frozenset({"aarch64", "arm64"})


def is_known_machine() -> bool:
    """Whether the order of memory here is one that the rings are made for."""
    return platform.machine() in _STRONG | _WEAK


def _make_fence() -> Callable[[], None]:
    lock = threading.Lock()
    acquire, release = lock.acquire, lock.release

    def fence() -> None:
        # Taking a lock is atomic, and so a full barrier on x86-64; taking and letting go twice orders both ways on
        # 64-bit Arm, where each is a barrier in one direction.
        acquire()
        release()
        acquire()
        release()

    return fence


class Ring:
    """One process's end of it. For one thread at a time.

    Args:
        own: this side's segment; peer: the other side's. Both of HEAD_BYTES + capacity bytes.
    """

    __slots__ = (
        "__weakref__",
        "_capacity",
        "_fence",
        "_head",
        "_is_weak",
        "_own",
        "_own_bytes",
        "_own_words",
        "_peer",
        "_peer_bytes",
        "_peer_words",
        "_seen_head",
        "_tail",
    )

    def __init__(self, own: Segment, peer: Segment, capacity: int) -> None:
        self._own = own
        self._peer = peer
        self._own_words = own.words
        self._peer_words = peer.words
        self._own_bytes = own.view[HEAD_BYTES:]
        self._peer_bytes = peer.view[HEAD_BYTES:]
        self._capacity = capacity
        self._tail = 0
        self._head = 0
        self._seen_head = 0
        self._fence = _make_fence()
        self._is_weak = platform.machine() not in _STRONG

    @property
    def sent(self) -> int:
        """Bytes that ever were."""
        return self._tail

    @property
    def received(self) -> int:
        """Bytes that ever were."""
        return self._head

    def send(self, part: bytes | memoryview) -> int:
        """Put in as much as there is room for; how many bytes."""
        size = len(part)
        tail, capacity = self._tail, self._capacity
        room = capacity - tail + self._seen_head
        if room < size:
            room = self.room()
            if room < size:
                if not room:
                    return 0
                part = memoryview(part)[:room]
                size = room
        place = tail % capacity
        end = place + size
        if end <= capacity:
            self._own_bytes[place:end] = part
        else:
            first = capacity - place
            view = memoryview(part)
            self._own_bytes[place:] = view[:first]
            self._own_bytes[: size - first] = view[first:]
        if self._is_weak:
            self._fence()
        self._tail = tail = tail + size
        self._own_words[_TAIL] = tail
        return size

    def room(self) -> int:
        """Bytes that can be sent now. Raises ProtocolViolation."""
        head = self._peer_words[_HEAD]
        if not self._seen_head <= head <= self._tail:
            raise ProtocolViolation("the other side of a ring says that it read what was never sent")
        self._seen_head = head
        if self._is_weak:
            self._fence()
        return self._capacity - self._tail + head

    def receive(self, into: memoryview) -> int:
        """Take out as much as is there and fits; how many bytes."""
        size = self.waiting()
        if not size:
            return 0
        if size > len(into):
            size = len(into)
        head, capacity = self._head, self._capacity
        place = head % capacity
        end = place + size
        if end <= capacity:
            into[:size] = self._peer_bytes[place:end]
        else:
            first = capacity - place
            into[:first] = self._peer_bytes[place:]
            into[first:size] = self._peer_bytes[: size - first]
        if self._is_weak:
            self._fence()
        self._head = head = head + size
        self._own_words[_HEAD] = head
        return size

    def waiting(self) -> int:
        """Bytes that can be received now. Raises ProtocolViolation."""
        tail = self._peer_words[_TAIL]
        size = tail - self._head
        if not 0 <= size <= self._capacity:
            raise ProtocolViolation("the other side of a ring says that it sent what does not fit")
        if self._is_weak:
            self._fence()
        return size

    # -- sleep and wake -----------------------------------------------------------------------------------------------

    def announce(self, *, for_bytes: bool, for_room: bool) -> None:
        """Say what this side is going to sleep for, before it looks a last time."""
        self._own_words[_WANTS_BYTES] = for_bytes
        self._own_words[_WANTS_ROOM] = for_room
        self._fence()

    def wakes(self) -> None:
        """This side sleeps no longer."""
        self._own_words[_WANTS_BYTES] = 0
        self._own_words[_WANTS_ROOM] = 0

    def peer_wants_bytes(self) -> bool:
        """Whether the other side sleeps until bytes come. To be asked after they were sent."""
        self._fence()
        return self._peer_words[_WANTS_BYTES] != 0

    def peer_wants_room(self) -> bool:
        """Whether the other side sleeps until there is room. To be asked after bytes were received."""
        self._fence()
        return self._peer_words[_WANTS_ROOM] != 0

    def close(self) -> None:
        """Let go of the memory; the other side keeps its own hold of it. Any number of times."""
        self._own_bytes.release()
        self._peer_bytes.release()
        self._own.close()
        self._peer.close()
