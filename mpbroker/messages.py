"""What travels: messages, deliveries, dead letters, and the figures about them.

Owns the public value types. Imports the argument checks. A Delivery talks to the subscription it came from through the
small Holder protocol, so the same class serves a broker in this process and one in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, Self

from mpbroker import checks

MAX_ERROR: Final = 4096
"""Characters of an error text that are kept: a traceback's last lines fit, a dump of the payload does not."""


class MessagePriority(IntEnum):
    """Ready messages leave highest priority first, and in publish order within one."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


def checked_priority(value: object) -> MessagePriority:
    if isinstance(value, MessagePriority):
        return value
    level = checks.count(value, "priority", minimum=0)
    if level > MessagePriority.CRITICAL:
        raise ValueError(f"priority must be a MessagePriority (0 to 3), not {level}")
    return MessagePriority(level)


class DeadLetterReason(StrEnum):
    """Why a message was set aside."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    OVERFLOW = "overflow"
    REJECTED = "rejected"
    FILTER_ERROR = "filter_error"


class AttemptOutcome(StrEnum):
    """How one counted attempt ended."""

    FAILED = "failed"
    LEASE_ENDED = "lease ended"
    WORKER_DIED = "worker died"
    REJECTED = "rejected"


class Headers(dict[str, str]):
    """The headers of a message: a dict that refuses changes, and travels through pickle."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("headers are read-only; publish a message with other headers instead")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[Headers], tuple[dict[str, str]]]:
        return Headers, (dict(self),)


NO_HEADERS: Final = Headers()


@dataclass(frozen=True, slots=True)
class Message:
    """One published message; immutable, and shared by every subscription that took it.

    Attributes:
        topic: where it was published.
        payload: what was published; in one process the very object, so do not change it.
        priority: see MessagePriority.
        headers: str to str, read-only.
        message_id: ``m1``, ``m2``, … in the order of the broker.
        timestamp: wall clock at publish, seconds since the epoch.
        sequence: the integer in message_id.
        uid: unique over all brokers and restarts; what deduplication uses.
    """

    topic: str
    payload: Any
    priority: MessagePriority = MessagePriority.NORMAL
    headers: Mapping[str, str] = field(default=NO_HEADERS)
    message_id: str = ""
    timestamp: float = 0.0
    sequence: int = 0
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One counted hand-over of a message that did not end in an ack.

    Times are seconds of the broker's clock (the host's monotonic one unless another was given).
    """

    number: int
    member: str
    started: float
    ended: float
    outcome: AttemptOutcome
    error: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that its subscription set aside, and why.

    Attributes:
        error: the text given to nack or reject, or what happened instead.
        attempts: counted hand-overs before it was set aside.
        dead_since: when, in seconds of the broker's clock.
        last_member: who held it in its last counted attempt, "" when there was none.
        history: the counted attempts, oldest first, the last 100 at most; kept over redrive.
    """

    subscription_id: str
    message: Message
    reason: DeadLetterReason
    error: str
    attempts: int = 0
    dead_since: float = 0.0
    last_member: str = ""
    history: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Stands for the payload of a listed dead letter that this process cannot decode."""

    encoded: bytes
    error: str


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """Where the copies of one subscription are, at one instant.

    ``accepted = acked + ready + delayed + in_flight + dead + dropped`` always holds.

    Attributes:
        accepted: copies it ever took, overflowed and filter-failed ones included.
        acked, ready, delayed, in_flight, dead: copies in each place now (acked: ever).
        dropped: purged dead letters, dead letters pushed out of the bounded store, and what a deletion dropped.
        backlog: ready + delayed.
        deliveries: hand-overs to members; redelivered: those of copies that had been handed over before.
        late_acks: acks refused because the copy was not held: taken back, acked already, or never given.
        filtered_out: messages of the topic that the filter did not accept.
        filter_errors: messages on which the filter raised.
        dead_lettered: copies that ever became dead letters, filter failures beyond the kept ones included.
    """

    accepted: int
    acked: int
    ready: int
    delayed: int
    in_flight: int
    dead: int
    dropped: int
    backlog: int
    deliveries: int
    redelivered: int
    late_acks: int
    filtered_out: int
    filter_errors: int
    dead_lettered: int


@dataclass(frozen=True, slots=True)
class TopicStats:
    """Figures of one topic: messages published, those that no subscription took, and its subscriptions now."""

    published: int
    unrouted: int
    subscriptions: int


class Batch(Protocol):
    """Where a delivery finds its message: index 0 is the batch's first, whose sequence is ``first``."""

    @property
    def first(self) -> int: ...

    @property
    def priority(self) -> MessagePriority: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def message(self, index: int) -> Message: ...


class OneMessage:
    """The batch of a delivery that travelled alone."""

    __slots__ = ("_message", "first", "headers", "priority")

    def __init__(self, message: Message) -> None:
        self._message = message
        self.first = message.sequence
        self.priority = message.priority
        self.headers = message.headers

    def message(self, index: int) -> Message:  # noqa: ARG002 - there is only one
        return self._message


