"""What a publish does when a subscription is full.

Public values; imports the argument checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from mpbroker import checks


class Overflow(Enum):
    """What a publish does to a subscription that holds ``max_queue`` messages.

    DEAD_LETTER sets the new message aside; DROP_OLDEST sets the oldest ready message of the lowest priority aside;
    REJECT makes the publish raise QueueFull before any subscription took the message; ``Overflow.WAIT(seconds)`` does
    the same after it waited that long for room.
    """

    DEAD_LETTER = "dead_letter"
    DROP_OLDEST = "drop_oldest"
    REJECT = "reject"

    @staticmethod
    def WAIT(seconds: float) -> WaitForRoom:  # noqa: N802 - it stands beside the members, and reads like one
        """Let a publish wait up to ``seconds`` (more than 0) for room; see WaitForRoom."""
        return WaitForRoom(seconds)

    @property
    def patience(self) -> float | None:
        """Seconds that a publish waits for room until it is refused; None: it is never refused."""
        return 0.0 if self is Overflow.REJECT else None


@dataclass(frozen=True, slots=True, repr=False)
class WaitForRoom:
    """What ``Overflow.WAIT(seconds)`` is: a publish waits for room in the subscription before it raises QueueFull.

    Two of as many seconds are equal. While a publish waits it holds no lock and nothing of it is anywhere; publishes
    that wait for one subscription go in the order in which they came, and those that come later wait behind them.

    Raises:
        TypeError, ValueError: seconds is no finite number above 0 (what does not wait at all is Overflow.REJECT).
    """

    seconds: float
    value: ClassVar[str] = "wait"

    def __post_init__(self) -> None:
        seconds = checks.seconds(self.seconds, "seconds")
        if not seconds:
            raise ValueError("seconds must be more than 0; what does not wait for room is Overflow.REJECT")
        object.__setattr__(self, "seconds", seconds)

    @property
    def patience(self) -> float:
        """As an Overflow's."""
        return self.seconds

    def __repr__(self) -> str:
        return f"Overflow.WAIT({self.seconds:g})"
