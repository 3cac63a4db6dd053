"""Whether the kernel killed a process because memory ran out.

Owns what the kernel counts of such kills, by control group; Linux tells it, and elsewhere nothing is known. A count
says that one was killed and not which: it is believed of a process of that group that signal 9 ended at that time. Both
sides may import it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KILLED: Final = "signal 9 (SIGKILL)"
"""How a process that it killed has ended; so has one that somebody else killed."""

_GROUPS: Final = 1024
"""Control groups whose count is remembered: more than a host has of programs that talk to one broker."""

_TOGETHER_S: Final = 1.0
"""Several that it killed at one time end within that."""


def events_of(pid: int | None) -> Path | None:
    """The file with the count of the group that a process is in; None: unknown."""
    if pid is None:
        return None
    try:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                return Path("/sys/fs/cgroup/memory", path.lstrip("/"), "memory.oom_control")
            if not controllers:
                unified = Path("/sys/fs/cgroup", path.lstrip("/"), "memory.events")
                if unified.exists():
                    return unified
    except (OSError, ValueError):
        pass
    return None


@dataclass(slots=True)
class _Group:
    """Kills so far; how many of the last ones belong to no process yet, and until when one may claim them."""

    count: int
    unclaimed: int = 0
    until: float = 0.0


class Shortage:
    """The counts of the groups of some processes. clock: in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._groups: OrderedDict[Path, _Group] = OrderedDict()

    def watch(self, events: Path | None) -> None:
        """Count kills in a group from now on."""
        if events is not None and events not in self._groups:
            self._groups[events] = _Group(_count(events))
            if len(self._groups) > _GROUPS:
                self._groups.popitem(last=False)

    def has_killed(self, events: Path | None) -> bool:
        """Whether a process of a group, which was killed just now, was so for want of memory. At most once for each."""
        group = None if events is None else self._groups.get(events)
        if group is None or events is None:
            return False
        count, now = _count(events), self._clock()
        if count > group.count:
            group.unclaimed, group.until = count - group.count, now + _TOGETHER_S
        group.count = count
        if group.unclaimed and now <= group.until:
            group.unclaimed -= 1
            return True
        return False

    def in_words(self, how: str | None, events: Path | None) -> str | None:
        """How a process of a group ended, with what is known of memory, where that may be why."""
        if how != KILLED:
            return how
        return f"{how}, out of memory" if self.has_killed(events) else f"{how}, possibly out of memory"


def _count(events: Path) -> int:
    try:
        for line in events.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
