"""What the broker process can say of itself: which figures it counts, and what only its loop knows.

For the broker's side; reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TOTALS: Final = ("accepted", "acked", "deliveries", "redelivered", "dead_lettered", "dropped")
"""Figures of a subscription that only grow."""

COUNTERS: Final = (
    "published",
    "calls",
    "calls_failed",
    "undone",
    "sessions_closed",
    "sessions_died",
    "refused",
    "violations",
)
"""What is counted beside them: messages, calls, copies taken back from interrupted calls, and ends of connections."""


@dataclass(frozen=True, slots=True)
class About:
    """What the status says about the process. started: the loop's time; memory: bytes it takes now.

    read: some bytes of a segment: its number, where, how many.
    """

    version: str
    pid: int
    started: float
    memory: Callable[[], int]
    read: Callable[[int, int, int], bytes]
