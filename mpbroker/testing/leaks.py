"""A check that nothing was left behind: processes, threads, descriptors, files and sockets.

Owns the snapshot and the comparison. Never ends, closes or removes anything: it only looks.
"""

from __future__ import annotations

import fnmatch
import gc
import multiprocessing
import os
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from mpbroker import checks

DEFAULT_GRACE: Final = 5.0
"""Seconds for what is just ending: a killed process needs some milliseconds to be gone, a loaded
machine a second; five are past any doubt."""

KINDS: Final = {
    "processes": "process",
    "threads": "thread",
    "descriptors": "descriptor",
    "files": "file",
}
"""What is looked at, and the word for one of it."""

_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.1


class Leak(AssertionError):
    """Something was left behind. Args: what remains, one text each."""

    @property
    def remains(self) -> tuple[str, ...]:
        """What was left, one text each."""
        return self.args

    def __str__(self) -> str:
        return "left behind:\n" + "\n".join(f"  {entry}" for entry in self.args)


_Found = dict[object, str]
"""Identity -> what to call it in an error."""


class LeakCheck:
    """Raise Leak when more is there at the end than was there at the beginning.

    As a context manager it looks at both ends of the block (not after an exception, which is the
    more important news); ``start`` and ``verify`` do the same by hand.

    It compares the descendants of this process (zombies included), processes elsewhere that were
    started with an environment naming one of ``folders``, the threads of this process (those of C
    libraries too, on Linux), its open descriptors (where the platform shows them), and the files
    and sockets in ``folders``. What multiprocessing keeps for the life of the process (its resource
    tracker and fork server) is not counted.

    Args:
        folders: broker folders, such as the value of MPBROKER_DIR.
        allow_files: patterns, relative to a folder, of files that may stay: ``"*/lock"``.
        ignore: what not to look at: ``"processes"``, ``"threads"``, ``"descriptors"``, ``"files"``.
        grace_s: seconds to wait for what is just ending, at least 0; a clean end waits for nothing.

    Raises:
        TypeError, ValueError: an argument of the wrong type or range, by name.
    """

    def __init__(
        self,
        folders: Iterable[str | os.PathLike[str]] = (),
        *,
        allow_files: Iterable[str] = (),
        ignore: Iterable[str] = (),
        grace_s: float = DEFAULT_GRACE,
    ) -> None:
        if isinstance(folders, (str, os.PathLike)):
            folders = (folders,)
        if isinstance(allow_files, str):
            allow_files = (allow_files,)
        self._ignore = frozenset((ignore,) if isinstance(ignore, str) else ignore)
        if not self._ignore <= KINDS.keys():
            raise ValueError(f"ignore must be of {', '.join(KINDS)}, not {sorted(self._ignore)}")
        self._folders = tuple(Path(folder).absolute() for folder in folders)
        self._allow_files = tuple(allow_files)
        self._grace = checks.seconds(grace_s, "grace_s")
        self._pids: frozenset[int] = frozenset()
        self._before: dict[str, _Found] | None = None

    def start(self) -> Self:
        """Remember what there is. Doesn't block."""
        self._pids = frozenset(psutil.pids())
        self._before = self._look()
        return self

    def verify(self) -> None:
        """Return once nothing new is left; wait up to the grace for it.

        Raises:
            Leak: what is still there after the grace.
            RuntimeError: start() was never called.
        """
        deadline = time.monotonic() + self._grace
        remains = self.remains()
        pause = _FIRST_PAUSE
        if remains:
            # Cycles keep what they hold alive until the collector happens to run.
            gc.collect()
            remains = self.remains()
        while remains and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            remains = self.remains()
        if remains:
            raise Leak(*remains)

    def remains(self) -> list[str]:
        """What is new since start(), right now."""
        before = self._before
        if before is None:
            raise RuntimeError("start() comes before verify()")
        now = self._look()
        return [
            f"{KINDS[kind]} {text}"
            for kind in KINDS
            if kind not in self._ignore
            for identity, text in now[kind].items()
            if identity not in before[kind]
        ]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.verify()

    def _look(self) -> dict[str, _Found]:
        return {
            "processes": dict(_processes(self._pids, self._folders)),
            "threads": _threads(),
            "descriptors": _descriptors(),
            "files": dict(_files(self._folders, self._allow_files)),
        }


