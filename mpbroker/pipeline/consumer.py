"""Consumer: an iterator of deliveries that fetches the next ones while the caller works on these.

Owns what was fetched and not yielded, and how much is asked for. Never talks to a broker: a FetchWire does. What the
caller holds, and its acks, are in settling.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Iterator
from math import inf
from types import TracebackType
from typing import Final, NoReturn, Protocol, Self

from mpbroker.deliveries import Batch, Delivery
from mpbroker.errors import AccessRefused, BrokerGone, MpbrokerError
from mpbroker.pipeline.settling import ENOUGH, Settler

PREFETCH: Final = 256
"""Default: a batch's worth, so that a fetch costs little for each, and no worker sits on what others could do."""

_LOOK_S: Final = 0.5
"""Seconds between two looks for the end of the broker, where the caller holds all it may."""

MAX_PREFETCH: Final = 1_000_000


class Run:
    """Messages that were fetched in one lease.

    at, stop: indices in the batch of the first that was not yielded, and after the last. base: the token of index 0.
    size: messages that it had at first.
    """

    __slots__ = ("at", "attempt", "base", "batch", "deadline", "redelivered", "size", "stop")

    def __init__(
        self, batch: Batch, at: int, stop: int, token: int, attempt: int, redelivered: bool, deadline: float
    ) -> None:
        """token: of the message at ``at``."""
        self.batch = batch
        self.at = at
        self.stop = stop
        self.size = stop - at
        self.base = token - at
        self.attempt = attempt
        self.redelivered = redelivered
        self.deadline = deadline

    def pieces(self, size: int) -> list[Run]:
        """The same in runs of at most so many messages."""
        if self.stop - self.at <= size:
            return [self]
        batch, attempt, redelivered, deadline = self.batch, self.attempt, self.redelivered, self.deadline
        return [
            Run(batch, at, min(at + size, self.stop), self.base + at, attempt, redelivered, deadline)
            for at in range(self.at, self.stop, size)
        ]

    def tokens(self) -> range:
        """Of what was not yielded."""
        return range(self.base + self.at, self.base + self.stop)


class FetchWire(Protocol):
    """The way of polls to a broker. May be interrupted anywhere."""

    is_asked: bool
    """A poll is out, whose answer nobody has taken. Who calls `fetch` says that it has it by making this False."""

    def ask(self, max_messages: int, timeout: float | None, is_new: bool) -> None:
        """Send a poll. is_new: nothing is held, so that another session is as good as the last one.

        Raises what says that the broker, or what it knew of this process, is gone.
        """

    def fetch(self) -> list[Run] | None:
        """Wait for the answer; None: there is none to come, ask again. Raises what the poll raises."""

    def fetched(self) -> None:
        """The answer was taken."""

    def now(self) -> float:
        """The broker's time, or an earlier one where it is not known."""

    def look(self) -> None:
        """While no poll is out: raise what says that the broker, or what it knew of this process, is gone."""

    def cancel(self) -> None:
        """What was asked and not taken goes back, as if it had never been handed over. Good in any thread."""

    def close(self) -> None: ...


