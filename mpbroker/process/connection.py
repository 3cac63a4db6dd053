"""This process as a client of one broker: every call is `exchange`, one frame out and one frame in.

Owns the client's life over sessions: it opens one at the first call, sees to fork (the child lets go and starts its
own), to exit (a goodbye, so that what was held is released uncounted), to calls that are interrupted and to the
broker's end. Client side.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Final, NoReturn, TypeVar, cast

from mpbroker.errors import (
    AccessRefused,
    BrokerGone,
    BrokerNotFound,
    MpbrokerError,
    PayloadTooLarge,
    ProtocolViolation,
)
from mpbroker.loans import Loan, empty_loan
from mpbroker.process import frames, peers
from mpbroker.process.channel import Channel, Ended, rebuild
from mpbroker.process.frames import Failed, Frame, Gone, Reply, Welcome
from mpbroker.process.lending import Lending, Unopened
from mpbroker.process.naming import OVERLOADED, Located, Transport, locate_at
from mpbroker.process.payloads import Place
from mpbroker.process.presence import CONNECT_S, Session

_END_S: Final = 1.0
"""Seconds from one connection's end to the others': a process that dies closes them one by one."""

_LOOK_S: Final = 0.01

_EXIT_PRIORITY: Final = 5
"""Of the goodbye at exit: after pools have ended their workers (15) and queues are flushed (10), before children are
joined and a manager ends its broker (below 0)."""

_BRINGING_PAYLOADS: Final = frozenset({frames.Publish, frames.Offer})

T = TypeVar("T")

Taker = Callable[[Reply], T]
"""Makes of a reply what the caller of a verb gets."""


class ClientProcess:
    """This process towards one incarnation of a broker; `client_process` gives the one there is.

    Thread-safe. Connects at the first call, and again at the first one after `close` or a fork.
    """

    def __init__(self, folder: Path, incarnation: str, transport: Transport = Transport.AUTO) -> None:
        self.folder: Final = folder
        self.incarnation: Final = incarnation
        self.transport: Final = transport
        self.witness: Callable[[], str | None] | None = None
        """Says how the broker process ended, where this process started it."""
        self._session: Session | None = None
        self._gone: str | None = None
        self._lock = threading.RLock()  # guards the opening and closing of the session
        self._attached: dict[type, object] = {}

    def exchange(self, request: Frame, take: Taker[T]) -> T:
        """Send a request, wait for its reply, for ever, and return what ``take`` makes of it.

        An exception out of the middle of it (Ctrl-C, a signal handler that raises, whatever ``take`` raises) undoes
        what the broker may hand over in the reply; then, too, the next call gets its own answer.

        Raises:
            BrokerGone: the broker ended, now or before. PayloadTooLarge: nothing was sent.
            And what the reply says has failed.
        """
        body = frames.encode(request)
        session = self._session or self.open()
        limit = session.welcome.max_frame_bytes
        if type(request) in _BRINGING_PAYLOADS:
            limit -= frames.ROOM_BYTES
        if len(body) > limit:
            raise PayloadTooLarge("this call", len(body), limit)
        try:
            channel = session.take()
        except (Ended, BrokerNotFound, AccessRefused) as error:
            self._ended(session, error)
        try:
            reply = channel.exchange(body)
            if type(reply) is Gone:
                raise Ended(reply)
            # Before the channel is back: a signal handler that calls in between must not take the place of this call
            # as the last one of its channel.
            failed = rebuild(reply) if type(reply) is Failed else None
            result = None if failed is not None else take(reply)
            session.put(channel)
            channel.answered += 1
        except Ended as error:
            channel.close()
            self._ended(session, error)
        except BaseException:
            # Noted before anything is called: after a second Ctrl-C here, too, the next call names this connection.
            session._own.replaces = (channel.number, channel.answered)
            session.replace(channel)
            raise
        # From here to the caller of the verb nothing is called: Python looks for signals where something is.
        if failed is not None:
            raise failed
        return result  # type: ignore[return-value]  # a cast is a call

    def administer(self, request: Frame) -> Reply:
        """exchange, on a connection that may stop the broker."""
        session = self.open()
        try:
            channel = session.connect("admin")
        except (Ended, BrokerNotFound) as error:
            self._ended(session, error)
        try:
            reply = channel.exchange(frames.encode(request))
        except Ended as error:
            self._ended(session, error)
        finally:
            channel.close()
        if type(reply) is Failed:
            raise rebuild(reply)
        return reply

    @property
    def welcome(self) -> Welcome:
        """What the broker said of itself; connects if need be."""
        return (self._session or self.open()).welcome

    def place(self) -> Place | None:
        """Where large payloads are put; None: they travel as they are. Connects for a large one alone."""
        return Unopened(self._lending) if self._session is None else self._lending()

    def _lending(self) -> Lending | None:
        session = self._session or self.open()
        return session.lending or session.place(
            lambda request: self.exchange(request, _as_it_is), lambda error: self._ended(session, error)
        )

    def loan(self, nbytes: int) -> Loan:
        """Memory to write a payload into: of the arena, where it is large and there is one."""
        place = self._lending()
        loan = place.loan(nbytes) if place is not None and nbytes >= place.threshold else None
        return empty_loan(nbytes) if loan is None else loan

    @property
    def session(self) -> Session | None:
        """The one that is open."""
        return self._session

    def explain(self, session: Session, error: Exception) -> NoReturn:
        """Raise what it means that a connection of a session ended, or did not come up.

        Raises:
            BrokerGone; AccessRefused: the session is over.
            ProtocolViolation: only this connection ended. Or the error itself: none came up.
        """
        self._ended(session, error)

    def attached(self, kind: type[T]) -> T:
        """The one object of a kind that goes with this client in this process; a forked child starts without."""
        found = self._attached.get(kind)
        if found is None:
            found = self._attached.setdefault(kind, kind())
        return cast("T", found)

    def open(self, located: Located | None = None, timeout_s: float = CONNECT_S) -> Session:
        """The session, connected now if there is none.

        Raises:
            BrokerGone: the broker ended, or another one has its place.
            BrokerNotFound: it does not answer. And what `open_channel` raises.
        """
        with self._lock:
            if self._gone is not None:
                raise BrokerGone(self._gone)
            if self._session is not None:
                return self._session
            if located is None:
                try:
                    located = locate_at(self.folder)
                except BrokerNotFound as error:
                    self._is_gone(self._how_it_ended(None) or error.args[2])
            if located.info.incarnation != self.incarnation:
                self._is_gone(f"another one runs in {self.folder} now; connect again")
            try:
                session = Session(located, timeout_s, self.transport)
            except (Ended, BrokerNotFound) as error:
                self._refused(error)
            session.finalizer = util.Finalize(None, self._leave_at_exit, args=(session,), exitpriority=_EXIT_PRIORITY)
            self._session = session
            _open[id(self)] = self
            return session

    def close(self) -> None:
        """Close this process's connections; what it holds is released, uncounted. Threads that wait get BrokerGone.

        The next call opens a new session. Bounded; any number of times.
        """
        with self._lock:
            session, self._session = self._session, None
            _open.pop(id(self), None)
        if session is not None:
            try:
                session.leave()
            except BaseException:
                # Interrupted, perhaps before the goodbye: without one, what it holds would count as a dead process's.
                session.leave()
                raise

    def retire(self, reason: str) -> None:
        """The broker ended, for the reason given: let go of everything; every call raises BrokerGone."""
        with self._lock:
            if self._gone is None:
                self._gone = reason
            session = self._session
        self._drop(session)

    def _leave_at_exit(self, session: Session) -> None:
        others = session.others()
        if others:
            # A child of multiprocessing exits while its threads still run; they finish what they hold.
            threading.Thread(target=self._leave_after, args=(session, others), name="mpbroker-goodbye").start()
        elif self._session is session:
            self.close()

    def _leave_after(self, session: Session, others: list[threading.Thread]) -> None:
        for thread in others:
            thread.join()
        if self._session is session:
            self.close()

    def _after_fork(self) -> None:
        session, self._session = self._session, None
        self._lock = threading.RLock()
        self._attached = {}
        self.witness = None
        if session is not None:
            session.forget()

    # -- the end of the broker ----------------------------------------------------------------------------------------

    def _refused(self, error: Exception) -> NoReturn:
        """No presence connection came up."""
        words = error.args[0] if isinstance(error, Ended) else None
        if words is not None:
            self._is_gone(_said(words))
        # Who waited for an answer in vain has waited long enough.
        is_late = isinstance(error, BrokerNotFound) and str(error.args[2]).endswith(OVERLOADED)
        if not self._lives(0.0 if is_late else _END_S):
            self._is_gone(self._how_it_ended(None))
        if isinstance(error, Ended):
            raise AccessRefused("it closed the connection without a word") from None
        raise error

    def _ended(self, session: Session, error: Exception) -> NoReturn:
        """A connection ended, or none came up or was let in: raise what that means."""
        if session.left and self._gone is None:
            _wait_for_exit()
            raise BrokerGone("this process closed its connections to it, while or before this call ran") from None
        words = error.args[0] if isinstance(error, Ended) else None
        with self._lock:
            if self._gone is not None:
                raise BrokerGone(self._gone) from None
            if words is None:
                try:
                    words = session.presence.last_words(_END_S)
                except TimeoutError:
                    # The broker lives: it ended this one connection, or took none.
                    if isinstance(error, Ended):
                        raise ProtocolViolation("the broker closed the connection of this call") from None
                    raise error from None
            if words is None and self._lives():
                self._drop(session)
                reason = (
                    "the broker took this process for dead, and what it held went back; the next call connects again"
                )
                raise AccessRefused(reason) from None
            self._is_gone(_said(words) if words is not None else self._how_it_ended(session))

    def _is_gone(self, reason: str | None) -> NoReturn:
        self.retire(reason or "its process ended without a word")
        raise BrokerGone(self._gone) from None

    def _drop(self, session: Session | None) -> None:
        with self._lock:
            if self._session is session:
                self._session = None
                _open.pop(id(self), None)
        if session is not None:
            session.end()

    def _lives(self, wait_s: float = _END_S) -> bool:
        """Whether the broker is still there a moment after a connection ended: a dying process closes many things."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                if locate_at(self.folder).info.incarnation != self.incarnation:
                    return False
            except MpbrokerError:
                return False
            if time.monotonic() >= deadline:
                return True
            time.sleep(_LOOK_S)

    def _how_it_ended(self, session: Session | None) -> str | None:
        """What this process can find out about a broker that left no word."""
        status = self.witness() if self.witness is not None else None
        if status is None and session is not None:
            status = _exit_status(session.presence)
        return None if status is None else f"its process ended ({status})"


