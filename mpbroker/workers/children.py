"""The supervisor's hand on one worker process: started, told to stop, stopped dead, reaped with what it left behind.

Owns the fork and the process group. A worker leads a group of its own, so that what a handler started and left ends
with it. Knows no broker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from mpbroker.workers.board import Slot, State
from mpbroker.workers.config import PoolConfig
from mpbroker.workers.figures import WorkerStats
from mpbroker.workers.looking import Meter, worker_stats
from mpbroker.workers.worker import member_name, run

_STOPPED_S: Final = 1.0
"""How long SIGSTOP may take: a process in the kernel's hands (a slow disk) stops when it comes back from there."""

_LOOK_S: Final = 0.001


class Child:
    """One worker process.

    Attributes:
        serial: no other worker of the pool has it.
        is_ready: it has said that it works.
        stop_by: when it is ended by force; None while it may go on.
        events: where the kernel counts kills for want of memory in its control group.
        verdict: why the supervisor ends it, for the record of deaths; None: it does not, or in good order.
    """

    def __init__(
        self,
        config: PoolConfig,
        serial: int,
        slots: list[Slot],
        share: int | None,
        inherited: list[Callable[[], None]],
    ) -> None:
        self.serial: Final = serial
        self.slots: Final = slots
        self.started: Final = time.monotonic()
        self.is_ready = False
        self.stop_by: float | None = None
        self.verdict: str | None = None
        self.events: Path | None = None
        self.last_words = ""
        self.cause: Any = None
        for slot in slots:
            slot.starting(serial)
        self.notices, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=_lead, args=(config, serial, slots, share, theirs, [*inherited, self.notices.close], os.getpid())
        )
        # It must not run the supervisor's handlers.
        blocked = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        self._process = process
        assert process.pid is not None
        self.pid: Final[int] = process.pid
        for slot in slots:
            slot.started(self.pid)
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)  # here, too: whoever comes first
        self._meter = Meter(self.pid)

    def reap(self) -> int | None:
        """The exit code of one that ended (negative: a signal); what it started and left is killed. None: it runs."""
        try:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
        except ChildProcessError:
            pass
        # Before it is reaped its number is nobody else's.
        self._signal_group(signal.SIGKILL)
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        return -signal.SIGKILL if code is None else code

    def stop(self, by: float) -> None:
        """Have it end after the message that it works on, and by force at a time."""
        for slot in self.slots:
            slot.stop()
        self.stop_by = by if self.stop_by is None else min(by, self.stop_by)
        self.nudge()

    def nudge(self) -> None:
        """Wake it where it waits, to see that it is to stop; a handler that runs is not disturbed.

        To be called again and again: a signal that comes right before a call of the system that waits does not end it.
        """
        if any(slot.look().state is State.IDLE for slot in self.slots):
            with suppress(OSError):
                os.kill(self.pid, signal.SIGTERM)

    def halt(self) -> None:
        """Stop it where it is, it and what it started, so that nothing of it goes on while its messages are moved."""
        self._signal_group(signal.SIGSTOP)
        deadline = time.monotonic() + _STOPPED_S
        wanted = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            while os.waitid(os.P_PID, self.pid, wanted) is None and time.monotonic() < deadline:
                time.sleep(_LOOK_S)

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)

    def stats(self, pool: str, threads: int) -> list[WorkerStats]:
        """Of each of its threads."""
        used = self._meter.read()
        return [
            worker_stats(slot, used, member_name(pool, self.serial, number, threads))
            for number, slot in enumerate(self.slots)
        ]

    def _signal_group(self, number: int) -> None:
        with suppress(OSError):
            os.killpg(self.pid, number)
        with suppress(OSError):
            os.kill(self.pid, number)  # where it has no group yet


def _lead(*arguments: Any) -> None:
    with suppress(OSError):
        os.setpgid(0, 0)
    run(*arguments)
