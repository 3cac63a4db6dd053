"""BrokerProxy: a broker process, seen from a client.

The public verbs of api over frames, sent the way `multiprocessing` proxies send. One object of the broker is shared,
the broker itself; subscriptions are handles of the client. Client side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import managers
from typing import Any, TypeVar

import msgspec

from mpbroker.api import BrokerAPI
from mpbroker.errors import InvalidFilter, ProtocolViolation, SubscriptionConflict
from mpbroker.filters import Expression
from mpbroker.messages import (
    Attempt,
    AttemptOutcome,
    DeadLetter,
    DeadLetterReason,
    Headers,
    Message,
    MessagePriority,
    SubscriptionStats,
    TopicStats,
)
from mpbroker.overflow import Overflow, WaitForRoom
from mpbroker.pipeline import Publisher, PublishOptions
from mpbroker.process import frames
from mpbroker.process.connection import client_process
from mpbroker.process.frames import Done, Frame, Moment, Number, Published, Reply, Report, Subscribed
from mpbroker.process.handle import SubscriptionHandle
from mpbroker.process.hook import SERIALIZER, BrokerAddress
from mpbroker.process.payloads import decode_payloads, encode_batches, join, open_or_mark
from mpbroker.process.publishing import ProcessPublishWire
from mpbroker.push.dispatcher import Dispatcher, DispatcherPool
from mpbroker.push.subscriber import Subscriber
from mpbroker.retry import RetryPolicy
from mpbroker.settings import Filter, Given, Settings, Unset

R = TypeVar("R", bound=Reply)
T = TypeVar("T")

_TYPEID = "broker"


def _as_it_is(reply: R) -> R:
    return reply


class BrokerProxy(BrokerAPI, managers.BaseProxy):
    """A broker process: the verbs of a broker, for as long as that process lives.

    Picklable through any channel; good in threads and in forked children. Connects when it is first used. Stands for
    one incarnation: when the broker ends, every call raises BrokerGone, also after another one has taken its name.

    ``close()`` stops the dispatchers of this process and closes its connections, releasing what it holds, uncounted;
    it never stops the broker, and the next call connects again.
    """

    def __init__(self, address: BrokerAddress, manager: managers.BaseManager | None = None) -> None:
        """Made by BrokerManager.broker and connect."""
        where: Any = address
        token = managers.Token(_TYPEID, where, _TYPEID)
        # The key is in the broker's folder, for whoever may read there: nothing secret is carried about.
        managers.BaseProxy.__init__(self, token, SERIALIZER, manager, b"", None, incref=False)
        self._address = address
        self._client = client_process(*address)

    @property
    def _pool(self) -> DispatcherPool:  # type: ignore[override]
        return self._client.attached(DispatcherPool)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._client.close()

    def _ask(self, request: Frame, kind: type[R]) -> R:
        """The reply to a request. Raises what has failed there, and BrokerGone."""
        return self._take(request, kind, _as_it_is)

    def _take(self, request: Frame, kind: type[R], take: Callable[[R], T]) -> T:
        """What is made of the reply to a request; where that raises, what the reply handed over goes back."""

        def of(reply: Reply) -> T:
            if type(reply) is not kind:
                raise ProtocolViolation(f"{type(request).__name__} was answered with {type(reply).__name__}")
            return take(reply)

        call: Callable[[str, tuple[object, ...]], T] = self._callmethod  # type: ignore[assignment]  # a cast is a call
        return call(type(request).__name__, (request, of))

    def _status(self) -> Report:
        return self._ask(frames.Status(), Report)

    def _stop(self) -> None:
        """End the broker process."""
        self._client.administer(frames.Stop())

    # -- topics and subscriptions -------------------------------------------------------------------------------------

    def _create_topic(self, name: str, exist_ok: bool) -> None:
        self._ask(frames.CreateTopic(name, exist_ok), Done)

    def _delete_topic(self, name: str) -> None:
        self._ask(frames.DeleteTopic(name), Done)
        self._forget(lambda handle: handle.topic == name)

    def _topics(self) -> dict[str, TopicStats]:
        values = self._ask(frames.Topics(), frames.TopicsReply).values
        return {name: TopicStats(*figures) for name, figures in values.items()}

    def _subscriptions(self, topic: str | None) -> dict[str, SubscriptionStats]:
        values = self._ask(frames.Subscriptions(topic), frames.SubscriptionsReply).values
        return {name: SubscriptionStats(*figures) for name, figures in values.items()}

    def _subscribe(self, topic: str, name: str, subscriber: Subscriber | None, given: Given) -> SubscriptionHandle:
        request = _subscribe_frame(topic, name, subscriber is not None, given)
        subscribed = self._ask(request, Subscribed)
        policy = given.retry if isinstance(given.retry, RetryPolicy) else None
        if subscriber is None:
            return SubscriptionHandle(self, subscribed, policy)
        pushed = self._client.attached(_Pushed).handles
        handle = pushed.get(subscribed.number)
        if handle is None:
            handle = SubscriptionHandle(self, subscribed, policy)
            handle.subscriber = subscriber
            handle._dispatcher = Dispatcher(handle, subscriber)
            handle = pushed.setdefault(subscribed.number, handle)
        if handle.subscriber is not subscriber:
            raise SubscriptionConflict(handle.subscription_id, ["subscriber"])
        return handle

    def _subscription(self, topic: str, name: str) -> SubscriptionHandle:
        subscribed = self._ask(frames.FindSubscription(topic, name), Subscribed)
        return self._client.attached(_Pushed).handles.get(subscribed.number) or SubscriptionHandle(self, subscribed)

    def _unsubscribe(self, topic: str, name: str) -> None:
        self._ask(frames.Unsubscribe(topic, name), Done)
        self._forget(lambda handle: (handle.topic, handle.name) == (topic, name))

    def _forget(self, ended: Callable[[SubscriptionHandle], bool]) -> None:
        """Let go of the dispatchers of subscriptions that ended."""
        pushed = self._client.attached(_Pushed).handles
        for number, handle in list(pushed.items()):
            if ended(handle) and pushed.pop(number, None) is handle and handle._dispatcher is not None:
                self._pool.discard(handle._dispatcher)

    # -- publish ------------------------------------------------------------------------------------------------------

    def _publish(
        self, topic: str, payloads: list[Any], headers: dict[str, str], priority: MessagePriority
    ) -> list[Message]:
        batches = [msgspec.Raw(batch) for batch in encode_batches(payloads)]
        published = self._ask(frames.Publish(topic, batches, headers, int(priority)), Published)
        incarnation, timestamp, shared = self._client.incarnation, published.timestamp, Headers(headers)
        return [
            Message(topic, payload, priority, shared, f"m{n}", timestamp, n, f"{incarnation}-{n}")
            for n, payload in enumerate(payloads, published.first)
        ]

    def _publisher(self, topic: str, options: PublishOptions) -> Publisher:
        return Publisher(topic, ProcessPublishWire(self._client), options)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def _dead_letters(self, subscription_id: str | None, limit: int | None, offset: int) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        while True:
            left = None if limit is None else limit - len(letters)
            if left == 0:
                return letters
            page = self._ask(frames.DeadLetters(subscription_id, left, offset + len(letters)), frames.Letters)
            letters.extend(map(_letter, page.letters))
            if not (page.more and page.letters):
                return letters

    def _redrive(self, subscription_id: str, sequences: list[int] | None, limit: int | None) -> int:
        return self._ask(frames.Redrive(subscription_id, sequences, limit), Number).value

    def _purge(self, subscription_id: str, sequences: list[int] | None, limit: int | None) -> int:
        return self._ask(frames.Purge(subscription_id, sequences, limit), Number).value

    # -- time ---------------------------------------------------------------------------------------------------------

    def _expire(self, now: float | None) -> int:
        return self._ask(frames.Expire(None, now), Number).value

    def _next_deadline(self) -> float | None:
        return self._ask(frames.NextDeadline(), Moment).value

    # -- what the standard server would be asked ----------------------------------------------------------------------

    def _connect(self) -> None:
        inside: Any = self
        inside._tls.connection = inside._Client(self._address)

    def _incref(self) -> None:
        """Nothing counts references: the broker lives until it is stopped."""

    def _getvalue(self) -> Any:
        raise TypeError("a broker's state stays in its process")

    def __copy__(self) -> BrokerProxy:
        return BrokerProxy(self._address)

    def __deepcopy__(self, memo: Any) -> BrokerProxy:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return BrokerProxy, (self._address,)

    def __repr__(self) -> str:
        return f"<BrokerProxy {self._address.incarnation} in {self._address.folder!r}>"

    __str__ = __repr__


class _Pushed:
    """The handles of this process that have a subscriber, by subscription number."""

    def __init__(self) -> None:
        self.handles: dict[int, SubscriptionHandle] = {}


# -- what goes into frames, and comes out ------------------------------------------------------------------------------


def _subscribe_frame(topic: str, name: str, push: bool, given: Given) -> frames.Subscribe:
    defaults = Settings()
    named = {field: value for field in Given.__slots__ if not isinstance(value := getattr(given, field), Unset)}
    kind, text = _filter_by_name(named.get("filter"))
    retry: RetryPolicy | None = named.get("retry")
    overflow: Overflow | WaitForRoom = named.get("overflow", defaults.overflow)
    return frames.Subscribe(
        topic,
        name,
        push,
        list(named),
        kind,
        text,
        named.get("ack_timeout", defaults.ack_timeout),
        named.get("max_deliveries", defaults.max_deliveries),
        None
        if retry is None
        else frames.Retry(retry.max_attempts, retry.base_delay, retry.multiplier, retry.max_delay),
        named.get("max_queue", defaults.max_queue),
        overflow.value,
        overflow.seconds if isinstance(overflow, WaitForRoom) else 0.0,
        named.get("ephemeral", defaults.ephemeral),
    )


def _filter_by_name(wanted: Filter | None) -> tuple[str, str]:
    """The kind and the text of a filter on the wire. Raises InvalidFilter for a callable that has no way there."""
    if wanted is None:
        return "none", ""
    if isinstance(wanted, Expression):
        return "expression", wanted.text
    module = getattr(wanted, "__module__", None)
    qualname = getattr(wanted, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise _no_way(repr(wanted), "it is not a function")
    text = f"{module}:{qualname}"
    if "<" in qualname:
        raise _no_way(text, "it has no name that the broker process could find it by")
    if module == "__main__":
        raise _no_way(text, "it is in __main__, which the broker process never imports")
    if getattr(sys.modules.get(module), qualname, None) is not wanted:
        raise _no_way(text, "it is not what its module has under that name")
    return "function", text


def _no_way(text: str, reason: str) -> InvalidFilter:
    way = (
        "filters run in the broker process: give an expression such as 'headers.type = \"created\"', or a function of "
        "a module that the broker was started with (BrokerManager(filter_modules=[...]), mpbroker serve "
        "--filter-module)"
    )
    return InvalidFilter(text, f"{reason}; {way}", None)


def _letter(letter: frames.Letter) -> DeadLetter:
    (payload,) = decode_payloads(join([memoryview(letter.payload)]))
    message = Message(
        letter.topic,
        open_or_mark(payload),
        frames.priority_of(letter.priority),
        Headers(letter.headers),
        f"m{letter.sequence}",
        letter.timestamp,
        letter.sequence,
        letter.uid,
    )
    history = tuple(
        Attempt(each.number, each.member, each.started, each.ended, AttemptOutcome(each.outcome), each.error)
        for each in letter.history
    )
    return DeadLetter(
        letter.subscription_id,
        message,
        DeadLetterReason(letter.reason),
        letter.error,
        letter.attempts,
        letter.dead_since,
        letter.last_member,
        history,
    )
