"""What max_queue_bytes counts beside payloads, and what happens where memory is short."""

from __future__ import annotations

import pytest

from mpbroker.engine import FRESH_BYTES, HELD_BYTES
from mpbroker.engine.places import LETTER_BYTES, RETURNED_BYTES
from mpbroker.messages import DeadLetterReason
from mpbroker.process import frames
from mpbroker.process.encoded import ATTEMPT_BYTES, HEADER_BYTES, HEADERS_BYTES, contents, headers_memory
from mpbroker.process.limits import Limits
from tests.process.driver import Broker, Connection, payloads, publish, sequences, tokens


def used(broker: Broker) -> int:
    return broker.sessions._desk.meter.used


def held_bytes(broker: Broker, *payloads: object) -> int:
    """What the batches of a publish count once."""
    request = publish("t", *payloads)
    made = contents(request.batches, request.headers, None, None, len(frames.encode(request)))
    return sum(each.held_bytes for each in made)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def call(broker: Broker) -> Connection:
    return broker.call()


@pytest.fixture
def short() -> Broker:
    """A broker in which a few copies may be in flight."""
    broker = Broker(limits=Limits(max_queue_bytes=1_000_000), is_checked=False)
    broker.sessions._desk._most_bytes = 8 * HELD_BYTES
    return broker


# -- what is counted --------------------------------------------------------------------------------------------------


def test_a_copy_counts_in_each_subscription_by_the_place_it_is_in(broker: Broker, call: Connection) -> None:
    batch = held_bytes(broker, 1, 2, 3)
    a, b = call.subscribe("t", "a"), call.subscribe("t", "b", max_deliveries=2)
    call.publish("t", 1, 2, 3)
    assert used(broker) == batch + 2 * FRESH_BYTES
    held = tokens(call.poll(a, count=3))
    assert used(broker) == batch + FRESH_BYTES + 3 * HELD_BYTES
    call.ack(a, held[0])
    assert used(broker) == batch + FRESH_BYTES + 2 * HELD_BYTES
    call.ask(frames.Release(a, held[1], None), frames.Answers)
    assert used(broker) == batch + FRESH_BYTES + HELD_BYTES + RETURNED_BYTES
    call.ask(frames.Nack(a, held[2], None, 5.0, "", None), frames.Answers)
    assert used(broker) == batch + FRESH_BYTES + 2 * RETURNED_BYTES + ATTEMPT_BYTES
    call.ask(frames.Unsubscribe("t", "a"), frames.Done)
    assert used(broker) == batch + FRESH_BYTES
    (first, *_) = tokens(call.poll(b, count=3))
    call.ask(frames.Reject(b, first, None, "no"), frames.Answers)
    alone = held_bytes(broker, 1)
    assert used(broker) <= batch + 2 * HELD_BYTES + alone + LETTER_BYTES + ATTEMPT_BYTES + 2
    call.ask(frames.Purge("t/b", None, None), frames.Number)
    assert used(broker) == batch + 2 * HELD_BYTES
    call.ask(frames.DeleteTopic("t"), frames.Done)
    assert used(broker) == 0


def test_dead_letters_that_are_made_by_the_publish_itself_count_at_once(broker: Broker, call: Connection) -> None:
    call.subscribe("t", "full", max_queue=1)
    call.publish("t", 0)
    before = used(broker)
    call.publish("t", 1)
    assert used(broker) - before >= LETTER_BYTES


def test_a_publish_is_refused_for_what_its_copies_would_take() -> None:
    broker = Broker(limits=Limits(max_queue_bytes=20_000))
    call = broker.call()
    for n in range(100):
        call.subscribe("t", f"s{n}")
    call.publish("t", 1)
    assert used(broker) > 100 * FRESH_BYTES
    assert call.failed(publish("t", 1)).kind == "BrokerFull"
    call.ask(frames.CreateTopic("u", False), frames.Done)
    call.publish("u", 1)


def test_an_attempt_counts_for_as_long_as_a_history_has_it(broker: Broker, call: Connection) -> None:
    number = call.subscribe("t", "s", max_deliveries=1000)
    call.publish("t", 1)
    before = used(broker)
    for _ in range(250):
        (token,) = tokens(call.poll(number))
        call.ask(frames.Nack(number, token, None, None, "e" * 100, None), frames.Answers)
    full = used(broker)
    assert 100 * (ATTEMPT_BYTES + 100) < full - before < 100 * (ATTEMPT_BYTES + 100 + 8 * 100) + RETURNED_BYTES
    for _ in range(150):
        (token,) = tokens(call.poll(number))
        call.ask(frames.Nack(number, token, None, None, "e" * 4000, None), frames.Answers)
    assert used(broker) > full + 100 * 3000
    call.ack(number, *tokens(call.poll(number)))
    assert used(broker) == 0


def test_what_dead_letters_of_one_batch_count_does_not_depend_on_how_many_went_before(
    broker: Broker, call: Connection
) -> None:
    number = call.subscribe("t", "s")
    call.publish("t", *range(100))
    counted = []
    for token in tokens(call.poll(number, count=100)):
        before = used(broker)
        call.ask(frames.Reject(number, token, None, "no"), frames.Answers)
        counted.append(used(broker) - before)
    assert max(counted[:-1]) - min(counted[:-1]) <= 8


