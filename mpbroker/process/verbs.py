"""What a client may ask of the broker process: one function for each request, and the table of them.

Each checks what it was sent as strictly as the client's side does (a client may be anything) and changes nothing; what
it returns is the act, which asks the engine. So what is of the wrong type or range is refused before anything changes,
and what an act raises beside the refusals that the table names is a defect. An answer of None: the call waits. For the
broker's side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mpbroker import checks
from mpbroker.engine import FRESH_BYTES, OFFSET_BITS, NoRoom, Subscription
from mpbroker.engine.subscription import DISPATCHER_PREFIX
from mpbroker.errors import (
    AccessRefused,
    BrokerFull,
    HeadersTooLarge,
    PayloadTooLarge,
    QueueFull,
    SubscriptionBusy,
    UnknownSubscription,
)
from mpbroker.messages import NO_HEADERS, Headers, error_text
from mpbroker.process import frames
from mpbroker.process.acts import Act, Change, Verb
from mpbroker.process.blocks import Claims
from mpbroker.process.clients import Connection, HandOver, Parked, Session
from mpbroker.process.desk import PUBLISH_REFUSALS, TAKE_REFUSALS, Desk
from mpbroker.process.encoded import EncodedPayloads, contents, grant, one_payload
from mpbroker.process.frames import Answers, Done, Granted, Moment, Number, Reply
from mpbroker.process.memory import VERBS as MEMORY_VERBS
from mpbroker.process.reports import VERBS as REPORT_VERBS
from mpbroker.process.reports import figures
from mpbroker.process.subscribing import VERBS as SUBSCRIBING_VERBS

MAX_ASKED: Final = 1_000_000
"""Messages that one call names."""

# -- publish ----------------------------------------------------------------------------------------------------------


def publish(desk: Desk, connection: Connection, request: frames.Publish, now: float) -> Act:
    _check_request(desk, connection)
    topic = checks.name(request.topic, "topic")
    priority = frames.priority_of(request.priority)
    most, frame_bytes = desk.limits.max_payload_bytes, connection.request_bytes
    lender = None if connection.session is None else connection.session.lends
    claims = None if lender is None else Claims(desk.blocks, lender)
    batches = contents(request.batches, request.headers, desk.meter, most, frame_bytes, claims)
    headers = _headers(desk, request.headers) if request.headers else NO_HEADERS
    _check_bytes(desk, batches, desk.engine.fan_out(topic))

    def act() -> Reply | None:
        if claims is not None:
            for each in batches:
                each.claim()
        try:
            return desk.publish(topic, batches, headers, priority, now)
        except NoRoom as full:
            return desk.park_publish(connection, topic, batches, headers, priority, now, full)

    return act


def offer(desk: Desk, connection: Connection, request: frames.Offer, now: float) -> Act:
    _check_request(desk, connection)
    subscription = desk.subscription(request.subscription)
    engine, sequence = desk.engine, checks.count(request.sequence, "message.sequence")
    timestamp = checks.moment(request.timestamp, "message.timestamp")
    priority = frames.priority_of(request.priority)
    if not engine.was_published(sequence) or request.uid != f"{engine.incarnation}-{sequence}":
        raise ValueError(f"message 'm{sequence}' was not published by this broker")
    content = one_payload(request.payload, request.headers, desk.meter, desk.limits.max_payload_bytes)
    headers = _headers(desk, request.headers)
    _check_bytes(desk, (content,), 1)

    def act() -> Reply:
        batch = content.batch(subscription.topic, sequence, priority, timestamp, headers, engine.incarnation)
        return Answers([subscription.offer(batch, desk.engine_time(now))])

    return act


# -- hand over and settle ---------------------------------------------------------------------------------------------


def poll(desk: Desk, connection: Connection, request: frames.Poll, now: float) -> Act:
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
    time = desk.time_of_call(now, request.now)

    def act() -> Reply | None:
        engine_now = desk.moved_to(time)
        if desk.polls.first(subscription) is not None:
            # Whoever waits already gets what this call's look at the time takes back.
            subscription.expire(engine_now)
            desk.serve(subscription, engine_now)
        granted = desk.hand_over(connection, subscription, member, max_messages, dispatcher, engine_now)
        if granted.grants or timeout == 0.0:
            return granted
        return desk.park(Parked(connection, subscription, member, max_messages, dispatcher), now, timeout)

    return act


def ack(desk: Desk, connection: Connection, request: frames.Ack, _: float) -> Act:
    subscription = desk.held_by(request.subscription)
    member, _dispatcher = _member(desk, connection, subscription, request.member)
    sequences = _bounded(request.sequences, "message_ids")
    return lambda: Answers(subscription.ack(sequences, member))


def ack_tokens(desk: Desk, _: Connection, request: frames.AckTokens, __: float) -> Act:
    subscription = desk.held_by(request.subscription)
    tokens = _bounded(request.tokens, "tokens")
    return lambda: Answers(subscription.ack_tokens(tokens))


def ack_ranges(desk: Desk, _: Connection, request: frames.AckRanges, __: float) -> Act:
    subscription, ranges = desk.held_by(request.subscription), _ranges(request.ranges)
    return lambda: Number(subscription.ack_ranges(ranges))


def release_ranges(desk: Desk, _: Connection, request: frames.ReleaseRanges, __: float) -> Act:
    subscription, ranges = desk.held_by(request.subscription), _ranges(request.ranges)
    return lambda: Number(subscription.release_ranges(ranges))


def nack(desk: Desk, connection: Connection, request: frames.Nack, now: float) -> Act:
    subscription = desk.held_by(request.subscription)
    member = _optional_member(desk, connection, subscription, request.member)
    delay = checks.optional_seconds(request.delay, "delay")
    error = error_text(request.error)
    time = desk.time_of_call(now, request.now)
    return lambda: Answers([subscription.nack(request.target, member, delay, error, desk.moved_to(time))])


def release(desk: Desk, connection: Connection, request: frames.Release, _: float) -> Act:
    subscription = desk.held_by(request.subscription)
    member = _optional_member(desk, connection, subscription, request.member)
    return lambda: Answers([subscription.release(request.target, member)])


def reject(desk: Desk, connection: Connection, request: frames.Reject, now: float) -> Act:
    subscription = desk.held_by(request.subscription)
    member = _optional_member(desk, connection, subscription, request.member)
    error = error_text(request.error)
    return lambda: Answers([subscription.reject(request.target, member, error, desk.engine_time(now))])


def extend(desk: Desk, connection: Connection, request: frames.Extend, now: float) -> Act:
    subscription = desk.held_by(request.subscription)
    member = _optional_member(desk, connection, subscription, request.member)
    seconds = checks.optional_seconds(request.seconds, "seconds")
    time = desk.time_of_call(now, request.now)
    return lambda: Moment(subscription.extend(request.target, member, seconds, desk.moved_to(time)))


def retry_held(desk: Desk, connection: Connection, request: frames.RetryHeld, now: float) -> Act:
    subscription = desk.held_by(request.subscription)
    error = error_text(request.error)

    def act() -> Reply:
        lease = subscription.retry_held(request.token, error, desk.engine_time(now))
        if lease is None:
            return Granted([])
        connection.last = HandOver(subscription, (lease.number,))
        return Granted([grant(lease)])

    return act


# -- time -------------------------------------------------------------------------------------------------------------


def expire(desk: Desk, _: Connection, request: frames.Expire, now: float) -> Act:
    if request.subscription is None:
        time = desk.time_of_call(now, request.now)
        return lambda: Number(desk.expire(desk.moved_to(time)))
    subscription = desk.subscription(request.subscription)
    time = desk.time_of_call(now, request.now)
    return lambda: Number(subscription.expire(desk.moved_to(time)))


def next_deadline(desk: Desk, _: Connection, __: frames.NextDeadline, ___: float) -> Act:
    # It forgets deadlines that are none any more.
    return lambda: Moment(desk.janitor.next_deadline())


def stats(desk: Desk, _: Connection, request: frames.Stats, now: float) -> Act:
    # Delayed copies that are due become ready by it.
    subscription = desk.subscription(request.subscription)
    time = desk.time_of_call(now, request.now)
    return lambda: frames.StatsReply(figures(subscription.stats(desk.moved_to(time))))


# -- push -------------------------------------------------------------------------------------------------------------


def wait_idle(desk: Desk, connection: Connection, request: frames.WaitIdle, now: float) -> Act:
    subscription = desk.subscription(request.subscription)
    timeout = checks.optional_seconds(request.timeout, "timeout")

    def act() -> Reply | None:
        if subscription.is_idle() or timeout == 0.0:
            return Answers([subscription.is_idle()])
        return desk.park(Parked(connection, subscription), now, timeout)

    return act


def attach(desk: Desk, connection: Connection, request: frames.Attach, _: float) -> Act:
    session = _session(connection)
    subscription = desk.subscription(request.subscription)

    def act() -> Reply:
        member = subscription.attach_dispatcher(session.owner)
        session.holds(subscription)
        connection.last = HandOver(subscription, (), member)
        return frames.Text(member)

    return act


def detach(desk: Desk, connection: Connection, request: frames.Detach, _: float) -> Act:
    """Another process's dispatcher stays, and one that is gone already is none of ours."""
    subscription, session = desk.subscription(request.subscription), _session(connection)

    def act() -> Reply:
        subscription.detach_dispatcher(request.member, session.owner)
        return Done()

    return act


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


