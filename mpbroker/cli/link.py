"""A role's own side of the pipes to the crew it belongs to.

Owns how a process of a crew begins and ends: signals, its last words, its exit code. Imports little, since every such
process loads it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any, Final

from mpbroker.errors import BrokerGone

HEADER: Final = struct.Struct("<I")
"""In front of every report: its length in bytes."""

LAST_WORDS: Final = b"!"
"""How a report begins that is the traceback of a role which failed; no other report begins so."""

ABANDONED: Final = 3
"""Exit code of a role whose broker or crew went away before it was done."""


class CrewGone(Exception):
    """The process that started this one is not there any more, or gives no more orders."""


class Link:
    """What a role reports, and what it is told."""

    def __init__(self, reports: Connection, orders: Connection) -> None:
        self._reports = reports
        self._orders = orders

    def report(self, body: bytes) -> None:
        """Hand a report to the crew; once this returned it arrives, even if this process is killed.

        Waits while the pipe is full. Raises CrewGone.
        """
        frame = memoryview(HEADER.pack(len(body)) + body)
        try:
            while frame:
                frame = frame[os.write(self._reports.fileno(), frame) :]
        except OSError as error:
            raise CrewGone from error

    def order(self) -> bytes:
        """The next order; waits for it. Raises CrewGone when none will come."""
        try:
            return self._orders.recv_bytes()
        except (EOFError, OSError) as error:
            raise CrewGone from error

    def has_order(self) -> bool:
        """Whether an order waits; or none will come, which `order` then says. Never waits."""
        try:
            return self._orders.poll()
        except OSError:
            return True


Role = Callable[..., None]
"""What a process does: a function of a module, called with its Link and the arguments it was started with."""


def play(
    reports: Connection, orders: Connection, inherited: Iterable[Connection], role: Role, args: tuple[Any, ...]
) -> None:
    """What every process of a crew runs.

    Args:
        inherited: the crew's own ends of pipes, which a forked process has, too: held here, they would never end.
    """
    _decide_signals()
    for end in inherited:
        end.close()
    link = Link(reports, orders)
    code = 0
    try:
        role(link, *args)
    except (BrokerGone, CrewGone):
        code = ABANDONED
    except Exception:  # noqa: BLE001 - the crew is told, with the traceback
        code = 1
        try:
            link.report(LAST_WORDS + traceback.format_exc().encode("utf-8", "backslashreplace"))
        except CrewGone:
            pass
    finally:
        reports.close()
        orders.close()
    sys.exit(code)


def _decide_signals() -> None:
    """Ctrl-C reaches every process of a terminal: the crew's own end is in order, so this one waits for that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    mask = getattr(signal, "pthread_sigmask", None)
    if mask is not None:
        mask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    register = getattr(faulthandler, "register", None)
    if register is not None:
        register(signal.SIGUSR1, file=2, chain=False)
