"""Where calls are served: the engine and its time, who waits for what, and the answers that are ready to go.

Owns what the verbs and the events of sessions have in common, so that both change it in one way: whoever touches a
subscription says so (``subscription`` and ``changed``), and ``settle`` then serves whoever waits for it, and notes what
its copies take and when it is next due. After settle no parked poll has a ready copy that may be handed out. For the
broker's side; reads no clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from mpbroker import checks
from mpbroker.engine import HELD_BYTES, Engine, NoRoom, Subscription, Waiter
from mpbroker.errors import (
    InvalidName,
    LimitReached,
    MpbrokerError,
    QueueFull,
    SubscriptionBusy,
    UnknownSubscription,
    UnknownTopic,
)
from mpbroker.filters import Filter
from mpbroker.messages import Headers, MessagePriority
from mpbroker.process.clients import Connection, HandOver, Parked, ParkedPublish, Session
from mpbroker.process.encoded import EncodedPayloads, Meter, grant
from mpbroker.process.failures import failure
from mpbroker.process.frames import Answers, Granted, Published, Reply
from mpbroker.process.limits import Limits
from mpbroker.process.waiting import Janitor, Line, Timers

MAX_POLL: Final = 16_384
"""Messages in one answer: more than a worker wants at once, and no reason for the others to wait long."""

REPLY_ROOM_BYTES: Final = 65_536
"""What the rest of a reply may take beside what is counted."""

MAX_GONE: Final = 10_000
"""Subscriptions that ended, remembered by number so that an old handle's error can name it."""

PUBLISH_REFUSALS: Final[tuple[type[MpbrokerError], ...]] = (UnknownTopic, QueueFull)
"""What the engine may answer to a publish, before it changes anything."""

TAKE_REFUSALS: Final[tuple[type[MpbrokerError], ...]] = (UnknownSubscription, SubscriptionBusy)
"""And to who asks for copies, or to be the one who does."""

TOTALS: Final = ("accepted", "acked", "deliveries", "redelivered", "dead_lettered", "dropped")
"""Figures of a subscription that only grow."""

COUNTERS: Final = (
    "published",
    "calls",
    "calls_failed",
    "undone",
    "sessions_closed",
    "sessions_died",
    "refused",
    "violations",
)
"""What is counted beside them: messages, calls, copies taken back from interrupted calls, and ends of connections."""

NOW_REFUSED: Final = (
    'a broker process reads its own clock, so now cannot be given; poll("w", 10) means now=10, not ten messages: '
    "that is max_messages=10. BrokerManager(manual_time=True) starts a broker whose time is what it is told"
)


@dataclass(frozen=True, slots=True)
class About:
    """What the status says about the process. started: the loop's time; memory: bytes it takes now."""

    version: str
    pid: int
    started: float
    memory: Callable[[], int]