# -- the clients of this process --------------------------------------------------------------------------------------

_registry = threading.Lock()  # guards _known
_known: weakref.WeakValueDictionary[tuple[str, str, Transport], ClientProcess] = weakref.WeakValueDictionary()
_open: dict[int, ClientProcess] = {}
"""Those with a session: it lasts until close or exit, whatever becomes of the proxies."""


def client_process(folder: str, incarnation: str, transport: Transport = Transport.AUTO) -> ClientProcess:
    """This process's client of a broker; makes it, and connects to nobody."""
    _see_to_forks()
    key = (folder, incarnation, transport)
    with _registry:
        client = _known.get(key)
        if client is None:
            client = _known[key] = ClientProcess(Path(folder), incarnation, transport)
        return client


@functools.cache
def _see_to_forks() -> None:
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(after_in_child=_let_go)


def _let_go() -> None:
    """In a forked child, also one of a process with many threads: takes no lock that one of them may have had."""
    global _registry  # noqa: PLW0603 - a lock that another thread held at the fork stays locked for ever
    _registry = threading.Lock()
    _open.clear()
    for reference in _known.valuerefs():
        # Those without a session, too: one may be opened at this moment, under the client's lock.
        client = reference()
        if client is not None:
            client._after_fork()


def _as_it_is(reply: Reply) -> Reply:
    return reply


def _said(words: Gone) -> str:
    return f"it crashed:\n{words.reason}" if words.crashed else words.reason


def _exit_status(presence: Channel) -> str | None:
    try:
        pidfd = peers.peer_pidfd(presence.sock)
    except OSError:
        return None
    if pidfd is None:
        return None
    try:
        peers.has_ended(pidfd, _END_S)
        return peers.exit_status(pidfd)
    finally:
        os.close(pidfd)


def _wait_for_exit() -> None:
    """A daemon thread whose process is exiting stops here, as it would anywhere else in Python a moment later."""
    if util.is_exiting() and threading.current_thread().daemon:
        threading.Event().wait()