# -- processes -------------------------------------------------------------------------------------


def _processes(known: frozenset[int], folders: tuple[Path, ...]) -> Iterator[tuple[object, str]]:
    """The processes that are new and ours; looking only at new ones keeps this quick."""
    # Reaps children that have ended and that only multiprocessing knows.
    multiprocessing.active_children()
    told = {os.fsencode(folder) for folder in folders}
    for pid in set(psutil.pids()) - known - standing_helpers():
        try:
            process = psutil.Process(pid)
            if _descends(process) or _was_told(pid, told):
                yield pid, _describe(process)
        except psutil.NoSuchProcess:
            continue


def _descends(process: psutil.Process) -> bool:
    own = os.getpid()
    pid, seen = process.ppid(), {process.pid}
    while pid not in seen and pid > 1:
        if pid == own:
            return True
        seen.add(pid)
        pid = psutil.Process(pid).ppid()
    return False


def _was_told(pid: int, values: set[bytes]) -> bool:
    """Whether a process was started with one of the values in its environment.

    Finds those that no longer descend from this process because their parent has ended.
    """
    if not values or not sys.platform.startswith("linux"):
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(variable.partition(b"=")[2] in values for variable in environment.split(b"\0"))


def _describe(process: psutil.Process) -> str:
    try:
        status, name = process.status(), process.name()
        command = "" if status == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
        return f"{process.pid} ({status}): {command or name}"
    except psutil.Error:
        return f"{process.pid} (just ended)"


def standing_helpers() -> set[int]:
    """The pids of multiprocessing's own long-lived helpers."""
    return {*_helper("resource_tracker", "_pid"), *_helper("forkserver", "_forkserver_pid")}


def _standing_descriptors() -> set[int]:
    return {*_helper("resource_tracker", "_fd"), *_helper("forkserver", "_forkserver_alive_fd")}


def _helper(module: str, attribute: str) -> Iterator[int]:
    # Only private names tell: there is no public way to ask for these helpers.
    loaded = sys.modules.get(f"multiprocessing.{module}")
    value = getattr(getattr(loaded, f"_{module}", None), attribute, None)
    if isinstance(value, int):
        yield value


# -- threads ---------------------------------------------------------------------------------------


def _threads() -> _Found:
    known = {thread.native_id: thread for thread in threading.enumerate()}
    found: _Found = {
        ("python", thread.native_id, id(thread)): f"{thread.name!r} ({thread!r})" for thread in known.values()
    }
    tasks = Path("/proc/self/task")
    if tasks.is_dir():
        for task in tasks.iterdir():
            if int(task.name) in known:
                continue
            try:
                name = (task / "comm").read_text(encoding="utf-8", errors="replace").strip()
            except OSError:
                continue
            found["native", int(task.name)] = f"{task.name} (not Python's; {name})"
    return found


# -- descriptors -----------------------------------------------------------------------------------


def _descriptors() -> _Found:
    kept = _standing_descriptors()
    folder = next((path for path in ("/proc/self/fd", "/dev/fd") if os.path.isdir(path)), None)
    if folder is None:
        return {}
    found: _Found = {}
    for name in os.listdir(folder):
        descriptor = int(name)
        if descriptor in kept:
            continue
        target = _target(folder, descriptor)
        if target is not None:
            found[descriptor, target] = f"{descriptor} -> {target}"
    return found


def _target(folder: str, descriptor: int) -> str | None:
    """What a descriptor points at; None when it is closed, as the one that listed them is."""
    try:
        if folder.startswith("/proc"):
            return os.readlink(f"{folder}/{descriptor}")
        status = os.fstat(descriptor)
    except OSError:
        return None
    return f"{stat.filemode(status.st_mode)} {status.st_dev}:{status.st_ino}"


# -- files -----------------------------------------------------------------------------------------


def _files(folders: tuple[Path, ...], allowed: tuple[str, ...]) -> Iterator[tuple[object, str]]:
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent) / name
                relative = str(path.relative_to(folder))
                if any(fnmatch.fnmatchcase(relative, pattern) for pattern in allowed):
                    continue
                try:
                    mode = stat.filemode(path.lstat().st_mode)
                except OSError:
                    continue
                yield path, f"{path} ({mode})"
