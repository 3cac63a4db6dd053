"""A lane: the connection of a process on which descriptors travel, and which its pins belong to.

A socket always. For one thread, which no signal handler interrupts, so that a request and its answer are never torn
apart. Its end is told apart from nothing: who uses it asks the session. Client side.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from mpbroker.process import frames
from mpbroker.process.channel import NO_SIGNAL, Channel, Ended, rebuild
from mpbroker.process.frames import HEADER_BYTES, Failed, Frame, Gone, Reply
from mpbroker.shm.segment import receive

_READ_BYTES: Final = 64 * 1024

HandOver = tuple[int, int]
"""The number of a subscription, and the token of the first message."""


class Lane:
    """Attributes:
    number: of the connection, this process's own.
    is_shared: with a forked child, which may look at what is pinned there: nothing is unpinned one by one any more.
    is_retired: another one has its place.
    hand_overs: that are pinned there and looked at. known: and those of a shared one that were looked at then.
    """

    __slots__ = ("_channel", "_sock", "hand_overs", "is_retired", "is_shared", "known", "number")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sock = channel.sock
        self.number = channel.number
        self.is_shared = False
        self.is_retired = False
        self.hand_overs: set[HandOver] = set()
        self.known: set[HandOver] = set()

    def ask(self, request: Frame, descriptor: int = -1) -> tuple[Reply, int]:
        """Send a request, with a descriptor that stays the caller's, and wait for the answer; and the descriptor that
        came with it, or -1.

        Raises:
            Ended: the broker, or this connection, is gone. ProtocolViolation. And what the answer says has failed.
        """
        body = frames.framed(frames.encode(request))
        try:
            if descriptor < 0:
                self._sock.sendall(body, NO_SIGNAL)
            elif socket.send_fds(self._sock, [body], [descriptor], NO_SIGNAL) < len(body):
                raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
            answer, came = self._receive()
        except OSError:
            raise Ended(None) from None
        reply = frames.decode_reply(answer)
        if type(reply) in {Failed, Gone}:
            if came >= 0:
                os.close(came)
            raise Ended(reply) if isinstance(reply, Gone) else rebuild(reply)  # type: ignore[arg-type]
        return reply, came

    def close(self) -> None:
        """Let go of the socket. What is pinned there ends with the last process that has it."""
        self._channel.close()

    def _receive(self) -> tuple[bytes, int]:
        content, came = b"", -1
        while len(content) < HEADER_BYTES or len(content) < HEADER_BYTES + int.from_bytes(
            content[:HEADER_BYTES], "little"
        ):
            chunk, descriptor = receive(self._sock, _READ_BYTES)
            if descriptor >= 0:
                if came >= 0:
                    os.close(came)
                came = descriptor
            if not chunk:
                if came >= 0:
                    os.close(came)
                raise Ended(None)
            content += chunk
        # What may be behind it is last words, and the end follows.
        return content[HEADER_BYTES : HEADER_BYTES + int.from_bytes(content[:HEADER_BYTES], "little")], came
