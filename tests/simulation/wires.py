"""Simulated connections: what is written arrives at once or after a delay, in order; a full peer makes a writer wait.

Ends are seen after what was sent before. A connection that is closed with unread bytes resets its peer, as the kernel's
do.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mpbroker.process.frames import HEADER_BYTES
from tests.simulation.world import Process, Thread

if TYPE_CHECKING:
    from tests.simulation.network import Network
    from tests.simulation.selector import Key

WHOLE_BYTES: Final = 4096
"""So much always fits in a connection where nothing waits to be read."""

_EOF: Final = "eof"
_RESET: Final = "reset"


def oserror(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@dataclass(slots=True)
class Weather:
    """How the transport is at present; probabilities from 0 to 1.

    capacity: bytes that wait for one reader at most. backlog: connections that wait to be accepted. full: that an
    accept finds no descriptor left.
    """

    delay: float = 0.0
    shortest_s: float = 0.0
    longest_s: float = 0.0
    trickle: float = 0.0
    yields: float = 0.0
    full: float = 0.0
    capacity: int = 208 * 1024
    backlog: int = 64
    shows_pidfds: bool = True


class Frames:
    """Counts the frames in a stream of bytes."""

    __slots__ = ("_head", "_left", "count")

    def __init__(self) -> None:
        self.count = 0
        self._left = 0
        self._head = b""

    def feed(self, part: bytes) -> None:
        at, end = 0, len(part)
        while at < end:
            if self._left:
                step = min(self._left, end - at)
                at += step
                self._left -= step
                if not self._left:
                    self.count += 1
                continue
            take = HEADER_BYTES - len(self._head)
            self._head += part[at : at + take]
            at += take
            if len(self._head) == HEADER_BYTES:
                self._left = int.from_bytes(self._head, "little")
                self._head = b""


class Endpoint:
    """One end of a connection, which several processes may have a descriptor of."""

    __slots__ = (
        "arrived",
        "ended",
        "flying",
        "is_closed",
        "key",
        "last_arrival",
        "name",
        "network",
        "owner",
        "peer",
        "pending",
        "readers",
        "received",
        "refs",
        "reset",
        "sent",
        "shut",
        "writers",
    )

    def __init__(self, network: Network, owner: Process, name: str) -> None:
        self.network = network
        self.owner = owner
        self.name = name
        self.peer: Endpoint = self
        self.refs = 0
        self.arrived: deque[bytes] = deque()
        self.pending = 0  # bytes on their way here and not read yet
        self.flying = 0
        self.last_arrival = 0.0
        self.ended = False
        self.reset = False
        self.shut = False  # it will send nothing more
        self.is_closed = False
        self.readers: list[Thread] = []
        self.writers: list[Thread] = []  # wait for the peer to read
        self.key: Key | None = None
        self.sent = Frames()
        self.received = Frames()

    # -- what arrives here --------------------------------------------------------------------------------------------

    def bring(self, what: bytes | str) -> None:
        """Something was sent to this end."""
        if type(what) is bytes:
            self.pending += len(what)
        delay = self.network.delay()
        world = self.network.world
        if delay or self.flying:
            self.flying += 1
            self.last_arrival = max(self.last_arrival, world.now + delay)
            world.at(self.last_arrival, self._land, what)
        else:
            self._arrive(what)

    def _land(self, what: bytes | str) -> None:
        self.flying -= 1
        self._arrive(what)

    def _arrive(self, what: bytes | str) -> None:
        if self.is_closed:
            return
        if type(what) is bytes:
            self.arrived.append(what)
        else:
            self.ended = True
            self.reset = self.reset or what is _RESET
        self._look()

    def _look(self) -> None:
        world = self.network.world
        for thread in self.readers:
            world.wake(thread)
        if self.key is not None:
            self.key.stir()

    def has_room(self) -> bool:
        """Whether who is at the other end may send, or learns that it can't."""
        return self.is_closed or self.pending < self.network.weather.capacity

    @property
    def is_readable(self) -> bool:
        return bool(self.arrived) or self.ended

    @property
    def is_writable(self) -> bool:
        return self.shut or self.peer.has_room()

    # -- what leaves --------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> bytes | None:
        """The next bytes; b"" at the end; None when there is nothing yet. Raises OSError when it was reset."""
        network = self.network
        if self.arrived:
            part = self.arrived[0]
            limit = network.part(min(limit, len(part)))
            if limit < len(part):
                self.arrived[0] = part[limit:]
                part = part[:limit]
            else:
                self.arrived.popleft()
            self.pending -= len(part)
            peer = self.peer
            for thread in peer.writers:
                network.world.wake(thread)
            if peer.key is not None:
                peer.key.stir()
            return part
        if self.reset:
            self.reset = False
            raise oserror(errno.ECONNRESET)
        return b"" if self.ended else None

    def put(self, what: bytes) -> int:
        """Send as much as there is room for; how much that was. Raises OSError when nobody will read it."""
        peer = self.peer
        if self.shut or peer.is_closed:
            raise oserror(errno.EPIPE)
        room = self.network.weather.capacity - peer.pending
        if room <= 0:
            return 0
        count = min(room, len(what))
        if peer.pending or count > WHOLE_BYTES:
            count = self.network.part(count)
        peer.bring(what if count == len(what) else what[:count])
        return count

    def shut_down(self) -> None:
        if self.shut:
            return
        self.shut = True
        self._arrive(_EOF)
        self.peer.shut = True
        self.peer.bring(_EOF)
        for thread in (*self.writers, *self.peer.writers):
            self.network.world.wake(thread)
        if self.peer.key is not None:
            self.peer.key.stir()

    def hold(self) -> None:
        self.refs += 1

    def let_go(self) -> None:
        self.refs -= 1
        if not self.refs:
            self._close()

    def _close(self) -> None:
        unread = self.pending > 0
        self.is_closed = True
        self.arrived.clear()
        self.network.open_ends.pop(self, None)
        peer = self.peer
        if not peer.is_closed:
            peer.shut = True
            peer.bring(_RESET if unread else _EOF)
            for thread in peer.writers:
                self.network.world.wake(thread)
            if peer.key is not None:
                peer.key.stir()
