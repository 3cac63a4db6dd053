"""What a client may ask of the broker process: one function for each request, and the table of them.

Each checks what it was sent as strictly as the client's side does (a client may be anything), then asks the engine:
what is of the wrong type or range raises before anything changes. An answer of None means that the call waits. For the
broker's side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from mpbroker import checks
from mpbroker.engine import OFFSET_BITS, NoRoom, Subscription
from mpbroker.engine.subscription import DISPATCHER_PREFIX
from mpbroker.errors import (
    AccessRefused,
    BrokerFull,
    HeadersTooLarge,
    InvalidFilter,
    InvalidName,
    LimitReached,
    SubscriptionBusy,
    SubscriptionConflict,
)
from mpbroker.filters import Expression, Filter
from mpbroker.messages import NO_HEADERS, Headers, error_text
from mpbroker.overflow import Overflow, WaitForRoom
from mpbroker.process import frames
from mpbroker.process.clients import Connection, HandOver, Parked, Session
from mpbroker.process.desk import Desk
from mpbroker.process.encoded import EncodedPayloads, contents, grant, one_payload
from mpbroker.process.frames import Answers, Done, Granted, Moment, Number, Reply
from mpbroker.process.reports import VERBS as REPORT_VERBS
from mpbroker.process.reports import Verb, figures
from mpbroker.retry import RetryPolicy
from mpbroker.settings import Given

MAX_ASKED: Final = 1_000_000
"""Messages that one call names."""

# -- topics and subscriptions -----------------------------------------------------------------------------------------


def create_topic(desk: Desk, _: Connection, request: frames.CreateTopic, __: float) -> Reply:
    name = _name(desk, request.name, "topic")
    limit = desk.limits.max_topics
    if name not in desk.topics and len(desk.topics) >= limit:
        raise LimitReached("topics", limit, "max_topics")
    desk.engine.create_topic(name, request.exist_ok)
    desk.topics.add(name)
    return Done()


def delete_topic(desk: Desk, _: Connection, request: frames.DeleteTopic, __: float) -> Reply:
    name = checks.name(request.name, "topic")
    for subscription in desk.engine.delete_topic(name):
        desk.ended(subscription)
    desk.topics.discard(name)
    return Done()


def subscribe(desk: Desk, connection: Connection, request: frames.Subscribe, now: float) -> Reply:
    topic = checks.name(request.topic, "topic")
    name = _name(desk, request.name, "subscription")
    given = _given(desk, request)
    limit = desk.limits.max_subscriptions
    if f"{topic}/{name}" not in desk.subscriptions and len(desk.subscriptions) >= limit:
        raise LimitReached("subscriptions", limit, "max_subscriptions")
    default_retry = RetryPolicy() if request.push else None
    subscription = desk.engine.subscribe(topic, name, given, default_retry)
    if given.ephemeral is True:
        _is_its_makers(connection, subscription, subscription.subscription_id not in desk.subscriptions)
    desk.subscriptions.add(subscription.subscription_id)
    if subscription.read_at is None:
        # Nobody can be late to read what was only just made.
        subscription.read_at = desk.engine_time(now)
    return _subscribed(subscription)


def _is_its_makers(connection: Connection, subscription: Subscription, is_new: bool) -> None:
    """An ephemeral one ends with the session that made it. Raises SubscriptionConflict for any other."""
    session = connection.session
    assert session is not None
    if is_new:
        session.ephemeral = {number: each for number, each in session.ephemeral.items() if not each.ended}
        session.ephemeral[subscription.number] = subscription
    elif subscription.number not in session.ephemeral:
        raise SubscriptionConflict(subscription.subscription_id, ["ephemeral"])


def find_subscription(desk: Desk, _: Connection, request: frames.FindSubscription, __: float) -> Reply:
    topic = checks.name(request.topic, "topic")
    return _subscribed(desk.engine.subscription(topic, checks.name(request.name, "subscription")))


def unsubscribe(desk: Desk, _: Connection, request: frames.Unsubscribe, __: float) -> Reply:
    topic = checks.name(request.topic, "topic")
    name = checks.name(request.name, "subscription")
    desk.ended(desk.engine.unsubscribe(topic, name))
    return Done()


# -- publish ----------------------------------------------------------------------------------------------------------


def publish(desk: Desk, connection: Connection, request: frames.Publish, now: float) -> Reply | None:
    topic = checks.name(request.topic, "topic")
    priority = frames.priority_of(request.priority)
    most, frame_bytes = desk.limits.max_payload_bytes, connection.request_bytes
    batches = contents(request.batches, request.headers, desk.meter, most, frame_bytes)
    headers = _headers(desk, request.headers) if request.headers else NO_HEADERS
    _check_bytes(desk, batches)
    try:
        return desk.publish(topic, batches, headers, priority, now)
    except NoRoom as full:
        desk.park_publish(connection, topic, batches, headers, priority, now, full)
        return None


def offer(desk: Desk, _: Connection, request: frames.Offer, now: float) -> Reply:
    subscription = desk.subscription(request.subscription)
    engine, sequence = desk.engine, checks.count(request.sequence, "message.sequence")
    timestamp = checks.moment(request.timestamp, "message.timestamp")
    priority = frames.priority_of(request.priority)
    if not engine.was_published(sequence) or request.uid != f"{engine.incarnation}-{sequence}":
        raise ValueError(f"message 'm{sequence}' was not published by this broker")
    content = one_payload(request.payload, request.headers, desk.meter, desk.limits.max_payload_bytes)
    headers = _headers(desk, request.headers)
    _check_bytes(desk, (content,))
    batch = content.batch(subscription.topic, sequence, priority, timestamp, headers, engine.incarnation)
    return Answers([subscription.offer(batch, desk.engine_time(now))])


# -- hand over and settle ---------------------------------------------------------------------------------------------


def poll(desk: Desk, connection: Connection, request: frames.Poll, now: float) -> Reply | None:
    session = _session(connection)
    subscription = desk.subscription(request.subscription)
    if request.member.startswith(DISPATCHER_PREFIX) and not subscription.dispatches(request.member, session.owner):
        # Detached between the reader's last look and its poll, or gone with the session that attached. An empty answer
        # would tell a reader with a timeout that nothing is there, and it would never attach again.
        raise SubscriptionBusy(subscription.subscription_id)
    member, dispatcher = _member(desk, connection, subscription, request.member)
    max_messages = checks.count(request.max_messages, "max_messages")
    timeout = checks.optional_seconds(request.timeout, "timeout")
    if request.now is not None and timeout != 0.0 and desk.manual_time:
        raise ValueError("timeout must be 0 when now is given: a poll cannot wait in a time that does not pass")
    engine_now = desk.time_of_call(now, request.now)
    if desk.polls.first(subscription) is not None:
        # Whoever waits already gets what this call's look at the time takes back.
        subscription.expire(engine_now)
        desk.serve(subscription, engine_now)
    granted = desk.hand_over(connection, subscription, member, max_messages, dispatcher, engine_now)
    if granted.grants or timeout == 0.0:
        return granted
    desk.park(Parked(connection, subscription, member, max_messages, dispatcher), now, timeout)
    return None


def ack(desk: Desk, connection: Connection, request: frames.Ack, _: float) -> Reply:
    subscription = desk.held_by(request.subscription)
    member, _dispatcher = _member(desk, connection, subscription, request.member)
    return Answers(subscription.ack(_bounded(request.sequences, "message_ids"), member))


def ack_tokens(desk: Desk, _: Connection, request: frames.AckTokens, __: float) -> Reply:
    subscription = desk.held_by(request.subscription)
    return Answers(subscription.ack_tokens(_bounded(request.tokens, "tokens")))


def ack_ranges(desk: Desk, _: Connection, request: frames.AckRanges, __: float) -> Reply:
    return Number(desk.held_by(request.subscription).ack_ranges(_ranges(request.ranges)))


def release_ranges(desk: Desk, _: Connection, request: frames.ReleaseRanges, __: float) -> Reply:
    return Number(desk.held_by(request.subscription).release_ranges(_ranges(request.ranges)))


def nack(desk: Desk, connection: Connection, request: frames.Nack, now: float) -> Reply:
    subscription = desk.held_by(request.subscription)
    member = _optional_member(desk, connection, subscription, request.member)
    delay = checks.optional_seconds(request.delay, "delay")
    error = error_text(request.error)
    engine_now = desk.time_of_call(now, request.now)
    return Answers([subscription.nack(request.target, member, delay, error, engine_now)])


def release(desk: Desk, connection: Connection, request: frames.Release, _: float) -> Reply:
    subscription = desk.held_by(request.subscription)
    member = _optional_member(desk, connection, subscription, request.member)
    return Answers([subscription.release(request.target, member)])


def reject(desk: Desk, connection: Connection, request: frames.Reject, now: float) -> Reply:
    subscription = desk.held_by(request.subscription)
    member = _optional_member(desk, connection, subscription, request.member)
    error = error_text(request.error)
    return Answers([subscription.reject(request.target, member, error, desk.engine_time(now))])


def extend(desk: Desk, connection: Connection, request: frames.Extend, now: float) -> Reply:
    subscription = desk.held_by(request.subscription)
    member = _optional_member(desk, connection, subscription, request.member)
    seconds = checks.optional_seconds(request.seconds, "seconds")
    engine_now = desk.time_of_call(now, request.now)
    return Moment(subscription.extend(request.target, member, seconds, engine_now))


def retry_held(desk: Desk, connection: Connection, request: frames.RetryHeld, now: float) -> Reply:
    subscription = desk.held_by(request.subscription)
    lease = subscription.retry_held(request.token, error_text(request.error), desk.engine_time(now))
    if lease is None:
        return Granted([])
    connection.last = HandOver(subscription, (lease.number,))
    return Granted([grant(lease)])


# -- time -------------------------------------------------------------------------------------------------------------


def expire(desk: Desk, _: Connection, request: frames.Expire, now: float) -> Reply:
    if request.subscription is None:
        return Number(desk.expire(desk.time_of_call(now, request.now)))
    subscription = desk.subscription(request.subscription)
    return Number(subscription.expire(desk.time_of_call(now, request.now)))


def next_deadline(desk: Desk, _: Connection, __: frames.NextDeadline, ___: float) -> Reply:
    return Moment(desk.janitor.next_deadline())


def stats(desk: Desk, _: Connection, request: frames.Stats, now: float) -> Reply:
    subscription = desk.subscription(request.subscription)
    return frames.StatsReply(figures(subscription.stats(desk.time_of_call(now, request.now))))


# -- push -------------------------------------------------------------------------------------------------------------


def wait_idle(desk: Desk, connection: Connection, request: frames.WaitIdle, now: float) -> Reply | None:
    subscription = desk.subscription(request.subscription)
    timeout = checks.optional_seconds(request.timeout, "timeout")
    if subscription.is_idle() or timeout == 0.0:
        return Answers([subscription.is_idle()])
    desk.park(Parked(connection, subscription), now, timeout)
    return None


def attach(desk: Desk, connection: Connection, request: frames.Attach, _: float) -> Reply:
    session = _session(connection)
    subscription = desk.subscription(request.subscription)
    member = subscription.attach_dispatcher(session.owner)
    session.holds(subscription)
    connection.last = HandOver(subscription, (), member)
    return frames.Text(member)


def detach(desk: Desk, connection: Connection, request: frames.Detach, _: float) -> Reply:
    """Another process's dispatcher stays, and one that is gone already is none of ours."""
    desk.subscription(request.subscription).detach_dispatcher(request.member, _session(connection).owner)
    return Done()


