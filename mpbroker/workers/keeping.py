"""Which leases must be extended, which messages took too long, and when to look again: decided from looks at a board.

Owns what is known of the leases of one slot. Asks no broker, reads no clock: the supervisor does.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from mpbroker.workers.board import Look, State
from mpbroker.workers.config import PoolConfig
from mpbroker.workers.verdicts import AckPolicy

_PARTS: Final = 3
"""A lease is extended when a third of it is gone, so two looks may come late before it ends."""

LONGEST_PAUSE_S: Final = 10.0
_SHORTEST_PAUSE_S: Final = 0.01


class Need(Enum):
    """What a worker needs. NOTHING; EXTEND: the leases of what it holds; LOSE: to know that its message is another's by
    now; KILL: its message took too long."""

    NOTHING = auto()
    EXTEND = auto()
    LOSE = auto()
    KILL = auto()


class Keeping:
    """The leases of one slot."""

    def __init__(self, config: PoolConfig) -> None:
        self._max_lease_ns = int(config.max_lease_s * 1e9)
        self._timeout_ns = None if config.timeout_s is None else int(config.timeout_s * 1e9)
        self._is_acked_first = config.ack is AckPolicy.FIRST
        self._told = 0  # the deadline that the worker was handed
        self._deadline = 0  # and what became of it

    def need(self, look: Look, now_ns: int) -> Need:
        """What there is to do at this moment."""
        if self.is_late(look, now_ns):
            return Need.KILL
        if look.lease_ns == 0:
            return Need.NOTHING
        if look.deadline_ns != self._told:
            self._told = self._deadline = look.deadline_ns
        if not self.to_extend(look, now_ns):
            # How long a lease is was measured when it arrived: a little short.
            end = self._deadline + look.lease_ns // _PARTS
            is_over = look.state is State.BUSY and not self._is_acked_first and now_ns >= end
            return Need.LOSE if is_over else Need.NOTHING
        is_fresh = self._deadline - now_ns > look.lease_ns - look.lease_ns // _PARTS
        return Need.NOTHING if is_fresh else Need.EXTEND

    def is_late(self, look: Look, now_ns: int) -> bool:
        """Whether its message took longer than the timeout."""
        timeout = self._timeout_ns
        return timeout is not None and look.state is State.BUSY and now_ns - look.since_ns >= timeout

    def to_extend(self, look: Look, now_ns: int) -> tuple[int, ...]:
        """The sequences whose leases are to last. One that took longer than max_lease is left to its end, with those
        behind it, so that others get them."""
        if look.state is State.BUSY:
            if now_ns - look.since_ns >= self._max_lease_ns:
                return ()
            return look.waiting if self._is_acked_first else look.held
        return look.waiting

    def extended(self, look: Look, asked_ns: int) -> None:
        """They were, by a call that began at ``asked_ns``."""
        self._deadline = asked_ns + look.lease_ns

    def pause_s(self, look: Look, now_ns: int) -> float:
        """When to look again at the latest, also for what the worker begins right after this."""
        pause = LONGEST_PAUSE_S
        if look.lease_ns:
            pause = min(pause, look.lease_ns / 1e9 / _PARTS)
        if self._timeout_ns is not None:
            left = self._timeout_ns
            if look.state is State.BUSY:
                left -= now_ns - look.since_ns
            pause = min(pause, left / 1e9)
        return max(pause, _SHORTEST_PAUSE_S)
