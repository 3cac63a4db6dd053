"""What a publisher sends in one: consecutive payloads with the same headers and priority.

Owns Batch, a plain record that the publisher fills and its wire sends; Receipt, the look at one message of it; and what
such a wire is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from mpbroker import checks
from mpbroker.loans import Loan
from mpbroker.messages import Headers, Message, MessagePriority

if TYPE_CHECKING:
    from mpbroker.pipeline.publisher import Publisher

BATCH_MESSAGES: Final = 256
BATCH_BYTES: Final = 64 * 1024
"""What a broker takes as one batch: a larger one would be cut there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a batch that was published.

    first: the sequence of its first message. incarnation: of the broker that gave it.
    """

    first: int
    timestamp: float
    incarnation: str


class Batch:
    """Attributes:
    headers: checked and copied; None: none.
    parts: the payloads as the wire takes them; empty once it has made the body of them.
    most: parts that fit. room: bytes that still fit; size: bytes that did at first.
    begun: when, by the publisher's clock.
    count: of parts, once nothing is added any more and it is sent; 0 until then.
    number, body: the wire's; 0 and None until it is sent for the first time.
    answer: what became of it; an exception: it was not published, or nobody knows.
    watched: every message of it has a receipt, which tells of an error.
    """

    __slots__ = (
        "answer",
        "begun",
        "body",
        "count",
        "headers",
        "most",
        "number",
        "parts",
        "priority",
        "room",
        "size",
        "watched",
    )

    def __init__(
        self, headers: dict[str, str] | None, priority: MessagePriority, most: int, size: int, begun: float
    ) -> None:
        self.headers = headers
        self.priority = priority
        self.parts: list[Any] = []
        self.most = most
        self.room = size
        self.size = size
        self.begun = begun
        self.count = 0
        self.number = 0
        self.body: Any = None
        self.answer: Answer | Exception | None = None
        self.watched = True

    @property
    def messages(self) -> int:
        return self.count or len(self.parts)

    @property
    def nbytes(self) -> int:
        return self.size - self.room


class Receipt:
    """What became of one message that a Publisher was given with ``receipt=True``. Good in any thread."""

    __slots__ = ("_batch", "_index", "_payload", "_publisher")

    def __init__(self, publisher: Publisher, batch: Batch, index: int, payload: Any) -> None:
        """Made by `Publisher.publish`."""
        self._publisher = publisher
        self._batch = batch
        self._index = index
        self._payload = payload

    def result(self, timeout: float | None = None) -> Message:
        """The message as the broker published it; sends what it waits in, and waits for the broker's answer.

        Args:
            timeout: seconds, at least 0, or None: for ever.

        Raises:
            TimeoutError: no answer came in time; ask again later.
            What kept it from being published (QueueFull, UnknownTopic, …), as publish() of the broker raises it.
            BrokerGone: the broker ended before it answered; whether it published the message died with it.
        """
        batch, topic = self._batch, self._publisher.topic
        if batch.answer is None and not self._publisher._await(batch, checks.optional_seconds(timeout, "timeout")):
            raise TimeoutError(f"no answer for a message to {topic!r} within {timeout:g} s")
        answer = batch.answer
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        sequence = answer.first + self._index
        return Message(
            topic,
            self._payload,
            batch.priority,
            Headers(batch.headers or {}),
            f"m{sequence}",
            answer.timestamp,
            sequence,
            f"{answer.incarnation}-{sequence}",
        )

    def done(self) -> bool:
        """Whether `result` has something to tell. Never waits, and sends nothing."""
        return self._batch.answer is not None

    def __repr__(self) -> str:
        state = "waits" if self._batch.answer is None else repr(self._batch.answer)
        return f"<Receipt of a message to {self._publisher.topic!r}: {state}>"


class PublishWire(Protocol):
    """The way of batches to a broker. Everything but `encode` is called by one thread at a time."""

    payload_bytes: int
    """Bound of one payload; 0 before `take` was called."""

    window: int
    """Batches that may be out without an answer: at most WINDOW, and no more than the answers of fit the way back."""

    def encode(self, payload: Any) -> tuple[Any, int]:
        """What goes into a batch for a payload that is not some bytes, and its size. May wait for room in an arena, and
        connect. Raises PayloadError, and what these raise."""

    def loan(self, nbytes: int) -> Loan: ...

    def take(self, is_anything_out: bool) -> bool:
        """Begin to use the line; whether it is another one, on which nothing was sent. Without `put` it is the last use
        of it. is_anything_out: batches were sent that have no answer. Raises what says that the broker is gone, or does
        not answer."""

    def put(self) -> None:
        """End to use the line: all that was begun on it was finished."""

    def send(self, topic: str, batch: Batch) -> None: ...

    def receive(self, timeout_s: float | None) -> Answer | Exception | None:
        """The answer to the first batch that has none yet; None: none came in so many seconds."""

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""

    def close(self) -> None: ...
