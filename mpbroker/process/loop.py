"""The one loop of the broker process: it moves bytes, and decides nothing.

Owns the sockets, the descriptors of watched processes, the signals and the waiting. What comes in becomes an event of
`sessions`, and what that answers is carried out in order; times are waited for exactly, without a polling interval.
One thread. Each connection gets one read and a bounded number of calls a turn, so that a flood starves nobody.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final

from mpbroker.errors import CallFailed, ProtocolViolation
from mpbroker.process import frames
from mpbroker.process.doors import Doors, Exhausted
from mpbroker.process.effects import Close, Effect, Hold, Send, Share, Unwatch, Watch
from mpbroker.process.endings import HOW_S, Endings
from mpbroker.process.failures import failure
from mpbroker.process.frames import Done, Gone, Reply, Welcome
from mpbroker.process.link import READ_BYTES, Closed, Link
from mpbroker.process.pace import Pace
from mpbroker.process.rings import Rings
from mpbroker.process.sessions import Sessions
from mpbroker.process.transit import Transit
from mpbroker.process.watches import Watches
from mpbroker.shm.link import accept
from mpbroker.shm.segment import NoSharedMemory

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE

_ACCEPTS: Final = 64
"""Connections accepted a turn: a start of many is soon served, and others are served in between."""

_CALLS: Final = 32
"""Calls of one connection a turn. Clients have one out at a time; this bounds those that do not wait."""

_LONGEST_S: Final = 86_400.0
"""Seconds the selector waits at most; its own argument has a bound."""

_LOOK_S: Final = 0.005
"""Seconds between looks at whether there is room for last words."""

_FULL_PAUSE_S: Final = 1.0
"""Seconds until accepting is tried again when descriptors ran out and no connection of ours closed."""

_LINGER_S: Final = 5.0
"""Seconds a connection that is to be closed waits for its peer to read what was sent."""

_BOTH: Final = _READ | _WRITE

_FAREWELL_S: Final = 0.2
"""Seconds for last words to leave; the broker's end must be seen within a second."""

_log = logging.getLogger("mpbroker.loop")


