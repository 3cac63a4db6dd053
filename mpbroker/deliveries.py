"""Delivery: one hand-over of one message, and what it asks of whoever made it.

A Delivery talks to the subscription it came from through the small Holder protocol, and finds its message in a Batch,
so the same class serves a broker in this process and one in another. Imports messages and the argument checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self, SupportsFloat

from mpbroker import checks
from mpbroker.messages import Message, MessagePriority, error_text


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
        delay: SupportsFloat | None = None,
        error: str | BaseException | None = None,
        now: SupportsFloat | None = None,
    ) -> bool:
        """Say that the attempt failed: the message comes back after ``delay`` seconds, or the retry policy's, or at
        once, or becomes a dead letter when this was its last attempt. False when this hand-over no longer holds it.
        """
        after = checks.optional_seconds(delay, "delay")
        text = error_text(error)
        moment = None if now is None else checks.moment(now)
        self._settled = True
        return self._holder._nack_token(self.token, after, text, moment)

    def release(self) -> bool:
        """Give the message back unprocessed: uncounted, ready at once. False when no longer held."""
        self._settled = True
        return self._holder._release_token(self.token)

    def reject(self, *, error: str | BaseException | None = None) -> bool:
        """Make the message a dead letter now: it can never work. False when no longer held."""
        text = error_text(error)
        self._settled = True
        return self._holder._reject_token(self.token, text)

    def extend(self, seconds: SupportsFloat | None = None, now: SupportsFloat | None = None) -> bool:
        """Move the deadline to now + ``seconds`` (default: the subscription's ack_timeout). False when not held."""
        more = checks.optional_seconds(seconds, "seconds")
        moment = None if now is None else checks.moment(now)
        deadline = self._holder._extend_token(self.token, more, moment)
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
