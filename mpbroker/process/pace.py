"""The loop's clock: time that passes while the broker process runs.

Owns the rule for a broker that was stopped (SIGSTOP, a debugger, a host that slept) or that the system gave no time.
Reads the clock it is given and decides nothing else. For the loop.

What falls due while a broker cannot act, it finds overdue all at once when it goes on: leases whose workers acked or
extended in time, with their frames unread in the sockets; handshakes, uploads. So time that the loop came too late for
does not count: it is taken out of the clock, up to a moment before what was due. Whoever has sent something is served
first, and what is due after that ends one by one, as it would have. Nothing ends early by it, and the clock never goes
back.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

LATE_S: Final = 1.0
"""Seconds after a due time from which the loop was not slow but stopped: a turn takes milliseconds, and the longest
that were measured (a frame of 64 MiB, a million messages of one publish) about half of this."""

GRACE_S: Final = 1.0
"""Seconds from then until what was overdue is due: a process that was stopped with the broker wakes up with it, and has
its next ack here by then."""


class Pace:
    """A clock that leaves out the time in which the loop was stopped.

    Attributes:
        due: the earliest time that somebody waits for, infinite when there is none; set by the loop before it waits.
        lost: seconds left out so far.
    """

    __slots__ = ("_clock", "_last", "due", "lost")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self.due = inf
        self.lost = 0.0

    def __call__(self) -> float:
        """Now."""
        now = self._clock() - self.lost
        if now - self.due > LATE_S:
            resumed = max(self._last, self.due - GRACE_S)
            self.lost += now - resumed
            self.due = inf  # until the loop has looked again; or time would stand still
            now = resumed
        self._last = now
        return now
