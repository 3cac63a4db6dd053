"""Clients that record: the verbs of a broker and its subscriptions, with a history of every call.

Owns when a call is recorded; `results` has what of it. Works over any BrokerAPI: a broker in this process, or a proxy
of one in another. Messages get payloads that prove themselves, and each delivery is looked at before its call is
recorded. What a call raises is recorded and raised. For one thread, as the recorder is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.checks import sequence_of
from mpbroker.deliveries import Delivery
from mpbroker.filters import Expression
from mpbroker.messages import DeadLetter, Message, MessagePriority, SubscriptionStats
from mpbroker.settings import Given
from mpbroker.testing.history import (
    Answers,
    Count,
    Delivered,
    Done,
    Expire,
    Leave,
    Letters,
    Look,
    Poll,
    Publish,
    Purge,
    Recorder,
    Redrive,
    Request,
    Result,
    Settle,
    Subscribe,
    Target,
    Unsubscribe,
)
from mpbroker.testing.payloads import Payloads
from mpbroker.testing.results import delivered, figures, letter_of, published, targets_of

T = TypeVar("T")

_PAGE: Final = 1000
"""Dead letters listed at a time."""


class RecordedBroker:
    """A broker, recorded.

    Args:
        publisher: the number of whoever publishes here; unique in a run.

    Attributes:
        number: of the next message that is published here.
    """

    def __init__(self, broker: BrokerAPI, recorder: Recorder, payloads: Payloads, publisher: int = 0) -> None:
        self.broker = broker
        self.recorder = recorder
        self.payloads = payloads
        self.publisher = publisher
        self.number = 0

    def subscribe(self, topic: str, name: str, **settings: Any) -> RecordedSubscription:
        """subscribe; settings as there."""
        chosen = Given.check(**settings).settings()
        accepts, retry = chosen.filter, chosen.retry
        if accepts is None or isinstance(accepts, Expression):
            text = None if accepts is None else accepts.text
        else:
            text = f"{accepts.__module__}:{getattr(accepts, '__qualname__', '')}"
        policy = None if retry is None else (retry.max_attempts, retry.base_delay, retry.multiplier, retry.max_delay)
        request = Subscribe(
            topic,
            name,
            chosen.ack_timeout,
            chosen.max_deliveries,
            policy,
            chosen.max_queue,
            chosen.overflow.value,
            text,
        )
        made = self._call(request, lambda: self.broker.subscribe(topic, name, **settings), _done)
        return RecordedSubscription(made, self.recorder, self.payloads)

    def subscription(self, topic: str, name: str) -> RecordedSubscription:
        """A handle; finding one changes nothing, so it is not recorded."""
        return RecordedSubscription(self.broker.subscription(topic, name), self.recorder, self.payloads)

    def unsubscribe(self, topic: str, name: str) -> None:
        self._call(Unsubscribe(topic, name), lambda: self.broker.unsubscribe(topic, name), _done)

    def delete_topic(self, topic: str) -> None:
        self._call(Unsubscribe(topic, ""), lambda: self.broker.delete_topic(topic), _done)

    def publish(
        self,
        topic: str,
        headers: Mapping[str, str] | None = None,
        *,
        priority: MessagePriority = MessagePriority.NORMAL,
    ) -> Message:
        """Publish this publisher's next message."""
        return self._publish(topic, None, headers, priority)[0]

    def publish_many(
        self,
        topic: str,
        count: int,
        headers: Mapping[str, str] | None = None,
        *,
        priority: MessagePriority = MessagePriority.NORMAL,
    ) -> list[Message]:
        """Publish this publisher's next ``count`` messages in one call."""
        return self._publish(topic, count, headers, priority)

    def redrive(
        self, subscription_id: str, message_ids: Sequence[str] | None = None, *, limit: int | None = None
    ) -> int:
        request = Redrive(subscription_id, _sequences(message_ids), limit)
        return self._call(request, lambda: self.broker.redrive(subscription_id, message_ids, limit=limit), Count)

    def purge_dead_letters(
        self, subscription_id: str, message_ids: Sequence[str] | None = None, *, limit: int | None = None
    ) -> int:
        request = Purge(subscription_id, _sequences(message_ids), limit)
        return self._call(
            request, lambda: self.broker.purge_dead_letters(subscription_id, message_ids, limit=limit), Count
        )

    def dead_letters(self, subscription_id: str) -> list[DeadLetter]:
        """All dead letters of a subscription; one picture only while nothing moves there."""

        def pages() -> list[DeadLetter]:
            letters: list[DeadLetter] = []
            while page := self.broker.dead_letters(subscription_id, limit=_PAGE, offset=len(letters)):
                letters += page
            return letters

        return self._call(Look("dead_letters", subscription_id), pages, self._letters)

    def expire(self, now: float | None = None) -> int:
        return self._call(Expire("", now), lambda: self.broker.expire(now), Count)

    def close(self) -> None:
        """Close the broker here: what this process holds is released."""
        self._call(Leave(), self.broker.close, _done)

    def _publish(
        self, topic: str, count: int | None, headers: Mapping[str, str] | None, priority: MessagePriority
    ) -> list[Message]:
        recorder, first, total = self.recorder, self.number, 1 if count is None else count
        made, at, publisher, level = self.payloads.make, recorder.clock(), self.publisher, int(priority)
        bodies = [made(publisher, number, at, level) for number in range(first, first + total)]
        said = {} if headers is None else dict(headers)
        call = recorder.invoke(Publish(topic, publisher, first, total, level, said))
        # Numbers are used again only when it is sure that nobody will see them.
        self.number += total
        try:
            if count is None:
                messages = [self.broker.publish(topic, bodies[0], headers, priority=priority)]
            else:
                messages = self.broker.publish_many(topic, bodies, headers, priority=priority)
        except BaseException as error:
            if recorder.raised(call, error):
                self.number = first
            raise
        recorder.ok(call, published(messages, topic, bodies, said, level))
        return messages

    def _letters(self, letters: list[DeadLetter]) -> Letters:
        return Letters([letter_of(each, self.payloads) for each in letters])

    def _call(self, request: Request, do: Callable[[], T], said: Callable[[T], Result]) -> T:
        return _recorded(self.recorder, request, do, said)


