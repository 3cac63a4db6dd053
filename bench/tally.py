"""What the workers of a round share: how many deliveries each has acked, and whether the round is over.

One number of eight bytes a worker in a small mapped file, written by that worker alone, so nothing locks.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.server import folder


class Tally:
    """A worker's view of it, or that of the process that measures (slot 0, which says when the round is over)."""

    def __init__(self, path: Path, slot: int) -> None:
        self._path, self._slot = path, slot
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._map).cast("Q")

    def __reduce__(self) -> tuple[Any, ...]:
        return Tally, (self._path, self._slot)

    def worker(self, number: int) -> Tally:
        """The view of this worker, counted from 0."""
        return Tally(self._path, number + 1)

    def add(self, count: int) -> None:
        self._numbers[self._slot] += count

    def acked(self) -> int:
        return sum(self._numbers[1:])

    def end(self) -> None:
        self._numbers[0] = 1

    def ended(self) -> bool:
        return bool(self._numbers[0])


@contextlib.contextmanager
def tally(workers: int) -> Iterator[Tally]:
    """One for so many workers."""
    with folder() as place:
        path = place / "tally"
        path.write_bytes(bytes(8 * (workers + 1)))
        yield Tally(path, 0)
