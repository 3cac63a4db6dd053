"""Frames that are under way: how long each may take, in and out.

A connection carries one at a time: it is not read from while a reply waits for its reader. Owns the deadlines, and the
bound on all that waits; what happens to a frame that takes too long is the loop's. Reads no clock. For the loop.

The rule: a frame has frame_timeout seconds and one more for each MiB, from its first byte (in) or from the moment its
reader has no room for more (out) to its last. So a large frame over a busy machine passes, a trickle of bytes does not,
and no client can make the broker keep a reply for longer. While more than MOST_UNSENT_BYTES wait for readers, a reply
waits UNREAD_S at most.
"""

from __future__ import annotations

from math import inf

from mpbroker.process.limits import MOST_UNSENT_BYTES, UNREAD_S, Limits
from mpbroker.process.link import Link


class _Frame:
    """One frame: size is what is known of it; 0 while only a part of its length is here."""

    __slots__ = ("began", "deadline", "link", "size")

    def __init__(self, link: Link, began: float, deadline: float, size: int) -> None:
        self.link = link
        self.began = began
        self.deadline = deadline
        self.size = size


class Transit:
    """Attributes:
    frames: those under way, by the number of their connection. To be looked at, not changed, by others.
    """

    __slots__ = ("_limits", "frames")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.frames: dict[int, _Frame] = {}

    def comes(self, link: Link, now: float, *, anew: bool) -> None:
        """A part of a request is here; anew: of another one than before."""
        frame, size = self.frames.get(link.number), link.expected
        if frame is None or anew:
            self.frames[link.number] = _Frame(link, now, now + self._limits.frame_seconds(size), size)
        elif frame.size != size:
            frame.size = size
            frame.deadline = frame.began + self._limits.frame_seconds(size)

    def waits(self, link: Link, now: float) -> None:
        """A part of a reply could not be written."""
        size = link.unsent
        self.frames[link.number] = _Frame(link, now, now + self._limits.frame_seconds(size), size)
        unsent = [frame for frame in self.frames.values() if frame.link.unsent]
        if sum(frame.link.unsent for frame in unsent) > MOST_UNSENT_BYTES:
            for frame in unsent:
                frame.deadline = min(frame.deadline, frame.began + UNREAD_S)

    def done(self, link: Link) -> None:
        """Nothing is under way on a connection."""
        self.frames.pop(link.number, None)

    def overdue(self, now: float) -> list[Link]:
        """The connections whose frame has taken too long."""
        return [frame.link for frame in self.frames.values() if frame.deadline <= now]

    def first(self) -> float:
        """The earliest deadline; infinite when there is none."""
        return min((frame.deadline for frame in self.frames.values()), default=inf)
