"""How workers end, in words, and whether memory ran out.

Owns the texts, and what the kernel counts of processes that it killed for want of memory. Linux tells it for the
control group that this process is in; elsewhere nothing is known, and that is what is said.
"""

from __future__ import annotations

import signal
from enum import IntEnum
from pathlib import Path
from typing import Final

_SIGKILL: Final = 9


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
    if -code == _SIGKILL:
        return f"{text}, out of memory" if out_of_memory else f"{text}, possibly out of memory"
    return text


class MemoryWatch:
    """The kernel's count of processes that it killed in this control group because memory ran out.

    events: the file that has it; found where that is None.
    """

    def __init__(self, events: Path | None = None) -> None:
        self._events = events if events is not None else _own_events()
        self._seen = self._count()

    def has_killed(self) -> bool:
        """Whether it killed one since this was last asked, or made."""
        count = self._count()
        before, self._seen = self._seen, count
        return count > before

    def _count(self) -> int:
        try:
            for line in self._events.read_text().splitlines() if self._events is not None else ():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        except (OSError, ValueError):
            pass
        return 0


def _own_events() -> Path | None:
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                return Path("/sys/fs/cgroup", path.lstrip("/"), "memory.events")
            if "memory" in controllers.split(","):
                return Path("/sys/fs/cgroup/memory", path.lstrip("/"), "memory.oom_control")
    except (OSError, ValueError):
        pass
    return None
