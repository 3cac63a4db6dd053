"""The life of three messages in two subscriptions, step by step: what is expected and what came.

Owns the steps. Time is given, so they come out the same every time, over every kind of broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mpbroker.api import BrokerAPI
from mpbroker.deliveries import Delivery

TOPIC: Final = "orders"


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the trace."""

    number: int
    action: str
    expected: str
    got: str

    @property
    def holds(self) -> bool:
        return self.expected == self.got


def trace(broker: BrokerAPI) -> list[Step]:
    """Run it over a new broker whose time is given."""
    steps: list[Step] = []

    def step(number: int, action: str, expected: str, got: object) -> None:
        steps.append(Step(number, action, expected, str(got)))

    broker.create_topic(TOPIC)
    billing = broker.subscribe(TOPIC, "billing", ack_timeout=30.0, max_deliveries=2)
    email = broker.subscribe(TOPIC, "email", filter='headers.type = "created"')

    ids = [
        broker.publish(TOPIC, {"order": number}, {"type": kind}).message_id
        for number, kind in enumerate(("created", "created", "paid"), 1)
    ]
    step(1, "publish two orders created, one paid", "m1 m2 m3", " ".join(ids))
    step(1, "billing takes all; email filters", "backlogs 3, 2", f"backlogs {billing.pending}, {email.pending}")

    step(2, "billing: w1 polls at 0 s", "m1", _held(billing.poll("w1", now=0.0)))
    step(2, "billing: w2 polls at 0 s", "m2", _held(billing.poll("w2", now=0.0)))

    step(3, "w1 acks m1", "True", billing.ack("m1", "w1"))
    step(3, "w1 acks m1 again", "False", billing.ack("m1", "w1"))

    step(4, "billing.expire(30): w2's lease ends", "1", billing.expire(30.0))
    step(4, "m2 is ready again, before m3", "backlog 2", f"backlog {billing.pending}")

    step(5, "w1 polls two at 30 s", "m2 (attempt 2) m3", _held(billing.poll("w1", 30.0, 2)))
    step(5, "w2 acks m2, late", "False", billing.ack("m2", "w2"))

    step(6, "billing.expire(60): w1's leases end", "2", billing.expire(60.0))
    letters = [
        f"{letter.message.message_id} {letter.reason.name}" for letter in broker.dead_letters(billing.subscription_id)
    ]
    step(6, "two deliveries were m2's limit", "m2 RETRIES_EXHAUSTED", ", ".join(letters))
    stats = billing.stats(60.0)
    step(
        6,
        "m3 is ready again",
        "acked 1, ready 1, dead 1",
        f"acked {stats.acked}, ready {stats.ready}, dead {stats.dead}",
    )

    step(7, "email was never polled", "backlog 2", f"backlog {email.pending}")
    return steps


def _held(deliveries: Iterable[Delivery]) -> str:
    return " ".join(
        delivery.message_id + (f" (attempt {delivery.attempt})" if delivery.attempt > 1 else "")
        for delivery in deliveries
    )
