"""What travels: messages, dead letters, and the figures about them.

Owns the public value types. Imports the argument checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final, NoReturn

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
