"""Which rings the loop looks at in each turn, and whose clients it wakes before it waits for the next.

A ring through which bytes went a moment ago is looked at in each turn; any other is armed: its client rings when there
is something, so it costs nothing. For the loop.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from typing import Final

from mpbroker.process.link import Link
from mpbroker.shm.link import RingEnd

_SCAN_S: Final = 0.000_15
"""Seconds that a ring is looked at in each turn after the last bytes went through it: about what ringing costs, and
enough for a client on a slow processor to come again with its next call."""

_SOON_S: Final = 0.000_4
"""Bytes that come within that after the last ones would have been seen without ringing; then looking longer pays."""

_let_others: Final = getattr(os, "sched_yield", lambda: None)
"""Called where nothing was to be seen: a client may be waiting for this very processor."""


class Rings:
    """The connections of a loop that go through shared memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at: dict[int, Link] = {}
        self._touched: dict[int, Link] = {}

    @property
    def are_busy(self) -> bool:
        """Whether some are to be looked at without waiting for anything else."""
        return bool(self._looked_at)

    def look_at(self, link: Link) -> None:
        """From now on, until nothing moves."""
        if link.number not in self._looked_at and link.ring is not None:
            link.ring.disarm()
            self._looked_at[link.number] = link

    def touched(self, link: Link) -> None:
        """Its client may sleep for what changed just now."""
        self._touched[link.number] = link

    def forget(self, link: Link) -> None:
        """It is gone."""
        self._looked_at.pop(link.number, None)
        self._touched.pop(link.number, None)

    def rung(self, link: Link, ring: RingEnd) -> None:
        """The client rang, or ended."""
        ring.hear()
        if link.number not in self._looked_at:
            ring.paid = self._clock() - ring.when < _SOON_S
            self.look_at(link)

    def look(self, serve: Callable[[Link], None]) -> None:
        """Serve those that are looked at, and arm those that do not move any more."""
        now = self._clock()
        has_moved = False
        for link in list(self._looked_at.values()):
            ring = link.ring
            if ring is None or link.number not in self._looked_at:
                continue
            serve(link)
            if link.number not in self._looked_at:
                continue
            if ring.has_moved():
                has_moved = True
                ring.when = now
                self.touched(link)
            elif not (ring.paid and now - ring.when < _SCAN_S):
                reads = bool(link.events & selectors.EVENT_READ) and not link.pending
                if not link.events or ring.arm(for_bytes=reads, for_room=link.unsent > 0):
                    del self._looked_at[link.number]
        if not has_moved:
            _let_others()

    def wake(self) -> None:
        """Wake each client once that sleeps for what changed since the last time."""
        touched, self._touched = self._touched, {}
        for link in touched.values():
            if link.ring is not None:
                link.ring.wake()
