"""Who can finish a copy, and what every other ack is."""

from __future__ import annotations

import pytest

from mpbroker.api import BrokerAPI, SubscriptionAPI
from tests.conformance.support import fill, ids, m, only_one, places

NO_IDS = ["", "m", "m0", "m01", "m-1", "m+1", " m1", "m1 ", "m1\n", "M1", "1", "x1", "mm1", "m1.0"]
NO_IDS += ["m１", "ɱ1", "m1\0", "m\ud800", "m" + "9" * 30, "m" * 10_000]


@pytest.fixture
def billing(broker: BrokerAPI) -> SubscriptionAPI:
    broker.create_topic("orders")
    return broker.subscribe("orders", "billing", ack_timeout=30.0, max_deliveries=10)


def test_ack_finishes_the_copy_for_the_member_that_holds_it(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 2)
    billing.poll("w", 0.0, 2)
    assert billing.ack(m(1), "w") is True
    assert places(billing.stats(0.0)) == {"acked": 1, "in_flight": 1}
    assert billing.expire(30.0) == 1
    assert ids(billing.poll("w", 30.0, 10)) == [m(2)]


def test_ack_by_anyone_else_is_false_and_changes_nothing(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 3)
    billing.poll("w1", 0.0, 1)
    billing.poll("w2", 0.0, 1)
    before = places(billing.stats(0.0))
    assert billing.ack(m(1), "w2") is False  # another member's
    assert billing.ack(m(1), "W1") is False  # names are exact
    assert billing.ack(m(3), "w1") is False  # nobody's yet
    assert billing.ack(m(1), "stranger") is False  # who holds nothing
    assert billing.ack(m(99), "w1") is False  # not published
    assert places(billing.stats(0.0)) == before
    assert billing.ack(m(1), "w1") is True


def test_a_second_ack_is_false(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=0.0))
    assert delivery.ack() is True
    assert delivery.ack() is False
    assert billing.ack(m(1), "w") is False
    assert places(billing.stats(0.0)) == {"acked": 1}


def test_an_ack_of_what_was_taken_back_is_false(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=0.0))
    billing.expire(30.0)
    assert delivery.ack() is False
    assert billing.ack(m(1), "w") is False
    assert places(billing.stats(30.0)) == {"ready": 1}
    assert only_one(billing.poll("v", now=30.0)).attempt == 2


@pytest.mark.parametrize("message_id", NO_IDS, ids=lambda text: ascii(text[:12]))
def test_an_id_that_is_none_is_false(broker: BrokerAPI, billing: SubscriptionAPI, message_id: str) -> None:
    fill(broker, "orders", 1)
    message_id = message_id.replace("1", m(1)[1:])
    billing.poll("w", now=0.0)
    assert billing.ack(message_id, "w") is False
    assert billing.ack_many([message_id, m(1), message_id], "w") == [False, True, False]
    assert billing.nack(message_id, "w") is False
    assert billing.release(message_id, "w") is False
    assert billing.reject(message_id, "w") is False
    assert billing.extend(message_id, "w", now=0.0) is False
    assert places(billing.stats(0.0)) == {"acked": 1}


def test_an_old_delivery_cannot_finish_a_newer_one_of_the_same_member(
    broker: BrokerAPI, billing: SubscriptionAPI
) -> None:
    fill(broker, "orders", 1)
    old = only_one(billing.poll("w", now=0.0))
    new = only_one(billing.poll("w", now=30.0))
    assert (old.message_id, old.member) == (new.message_id, new.member)
    assert old.token != new.token
    before = billing.stats(30.0)
    assert old.nack(now=30.0) is False
    assert old.release() is False
    assert old.reject() is False
    assert old.extend(now=30.0) is False
    assert old.retry("x") is None
    assert billing.stats(30.0) == before
    assert old.ack() is False
    assert places(billing.stats(30.0)) == {"in_flight": 1}
    assert new.ack() is True


def test_an_ack_by_id_means_the_copy_the_member_holds_now(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    old = only_one(billing.poll("w", now=0.0))
    new = only_one(billing.poll("w", now=30.0))
    assert billing.ack(m(1), "w") is True
    assert old.ack() is False
    assert new.ack() is False


def test_a_delivery_is_acked_whatever_the_member_is_called(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 2)
    first, second = [only_one(billing.poll(member, now=0.0)) for member in ("w1", "w2")]
    assert second.ack() is True
    assert first.ack() is True


def test_tokens_are_never_used_again(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    broker.publish_many("orders", range(5))
    tokens: list[int] = []
    for round_number in range(6):
        now = round_number * 30.0
        taken = billing.poll("w", now, 3) + billing.poll("v", now, 3)
        assert len(taken) == 5
        tokens += [delivery.token for delivery in taken]
        for delivery in taken[:2]:
            delivery.release()
        for delivery in taken[2:4]:
            delivery.nack(now=now)
    retried = only_one(billing.poll("w", now=150.0)).retry("again")
    assert retried is not None
    tokens.append(retried.token)
    assert len(set(tokens)) == len(tokens) == 31


def test_ack_many_answers_for_each_id_in_order(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 5)
    billing.poll("w", 0.0, 3)
    billing.poll("v", 0.0, 1)
    answers = billing.ack_many([m(3), m(4), m(1), m(5), m(3), "nonsense", m(77), m(2)], "w")
    assert answers == [True, False, True, False, False, False, False, True]
    assert places(billing.stats(0.0)) == {"acked": 3, "ready": 1, "in_flight": 1}
    assert billing.ack_many([], "w") == []
    assert billing.ack_many((i for i in [m(4)]), "v") == [True]


def test_ack_many_over_several_deliveries_and_batches(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    published = ids(broker.publish_many("orders", range(700)))
    for size in (100, 300, 1, 299):
        assert len(billing.poll("w", 0.0, size)) == size
    backwards = published[::-1]
    assert billing.ack_many(backwards, "w") == [True] * 700
    assert billing.ack_many(backwards, "w") == [False] * 700
    assert places(billing.stats(0.0)) == {"acked": 700}


def test_late_acks_are_counted(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 2)
    first = only_one(billing.poll("w", now=0.0))
    billing.expire(30.0)
    assert billing.stats(30.0).late_acks == 0
    first.ack()
    assert billing.stats(30.0).late_acks == 1
    billing.ack(m(1), "w")
    assert billing.stats(30.0).late_acks == 2
    billing.poll("w", now=30.0)
    billing.ack(m(1), "w")
    assert billing.stats(30.0).late_acks == 2
    billing.ack_many([m(1), m(1)], "w")
    assert billing.stats(30.0).late_acks == 4


def test_only_acks_are_late_acks(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    fill(broker, "orders", 1)
    delivery = only_one(billing.poll("w", now=0.0))
    billing.expire(30.0)
    delivery.nack(now=30.0)
    delivery.release()
    delivery.reject()
    delivery.extend(now=30.0)
    assert billing.stats(30.0).late_acks == 0


def test_hand_overs_are_counted(broker: BrokerAPI, billing: SubscriptionAPI) -> None:
    broker.publish_many("orders", range(4))
    billing.poll("w", 0.0, 3)
    assert billing.stats(0.0).deliveries == 3
    assert billing.stats(0.0).redelivered == 0
    billing.release(m(1), "w")
    billing.nack(m(2), "w", now=0.0)
    billing.poll("w", 0.0, 10)  # m1, m2 again; m4 for the first time
    assert billing.stats(0.0).deliveries == 6
    assert billing.stats(0.0).redelivered == 2
