"""The life of three messages in two subscriptions, step by step, in given time."""

from __future__ import annotations

from mpbroker import DeadLetterReason
from mpbroker.api import BrokerAPI
from tests.conformance.support import attempts, ids, letters, only_one, places


def test_the_life_of_three_messages_is_the_same_everywhere(fresh: BrokerAPI) -> None:
    broker = fresh
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", ack_timeout=30.0, max_deliveries=2)
    email = broker.subscribe("orders", "email", filter='headers.type = "created"')

    # 1: m3 is paid, so email does not get it
    published = [
        broker.publish("orders", {"order": number}, {"type": kind})
        for number, kind in enumerate(["created", "created", "paid"])
    ]
    assert ids(published) == ["m1", "m2", "m3"]
    assert (billing.pending, email.pending) == (3, 2)

    # 2: members of one subscription split its messages
    assert ids(billing.poll("w1", now=0.0)) == ["m1"]
    assert ids(billing.poll("w2", now=0.0)) == ["m2"]

    # 3: the second ack finds nothing
    assert billing.ack("m1", "w1") is True
    assert billing.ack("m1", "w1") is False

    # 4: m2 was held 30 seconds
    assert billing.expire(29.999) == 0
    assert billing.expire(30.0) == 1
    assert places(billing.stats(30.0)) == {"acked": 1, "ready": 2}

    # 5: it is in front of m3, and w1's now
    taken = billing.poll("w1", 30.0, 2)
    assert ids(taken) == ["m2", "m3"]
    assert attempts(taken) == [2, 1]
    assert [delivery.redelivered for delivery in taken] == [True, False]
    assert billing.ack("m2", "w2") is False

    # 6: two deliveries were m2's limit
    assert billing.expire(60.0) == 2
    letter = only_one(letters(broker, billing))
    assert letter.subscription_id == "orders/billing"
    assert letter.message.message_id == "m2"
    assert letter.message.payload == {"order": 1}
    assert letter.reason is DeadLetterReason.RETRIES_EXHAUSTED
    assert letter.attempts == 2
    assert letter.last_member == "w1"
    assert places(billing.stats(60.0)) == {"acked": 1, "ready": 1, "dead": 1}
    again = only_one(billing.poll("w3", 60.0, 10))
    assert (again.message_id, again.attempt) == ("m3", 2)

    # 7: who never polls keeps everything, and holds nobody up
    assert email.pending == 2
    assert email.stats(60.0).deliveries == 0
    assert ids(email.poll("w1", 60.0, 10)) == ["m1", "m2"]
