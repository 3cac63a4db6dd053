"""What puppets do: functions of a module, so that any child can be told them. Each gets the proxy first."""

from __future__ import annotations

import os
from typing import Any

from mpbroker import Delivery
from mpbroker.process.proxy import BrokerProxy

_held: list[Delivery] = []


def create(broker: BrokerProxy, topic: str, name: str, settings: dict[str, Any]) -> None:
    broker.create_topic(topic, exist_ok=True)
    broker.subscribe(topic, name, **settings)


def publish(broker: BrokerProxy, topic: str, payload: Any) -> str:
    return broker.publish(topic, payload).message_id


def publish_numbers(broker: BrokerProxy, topic: str, publisher: int, count: int) -> None:
    """One by one."""
    for number in range(count):
        broker.publish(topic, (publisher, number))


def poll(broker: BrokerProxy, topic: str, name: str, member: str, count: int = 1, timeout: float | None = 0.0) -> Any:
    """Poll and keep what came; returns ids and attempts."""
    deliveries = broker.subscription(topic, name).poll(member, None, count, timeout=timeout)
    _held.extend(deliveries)
    return [(delivery.message_id, delivery.attempt) for delivery in deliveries]


def poll_at(broker: BrokerProxy, topic: str, name: str, member: str, now: float, count: int) -> Any:
    deliveries = broker.subscription(topic, name).poll(member, now, count)
    return [(delivery.message_id, delivery.attempt) for delivery in deliveries]


def ack(broker: BrokerProxy, topic: str, name: str, member: str, message_id: str) -> bool:
    return broker.subscription(topic, name).ack(message_id, member)


def ack_held(_: BrokerProxy) -> list[bool]:
    """Ack, by token, all that was kept."""
    answers = [delivery.ack() for delivery in _held]
    _held.clear()
    return answers


def extend_held(_: BrokerProxy, seconds: float) -> None:
    """Have the leases of all that was kept end so many seconds from now."""
    assert all(delivery.extend(seconds) for delivery in _held)


def look_at(broker: BrokerProxy, topic: str, name: str, count: int) -> list[Any]:
    """Poll, and say what each payload is, or the name of the error that looking at it raised."""
    found: list[Any] = []
    for delivery in broker.subscription(topic, name).poll("w", None, count):
        try:
            found.append(delivery.payload)
        except Exception as error:
            found.append(type(error).__name__)
        else:
            delivery.ack()
    return found


def topics(broker: BrokerProxy) -> list[str]:
    return list(broker.topics())


def exit_at_once(_: BrokerProxy, code: int) -> None:
    """End without any clean-up."""
    os._exit(code)
