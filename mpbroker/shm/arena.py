"""Which ranges of a process's segments are lent: an allocator that knows sizes and numbers, and no memory.

A segment is known by its number and its size. What is lent is one sorted list a segment, and that is all the state
there is: what is free is what lies between, and every figure is counted from it. So an exception out of the middle of
a step (Ctrl-C, a signal handler that raises) leaves nothing half done, and a handler that takes a range in the middle
of another `take` never gets the same. Not for several threads at a time. Pure: no memory, no process, no clock.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

PAGE_BYTES: Final = 4096
"""Ranges begin on one, so that no two share one."""

_STEPS_BITS: Final = 3
"""Size classes between two powers of two: 2**3, so that rounding up wastes an eighth at most."""


def class_bytes(nbytes: int) -> int:
    """What a range for so many bytes takes: its size class."""
    step = max(PAGE_BYTES, 1 << max(0, (nbytes - 1).bit_length() - 1 - _STEPS_BITS))
    return max(step, -(-nbytes // step) * step)


class Arena:
    """Segments, and the ranges of them that are lent. A range has a serial number, given by who takes it, once."""

    __slots__ = ("_changes", "_lent", "_sizes", "_widest")

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._lent: dict[int, list[tuple[int, int, int]]] = {}  # segment -> (offset, end, serial), in order
        self._widest: dict[int, int] = {}  # segment -> no gap is wider, as far as that is known
        self._changes = 0

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(self._sizes.values())

    @property
    def used(self) -> int:
        """Bytes that are lent, rounding included."""
        return sum([end - offset for lent in self._lent.values() for offset, end, _ in lent])

    @property
    def segments(self) -> list[int]:
        return list(self._sizes)

    def add(self, segment: int, nbytes: int) -> None:
        """There is one more segment; its number was never there before."""
        assert nbytes > 0
        assert segment not in self._lent
        self._lent[segment] = []
        self._sizes[segment] = nbytes

    def remove(self, segment: int) -> bool:
        """Forget a segment if nothing of it is lent; whether it was. Nothing is taken from it any more then."""
        size = self._sizes.pop(segment, None)
        if size is None:
            return False
        if self._lent[segment]:
            self._sizes[segment] = size
            return False
        del self._lent[segment]
        self._widest.pop(segment, None)
        return True

    def is_free(self, segment: int) -> bool:
        """Whether nothing of a segment is lent."""
        return not self._lent.get(segment)

    def take(self, nbytes: int, serial: int) -> tuple[int, int] | None:
        """Lend a range: its segment and its offset; the first that fits, so that memory that was used lately is used
        again. None: no segment has a gap that wide."""
        size = class_bytes(nbytes)
        while True:
            seen = self._changes
            found = self._gap(size)
            if found is None:
                return None
            segment, offset = found
            lent = self._lent.get(segment)
            if lent is None:
                continue
            entry = (offset, offset + size, serial)
            # Nothing is called between the look and the insertion, so no signal handler comes in between.
            if self._changes == seen:
                insort(lent, entry)
                self._changes += 1
                return found

    def give_back(self, segment: int, offset: int, serial: int) -> bool:
        """A range is lent no longer. False, and nothing changes, for what is not lent, or is lent as another one."""
        lent = self._lent.get(segment)
        if lent is None:
            return False
        self._widest.pop(segment, None)
        at = bisect_left(lent, (offset, 0, 0))
        if at == len(lent) or lent[at][0] != offset or lent[at][2] != serial:
            return False
        self._changes += 1
        del lent[at : at + 1]
        return True

    def _gap(self, size: int) -> tuple[int, int] | None:
        """The first gap of that width."""
        for segment, nbytes in list(self._sizes.items()):
            if size > min(nbytes, self._widest.get(segment, nbytes)):
                continue
            at = widest = 0
            for offset, end, _ in list(self._lent.get(segment, ())):
                width = offset - at
                if width >= size:
                    return segment, at
                if width > widest:
                    widest = width
                at = end
            if nbytes - at >= size:
                return segment, at
            self._widest[segment] = max(widest, nbytes - at)
        return None
