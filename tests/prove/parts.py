"""The parts there are, and how much of the time each one gets.

Owns the list. A part's module is imported when it runs, in a process of its own.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import cast

from tests.prove.part import Part


@dataclass(frozen=True, slots=True)
class Entry:
    """A part.

    Attributes:
        module: has the function ``run``.
        share: of the time of all, relative to the others.
        quick_s: seconds it gets with --quick.
    """

    name: str
    module: str
    share: float
    quick_s: float

    def load(self) -> Part:
        """Its function."""
        return cast("Part", importlib.import_module(self.module).run)


PARTS = (
    Entry("points", "tests.prove.points", 9.0, 60.0),
    Entry("volume", "tests.prove.volume", 6.0, 15.0),
    Entry("chaos", "tests.prove.chaos", 6.0, 25.0),
    Entry("simulation", "tests.simulation.part", 4.0, 25.0),
    Entry("arena", "tests.prove.arena", 4.0, 15.0),
    Entry("fuzz", "tests.fuzz.part", 3.0, 40.0),
    Entry("rings", "tests.prove.rings", 3.0, 8.0),
    Entry("seeded", "tests.prove.seeded", 1.5, 30.0),
    Entry("memory", "tests.prove.memory", 0.5, 15.0),
)
"""The longest first: they run side by side, as many as there are cores."""
