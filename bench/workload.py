"""The shape of a comparison: a workload, its contestants, and what the figures must reach."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bench.terms import Terms


class NotHere(Exception):
    """A contestant cannot run on this machine. Args: why, and how to get it."""


class Side(Enum):
    """Who a contestant is: the chart and the table set ours apart, and say what is a limit and not a rival."""

    OURS = "ours"
    PEER = "peer"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round found.

    Attributes:
        value: the figure, in the workload's unit.
        also: further figures of the same round in the same unit, such as a 99th percentile; never compared.
    """

    value: float
    also: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do the work of a workload; ``round`` does it once, and raises NotHere when it cannot."""

    name: str
    round: Callable[[Terms], Outcome]
    side: Side = Side.PEER


@dataclass(frozen=True, slots=True)
class Target:
    """What must be reached: ``ours`` divided by ``peer`` (or ``ours`` itself, without a peer) is within the bound.

    Attributes:
        ours, peer: names of contestants. bound: of the ratio. at_least: which side of the bound is good.
        below: the bound itself is not good enough.
    """

    ours: str
    peer: str | None
    bound: float
    at_least: bool = False
    below: bool = False

    def reached_by(self, ratio: float) -> bool:
        if self.at_least:
            return ratio >= self.bound
        return ratio < self.bound if self.below else ratio <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "<" if self.below else "≤"
        return f"{sign} {self.bound:,g}" + ("" if self.peer is None else " ×")


@dataclass(frozen=True, slots=True)
class Workload:
    """One comparison.

    Attributes:
        key: its short name, for --only: what is before the first dash is its family.
        title: what is done. unit: of the figures. higher_is_better: which way they count.
        contestants: in the order in which they take turns.
        targets: what must be reached.
    """

    key: str
    title: str
    unit: str
    higher_is_better: bool
    contestants: tuple[Contestant, ...]
    targets: tuple[Target, ...] = ()

    @property
    def family(self) -> str:
        return self.key.partition("-")[0]


def load(module: str, package: str) -> Any:
    """Import a peer's module, which is not needed to run the others.

    Untyped on purpose: types are then checked alike whether or not the peer is installed.

    Raises:
        NotHere: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotHere(f"{package} is not installed (pip install 'mpbroker[bench]'): {error}") from error