def _check_request(desk: Desk, connection: Connection) -> None:
    """Refuse one that brings more than can go out again with its company. Raises PayloadTooLarge."""
    if connection.request_bytes > desk.limits.request_bytes:
        raise PayloadTooLarge("this publish", connection.request_bytes, desk.limits.request_bytes)


def _headers(desk: Desk, given: dict[str, str]) -> Headers:
    """The headers of a message. Raises HeadersTooLarge."""
    limits = desk.limits
    if len(given) > limits.max_headers:
        raise HeadersTooLarge("headers", len(given), limits.max_headers, "max_headers")
    size = sum([len(key.encode()) + len(value.encode()) for key, value in given.items()])
    if size > limits.max_header_bytes:
        raise HeadersTooLarge("bytes of headers", size, limits.max_header_bytes, "max_header_bytes")
    return Headers(given)


def _check_bytes(desk: Desk, batches: Sequence[EncodedPayloads], copies: int) -> None:
    """Refuse what is too much beside all that the broker holds; copies: of each, at most. Raises BrokerFull."""
    more = batches[0].held_bytes if len(batches) == 1 else sum([each.held_bytes for each in batches])
    more += len(batches) * copies * FRESH_BYTES
    if desk.meter.used + more > desk.limits.max_queue_bytes:
        raise BrokerFull(desk.meter.used, more, desk.limits.max_queue_bytes)


