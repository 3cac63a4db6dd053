"""MessageBroker: the broker in the process of its users, for threads.

The public verbs of api over an engine. Adds what the engine must not have: a clock, waiting, and (from start() on) a
janitor thread that takes back ended leases when nobody polls.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NoReturn, TypeVar

from mpbroker import checks
from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.deliveries import Delivery
from mpbroker.engine import MAX_BATCH, Engine, Lease, MessageBatch, NoRoom, Payloads, Published
from mpbroker.engine import Subscription as EngineSubscription
from mpbroker.errors import SubscriptionConflict, UnknownSubscription
from mpbroker.local_pipeline import LocalFetchWire, LocalPublishWire, LocalSettleWire
from mpbroker.messages import (
    DeadLetter,
    Headers,
    Message,
    MessagePriority,
    SubscriptionStats,
    TopicStats,
)
from mpbroker.pipeline import Consumer, Publisher, PublishOptions, Settler
from mpbroker.push.dispatcher import Dispatcher, DispatcherPool
from mpbroker.push.subscriber import Subscriber
from mpbroker.retry import RetryPolicy
from mpbroker.settings import Given

T = TypeVar("T")


class Subscription(SubscriptionAPI):
    """A subscription of a broker in this process; subscribe() gives the same object for the same name."""

    def __init__(self, broker: MessageBroker, engine: EngineSubscription) -> None:
        self.topic = engine.topic
        self.name = engine.name
        self.subscriber: Subscriber | None = None
        self._dispatcher: Dispatcher | None = None
        self._broker = broker
        self._engine = engine

    @property
    def retry_policy(self) -> RetryPolicy | None:
        return self._engine.settings.retry

    def _check_alive(self) -> None:
        """After a look, so that one at the very end does not pass for one before it."""
        if self._engine.ended:
            raise UnknownSubscription(self.subscription_id)

    def _now(self, now: float | None) -> float:
        return self._broker._clock() if now is None else now

    def _done(self, result: T) -> T:
        """What every verb that moves copies ends with, holding no lock."""
        self._broker._engine.trash.clear()
        self._broker._arm(self._engine)
        return result

    def _deliveries(self, leases: list[Lease]) -> list[Delivery]:
        self._done(leases)
        return [
            Delivery(
                lease.batch,
                index,
                lease.attempt,
                lease.redelivered,
                lease.deadline,
                lease.member,
                lease.token + index - lease.start,
                self,
            )
            for lease in leases
            for index in range(lease.start, lease.stop)
        ]

    def _poll(self, member: str, now: float | None, max_messages: int, timeout: float | None) -> list[Delivery]:
        dispatcher = member[0] == "$"
        if timeout == 0.0:
            leases = self._engine.take(member, self._now(now), max_messages, dispatcher=dispatcher)
        else:
            clock = self._broker._clock
            leases = self._engine.take_waiting(member, clock, max_messages, timeout, dispatcher=dispatcher)
        return self._deliveries(leases)

    def _consume(self, member: str, prefetch: int, idle_timeout: float | None) -> Consumer:
        settler = Settler(self, LocalSettleWire(self._engine, self._done))
        fetch = LocalFetchWire(self._engine, member, self._broker._clock, self._done)
        return Consumer(self.subscription_id, member, prefetch, idle_timeout, fetch, settler)

    def _ack_ids(self, message_ids: Sequence[str], member: str) -> list[bool]:
        return self._done(self._engine.ack([checks.sequence_of(each) for each in message_ids], member))

    def _ack_token(self, token: int) -> bool:
        return self._done(self._engine.ack_tokens((token,)))[0]

    def _nack(self, target: int, member: str | None, delay: float | None, error: str, now: float | None) -> bool:
        return self._done(self._engine.nack(target, member, delay, error, self._now(now)))

    def _nack_id(self, message_id: str, member: str, delay: float | None, error: str, now: float | None) -> bool:
        return self._nack(checks.sequence_of(message_id), member, delay, error, now)

    def _nack_token(self, token: int, delay: float | None, error: str, now: float | None) -> bool:
        return self._nack(token, None, delay, error, now)

    def _release_id(self, message_id: str, member: str) -> bool:
        return self._done(self._engine.release(checks.sequence_of(message_id), member))

    def _release_token(self, token: int) -> bool:
        return self._done(self._engine.release(token, None))

    def _reject_id(self, message_id: str, member: str, error: str) -> bool:
        return self._done(self._engine.reject(checks.sequence_of(message_id), member, error, self._now(None)))

    def _reject_token(self, token: int, error: str) -> bool:
        return self._done(self._engine.reject(token, None, error, self._now(None)))

    def _extend(self, target: int, member: str | None, seconds: float | None, now: float | None) -> float | None:
        return self._done(self._engine.extend(target, member, seconds, self._now(now)))

    def _extend_id(self, message_id: str, member: str, seconds: float | None, now: float | None) -> bool:
        return self._extend(checks.sequence_of(message_id), member, seconds, now) is not None

    def _extend_token(self, token: int, seconds: float | None, now: float | None) -> float | None:
        return self._extend(token, None, seconds, now)

    def _retry_token(self, delivery: Delivery, error: str) -> Delivery | None:
        lease = self._done(self._engine.retry_held(delivery.token, error, self._now(None)))
        return None if lease is None else self._deliveries([lease])[0]

    def _expire(self, now: float | None) -> int:
        count = self._done(self._engine.expire(self._now(now)))
        self._check_alive()
        return count

    def _offer(self, message: Message) -> bool:
        engine = self._broker._engine
        if not engine.was_published(message.sequence) or message.uid != f"{engine.incarnation}-{message.sequence}":
            raise ValueError(f"message {message.message_id!r} was not published by this broker")
        return self._done(self._engine.offer(MessageBatch((message,)), self._now(None)))

    def _stats(self, now: float | None) -> SubscriptionStats:
        stats = self._engine.stats(self._now(now))
        self._check_alive()
        return stats

    def _wait_idle(self, timeout: float | None) -> bool:
        idle = self._engine.wait_idle(timeout)
        self._check_alive()
        return idle

    def _attach_dispatcher(self) -> str:
        return self._engine.attach_dispatcher(None)

    def _detach_dispatcher(self, member: str) -> None:
        self._engine.detach_dispatcher(member, None)
        self._broker._engine.trash.clear()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a subscription of a broker in this process cannot go to another one; "
            "a BrokerManager's broker is one whose handles can"
        )


class MessageBroker(BrokerAPI):
    """A broker in this process, for its threads; a BrokerManager has the same verbs for many processes.

    Thread-safe; starts no thread before start(). Nothing in it survives the process. As a context manager it closes.

    Args:
        clock: monotonic seconds; what leases and delays are measured with.
        wall_clock: seconds since the epoch; only stamps messages.
        sleep: how dispatchers wait between attempts; default: a wait that close() ends.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._pool = DispatcherPool()
        self._engine = Engine(incarnation=secrets.token_hex(8))
        self._handles: dict[int, Subscription] = {}
        # Guards the janitor and who is the subscriber of a handle; re-entrant for signal handlers and finalizers.
        self._lock = threading.RLock()
        self._janitor: Janitor | None = None

    def start(self) -> None:
        """Run a dispatcher thread for every push subscription, now and from now on, and a janitor thread that takes
        back ended leases when they end."""
        with self._lock:
            if self._janitor is None:
                self._janitor = Janitor(self._engine, self._clock)
        super().start()

    def close(self) -> None:
        """Stop the threads that start() began, dispatchers after the call that runs. Safe to call again."""
        super().close()
        for each in self._engine.all_subscriptions():
            if each.settings.ephemeral and not each.ended:
                self._unsubscribe(each.topic, each.name)
        janitor, self._janitor = self._janitor, None
        if janitor is not None:
            janitor.stop()

    def _arm(self, subscription: EngineSubscription) -> None:
        janitor = self._janitor
        if janitor is not None:
            janitor.arm(subscription.next_deadline())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a MessageBroker lives in this process and cannot go to another one; BrokerManager().broker() can"
        )

    def _handle(self, subscription: EngineSubscription) -> Subscription:
        handle = self._handles.get(subscription.number)
        if handle is None:
            handle = self._handles.setdefault(subscription.number, Subscription(self, subscription))
        return handle

    def _forget(self, subscription: EngineSubscription) -> None:
        self._engine.trash.clear()
        handle = self._handles.pop(subscription.number, None)
        if handle is not None and handle._dispatcher is not None:
            self._pool.discard(handle._dispatcher)

    def _create_topic(self, name: str, exist_ok: bool) -> None:
        self._engine.create_topic(name, exist_ok)

    def _delete_topic(self, name: str) -> None:
        for subscription in self._engine.delete_topic(name):
            self._forget(subscription)

    def _topics(self) -> dict[str, TopicStats]:
        return self._engine.topics()

    def _subscriptions(self, topic: str | None) -> dict[str, SubscriptionStats]:
        return self._engine.subscriptions(topic, self._clock())

    def _subscribe(self, topic: str, name: str, subscriber: Subscriber | None, given: Given) -> Subscription:
        default_retry = None if subscriber is None else RetryPolicy()
        handle = self._handle(self._engine.subscribe(topic, name, given, default_retry))
        with self._lock:
            if subscriber is not None and handle.subscriber is not subscriber:
                if handle.subscriber is not None:
                    raise SubscriptionConflict(handle.subscription_id, ["subscriber"])
                handle._dispatcher = Dispatcher(handle, subscriber, self._sleep)
                handle.subscriber = subscriber
        return handle

    def _subscription(self, topic: str, name: str) -> Subscription:
        return self._handle(self._engine.subscription(topic, name))

    def _unsubscribe(self, topic: str, name: str) -> None:
        self._forget(self._engine.unsubscribe(topic, name))

    def _publish(
        self, topic: str, payloads: list[Any], headers: dict[str, str], priority: MessagePriority
    ) -> list[Message]:
        contents = [Payloads(payloads[at : at + MAX_BATCH]) for at in range(0, len(payloads), MAX_BATCH)]
        copied, now = Headers(headers), self._clock()
        engine = self._engine
        published: Published | None = None
        try:
            published = engine.publish(topic, contents, copied, priority, self._wall_clock(), now)
        except NoRoom:
            pass
        if published is None:
            clock, wall_clock = self._clock, self._wall_clock
            published = engine.publish_waiting(topic, contents, copied, priority, wall_clock, clock, now)
        engine.trash.clear()
        return [batch.message(index) for batch in published.batches for index in range(batch.count)]

    def _publisher(self, topic: str, options: PublishOptions) -> Publisher:
        return Publisher(topic, LocalPublishWire(self._engine, self._wall_clock, self._clock), options)

    def _dead_letters(self, subscription_id: str | None, limit: int | None, offset: int) -> list[DeadLetter]:
        engine = self._engine
        sources = engine.all_subscriptions() if subscription_id is None else [engine.by_id(subscription_id)]
        letters: list[DeadLetter] = []
        for source in sources:
            letters.extend(record.letter(source.subscription_id) for record in source.dead_letters(None, 0))
        return letters[offset : None if limit is None else offset + limit]

    def _redrive(self, subscription_id: str, sequences: list[int] | None, limit: int | None) -> int:
        count = self._engine.by_id(subscription_id).redrive(sequences, limit)
        self._engine.trash.clear()
        return count

    def _purge(self, subscription_id: str, sequences: list[int] | None, limit: int | None) -> int:
        count = self._engine.by_id(subscription_id).purge(sequences, limit)
        self._engine.trash.clear()
        return count

    def _expire(self, now: float | None) -> int:
        count = self._engine.expire(self._clock() if now is None else now)
        self._engine.trash.clear()
        return count

    def _next_deadline(self) -> float | None:
        return self._engine.next_deadline()

    def __repr__(self) -> str:
        return f"<MessageBroker {self._engine.incarnation}>"


class Janitor:
    """The thread that takes back ended leases, each when it ends."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._changed = threading.Condition()
        self._stopped = False
        self._wakes_at = inf
        self._thread = threading.Thread(target=self._run, name="mpbroker-janitor", daemon=True)
        self._thread.start()

    def arm(self, deadline: float | None) -> None:
        """A subscription has this deadline now."""
        if deadline is None:
            return
        with self._changed:
            if deadline < self._wakes_at:
                self._wakes_at = deadline
                self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._wakes_at = inf
            self._engine.expire(self._clock())
            self._engine.trash.clear()
            deadline = self._engine.next_deadline()
            now = self._clock()
            with self._changed:
                if self._stopped:
                    return
                self._wakes_at = min(self._wakes_at, inf if deadline is None else deadline)
                # An earlier deadline wakes it, too, and then all is looked at again.
                self._changed.wait(min(max(0.0, self._wakes_at - now), threading.TIMEOUT_MAX))
