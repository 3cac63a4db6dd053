"""How workers end: in words, on record, and what follows for the next one.

Owns the texts, the list of deaths, and how long a worker waits for its turn where those before it died at once.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from enum import IntEnum
from pathlib import Path
from typing import Final

from mpbroker.process.memory import Shortage, events_of
from mpbroker.workers.figures import Death

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 10.0
_KEPT: Final = 100


class Exit(IntEnum):
    """Exit codes of workers that end by themselves. Handlers that exit may use any."""

    DONE = 0
    UNUSABLE = 70
    """The handler could not be loaded, or the initializer raised."""
    NO_BROKER = 71
    NO_SUBSCRIPTION = 72
    FORKED = 73
    """A child that a handler forked came back out of it."""


def in_words(code: int, *, out_of_memory: bool = False) -> str:
    """An exit code as subprocess and multiprocessing give it: negative for a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        text = f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"{text}, out of memory" if out_of_memory else f"{text}, possibly out of memory"
    return text


class Deaths:
    """Of the workers of one pool. Attributes: count, so far; last: the last hundred."""

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[Death] = deque(maxlen=_KEPT)
        self._shortage = Shortage(time.monotonic)
        self._early = 0
        self._finished = -1

    def watch(self, pid: int) -> Path | None:
        """Where the kernel counts kills for want of memory in the control group of a worker; counted from now on."""
        events = events_of(pid)
        self._shortage.watch(events)
        return events

    def how(self, code: int, events: Path | None) -> str:
        """How a worker of a control group ended just now."""
        return in_words(code, out_of_memory=code == -signal.SIGKILL and self._shortage.has_killed(events))

    def note(self, member: str, pid: int, how: str, message_ids: tuple[str, ...]) -> Death:
        self.count += 1
        death = Death(member, pid, how, message_ids, time.time())
        self.last.append(death)
        return death

    def pause_s(self, finished: int) -> float:
        """A worker died before it finished anything: how long the next one waits; longer each time nobody does.

        finished: messages that the pool has finished so far.
        """
        self._early = self._early + 1 if finished == self._finished else 1
        self._finished = finished
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._early - 1, 20))
