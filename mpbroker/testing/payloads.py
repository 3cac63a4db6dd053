"""Payloads that prove themselves: of which run, whose, which one, and that no byte changed.

Owns their layout. The body is a piece of a seeded pool that only the right publisher and number select, so a payload
cut, mixed or put under another number is found out, and nothing has to be remembered to find it. A checksum covers
what the message says of itself; the body is compared whole.
"""

from __future__ import annotations

import random
import struct
import zlib
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct("<IIIqI")
"""run, publisher, number, time of the publish in nanoseconds, priority"""

_CRC: Final = struct.Struct("<I")
_WHOLE: Final = struct.Struct(_HEAD.format + "I")
SMALLEST: Final = _HEAD.size + _CRC.size
"""Bytes of a payload without a body."""

_POOL: Final = 64 * 1024


class Damaged(Exception):
    """A payload that is not what was published. Args: what is wrong with it."""


class Claims(NamedTuple):
    """What a payload says of its message."""

    publisher: int
    number: int
    published_ns: int
    priority: int


class Payloads:
    """Makes and checks the payloads of one run.

    Args:
        size: bytes of each; at least SMALLEST.
        seed: of the pool; a payload made with another one is found out.
        run: another number for runs that could meet, 0 to 2**32 - 1.

    Raises:
        ValueError: a size that is too small.
    """

    def __init__(self, size: int = 64, seed: int = 0, run: int = 0) -> None:
        if size < SMALLEST:
            raise ValueError(f"size must be at least {SMALLEST}: a payload proves what it is")
        self.size = size
        self._run = run
        self._body = size - SMALLEST
        self._pool = random.Random(seed).randbytes(_POOL + self._body)  # noqa: S311 - a seed, not a secret

    def make(self, publisher: int, number: int, published_ns: int, priority: int) -> bytes:
        """One payload."""
        head = _HEAD.pack(self._run, publisher, number, published_ns, priority)
        return b"".join((head, _CRC.pack(zlib.crc32(head)), self._piece(publisher, number)))

    def open(self, payload: object) -> Claims:
        """What it says. Raises Damaged."""
        if type(payload) is not bytes or len(payload) != self.size:
            raise Damaged(f"not {self.size} bytes but {_described(payload)}")
        run, publisher, number, published_ns, priority, crc = _WHOLE.unpack_from(payload)
        if crc != zlib.crc32(payload[: _HEAD.size]):
            raise Damaged("its checksum is wrong")
        if run != self._run:
            raise Damaged(f"it is of run {run}, and this is run {self._run}")
        if not payload.endswith(self._piece(publisher, number)):
            raise Damaged("its body is damaged, or that of another message")
        return Claims(publisher, number, published_ns, priority)

    def _piece(self, publisher: int, number: int) -> bytes:
        at = (publisher * 40503 + number * 2654435761 >> 4) % _POOL
        return self._pool[at : at + self._body]


def _described(payload: object) -> str:
    if isinstance(payload, bytes):
        return f"{len(payload)}"
    return f"a {type(payload).__name__}"
