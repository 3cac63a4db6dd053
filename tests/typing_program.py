"""A small program as users write it, run and type-checked against the installed package.

Its annotations are the test: each says what a type checker must find out by itself.
"""

from __future__ import annotations

from typing import assert_type

import mpbroker
from mpbroker import (
    BrokerManager,
    BrokerProxy,
    Delivery,
    Message,
    MessageBroker,
    MessagePriority,
    RetryPolicy,
    SubscriptionStats,
)


def in_this_process() -> None:
    """Publish, poll and ack without another process."""
    with MessageBroker() as broker:
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing", ack_timeout=5.0, retry=RetryPolicy(max_attempts=3))
        message = broker.publish("orders", {"id": 1}, {"type": "created"})
        assert_type(message, Message)
        deliveries = billing.poll("worker-1", max_messages=10)
        assert_type(deliveries, list[Delivery])
        assert [delivery.message_id for delivery in deliveries] == [message.message_id]
        assert_type(deliveries[0].ack(), bool)
        assert_type(billing.stats(), SubscriptionStats)
        assert billing.stats().acked == 1


def across_processes() -> None:
    """The same through a broker process."""
    with BrokerManager() as manager:
        broker = manager.broker()
        assert_type(broker, BrokerProxy)
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing", filter='headers.type = "created"')
        published = broker.publish_many(
            "orders", [b"first", b"second"], {"type": "created"}, priority=MessagePriority.HIGH
        )
        assert_type(published, list[Message])
        broker.publish("orders", b"third", {"type": "paid"})
        seen: list[object] = []
        for delivery in billing.poll("worker-1", max_messages=10, timeout=10.0):
            with delivery:
                seen.append(delivery.payload)
        assert seen == [b"first", b"second"], seen
        assert billing.pending == 0
        try:
            broker.publish("payments", b"")
        except mpbroker.UnknownTopic as error:
            print("as it should be:", error)
        else:
            raise SystemExit("a publish to an unknown topic went through")


if __name__ == "__main__":
    in_this_process()
    across_processes()
    print(f"mpbroker {mpbroker.__version__} works")
