"""What a process has open to a broker: one session.

Owns its connections: the presence, whose end tells the broker that the process ended, and one for each thread that
calls. Never decides that the broker is gone, and opens no second session: that is for `connection`, which alone
imports it. Client side.
"""

from __future__ import annotations

import itertools
import logging
import os
import platform
import threading
import time
import weakref
from multiprocessing import util
from typing import Final

from mpbroker.errors import AccessRefused, TransportUnavailable
from mpbroker.process import frames
from mpbroker.process.channel import Channel, Ended, open_channel
from mpbroker.process.frames import Goodbye, Welcome
from mpbroker.process.handshake import HANDSHAKE_S, SESSION_BYTES
from mpbroker.process.holding import Holding
from mpbroker.process.lending import Exchange, Explain, Lending
from mpbroker.process.naming import Located, Transport
from mpbroker.shm.ring import is_known_machine
from mpbroker.shm.segment import NoSharedMemory, is_there

CONNECT_S: Final = 2 * HANDSHAKE_S
"""Seconds for a connection to be let in: the broker's own deadline, and as long to be noticed by it in a crowd."""

_REPLACE_S: Final = 2.0
"""Seconds that an interrupted call waits to undo itself; a person waits for its Ctrl-C."""

_GOODBYE_S: Final = 1.0

_log = logging.getLogger("mpbroker.client")


def _why_not(welcome: Welcome) -> str | None:
    """Why a channel cannot go through shared memory, as far as that is known before it is tried."""
    if not welcome.ring_bytes:
        return "the broker offers none (its ring_bytes is 0)"
    if not is_there():
        return "this system has no memfds, or passes no descriptors"
    if not is_known_machine():
        return f"the order of memory on {platform.machine() or 'this machine'} is not known"
    return None


