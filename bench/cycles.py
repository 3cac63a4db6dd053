"""Messages published, handed over and acked in rounds of 100 by one process, in each of the forms that mpbroker has.

For workloads that ask what a message costs, and not how fast many go: P6 and P9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice
from typing import Any, Final

from bench.measure import PAYLOAD
from mpbroker import Delivery

CYCLE: Final = 100
"""Messages of one cycle."""

MEMBER: Final = "worker"

_BEHIND: Final = 10
"""Cycles after which the other half of a pipelined cycle is acked: after the acks of the first half went out."""

_PREFETCH: Final = 20_000
"""More than a round leaves unacked, since a consumer that holds so many waits for an ack."""


class Pieces(Enum):
    """Which of a cycle's messages are acked together."""

    WHOLE = "all acked together"
    MISSING = "one ack missing in every 100"
    ALTERNATE = "every second one acked, then the others"


Cycles = Callable[[Any, Any, int, Pieces], None]
"""Run so many cycles with this broker, of a topic with this subscription; acked in such pieces."""


def calls(broker: Any, subscription: Any, cycles: int, pieces: Pieces = Pieces.WHOLE) -> None:
    """publish_many, poll and ack_many: a confirmed call for each step of a cycle, two for acks in two halves."""
    payloads = [PAYLOAD] * CYCLE
    topic = subscription.topic
    for _ in range(cycles):
        broker.publish_many(topic, payloads)
        deliveries = subscription.poll(MEMBER, max_messages=CYCLE)
        ids = [delivery.message_id for delivery in deliveries]
        for part in _parts(ids, pieces):
            subscription.ack_many(part, MEMBER)


def pipelined(broker: Any, subscription: Any, cycles: int, pieces: Pieces = Pieces.WHOLE) -> None:
    """A publisher, flushed after every cycle, and a consumer, whose acks go out by themselves."""
    later: deque[Sequence[Delivery]] = deque()
    with (
        broker.publisher(subscription.topic) as out,
        subscription.consume(
            MEMBER, prefetch=_PREFETCH if pieces is Pieces.MISSING else _BEHIND * CYCLE * 2
        ) as consumer,
    ):
        deliveries = iter(consumer)
        for _ in range(cycles):
            for _ in range(CYCLE):
                out.publish(PAYLOAD)
            out.flush()
            first, *rest = _parts(list(islice(deliveries, CYCLE)), pieces)
            later.extend(rest)
            _ack(first)
            if len(later) > _BEHIND:
                _ack(later.popleft())
        while later:
            _ack(later.popleft())


def _parts(items: list[Any], pieces: Pieces) -> list[Sequence[Any]]:
    """What is acked of a cycle, in the order of the acks."""
    if pieces is Pieces.WHOLE:
        return [items]
    if pieces is Pieces.MISSING:
        middle = len(items) // 2
        return [items[:middle] + items[middle + 1 :]]
    return [items[::2], items[1::2]]


def _ack(deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        delivery.ack()


FORMS: Final[dict[str, Cycles]] = {"calls": calls, "pipelined": pipelined}
