"""Dispatcher: polls one subscription and brings each message to its subscriber, through all its
attempts. DispatcherPool: all those of one process.

Owns the order poll, call, ack; retries in place; the dispatcher thread. No lock is held while a
subscriber runs. Imports the value modules and the rest of push only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum, auto
from typing import Final

from mpbroker.deliveries import Delivery
from mpbroker.errors import BrokerGone, MpbrokerError, SubscriptionBusy, UnknownSubscription
from mpbroker.messages import Message, error_text
from mpbroker.push.seat import Closing, Dispatchable, Seat, Turn, follow_forks, here
from mpbroker.push.subscriber import Subscriber
from mpbroker.retry import RetryPolicy

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
"""Between tries of a dispatcher thread while the broker does not serve it; doubled each time."""

logger = logging.getLogger("mpbroker.push")


class Outcome(Enum):
    """What became of one round of a dispatcher.

    NOTHING came; one was FINISHED, acked or dead; one was LEFT, given back or no longer ours; the
    dispatcher is BUSY with another call or has a thread.
    """

    NOTHING = auto()
    FINISHED = auto()
    LEFT = auto()
    BUSY = auto()


class Dispatcher:
    """The one reader of a push subscription; calls its subscriber, never twice at a time.

    It attaches to the subscription when it is first used and stays until close(); meanwhile nobody
    else can poll or dispatch there. It may be used again after a close.

    Args:
        subscription: what to read.
        subscriber: whom to call.
        sleep: how to wait between attempts, seconds; default: a wait that close() ends.
    """

    def __init__(
        self,
        subscription: Dispatchable,
        subscriber: Subscriber,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.subscription = subscription
        self.subscriber = subscriber
        self._sleep = sleep
        self._seat = Seat(subscription)

    @property
    def closes(self) -> int:
        """How often it was told to close."""
        return self._seat.closes

    def dispatch_one(self, block: bool = True, timeout: float | None = None) -> bool:
        """Bring one message to the subscriber, in this thread, through all its attempts.

        Waits for a message when ``block``, at most ``timeout`` seconds. A failing message is
        retried in place: later ones, of any priority, wait, until it succeeds or is a dead letter.
        What is neither an Exception nor caught by the subscriber (KeyboardInterrupt, SystemExit)
        releases the message and propagates.

        Returns:
            Whether a message was finished: processed, or dead after its last attempt. False when
            none came, or when close() gave it back or it was taken away.

        Raises:
            SubscriptionBusy: another dispatcher is attached, or this one is at work: a call, this
                very one, or its thread.
            UnknownSubscription, BrokerGone: it was deleted; the broker ended.
        """
        outcome = self.pump(timeout if block else 0.0)
        if outcome is Outcome.BUSY:
            raise SubscriptionBusy(self.subscription.subscription_id)
        return outcome is Outcome.FINISHED

    def pump(self, timeout: float | None) -> Outcome:
        """dispatch_one, telling more, and telling BUSY instead of raising when it is at work."""
        turn = Turn()
        try:
            if not self._seat.claim(turn):
                return Outcome.BUSY
            return self._one(turn, timeout)
        finally:
            try:
                self._seat.end(turn)
            finally:
                turn.ended = True

    def start(self, on_gone: Callable[[Dispatcher], None] | None = None) -> None:
        """Dispatch in a thread of its own from now on, after the call that runs, until close().

        Does nothing while it has a thread. The thread is a daemon, and also ends, with a line in
        the log, when the subscription is deleted (then it calls ``on_gone`` with this dispatcher),
        the broker ends, or another dispatcher is attached. What passes (a broker that is full, or
        does not answer) it outlasts, trying again after a pause.
        """
        thread = threading.Thread(
            target=lambda: self._run(turn, on_gone),
            name=f"mpbroker-push {self.subscription.subscription_id}",
            daemon=True,
        )
        turn = Turn(thread)
        try:
            if self._seat.reserve(turn):
                thread.start()
        except BaseException:
            turn.stopping = True
            raise

    def close(self) -> None:
        """Stop after the call that runs, and let go of the subscription; messages stay there.

        Ends a wait for a message or for the next attempt, whose message is released uncounted.
        Returns when all that has happened, except inside a subscriber's call, where it does not
        wait. Safe to call again.
        """
        closing = self.ask_to_stop()
        closing.leave()
        closing.wait()

    def ask_to_stop(self) -> Closing:
        """Begin a close, without waiting for anything."""
        return self._seat.ask_to_stop()

    def __repr__(self) -> str:
        return f"<Dispatcher of {self.subscription.subscription_id!r} for {self.subscriber!r}>"

    # -- the thread --------------------------------------------------------------------------------

    def _run(self, turn: Turn, on_gone: Callable[[Dispatcher], None] | None) -> None:
        name = self.subscription.subscription_id
        try:
            try:
                if self._seat.enter(turn):
                    self._go_on(turn)
            finally:
                turn.stopping = True
                self._seat.end(turn)
        except UnknownSubscription:
            logger.info("%s was deleted; its dispatcher ends", name)
            if on_gone is not None:
                on_gone(self)
        except (SubscriptionBusy, BrokerGone) as error:
            logger.warning("the dispatcher of %s ends: %s", name, error)
        except SystemExit:
            # As for any thread it ends this one only, but nobody should have to guess why.
            logger.warning("the dispatcher of %s ends: its subscriber raised SystemExit", name)
        except Exception:
            logger.exception("the dispatcher of %s ends; start() begins again", name)

    def _go_on(self, turn: Turn) -> None:
        """One message after the other, until something ends it for good."""
        pause_s = _FIRST_PAUSE_S
        while not turn.stopping:
            try:
                self._one(turn, None)
                pause_s = _FIRST_PAUSE_S
            except (UnknownSubscription, SubscriptionBusy, BrokerGone):
                raise
            except (MpbrokerError, OSError) as error:
                # A broker that is full or stands still, a process without descriptors: it passes.
                name = self.subscription.subscription_id
                logger.warning("the dispatcher of %s tries again in %g s: %s", name, pause_s, str(error))
                self._seat.pause(turn, pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    # -- one message -------------------------------------------------------------------------------

    def _one(self, turn: Turn, timeout: float | None) -> Outcome:
        try:
            self._seat.poll(turn, timeout)
            if not turn.held:
                return Outcome.NOTHING
            if turn.stopping:
                turn.give_back()
                return Outcome.LEFT
            outcome = self._through_all_attempts(turn)
            turn.held = []
            return outcome
        except BaseException as error:
            if not isinstance(error, Exception):
                self._seat.doubt()
            turn.give_back()
            raise

    def _through_all_attempts(self, turn: Turn) -> Outcome:
        policy = self.subscription.retry_policy
        while True:
            delivery = turn.held[0]
            last = policy is None or delivery.attempt >= policy.max_attempts
            error = self._attempt(delivery, last)
            if error is None:
                return Outcome.FINISHED if delivery.ack() else Outcome.LEFT
            held = delivery.retry(error)
            turn.held = [] if held is None else [held]
            if held is None:
                # Dead after its last attempt; before that, taken away while we worked.
                return Outcome.FINISHED if last else Outcome.LEFT
            if policy is not None and not turn.stopping:
                self._wait(turn, policy, delivery.attempt)
            if turn.stopping:
                turn.give_back()
                return Outcome.LEFT

    def _attempt(self, delivery: Delivery, last: bool) -> str | None:
        """Have the message processed; None when that succeeded, else the error."""
        try:
            self._call(_message(delivery))
        except Exception as error:
            logger.log(
                logging.WARNING if last else logging.INFO,
                "%s: attempt %d failed",
                self.subscription.subscription_id,
                delivery.attempt,
                exc_info=True,
            )
            return error_text(error)
        return None

    def _call(self, message: Message) -> None:
        before, here.in_a_call = here.in_a_call, True
        try:
            self.subscriber.on_message(message)
        finally:
            here.in_a_call = before

    def _wait(self, turn: Turn, policy: RetryPolicy, attempt: int) -> None:
        delay = policy.delay(attempt)
        if self._sleep is None:
            self._seat.pause(turn, delay)
        else:
            self._sleep(delay)


def _message(delivery: Delivery) -> Message:
    """The message; unlike Delivery.message it keeps holding one that cannot be decoded, so that it
    is retried in place like any other failure.
    """
    return delivery._batch.message(delivery._index)


class DispatcherPool:
    """The dispatchers of one process: pumped in the caller's thread, or each in its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards all below; re-entrant for signal handlers
        self._dispatchers: dict[Dispatcher, None] = {}
        self._discarded: list[Closing] = []
        self._started = False
        follow_forks(self)

    def add(self, dispatcher: Dispatcher) -> None:
        """Take care of a dispatcher; once started, see that it has a thread."""
        with self._lock:
            self._dispatchers[dispatcher] = None
            if self._started:
                dispatcher.start(self._forget)

    def discard(self, dispatcher: Dispatcher) -> None:
        """Let go of a dispatcher, and stop it, without waiting for the call that runs."""
        with self._lock:
            self._forget(dispatcher)
            closing = dispatcher.ask_to_stop()
            self._discarded = [each for each in self._discarded if not each.done]
            self._discarded.append(closing)
        closing.leave()

    def run_until_idle(self) -> int:
        """Dispatch in this thread, one message of each dispatcher in turn, until none has any.

        Messages that subscribers publish meanwhile are dispatched too. Left out are dispatchers
        that have a thread or are at work (in the call that called this, for one), and those that
        are closed meanwhile.

        Returns:
            How many messages were finished.

        Raises:
            SubscriptionBusy: another process dispatches one of the subscriptions.
            BrokerGone: the broker ended.
        """
        finished = 0
        closes: dict[Dispatcher, int] = {}
        progress = True
        while progress:
            progress = False
            for dispatcher in self._all():
                if closes.setdefault(dispatcher, dispatcher.closes) != dispatcher.closes:
                    continue
                try:
                    outcome = dispatcher.pump(0.0)
                except UnknownSubscription:
                    self._forget(dispatcher)
                    continue
                finished += outcome is Outcome.FINISHED
                progress = progress or outcome in (Outcome.FINISHED, Outcome.LEFT)
        return finished

    def start(self) -> None:
        """Give every dispatcher a thread, now and from now on. Safe to call again."""
        with self._lock:
            self._started = True
            for dispatcher in self._dispatchers:
                dispatcher.start(self._forget)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until no subscription has anything ready, delayed or in flight, all at one instant.

        Waits for ever where nobody dispatches what is there. False when ``timeout`` seconds passed.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        while True:
            for dispatcher in self._all():
                left = None if limit is None else max(0.0, limit - time.monotonic())
                try:
                    if not dispatcher.subscription._wait_idle(left):
                        return False
                except UnknownSubscription:
                    self._forget(dispatcher)
            # One may have filled another that was looked at before. What is empty at two looks and
            # finished nothing between them was empty all the time; so between two such looks at all
            # of them there is an instant at which all were empty.
            look = self._look()
            if look is not None and look == self._look():
                return True
            if limit is not None and time.monotonic() >= limit:
                return False

    def close(self) -> None:
        """Stop all, each after the call that runs, and wait for that, except inside a subscriber's
        call. Safe to call again; start() and run_until_idle() begin anew.
        """
        with self._lock:
            self._started = False
            closings = [dispatcher.ask_to_stop() for dispatcher in self._dispatchers]
            self._discarded = [each for each in self._discarded if not each.done]
            closings += self._discarded
        with ExitStack() as every:
            for closing in closings:
                every.callback(closing.leave)
        for closing in closings:
            closing.wait()

    def _all(self) -> list[Dispatcher]:
        with self._lock:
            return list(self._dispatchers)

    def _forget(self, dispatcher: Dispatcher) -> None:
        with self._lock:
            self._dispatchers.pop(dispatcher, None)

    def _look(self) -> dict[Dispatcher, int] | None:
        """How many messages each subscription has finished so far; None when one is not empty."""
        look = {}
        for dispatcher in self._all():
            try:
                stats = dispatcher.subscription._stats(None)
            except UnknownSubscription:
                self._forget(dispatcher)
                continue
            if stats.ready or stats.delayed or stats.in_flight:
                return None
            look[dispatcher] = stats.acked + stats.dead_lettered
        return look

    def _after_fork(self) -> None:
        """In a new child process no dispatcher has a thread."""
        self._lock = threading.RLock()
        self._discarded = []
        self._started = False
