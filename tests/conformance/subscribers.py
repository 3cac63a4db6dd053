"""Subscribers for the push tests."""

from __future__ import annotations

from mpbroker import (
    Message,
    RetryPolicy,
    Subscriber,
)
from mpbroker.api import BrokerAPI, SubscriptionAPI

QUICK = RetryPolicy(max_attempts=3, base_delay=0.001, max_delay=0.002)


class Recorder(Subscriber):
    """Notes each call; fails as often as it is told for a payload."""

    def __init__(self, name: str = "audit", fails: dict[object, int] | None = None) -> None:
        self._name = name
        self.fails = fails or {}
        self.calls: list[object] = []
        self.done: list[Message] = []

    @property
    def subscriber_id(self) -> str:
        return self._name

    def on_message(self, message: Message) -> None:
        self.calls.append(message.payload)
        if self.fails.get(message.payload, 0) > 0:
            self.fails[message.payload] -= 1
            raise ValueError(f"not now, {message.payload}")
        self.done.append(message)


def audit_of(broker: BrokerAPI, subscriber: Subscriber, retry: RetryPolicy = QUICK) -> SubscriptionAPI:
    broker.create_topic("orders", exist_ok=True)
    return broker.subscribe("orders", subscriber, retry=retry)
