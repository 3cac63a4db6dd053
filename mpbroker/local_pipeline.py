"""Publishers and consumers of a broker in this process: the ways to its engine.

Owns nothing but the answers that are not taken yet. Imported by local.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Final

from mpbroker.engine import Engine, Lease, MessageBatch, NoRoom, Payloads, Subscription, ThreadWaiter
from mpbroker.loans import Loan, empty_loan
from mpbroker.messages import Headers, MessagePriority
from mpbroker.pipeline import Answer, Batch, Run
from mpbroker.pipeline.publisher import WINDOW

_TURN_S: Final = 0.1
"""Seconds after which a consumer that waits sees that it was closed."""


class LocalPublishWire:
    """Each batch is published when its answer is asked for: at once, or where it waits for room, as often as that is.

    A batch that waits keeps its place in the lines of the engine in between.
    """

    payload_bytes = sys.maxsize
    window = WINDOW

    def __init__(self, engine: Engine, wall_clock: Callable[[], float], clock: Callable[[], float]) -> None:
        self._engine = engine
        self._wall_clock = wall_clock
        self._clock = clock
        self._out: deque[_Publish] = deque()

    def encode(self, payload: Any) -> tuple[Any, int]:
        return (payload.take() if type(payload) is Loan else payload), 0

    def loan(self, nbytes: int) -> Loan:
        return empty_loan(nbytes)

    def take(self, is_anything_out: bool) -> bool:  # noqa: ARG002 - there is nothing to lose on the way
        # All that has no answer is sent again; what an interrupted call has published says so itself.
        self._out = deque()
        return True

    def put(self) -> None:
        pass

    def send(self, topic: str, batch: Batch) -> None:
        publish: _Publish | None = batch.body
        if publish is None:
            publish = batch.body = _Publish(topic, batch)
        self._out.append(publish)

    def receive(self, timeout_s: float | None) -> Answer | Exception | None:
        if not self._out:
            return None
        publish = self._out[0]
        limit = inf if timeout_s is None else time.monotonic() + timeout_s
        while publish.content.answer is None and (patience := self._try(publish)) > 0.0:
            left = limit - time.monotonic()
            if left <= 0.0:
                return None
            publish.waiter.wait(min(patience, left))
        publish.waiter.leave()
        self._engine.trash.clear()
        self._out.popleft()
        return publish.content.answer

    def forget(self) -> None:
        self._out = deque()

    def close(self) -> None:
        pass

    def _try(self, publish: _Publish) -> float:
        """Seconds that it may still wait for room; 0: it has its answer."""
        content, waiter = publish.content, publish.waiter
        waiter.begin()
        # Time that passes, whatever clock the broker has.
        waited = time.monotonic() - publish.began
        try:
            self._engine.publish(
                publish.topic,
                (content,),
                publish.headers,
                publish.priority,
                self._wall_clock(),
                self._clock(),
                waiter,
            )
        except NoRoom as full:
            if waited < full.seconds:
                return full.seconds - waited
            content.answer = full.final()
        except Exception as error:  # noqa: BLE001 - an answer like any other, for whoever looks
            content.answer = error
        return 0.0


class LocalFetchWire:
    """Polls when it fetches: in one process nothing is gained by asking before."""

    def __init__(
        self,
        engine: Subscription,
        member: str,
        clock: Callable[[], float],
        done: Callable[[list[Lease]], list[Lease]],
    ) -> None:
        """done: ends every verb that moves copies."""
        self.is_asked = False
        self._engine = engine
        self._member = member
        self._clock = clock
        self._done = done
        self._is_ended = False
        self._untaken: list[Lease] = []
        self._asked: tuple[int, float | None] = (1, 0.0)

    def ask(self, max_messages: int, timeout: float | None, is_new: bool) -> None:  # noqa: ARG002 - one session only
        self._untaken = []  # whoever asks again has taken it
        self._asked = (max_messages, timeout)
        self.is_asked = True

    def fetch(self) -> list[Run] | None:
        self._give_back()  # of a fetch that was interrupted
        max_messages, timeout = self._asked
        clock = self._clock
        # Time that passes, whatever clock the broker has.
        limit = inf if timeout is None else time.monotonic() + timeout
        while not self._is_ended:
            # In turns, so that close in another thread is noticed.
            turn = min(_TURN_S, limit - time.monotonic())
            leases = self._engine.take_waiting(self._member, clock, max_messages, max(0.0, turn))
            self._untaken = leases
            if (leases or turn <= 0.0) and not self._is_ended:
                return [_run(lease) for lease in self._done(leases)]
        self._give_back()
        return None

    def fetched(self) -> None:
        self._untaken = []

    def now(self) -> float:
        return self._clock()

    def look(self) -> None:
        """Nothing of this process is gone."""

    def cancel(self) -> None:
        # Before the look, which another thread that fetches does in the other order.
        self._is_ended = True
        if self.is_asked:
            self.is_asked = False
            self._give_back()

    def close(self) -> None:
        pass

    def _give_back(self) -> None:
        untaken, self._untaken = self._untaken, []
        if untaken:
            self._engine.undo([lease.number for lease in untaken])
            self._done([])


class LocalSettleWire:
    """Acts at once."""

    is_out = False

    def __init__(self, engine: Subscription, done: Callable[[int], int]) -> None:
        self._engine = engine
        self._done = done

    def ack(self, ranges: list[int]) -> None:
        self._done(self._engine.ack_ranges(ranges))

    def finish(self) -> None:
        pass

    def release(self, ranges: list[int]) -> None:
        self._done(self._engine.release_ranges(ranges))

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


def _run(lease: Lease) -> Run:
    return Run(lease.batch, lease.start, lease.stop, lease.token, lease.attempt, lease.redelivered, lease.deadline)


class _Publish:
    """A batch that was sent: what to publish, and its place among those that wait for room."""

    __slots__ = ("began", "content", "headers", "priority", "topic", "waiter")

    def __init__(self, topic: str, batch: Batch) -> None:
        self.topic = topic
        self.content = _Published(batch.parts)
        self.headers = Headers(batch.headers or {})
        self.priority = batch.priority
        self.waiter = ThreadWaiter(len(batch.parts))
        self.began = time.monotonic()


class _Published(Payloads):
    """Payloads that know when they were published, also where the call that did it was interrupted."""

    __slots__ = ("answer",)

    def __init__(self, payloads: list[Any]) -> None:
        super().__init__(payloads)
        self.answer: Answer | Exception | None = None

    def batch(
        self,
        topic: str,
        first: int,
        priority: MessagePriority,
        timestamp: float,
        headers: Headers,
        incarnation: str,
    ) -> MessageBatch:
        made = super().batch(topic, first, priority, timestamp, headers, incarnation)
        self.answer = Answer(first, timestamp, incarnation)
        return made
