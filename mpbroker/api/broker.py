"""The verbs of a broker: topics, subscriptions, publish, dead letters, time, push."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from mpbroker import checks
from mpbroker.api.subscription import SubscriptionAPI
from mpbroker.messages import (
    DeadLetter,
    Message,
    MessagePriority,
    SubscriptionStats,
    TopicStats,
    checked_priority,
)
from mpbroker.overflow import Overflow, WaitForRoom
from mpbroker.pipeline import Publisher, PublishOptions
from mpbroker.pipeline.publisher import LINGER_S, MAX_BYTES, MAX_MESSAGES
from mpbroker.push.dispatcher import DispatcherPool
from mpbroker.push.subscriber import Subscriber
from mpbroker.retry import RetryPolicy
from mpbroker.settings import UNSET, Filter, Given, Unset


class BrokerAPI(ABC):
    """Topics, named subscriptions that each get every message, and worker groups that share one."""

    _pool: DispatcherPool

    # -- topics and subscriptions -------------------------------------------------------------------------------------

    def create_topic(self, name: str, *, exist_ok: bool = False) -> None:
        """Make a topic.

        Raises:
            TopicExists: it is there, and ``exist_ok`` is False.
            InvalidName: not 1 to 255 characters, or with a control character, ``/``, ``*``, ``>`` or a leading ``$``.
        """
        self._create_topic(checks.name(name, "topic"), checks.flag(exist_ok, "exist_ok"))

    def delete_topic(self, name: str) -> None:
        """End a topic and its subscriptions; what they held is dropped. Raises UnknownTopic."""
        self._delete_topic(checks.name(name, "topic"))

    def topics(self) -> dict[str, TopicStats]:
        """Every topic with its figures, in the order of creation."""
        return self._topics()

    def subscriptions(self, topic: str | None = None) -> dict[str, SubscriptionStats]:
        """Every subscription (of ``topic``, or of all) by its id, with its figures. Raises UnknownTopic."""
        return self._subscriptions(None if topic is None else checks.name(topic, "topic"))

    def subscribe(
        self,
        topic: str,
        name_or_subscriber: str | Subscriber,
        filter: Filter | str | Unset | None = UNSET,
        ack_timeout: float | Unset = UNSET,
        max_deliveries: int | Unset = UNSET,
        *,
        retry: RetryPolicy | Unset | None = UNSET,
        max_queue: int | Unset = UNSET,
        overflow: Overflow | WaitForRoom | Unset = UNSET,
        ephemeral: bool | Unset = UNSET,
    ) -> SubscriptionAPI:
        """Make a subscription, or get the one of that name; it sees what is published from then on.

        Args:
            topic: an existing topic.
            name_or_subscriber: the name of a subscription that workers poll, or a Subscriber, whose
                subscriber_id is the name and which a dispatcher feeds (see dispatch_one, run_until_idle, start).
            filter: which messages it gets, by their headers: an expression such as
                ``headers.type = "created" AND NOT headers.region = "eu"``, or a quick callable on the headers, or
                None (default) for all. A callable runs under the broker's lock.
            ack_timeout: seconds a delivery is held before it is taken back; default 30.
            max_deliveries: counted hand-overs before a message becomes a dead letter; default 5.
            retry: delays between attempts; default: none, failed messages come back at once. Subscriptions with a
                Subscriber default to RetryPolicy(). Its max_attempts is max_deliveries.
            max_queue: bound on ready + delayed + in flight; default 1,000,000.
            overflow: what a publish beyond max_queue does; default Overflow.DEAD_LETTER. With Overflow.WAIT(seconds) it
                waits for room, and everybody who publishes to the topic what this subscription wants waits for its
                readers: a thread that publishes must not be the one that reads.
            ephemeral: it ends, and what it held is dropped, when this process ends, however that happens, or closes its
                connections; with a broker in this process, when that is closed. For replies, and for looking on. It is
                its maker's: another process that makes it, too, gets SubscriptionConflict; a handle it may have.

        Raises:
            UnknownTopic: create_topic first.
            SubscriptionConflict: it exists, and a setting given here differs.
            InvalidFilter: the expression does not parse, or the callable cannot be used by this broker.
            TypeError, ValueError: an argument of the wrong type or range.
        """
        topic = checks.name(topic, "topic")
        subscriber = name_or_subscriber if isinstance(name_or_subscriber, Subscriber) else None
        if subscriber is None and not isinstance(name_or_subscriber, str):
            raise TypeError(f"name must be a str or a Subscriber, not {type(name_or_subscriber).__name__}")
        name = checks.name(name_or_subscriber if subscriber is None else subscriber.subscriber_id, "subscription")
        given = Given.check(filter, ack_timeout, max_deliveries, retry, max_queue, overflow, ephemeral)
        subscription = self._subscribe(topic, name, subscriber, given)
        if subscription._dispatcher is not None:
            self._pool.add(subscription._dispatcher)
        return subscription

    def subscription(self, topic: str, name: str) -> SubscriptionAPI:
        """A handle on an existing subscription, whatever its settings. Raises UnknownSubscription."""
        return self._subscription(checks.name(topic, "topic"), checks.name(name, "subscription"))

    def unsubscribe(self, topic: str, name: str) -> None:
        """End a subscription; what it held is dropped, and polls that wait raise. Raises UnknownSubscription."""
        self._unsubscribe(checks.name(topic, "topic"), checks.name(name, "subscription"))

    # -- publish ------------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: Any,
        headers: Mapping[str, str] | None = None,
        *,
        priority: MessagePriority = MessagePriority.NORMAL,
    ) -> Message:
        """Put one copy of a message in every subscription of ``topic`` whose filter accepts it.

        Never waits for a reader, unless a subscription has Overflow.WAIT. Returns after the broker applied it; messages
        of concurrent publishers reach all subscriptions in one order, that of their ids.

        With Overflow.WAIT(seconds) it waits until there is room in all such subscriptions at once, and goes before
        whoever comes later and wants to one of them. Of those that are full, the one with the fewest seconds since
        the call says how long. Subscriptions and their filters count as they are when the message goes, and may be
        asked several times. An interruption (Ctrl-C), an end of this process or of the connection while it waits
        publishes nothing.

        Raises:
            UnknownTopic: no such topic, or it was deleted while this waited.
            QueueFull: a subscription with Overflow.REJECT is full, or one with Overflow.WAIT was for its seconds;
                nothing was published.
            PayloadError: the payload cannot travel; nothing was published.
            BrokerFull (a QueueFull), PayloadTooLarge, HeadersTooLarge: of a broker process, whose max_queue_bytes,
                max_payload_bytes or max_frame_bytes, max_headers or max_header_bytes it exceeds; nothing was
                published.
        """
        return self._publish(
            checks.name(topic, "topic"), [payload], checks.headers(headers), checked_priority(priority)
        )[0]

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        headers: Mapping[str, str] | None = None,
        *,
        priority: MessagePriority = MessagePriority.NORMAL,
    ) -> list[Message]:
        """Publish a message for each payload, all or none, with consecutive ids, in one call.

        All have the same headers and priority. A broker process takes up to 1,000,000 payloads in one call, within
        its max_frame_bytes. Where publish would wait for room this waits until all fit together; what is more than a
        max_queue never does, and is QueueFull at once. Raises what publish raises, and ValueError for more payloads
        than that.
        """
        topic = checks.name(topic, "topic")
        is_one = isinstance(payloads, (str, bytes, bytearray, memoryview, Mapping))
        if is_one or not isinstance(payloads, Iterable):
            raise TypeError(f"payloads must be an iterable of payloads, not {type(payloads).__name__}")
        return self._publish(topic, list(payloads), checks.headers(headers), checked_priority(priority))

    def publisher(
        self, topic: str, *, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES, linger: float = LINGER_S
    ) -> Publisher:
        """A Publisher to a topic: publish without waiting for each answer, many times as fast.

        Connects, and looks for the topic, when it first sends. Close it, or use it as a context manager.

        Args:
            max_messages, max_bytes: what may be unconfirmed by the broker, and is lost if that dies; where more would
                be, publish waits. Default 8192 and 16 MiB: a fraction of a second of a broker's work. A message that
                is larger than max_bytes goes alone.
                Up to 256 messages are one batch, which is published as by publish_many, all of it or nothing. Where a
                subscription with Overflow.REJECT or Overflow.WAIT has a max_queue below that, give a max_messages
                that is not above it, or more than fits at all is refused at once.
            linger: seconds until a batch that does not fill up is sent; 0: each message at once, by itself. Default
                0.005. Longer saves work where little is published, and delays it.

        Raises:
            InvalidName, TypeError, ValueError: an argument that cannot be.
        """
        return self._publisher(topic, PublishOptions(max_messages=max_messages, max_bytes=max_bytes, linger=linger))

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_letters(
        self, subscription_id: str | None = None, *, limit: int | None = None, offset: int = 0
    ) -> list[DeadLetter]:
        """Dead letters, oldest first, of one subscription or of all (then subscription by subscription).

        Args:
            limit: at most so many (None: all). offset: skip so many first.

        Raises:
            UnknownSubscription: no subscription has that id.
        """
        return self._dead_letters(
            None if subscription_id is None else checks.subscription_id(subscription_id),
            None if limit is None else checks.count(limit, "limit"),
            checks.count(offset, "offset", minimum=0),
        )

    def redrive(
        self,
        subscription_id: str,
        message_ids: Iterable[str] | None = None,
        *,
        limit: int | None = None,
    ) -> int:
        """Put dead letters back in their subscription, oldest first, as far as they fit.

        They keep id and history; their attempts start again.

        Args:
            message_ids: only these; None: all. limit: at most so many.

        Returns:
            How many were put back.

        Raises:
            UnknownSubscription: no subscription has that id.
        """
        return self._redrive(
            checks.subscription_id(subscription_id),
            _sequences(message_ids),
            None if limit is None else checks.count(limit, "limit"),
        )

    def purge_dead_letters(
        self,
        subscription_id: str,
        message_ids: Iterable[str] | None = None,
        *,
        limit: int | None = None,
    ) -> int:
        """Forget dead letters, oldest first; arguments as for redrive. Returns how many were forgotten."""
        return self._purge(
            checks.subscription_id(subscription_id),
            _sequences(message_ids),
            None if limit is None else checks.count(limit, "limit"),
        )

    # -- time ---------------------------------------------------------------------------------------------------------

    def expire(self, now: float | None = None) -> int:
        """Take back every delivery with ``now >= deadline`` in all subscriptions; returns how many messages."""
        return self._expire(None if now is None else checks.moment(now))

    def next_deadline(self) -> float | None:
        """When the next lease ends or delayed message is due, in the broker's clock; None when nothing will."""
        return self._next_deadline()

    # -- push ---------------------------------------------------------------------------------------------------------

    def run_until_idle(self) -> int:
        """Dispatch, in this thread, until no push subscription of this process has a message; returns how many were
        finished."""
        return self._pool.run_until_idle()

    def start(self) -> None:
        """Run a dispatcher thread for every push subscription of this process, now and from now on."""
        self._pool.start()

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is ready, delayed or in flight in the push subscriptions of this process.

        Returns False when ``timeout`` seconds passed first. A message that a subscriber works on is in flight.
        """
        return self._pool.wait_idle(checks.optional_seconds(timeout, "timeout"))

    def close(self) -> None:
        """Stop the dispatchers of this process, each after the call that runs. Safe to call again."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- what a kind of broker implements; arguments are checked ------------------------------------------------------

    @abstractmethod
    def _create_topic(self, name: str, exist_ok: bool) -> None: ...

    @abstractmethod
    def _delete_topic(self, name: str) -> None: ...

    @abstractmethod
    def _topics(self) -> dict[str, TopicStats]: ...

    @abstractmethod
    def _subscriptions(self, topic: str | None) -> dict[str, SubscriptionStats]: ...

    @abstractmethod
    def _subscribe(self, topic: str, name: str, subscriber: Subscriber | None, given: Given) -> SubscriptionAPI: ...

    @abstractmethod
    def _subscription(self, topic: str, name: str) -> SubscriptionAPI: ...

    @abstractmethod
    def _unsubscribe(self, topic: str, name: str) -> None: ...

    @abstractmethod
    def _publish(
        self, topic: str, payloads: list[Any], headers: dict[str, str], priority: MessagePriority
    ) -> list[Message]: ...

    @abstractmethod
    def _publisher(self, topic: str, options: PublishOptions) -> Publisher: ...

    @abstractmethod
    def _dead_letters(self, subscription_id: str | None, limit: int | None, offset: int) -> list[DeadLetter]: ...

    @abstractmethod
    def _redrive(self, subscription_id: str, sequences: list[int] | None, limit: int | None) -> int: ...

    @abstractmethod
    def _purge(self, subscription_id: str, sequences: list[int] | None, limit: int | None) -> int: ...

    @abstractmethod
    def _expire(self, now: float | None) -> int: ...

    @abstractmethod
    def _next_deadline(self) -> float | None: ...


def _sequences(message_ids: object) -> list[int] | None:
    return None if message_ids is None else [checks.sequence_of(each) for each in checks.message_ids(message_ids)]
