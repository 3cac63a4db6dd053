"""What the broker's loop reads and writes where others have a socket: the ring of a connection, without blocking.

A ring that moved bytes lately is looked at in each turn of the loop. One that did not is armed: it says that it sleeps,
and the client rings by the socket, which the loop's selector looks at anyway. For the broker's side.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from mpbroker.errors import ProtocolViolation
from mpbroker.shm.ring import HEAD_BYTES, Ring
from mpbroker.shm.segment import NoSharedMemory, Segment

_BELLS: Final = 4096
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)


class RingEnd:
    """The broker's end of a connection, with the verbs of a non-blocking stream socket that a Link uses.

    A violation is told by `recv_into` alone, whatever finds it: what else the loop does with it in a turn goes through.

    Attributes:
        moved: bytes that had gone either way when the loop looked last; when: that it saw some go.
        paid: bytes came soon after others, when it looked long enough to see.
    """

    __slots__ = ("_broken", "_ended", "_received", "_ring", "_sent", "_sock", "moved", "paid", "when")

    def __init__(self, sock: socket.socket, ring: Ring) -> None:
        self._sock = sock
        self._ring = ring
        self._ended = False
        self._broken: ProtocolViolation | None = None
        self._sent = 0
        self._received = 0
        self.moved = 0
        self.when = 0.0
        self.paid = True

    def recv_into(self, into: memoryview) -> int:
        """Bytes that are there; 0 when there are none and will be none. Raises BlockingIOError, ProtocolViolation."""
        if self._broken is not None:
            raise self._broken
        count = self._ring.receive(into)
        if not count and not self._ended:
            raise BlockingIOError
        return count

    def send(self, part: bytes | memoryview) -> int:
        """As many as there is room for; all of them when the client is gone or breaks the protocol."""
        if self._ended:
            return len(part)
        try:
            return self._ring.send(part)
        except ProtocolViolation as error:
            self._broken = error
            return len(part)

    def hear(self) -> None:
        """Take the ringing from the socket, and see whether that ended."""
        try:
            self._ended = not self._sock.recv(_BELLS)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._ended = True

    def has_moved(self) -> bool:
        """Whether bytes went either way since the last time this was asked."""
        moved = self._ring.sent + self._ring.received
        if moved == self.moved:
            return False
        self.moved = moved
        return True

    def arm(self, *, for_bytes: bool, for_room: bool) -> bool:
        """Have the client ring for what it is. False: look at it at once, for something is there already."""
        ring = self._ring
        ring.announce(for_bytes=for_bytes, for_room=for_room)
        try:
            is_there = self._ended or (for_bytes and ring.waiting()) or (for_room and ring.room())
        except ProtocolViolation as error:
            # It was another word a moment ago, when the same turn read from it.
            self._broken = error
            is_there = True
        if is_there:
            ring.wakes()
        return not is_there

    def disarm(self) -> None:
        self._ring.wakes()

    def wake(self) -> None:
        """Ring for a client that sleeps for what has changed since the last time."""
        ring = self._ring
        sent, self._sent = self._sent, ring.sent
        received, self._received = self._received, ring.received
        if (sent != ring.sent and ring.peer_wants_bytes()) or (received != ring.received and ring.peer_wants_room()):
            try:
                self._sock.send(b"\0", _NO_SIGNAL)
            except OSError:
                pass  # it rings already, or nobody is there, which reading will tell

    def close(self) -> None:
        self._ring.close()


def accept(sock: socket.socket, fd: int, ring_bytes: int, answer: bytes) -> RingEnd:
    """Map what a client sent, and answer with what this process made; closes the descriptor.

    Raises:
        NoSharedMemory: the answer was not sent, and the socket is as it was.
        OSError: the client is gone or does not read.
    """
    if fd < 0:
        raise NoSharedMemory("no descriptor came with the request")
    size = HEAD_BYTES + ring_bytes
    peer = Segment.attach(fd, size)
    try:
        own, own_fd = Segment.create(size)
    except NoSharedMemory:
        peer.close()
        raise
    ring = Ring(own, peer, ring_bytes)
    try:
        if socket.send_fds(sock, [answer], [own_fd], _NO_SIGNAL) != len(answer):
            raise BlockingIOError
    except BaseException:
        ring.close()
        raise
    finally:
        os.close(own_fd)
    return RingEnd(sock, ring)
