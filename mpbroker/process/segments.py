"""Memory that comes and goes with descriptors: rings, and the segments of arenas, which the broker process keeps.

A segment outlives its publisher here, and what was accepted with it. It is never mapped: the broker looks at no
payload, except to copy it for a reader that cannot map it. For the loop; decides nothing.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from mpbroker.process import frames
from mpbroker.process.effects import Keep, Pass, Share
from mpbroker.process.frames import Reply
from mpbroker.process.link import Link
from mpbroker.shm.link import accept
from mpbroker.shm.segment import NoSharedMemory, check

_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)

_DONE: Final = frames.framed(frames.encode(frames.Done()))


class Segments:
    """By their numbers."""

    __slots__ = ("_descriptors",)

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}

    def carry_out(self, link: Link, effect: Share | Keep | Pass) -> Reply | None:
        """Memory comes or goes with a descriptor; the answer, where none went with that.

        Raises:
            NoSharedMemory: it cannot be had, and the connection is as it was.
            OSError: the client is gone, or does not read.
        """
        if isinstance(effect, Share):
            # The answer to that is the last thing that goes through the socket.
            link.goes_through(accept(link.sock, link.take_descriptor(), effect.ring_bytes, _DONE))
            return None
        if isinstance(effect, Keep):
            self.keep(effect.segment, link.take_descriptor(), effect.nbytes)
            return frames.Number(effect.segment)
        descriptors = [self._descriptors[effect.segment]]
        if socket.send_fds(link.sock, [_DONE], descriptors, _NO_SIGNAL) != len(_DONE):
            raise BlockingIOError
        return None

    def keep(self, number: int, descriptor: int, nbytes: int) -> None:
        """Take a descriptor over; closes it where that fails. Raises NoSharedMemory."""
        if descriptor < 0:
            raise NoSharedMemory("no descriptor came with the request")
        try:
            check(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors[number] = descriptor

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Some bytes of a segment, copied."""
        return os.pread(self._descriptors[number], size, offset)

    def drop(self, number: int) -> None:
        """Nobody needs a segment any more. One whose descriptor could not be kept was never there."""
        descriptor = self._descriptors.pop(number, -1)
        if descriptor >= 0:
            os.close(descriptor)

    def close(self) -> None:
        """All of them. Any number of times."""
        for number in list(self._descriptors):
            self.drop(number)
