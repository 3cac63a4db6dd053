"""What another process used: memory and processor time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of memory now and at most, and seconds of processor time."""

    pid: int = 0
    memory: int = 0
    peak_memory: int = 0
    cpu_s: float = 0.0

    def as_dict(self) -> dict[str, int | float]:
        return asdict(self)


class UsageMeter:
    """Reads what a process has used since it started; where the system keeps no peak, the most that was read."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._most = 0

    def read(self) -> Usage:
        """Right now. Zeros when the process is gone."""
        try:
            memory = int(self._process.memory_info().rss)
            times = self._process.cpu_times()
        except psutil.Error:
            return Usage(self._process.pid)
        self._most = max(self._most, memory, self._kernel_peak())
        return Usage(self._process.pid, memory, self._most, times.user + times.system)

    def _kernel_peak(self) -> int:
        try:
            for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        except (OSError, ValueError, IndexError):
            pass
        return 0
