"""How a round is run: how much of everything, and which way mpbroker's frames travel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Scale(Enum):
    """Tiny rounds are for tests, quick ones show that all works, full ones are for figures."""

    TINY = "tiny"
    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Terms:
    """What every contestant of a run is told.

    Attributes:
        scale: how much one round does.
        transport: for mpbroker alone: how its frames travel; None: as it decides itself.
    """

    scale: Scale = Scale.FULL
    transport: str | None = None

    def choose(self, quick: int, full: int, tiny: int | None = None) -> int:
        """The amount for this scale; a tiny one is a fiftieth of a quick one, and at least ten, unless it is given."""
        if self.scale is Scale.FULL:
            return full
        if self.scale is Scale.QUICK:
            return quick
        return max(10, quick // 50) if tiny is None else tiny
