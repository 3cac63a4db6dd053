"""A peer in shared memory: it has a ring with a broker, and writes what it likes into its own half of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

from mpbroker.process import frames
from mpbroker.process.frames import Done, Frame, Reply
from mpbroker.process.limits import Limits
from mpbroker.process.naming import Located
from mpbroker.shm.ring import HEAD_BYTES, Ring
from mpbroker.shm.segment import Segment
from mpbroker.shm.stream import RingStream
from tests.hostile.support import Peer, let_in, packed
from tests.process.puppets import LIMIT_S

RING_BYTES: Final = Limits().ring_bytes
SIZE: Final = HEAD_BYTES + RING_BYTES

TAIL, HEAD, WANTS_BYTES, WANTS_ROOM = 0, 8, 16, 24
"""Places of the words of a segment, as the protocol has them."""


class RingPeer:
    """Attributes:
    sock: beside the ring. own: the memory that the broker reads. theirs: what it writes.
    """

    def __init__(self, sock: socket.socket, own: Segment, theirs: Segment) -> None:
        self.sock = sock
        self.own = own
        self.theirs = theirs
        self.ring = Ring(own, theirs, RING_BYTES)
        self.stream = RingStream(sock, self.ring, RING_BYTES)

    def bell(self) -> None:
        """Have the broker look."""
        try:
            self.sock.send(b"\0", socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            pass  # it rings already, or was cut

    def send(self, data: bytes) -> None:
        """As it should be."""
        self.stream.settimeout(LIMIT_S)
        self.stream.sendall(data)

    def frame(self, frame: Frame) -> None:
        self.send(packed(frames.encode(frame)))

    def reply(self) -> Reply | None:
        """The next frame, None at the end of the connection."""
        head = self._take(4)
        body = None if head is None else self._take(int.from_bytes(head, "little"))
        return None if body is None else frames.decode_reply(body)

    def is_cut(self) -> bool:
        """Whether the broker lets go of it, within the limit; True then."""
        while self.reply() is not None:
            pass
        return True

    def close(self) -> None:
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, count: int) -> bytes | None:
        self.stream.settimeout(LIMIT_S)
        taken = bytearray(count)
        filled = 0
        while filled < count:
            more = self.stream.recv_into(memoryview(taken)[filled:])
            if not more:
                return None
            filled += more
        return bytes(taken)


@contextmanager
def ringed(located: Located) -> Iterator[RingPeer]:
    """A client process that was let in, with a ring of its own."""
    with let_in(located) as (_, call), share(call) as peer:
        yield peer


def share(call: Peer) -> RingPeer:
    """Go on in shared memory, as a client does."""
    own, fd = Segment.create(SIZE)
    try:
        answer, theirs = offered(call, [fd])
    finally:
        os.close(fd)
    assert isinstance(answer, Done), answer
    (got,) = theirs
    return RingPeer(call.sock, own, Segment.attach(got, SIZE))


def offered(call: Peer, descriptors: list[int], ring_bytes: int = RING_BYTES) -> tuple[Reply | None, list[int]]:
    """What the broker says to a request for shared memory, and the descriptors that came with it."""
    socket.send_fds(call.sock, [packed(frames.encode(frames.Share(ring_bytes)))], descriptors)
    try:
        answer, theirs, _, _ = socket.recv_fds(call.sock, 65536, 4)
    except ConnectionError:
        return None, []
    return (frames.decode_reply(answer[4:]) if answer else None), list(theirs)
