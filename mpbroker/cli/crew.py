"""Processes that play roles: started, listened to, told things, killed, and never left behind.

Owns the processes of stress and demo and the two pipes each has: what the process reports (it survives a SIGKILL of
its writer, up to the last whole report) and what it is told. Knows nothing of brokers. The child's side is in `link`.
"""

from __future__ import annotations

import multiprocessing
import os
import selectors
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Final, Self

from mpbroker.cli.exits import Interrupted
from mpbroker.cli.link import HEADER, Role, play

_READ_BYTES: Final = 256 * 1024
_LAST_STEPS_S: Final = 30.0
"""How long a process may take from its last report to its end."""


_AGAIN_S: Final = 0.1
"""From one strike of a limit to the next: a signal that comes just before a call begins to wait does not end it."""


class Member:
    """One process of a crew.

    Attributes:
        name: what reports and messages call it.
        exit_code: None while it runs; -9 for one that was killed.
        note: what it said last, for whoever asks what is stuck.
    """

    def __init__(self, name: str, process: BaseProcess, reports: Connection, orders: Connection):
        self.name = name
        self.process = process
        self.exit_code: int | None = None
        self.note = "starting"
        self._reports = reports
        self._orders = orders
        self._buffer = bytearray()

    @property
    def running(self) -> bool:
        """Whether its end was not seen yet."""
        return self.exit_code is None

    @property
    def ends(self) -> tuple[Connection, Connection]:
        """The crew's ends of the two pipes."""
        return self._reports, self._orders

    def tell(self, order: bytes) -> None:
        """Send it an order; one that has ended misses it."""
        try:
            self._orders.send_bytes(order)
        except OSError:
            pass

    def dismiss(self) -> None:
        """Close the orders: whoever waits for one learns that none will come."""
        self._orders.close()

    def kill(self) -> None:
        """SIGKILL, with no chance to say or finish anything."""
        self.process.kill()

    def fileno(self) -> int:
        return self._reports.fileno()

    def read(self) -> tuple[list[bytes], bool]:
        """What it reported meanwhile, and whether that was the last."""
        try:
            chunk = os.read(self._reports.fileno(), _READ_BYTES)
        except BlockingIOError:
            return [], False
        self._buffer += chunk
        reports = []
        at = 0
        while len(self._buffer) - at >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer, at)
            end = at + HEADER.size + length
            if end > len(self._buffer):
                break
            reports.append(bytes(self._buffer[at + HEADER.size : end]))
            at = end
        del self._buffer[:at]
        return reports, not chunk

    def bury(self) -> None:
        """Wait for the end of a process that said its last, a short time; then make it end."""
        self.process.join(_LAST_STEPS_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.exit_code = self.process.exitcode
        self.process.close()
        self._reports.close()
        self._orders.close()


class TimeUp(Exception):
    """Something took longer than it may. Args: text."""


class Interrupts:
    """SIGINT and SIGTERM as something that a loop looks at, instead of an exception anywhere.

    As a context manager it takes the signals, where that is possible (the main thread). `fileno` becomes readable
    when one came.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._read, self._write = os.pipe()
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise Interrupted when a signal came."""
        if self.signal is not None:
            raise Interrupted(self.signal)

    @contextmanager
    def limit(self, seconds: float, text: str) -> Iterator[None]:
        """Raise TimeUp in the block when it takes longer, even inside a call that does not return.

        Works in the main thread, and where there is SIGALRM; elsewhere the block has no limit.
        """
        if not self._before or not hasattr(signal, "setitimer"):
            yield
            return

        def time_up(_number: int, _frame: FrameType | None) -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise TimeUp(text)

        before = signal.signal(signal.SIGALRM, time_up)
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def fileno(self) -> int:
        return self._read

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            os.write(self._write, b"!")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # One that is ignored was ignored by whoever started this: nohup and shells do.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)


class Crew:
    """The processes of one run. As a context manager it ends all of them, whatever happened.

    Args:
        start_method: of multiprocessing; None: the platform's own.
        interrupts: what `events` looks at first.
    """

    def __init__(self, start_method: str | None, interrupts: Interrupts) -> None:
        self._context: BaseContext = multiprocessing.get_context(start_method)
        self._interrupts = interrupts
        self._selector = selectors.DefaultSelector()
        self._selector.register(interrupts, selectors.EVENT_READ, None)
        self.members: list[Member] = []
        self._closed = False

    def start(self, name: str, role: Role, *args: object) -> Member:
        """Start a process that plays a role; its arguments must pickle unless the method is fork."""
        reports, report = self._context.Pipe(duplex=False)
        order, orders = self._context.Pipe(duplex=False)
        inherited: list[Connection] = []
        if self.start_method == "fork":
            inherited = [reports, orders]
            for other in self.running:
                inherited += other.ends
        else:
            # When it starts by itself it lets held signals through.
            resource_tracker.ensure_running()
        process: BaseProcess = self._context.Process(  # type: ignore[attr-defined]
            target=play, name=name, args=(report, order, inherited, role, args), daemon=True
        )
        with _signals_held():
            process.start()
        # Held by nobody else from here on, so that the end of the process is the end of its reports.
        report.close()
        order.close()
        os.set_blocking(reports.fileno(), False)
        member = Member(name, process, reports, orders)
        self.members.append(member)
        self._selector.register(member, selectors.EVENT_READ, member)
        return member

    @property
    def start_method(self) -> str:
        """How its processes are started."""
        return self._context.get_start_method() or ""

    @property
    def running(self) -> list[Member]:
        """Those whose end was not seen yet."""
        return [member for member in self.members if member.running]

    def events(self, timeout: float) -> list[tuple[Member, bytes | None]]:
        """What was reported, in each process's own order; None is the end of a process.

        Waits up to ``timeout`` seconds for the first.

        Raises:
            Interrupted: a signal asked for the end.
        """
        self._interrupts.check()
        found = self._listen(timeout)
        self._interrupts.check()
        return found

    def _listen(self, timeout: float) -> list[tuple[Member, bytes | None]]:
        found: list[tuple[Member, bytes | None]] = []
        for key, _ in self._selector.select(timeout):
            member = key.data
            if member is None:
                continue  # a signal came; whoever asked for events learns of it
            reports, ended = member.read()
            found.extend((member, report) for report in reports)
            if ended:
                self._selector.unregister(member)
                member.bury()
                found.append((member, None))
        return found

    def kill(self) -> None:
        """SIGKILL all that still run."""
        for member in self.running:
            member.kill()

    def close(self, patience: float = 2.0) -> None:
        """End all that still run: nobody gets orders any more, and who does not leave is killed.

        Bounded; a signal that comes meanwhile changes nothing. Safe to call again.
        """
        if self._closed:
            return
        self._closed = True
        # One that came already would end every wait at once.
        self._selector.unregister(self._interrupts)
        for member in self.running:
            member.dismiss()
        deadline = time.monotonic() + patience
        while self.running and time.monotonic() < deadline:
            self._listen(max(0.0, deadline - time.monotonic()))
        self.kill()
        for member in self.running:
            self._selector.unregister(member)
            member.bury()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back while a process is started.

    The new process begins with them held and decides for itself before it lets them through; so
    Ctrl-C cannot interrupt an interpreter that is only starting, which would print a traceback.
    """
    mask = getattr(signal, "pthread_sigmask", None)
    if mask is None:
        yield
        return
    before = mask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        mask(signal.SIG_SETMASK, before)