class Desk:
    """Attributes:
    connections: by the loop's number; sessions: by session id.
    topics, subscriptions: the names that exist; everything is made here, so the engine is given empty.
    polls, idles: the calls that wait for a copy, and for a subscription to be idle.
    publishes: those that wait for room, by the loop's number of their connection.
    timers: by the loop's number of a connection, the end of its handshake or of the call that waits on it.
    answers: to calls that had been parked, to be sent.
    counters: of events that no statistics count.
    past: figures of the subscriptions that ended.
    meter: the bytes of messages that are held.
    rings: connections that go through shared memory.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        manual_time: bool,
        functions: Mapping[str, Filter],
        wall_clock: Callable[[], float],
        about: About,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.manual_time = manual_time
        self.functions = functions
        self.wall_clock = wall_clock
        self.about = about
        self.connections: dict[int, Connection] = {}
        self.sessions: dict[bytes, Session] = {}
        self.polls = Line()
        self.idles = Line()
        self.publishes: dict[int, ParkedPublish] = {}
        self.timers = Timers()
        self.janitor = Janitor(engine.by_number)
        self.answers: list[tuple[Connection, Reply]] = []
        self.counters = Counter(dict.fromkeys(COUNTERS, 0))
        self.past = Counter(dict.fromkeys(TOTALS, 0))
        self.meter = Meter(limits.max_queue_bytes)
        self.rings = 0
        self.topics: set[str] = set()
        self.subscriptions: set[str] = set()
        self._manual_now = 0.0
        self._changed: dict[int, Subscription] = {}
        self._most_bytes = limits.max_queue_bytes + limits.max_queue_bytes // 4 + MAX_POLL * HELD_BYTES
        # Nothing that is forgotten here runs anybody's code, so it need not be kept until no lock is held.
        engine.trash = deque(maxlen=0)
        self._woken: OrderedDict[int, ParkedPublish] = OrderedDict()
        self._ended = engine.ended_subscription()
        self._gone: OrderedDict[int, str] = OrderedDict()

    # -- time ---------------------------------------------------------------------------------------------------------

    def engine_time(self, now: float) -> float:
        """The engine's time. now: of the loop."""
        return self._manual_now if self.manual_time else now

    def time_of_call(self, now: float, given: float | None) -> float:
        """The engine's time of a call, to be moved to.

        Raises:
            TypeError, ValueError: it is no time, or the broker has a clock of its own.
        """
        if given is None:
            return self.engine_time(now)
        if not self.manual_time:
            raise ValueError(NOW_REFUSED)
        return checks.moment(given)

    def moved_to(self, time: float) -> float:
        """That time of a call, which the engine's is from now on."""
        if self.manual_time and time != self._manual_now:
            self._manual_now = time
            # A poll that waits sees the time pass, as one that is made now would.
            for subscription in self.polls.subscriptions():
                self.changed(subscription)
        return time

    # -- names --------------------------------------------------------------------------------------------------------

    def checked_name(self, given: str, what: str) -> str:
        """A name that is to be kept. Raises InvalidName."""
        name = checks.name(given, what)
        limit = self.limits.max_name_length
        if len(name) > limit:
            raise InvalidName(
                what, name[:40], f"it has {len(name)} characters, and the broker's max_name_length is {limit}"
            )
        return name

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscription(self, number: int) -> Subscription:
        """The one a call names, counted as changed. Raises UnknownSubscription."""
        subscription = self.engine.by_number(number)
        if subscription is None:
            raise UnknownSubscription(self._gone.get(number, f"number {number}"))
        self._changed[number] = subscription
        return subscription

    def held_by(self, number: int) -> Subscription:
        """subscription, for a call about what its caller holds: one that ended holds nothing, and says so."""
        subscription = self.engine.by_number(number)
        if subscription is None:
            return self._ended
        self._changed[number] = subscription
        return subscription

    def changed(self, subscription: Subscription) -> None:
        """Its copies, or who may have them, changed."""
        self._changed[subscription.number] = subscription

    def ended(self, subscription: Subscription) -> None:
        """It was deleted."""
        self.changed(subscription)
        self.subscriptions.discard(subscription.subscription_id)
        self._gone[subscription.number] = subscription.subscription_id
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)
        stats = subscription.stats(None)
        self.past.update({name: getattr(stats, name) for name in TOTALS})

    def end_with(self, session: Session, now: float, *, died: bool, error: str) -> None:
        """A process is gone: what it holds goes back, and the subscriptions end that were to end with it."""
        for subscription in session.polled.values():
            subscription.end_owner(session.owner, self.engine_time(now), died=died, error=error)
            self.changed(subscription)
        for subscription in session.ephemeral.values():
            if not subscription.ended:
                self.ended(self.engine.unsubscribe(subscription.topic, subscription.name))

    def expire(self, now: float) -> int:
        """Take back all that is due in the engine's time; returns how many copies."""
        count = 0
        for subscription in self.janitor.pop_due(now):
            count += subscription.expire(now)
            self.changed(subscription)
        return count

    # -- publish ------------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        contents: Sequence[EncodedPayloads],
        headers: Headers,
        priority: MessagePriority,
        now: float,
        waiter: Waiter | None = None,
    ) -> Published:
        """The answer to a publish, at a time of the loop. Raises what the engine's publish raises."""
        timestamp = self.wall_clock()
        engine_now = self.engine_time(now)
        published = self.engine.publish(topic, contents, headers, priority, timestamp, engine_now, waiter)
        self.counters["published"] += sum(map(len, contents))
        for subscription in published.subscriptions:
            self.changed(subscription)
        for subscription in published.aside:
            self.changed(subscription)
        return Published(published.first, timestamp, len(published.subscriptions))

    def park_publish(
        self,
        connection: Connection,
        topic: str,
        contents: Sequence[EncodedPayloads],
        headers: Headers,
        priority: MessagePriority,
        now: float,
        full: NoRoom,
    ) -> Reply | None:
        """Let a publish wait for room; what it brings counts as held meanwhile. The answer where too many wait."""
        if self.waiting >= self.limits.waiting_calls:
            return self._too_many()
        held_bytes = sum(each.held_bytes for each in contents)
        waiter = Waiter(sum(map(len, contents)), partial(self._wake, connection.id))
        parked = ParkedPublish(connection, topic, contents, headers, priority, held_bytes, now, waiter, full.final())
        self.meter.used += held_bytes
        connection.parked = self.publishes[connection.id] = parked
        self._try_again(parked, now)
        return None

    def _wake(self, connection: int) -> None:
        """For the engine: a publish may have room now."""
        self._woken[connection] = self.publishes[connection]

    def _try_again(self, parked: ParkedPublish, now: float) -> None:
        """Answer a publish that waits when there is room for it, or none and no time left."""
        reply: Reply
        try:
            reply = self.publish(parked.topic, parked.contents, parked.headers, parked.priority, now, parked.waiter)
        except NoRoom as full:
            parked.refusal = full.final()
            limit = parked.began + full.seconds
            if now < limit:
                self.timers.set(parked.connection.id, limit)
                return
            reply = failure(parked.refusal)
        except PUBLISH_REFUSALS as error:
            reply = failure(error)
        self._answer(parked, reply)

    # -- hand over ----------------------------------------------------------------------------------------------------

    def hand_over(
        self,
        connection: Connection,
        subscription: Subscription,
        member: str,
        max_messages: int,
        dispatcher: bool,
        now: float,
    ) -> Granted:
        """The answer to a poll at a time of the engine; empty when nothing is ready.

        Raises:
            UnknownSubscription; SubscriptionBusy.
        """
        session = connection.session
        assert session is not None
        most = min(max_messages, MAX_POLL)
        if self.meter.used + most * HELD_BYTES > self._most_bytes:
            most = self._most(subscription, most, now)
        leases = subscription.take(
            member,
            now,
            most,
            owner=session.owner,
            max_bytes=self.limits.max_frame_bytes - REPLY_ROOM_BYTES,
            dispatcher=dispatcher,
        )
        if leases:
            session.holds(subscription)
            connection.last = HandOver(subscription, tuple(lease.number for lease in leases))
        return Granted([grant(lease) for lease in leases])

    def _most(self, subscription: Subscription, most: int, now: float) -> int:
        """How many copies may be handed out where memory is short: as many as there is room for, else one at a time, so
        that it goes on; what is in flight makes room when it is settled, or when its lease ends."""
        subscription.expire(now)
        self.meter.note(subscription.number, subscription.overhead_bytes())
        room = (self._most_bytes - self.meter.used) // HELD_BYTES
        if room > 0:
            return min(most, room)
        return 0 if subscription.stats(None).in_flight else 1

    def undo(self, session: Session, hand_over: HandOver) -> None:
        """What never reached its caller is as if it had not happened."""
        subscription = hand_over.subscription
        self.counters["undone"] += subscription.undo(hand_over.leases)
        if hand_over.dispatcher is not None:
            subscription.detach_dispatcher(hand_over.dispatcher, session.owner)
        self.changed(subscription)

    # -- calls that wait ----------------------------------------------------------------------------------------------

    def park(self, parked: Parked, now: float, timeout: float | None) -> Reply | None:
        """Let a call wait, up to ``timeout`` seconds of the loop's time. The answer where too many wait."""
        if self.waiting >= self.limits.waiting_calls:
            return self._too_many()
        parked.connection.parked = parked
        self._line(parked).add(parked)
        if timeout is not None:
            self.timers.set(parked.connection.id, now + timeout)
        return None

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self.polls) + len(self.idles) + len(self.publishes)

    def _too_many(self) -> Reply:
        option = "max_connections" if self.limits.max_waiting_calls is None else "max_waiting_calls"
        return failure(LimitReached("calls that wait", self.limits.waiting_calls, option))

    def unpark(self, parked: Parked | ParkedPublish) -> None:
        """The call waits no longer: it is answered, or nobody is there to be."""
        connection = parked.connection
        connection.parked = None
        self.timers.cancel(connection.id)
        if isinstance(parked, Parked):
            self._line(parked).remove(parked)
            return
        parked.waiter.leave()
        del self.publishes[connection.id]
        self._woken.pop(connection.id, None)
        self.meter.used -= parked.held_bytes

    def time_out(self, parked: Parked | ParkedPublish) -> None:
        """The call waited long enough."""
        if isinstance(parked, ParkedPublish):
            self._answer(parked, failure(parked.refusal))
            return
        self._answer(parked, Granted([]) if parked.member is not None else Answers([False]))

    def serve(self, subscription: Subscription, now: float) -> None:
        """Answer the calls that wait for a subscription, as far as it goes. now: the engine's."""
        while (parked := self.polls.first(subscription)) is not None:
            reply = self._answer_to_poll(parked, now)
            if reply is None:
                break
            self._answer(parked, reply)
            self.meter.note(subscription.number, subscription.overhead_bytes())
        while (parked := self.idles.first(subscription)) is not None:
            if subscription.ended:
                self._answer(parked, failure(UnknownSubscription(subscription.subscription_id)))
            elif subscription.is_idle():
                self._answer(parked, Answers([True]))
            else:
                break

    def settle(self, now: float) -> None:
        """Let everything follow that changed. now: of the loop."""
        engine_now = self.engine_time(now)
        while self._changed or self._woken:
            if not self._changed:
                self._try_again(self._woken.popitem(last=False)[1], now)
                continue
            subscription = self._changed.popitem()[1]
            self.serve(subscription, engine_now)
            self.meter.note(subscription.number, subscription.overhead_bytes())
            if subscription.ended:
                self.janitor.forget(subscription)
            else:
                self.janitor.arm(subscription)

    def _answer_to_poll(self, parked: Parked, now: float) -> Reply | None:
        """None while it has to wait."""
        assert parked.member is not None
        subscription = parked.subscription
        try:
            granted = self.hand_over(
                parked.connection,
                subscription,
                parked.member,
                parked.max_messages,
                parked.dispatcher,
                now,
            )
        except TAKE_REFUSALS as error:
            return failure(error)
        # A dispatcher that was detached has nothing to wait for any more.
        is_over = parked.dispatcher and subscription.dispatcher != parked.member
        return granted if granted.grants or is_over else None

    def _answer(self, parked: Parked | ParkedPublish, reply: Reply) -> None:
        self.unpark(parked)
        self.answers.append((parked.connection, reply))

    def _line(self, parked: Parked) -> Line:
        return self.idles if parked.member is None else self.polls
