"""What every part of the proof gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class Outcome:
    """What one part did and found.

    Attributes:
        name: of the part, for people.
        figures: what was done, by name, in the order they are shown.
        failures: what was found that must not be, each a text that can be acted on; none when all held.
    """

    name: str
    figures: dict[str, int | float | str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class Part(Protocol):
    """A part of the proof, run by `scripts/prove` and, with small budgets, by the tests."""

    def __call__(self, seconds: float, seed: int, *, quick: bool) -> Outcome:
        """Work for about so many seconds; everything random comes from the seed."""
        ...