class Session:
    """A session that is open: what the broker knows as one process.

    Attributes:
        number: 128 random bits, which every connection says in its hello.
        left: this process has let go of it, of its own will.
        is_another: it is of the process that this one was forked from.
        finalizer: says goodbye at exit.
        lending: its arena, once something was put there.
    """

    def __init__(self, located: Located, timeout_s: float, transport: Transport = Transport.AUTO) -> None:
        """Connect the presence. Raises what `open_channel` raises."""
        self.located: Final = located
        self._transport = transport
        self._deciding = threading.Lock()  # guards a change of _transport, so that one thread tells of it
        self.number: Final = os.urandom(SESSION_BYTES)
        self.left = False
        self.is_another = False
        self.finalizer: util.Finalize | None = None
        self._numbers = itertools.count(1)
        self._own = threading.local()
        self._channels: dict[int, weakref.ref[Channel]] = {}
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._holding: Holding | None = None
        self.lending: Lending | None = None
        self.presence: Final = self.connect("presence", timeout_s=timeout_s)
        self.welcome: Final[Welcome] = self.presence.welcome
        self._lends = bool(self.welcome.arena_threshold) and transport is not Transport.MANAGER and is_there()

    def connect(self, role: str, *, replaces: tuple[int, int] = (0, -1), timeout_s: float = CONNECT_S) -> Channel:
        """A new channel. replaces: the number of one that was interrupted, and the calls answered there.

        Raises TransportUnavailable, and what `open_channel` raises.
        """
        channel = self._opened(role, replaces, timeout_s)
        if role == "call" and self._wants_rings(channel):
            try:
                channel.share(timeout_s)
            except NoSharedMemory as error:
                channel.close()
                self._does_without(str(error), logging.WARNING)
                channel = self._opened(role, replaces, timeout_s)
            except BaseException:
                channel.close()
                raise
        # Without a way back to the session, so that what is let go of is closed at once.
        channels, number = self._channels, channel.number
        channels[number] = weakref.ref(channel, lambda _: channels.pop(number, None))
        return channel

    def _wants_rings(self, channel: Channel) -> bool:
        """Whether a new channel is to go through shared memory."""
        if self._transport is Transport.MANAGER:
            return False
        reason = _why_not(channel.welcome)
        if reason is None:
            return True
        if self._transport is Transport.RING:
            channel.close()
        # What stands so is nothing to warn of.
        self._does_without(reason, logging.INFO)
        return False

    def _does_without(self, reason: str, level: int) -> None:
        """Shared memory cannot be had: every channel from now on is a socket. Raises TransportUnavailable."""
        if self._transport is Transport.RING:
            raise TransportUnavailable("ring", reason) from None
        with self._deciding:
            is_told, self._transport = self._transport is Transport.MANAGER, Transport.MANAGER
        if not is_told:
            place = self.located.folder
            _log.log(level, "no shared memory with the broker in %s, calls go through its socket: %s", place, reason)

    def _opened(self, role: str, replaces: tuple[int, int], timeout_s: float) -> Channel:
        began = time.monotonic()
        try:
            return self._opened_once(role, replaces, timeout_s)
        except (AccessRefused, Ended):
            # A process that was stopped in the middle of its handshake was not let in, and that is not its fault.
            if time.monotonic() - began < HANDSHAKE_S:
                raise
        return self._opened_once(role, replaces, timeout_s)

    def _opened_once(self, role: str, replaces: tuple[int, int], timeout_s: float) -> Channel:
        return open_channel(
            self.located,
            role=role,
            session=self.number,
            number=next(self._numbers),
            replaces=replaces[0],
            answered=replaces[1],
            timeout_s=timeout_s,
        )

    @property
    def holding(self) -> Holding:
        """What it holds of others' memory."""
        if self._holding is None:
            # Nothing of it refers to the session: a view may outlive that.
            located, session, numbers = self.located, self.number, self._numbers

            def open_lane() -> Channel:
                number = next(numbers)
                return open_channel(located, role="lane", session=session, number=number, timeout_s=CONNECT_S)

            with self._deciding:
                self._holding = self._holding or Holding(open_lane)
        return self._holding

    def place(self, exchange: Exchange, explain: Explain) -> Lending | None:
        """Where large payloads are put, where that can be."""
        lending = self.lending
        if lending is None and self._lends:
            holding = self.holding
            with self._deciding:
                lending = self.lending = self.lending or Lending(holding, self.welcome, exchange, explain)
        return lending

    def take(self) -> Channel:
        """This thread's channel. It is away until `put`: a signal handler that calls in between gets another one."""
        own = self._own.__dict__
        channel: Channel | None = own.pop("channel", None)
        if channel is None:
            channel = self.connect("call", replaces=own.get("replaces", (0, -1)))
            own.pop("replaces", None)
            self._threads.add(threading.current_thread())
        return channel

    def put(self, channel: Channel) -> None:
        self._own.channel = channel

    def replace(self, channel: Channel) -> None:
        """Have the broker undo what it handed over on a channel that was interrupted, as noted there."""
        if self.is_another:
            channel.close()  # which the parent goes on with
            return
        # None may be left to the next call, which is to open the one that names this.
        self._own.__dict__.pop("channel", None)
        try:
            self.put(self.connect("call", replaces=self._own.replaces, timeout_s=_REPLACE_S))
            del self._own.replaces
        except Exception:  # noqa: BLE001 - the interruption is what the caller must see; the next call tries again
            util.debug("no connection in the place of an interrupted one")
        finally:
            channel.close()

    def leave(self) -> None:
        """Say goodbye and let go of everything; bounded, and never raises an Exception."""
        self.left = True
        if self.finalizer is not None:
            self.finalizer.cancel()
        try:
            self.presence.send(frames.encode(Goodbye()))
            self.presence.last_words(_GOODBYE_S)
        except Exception:  # noqa: BLE001 - a broker that is gone has released everything
            util.debug("no goodbye")
        self.end()

    def end(self) -> None:
        """Let go without a word: the broker is gone, or has let go of this process."""
        if self.finalizer is not None:
            self.finalizer.cancel()
        for channel in self._live():
            channel.stop()
        # The others close when their threads, which may be reading, let go of them.
        self.presence.close()
        own: Channel | None = self._own.__dict__.pop("channel", None)
        if own is not None:
            own.close()
        self.lending = None
        if self._holding is not None:
            self._holding.end()

    def forget(self) -> None:
        """In a forked child: close what is the parent's, and nothing more."""
        self.is_another = True
        for channel in self._live():
            channel.close()
        if self.finalizer is not None:
            self.finalizer.cancel()

    def others(self) -> list[threading.Thread]:
        """Threads that called, still run, and that the interpreter waits for before it ends."""
        current = threading.current_thread()
        return [t for t in list(self._threads) if t is not current and t.is_alive() and not t.daemon]

    def _live(self) -> list[Channel]:
        channels = [reference() for reference in list(self._channels.values())]
        return [channel for channel in channels if channel is not None]
