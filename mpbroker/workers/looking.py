"""What workers do, read off a board: by their supervisor, and by anybody of the same user from outside.

Owns the figures of one worker, and how the pools of this host are found. Asks no process anything, so it tells of those
that hang, too.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mpbroker.workers.board import MEMORY_NAME, Slot, State, read_board
from mpbroker.workers.figures import WorkerStats

if TYPE_CHECKING:
    import psutil

_MARK = b"mpbroker.workers.entry"
"""In the command line of a supervisor, and of its workers."""


class Meter:
    """What a process uses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process: psutil.Process | None = None

    def read(self) -> tuple[int, float]:
        """Bytes of memory now, and seconds of processor time so far; zeros when it is gone."""
        import psutil

        try:
            if self._process is None:
                self._process = psutil.Process(self._pid)
            times = self._process.cpu_times()
            return int(self._process.memory_info().rss), float(times.user + times.system)
        except psutil.Error:
            return 0, 0.0


def worker_stats(slot: Slot, used: tuple[int, float], member: str) -> WorkerStats:
    """Of one slot that is not empty; used: what its process does."""
    look = slot.look()
    pid, _, started = slot.process
    now = time.monotonic_ns()
    return WorkerStats(
        member,
        pid,
        look.state.name.lower(),
        f"m{look.sequence}" if look.state is State.BUSY else None,
        max(0, now - look.since_ns) / 1e9,
        len(look.waiting),
        (now - started) / 1e9,
        *used,
        look.done,
        look.failed,
    )


class Told(msgspec.Struct, frozen=True):
    """What a board says of its pool. broker: the folder of its broker."""

    pid: int
    name: str
    topic: str
    group: str
    threads: int
    broker: str

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool of this host, seen from outside. pid: of its supervisor."""

    name: str
    topic: str
    group: str
    pid: int
    broker: str
    workers: tuple[WorkerStats, ...]


def pools_here() -> list[PoolView]:
    """The pools of this user on this host, whoever started them. Empty on systems that do not show them (not Linux)."""
    from mpbroker.workers.worker import member_name

    found = []
    for told, slots in _boards():
        workers = []
        for at, slot in enumerate(slots):
            pid, serial, _ = slot.process
            if pid and slot.look().state is not State.EMPTY:
                member = member_name(told.name, serial, at % told.threads, told.threads)
                workers.append(worker_stats(slot, Meter(pid).read(), member))
        found.append(PoolView(told.name, told.topic, told.group, told.pid, told.broker, tuple(workers)))
    return sorted(found, key=lambda view: view.pid)


def open_board(process: int) -> int | None:
    """A descriptor of the board of a pool, by one of its processes; None: it has none that could be seen."""
    try:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            if os.readlink(descriptor).startswith(f"/memfd:{MEMORY_NAME}"):
                return os.open(descriptor, os.O_RDONLY)
    except OSError:
        pass  # it ended meanwhile, or is another user's
    return None


def groups_left(board: int) -> list[int]:
    """The process groups of the workers that a board has, by what it says now."""
    try:
        slots = read_board(board)[1]
    except (OSError, ValueError):
        return []
    return list({slot.process[0] for slot in slots if slot.look().state is not State.EMPTY} - {0})


def _boards() -> list[tuple[Told, list[Slot]]]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        board = None
        try:
            if _MARK in (process / "cmdline").read_bytes():
                board = open_board(int(process.name))
            if board is not None:
                header, slots = read_board(board)
                told = msgspec.json.decode(header, type=Told)
                if told.pid == int(process.name):
                    found.append((told, slots))
        except (OSError, ValueError, msgspec.MsgspecError):
            continue  # it ended meanwhile
        finally:
            if board is not None:
                os.close(board)
    return found
