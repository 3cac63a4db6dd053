"""A recorded client that sends without waiting for each answer: a publisher, with a history of every batch.

Owns which calls are out, each in a history of its own. For one thread. Imported by who plays clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from mpbroker.messages import MessagePriority
from mpbroker.pipeline import Receipt
from mpbroker.testing.history import Publish, Recorder
from mpbroker.testing.recorded import RecordedBroker
from mpbroker.testing.results import published

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
