"""What a client reads and writes where others have a socket: the ring of a connection, and the sleep beside it.

Owns the waiting: a short spin where that has paid, then sleep on the socket, by which the broker rings and whose end
is the broker's. For one thread, except for `shutdown` and `close`. Client side.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Final

from mpbroker.shm.ring import HEAD_BYTES, Ring
from mpbroker.shm.segment import Segment, receive

_NET_S: Final = 1.0
"""Seconds of sleep after which it looks again, whatever happened: a second net below the one that is proved."""

_SPINS: Final = 200
"""Looks before it sleeps, some 60 µs: about what falling asleep and being woken on another processor costs."""

_let_others: Final = getattr(os, "sched_yield", lambda: None)
"""Called at each look: the broker may be waiting for this very processor."""

_SHORT_S: Final = 0.000_2
"""A sleep shorter than this would have been spared by a spin, wake-up included."""

_BELLS: Final = 4096
"""Taken from the socket at a time; what a byte says is in the ring."""

_NOT_NOW: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR})

_ANSWER_BYTES: Final = 64 * 1024

_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
_AT_ONCE: Final = getattr(socket, "MSG_DONTWAIT", 0)


class RingStream:
    """The client's end of a connection, with the verbs of a blocking stream socket that a Channel uses."""

    __slots__ = ("_bell", "_buffer", "_deadline", "_ended", "_ring", "_sock", "_spins")

    def __init__(self, sock: socket.socket, ring: Ring, buffer_bytes: int) -> None:
        """buffer_bytes: received at a time by `recv`."""
        self._sock = sock
        self._ring: Ring | None = ring
        self._buffer = memoryview(bytearray(buffer_bytes))
        self._deadline: float | None = None
        self._ended = False
        self._spins = _SPINS
        self._bell = select.poll()
        self._bell.register(sock, select.POLLIN)
        sock.settimeout(None)

    def settimeout(self, timeout_s: float | None) -> None:
        """The time that calls from now on have, together. None: for ever."""
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def sendall(self, body: bytes, _flags: int = 0) -> None:
        """Send all of it, waiting for room if need be.

        Raises BrokenPipeError: the broker is gone; TimeoutError.
        """
        ring = self._live()
        sent = ring.send(body)
        if ring.peer_wants_bytes():
            self._ring_the_bell()
        rest = memoryview(body)
        while sent < len(rest):
            rest = rest[sent:]
            if not ring.room():
                self._sleep(ring, for_bytes=False)
                if self._ended and not ring.room():
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            sent = ring.send(rest)
            if ring.peer_wants_bytes():
                self._ring_the_bell()

    def recv(self, _size: int) -> bytes:
        """Some bytes, at least one; none when the broker is gone. Raises TimeoutError."""
        count = self.recv_into(self._buffer)
        return bytes(self._buffer[:count])

    def recv_into(self, into: memoryview) -> int:
        """recv, into memory; how many."""
        ring = self._live()
        count = ring.receive(into)
        if not count:
            for _ in range(self._spins):
                if ring.waiting():
                    break
                _let_others()
            else:
                self._wait(ring)
            count = ring.receive(into)
        if count and ring.peer_wants_room():
            self._ring_the_bell()
        return count

    def recv_within(self, timeout_s: float) -> bytes | None:
        """As recv; None when nothing came within that time."""
        ring = self._live()
        if not ring.waiting() and timeout_s <= 0.0:
            # Who never sleeps here learns of the end here, and the last words were there before it.
            self._hear()
            if not ring.waiting():
                return b"" if self._ended else None
        if not ring.waiting():
            self.settimeout(timeout_s)
            try:
                return self.recv(0)
            except TimeoutError:
                # A signal handler may raise one that means something else.
                if self._deadline is None or time.monotonic() < self._deadline:
                    raise
                return None
            finally:
                self._deadline = None
        return self.recv(0)

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the socket and let go of the memory: it goes with the last thread that still looks at it."""
        self._sock.close()
        self._ring = None

    def _live(self) -> Ring:
        ring = self._ring
        if ring is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return ring

    def _wait(self, ring: Ring) -> None:
        """Sleep until bytes are there or the broker is gone."""
        began = time.monotonic()
        while not self._ended:
            self._sleep(ring, for_bytes=True)
            if ring.waiting():
                break
        self._spins = _SPINS if time.monotonic() - began < _SHORT_S else 0

    def _sleep(self, ring: Ring, *, for_bytes: bool) -> None:
        """Sleep until the bell rings, the second net holds, or the time is over."""
        ring.announce(for_bytes=for_bytes, for_room=not for_bytes)
        try:
            if ring.waiting() if for_bytes else ring.room():
                return
            wait_s = _NET_S
            if self._deadline is not None:
                wait_s = min(wait_s, self._deadline - time.monotonic())
                if wait_s <= 0:
                    raise TimeoutError
            # Not a socket's own time-out: a signal handler may raise a TimeoutError that means something else.
            if self._bell.poll(1000 * wait_s):
                self._hear()
        finally:
            ring.wakes()

    def _hear(self) -> None:
        try:
            self._ended = not self._sock.recv(_BELLS, _AT_ONCE)
        except OSError as error:
            if error.errno is None:
                raise  # a signal handler's
            if error.errno not in _NOT_NOW:
                self._ended = True

    def _ring_the_bell(self) -> None:
        try:
            self._sock.send(b"\0", _NO_SIGNAL | _AT_ONCE)
        except OSError as error:
            if error.errno is None:
                raise  # a signal handler's
            # It rings already; or this is the end, which who waits for the answer will see, and the last words first.


def share(sock: socket.socket, ring_bytes: int, request: bytes) -> tuple[Ring | None, bytes]:
    """Send a request with this process's segment, and map the one that comes with the answer.

    Returns the ring, None when the answer came without a segment; and the answer as far as it came.

    Raises:
        NoSharedMemory: it cannot be had.
        OSError: the broker is gone.
    """
    size = HEAD_BYTES + ring_bytes
    own: Segment | None = None
    own_fd = -1
    try:
        own, own_fd = Segment.create(size)
        # Blocks for as long as the broker takes; who waits for a handshake has a deadline on the socket.
        socket.send_fds(sock, [request], [own_fd], _NO_SIGNAL)
        answer, fd = receive(sock, _ANSWER_BYTES)
        if fd < 0:
            own.close()
            return None, answer
        return Ring(own, Segment.attach(fd, size), ring_bytes), answer
    except BaseException:
        if own is not None:
            own.close()
        raise
    finally:
        if own_fd >= 0:
            os.close(own_fd)
