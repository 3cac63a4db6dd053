"""When a failed message comes back: the retry policy. Imports only the argument checks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mpbroker import checks


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounded retries with exponential backoff.

    Args:
        max_attempts: hand-overs until the message becomes a dead letter, at least 1.
        base_delay: seconds from the first failure to the second attempt, at least 0.
        multiplier: factor from one delay to the next, at least 1.
        max_delay: no delay is longer, seconds, at least 0.

    Raises:
        TypeError, ValueError: an argument of the wrong type or range, by name.
    """

    max_attempts: int = 5
    base_delay: float = 0.1
    multiplier: float = 2.0
    max_delay: float = 30.0

    def __post_init__(self) -> None:
        checks.count(self.max_attempts, "max_attempts")
        checks.seconds(self.base_delay, "base_delay")
        checks.number(self.multiplier, "multiplier", minimum=1.0)
        checks.seconds(self.max_delay, "max_delay")

    def delay(self, attempt: int) -> float:
        """Seconds between failed attempt number ``attempt`` (1 = first) and the next one.

        ``min(max_delay, base_delay * multiplier ** (attempt - 1))``, for any attempt without overflow.
        """
        checks.count(attempt, "attempt", maximum=math.inf)
        if self.base_delay == 0.0 or self.multiplier == 1.0:
            return float(min(self.max_delay, self.base_delay))
        try:
            return float(min(self.max_delay, self.base_delay * math.pow(self.multiplier, attempt - 1)))
        except OverflowError:
            return float(self.max_delay)
