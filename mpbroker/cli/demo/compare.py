"""Whether two passes over the same files came to the same. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mpbroker.cli.demo.work import Failed, Result

Key = tuple[str, bytes]
"""A piece of work: its kind, and the path of the file."""

Outcomes = dict[Key, Result | Failed]


@dataclass(frozen=True, slots=True)
class Difference:
    """A piece of work with two outcomes; None: it has none."""

    key: Key
    expected: Result | Failed | None
    got: Result | Failed | None


@dataclass(slots=True)
class Comparison:
    """What differs because something went wrong, and what because the file changed in between."""

    differences: list[Difference] = field(default_factory=list)
    changed: list[Key] = field(default_factory=list)


def compare(expected: Outcomes, got: Outcomes, again: Callable[[str, bytes], Result | Failed]) -> Comparison:
    """Compare outcome by outcome.

    Args:
        again: does a piece of work now. Where the second pass's outcome is what comes out now, the file changed after
            the first pass, and nothing went wrong.
    """
    comparison = Comparison()
    for key in sorted(expected.keys() | got.keys()):
        before, after = expected.get(key), got.get(key)
        if before == after:
            continue
        if before is not None and after is not None and again(*key) == after:
            comparison.changed.append(key)
        else:
            comparison.differences.append(Difference(key, before, after))
    return comparison


def count(outcomes: Outcomes, kind: str) -> int:
    """Results of a kind that did not fail."""
    return sum(key[0] == kind and not isinstance(outcome, Failed) for key, outcome in outcomes.items())


def failures(outcomes: Outcomes) -> Iterable[tuple[Key, Failed]]:
    return [(key, outcome) for key, outcome in outcomes.items() if isinstance(outcome, Failed)]