# -- what they share --------------------------------------------------------------------------------------------------


def _bounded(asked: list[int], what: str) -> list[int]:
    checks.count(len(asked), f"the number of {what}", minimum=0, maximum=MAX_ASKED)
    return asked


def _ranges(asked: list[int]) -> list[int]:
    """First and last tokens in turn. What a range costs is bounded by its lease."""
    if len(_bounded(asked, "tokens")) % 2:
        raise ValueError("a range without its last token")
    for first, last in zip(asked[::2], asked[1::2], strict=True):
        if first > last or first >> OFFSET_BITS != last >> OFFSET_BITS:
            raise ValueError(f"the tokens {first} to {last} are no range of one lease")
    return asked


def _session(connection: Connection) -> Session:
    """Whoever holds something must be a process whose end the broker will see."""
    if connection.session is None:
        raise AccessRefused("a process that holds messages needs its presence connection")
    return connection.session


def _name(desk: Desk, given: str, what: str) -> str:
    """A name that is to be kept. Raises InvalidName."""
    name = checks.name(given, what)
    limit = desk.limits.max_name_length
    if len(name) > limit:
        raise InvalidName(
            what, name[:40], f"it has {len(name)} characters, and the broker's max_name_length is {limit}"
        )
    return name


def _headers(desk: Desk, given: dict[str, str]) -> Headers:
    """The headers of a message. Raises HeadersTooLarge."""
    limits = desk.limits
    if len(given) > limits.max_headers:
        raise HeadersTooLarge("headers", len(given), limits.max_headers, "max_headers")
    size = sum([len(key.encode()) + len(value.encode()) for key, value in given.items()])
    if size > limits.max_header_bytes:
        raise HeadersTooLarge("bytes of headers", size, limits.max_header_bytes, "max_header_bytes")
    return Headers(given)


