"""What queues are made of: batches of messages, and runs over them.

A batch is what one publish brought: consecutive sequences, one topic, priority, timestamp and set of headers. It never
changes. A run is a stretch of one batch whose copies are in the same state: queues hold runs, a lease covers one, and
what a message costs falls with the length of its run. Imported by the engine, and by whoever brings batches of its
own making (the broker process keeps messages as the bytes that came).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Protocol

from mpbroker.messages import Attempt, Headers, Message, MessagePriority

MAX_BATCH: Final = 256
"""Messages in a batch, so that an index fits the low byte of a token and one unacked message pins little."""

MAX_HISTORY: Final = 100
"""Attempts kept in a copy's history; a subscription may allow more deliveries than anyone reads about."""


class Batch(ABC):
    """Consecutive messages of one publish; sequence of index i is ``first + i``."""

    __slots__ = ("count", "first", "headers", "priority", "timestamp", "topic")

    def __init__(
        self,
        topic: str,
        first: int,
        count: int,
        priority: MessagePriority,
        timestamp: float,
        headers: Headers,
    ) -> None:
        self.topic = topic
        self.first = first
        self.count = count
        self.priority = priority
        self.timestamp = timestamp
        self.headers = headers

    @abstractmethod
    def message(self, index: int) -> Message:
        """The message at an index."""

    @abstractmethod
    def alone(self, index: int) -> tuple[Batch, int]:
        """Where that message is to be kept, and its index there: in a batch of its own, so that it does not keep this
        one alive; or in this one, where there is no other or no room to make one."""

    def remembered(self, attempt: Attempt, history: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
        """The history of copies of it after one more attempt; the same where there is no room to keep it."""
        return (*history[1 - MAX_HISTORY :], attempt)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that handing all of it over takes in a reply, at most; 0 where nothing is encoded."""


class Content(Protocol):
    """The payloads of a batch before it has sequences."""

    def __len__(self) -> int: ...

    def batch(
        self,
        topic: str,
        first: int,
        priority: MessagePriority,
        timestamp: float,
        headers: Headers,
        incarnation: str,
    ) -> Batch: ...


class MessageBatch(Batch):
    """A batch of message objects, for a broker in the process of its users."""

    __slots__ = ("messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        head = messages[0]
        headers = head.headers if isinstance(head.headers, Headers) else Headers(head.headers)
        super().__init__(head.topic, head.sequence, len(messages), head.priority, head.timestamp, headers)
        self.messages = messages

    def message(self, index: int) -> Message:
        return self.messages[index]

    def alone(self, index: int) -> tuple[Batch, int]:
        return (self if self.count == 1 else MessageBatch((self.messages[index],))), 0

    @property
    def nbytes(self) -> int:
        return 0


class Payloads:
    """Up to MAX_BATCH payload objects, as Content."""

    __slots__ = ("_payloads",)

    def __init__(self, payloads: Sequence[Any]) -> None:
        self._payloads = payloads

    def __len__(self) -> int:
        return len(self._payloads)

    def batch(
        self,
        topic: str,
        first: int,
        priority: MessagePriority,
        timestamp: float,
        headers: Headers,
        incarnation: str,
    ) -> MessageBatch:
        return MessageBatch(
            [
                Message(topic, payload, priority, headers, f"m{n}", timestamp, n, f"{incarnation}-{n}")
                for n, payload in enumerate(self._payloads, first)
            ]
        )


class Run:
    """Copies of the messages ``start`` to ``stop`` (indices, stop excluded) of a batch, in one state.

    Attributes:
        sequence: of the first of them; orders runs, since the runs of a subscription never overlap.
        attempts: counted hand-overs so far.
        seen: they were handed over before, counted or not.
        alone: a process died with them, so they are handed over one at a time.
        history: the counted attempts; shared, never changed.
    """

    __slots__ = ("alone", "attempts", "batch", "history", "seen", "sequence", "start", "stop")

    def __init__(
        self,
        batch: Batch,
        start: int,
        stop: int,
        attempts: int = 0,
        seen: bool = False,
        alone: bool = False,
        history: tuple[Attempt, ...] = (),
    ) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop
        self.sequence = batch.first + start if start else batch.first  # the same object, where it is the same
        self.attempts = attempts
        self.seen = seen
        self.alone = alone
        self.history = history

    def __len__(self) -> int:
        return self.stop - self.start

    def split(self, count: int) -> Run:
        """Cut the first ``count`` copies off into a run of their own; this one keeps the rest."""
        middle = self.start + count
        head = Run(self.batch, self.start, middle, self.attempts, self.seen, self.alone, self.history)
        self.start = middle
        self.sequence += count
        return head

    def __repr__(self) -> str:
        return f"<Run m{self.sequence}..m{self.sequence + len(self) - 1} attempts={self.attempts}>"
