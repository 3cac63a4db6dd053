"""The verbs of a subscription: poll, settle, look, dispatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from mpbroker import checks
from mpbroker.deliveries import Delivery
from mpbroker.messages import Message, SubscriptionStats, error_text
from mpbroker.pipeline.consumer import MAX_PREFETCH, PREFETCH, Consumer
from mpbroker.push.dispatcher import Dispatcher
from mpbroker.push.subscriber import Subscriber
from mpbroker.retry import RetryPolicy


class SubscriptionAPI(ABC):
    """A named place where messages of a topic wait, shared by the members of one worker group.

    Attributes:
        topic, name: as given to subscribe.
        subscriber: the Subscriber it was made with in this process, or None.
    """

    topic: str
    name: str
    subscriber: Subscriber | None
    _dispatcher: Dispatcher | None

    @property
    def subscription_id(self) -> str:
        """``topic/name``."""
        return f"{self.topic}/{self.name}"

    @property
    def pending(self) -> int:
        """Messages that wait: ready + delayed."""
        return self._stats(None).backlog

    @property
    def delivered(self) -> int:
        """Messages that were finished (acked) here, ever."""
        return self._stats(None).acked

    @property
    def dead_lettered(self) -> int:
        """Messages that became dead letters here, ever."""
        return self._stats(None).dead_lettered

    # -- hand over and settle -----------------------------------------------------------------------------------------

    def poll(
        self,
        member: str,
        now: float | None = None,
        max_messages: int = 1,
        *,
        timeout: float | None = 0.0,
        copy: bool = False,
    ) -> list[Delivery]:
        """Hand up to ``max_messages`` ready messages to ``member``.

        Takes back ended leases first. Returns what is ready; with nothing ready it waits up to ``timeout`` seconds
        for the first message (None: for ever) while other threads and processes go on. Highest priority leaves
        first, then publish order. If the caller's process dies, what it holds comes back.

        Args:
            member: the name this worker acks with.
            now: the time, for a broker whose time is driven by hand; then ``timeout`` must be 0.
            max_messages: at least 1; fewer may come, in one poll, than are ready: from a broker process at most
                16,384, and what fits its max_frame_bytes.
            timeout: seconds, at least 0, or None.
            copy: have large payloads copied into this process now. Otherwise they are read where their publisher put
                them, as read-only arrays and views, and nobody else has that memory until the last of these, and the
                delivery, are gone. In one process nothing is copied: payloads are what was published.

        Returns:
            Deliveries, or an empty list when nothing became ready in time.

        Raises:
            UnknownSubscription: it was deleted, also while waiting.
            SubscriptionBusy: a push dispatcher reads it.
            LimitReached: as many calls wait in a broker process as its max_waiting_calls allows.
        """
        member = checks.name(member, "member")
        checked_now = None if now is None else checks.moment(now)
        max_messages = checks.count(max_messages, "max_messages")
        timeout = checks.optional_seconds(timeout, "timeout")
        if checked_now is not None and timeout != 0.0:
            raise ValueError("timeout must be 0 when now is given: a poll cannot wait in a time that does not pass")
        return self._poll(member, checked_now, max_messages, timeout, copy=checks.flag(copy, "copy"))

    def consume(
        self, member: str, *, prefetch: int = PREFETCH, idle_timeout: float | None = None, copy: bool = False
    ) -> Consumer:
        """A Consumer: an iterator of deliveries that fetches ahead and acks in the background, many times as fast.

        Connects when it is iterated. Use it as a context manager, or close it: what it fetched and did not yield is
        leased until then.

        Args:
            member: the name this worker acks with.
            prefetch: messages that may be fetched, or yielded and not settled; 1 to 1,000,000, default 256. The last
                of them waits for the work of all others, which must be over before its lease ends: for slow work, few.
            idle_timeout: iteration ends when no message comes for so many seconds; None: never.
            copy: as for poll.

        Raises:
            InvalidName, TypeError, ValueError: an argument that cannot be.
        """
        return self._consume(
            checks.name(member, "member"),
            checks.count(prefetch, "prefetch", maximum=MAX_PREFETCH),
            checks.optional_seconds(idle_timeout, "idle_timeout"),
            copy=checks.flag(copy, "copy"),
        )

    def ack(self, message_id: str, member: str) -> bool:
        """Finish a message that ``member`` holds. False, and nothing changes, for anybody else and anything else."""
        return self._ack_ids([checks.text(message_id, "message_id")], checks.name(member, "member"))[0]

    def ack_many(self, message_ids: Iterable[str], member: str) -> list[bool]:
        """ack for each id, in one call; the answers in the order of the ids. A broker process takes up to 1,000,000."""
        return self._ack_ids(checks.message_ids(message_ids), checks.name(member, "member"))

    def nack(
        self,
        message_id: str,
        member: str,
        *,
        delay: float | None = None,
        error: str | BaseException | None = None,
        now: float | None = None,
    ) -> bool:
        """Say that ``member``'s attempt failed.

        The message comes back after ``delay`` seconds (default: the retry policy's; without one at once), or becomes
        a dead letter with ``error`` when the attempt was the last. False when the member does not hold it.
        """
        return self._nack_id(
            checks.text(message_id, "message_id"),
            checks.name(member, "member"),
            checks.optional_seconds(delay, "delay"),
            error_text(error),
            None if now is None else checks.moment(now),
        )

    def release(self, message_id: str, member: str) -> bool:
        """Give a message back unprocessed: the attempt does not count, and it is ready at once in its old place."""
        return self._release_id(checks.text(message_id, "message_id"), checks.name(member, "member"))

    def reject(self, message_id: str, member: str, *, error: str | BaseException | None = None) -> bool:
        """Make a message that ``member`` holds a dead letter now: it can never work."""
        return self._reject_id(checks.text(message_id, "message_id"), checks.name(member, "member"), error_text(error))

    def extend(self, message_id: str, member: str, seconds: float | None = None, now: float | None = None) -> bool:
        """Move the deadline of what ``member`` holds to now + ``seconds`` (default: ack_timeout)."""
        return self._extend_id(
            checks.text(message_id, "message_id"),
            checks.name(member, "member"),
            checks.optional_seconds(seconds, "seconds"),
            None if now is None else checks.moment(now),
        )

    def expire(self, now: float | None = None) -> int:
        """Take back every delivery with ``now >= deadline``; returns how many messages, dead-lettered ones included."""
        return self._expire(None if now is None else checks.moment(now))

    def offer(self, message: Message) -> bool:
        """Put a copy of a published message in this subscription alone; what publish does for each.

        Returns:
            False when the copy was not queued: the filter does not accept it, a message of that sequence is here, or
            the subscription is full (the message is a dead letter then).

        Raises:
            ValueError: the message is of another topic, or was never published (it has no sequence).
            QueueFull: the subscription is full and its overflow is REJECT or WAIT; an offer never waits.
        """
        if not isinstance(message, Message):
            raise TypeError(f"message must be a Message, not {type(message).__name__}")
        if message.topic != self.topic:
            raise ValueError(f"message is of topic {message.topic!r}; this subscription is of {self.topic!r}")
        checks.count(message.sequence, "message.sequence")
        if message.message_id != f"m{message.sequence}":
            raise ValueError(
                f"message_id {message.message_id!r} and sequence {message.sequence} do not belong together"
            )
        return self._offer(message)

    def stats(self, now: float | None = None) -> SubscriptionStats:
        """Where its messages are, at one instant; delayed messages that are due at ``now`` count as ready."""
        return self._stats(None if now is None else checks.moment(now))

    # -- push ---------------------------------------------------------------------------------------------------------

    def dispatch_one(self, block: bool = True, timeout: float | None = None) -> bool:
        """Bring one message to the subscriber, in this thread, through all its attempts.

        Waits for a message when ``block`` (at most ``timeout`` seconds). Returns True when a message was finished:
        processed, or dead-lettered after its last attempt. KeyboardInterrupt and SystemExit from the subscriber
        release the message and propagate.

        Raises:
            SubscriptionBusy: another dispatcher has it, or a call is running.
            TypeError: the subscription has no subscriber in this process.
        """
        return self._needed_dispatcher().dispatch_one(
            checks.flag(block, "block"), checks.optional_seconds(timeout, "timeout")
        )

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is ready, delayed or in flight here; False when ``timeout`` seconds passed first."""
        return self._wait_idle(checks.optional_seconds(timeout, "timeout"))

    def close(self) -> None:
        """Stop dispatching to the subscriber, after the call that runs; messages stay. Does nothing without one."""
        if self._dispatcher is not None:
            self._dispatcher.close()

    def _needed_dispatcher(self) -> Dispatcher:
        if self._dispatcher is None:
            raise TypeError(
                f"subscription {self.subscription_id!r} has no subscriber in this process; "
                "subscribe(topic, subscriber) makes one that can be dispatched"
            )
        return self._dispatcher

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.subscription_id!r}>"

    # -- what a kind of broker implements; arguments are checked ------------------------------------------------------

    @property
    @abstractmethod
    def retry_policy(self) -> RetryPolicy | None:
        """The delays between attempts, or None."""

    @abstractmethod
    def _poll(
        self, member: str, now: float | None, max_messages: int, timeout: float | None, *, copy: bool = False
    ) -> list[Delivery]: ...

    @abstractmethod
    def _consume(self, member: str, prefetch: int, idle_timeout: float | None, *, copy: bool = False) -> Consumer: ...

    @abstractmethod
    def _ack_ids(self, message_ids: Sequence[str], member: str) -> list[bool]: ...

    @abstractmethod
    def _nack_id(self, message_id: str, member: str, delay: float | None, error: str, now: float | None) -> bool: ...

    @abstractmethod
    def _release_id(self, message_id: str, member: str) -> bool: ...

    @abstractmethod
    def _reject_id(self, message_id: str, member: str, error: str) -> bool: ...

    @abstractmethod
    def _extend_id(self, message_id: str, member: str, seconds: float | None, now: float | None) -> bool: ...

    @abstractmethod
    def _ack_token(self, token: int) -> bool: ...

    @abstractmethod
    def _nack_token(self, token: int, delay: float | None, error: str, now: float | None) -> bool: ...

    @abstractmethod
    def _release_token(self, token: int) -> bool: ...

    @abstractmethod
    def _reject_token(self, token: int, error: str) -> bool: ...

    @abstractmethod
    def _extend_token(self, token: int, seconds: float | None, now: float | None) -> float | None: ...

    @abstractmethod
    def _retry_token(self, delivery: Delivery, error: str) -> Delivery | None: ...

    @abstractmethod
    def _expire(self, now: float | None) -> int: ...

    @abstractmethod
    def _offer(self, message: Message) -> bool: ...

    @abstractmethod
    def _stats(self, now: float | None) -> SubscriptionStats: ...

    @abstractmethod
    def _wait_idle(self, timeout: float | None) -> bool: ...

    @abstractmethod
    def _attach_dispatcher(self) -> str: ...

    @abstractmethod
    def _detach_dispatcher(self, member: str) -> None: ...
