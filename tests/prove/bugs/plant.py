"""How a defect is planted: a change of something, for as long as a with block lasts.

Owns the list of all of them. A defect that strikes rarely counts its chances; nothing here is random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from mpbroker.testing.checker import Law

Plant = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Bug:
    """A defect. name: what goes wrong. laws: under any of which it is noticed. kind: the work that shows it."""

    name: str
    kind: str
    laws: frozenset[Law]
    plant: Plant


BUGS: Final[list[Bug]] = []

DENSE: Final = "dense"
"""The kind of those that a dense run shows."""


def bug(kind: str, *laws: Law) -> Callable[[Callable[[], Iterator[None]]], Plant]:
    """Have a generator that plants a defect be one of BUGS; its docstring says what goes wrong."""

    def add(planting: Callable[[], Iterator[None]]) -> Plant:
        plant = contextmanager(planting)
        BUGS.append(Bug((planting.__doc__ or "").strip().rstrip("."), kind, frozenset(laws), plant))
        return plant

    return add


@contextmanager
def instead(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Put in the place of an attribute what ``make`` makes of it."""
    inherited = name not in vars(owner)
    original = getattr(owner, name) if inherited else vars(owner)[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def every(times: int) -> Callable[[], bool]:
    """True every so many calls."""
    numbers = count(1)
    return lambda: next(numbers) % times == 0