class RecordedSubscription:
    """A subscription, recorded. The verbs by id have its names; those of one delivery are ``…_delivery``."""

    def __init__(self, subscription: SubscriptionAPI, recorder: Recorder, payloads: Payloads) -> None:
        self.subscription = subscription
        self.subscription_id = subscription.subscription_id
        self.recorder = recorder
        self.payloads = payloads

    def poll(
        self, member: str, now: float | None = None, max_messages: int = 1, *, timeout: float | None = 0.0
    ) -> list[Delivery]:
        recorder, poll = self.recorder, self.subscription.poll
        call = recorder.invoke(Poll(self.subscription_id, member, max_messages, timeout, now))
        try:
            deliveries = poll(member, now, max_messages, timeout=timeout)
        except BaseException as error:
            recorder.raised(call, error)
            raise
        # Before the payloads are looked at, which may nack one.
        at = recorder.clock()
        recorder.ok(call, delivered(deliveries, self.subscription.topic, self.payloads), at)
        return deliveries

    # -- by id ---------------------------------------------------------------------------------------------------------

    def ack(self, message_id: str, member: str) -> bool:
        return self.ack_many([message_id], member)[0]

    def ack_many(self, message_ids: Sequence[str], member: str) -> list[bool]:
        request = Settle(self.subscription_id, "ack", member, targets_of(message_ids), None, "", None)
        return self._call(request, lambda: self.subscription.ack_many(message_ids, member), _answers)

    def nack(
        self,
        message_id: str,
        member: str,
        *,
        delay: float | None = None,
        error: str | None = None,
        now: float | None = None,
    ) -> bool:
        nack = self.subscription.nack
        request = self._by_id("nack", message_id, member, delay, error, now)
        return self._call(request, lambda: nack(message_id, member, delay=delay, error=error, now=now), _answer)

    def release(self, message_id: str, member: str) -> bool:
        request = self._by_id("release", message_id, member)
        return self._call(request, lambda: self.subscription.release(message_id, member), _answer)

    def reject(self, message_id: str, member: str, *, error: str | None = None) -> bool:
        request = self._by_id("reject", message_id, member, error=error)
        return self._call(request, lambda: self.subscription.reject(message_id, member, error=error), _answer)

    def extend(self, message_id: str, member: str, seconds: float | None = None, now: float | None = None) -> bool:
        request = self._by_id("extend", message_id, member, seconds, now=now)
        return self._call(request, lambda: self.subscription.extend(message_id, member, seconds, now), _answer)

    # -- of one delivery, by its token ---------------------------------------------------------------------------------

    def ack_delivery(self, delivery: Delivery) -> bool:
        return self._call(self._of("ack", delivery), delivery.ack, _answer)

    def nack_delivery(
        self, delivery: Delivery, *, delay: float | None = None, error: str | None = None, now: float | None = None
    ) -> bool:
        request = self._of("nack", delivery, delay, error, now)
        return self._call(request, lambda: delivery.nack(delay=delay, error=error, now=now), _answer)

    def release_delivery(self, delivery: Delivery) -> bool:
        return self._call(self._of("release", delivery), delivery.release, _answer)

    def reject_delivery(self, delivery: Delivery, *, error: str | None = None) -> bool:
        request = self._of("reject", delivery, error=error)
        return self._call(request, lambda: delivery.reject(error=error), _answer)

    def extend_delivery(self, delivery: Delivery, seconds: float | None = None, now: float | None = None) -> bool:
        def moved(extended: bool) -> Answers:
            return Answers(bytes([extended]), delivery.deadline if extended else None)

        request = self._of("extend", delivery, seconds, now=now)
        return self._call(request, lambda: delivery.extend(seconds, now), moved)

    def retry_delivery(self, delivery: Delivery, error: str | None = None) -> Delivery | None:
        def again(retried: Delivery | None) -> Delivered:
            return delivered([] if retried is None else [retried], self.subscription.topic, self.payloads)

        return self._call(self._of("retry", delivery, error=error), lambda: delivery.retry(error), again)

    # -- the rest ------------------------------------------------------------------------------------------------------

    def expire(self, now: float | None = None) -> int:
        return self._call(Expire(self.subscription_id, now), lambda: self.subscription.expire(now), Count)

    def stats(self, now: float | None = None) -> SubscriptionStats:
        return self._call(Look("stats", self.subscription_id), lambda: self.subscription.stats(now), figures)

    def _by_id(
        self,
        verb: str,
        message_id: str,
        member: str,
        seconds: float | None = None,
        error: str | None = None,
        now: float | None = None,
    ) -> Settle:
        return Settle(self.subscription_id, verb, member, targets_of([message_id]), seconds, error or "", now)

    def _of(
        self,
        verb: str,
        delivery: Delivery,
        seconds: float | None = None,
        error: str | None = None,
        now: float | None = None,
    ) -> Settle:
        target = Target(sequence_of(delivery.message_id), delivery.token, 1)
        return Settle(self.subscription_id, verb, delivery.member, [target], seconds, error or "", now)

    def _call(self, request: Request, do: Callable[[], T], said: Callable[[T], Result]) -> T:
        return _recorded(self.recorder, request, do, said)


def _sequences(message_ids: Sequence[str] | None) -> list[int] | None:
    return None if message_ids is None else [sequence_of(each) for each in message_ids]


def _answers(answers: Sequence[bool]) -> Answers:
    return Answers(bytes(answers), None)


def _answer(answer: bool) -> Answers:
    return Answers(bytes([answer]), None)


def _done(_: object) -> Done:
    return Done()


def _recorded(recorder: Recorder, request: Request, do: Callable[[], T], said: Callable[[T], Result]) -> T:
    call = recorder.invoke(request)
    try:
        result = do()
    except BaseException as error:
        recorder.raised(call, error)
        raise
    at = recorder.clock()
    recorder.ok(call, said(result), at)
    return result