@pytest.mark.parametrize(
    ("headers", "memory"),
    [
        ({}, 0),
        ({"a": "bc"}, HEADERS_BYTES + HEADER_BYTES + 3),
        ({"a": "", "b": ""}, HEADERS_BYTES + 2 * HEADER_BYTES + 2),
    ],
)
def test_headers_count_with_the_objects_that_they_are(headers: dict[str, str], memory: int) -> None:
    assert headers_memory(headers) == memory


def test_a_text_of_wide_characters_counts_as_wide_as_it_is_kept() -> None:
    assert headers_memory({"a": "x" * 1000 + "\U0001f600"}) > 5 * 1000


# -- where memory is short --------------------------------------------------------------------------------------------


def test_a_poll_is_handed_out_what_there_is_room_for_and_then_one_at_a_time(short: Broker) -> None:
    call = short.call()
    number = call.subscribe("t", "s")
    call.publish("t", *range(100))
    held = tokens(call.poll(number, count=100))
    assert 1 <= len(held) < 8
    assert call.poll(number, count=100) == []
    short.sessions._desk._most_bytes = 0
    call.ack(number, *held)
    for n in range(len(held), 100):
        grants = call.poll(number, count=100)
        assert payloads(grants) == [n]
        assert call.poll(number) == []
        call.ack(number, *tokens(grants))
    assert used(short) == 0


def test_a_poll_that_waits_where_memory_is_short_goes_on_when_something_is_settled(short: Broker) -> None:
    short.sessions._desk._most_bytes = 0
    call, other = short.call(), short.call()
    number = call.subscribe("t", "s", ack_timeout=5.0)
    call.publish("t", 1, 2, 3)
    (first,) = call.poll(number, count=3)
    other.wait(number, "v", count=3)
    call.ack(number, first.token)
    (second,) = other.granted()
    assert sequences([second]) == [2]
    call.wait(number, "w", count=3)
    short.later(5.0)
    assert sequences(call.granted()) == [2]


def test_several_polls_that_wait_are_not_handed_out_more_than_there_is_room_for(short: Broker) -> None:
    call = short.call()
    number = call.subscribe("t", "s")
    waiting = [short.call() for _ in range(5)]
    for each in waiting:
        each.wait(number, count=100)
    call.publish("t", *range(100))
    assert short.held() < 8
    assert sum(each.waits for each in waiting) >= 3


def test_who_may_not_poll_is_told_so_where_memory_is_short_too(short: Broker) -> None:
    short.sessions._desk._most_bytes = 0
    process = short.process()
    call = process.call()
    number = call.subscribe("t", "s", push=True)
    member = call.ask(frames.Attach(number), frames.Text).value
    call.publish("t", 1, 2)
    assert len(call.poll(number, member)) == 1
    failed = short.call().failed(frames.Poll(number, "w", None, 1, 0.0))
    assert failed.kind == "SubscriptionBusy"


def test_a_full_broker_keeps_no_more_attempts_and_counts_them_nevertheless() -> None:
    broker = Broker(limits=Limits(max_queue_bytes=3_000))
    call = broker.call()
    number = call.subscribe("t", "s", max_deliveries=20)
    call.publish("t", 1)
    for _ in range(20):
        (token,) = tokens(call.poll(number))
        call.ask(frames.Nack(number, token, None, None, "e" * 300, None), frames.Answers)
    assert used(broker) < 4_000
    (letter,) = call.ask(frames.DeadLetters(None, None, 0), frames.Letters).letters
    assert (letter.attempts, letter.reason) == (20, DeadLetterReason.RETRIES_EXHAUSTED.value)
    assert 0 < len(letter.history) < 20
    assert [each.number for each in letter.history] == list(range(1, len(letter.history) + 1))


def test_dead_letters_of_a_full_broker_stay_in_their_batch_and_are_the_same() -> None:
    broker = Broker(limits=Limits(max_queue_bytes=5_000))
    call = broker.call()
    number = call.subscribe("t", "s")
    call.publish("t", *range(10))
    held = tokens(call.poll(number, count=10))
    assert used(broker) > 5_000
    before = used(broker)
    for token in held[3:6]:
        call.ask(frames.Reject(number, token, None, "no"), frames.Answers)
    assert used(broker) < before
    call.ack(number, *held[:3], *held[6:])
    letters = call.ask(frames.DeadLetters(None, None, 0), frames.Letters).letters
    assert [(each.sequence, each.uid[-2:]) for each in letters] == [(n, f"-{n}") for n in (4, 5, 6)]
    assert [bytes(each.payload) for each in letters] == [b"\x03", b"\x04", b"\x05"]
    assert call.ask(frames.Redrive("t/s", [5], None), frames.Number).value == 1
    grants = call.poll(number, count=10)
    assert (sequences(grants), payloads(grants)) == ([5], [4])
    call.ack(number, *tokens(grants))
    call.ask(frames.Purge("t/s", None, None), frames.Number)
    assert used(broker) == 0
