"""The laws that histories are judged by, and what is found against them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

NAMED: Final = 20
"""Violations of one law that are kept; the rest is counted."""


class Law(StrEnum):
    """What must hold, whatever happened to any client."""

    KEPT = "no accepted message is lost, in any subscription that existed"
    GENUINE = "nothing is delivered but what was published, exactly so"
    IDS = "every id is given once, in the order of the publishes"
    FILTERED = "a subscription gets what its filter accepts, from its beginning on"
    HELD = "a message is held by one member at a time"
    SETTLED = "only the holder of a delivery settles it, and once"
    ORDER = "first deliveries come by priority and in publish order; all others are marked redelivered"
    ATTEMPTS = "attempts are counted at hand-over and stay within the limit"
    DEAD = "what is exhausted or rejected is a dead letter once, with its cause"
    TIMES = "leases and delays last as long as they were meant to"
    TOKENS = "tokens never come twice and never go back"
    WAITING = "no poll ends empty while a message is ready"
    FIGURES = "the figures add up, never go back, and agree with what happened"
    ENDED = "every call is answered, and in the end nothing is left to do"
    INNOCENT = "a fault in one client leaves the others alone"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be.

    Attributes:
        subscription, sequence: which copy it is about, "" and 0 when it is about none.
        life: what happened to that message, from all processes, in time order.
    """

    law: Law
    text: str
    subscription: str = ""
    sequence: int = 0
    life: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join((f"{self.law}: {self.text}", *(f"    {line}" for line in self.life)))


@dataclass(slots=True)
class Verdict:
    """What the histories of a run show.

    Attributes:
        violations: the first ones of each law; by_law counts all.
        messages: published, as far as known; copies: of them in subscriptions; unknown: publishes of unknown outcome.
    """

    violations: list[Violation] = field(default_factory=list)
    by_law: Counter[Law] = field(default_factory=Counter)
    events: int = 0
    clients: int = 0
    messages: int = 0
    copies: int = 0
    deliveries: int = 0
    acked: int = 0
    dead: int = 0
    unknown: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def passed(self) -> bool:
        return not self.by_law

    def of(self, law: Law) -> list[Violation]:
        return [each for each in self.violations if each.law is law]

    def report(self) -> list[str]:
        """Each violation with its explanation, and how many more there are."""
        lines = [str(each) for each in self.violations]
        lines += [f"{law}: {count - NAMED} more violations" for law, count in self.by_law.items() if count > NAMED]
        return lines


class Findings:
    """Collects violations."""

    def __init__(self) -> None:
        self.named: list[Violation] = []
        self.by_law: Counter[Law] = Counter()

    def add(self, law: Law, text: str, subscription: str = "", sequence: int = 0) -> None:
        self.by_law[law] += 1
        if self.by_law[law] <= NAMED:
            self.named.append(Violation(law, text, subscription, sequence))
