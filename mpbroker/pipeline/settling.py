"""Settling what a Consumer has yielded: acks are noted and sent in ranges, everything else acts at once.

Owns which deliveries are held by the caller, and the acks that were noted and not sent. It is the Holder of consumed
deliveries, and outlives its consumer as long as one of them is somewhere.
"""

from __future__ import annotations

import queue
import threading
from bisect import bisect_left
from collections.abc import Collection
from math import inf
from typing import Any, Final, Protocol

from mpbroker.deliveries import Delivery, Holder
from mpbroker.errors import AccessRefused, BrokerGone
from mpbroker.pipeline.tending import Tended

LEASE_TOKENS: Final = 256
"""Tokens of one lease; a range lies in one."""

LINGER_S: Final = 0.01
"""Seconds that an ack waits for others to go with."""

_AGAIN_S: Final = 0.1
"""Seconds until acks that could not be sent are tried again."""

ENOUGH: Final = 256
"""Acks that are sent without waiting for more: a lease's worth."""


class SettleWire(Protocol):
    """The way of acks and releases to a broker. For one thread at a time; may be interrupted anywhere."""

    @property
    def is_out(self) -> bool:
        """Acks were sent whose answer nobody has taken."""

    def ack(self, ranges: list[int]) -> None:
        """Send acks: first and last token of each range in turn. Waits for the answer to those before, not for theirs.

        Raises what says that the broker, or what it knew of this process, is gone.
        """

    def finish(self) -> None:
        """Wait for the answer to all acks that were sent. Raises what `ack` raises."""

    def release(self, ranges: list[int]) -> None:
        """Give back, uncounted, and wait for the answer. Raises what `ack` raises."""

    def forget(self) -> None:
        """Let go of the connection and of what was sent: it is the parent's of this process, or lost."""

    def close(self) -> None: ...


