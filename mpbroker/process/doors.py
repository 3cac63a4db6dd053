"""Where connections come in: who is accepted, and what a client hears when descriptors are out.

Owns the listening socket and one spare descriptor. The user at the other end is looked at before a byte is read. When
the process has no descriptor left, the spare one serves to accept whoever comes, tell it so and let go of it: nobody
waits for an answer that will not come, and those who are connected notice nothing. For the loop.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from contextlib import suppress
from typing import Final

from mpbroker.errors import LimitReached
from mpbroker.process import frames, peers
from mpbroker.process.failures import failure
from mpbroker.process.private import user_id

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NO_ROOM: Final = _NO_DESCRIPTOR | {errno.ENOBUFS, errno.ENOMEM}

_NOBODY: Final = (BlockingIOError, InterruptedError, ConnectionAbortedError)
"""What accept raises when nobody waits (any more)."""

_TURNS_AWAY: Final = 64
"""Connections turned away at once: others are served in between."""

_log = logging.getLogger("mpbroker.loop")


class Exhausted(Exception):
    """Nobody can be accepted, not even to be turned away: the loop has to leave the listener alone for a while."""


class Doors:
    """The listener, which is not blocking from now on."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener: Final = listener
        self._spare = -1
        listener.settimeout(0.0)
        self._keep_spare()

    def accept(self) -> socket.socket | None:
        """The next connection of this user; None when nobody waits to be accepted.

        Turns away others, and everybody while there is no descriptor. Raises Exhausted.
        """
        for _ in range(_TURNS_AWAY):
            try:
                sock, _address = self.listener.accept()
            except _NOBODY:
                return None
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                try:
                    self._turn_away(error)
                except _NOBODY:
                    return None
                continue
            uid = peers.peer_uid(sock)
            if uid is None or uid == user_id():
                sock.settimeout(0.0)
                return sock
            _log.warning("a connection of user %d was refused", uid)
            sock.close()
        return None

    def close(self) -> None:
        self.listener.close()
        self._drop_spare()

    def _turn_away(self, error: OSError) -> None:
        """Tell the next one that there is no descriptor. Raises Exhausted, and what accept does when nobody waits."""
        self._keep_spare()
        if error.errno not in _NO_DESCRIPTOR or self._spare < 0:
            # The listener would be ready again at once, for ever.
            _log.warning("no room for another connection: %s", error)
            raise Exhausted
        self._drop_spare()
        try:
            sock, _address = self.listener.accept()
        except OSError as again:
            if again.errno not in _NO_ROOM:
                raise
            raise Exhausted from None
        else:
            with sock:
                if peers.peer_uid(sock) in {None, user_id()}:
                    _log.warning("a connection was turned away: no descriptors left")
                    body = frames.encode(failure(LimitReached("open files", _most_files(), "a larger `ulimit -n`")))
                    sock.settimeout(0.0)
                    with suppress(OSError):
                        sock.send(len(body).to_bytes(frames.HEADER_BYTES, "little") + body)
        finally:
            self._keep_spare()

    def _drop_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _keep_spare(self) -> None:
        if self._spare < 0:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))


def _most_files() -> int:
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
