"""The client processes that are watched until they end, and how they did.

Owns a pidfd of each, by its session. For the loop.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path

from mpbroker.process import peers
from mpbroker.process.memory import Shortage, events_of


class Watches:
    """See the module. selector: calls what is registered when the process has ended."""

    def __init__(self, selector: selectors.BaseSelector, clock: Callable[[], float]) -> None:
        self._selector = selector
        self._shortage = Shortage(clock)
        self._processes: dict[bytes, tuple[int, Path | None]] = {}

    def add(self, session: bytes, sock: socket.socket, ended: Callable[[int], None]) -> None:
        """Watch the peer of a socket, where that can be."""
        pidfd = peers.peer_pidfd(sock)
        if pidfd is None:
            return
        events = events_of(peers.peer_pid(sock))
        self._shortage.watch(events)
        self._processes[session] = pidfd, events
        self._selector.register(pidfd, selectors.EVENT_READ, ended)

    def __contains__(self, session: bytes) -> bool:
        return session in self._processes

    def has_ended(self, session: bytes) -> bool:
        return peers.has_ended(self._processes[session][0], 0.0)

    def how(self, session: bytes) -> str | None:
        """How one that has ended did; None: nothing tells."""
        pidfd, events = self._processes[session]
        return self._shortage.in_words(peers.exit_status(pidfd), events)

    def remove(self, session: bytes) -> None:
        if session in self._processes:
            pidfd, _ = self._processes.pop(session)
            self._selector.unregister(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        for pidfd, _ in self._processes.values():
            os.close(pidfd)
