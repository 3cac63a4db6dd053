"""Latencies, counted in buckets that are about 1.6 % wide; bounded however many there are."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Final

_BITS: Final = 6
"""Every power of two is cut into 64 buckets."""

_BUCKETS: Final = (64 - _BITS + 1) << _BITS


def bucket(value: int) -> int:
    """The bucket of a value of at least 0."""
    shift = max(0, value.bit_length() - _BITS - 1)
    return (shift << _BITS) + (value >> shift)


def floor(number: int) -> int:
    """The smallest value of a bucket."""
    shift = max(0, (number >> _BITS) - 1)
    return (number - (shift << _BITS)) << shift


class Histogram:
    """Counts values; a percentile is right to within its bucket."""

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _BUCKETS))
        self.count = 0
        self.largest = 0

    def add(self, values: Iterable[int]) -> None:
        """Count values of 0 to 2**63."""
        counts = self._counts
        added = 0
        largest = self.largest
        for value in values:
            counts[bucket(value)] += 1
            added += 1
            if value > largest:
                largest = value
        self.count += added
        self.largest = largest

    def percentile(self, percent: float) -> int:
        """The value that ``percent`` of all are at most; 0 when there is none."""
        rank = max(1, math.ceil(self.count * percent / 100.0))
        seen = 0
        for number, count in enumerate(self._counts):
            seen += count
            if count and seen >= rank:
                return min(self.largest, floor(number + 1) - 1)
        return 0
