"""The requests that make, find and end topics and subscriptions, and the settings that come with them.

For the broker's side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mpbroker import checks
from mpbroker.engine import Subscription
from mpbroker.errors import (
    AccessRefused,
    InvalidFilter,
    LimitReached,
    SubscriptionConflict,
    TopicExists,
    UnknownSubscription,
    UnknownTopic,
)
from mpbroker.filters import Expression, Filter
from mpbroker.overflow import Overflow, WaitForRoom
from mpbroker.process import frames
from mpbroker.process.acts import Act, Change, Look, Verb
from mpbroker.process.clients import Connection, Session
from mpbroker.process.desk import Desk
from mpbroker.process.frames import Done, Reply
from mpbroker.retry import RetryPolicy
from mpbroker.settings import Given


def create_topic(desk: Desk, _: Connection, request: frames.CreateTopic, __: float) -> Act:
    name = desk.checked_name(request.name, "topic")
    limit = desk.limits.max_topics
    if name not in desk.topics and len(desk.topics) >= limit:
        raise LimitReached("topics", limit, "max_topics")

    def act() -> Reply:
        desk.engine.create_topic(name, request.exist_ok)
        desk.topics.add(name)
        return Done()

    return act


def delete_topic(desk: Desk, _: Connection, request: frames.DeleteTopic, __: float) -> Act:
    name = checks.name(request.name, "topic")

    def act() -> Reply:
        for subscription in desk.engine.delete_topic(name):
            desk.ended(subscription)
        desk.topics.discard(name)
        return Done()

    return act


def subscribe(desk: Desk, connection: Connection, request: frames.Subscribe, now: float) -> Act:
    topic = checks.name(request.topic, "topic")
    name = desk.checked_name(request.name, "subscription")
    given = _given(desk, request)
    limit = desk.limits.max_subscriptions
    if f"{topic}/{name}" not in desk.subscriptions and len(desk.subscriptions) >= limit:
        raise LimitReached("subscriptions", limit, "max_subscriptions")
    default_retry = RetryPolicy() if request.push else None
    maker = _maker(connection) if given.ephemeral is True else None

    def act() -> Reply:
        subscription = desk.engine.subscribe(topic, name, given, default_retry)
        if maker is not None:
            if subscription.subscription_id not in desk.subscriptions:
                maker.made(subscription)
            elif subscription.number not in maker.ephemeral:
                # It was there, so nothing has changed.
                raise SubscriptionConflict(subscription.subscription_id, ["ephemeral"])
        desk.subscriptions.add(subscription.subscription_id)
        if subscription.read_at is None:
            # Nobody can be late to read what was only just made.
            subscription.read_at = desk.engine_time(now)
        return _subscribed(subscription)

    return act


def _maker(connection: Connection) -> Session:
    """The process that an ephemeral subscription is to end with: one whose end the broker will see."""
    if connection.session is None:
        raise AccessRefused("a process that makes an ephemeral subscription needs its presence connection")
    return connection.session


def find_subscription(desk: Desk, _: Connection, request: frames.FindSubscription, __: float) -> Reply:
    topic = checks.name(request.topic, "topic")
    return _subscribed(desk.engine.subscription(topic, checks.name(request.name, "subscription")))


def unsubscribe(desk: Desk, _: Connection, request: frames.Unsubscribe, __: float) -> Act:
    topic = checks.name(request.topic, "topic")
    name = checks.name(request.name, "subscription")

    def act() -> Reply:
        desk.ended(desk.engine.unsubscribe(topic, name))
        return Done()

    return act


# -- settings ---------------------------------------------------------------------------------------------------------


def _subscribed(subscription: Subscription) -> frames.Subscribed:
    policy = subscription.settings.retry
    retry = (
        None
        if policy is None
        else frames.Retry(policy.max_attempts, policy.base_delay, policy.multiplier, policy.max_delay)
    )
    return frames.Subscribed(subscription.topic, subscription.name, subscription.number, retry)


def _given(desk: Desk, request: frames.Subscribe) -> Given:
    readers: dict[str, Callable[[], object]] = {
        "filter": lambda: _filter(desk, request),
        "ack_timeout": lambda: request.ack_timeout,
        "max_deliveries": lambda: request.max_deliveries,
        "retry": lambda: _retry(request.retry),
        "max_queue": lambda: request.max_queue,
        "overflow": lambda: _overflow(request),
        "ephemeral": lambda: request.ephemeral,
    }
    settings: dict[str, Any] = {}
    for name in request.given:
        if name in settings or name not in readers:
            raise ValueError(f"a subscription has no setting {name[:40]!r}, or it is given twice")
        settings[name] = readers[name]()
    return Given.check(**settings)


def _overflow(request: frames.Subscribe) -> Overflow | WaitForRoom:
    return WaitForRoom(request.overflow_wait) if request.overflow == WaitForRoom.value else Overflow(request.overflow)


def _filter(desk: Desk, request: frames.Subscribe) -> Filter | None:
    match request.filter_kind:
        case "none":
            return None
        case "expression":
            try:
                return Expression(request.filter)
            except (OSError, ImportError) as error:
                # The first one loads the parser, which a process without descriptors cannot: that is no defect.
                reason = f"the broker process cannot load the parser of expressions now ({error}); try again later"
                raise InvalidFilter(request.filter, reason, None) from error
        case "function":
            function = desk.functions.get(request.filter)
            if function is None:
                raise _unknown_function(request.filter)
            return function
        case kind:
            raise ValueError(f"there is no filter of the kind {kind[:40]!r}")


def _unknown_function(name: str) -> InvalidFilter:
    module = name.partition(":")[0][:100]
    return InvalidFilter(
        name[:200],
        f"the broker process does not know this function; name its module when the broker is started, with "
        f"BrokerManager(filter_modules=[{module!r}]) or `mpbroker serve --filter-module {module}`, "
        "or use an expression",
        None,
    )


def _retry(retry: frames.Retry | None) -> RetryPolicy | None:
    if retry is None:
        return None
    return RetryPolicy(retry.max_attempts, retry.base_delay, retry.multiplier, retry.max_delay)


VERBS: Final[dict[type, Verb]] = {
    frames.CreateTopic: Change(create_topic, (TopicExists,)),
    frames.DeleteTopic: Change(delete_topic, (UnknownTopic,)),
    frames.Subscribe: Change(subscribe, (UnknownTopic, SubscriptionConflict)),
    frames.FindSubscription: Look(find_subscription),
    frames.Unsubscribe: Change(unsubscribe, (UnknownSubscription,)),
}
