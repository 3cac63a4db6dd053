"""Recorded clients that do not wait for each answer: a publisher, with a history of every batch; and a consumer.

Owns which calls of a publisher are out, each in a history of its own. Of a consumer nobody sees the polls: what is
recorded is what came out of it, what it took note of, and its end. For one thread. Imported by who plays clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from mpbroker.checks import sequence_of
from mpbroker.deliveries import Delivery
from mpbroker.messages import MessagePriority
from mpbroker.pipeline import Receipt
from mpbroker.testing.history import Answers, Consume, Done, Publish, Recorder, Settle, Target
from mpbroker.testing.recorded import RecordedBroker, RecordedSubscription
from mpbroker.testing.results import delivered, published

_NEVER_S: Final = 1e6
"""After every run."""


class RecordedPublisher:
    """A publisher, recorded: each call of `publish_many` is one batch, and is answered once the broker confirmed it.

    Some calls are out at once; each is in a history of its own, as a history has one call at a time. A process that
    is struck is struck in all of them: their recorders have the same client's name.
    """

    def __init__(self, broker: RecordedBroker, topic: str, recorders: Sequence[Recorder], **options: Any) -> None:
        """recorders: one for each call that may be out at once. options: as of a publisher, but linger."""
        self.topic = topic
        self._broker = broker
        self._recorders = list(recorders)
        self._out: deque[_Out] = deque()
        # A batch leaves when its call is complete, and not before.
        self.publisher = broker.broker.publisher(topic, **options, linger=_NEVER_S)

    def publish_many(
        self,
        count: int,
        headers: Mapping[str, str] | None = None,
        *,
        priority: MessagePriority = MessagePriority.NORMAL,
    ) -> None:
        """Publish the next ``count`` messages, at least one and at most a batch's, behind the calls that are out.

        Raises what the publisher raises; what becomes of the calls that are out then is not known.
        """
        broker, said = self._broker, {} if headers is None else dict(headers)
        while len(self._out) >= len(self._recorders):
            self._hear()
        recorder = self._recorders[0]
        self._recorders.append(self._recorders.pop(0))
        first, at, level = broker.number, recorder.clock(), int(priority)
        bodies = [broker.payloads.make(broker.publisher, number, at, level) for number in range(first, first + count)]
        call = recorder.invoke(Publish(self.topic, broker.publisher, first, count, level, said))
        broker.number += count
        out = _Out(recorder, call, bodies, said, level, [])
        self._out.append(out)
        try:
            for body in bodies:
                receipt = self.publisher.publish(body, headers, priority=priority, receipt=True)
                assert receipt is not None
                out.receipts.append(receipt)
            # It leaves now, so that the next call has a batch of its own; its answer is for later.
            with suppress(TimeoutError):
                out.receipts[-1].result(0.0)
        except BaseException as error:
            self._lost(error)
            raise

    def flush(self) -> None:
        """Wait for the answers to all calls. Raises what `publish_many` raises."""
        while self._out:
            self._hear()

    def close(self) -> None:
        """Flush, and let go of the connection. Raises what `publish_many` raises."""
        try:
            self.flush()
        finally:
            self.publisher.close()

    def _hear(self) -> None:
        """Wait for the answer to the first call."""
        try:
            self._answered(self._out[0])
        except BaseException as error:
            self._lost(error)
            raise
        self._out.popleft()

    def _answered(self, out: _Out) -> None:
        messages = [receipt.result() for receipt in out.receipts]
        out.recorder.ok(out.call, published(messages, self.topic, out.bodies, out.headers, out.priority))

    def _lost(self, error: BaseException) -> None:
        """Of some that are out, the answer came all the same."""
        while self._out:
            out = self._out.popleft()
            try:
                if len(out.receipts) < len(out.bodies) or not all(each.done() for each in out.receipts):
                    raise error
                self._answered(out)
            except BaseException as why:  # noqa: BLE001 - the caller is told the first one
                out.recorder.unknown(out.call, why)


@dataclass(frozen=True, slots=True)
class _Out:
    """A call of a publisher that has no answer."""

    recorder: Recorder
    call: int
    bodies: list[bytes]
    headers: dict[str, str]
    priority: int
    receipts: list[Receipt]


class RecordedConsumer:
    """A consumer, recorded, in the history of its group's client; one at a time there.

    What was yielded is in a history once `take` returns. An ack that was noted has no answer of its own: the broker has
    had it when `close` returns.
    """

    def __init__(self, group: RecordedSubscription, member: str, prefetch: int, idle_timeout: float) -> None:
        self._group = group
        self._member = member
        self._prefetch = prefetch
        self._idle_timeout = idle_timeout
        self._is_closed = False
        self._recorder = group.recorder
        call = self._invoke("begin")
        try:
            self.consumer = group.subscription.consume(member, prefetch=prefetch, idle_timeout=idle_timeout)
        except BaseException as error:
            self._recorder.raised(call, error)
            raise
        self._recorder.ok(call, Done())

    def take(self, max_messages: int, seconds: float) -> list[Delivery]:
        """The next deliveries: so many, or those of the first seconds, or fewer when no more come for a while or none
        may be held.

        Raises what the consumer raises; after some deliveries, in the next call.
        """
        recorder, consumer = self._recorder, self.consumer
        call = self._invoke("take", None if self._is_full() else self._idle_timeout)
        until = recorder.clock() + int(seconds * 1e9)
        deliveries: list[Delivery] = []
        try:
            while not deliveries or (
                len(deliveries) < max_messages and recorder.clock() < until and not self._is_full()
            ):
                delivery = next(consumer, None)
                if delivery is None:
                    break
                deliveries.append(delivery)
        except BaseException as error:
            if deliveries:
                self._taken(call, deliveries)
                call = self._invoke("take", None)
            recorder.raised(call, error)
            raise
        self._taken(call, deliveries)
        return deliveries

    def ack(self, deliveries: Iterable[Delivery]) -> list[bool]:
        """Ack what was taken; once it is closed, by calls of their own."""
        deliveries = list(deliveries)
        if self._is_closed:
            return [self._group.ack_delivery(each) for each in deliveries]
        request = Settle(self._group.subscription_id, "note", self._member, _targets(deliveries), None, "", None)
        call = self._recorder.invoke(request)
        answers = [each.ack() for each in deliveries]
        self._recorder.ok(call, Answers(bytes(answers), None))
        return answers

    def close(self) -> None:
        """Close it. Raises what that raises; what became of acks is not known then."""
        call = self._invoke("close")
        self._is_closed = True
        try:
            self.consumer.close()
        except BaseException as error:
            self._recorder.raised(call, error)
            raise
        self._recorder.ok(call, Done())

    def _is_full(self) -> bool:
        """As much is held as may be, so that it does not ask for more."""
        return len(self.consumer._settler.held) >= self._prefetch

    def _taken(self, call: int, deliveries: Sequence[Delivery]) -> None:
        recorder, group = self._recorder, self._group
        at = recorder.clock()
        recorder.ok(call, delivered(deliveries, group.subscription.topic, group.payloads), at)

    def _invoke(self, step: str, timeout: float | None = None) -> int:
        return self._recorder.invoke(Consume(step, self._group.subscription_id, self._member, self._prefetch, timeout))


def _targets(deliveries: Iterable[Delivery]) -> list[Target]:
    """Deliveries as stretches of consecutive ones."""
    targets: list[Target] = []
    first = token = count = 0
    for delivery in deliveries:
        sequence = sequence_of(delivery.message_id)
        if count and (sequence, delivery.token) == (first + count, token + count):
            count += 1
            continue
        if count:
            targets.append(Target(first, token, count))
        first, token, count = sequence, delivery.token, 1
    if count:
        targets.append(Target(first, token, count))
    return targets