class Settler(Tended):
    """The Holder of what one consumer yielded.

    Attributes:
        held: tokens that were yielded and not settled, and the deadline of each.
        lock: of the wire, and of what a consumer and its end both change.
        is_over: the consumer has ended, or is the parent's of this process: every verb acts at once.
        trouble: what its thread met when nobody called: the acks that were under way are lost with the broker, or with
            what that knew of this process. Raised once, by `send`.
        settled: gets something by a settlement while is_starved: the consumer waits for one.
    """

    _patience = LINGER_S

    def __init__(self, subscription: Holder, wire: SettleWire) -> None:
        self.held: dict[int, float] = {}
        self.lock = threading.RLock()
        self.is_over = False
        self.is_starved = False
        self.trouble: BrokerGone | AccessRefused | None = None
        self.settled: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.wire = wire
        self._subscription = subscription
        self._noted: list[int] = []
        self._register()

    # -- the verbs of a delivery --------------------------------------------------------------------------------------

    def _ack_token(self, token: int) -> bool:
        if self.is_over:
            return self._subscription._ack_token(token)
        if token not in self.held:
            return False
        # Noted first: interrupted here, it is acked, and what is released as well at the end is not held any more.
        self._noted.append(token)
        try:
            del self.held[token]
        except KeyError:
            return False  # another thread acks the same delivery, and was first
        if not self._is_tended:
            self._wake()
        if self.is_starved:
            self.settled.put(None)
        return True

    def _nack_token(self, token: int, delay: float | None, error: str, now: float | None) -> bool:
        return self._may_settle(token) and self._done(
            token, answer=self._subscription._nack_token(token, delay, error, now)
        )

    def _release_token(self, token: int) -> bool:
        return self._may_settle(token) and self._done(token, answer=self._subscription._release_token(token))

    def _reject_token(self, token: int, error: str) -> bool:
        return self._may_settle(token) and self._done(token, answer=self._subscription._reject_token(token, error))

    def _extend_token(self, token: int, seconds: float | None, now: float | None) -> float | None:
        deadline = self._subscription._extend_token(token, seconds, now) if self._may_settle(token) else None
        if deadline is not None and token in self.held:
            self.held[token] = deadline
        return deadline

    def _retry_token(self, delivery: Delivery, error: str) -> Delivery | None:
        if not self._may_settle(delivery.token):
            return None
        again = self._subscription._retry_token(delivery, error)
        if again is not None:
            again._holder = self
            self.held[again.token] = again.deadline
        self._done(delivery.token, answer=True)
        return again

    def _may_settle(self, token: int) -> bool:
        """Not what was acked a moment ago: the broker may not know that yet."""
        return token in self.held or self.is_over

    def _done(self, token: int, *, answer: bool) -> bool:
        self.held.pop(token, None)
        if self.is_starved:
            self.settled.put(None)
        return answer

    @property
    def first_deadline(self) -> float:
        """When the first of what is held is over; infinite when nothing is held."""
        return min(list(self.held.values()), default=inf)

    def forget_ended(self, now: float) -> None:
        """What the broker has taken back by then takes no place any more."""
        for token, deadline in list(self.held.items()):
            if deadline <= now:
                self.held.pop(token, None)

    # -- acks ---------------------------------------------------------------------------------------------------------

    @property
    def has_acks(self) -> bool:
        """Whether there are acks of which it is not known that the broker has them."""
        return self.noted > 0 or self.wire.is_out

    @property
    def noted(self) -> int:
        """Acks that were not sent."""
        return len(self._noted)

    def send(self) -> None:
        """Send the acks that were noted. Raises what `SettleWire.ack` raises, now or in the thread before."""
        with self.lock:
            trouble, self.trouble = self.trouble, None
            if trouble is not None:
                raise trouble
            noted = self._noted
            count = len(noted)
            if count:
                self.wire.ack(ranges_of(noted[:count]))
                # Interrupted before this, they are sent again, and late.
                del noted[:count]

    def end(self, releases: Collection[int]) -> None:
        """Send what was noted, give these back, and let go of the connection; the verbs act at once from now on.

        Interrupted, or after an exception, it can be called again.
        """
        with self.lock:
            if self.is_over:
                return
            self.send()
            self.wire.finish()
            if releases:
                self.wire.release(ranges_of(releases))
            self.let_go()

    def let_go(self) -> None:
        """Forget everything: the broker has taken it back, or will."""
        self.is_over = True
        self.lost()
        self._end_tending()
        self.wire.close()

    def lost(self) -> None:
        """What was held is held no longer, and the connection is of no use."""
        self.wire.forget()
        self.held.clear()
        self._noted.clear()
        self.trouble = None
        self.settled.put(None)

    # -- while nobody calls -------------------------------------------------------------------------------------------

    def _tend(self) -> float | None:
        with self.lock:
            try:
                self.send()
                if self._noted:
                    return LINGER_S
                self.wire.finish()
            except (BrokerGone, AccessRefused) as error:
                # It does not meet an end of its session again: the next use begins another one.
                self.trouble = error
                self._rest()
                return None
            except Exception:  # noqa: BLE001 - no connection or descriptor left, which may pass: there is time until the leases end
                return _AGAIN_S
            self._rest()
            if self._noted:
                self._is_tended = True  # noted at this moment, by who saw that somebody will look
                return LINGER_S
            return None

    def _before_fork(self) -> None:
        """Nothing: the child lets go of it, and the parent goes on."""

    def _after_fork(self) -> None:
        self.lock = threading.RLock()
        self.settled = queue.SimpleQueue()
        self.is_over = True
        self.lost()

    def _at_exit(self) -> None:
        self.end(())

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._subscription,)


def _itself(subscription: Holder) -> Holder:
    """What holds a consumed delivery in another process."""
    return subscription


def ranges_of(tokens: Collection[int]) -> list[int]:
    """The first and the last token of each range of consecutive ones in one lease, in turn."""
    ordered = sorted(set(tokens))
    ranges: list[int] = []
    at, end = 0, len(ordered)
    while at < end:
        first = ordered[at]
        stop = bisect_left(ordered, first - first % LEASE_TOKENS + LEASE_TOKENS, at)
        if ordered[stop - 1] - first == stop - 1 - at:
            ranges += (first, ordered[stop - 1])
        else:
            last = first
            for token in ordered[at + 1 : stop]:
                if token != last + 1:
                    ranges += (first, last)
                    first = token
                last = token
            ranges += (first, last)
        at = stop
    return ranges
