"""The polls of a run: those that handed something over, and those of which nobody knows whether they did."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final

from mpbroker.testing.checker.clients import NEVER


@dataclass(slots=True)
class Ghost:
    """A poll whose answer nobody recorded: until then it may have been handed something.

    attempts: how many of one message, at most, that count. copies: how many hand-overs in all, at most.
    """

    invoked: int
    until: int
    attempts: int = 1
    copies: int = NEVER


class Haunts:
    """Ghosts, to be counted between times."""

    def __init__(self, ghosts: list[Ghost]) -> None:
        self._begun = _sums((each.invoked, each.attempts) for each in ghosts)
        self._over = _sums((each.until, each.attempts) for each in ghosts)

    def between(self, since: int, until: int) -> tuple[int, int]:
        """How many there were, and how many attempts of one message they may have had."""
        (begins, begun), (ends, over) = self._begun, self._over
        first, last = bisect_left(ends, since), bisect_right(begins, until)
        return last - first, begun[last] - over[first]


def _sums(each: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Times in order, and the sum of the figures before each."""
    ordered = sorted(each)
    return [at for at, _ in ordered], [0, *accumulate(figure for _, figure in ordered)]


@dataclass(slots=True)
class Closing:
    """The end of a consumer. asked, ok: when its close was asked for, and answered; NEVER while it was not."""

    asked: int = NEVER
    ok: int = NEVER


class Polls:
    """The polls of a run that handed something over: when, to whom, and how many (0: a retry, which takes nothing from
    the queue). Number 0 is nobody's. Of a consumer's polls the times are bounds.

    Attributes:
        consumer: who polled, as a number in ``consumers``; 0: no consumer.
        lost_least, lost_most: seconds by which the broker's clock is behind the host's, since a broker leaves out the
            time in which it was stopped; at least, and at most, by the latest delivery.
    """

    def __init__(self, *, stops: bool) -> None:
        self.stops: Final = stops
        self.lost_least = 0.0
        self.lost_most = 0.0
        self.invoked = array("q", [0])
        self.ok = array("q", [0])
        self.client = array("I", [0])
        self.member = array("I", [0])
        self.size = array("I", [0])
        self.consumer = array("I", [0])
        self.consumers: list[Closing] = [Closing()]
        self.members: list[str] = [""]
        self._member_index: dict[str, int] = {}

    def add(self, invoked: int, ok: int, client: int, member: str, size: int, consumer: int = 0) -> int:
        index = self._member_index.get(member)
        if index is None:
            index = self._member_index[member] = len(self.members)
            self.members.append(member)
        self.invoked.append(invoked)
        self.ok.append(ok)
        self.client.append(client)
        self.member.append(index)
        self.size.append(size)
        self.consumer.append(consumer)
        return len(self.ok) - 1

    def may_be_late(self, deadline: float, earliest: float, latest: float) -> bool:
        """Whether a lease of a poll that was served some time before it was seen may end then.

        The broker's clock may fall behind the host's, and never catches up; if so, we learn by how much at least.
        """
        if self.stops:
            self.lost_least = max(self.lost_least, earliest - deadline)
            return deadline == inf or self.lost_least <= latest - deadline
        return deadline == inf or earliest <= deadline <= latest
