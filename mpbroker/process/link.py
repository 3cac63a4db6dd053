"""One accepted connection of the broker process: bytes in, bytes out.

Owns the buffers and the framing on the broker's side; knows nothing of what the frames say. Never blocks. For `loop`.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

from mpbroker.errors import ProtocolViolation
from mpbroker.process.frames import HEADER_BYTES, MAX_HELLO_BYTES
from mpbroker.shm.link import RingEnd
from mpbroker.shm.segment import receive

READ_BYTES: Final = 256 * 1024
"""Read from one connection at a time: what a Unix socket holds by default, so that nobody gets two turns for one."""

_JOINED_BYTES: Final = 64 * 1024
"""Up to here header and body leave in one system call, at the price of a copy."""

_AT_ONCE_BYTES: Final = 64 * 1024
"""Taken for a frame that is only announced; beyond that, as much again as has come. Python touches all the memory that
it takes, so four bytes of a peer would cost a whole frame of it."""


class Closed(Exception):
    """The peer closed the connection."""


class Link:
    """A connection.

    Attributes:
        number: never used again.
        limit: bytes of a frame that the peer may send.
        begun: a frame has come in part.
        held: its call waits for room, and what comes after it has to wait, too.
        pending: frames that were read and have to wait.
        session: whose presence it is, or b"".
        events: what the loop looks for.
        brings: the next bytes may come with a descriptor; descriptor: that came, and nobody took; -1: none.
        is_lane: each request may come with one, and none has a deadline: what is pinned there is looked at also by who
            was stopped.
        ring: through which the bytes go, where that is not the socket.
    """

    __slots__ = (
        "_expected",
        "_filled",
        "_large",
        "_out",
        "_out_bytes",
        "_part",
        "_stream",
        "begun",
        "brings",
        "descriptor",
        "events",
        "held",
        "is_lane",
        "limit",
        "number",
        "pending",
        "ring",
        "session",
        "sock",
    )

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.ring: RingEnd | None = None
        self.brings = False
        self.is_lane = False
        self.descriptor = -1
        self.number = number
        self._stream: socket.socket | RingEnd = sock
        self.limit = MAX_HELLO_BYTES
        self.pending: deque[bytes | memoryview] = deque()
        self.session = b""
        self.begun = False
        self.held = False
        self.events = 0
        self._part = b""
        self._large: bytearray | None = None
        self._expected = 0
        self._filled = 0
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0

    @property
    def expected(self) -> int:
        """Bytes of the frame that has begun, 0 while that is not known."""
        return 0 if self._large is None else self._expected

    @property
    def unsent(self) -> int:
        """Bytes that wait for the peer to read."""
        return self._out_bytes

    def read(self, buffer: memoryview) -> Sequence[bytes | memoryview]:
        """Read once, by way of ``buffer``; the bodies of the frames that are complete now.

        Raises:
            Closed: there is nothing more to come.
            ProtocolViolation: the peer announced a frame over its limit, and what was whole before it has come out
                before; or it wrote in a ring what cannot be.
        """
        try:
            if self._large is not None:
                return self._read_large(self._large)
            count = self._receive_brought(buffer) if self.brings else self._stream.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return ()
        except ProtocolViolation:
            raise  # of a ring; it is an OSError, too
        except OSError:
            raise Closed from None
        if not count:
            raise Closed
        if self._part:
            return self._split(memoryview(self._part + buffer[:count]))
        if count == HEADER_BYTES + int.from_bytes(buffer[:HEADER_BYTES], "little") and count <= self.limit:
            # One whole frame: what clients send that wait for each answer.
            return (bytes(buffer[HEADER_BYTES:count]),)
        return self._split(buffer[:count])

    def write(self, body: bytes) -> bool:
        """Send a frame, or as much as the peer has room for. False when something is left for `flush`."""
        head = len(body).to_bytes(HEADER_BYTES, "little")
        rest = memoryview(body)
        if len(body) <= _JOINED_BYTES:
            frame = head + body
            sent = self._send_now(frame) if not self._out else 0
            if sent == len(frame):
                return True
            rest = memoryview(frame)[sent:]
        else:
            self._out.append(memoryview(head))
            self._out_bytes += HEADER_BYTES
        self._out.append(rest)
        self._out_bytes += len(rest)
        return self.flush()

    def flush(self) -> bool:
        """Send what is left, as far as it goes. True when that was all, or the peer is gone."""
        while self._out:
            part = self._out[0]
            count = self._send_now(part)
            self._out_bytes -= count
            if count < len(part):
                self._out[0] = part[count:]
                return False
            self._out.popleft()
        return True

    def goes_through(self, ring: RingEnd) -> None:
        """From now on the bytes go there."""
        self.ring = self._stream = ring

    def expect(self, descriptor: bool, *, is_lane: bool) -> None:
        """It is let in: whether the next bytes may come with a descriptor; on a lane all may."""
        self.is_lane = is_lane
        self.brings = descriptor or is_lane

    def take_descriptor(self) -> int:
        """The one that came, for who asks to close; -1 when there is none."""
        descriptor, self.descriptor = self.descriptor, -1
        return descriptor

    def close(self) -> None:
        """Let go of all it has. Any number of times."""
        if self.descriptor >= 0:
            os.close(self.take_descriptor())
        self.sock.close()
        if self.ring is not None:
            self.ring.close()

    def _receive_brought(self, buffer: memoryview) -> int:
        """recv_into that takes a descriptor along, once."""
        chunk, descriptor = receive(self.sock, len(buffer))
        if descriptor >= 0:
            if self.descriptor >= 0:
                os.close(self.descriptor)
            self.descriptor = descriptor
        self.brings = self.is_lane
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def _send_now(self, part: bytes | memoryview) -> int:
        """How many bytes the peer has room for; all of them when it is gone, which reading will tell."""
        try:
            return self._stream.send(part)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return len(part)

    def _read_large(self, large: bytearray) -> Sequence[memoryview]:
        if self._filled == len(large):
            large += bytes(min(len(large), self._expected - len(large)))
        with memoryview(large) as view, view[self._filled :] as room:
            count = self._stream.recv_into(room)
        if not count:
            raise Closed
        self._filled += count
        if self._filled < self._expected:
            return ()
        self._large = None
        self.begun = False
        return (memoryview(large),)

    def _split(self, view: memoryview) -> Sequence[bytes]:
        bodies: list[bytes] = []
        start, end = 0, len(view)
        while end - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            length = int.from_bytes(view[start:body], "little")
            if length > self.limit:
                if bodies:
                    break  # first what is whole: it does not depend on how the bytes were cut
                raise ProtocolViolation(f"a frame of {length:,} bytes, where {self.limit:,} are allowed")
            stop = body + length
            if stop > end:
                self._begin_large(length, view[body:end])
                return bodies
            bodies.append(bytes(view[body:stop]))
            start = stop
        self._part = bytes(view[start:end])
        self.begun = start < end
        return bodies

    def _begin_large(self, length: int, beginning: memoryview) -> None:
        """Filled in place from now on."""
        self._filled = len(beginning)
        self._expected = length
        self._large = bytearray(min(length, max(_AT_ONCE_BYTES, 2 * self._filled)))
        self._large[: self._filled] = beginning
        self._part = b""
        self.begun = True
