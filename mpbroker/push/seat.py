"""The seat of a dispatcher at its subscription: taken once, used by one thread at a time, left when
asked.

Owns the attachment to the subscription, the turns of those who use it, and how close() meets a turn
that runs. Never calls a subscriber. Imports the value modules only.

A close finds a turn in one of two states. While a subscriber is called, or between polls, the turn
only learns that it is to stop, and leaves the seat itself at its end. While it polls it may wait for
ever, so the close leaves the seat at once, and that ends the poll.

Ctrl-C may come between any two steps. Turns say themselves that they have ended, as the very last
thing and without a call, so that none is taken for running for ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import Final, Protocol

from mpbroker.deliveries import Delivery
from mpbroker.errors import BrokerGone, MpbrokerError, SubscriptionBusy, UnknownSubscription
from mpbroker.messages import SubscriptionStats
from mpbroker.retry import RetryPolicy


class Dispatchable(Protocol):
    """What push needs of a subscription, wherever its broker is."""

    @property
    def subscription_id(self) -> str: ...

    @property
    def retry_policy(self) -> RetryPolicy | None: ...

    def _attach_dispatcher(self) -> str:
        """Make the caller's process the only reader; the member to poll as, never used again.

        Raises SubscriptionBusy while another one is attached.
        """

    def _detach_dispatcher(self, member: str) -> None:
        """End that: what ``member`` holds is released, uncounted, and its waiting poll gets nothing.

        Does nothing when ``member`` is not attached.
        """

    def _poll(self, member: str, now: float | None, max_messages: int, timeout: float | None) -> list[Delivery]:
        """SubscriptionAPI.poll; a member that is no longer attached gets nothing, or
        SubscriptionBusy, at once.
        """

    def _wait_idle(self, timeout: float | None) -> bool: ...

    def _stats(self, now: float | None) -> SubscriptionStats: ...


class Turn:
    """One use of a seat: a call that dispatches, the life of a dispatcher thread, or a close that
    leaves a seat nobody is using.

    Attributes:
        thread: who uses it.
        is_thread: it is the life of a dispatcher thread, and its end is that thread's.
        is_close: it is a close, and lasts for one call to the broker.
        held: the delivery in work, or nothing.
        polling: it waits for the broker, so that leaving the seat is what ends the wait.
        stopping: it is to end; only ever set.
        ended: it is over; only ever set.
    """

    __slots__ = ("ended", "held", "is_close", "is_thread", "polling", "stopping", "thread")

    def __init__(self, thread: threading.Thread | None = None, *, is_close: bool = False) -> None:
        self.thread = threading.current_thread() if thread is None else thread
        self.is_thread = thread is not None
        self.is_close = is_close
        self.held: list[Delivery] = []
        self.polling = False
        self.stopping = False
        self.ended = False

    def give_back(self) -> None:
        """Release what it holds, uncounted; a broker that cannot be told has it back already."""
        held, self.held = self.held, []
        for delivery in held:
            with suppress(MpbrokerError):
                delivery.release()


class Seat:
    """One dispatcher's seat at one subscription.

    Attributes:
        closes: how often a close was asked for.
    """

    def __init__(self, subscription: Dispatchable) -> None:
        self.closes = 0
        self._subscription = subscription
        self._lock = threading.RLock()  # guards all below, and the flags of turns
        self._changed = threading.Condition(self._lock)
        self._turn: Turn | None = None
        self._reserved: Turn | None = None  # the last thread's, so that a close can join it
        self._member: str | None = None
        self._in_doubt = False
        follow_forks(self)

    # -- turns -------------------------------------------------------------------------------------

    def claim(self, turn: Turn) -> bool:
        """Begin a turn; False while another one runs, or a thread has the seat."""
        with self._lock:
            while (running := self._running()) is not None and running.is_close:
                self._changed.wait()
            if running is not None or self._has_thread():
                return False
            self._turn = turn
            return True

    def reserve(self, turn: Turn) -> bool:
        """Keep the seat for the thread of ``turn``; False when a thread that goes on has it."""
        with self._lock:
            if self._has_thread():
                return False
            self._reserved = turn
            return True

    def enter(self, turn: Turn) -> bool:
        """Begin a reserved turn, after the one that runs; False when it is to stop before that."""
        with self._lock:
            while not turn.stopping and self._running() is not None:
                self._changed.wait()
            if turn.stopping:
                return False
            self._turn = turn
            return True

    def end(self, turn: Turn) -> None:
        """End a turn, whether or not it began; one that was to stop leaves the seat."""
        try:
            with self._lock:
                leaves = self._turn is turn and turn.stopping
            if leaves:
                self._leave()
        finally:
            with self._lock:
                turn.ended = True
                if self._turn is turn:
                    self._turn = None
                self._changed.notify_all()

    def _running(self) -> Turn | None:
        turn = self._turn
        return None if turn is None or turn.ended else turn

    def _has_thread(self) -> bool:
        return self._reserved is not None and not self._reserved.stopping

    # -- within a turn -----------------------------------------------------------------------------

    def poll(self, turn: Turn, timeout: float | None) -> None:
        """Poll one message into ``turn.held``, taking the seat first where that is still to do.

        Nothing is there afterwards when none came in time, or when the turn is to stop.
        """
        while not turn.stopping:
            if self._in_doubt:
                self._leave()
                self._in_doubt = False
            fresh = self._member is None
            if fresh:
                # In one step: an interrupt must not leave the seat taken and nobody knowing.
                self._member = self._subscription._attach_dispatcher()
            with self._lock:
                member = self._member
                if turn.stopping or member is None:
                    return
                turn.polling = True
            try:
                turn.held = self._subscription._poll(member, None, 1, timeout)
                if turn.held or turn.stopping or timeout is not None:
                    return
                # Who waits for ever and gets nothing has lost the seat.
                self._member = None
            except SubscriptionBusy:
                if turn.stopping:
                    return
                self._member = None
                if fresh:
                    raise
            finally:
                with self._lock:
                    turn.polling = False

    def pause(self, turn: Turn, seconds: float) -> None:
        """Wait, but not longer than until the turn is to stop."""
        with self._lock:
            self._changed.wait_for(lambda: turn.stopping, min(seconds, threading.TIMEOUT_MAX))

    def doubt(self) -> None:
        """Leave the seat before the next poll: an interrupt may have cut off an answer of the
        broker, and leaving gives back what nobody knows to be held.
        """
        self._in_doubt = True

    # -- close -------------------------------------------------------------------------------------

    def ask_to_stop(self) -> Closing:
        """Tell every turn to stop, without waiting; the Closing does what is left to do."""
        with self._lock:
            self.closes += 1
            turns = [turn for turn in (self._running(), self._reserved) if turn is not None]
            for turn in turns:
                turn.stopping = True
            self._changed.notify_all()
            return Closing(self, turns)

    def leave(self) -> None:
        """Leave the seat where no turn will: when nobody is using it, and for one that polls."""
        mine = Turn(is_close=True)
        try:
            with self._lock:
                running = self._running()
                if running is None:
                    self._turn = mine
                elif not (running.stopping and running.polling):
                    return
            self._leave()
        finally:
            mine.ended = True
            with self._lock:
                self._changed.notify_all()

    def wait_for_end(self, turns: list[Turn]) -> None:
        """Wait until turns of other threads have ended, and closes."""
        # A thread that an interrupted start() never began will not end either.
        turns = [turn for turn in turns if not turn.is_thread or turn.thread.is_alive()]
        with self._lock:
            self._changed.wait_for(lambda: all(turn.ended for turn in turns) and not self._is_closing())
        for turn in turns:
            if turn.is_thread:
                turn.thread.join()

    def _is_closing(self) -> bool:
        running = self._running()
        return running is not None and running.is_close

    def _leave(self) -> None:
        member = self._member
        if member is not None:
            with suppress(UnknownSubscription, BrokerGone):
                self._subscription._detach_dispatcher(member)
            # Not before: after an interrupt the next close tries again. And a turn that this one
            # woke may have a new member by now.
            with self._lock:
                if self._member == member:
                    self._member = None

    def _after_fork(self) -> None:
        """In a new child process only the thread that forked goes on."""
        me = threading.current_thread()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        if self._turn is not None and self._turn.thread is not me:
            self._turn = None
        if self._reserved is not None and self._reserved.thread is not me:
            self._reserved = None


class Closing:
    """A close that was asked for: first leave(), then wait()."""

    def __init__(self, seat: Seat, turns: list[Turn]) -> None:
        self._seat = seat
        self._turns = turns

    @property
    def done(self) -> bool:
        """Whether nothing of it is left to wait for."""
        return all(turn.ended for turn in self._turns)

    def leave(self) -> None:
        """Leave the seat where no turn will, so that a waiting poll ends."""
        self._seat.leave()

    def wait(self) -> None:
        """Wait until the turns that were told to stop have ended, and their threads.

        A subscriber's own thread does not wait: two that close each other's dispatchers would
        never return.
        """
        if not here.in_a_call:
            me = threading.current_thread()
            self._seat.wait_for_end([turn for turn in self._turns if turn.thread is not me])


class Here(threading.local):
    """What push knows of the running thread.

    Attributes:
        in_a_call: a subscriber is running in it, of whatever dispatcher.
    """

    in_a_call = False


here: Final = Here()


# -- forks -----------------------------------------------------------------------------------------


class Forked(Protocol):
    """Something with locks and threads."""

    def _after_fork(self) -> None:
        """Begin anew in a child process, where the other threads are gone with what they locked."""


_forked: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()


def follow_forks(one: Forked) -> None:
    """Have ``one._after_fork()`` called in child processes as long as it lives."""
    _forked.add(one)


def _after_fork() -> None:
    for one in list(_forked):
        one._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
