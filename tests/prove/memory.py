"""The broker's memory over very many publish, poll and ack: it must not grow.

Small and large batches, single calls, several subscriptions, failures that come back and dead letters that are purged;
after every round everything is acked, so the broker has nothing to keep.
"""

from __future__ import annotations

import random
import time
from itertools import product

import psutil

from mpbroker import BrokerAPI, BrokerManager, SubscriptionAPI
from tests.prove.part import Outcome

GROWTH_BYTES = 4 * 1024 * 1024
"""What an allocator may keep more of at the end than after the first tenth; a leak of ten bytes a message is 10 MB."""

_WARM_UP = 0.1

_COUNTS = (1, 10, 100, 1000, 1000)
_SIZES = (10, 100, 1000)
"""Messages of a round, and bytes of each."""


def run(seconds: float, seed: int, *, quick: bool) -> Outcome:
    """Publish, poll and ack for that long, a million messages at least unless ``quick``."""
    rng = random.Random(seed)
    outcome = Outcome("memory")
    at_least = 100_000 if quick else 1_000_000
    with BrokerManager() as manager, manager.broker() as broker:
        process = psutil.Process(manager.pid)
        broker.create_topic("t")
        readers = [broker.subscribe("t", name, max_deliveries=2) for name in ("a", "b")]
        started = time.monotonic()
        # Each kind of round once before the first look: the largest is not to be the news between the two.
        count = sum(_round(broker, readers, rng, *kind) for kind in product(sorted(set(_COUNTS)), _SIZES))
        warm = 0
        while count < at_least or time.monotonic() - started < seconds:
            count += _round(broker, readers, rng, rng.choice(_COUNTS), rng.choice(_SIZES))
            if not warm and (count >= at_least * _WARM_UP):
                warm = process.memory_info().rss
        last = process.memory_info().rss
        descriptors = process.num_fds() if hasattr(process, "num_fds") else 0
    outcome.figures = {
        "messages published, polled and acked": count,
        "broker memory after the first tenth (KiB)": warm // 1024,
        "broker memory at the end (KiB)": last // 1024,
        "broker descriptors": descriptors,
    }
    if last - warm > GROWTH_BYTES:
        outcome.failures.append(f"the broker grew by {(last - warm) // 1024:,} KiB over {count:,} messages")
    return outcome


def _round(broker: BrokerAPI, readers: list[SubscriptionAPI], rng: random.Random, count: int, size: int) -> int:
    """Messages in and out again; how many."""
    payload = rng.randbytes(size)
    if count == 1:
        broker.publish("t", payload, {"n": "1"})
    else:
        broker.publish_many("t", [payload] * count)
    for reader in readers:
        _empty(reader, rng)
        broker.purge_dead_letters(reader.subscription_id)
    return count


def _empty(reader: SubscriptionAPI, rng: random.Random) -> None:
    """Finish all there is; now and then by way of a second attempt or a dead letter."""
    while held := reader.poll("w", max_messages=1000):
        choice = rng.random()
        if choice < 0.05:
            held.pop().nack(error="again")
        elif choice < 0.1:
            held.pop().reject(error="never")
        reader.ack_many([each.message_id for each in held], "w")