class Holder(Protocol):
    """What a delivery asks of the subscription that made it; the token says which hand-over is meant."""

    def _ack_token(self, token: int) -> bool: ...

    def _nack_token(self, token: int, delay: float | None, error: str, now: float | None) -> bool: ...

    def _release_token(self, token: int) -> bool: ...

    def _reject_token(self, token: int, error: str) -> bool: ...

    def _extend_token(self, token: int, seconds: float | None, now: float | None) -> float | None: ...

    def _retry_token(self, delivery: Delivery, error: str) -> Delivery | None: ...


def error_text(error: object) -> str:
    """The text kept for an error given as text, as an exception, or not at all."""
    if error is None:
        return ""
    if isinstance(error, BaseException):
        try:
            detail = str(error)
        except Exception:  # noqa: BLE001 - a __str__ of the user's that fails must not hide the failure it tells of
            detail = ""
        text = f"{type(error).__name__}: {detail}" if detail else type(error).__name__
    else:
        text = checks.text(error, "error")
    if len(text) > MAX_ERROR:
        text = text[: MAX_ERROR - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()


class Delivery:
    """One hand-over of one message to one member.

    Its verbs act on exactly this hand-over, by its token: once the message was taken back and given out again, to
    whomever, they answer False and change nothing. As a context manager it acks when the block ends, nacks with the
    exception when it raises, and releases on KeyboardInterrupt and SystemExit.

    Attributes:
        attempt: 1 for the first counted hand-over.
        redelivered: the message was handed over before.
        deadline: when the broker may take it back, in seconds of its clock, which leaves out the time in which a broker
            process was stopped; infinite for a push dispatcher's.
        member: who got it.
        token: names this hand-over; never used again.
    """

    __slots__ = (
        "_batch",
        "_holder",
        "_index",
        "_message",
        "_settled",
        "attempt",
        "deadline",
        "member",
        "redelivered",
        "token",
    )

    def __init__(
        self,
        batch: Batch,
        index: int,
        attempt: int,
        redelivered: bool,
        deadline: float,
        member: str,
        token: int,
        holder: Holder,
    ) -> None:
        self._batch = batch
        self._index = index
        self._message: Message | None = None
        self._settled = False
        self._holder = holder
        self.attempt = attempt
        self.redelivered = redelivered
        self.deadline = deadline
        self.member = member
        self.token = token

    @property
    def message(self) -> Message:
        """The message.

        Raises:
            PayloadError: this process cannot decode its payload; the message was nacked, and its neighbours were not.
        """
        message = self._message
        if message is None:
            try:
                message = self._message = self._batch.message(self._index)
            except Exception as error:
                self.nack(error=error)
                raise
        return message

    @property
    def payload(self) -> Any:
        """What was published; see message."""
        return self.message.payload

    @property
    def message_id(self) -> str:
        """The id of the message; see message."""
        return f"m{self._batch.first + self._index}"

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the message; see message."""
        return self._batch.headers

    @property
    def priority(self) -> MessagePriority:
        """The priority of the message; see message."""
        return self._batch.priority

    def ack(self) -> bool:
        """Finish the message. False when this hand-over no longer holds it."""
        self._settled = True
        return self._holder._ack_token(self.token)

    def nack(
        self,
        *,
        delay: float | None = None,
        error: str | BaseException | None = None,
        now: float | None = None,
    ) -> bool:
        """Say that the attempt failed: the message comes back after ``delay`` seconds, or the retry policy's, or at
        once, or becomes a dead letter when this was its last attempt. False when this hand-over no longer holds it.
        """
        delay = checks.optional_seconds(delay, "delay")
        text = error_text(error)
        now = None if now is None else checks.moment(now)
        self._settled = True
        return self._holder._nack_token(self.token, delay, text, now)

    def release(self) -> bool:
        """Give the message back unprocessed: uncounted, ready at once. False when no longer held."""
        self._settled = True
        return self._holder._release_token(self.token)

    def reject(self, *, error: str | BaseException | None = None) -> bool:
        """Make the message a dead letter now: it can never work. False when no longer held."""
        text = error_text(error)
        self._settled = True
        return self._holder._reject_token(self.token, text)

    def extend(self, seconds: float | None = None, now: float | None = None) -> bool:
        """Move the deadline to now + ``seconds`` (default: the subscription's ack_timeout). False when not held."""
        seconds = checks.optional_seconds(seconds, "seconds")
        now = None if now is None else checks.moment(now)
        deadline = self._holder._extend_token(self.token, seconds, now)
        if deadline is None:
            return False
        self.deadline = deadline
        return True

    def retry(self, error: str | BaseException | None = None) -> Delivery | None:
        """Count this attempt as failed and keep holding the message as the next one.

        Returns:
            The delivery of the next attempt, with a token of its own; None when this was the last attempt (the
            message is a dead letter now) or when this hand-over no longer holds the message.
        """
        text = error_text(error)
        self._settled = True
        return self._holder._retry_token(self, text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self.nack(error=error)
        else:
            self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_delivery, (
            self.message,
            self.attempt,
            self.redelivered,
            self.deadline,
            self.member,
            self.token,
            self._holder,
        )

    def __repr__(self) -> str:
        return f"<Delivery token={self.token} attempt={self.attempt} member={self.member!r}>"


def _rebuild_delivery(
    message: Message,
    attempt: int,
    redelivered: bool,
    deadline: float,
    member: str,
    token: int,
    holder: Holder,
) -> Delivery:
    return Delivery(OneMessage(message), 0, attempt, redelivered, deadline, member, token, holder)
