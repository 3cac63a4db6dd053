"""Waiting for the end of a process that is not a child of this one."""

from __future__ import annotations

import os
import select
from types import TracebackType
from typing import Self

import psutil


class Ending:
    """The end of the process that has that pid now; as a context manager it lets go of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd: int | None = None
        self._process: psutil.Process | None = None
        opener = getattr(os, "pidfd_open", None)
        try:
            if opener is not None:
                self._pidfd = opener(pid)
            else:
                self._process = psutil.Process(pid)
        except (OSError, psutil.Error):
            pass  # it has ended already

    def wait(self, timeout: float) -> bool:
        """Wait for it; False when ``timeout`` seconds passed first."""
        if self._pidfd is not None:
            readable, _, _ = select.select([self._pidfd], [], [], timeout)
            return bool(readable)
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except psutil.TimeoutExpired:
                return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
