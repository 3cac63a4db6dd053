"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

from mpbroker import checks


class FakeClock:
    """A monotonic clock for tests: calling it tells the time, ``advance`` and ``sleep`` move it.

    Pass it as ``clock`` and its ``sleep`` as ``sleep`` to a MessageBroker, and no test has to wait:
    ``MessageBroker(clock=clock, sleep=clock.sleep)``. Nothing blocks. Threads may share it; each
    move is atomic.

    Args:
        start: the first reading, in seconds; not 0, so that code which mistakes an absolute time
            for a duration shows.

    Raises:
        TypeError, ValueError: a time that is no finite number.
    """

    __slots__ = ("_lock", "_now", "_sleeps")

    def __init__(self, start: float = 1000.0) -> None:
        self._lock = threading.Lock()
        self._now = checks.moment(start, "start")
        self._sleeps: list[float] = []

    def __call__(self) -> float:
        """The time, in seconds."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> float:
        """Move the time forward by ``seconds`` (at least 0) and return it."""
        step = checks.seconds(seconds, "seconds")
        with self._lock:
            self._now = checks.moment(self._now + step)
            return self._now

    def sleep(self, seconds: float) -> None:
        """Move the time forward as if ``seconds`` had been slept, without waiting, and note it."""
        step = checks.seconds(seconds, "seconds")
        with self._lock:
            self._now = checks.moment(self._now + step)
            self._sleeps.append(step)

    @property
    def sleeps(self) -> list[float]:
        """What was slept so far, oldest first; a copy."""
        with self._lock:
            return list(self._sleeps)

    def __repr__(self) -> str:
        return f"<FakeClock {self()}>"
