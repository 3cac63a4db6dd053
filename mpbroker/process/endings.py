"""What ends a broker besides a client's word: signals, and the end of the process that started it.

Owns the descriptors by which the loop's selector learns of it. For the loop.
"""

from __future__ import annotations

import selectors
import signal
import socket
from contextlib import suppress
from functools import partial
from typing import Final

from mpbroker.process import peers

_READ: Final = selectors.EVENT_READ

HOW_S: Final = 0.05
"""Seconds to learn how a process ended after its socket did: the kernel closes a process's files a moment before it
shows its exit."""


class Endings:
    """Attributes:
    reason: why the broker is to end; None while it is not.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """selector: gives the callables that are registered here the events of each."""
        self.reason: str | None = None
        self._selector = selector
        self._own: list[socket.socket] = []

    def on_signals(self, *signals: signal.Signals) -> None:
        """End cleanly when one of them comes. For the main thread, once a process."""
        woken, wake = socket.socketpair()
        woken.settimeout(0.0)
        wake.settimeout(0.0)
        self._own += (woken, wake)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, _READ, partial(self._signalled, woken))
        for each in signals:
            signal.signal(each, lambda *_: None)

    def with_creator(self, lifeline: socket.socket, pidfd: int | None) -> None:
        """End when the process at the other end says so or is gone."""
        lifeline.settimeout(0.0)
        self._selector.register(lifeline, _READ, partial(self._said, lifeline, pidfd))
        if pidfd is not None:
            self._selector.register(pidfd, _READ, partial(self._creator_ended, pidfd))

    def close(self) -> None:
        """Let go of its own sockets."""
        if self._own:
            signal.set_wakeup_fd(-1)
        for sock in self._own:
            sock.close()

    def _signalled(self, woken: socket.socket, _events: int) -> None:
        with suppress(BlockingIOError):
            for number in woken.recv(256):
                if number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", 0)):
                    self.reason = f"it was stopped by {signal.Signals(number).name}"

    def _said(self, lifeline: socket.socket, pidfd: int | None, _events: int) -> None:
        try:
            said = lifeline.recv(16)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said:
            self.reason = "its manager shut it down"
        elif pidfd is not None and peers.has_ended(pidfd, HOW_S):
            self._creator_ended(pidfd, 0)
        else:
            self.reason = "the process that started it let go of it or ended"

    def _creator_ended(self, pidfd: int, _events: int) -> None:
        if self.reason is None:
            how = peers.exit_status(pidfd)
            self.reason = f"the process that started it ended{f' ({how})' if how else ''}"
