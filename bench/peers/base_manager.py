"""A call through a plain BaseManager proxy: what the standard library asks for one confirmed call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.managers import BaseManager
from typing import Any

from bench.crew import SPAWN
from bench.measure import PAYLOAD
from bench.peers.lane import CALLS, Lane, Peer, timed_us
from bench.terms import Terms
from bench.workload import Side


class Sink:
    """What the manager shares."""

    def take(self, payload: bytes) -> int:
        return len(payload)


class PlainManager(BaseManager):
    """A manager as the standard library has it."""


PlainManager.register("Sink", Sink)


@dataclass(frozen=True, slots=True)
class ProxyLane(Lane):
    """Calls, and nothing that is carried on to somebody else."""

    sink: Any

    def confirmed(self, count: int) -> list[float]:
        return timed_us(lambda: self.sink.take(PAYLOAD), count)


@contextlib.contextmanager
def opened(terms: Terms, groups: int) -> Iterator[ProxyLane]:
    with PlainManager(ctx=SPAWN) as manager:
        yield ProxyLane(getattr(manager, "Sink")())  # noqa: B009 - registered at run time


PEER = Peer("plain BaseManager proxy call", opened, side=Side.LIMIT, calls=CALLS)
