"""What a publish does to every subscription of its topic, or to none."""

from __future__ import annotations

import pytest

from mpbroker.engine import Engine, Payloads
from mpbroker.errors import QueueFull, TopicExists, UnknownTopic
from mpbroker.messages import Headers, TopicStats
from mpbroker.overflow import Overflow
from mpbroker.settings import Given
from tests.engine.bench import NORMAL, Bench, sequences, tokens


def test_a_full_subscription_that_rejects_is_named_and_nothing_was_published() -> None:
    bench = Bench()
    full = bench.engine.subscribe("t", "full", Given.check(max_queue=2, overflow=Overflow.REJECT))
    bench.publish(1)
    before = bench.stats()
    with pytest.raises(QueueFull) as caught:
        bench.publish(2, 3)
    assert caught.value.args == ("t/full", 2)
    assert bench.stats() == before
    assert bench.engine.topics() == {"t": TopicStats(1, 0, 2)}
    assert bench.publish(2) == 2
    assert full.stats(None).ready == 2


def test_a_full_subscription_that_rejects_is_not_asked_for_room_when_its_filter_refuses() -> None:
    bench = Bench(filter="headers:wanted", max_queue=1, overflow=Overflow.REJECT)
    bench.publish(1, wanted="")
    bench.publish(2, 3)
    assert bench.stats() == {"accepted": 1, "ready": 1, "backlog": 1, "filtered_out": 2}
    with pytest.raises(QueueFull):
        bench.publish(4, wanted="")


def test_messages_say_where_when_and_as_what_they_were_published() -> None:
    bench = Bench()
    bench.publish("one", "two", k="v")
    (lease,) = bench.take()
    messages = [lease.batch.message(index) for index in range(2)]
    assert [(each.topic, each.payload, each.message_id, each.sequence, each.uid) for each in messages] == [
        ("t", "one", "m1", 1, "abc-1"),
        ("t", "two", "m2", 2, "abc-2"),
    ]
    assert {(each.timestamp, each.priority, each.headers["k"]) for each in messages} == {(7.0, NORMAL, "v")}


def test_topics_count_what_was_published_and_what_nobody_took() -> None:
    bench = Bench(filter="headers:wanted")
    bench.publish(1, 2, wanted="")
    bench.publish(3, 4, 5)
    bench.engine.create_topic("u")
    bench.engine.publish("u", [Payloads([6])], Headers(), NORMAL, 0.0, 0.0)
    assert bench.engine.topics() == {"t": TopicStats(5, 3, 1), "u": TopicStats(1, 1, 0)}
    with pytest.raises(UnknownTopic, match="v"):
        bench.engine.publish("v", [Payloads([7])], Headers(), NORMAL, 0.0, 0.0)


def test_what_is_offered_late_takes_its_place_among_what_came_before() -> None:
    bench = Bench()
    bench.publish(1, 2)
    bench.s.ack_tokens(tokens(bench.take()))
    bench.publish(3, 4)
    late = Payloads([1]).batch("t", 1, NORMAL, 0.0, Headers(), "abc")
    assert bench.s.offer(late, 0.0) is True
    bench.check()
    assert bench.s.offer(late, 0.0) is False
    assert sequences(bench.take()) == [1, 3, 4]


def test_a_topic_is_made_once_and_subscriptions_are_numbered_from_one_up() -> None:
    engine = Engine(incarnation="abc", max_letters=2)
    engine.create_topic("t")
    with pytest.raises(TopicExists):
        engine.create_topic("t")
    engine.create_topic("t", exist_ok=True)
    made = [engine.subscribe("t", name, Given.check(max_queue=1)) for name in "abc"]
    assert [each.number for each in made] == [1, 2, 3]
    assert engine.subscribe("t", "b", Given.check()) is made[1]
    engine.publish("t", [Payloads(range(6))], Headers(), NORMAL, 9.0, 0.0)
    assert [record.sequence for record in made[0].dead_letters(None, 0)] == [5, 6]
    (run,) = made[0]._places.ready.runs()
    assert run.batch.timestamp == 9.0