def _check_bytes(desk: Desk, batches: Sequence[EncodedPayloads]) -> None:
    """Refuse what is too much beside all that the broker holds. Raises BrokerFull."""
    more = batches[0].held_bytes if len(batches) == 1 else sum([each.held_bytes for each in batches])
    if desk.meter.used + more > desk.limits.max_queue_bytes:
        raise BrokerFull(desk.meter.used, more, desk.limits.max_queue_bytes)


def _member(desk: Desk, connection: Connection, subscription: Subscription, name: str) -> tuple[str, bool]:
    """A member name as sent, and whether it is the dispatcher's own; no other may begin with a $."""
    session = connection.session
    if session is not None and subscription.dispatches(name, session.owner):
        return name, True
    return _name(desk, name, "member"), False


def _optional_member(desk: Desk, connection: Connection, subscription: Subscription, name: str | None) -> str | None:
    return None if name is None else _member(desk, connection, subscription, name)[0]


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
    frames.CreateTopic: create_topic,
    frames.DeleteTopic: delete_topic,
    frames.Subscribe: subscribe,
    frames.FindSubscription: find_subscription,
    frames.Unsubscribe: unsubscribe,
    frames.Publish: publish,
    frames.Offer: offer,
    frames.Poll: poll,
    frames.Ack: ack,
    frames.AckTokens: ack_tokens,
    frames.AckRanges: ack_ranges,
    frames.ReleaseRanges: release_ranges,
    frames.Nack: nack,
    frames.Release: release,
    frames.Reject: reject,
    frames.Extend: extend,
    frames.RetryHeld: retry_held,
    frames.Expire: expire,
    frames.NextDeadline: next_deadline,
    frames.Stats: stats,
    frames.WaitIdle: wait_idle,
    frames.Attach: attach,
    frames.Detach: detach,
    **REPORT_VERBS,
}
"""What a call connection may send. Goodbye and Stop are not among it: they are of the presence and of admins."""

LOOKS: Final = frozenset({frames.FindSubscription, frames.Topics, frames.DeadLetters, frames.Status})
"""Those that change nothing, so that a defect in one leaves nothing half done."""