def _member(desk: Desk, connection: Connection, subscription: Subscription, name: str) -> tuple[str, bool]:
    """A member name as sent, and whether it is the dispatcher's own; no other may begin with a $."""
    session = connection.session
    if session is not None and subscription.dispatches(name, session.owner):
        return name, True
    return desk.checked_name(name, "member"), False


def _optional_member(desk: Desk, connection: Connection, subscription: Subscription, name: str | None) -> str | None:
    return None if name is None else _member(desk, connection, subscription, name)[0]


VERBS: Final[dict[type, Verb]] = {
    frames.Publish: Change(publish, PUBLISH_REFUSALS),
    frames.Offer: Change(offer, (UnknownSubscription, QueueFull)),
    frames.Poll: Change(poll, TAKE_REFUSALS),
    frames.Ack: Change(ack),
    frames.AckTokens: Change(ack_tokens),
    frames.AckRanges: Change(ack_ranges),
    frames.ReleaseRanges: Change(release_ranges),
    frames.Nack: Change(nack),
    frames.Release: Change(release),
    frames.Reject: Change(reject),
    frames.Extend: Change(extend),
    frames.RetryHeld: Change(retry_held),
    frames.Expire: Change(expire),
    frames.NextDeadline: Change(next_deadline),
    frames.Stats: Change(stats),
    frames.WaitIdle: Change(wait_idle),
    frames.Attach: Change(attach, TAKE_REFUSALS),
    frames.Detach: Change(detach),
    **SUBSCRIBING_VERBS,
    **MEMORY_VERBS,
    **REPORT_VERBS,
}
"""What a call connection may send. Goodbye and Stop are not among it: they are of the presence and of admins."""