class Consumer:
    """Yields the deliveries of one member; made by ``subscription.consume(member)``.

    While the caller works on one, the next are fetched, up to ``prefetch`` that are fetched or held and not settled.
    ``delivery.ack()`` only takes note, and is True for what this consumer holds: acks are sent in ranges, when there
    are enough, before the iterator waits, after 10 ms, and in close. All other verbs act at once. What is held is
    leased: a message whose lease ends before its ack is sent comes back, so prefetch times the work for each message
    must stay well below ack_timeout. With ``prefetch`` held and unsettled the iterator waits until one of them is
    settled or its lease ends.

    Leaving the loop does not close it, and it may be iterated again. ``close`` (or the end of its ``with`` block) sends
    the acks and gives back, uncounted, what was fetched and not yielded and what was yielded and not settled. One that
    nobody has any more gives back what was not yielded, and its deliveries stay with who has them. When the process
    dies, what it held comes back, counted as an attempt.

    For one thread that iterates, and any number that settle. In a forked child it is closed, and its deliveries act at
    once.
    """

    def __init__(
        self,
        subscription_id: str,
        member: str,
        prefetch: int,
        idle_timeout: float | None,
        wire: FetchWire,
        settler: Settler,
    ) -> None:
        """Made by `SubscriptionAPI.consume`."""
        self.subscription_id: Final = subscription_id
        self.member: Final = member
        self._prefetch = prefetch
        # Between two pieces it looks whether to ask for more.
        self._piece: Final = max(1, prefetch // 4)
        self._idle_timeout = idle_timeout
        self._wire = wire
        self._settler = settler
        self._runs: deque[Run] = deque()
        self._since = 0
        self._left_over: list[int] | None = None
        self._is_closed = False
        self._is_idle = False
        self._iterator: Iterator[Delivery] | None = None

    def __iter__(self) -> Iterator[Delivery]:
        """Deliveries as they come, until no message comes for ``idle_timeout`` seconds, or it is closed.

        Raises:
            What poll raises; and BrokerGone, AccessRefused: what was held is gone, or went back.
            ValueError: it was closed before.
        """
        self._check_open()
        return self._deliveries()

    def __next__(self) -> Delivery:
        """The next one; for a loop of many, iterating is quicker. Raises what `__iter__` raises, and StopIteration."""
        self._check_open()
        iterator, self._iterator = self._iterator, None
        if iterator is None:
            iterator = self._deliveries()
        delivery = next(iterator)
        self._iterator = iterator
        return delivery

    def close(self) -> None:
        """Send the acks, give the rest back, uncounted, and let go of the connections. Safe to call again.

        A loop over it in another thread ends. Interrupted, it can be called again.

        Raises:
            BrokerGone: the broker ended; acks that were not sent died with it.
        """
        self._end(with_held=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as ours:
            if error is None:
                raise
            error.add_note(f"and closing {self!r} failed: {type(ours).__name__}: {ours}")

    def __del__(self) -> None:
        try:
            if not self._is_closed:
                self._end(with_held=False)
        except (MpbrokerError, AttributeError):
            pass  # it is gone with the broker, or never came to be

    def __reduce__(self) -> NoReturn:
        raise TypeError("a consumer stays in its process; pass the subscription, and consume() there")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._settler.held)} held"
        return f"<Consumer of {self.subscription_id!r} as {self.member!r}: {state}>"

    # -- iterating ----------------------------------------------------------------------------------------------------

    def _deliveries(self) -> Iterator[Delivery]:
        settler, member = self._settler, self.member
        held = settler.held
        while (run := self._next_run()) is not None:
            batch, base, attempt = run.batch, run.base, run.attempt
            redelivered, deadline = run.redelivered, run.deadline
            while (index := run.at) < run.stop:
                token = base + index
                delivery = Delivery(batch, index, attempt, redelivered, deadline, member, token, settler)
                held[token] = deadline
                # Nothing is called from here to the caller: interrupted before, it is yielded next time.
                run.at = index + 1
                yield delivery

    def _next_run(self) -> Run | None:
        """What is to be yielded next; waits for it. None: it is over."""
        since = time.monotonic()
        while not self._is_closed:
            self._check_process()
            try:
                run = self._buffered() or self._fetch(since)
            except (BrokerGone, AccessRefused):
                self._runs = deque()
                self._settler.lost()
                raise
            if run is not None:
                return run
            if self._is_idle and self._left(since) == 0.0:
                return None
        return None

    def _buffered(self) -> Run | None:
        runs = self._runs
        while runs and runs[0].at >= runs[0].stop:
            self._since += runs[0].size
            runs.popleft()
        if self._settler.noted >= ENOUGH:
            self._settler.send()
        if not runs:
            return None
        if not self._wire.is_asked and self._since >= self._piece:
            self._since = 0
            self._ask(self._prefetch // 2 or 1, None)
        return runs[0]

    def _fetch(self, since: float) -> Run | None:
        """Wait for what is asked for, asking first if need be; None: look again, some time may have passed."""
        settler, wire = self._settler, self._wire
        self._is_idle = False
        settler._prepare()  # before anything is yielded, and settled in any thread
        settler.send()
        if not wire.is_asked and not self._ask(1, self._left(since)):
            self._wait_for_settlement(since)
            return None
        runs = wire.fetch()
        fresh = deque([piece for run in runs or () for piece in run.pieces(self._piece)])
        with settler.lock:
            if runs is None or self._is_closed:
                return None
            # Two plain steps: an interruption finds both done, or none, and then the answer is undone.
            self._runs = fresh
            wire.is_asked = False
            wire.fetched()
        self._is_idle = not fresh
        return fresh[0] if fresh else None

    def _ask(self, least: int, timeout: float | None) -> bool:
        """Poll for as many as may come, if that is at least so many; whether it was asked."""
        held = len(self._settler.held)
        credit = self._prefetch - held - sum([run.stop - run.at for run in self._runs])
        if credit < least:
            return False
        limit = self._idle_timeout if timeout is None else timeout
        with self._settler.lock:
            if self._is_closed:
                return False  # nobody would take the answer, nor undo it
            self._wire.ask(credit, limit, not held and not self._runs)
        return True

    def _wait_for_settlement(self, since: float) -> None:
        """Or until a lease ends of what is held; in steps, so that the end of the broker is seen."""
        settler, wire = self._settler, self._wire
        settler.is_starved = True
        try:
            if len(settler.held) >= self._prefetch and not self._is_closed:
                left = self._left(since)
                wait_s = min(_LOOK_S, inf if left is None else left, settler.first_deadline - wire.now())
                settler.settled.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            settler.forget_ended(wire.now())
            wire.look()
            self._is_idle = True
        finally:
            settler.is_starved = False

    def _left(self, since: float) -> float | None:
        if self._idle_timeout is None:
            return None
        return max(0.0, since + self._idle_timeout - time.monotonic())

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end(self, *, with_held: bool) -> None:
        settler = self._settler
        with settler.lock:
            self._is_closed = True
            if settler.is_over:
                return
            if self._left_over is None:
                self._left_over = [token for run in self._runs for token in run.tokens()]
            for run in self._runs:
                run.stop = 0  # who iterates finds nothing more
            had_acks = settler.has_acks or settler.trouble is not None
            try:
                self._wire.cancel()
                settler.end([*self._left_over, *settler.held] if with_held else self._left_over)
                self._wire.close()
            except (BrokerGone, AccessRefused):
                settler.let_go()
                self._wire.close()
                if had_acks:
                    raise

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise ValueError(f"this consumer of {self.subscription_id!r} is closed; consume() makes another one")

    def _check_process(self) -> None:
        if self._settler.is_over and not self._is_closed:
            raise ValueError(
                f"this consumer of {self.subscription_id!r} belongs to the process that made it; "
                "consume() makes one in this process"
            )
