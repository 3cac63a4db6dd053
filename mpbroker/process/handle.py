"""SubscriptionHandle: a subscription of a broker process, seen from a client.

The public verbs of api over frames that name the subscription by its number, so that a handle never reaches a later
subscription of the same name. Payloads stay closed until they are looked at. Client side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mpbroker import checks
from mpbroker.api import SubscriptionAPI
from mpbroker.deliveries import Delivery
from mpbroker.messages import Message, SubscriptionStats
from mpbroker.pipeline import Consumer, Run, Settler
from mpbroker.process import frames, payloads
from mpbroker.process.consuming import ProcessFetchWire, ProcessSettleWire
from mpbroker.process.frames import Answers, Done, Frame, Grant, Granted, Moment, Number, StatsReply, Subscribed, Text
from mpbroker.process.received import received
from mpbroker.push.dispatcher import Dispatcher
from mpbroker.push.subscriber import Subscriber
from mpbroker.retry import RetryPolicy

if TYPE_CHECKING:
    from mpbroker.process.proxy import BrokerProxy


class SubscriptionHandle(SubscriptionAPI):
    """A subscription of a broker process; picklable, and good in any process for as long as the subscription lives.

    Its subscriber and dispatcher, if any, stay in the process that subscribed.
    """

    def __init__(self, broker: BrokerProxy, subscribed: Subscribed, policy: RetryPolicy | None = None) -> None:
        """policy: the one that is in force, where the caller gave it."""
        self.topic = subscribed.topic
        self.name = subscribed.name
        self.subscriber: Subscriber | None = None
        self._dispatcher: Dispatcher | None = None
        self._broker = broker
        self._number = subscribed.number
        self._subscribed = subscribed
        if policy is None and subscribed.retry is not None:
            told = subscribed.retry
            policy = RetryPolicy(told.max_attempts, told.base_delay, told.multiplier, told.max_delay)
        self._retry = policy

    @property
    def retry_policy(self) -> RetryPolicy | None:
        return self._retry

    # -- hand over ----------------------------------------------------------------------------------------------------

    def _poll(
        self, member: str, now: float | None, max_messages: int, timeout: float | None, *, copy: bool = False
    ) -> list[Delivery]:
        client = self._broker._client

        def take(granted: Granted) -> list[Delivery]:
            deliveries: list[Delivery] = []
            for grant in granted.grants:
                batch = received(client, self.topic, self._number, grant, copy=copy)
                token, attempt, redelivered, deadline = grant.token, grant.attempt, grant.redelivered, grant.deadline
                for index in range(payloads.list_length(grant.payloads)):
                    deliveries.append(
                        Delivery(batch, index, attempt, redelivered, deadline, member, token + index, self)
                    )
            return deliveries

        return self._broker._take(frames.Poll(self._number, member, now, max_messages, timeout), Granted, take)

    def _consume(self, member: str, prefetch: int, idle_timeout: float | None, *, copy: bool = False) -> Consumer:
        client = self._broker._client

        def made(grant: Grant) -> Run:
            batch = received(client, self.topic, self._number, grant, copy=copy)
            count = payloads.list_length(grant.payloads)
            return Run(batch, 0, count, grant.token, grant.attempt, grant.redelivered, grant.deadline)

        fetch = ProcessFetchWire(client, self._number, member, made)
        settler = Settler(self, ProcessSettleWire(client, self._number))
        return Consumer(self.subscription_id, member, prefetch, idle_timeout, fetch, settler)

    def _retry_token(self, delivery: Delivery, error: str) -> Delivery | None:
        def take(granted: Granted) -> Delivery | None:
            if not granted.grants:
                return None
            grant = granted.grants[0]
            return Delivery(
                delivery._batch,
                delivery._index,
                grant.attempt,
                grant.redelivered,
                grant.deadline,
                delivery.member,
                grant.token,
                self,
            )

        return self._broker._take(frames.RetryHeld(self._number, delivery.token, error), Granted, take)

    # -- settle -------------------------------------------------------------------------------------------------------

    def _ack_ids(self, message_ids: Sequence[str], member: str) -> list[bool]:
        sequences = [checks.sequence_of(each) for each in message_ids]
        return self._broker._ask(frames.Ack(self._number, member, sequences), Answers).values

    def _ack_token(self, token: int) -> bool:
        return self._answer(frames.AckTokens(self._number, [token]))

    def _nack_id(self, message_id: str, member: str, delay: float | None, error: str, now: float | None) -> bool:
        return self._answer(frames.Nack(self._number, checks.sequence_of(message_id), member, delay, error, now))

    def _nack_token(self, token: int, delay: float | None, error: str, now: float | None) -> bool:
        return self._answer(frames.Nack(self._number, token, None, delay, error, now))

    def _release_id(self, message_id: str, member: str) -> bool:
        return self._answer(frames.Release(self._number, checks.sequence_of(message_id), member))

    def _release_token(self, token: int) -> bool:
        return self._answer(frames.Release(self._number, token, None))

    def _reject_id(self, message_id: str, member: str, error: str) -> bool:
        return self._answer(frames.Reject(self._number, checks.sequence_of(message_id), member, error))

    def _reject_token(self, token: int, error: str) -> bool:
        return self._answer(frames.Reject(self._number, token, None, error))

    def _extend_id(self, message_id: str, member: str, seconds: float | None, now: float | None) -> bool:
        request = frames.Extend(self._number, checks.sequence_of(message_id), member, seconds, now)
        return self._broker._ask(request, Moment).value is not None

    def _extend_token(self, token: int, seconds: float | None, now: float | None) -> float | None:
        return self._broker._ask(frames.Extend(self._number, token, None, seconds, now), Moment).value

    def _answer(self, request: Frame) -> bool:
        return self._broker._ask(request, Answers).values[0]

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _expire(self, now: float | None) -> int:
        return self._broker._ask(frames.Expire(self._number, now), Number).value

    def _offer(self, message: Message) -> bool:
        return self._answer(
            frames.Offer(
                self._number,
                msgspec.Raw(payloads.encode_payload(message.payload)),
                checks.headers(message.headers),
                int(message.priority),
                message.timestamp,
                message.sequence,
                message.uid,
            )
        )

    def _stats(self, now: float | None) -> SubscriptionStats:
        return SubscriptionStats(*self._broker._ask(frames.Stats(self._number, now), StatsReply).values)

    def _wait_idle(self, timeout: float | None) -> bool:
        return self._answer(frames.WaitIdle(self._number, timeout))

    def _attach_dispatcher(self) -> str:
        return self._broker._ask(frames.Attach(self._number), Text).value

    def _detach_dispatcher(self, member: str) -> None:
        self._broker._ask(frames.Detach(self._number, member), Done)

    def __reduce__(self) -> tuple[Any, ...]:
        return SubscriptionHandle, (self._broker, self._subscribed)
