"""Percentiles, stamps that travel in payloads, and the CPU time of processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Final

import psutil

from bench.workload import Outcome

MESSAGE_BYTES: Final = 100
"""Of every payload, unless a workload says otherwise."""

PAYLOAD: Final = b"x" * MESSAGE_BYTES


def stamp() -> bytes:
    """A payload that carries when it was made, on the clock that all processes of a host share."""
    return time.monotonic_ns().to_bytes(8, "little").ljust(MESSAGE_BYTES, b"x")


def age_us(payload: bytes) -> float:
    """Microseconds since a stamp was made."""
    return (time.monotonic_ns() - int.from_bytes(payload[:8], "little")) / 1000


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def typical(values: Sequence[float]) -> Outcome:
    """The median, with the 99th percentile beside it."""
    return Outcome(statistics.median(values), {"99th percentile": percentile(values, 99)})


def cpu_s(pids: Iterable[int | None]) -> float:
    """CPU seconds that these processes have used so far, in user and system mode.

    Counted in ticks of 10 ms on Linux, so what is measured must use many of them.
    """
    total = 0.0
    for pid in pids:
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system
    return total
