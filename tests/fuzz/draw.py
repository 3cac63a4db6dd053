"""Choices out of the bytes that a fuzzer gives: the same bytes make the same choices everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Reads bytes from the front; past their end everything is 0 or empty."""

    __slots__ = ("_at", "_bytes")

    def __init__(self, given: bytes) -> None:
        self._bytes = given
        self._at = 0

    def __bool__(self) -> bool:
        """Whether bytes are left."""
        return self._at < len(self._bytes)

    def byte(self) -> int:
        at = self._at
        if at >= len(self._bytes):
            return 0
        self._at = at + 1
        return self._bytes[at]

    def below(self, limit: int) -> int:
        """0 to limit - 1; limit is at most 256."""
        return self.byte() % limit

    def one_of(self, things: Sequence[T]) -> T:
        return things[self.byte() % len(things)]

    def take(self, count: int) -> bytes:
        """Up to so many bytes."""
        at = self._at
        taken = self._bytes[at : at + count]
        self._at = at + len(taken)
        return taken

    def short(self) -> bytes:
        """So many bytes as the next two bytes say, little-endian."""
        return self.take(self.byte() | self.byte() << 8)

    def rest(self) -> bytes:
        return self.take(len(self._bytes))
