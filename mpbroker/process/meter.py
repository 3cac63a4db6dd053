"""The memory that messages take in the broker process, counted while something holds it: nobody has to tell.

Owns the count, and what is counted beside batches. For the broker's side.
"""

from __future__ import annotations

from typing import Final

from mpbroker import checks
from mpbroker.messages import Attempt
from mpbroker.process.blocks import Block

PIN_BYTES: Final = 320
"""What a hand-over takes that a process may look at, beside the block: its place in a table, about."""


class Meter:
    """Counts the memory that messages take: each batch and each attempt for as long as something holds it, and what
    the copies in each subscription take beside.

    Attributes:
        used: bytes in all.
        limit: from which on nothing is made that only saves later, or is only told.
    """

    __slots__ = ("_noted", "limit", "used")

    def __init__(self, limit: int = checks.MAX_COUNT) -> None:
        self.used = 0
        self.limit = limit
        self._noted: dict[int, int] = {}

    def note(self, subscription: int, overhead_bytes: int) -> None:
        """That subscription's copies take so much now."""
        before = self._noted.get(subscription, 0)
        if overhead_bytes != before:
            self.used += overhead_bytes - before
            if overhead_bytes:
                self._noted[subscription] = overhead_bytes
            else:
                del self._noted[subscription]


class CountedAttempt(Attempt):
    """An attempt that is counted for as long as a history holds it."""

    __slots__ = ("_bytes", "_meter")
    _bytes: int
    _meter: Meter

    @classmethod
    def of(cls, attempt: Attempt, nbytes: int, meter: Meter) -> CountedAttempt:
        made = cls(attempt.number, attempt.member, attempt.started, attempt.ended, attempt.outcome, attempt.error)
        object.__setattr__(made, "_bytes", nbytes)
        object.__setattr__(made, "_meter", meter)
        meter.used += nbytes
        return made

    def __del__(self) -> None:
        self._meter.used -= self._bytes


class Pinned:
    """A block that a process may look at, and that is counted for as long."""

    __slots__ = ("_meter", "block")

    def __init__(self, block: Block, meter: Meter) -> None:
        self.block = block
        self._meter = meter
        meter.used += PIN_BYTES

    def __del__(self) -> None:
        self._meter.used -= PIN_BYTES