class Loop:
    """The loop of one broker. `run` returns when the broker is to end, having told everybody.

    Args:
        release: called before anybody is told, once no more connections are accepted.
    """

    def __init__(
        self,
        sessions: Sessions,
        listener: socket.socket,
        *,
        release: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions = sessions
        self._doors = Doors(listener)
        self._release = release
        self._clock = Pace(clock)
        self._selector = selectors.DefaultSelector()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._links: dict[int, Link] = {}
        self._next_number = 1
        self._watches = Watches(self._selector, self._clock)
        self._rings = Rings(self._clock)
        self._busy: dict[int, Link] = {}  # have calls left over from a turn
        self._leaving: dict[int, float] = {}  # connections that get closed, and when at the latest
        self._accepts_at: float | None = None  # when accepting goes on, while it is paused
        self._transit = Transit(sessions.limits)
        self.endings = Endings(self._selector)
        self._selector.register(listener, _READ, self._accept)

    # -- turns --------------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Serve until something ends the broker; returns the reason.

        A defect ends it too: everybody is sent the traceback, and the exception propagates.
        """
        try:
            while (reason := self.endings.reason) is None:
                self._turn()
            self._farewell(reason, crashed=False)
        except BaseException:
            _log.critical("the broker crashed", exc_info=True)
            self._farewell(traceback.format_exc(), crashed=True)
            raise
        finally:
            self._close_all()
        return reason

    def _turn(self) -> None:
        timeout_s = self._timeout()
        # After what came to be due, too, and before the sleep: no bell waits for the next turn.
        self._rings.wake()
        for key, events in self._selector.select(timeout_s):
            target = key.data
            if type(target) is not Link:
                target(events)
            elif target.ring is None:
                self._serve(target, events)
            elif target.number in self._links:  # or it went with another one in this very turn
                self._rings.rung(target, target.ring)
        if self._rings.are_busy:
            self._rings.look(lambda link: self._serve(link, _BOTH))
        if self._busy:
            busy, self._busy = self._busy, {}
            for link in busy.values():
                self._work(link)

    def _timeout(self) -> float | None:
        """Do what is due; the seconds until the next thing is."""
        clock = self._clock
        due = self._sessions.next_due()
        # Before the time is looked at: what came to be due in this turn counts, too.
        clock.due = inf if due is None else due
        if self._transit.frames:
            clock.due = min(clock.due, self._transit.first())
        if due is not None and due <= clock():
            self._apply(self._sessions.tick(clock()))
            due = self._sessions.next_due()
            clock.due = inf if due is None else due
        if self._leaving or self._transit.frames or self._accepts_at is not None:
            due = clock.due = self._look_at_times()
        if self._busy or self._rings.are_busy or self.endings.reason is not None:
            return 0.0
        return None if due is None else min(max(0.0, due - clock()), _LONGEST_S)

    def _look_at_times(self) -> float:
        """The same with the times of the loop's own."""
        now = self._clock()
        for number in [number for number, when in self._leaving.items() if when <= now]:
            link = self._links[number]
            if link.session:
                self._closed(link)
            else:
                self._drop(link)
        for link in self._transit.overdue(now):
            self._cut(link)
        if self._accepts_at is not None and self._accepts_at <= now:
            self._go_on_accepting()
        due = self._sessions.next_due()  # again: what a process held that ended just now may be due before all else
        times = [*self._leaving.values(), self._transit.first(), now + _LONGEST_S]
        times += [each for each in (due, self._accepts_at) if each is not None]
        return min(times)

    def _cut(self, link: Link) -> None:
        """The frame that is under way on a connection takes too long."""
        self._transit.done(link)
        if link.number not in self._links:
            return  # it went with another one
        if link.unsent:
            _log.warning("connection %d does not read its replies and is cut", link.number)
            self._closed(link)
        else:
            reason = "a request was not complete in the broker's frame_timeout"
            self._apply(self._sessions.violated(link.number, reason, self._clock()))

    # -- connections --------------------------------------------------------------------------------------------------

    def _accept(self, _events: int) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock = self._doors.accept()
            except Exhausted:
                self._selector.unregister(self._doors.listener)
                self._accepts_at = self._clock() + _FULL_PAUSE_S
                return
            if sock is None:
                return
            link = Link(sock, self._next_number)
            self._next_number += 1
            self._links[link.number] = link
            self._look_for(link, _READ)
            self._apply(self._sessions.opened(link.number, self._clock()))

    def _go_on_accepting(self) -> None:
        if self._accepts_at is not None:
            self._accepts_at = None
            self._selector.register(self._doors.listener, _READ, self._accept)

    def _serve(self, link: Link, events: int) -> None:
        if link.events & events & _WRITE and link.flush():
            self._written(link)
        if link.events & events & _READ and not link.pending:
            try:
                bodies = link.read(self._buffer)
            except Closed:
                self._ended(link)
                return
            except ProtocolViolation as error:
                self._apply(self._sessions.violated(link.number, error.args[0], self._clock()))
                return
            if link.held:
                link.pending.extend(bodies)
                self._read_no_more(link)
                return
            if link.begun:
                self._transit.comes(link, self._clock(), anew=bool(bodies))
            elif self._transit.frames:
                self._transit.done(link)
            if len(bodies) == 1 and not link.unsent:
                self._bring(link, bodies[0])
            elif bodies:
                link.pending.extend(bodies)
                self._work(link)

    def _work(self, link: Link) -> None:
        """Bring what was read to sessions, as long as the peer takes the answers."""
        left = _CALLS
        pending = link.pending
        while pending and not link.unsent and not link.held and link.number not in self._leaving:
            if not left:
                self._busy[link.number] = link
                return
            left -= 1
            self._bring(link, pending.popleft())

    def _bring(self, link: Link, body: bytes | memoryview) -> None:
        self._apply(self._sessions.received(link.number, body, self._clock()))
        if link.descriptor >= 0:
            os.close(link.take_descriptor())  # it came with something else than was asked for

    def _ended(self, link: Link) -> None:
        """The peer closed, or reading failed."""
        if link.session not in self._watches:
            self._closed(link)
        elif self._watches.has_ended(link.session):
            self._report_end(link.session)
        else:
            # It ends at this moment, or let go of its presence; which of them, a moment later tells.
            self._look_for(link, 0)
            self._leaving[link.number] = self._clock() + HOW_S

    def _closed(self, link: Link) -> None:
        unsent = link.unsent > 0
        self._drop(link)
        self._apply(self._sessions.closed(link.number, self._clock(), unsent=unsent))

    def _process_ended(self, session: bytes, presence: int, _events: int) -> None:
        link = self._links.get(presence)
        if link is not None and link.events & _READ:
            # A goodbye may still be in the socket.
            self._serve(link, _READ)
        self._report_end(session)

    def _report_end(self, session: bytes) -> None:
        if session in self._watches:
            self._apply(self._sessions.process_ended(session, self._watches.how(session), self._clock()))

    def _drop(self, link: Link) -> None:
        self._look_for(link, 0)
        self._links.pop(link.number, None)
        self._busy.pop(link.number, None)
        self._leaving.pop(link.number, None)
        self._transit.done(link)
        self._rings.forget(link)
        link.pending.clear()
        link.close()
        self._go_on_accepting()

    def _look_for(self, link: Link, events: int) -> None:
        if events == link.events:
            return
        before, link.events = link.events, events
        if link.ring is not None:
            # Whatever goes through its ring, its socket brings the bell; what that rings for is another thing now.
            before, events = before and _READ, events and _READ
            self._rings.look_at(link)
        if before == events:
            return
        if not before:
            self._selector.register(link.sock, events, link)
        elif not events:
            self._selector.unregister(link.sock)
        else:
            self._selector.modify(link.sock, events, link)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                link = self._links.get(effect.connection)
                if link is not None:
                    self._send(link, effect.reply)
            elif isinstance(effect, Hold):
                self._hold(self._links[effect.connection])
            elif isinstance(effect, Close):
                link = self._links.get(effect.connection)
                if link is not None:
                    self._close(link)
            elif isinstance(effect, Watch):
                self._watch(effect.connection, effect.session)
            elif isinstance(effect, Unwatch):
                self._watches.remove(effect.session)
            elif isinstance(effect, Share):
                self._share(self._links[effect.connection], effect.ring_bytes)
            else:
                self.endings.reason = effect.reason

    def _hold(self, link: Link) -> None:
        """A publish waits for room: what is behind it waits too, read and unread."""
        link.held = True
        self._read_no_more(link)

    def _read_no_more(self, link: Link) -> None:
        """While a publish waits its connection is read from only to see its end. Once something else came, that stays
        where it is, so that no more than one read waits here; it is not under way, for it is the broker that waits."""
        if link.pending or link.begun:
            self._transit.done(link)
            self._look_for(link, 0)

    def _go_on(self, link: Link) -> None:
        """The publish is answered."""
        link.held = False
        if link.number in self._leaving:
            return
        if link.begun:
            self._transit.comes(link, self._clock(), anew=True)
        if link.pending:
            self._busy[link.number] = link
        self._look_for(link, _READ)

    def _send(self, link: Link, reply: Reply) -> None:
        if type(reply) is Welcome:
            link.limit = self._sessions.frame_limit(link.number)
            link.brings = reply.ring_bytes > 0
        try:
            body = frames.encode(reply)
        except Exception as error:  # noqa: BLE001 - an answer that cannot be written is one call's trouble, not the broker's
            _log.exception("an answer to connection %d cannot be encoded", link.number)
            body = frames.encode(failure(CallFailed(f"its answer cannot be encoded: {error}")))
        if link.held:
            self._go_on(link)
        if link.ring is not None:
            self._rings.touched(link)
        if not link.write(body):
            # Whoever does not read is not read from either, so what waits for one peer stays bounded.
            self._look_for(link, _WRITE)
            self._transit.waits(link, self._clock())

    def _share(self, link: Link, ring_bytes: int) -> None:
        """Go on in shared memory; the answer to that is the last thing that goes through the socket."""
        try:
            ring = accept(link.sock, link.take_descriptor(), ring_bytes, frames.framed(frames.encode(Done())))
        except NoSharedMemory as error:
            _log.info("connection %d stays with its socket: %s", link.number, error)
            self._apply(self._sessions.unshared(link.number, str(error)))
        except OSError:
            self._closed(link)
        else:
            link.goes_through(ring)
            self._rings.look_at(link)

    def _written(self, link: Link) -> None:
        self._transit.done(link)
        if link.begun:
            self._transit.comes(link, self._clock(), anew=True)
        if link.number in self._leaving:
            self._drop(link)
        else:
            self._look_for(link, _READ)
            self._work(link)

    def _close(self, link: Link) -> None:
        link.session = b""
        if link.unsent:
            self._look_for(link, _WRITE)
            self._leaving[link.number] = self._clock() + _LINGER_S
        else:
            self._drop(link)

    def _watch(self, connection: int, session: bytes) -> None:
        link = self._links[connection]
        link.session = session
        self._watches.add(session, link.sock, partial(self._process_ended, session, connection))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _farewell(self, reason: str, *, crashed: bool) -> None:
        """Send the last words to everybody, within a bounded time."""
        self._clock.due = inf
        words = frames.encode(Gone(reason[-frames.ROOM_BYTES // 2 :], crashed))
        with suppress(KeyError, ValueError):
            self._selector.unregister(self._doors.listener)
        self._doors.close()
        self._release()
        for link in self._links.values():
            with suppress(OSError):
                link.write(words)
        deadline = self._clock() + _FAREWELL_S
        slow = [link for link in self._links.values() if link.unsent]
        while slow and self._clock() < deadline:
            for link in slow:
                self._look_for(link, _WRITE)
                if link.ring is not None:
                    link.ring.wake()
            self._selector.select(min(_LOOK_S, deadline - self._clock()))
            for link in slow:
                if link.flush():
                    self._look_for(link, 0)
            slow = [link for link in slow if link.unsent]

    def _close_all(self) -> None:
        self.endings.close()
        for link in self._links.values():
            link.close()
        self._watches.close()
        self._doors.close()
        self._selector.close()
