"""How likely one try shows each planted defect: `python -m tests.prove.odds TRIES SEED [KIND…]`.

What DENSE_TRIES and ROUND_TRIES of `seeded` rest on; to be run again when defects, dense runs or rounds change.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.prove.bugs.plant import BUGS, Bug
from tests.prove.seeded import shown


@dataclass(frozen=True, slots=True)
class Odds:
    """Of a defect: how many of its tries showed it, and how long one took."""

    bug: Bug
    tries: int
    shown: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.shown:4d} of {self.tries:4d}  {self.seconds:6.2f} s  {self.bug.kind:14}  {self.bug.name}"


def odds(bug: Bug, seeds: Sequence[int]) -> Odds:
    """Try a defect once with each seed."""
    began = time.monotonic()
    noticed = sum(bool(shown(bug, seed)) for seed in seeds)
    return Odds(bug, len(seeds), noticed, (time.monotonic() - began) / len(seeds))


def main(arguments: Sequence[str]) -> None:
    tries, first, *kinds = arguments
    seeds = range(int(first), int(first) + int(tries))
    measured = []
    for bug in BUGS:
        if not kinds or any(bug.kind.startswith(kind) or kind in bug.name for kind in kinds):
            measured.append(odds(bug, seeds))
            print(measured[-1], flush=True)
    print("\nrarest first")
    for each in sorted(measured, key=lambda each: each.shown / each.tries)[:10]:
        print(each)


if __name__ == "__main__":
    main(sys.argv[1:])
