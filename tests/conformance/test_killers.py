"""A worker process that dies: what it held, and the message that may have killed it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpbroker import AttemptOutcome, DeadLetterReason, Delivery, MessagePriority
from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import (
    LIMIT_S,
    PROCESS_PLANES,
    attempts,
    fill,
    ids,
    letters,
    m,
    only,
    only_one,
    places,
    until,
)

pytestmark = only(*PROCESS_PLANES)

ROOT = Path(__file__).parents[2]


@contextmanager
def worker(subscription: SubscriptionAPI, member: str, max_messages: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds what it polled."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.killed_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            process.stdin.write(pickle.dumps((subscription, member, max_messages)))
            process.stdin.flush()
            assert process.stdout.readline().startswith(b"holding")
            yield process
        finally:
            process.kill()


def kill(subscription: SubscriptionAPI, member: str = "victim", max_messages: int = 100) -> None:
    """A worker polls and is killed; what it held is back when this returns."""
    standing = subscription.stats().in_flight
    with worker(subscription, member, max_messages) as process:
        process.kill()
        process.wait(LIMIT_S)
        until(lambda: subscription.stats().in_flight == standing)


def take(subscription: SubscriptionAPI, max_messages: int = 100) -> list[Delivery]:
    return subscription.poll("survivor", max_messages=max_messages, timeout=LIMIT_S)


@pytest.fixture
def billing(live: BrokerAPI) -> SubscriptionAPI:
    live.create_topic("orders")
    return live.subscribe("orders", "billing", ack_timeout=3600.0, max_deliveries=2)


def test_what_a_killed_worker_held_comes_back_counted_long_before_the_lease_ends(
    live: BrokerAPI, billing: SubscriptionAPI
) -> None:
    fill(live, "orders", 1)
    kill(billing)
    delivery = only_one(take(billing))
    assert (delivery.message_id, delivery.attempt, delivery.redelivered) == (m(1), 2, True)
    assert delivery.ack()


def test_copies_from_a_dead_process_are_handed_over_alone(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    live.publish_many("orders", range(3))
    kill(billing)
    newer = ids(live.publish_many("orders", range(3)))
    for message_id in (m(1), m(2), m(3)):
        delivery = only_one(take(billing))
        assert (delivery.message_id, delivery.attempt) == (message_id, 2)
    assert ids(take(billing)) == newer


def test_a_poll_that_gets_one_gets_nothing_else_before_it_either(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    live.publish_many("orders", range(2))
    kill(billing)
    urgent = ids(live.publish_many("orders", range(2), priority=MessagePriority.HIGH))
    assert ids(take(billing)) == urgent
    assert ids(take(billing)) == [m(1)]
    assert ids(take(billing)) == [m(2)]


def test_they_stay_alone_after_they_were_released_or_failed(
    live: BrokerAPI,
) -> None:
    live.create_topic("orders")
    billing = live.subscribe("orders", "billing", max_deliveries=9)
    live.publish_many("orders", range(3))
    kill(billing)
    only_one(take(billing)).release()
    only_one(take(billing)).nack()
    assert [ids(take(billing)) for _ in range(3)] == [[m(1)], [m(2)], [m(3)]]


def test_the_killer_is_found_and_its_neighbours_are_charged_once_at_most(
    live: BrokerAPI, billing: SubscriptionAPI
) -> None:
    """m3 kills whoever works on it, and the first such worker held all seven."""
    published = ids(live.publish_many("orders", range(7)))
    kill(billing, "first")
    innocents = [only_one(take(billing)) for _ in range(2)]
    kill(billing, "next")
    letter = only_one(letters(live, billing))
    assert letter.message.message_id == m(3)
    assert letter.reason is DeadLetterReason.RETRIES_EXHAUSTED
    assert letter.attempts == 2
    assert [(a.member, a.outcome) for a in letter.history] == [
        ("first", AttemptOutcome.WORKER_DIED),
        ("next", AttemptOutcome.WORKER_DIED),
    ]
    assert all("9" in a.error or "SIGKILL" in a.error for a in letter.history)
    innocents += [only_one(take(billing)) for _ in range(4)]
    assert ids(innocents) == [message_id for message_id in published if message_id != m(3)]
    assert attempts(innocents) == [2] * 6
    assert all(delivery.ack() for delivery in innocents)
    assert places(billing.stats()) == {"acked": 6, "dead": 1}


def test_a_clean_end_releases_uncounted_and_not_alone(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    published = ids(live.publish_many("orders", range(3)))
    with worker(billing, "tidy", 100) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
        until(lambda: billing.stats().in_flight == 0)
    taken = take(billing)
    assert ids(taken) == published
    assert attempts(taken) == [1, 1, 1]
    assert all(delivery.redelivered for delivery in taken)


def test_a_death_leaves_what_others_hold_alone(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(live, "orders", 4)
    mine = only_one(take(billing, 1))
    with worker(billing, "victim", 2) as process:
        process.kill()
        process.wait(LIMIT_S)
        until(lambda: billing.stats().in_flight == 1)
    assert mine.ack() is True
    assert [ids(take(billing)) for _ in range(3)] == [[m(2)], [m(3)], [m(4)]]


def test_an_ack_by_another_process_before_the_death_stands(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(live, "orders", 2)
    with worker(billing, "victim", 2) as process:
        assert billing.ack(m(1), "victim") is True  # any process that uses the name may
        process.kill()
        process.wait(LIMIT_S)
        until(lambda: billing.stats().in_flight == 0)
    assert ids(take(billing)) == [m(2)]
    assert places(billing.stats()) == {"acked": 1, "in_flight": 1}


def test_messages_that_came_back_from_a_death_wake_a_waiting_poll(live: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(live, "orders", 1)
    with worker(billing, "victim", 1) as process:
        process.kill()
        assert only_one(take(billing)).attempt == 2
