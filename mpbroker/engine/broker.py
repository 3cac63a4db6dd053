"""The engine: topics, the counter of ids, and the fan-out of a publish to its subscriptions.

It decides; it never waits, reads no clock and starts nothing. One lock guards the topic table, the counter and the
fan-out, so that concurrent publishes get their ids and reach every subscription in the same order. It is taken before
a subscription's lock and never after one. The only user code that runs under it is a subscription's filter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from mpbroker.engine.batch import Batch, Content
from mpbroker.engine.letters import MAX_LETTERS
from mpbroker.engine.room import NoRoom, ThreadWaiter, Waiter
from mpbroker.engine.subscription import Subscription
from mpbroker.errors import (
    QueueFull,
    SubscriptionConflict,
    TopicExists,
    UnknownSubscription,
    UnknownTopic,
)
from mpbroker.messages import Headers, MessagePriority, SubscriptionStats, TopicStats
from mpbroker.retry import RetryPolicy
from mpbroker.settings import Given, Settings


class BrokerLock:
    """A lock that refuses its own holder, so that a filter which calls the broker gets an error and not a deadlock."""

    __slots__ = ("_holder", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self._holder == thread:
            raise RuntimeError("a filter runs inside the broker and cannot call it")
        self._lock.acquire()
        self._holder = thread

    def __exit__(self, *_: object) -> None:
        self._holder = 0
        self._lock.release()


class Topic:
    """Where messages go in; guarded by the broker's lock."""

    __slots__ = ("name", "published", "subscriptions", "unrouted")

    def __init__(self, name: str) -> None:
        self.name = name
        self.published = 0
        self.unrouted = 0
        self.subscriptions: dict[str, Subscription] = {}


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish did: the sequence of its first message, its batches, who queued at least one of them, and who only
    set some aside."""

    first: int
    batches: list[Batch]
    subscriptions: list[Subscription]
    aside: list[Subscription]


class Engine:
    """The state of one broker.

    Args:
        incarnation: names this broker among all that ever were; the first part of every uid.
        on_ready: called with a subscription, under its lock, when copies of it became ready or it ended; it may only
            take note.
        max_letters: dead letters kept in each subscription.

    Attributes:
        trash: what was forgotten. Whoever calls the engine clears it when no lock is held: the last reference to a
            payload runs its finalizer, which is user code and may call the broker.
    """

    def __init__(
        self,
        *,
        incarnation: str,
        on_ready: Callable[[Subscription], None] | None = None,
        max_letters: int = MAX_LETTERS,
    ) -> None:
        self.incarnation = incarnation
        self._max_letters = max_letters
        self.trash: deque[object] = deque()
        self._on_ready = on_ready
        self._lock = BrokerLock()  # guards everything below
        self._topics: dict[str, Topic] = {}
        self._numbered: dict[int, Subscription] = {}
        self._next_sequence = 1
        self._next_number = 1
        self._next_place = 1

    # -- topics -------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, exist_ok: bool = False) -> None:
        with self._lock:
            if name not in self._topics:
                self._topics[name] = Topic(name)
            elif not exist_ok:
                raise TopicExists(name)

    def delete_topic(self, name: str) -> list[Subscription]:
        """Returns the subscriptions that ended with it."""
        with self._lock:
            topic = self._topic(name)
            del self._topics[name]
            ended = list(topic.subscriptions.values())
            for subscription in ended:
                self._end(subscription)
            return ended

    def topics(self) -> dict[str, TopicStats]:
        with self._lock:
            return {
                topic.name: TopicStats(topic.published, topic.unrouted, len(topic.subscriptions))
                for topic in self._topics.values()
            }

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, name: str, given: Given, default_retry: RetryPolicy | None = None) -> Subscription:
        """Make a subscription, or find the one of that name.

        Args:
            default_retry: the policy of a new one when ``given`` names none.

        Raises:
            UnknownTopic; SubscriptionConflict: it exists, and a given setting differs.
        """
        with self._lock:
            table = self._topic(topic).subscriptions
            existing = table.get(name)
            if existing is not None:
                conflicts = given.conflicts(existing.settings)
                if conflicts:
                    raise SubscriptionConflict(existing.subscription_id, conflicts)
                return existing
            number = self._next_number
            self._next_number += 1
            settings = given.settings(default_retry)
            subscription = Subscription(
                number, topic, name, settings, self._lock, self._on_ready, self.trash, self._max_letters
            )
            table[name] = subscription
            self._numbered[number] = subscription
            return subscription

    def subscription(self, topic: str, name: str) -> Subscription:
        with self._lock:
            return self._find(topic, name)

    def by_id(self, subscription_id: str) -> Subscription:
        """By ``topic/name``; raises UnknownSubscription."""
        topic, _, name = subscription_id.partition("/")
        with self._lock:
            return self._find(topic, name)

    def by_number(self, number: int) -> Subscription | None:
        return self._numbered.get(number)

    def unsubscribe(self, topic: str, name: str) -> Subscription:
        """Returns the subscription that ended."""
        with self._lock:
            subscription = self._find(topic, name)
            del self._topics[topic].subscriptions[name]
            self._end(subscription)
            return subscription

    def fan_out(self, topic: str) -> int:
        """How many subscriptions a topic has; 0 when it does not exist. For a broker of one thread: takes no lock."""
        found = self._topics.get(topic)
        return 0 if found is None else len(found.subscriptions)

    def all_subscriptions(self, topic: str | None = None) -> list[Subscription]:
        """Of a topic, or of all; raises UnknownTopic."""
        with self._lock:
            topics = list(self._topics.values()) if topic is None else [self._topic(topic)]
            return [subscription for each in topics for subscription in each.subscriptions.values()]

    def subscriptions(self, topic: str | None, now: float | None) -> dict[str, SubscriptionStats]:
        """Figures by subscription_id."""
        return {each.subscription_id: each.stats(now) for each in self.all_subscriptions(topic)}

    def ended_subscription(self) -> Subscription:
        """One that holds nothing, in the place of all that were deleted."""
        ended = Subscription(0, "", "", Settings(), self._lock, None, self.trash)
        ended.end()
        return ended

    # -- publish ------------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        contents: Sequence[Content],
        headers: Headers,
        priority: MessagePriority,
        timestamp: float,
        now: float,
        waiter: Waiter | None = None,
    ) -> Published:
        """Give messages their ids and put a copy in every subscription whose filter accepts their headers.

        All or nothing: whatever can refuse (an unknown topic, a full subscription with Overflow.REJECT or WAIT) is
        asked before anything changes.

        Args:
            waiter: of a publish that waits for room; when there is none yet it stands in the lines afterwards, and is
                woken when it is worth to try again. Every attempt asks the filters anew. Whoever made it has it leave.

        Raises:
            UnknownTopic: also when the topic of the first attempt is gone, whatever has its name now.
            QueueFull: waiting does not help.
            NoRoom: a subscription with Overflow.WAIT is full, or others wait for it: of those the least patient.
        """
        total = sum(len(content) for content in contents)
        with self._lock:
            to = self._topic(topic)
            verdicts = [(each, each.judge(headers)) for each in to.subscriptions.values()]
            if waiter is not None:
                self._check_topic(to, waiter)
            full = self._full(verdicts, total, waiter)
            if full is not None and waiter is not None:
                self._stand(waiter, verdicts)
                # Again: room that came before it stood there woke nobody.
                full = self._full(verdicts, total, waiter)
            if full is not None:
                raise NoRoom(full.subscription_id, full.settings.max_queue, full.patience or 0.0)
            if waiter is not None:
                waiter.woken = True  # it goes now: nothing has to tell it of room any more
            first = sequence = self._next_sequence
            batches = []
            for content in contents:
                # Not the name that came: each batch would keep one of its own.
                batches.append(content.batch(to.name, sequence, priority, timestamp, headers, self.incarnation))
                sequence += len(content)
            self._next_sequence = sequence
            to.published += total
            taken: list[Subscription] = []
            aside: list[Subscription] = []
            routed = False
            for each, verdict in verdicts:
                if verdict is True:
                    routed = True
                    (taken if each.put(batches, now) else aside).append(each)
                elif verdict is False:
                    each.skip(total)
                else:
                    routed = True
                    each.put_filter_errors(batches, str(verdict), now)
                    aside.append(each)
            if not routed:
                to.unrouted += total
            return Published(first, batches, taken, aside)

    def publish_waiting(
        self,
        topic: str,
        contents: Sequence[Content],
        headers: Headers,
        priority: MessagePriority,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        began: float,
    ) -> Published:
        """publish, waiting for room from the time it ``began``. For threads of one process; holds no lock meanwhile.

        Raises what publish raises; QueueFull also when there was no room in time.
        """
        waiter = ThreadWaiter(sum(len(content) for content in contents))
        now = began
        try:
            while True:
                waiter.begin()
                try:
                    return self.publish(topic, contents, headers, priority, wall_clock(), now, waiter)
                except NoRoom as full:
                    limit = began + full.seconds
                    if now >= limit:
                        raise full.final() from None
                woken = waiter.wait(limit - now)
                now = clock()
                if not woken:
                    now = max(now, limit)  # the wait took its time, even where an injected clock stands still
        finally:
            waiter.leave()

    def was_published(self, sequence: int) -> bool:
        """Whether this broker gave out that sequence."""
        return 1 <= sequence < self._next_sequence

    # -- time ---------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> int:
        """End every lease with ``now >= deadline`` in every subscription; how many copies that were."""
        return sum(each.expire(now) for each in self.all_subscriptions())

    def next_deadline(self) -> float | None:
        """The earliest over all subscriptions. Looks at each: who drives many of them keeps their deadlines sorted."""
        deadlines = [each.next_deadline() for each in self.all_subscriptions()]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _check_topic(self, topic: Topic, waiter: Waiter) -> None:
        waiter.woken = False
        if waiter.topic is None:
            waiter.topic = topic
        elif waiter.topic is not topic:
            raise UnknownTopic(topic.name)

    def _full(
        self, verdicts: list[tuple[Subscription, bool | str]], count: int, waiter: Waiter | None
    ) -> Subscription | None:
        """The least patient of the subscriptions that a publish has to wait for; None: it may go.

        Raises QueueFull where waiting does not help.
        """
        least: Subscription | None = None
        patience = inf
        for each, verdict in verdicts:
            if verdict is True and each.patience is not None and count and not each.line.has_room(count, waiter):
                if each.patience == 0.0 or count > each.settings.max_queue:
                    raise QueueFull(each.subscription_id, each.settings.max_queue)
                if each.patience < patience:
                    least, patience = each, each.patience
        return least

    def _stand(self, waiter: Waiter, verdicts: list[tuple[Subscription, bool | str]]) -> None:
        if not waiter.order:
            waiter.order = self._next_place
            self._next_place += 1
        waiter.stand_in({each.line for each, verdict in verdicts if verdict is True and each.patience})

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(name)
        return topic

    def _find(self, topic: str, name: str) -> Subscription:
        table = self._topics.get(topic)
        subscription = None if table is None else table.subscriptions.get(name)
        if subscription is None:
            raise UnknownSubscription(f"{topic}/{name}" if name else topic)
        return subscription

    def _end(self, subscription: Subscription) -> None:
        del self._numbered[subscription.number]
        subscription.end()
