"""What a client may ask, and what the answers are."""

from __future__ import annotations

import errno
import math
import pickle
from typing import NoReturn, get_args

import msgspec
import pytest

from mpbroker.process import frames, subscribing
from mpbroker.process.frames import Answers, Done, Failed, Granted, Letters, Number
from mpbroker.process.limits import LimitOptions, Limits
from mpbroker.process.payloads import encode_batches, encode_payload
from mpbroker.process.verbs import VERBS
from mpbroker.settings import Given
from tests.process.driver import (
    INCARNATION,
    WALL,
    Broker,
    Connection,
    payloads,
    publish,
    sequences,
    subscribe,
    tokens,
)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def call(broker: Broker) -> Connection:
    return broker.call()


def test_every_request_has_its_verb() -> None:
    assert set(get_args(frames.Request)) == {*VERBS, frames.Share, frames.Stop, frames.Goodbye}


# -- topics and subscriptions -----------------------------------------------------------------------------------------


def test_topics_are_made_listed_and_deleted(call: Connection) -> None:
    call.ask(frames.CreateTopic("b", False), Done)
    call.ask(frames.CreateTopic("a", False), Done)
    assert call.failed(frames.CreateTopic("a", False)) == Failed("TopicExists", ["a"])
    call.ask(frames.CreateTopic("a", True), Done)
    call.subscribe("a", "s")
    call.publish("a", 1, 2)
    call.publish("b", 1)
    listed = call.ask(frames.Topics(), frames.TopicsReply).values
    assert list(listed.items()) == [("b", [1, 1, 0]), ("a", [2, 0, 1])]
    call.ask(frames.DeleteTopic("a"), Done)
    assert call.failed(frames.DeleteTopic("a")) == Failed("UnknownTopic", ["a"])
    assert call.failed(publish("a", 1)) == Failed("UnknownTopic", ["a"])
    assert call.ask(frames.Subscriptions(None), frames.SubscriptionsReply).values == {}


def test_subscribing_twice_gives_the_same_number(call: Connection) -> None:
    number = call.subscribe("t", "s", ack_timeout=5.0, filter='headers.a = "1"')
    assert call.subscribe("t", "s") == number
    assert call.subscribe("t", "s", filter='(headers.a = "1")') == number
    found = call.ask(frames.FindSubscription("t", "s"), frames.Subscribed)
    assert found == frames.Subscribed("t", "s", number, None)
    failed = call.failed(subscribe("t", "s", ack_timeout=6.0, max_deliveries=9))
    assert failed == Failed("SubscriptionConflict", ["t/s", ["ack_timeout", "max_deliveries"]])
    assert call.failed(frames.FindSubscription("t", "x")).kind == "UnknownSubscription"
    assert call.failed(frames.Unsubscribe("t", "x")).kind == "UnknownSubscription"
    assert call.failed(subscribe("nowhere", "s")).kind == "UnknownTopic"


def test_a_push_subscription_retries_by_default(call: Connection) -> None:
    call.ask(frames.CreateTopic("t", False), Done)
    made = call.ask(subscribe("t", "push", push=True), frames.Subscribed)
    assert made.retry == frames.Retry(5, 0.1, 2.0, 30.0)
    made = call.ask(subscribe("t", "none", push=True, retry=None), frames.Subscribed)
    assert made.retry is None
    made = call.ask(subscribe("t", "own", retry=frames.Retry(2, 1.0, 3.0, 9.0)), frames.Subscribed)
    assert made.retry == frames.Retry(2, 1.0, 3.0, 9.0)


def test_every_setting_reaches_the_subscription(broker: Broker, call: Connection) -> None:
    number = call.subscribe(
        "t", "s", filter="headers:a", ack_timeout=3.5, max_deliveries=7, max_queue=9, overflow="drop_oldest"
    )
    subscription = broker.engine.by_number(number)
    assert subscription is not None
    settings = subscription.settings
    assert settings.filter is not None
    assert settings.filter({"a": ""})
    assert (settings.ack_timeout, settings.max_deliveries, settings.max_queue) == (3.5, 7, 9)
    assert settings.overflow.value == "drop_oldest"


def test_filters_are_expressions_or_functions_that_the_broker_was_given() -> None:
    broker = Broker(functions={"filters:is_big": lambda headers: int(headers.get("size", "0")) > 10})
    call = broker.call()
    number = call.subscribe("t", "big", function="filters:is_big")
    assert call.subscribe("t", "big", function="filters:is_big") == number
    call.publish("t", 1, size="5")
    call.publish("t", 2, size="50")
    assert sequences(call.poll(number, count=5)) == [2]
    call.publish("t", 3, size="many")
    assert call.stats(number)["filter_errors"] == 1


@pytest.mark.parametrize("name", ["other:f", "", "no_colon", "builtins:eval", "os:system"])
def test_an_unknown_function_shows_the_way(call: Connection, name: str) -> None:
    call.ask(frames.CreateTopic("t", False), Done)
    failed = call.failed(subscribe("t", "s", function=name))
    assert failed.kind == "InvalidFilter"
    reason = str(failed.args[1])
    assert f"filter_modules=[{name.partition(':')[0]!r}]" in reason
    assert "--filter-module" in reason


def test_a_broken_expression_points_at_the_place(call: Connection) -> None:
    call.ask(frames.CreateTopic("t", False), Done)
    failed = call.failed(subscribe("t", "s", filter='headers.a = "1" AND'))
    assert failed.kind == "InvalidFilter"
    assert failed.args[2] == len('headers.a = "1" AND')


def test_a_parser_that_cannot_be_loaded_now_refuses_the_expression_and_is_no_defect(
    call: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_descriptors(_: str) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    call.ask(frames.CreateTopic("t", False), Done)
    with monkeypatch.context() as patch:
        patch.setattr(subscribing, "Expression", without_descriptors)
        failed = call.failed(subscribe("t", "s", filter='headers.a = "1"'))
    assert failed.kind == "InvalidFilter"
    assert "cannot load the parser of expressions now" in str(failed.args[1])
    assert call.subscribe("t", "s", filter='headers.a = "1"')


@pytest.mark.parametrize("what", ["topics", "subscriptions"])
def test_the_number_of_names_is_bounded(what: str) -> None:
    broker = Broker(limits=Limits(max_topics=2, max_subscriptions=2))
    call = broker.call()
    for name in ("a", "b"):
        call.subscribe(name, "s")
    if what == "topics":
        over: frames.Frame = frames.CreateTopic("c", True)
    else:
        over = subscribe("a", "other")
    assert call.failed(over) == Failed("LimitReached", [what, 2, f"max_{what}"])
    call.subscribe("a", "s")  # what is there is there
    call.ask(frames.DeleteTopic("a"), Done)
    call.subscribe("c", "s")


def test_an_ephemeral_subscription_ends_with_the_process_that_made_it(broker: Broker) -> None:
    maker, other = broker.process(), broker.process()
    making, asking = maker.call(), other.call()
    making.ask(frames.CreateTopic("t", False), Done)
    number = making.subscribe("t", "replies", ephemeral=True)
    assert making.subscribe("t", "replies", ephemeral=True) == number
    assert asking.failed(subscribe("t", "replies", ephemeral=True)) == Failed(
        "SubscriptionConflict", ["t/replies", ["ephemeral"]]
    )
    assert making.failed(subscribe("t", "replies", ephemeral=False)).kind == "SubscriptionConflict"
    assert asking.subscribe("t", "replies") == number, "a handle on it is anybody's"
    other.goodbye()
    making.publish("t", 1)
    asking = broker.call()
    assert asking.poll(number)
    maker.die()
    assert asking.failed(subscribe("nowhere", "replies")).kind == "UnknownTopic"
    assert asking.failed(frames.FindSubscription("t", "replies")).kind == "UnknownSubscription"
    assert asking.publish("t", 2).subscriptions == 0


def test_ephemeral_subscriptions_that_were_deleted_are_not_deleted_again(broker: Broker) -> None:
    maker = broker.process()
    call = maker.call()
    call.ask(frames.CreateTopic("t", False), Done)
    call.subscribe("t", "a", ephemeral=True)
    call.ask(frames.Unsubscribe("t", "a"), Done)
    other = broker.call()
    number = other.subscribe("t", "a")
    call.subscribe("t", "b", ephemeral=True)
    maker.goodbye()
    assert other.subscribe("t", "a") == number
    assert other.ask(frames.Topics(), frames.TopicsReply).values["t"][2] == 1


# -- publish and poll -------------------------------------------------------------------------------------------------


def test_a_publish_says_what_it_did(call: Connection) -> None:
    call.subscribe("t", "all")
    call.subscribe("t", "some", filter='headers.kind = "x"')
    assert call.publish("t", "a") == frames.Published(1, WALL, 1)
    assert call.publish("t", *range(1000), kind="x") == frames.Published(2, WALL, 2)
    call.ask(frames.CreateTopic("empty", False), Done)
    assert call.publish("empty", "b") == frames.Published(1002, WALL, 0)


def test_payloads_come_out_as_they_came(call: Connection) -> None:
    number = call.subscribe("t", "s")
    sent = [1, -5, 2**63, 2.5, math.inf, "text", b"bytes", None, True, {"a": [1]}, 2**70, ("t",), ""]
    call.publish("t", *sent)
    got = [payloads(call.poll(number, count=count)) for count in (1, 2, 3, 100)]
    assert [payload for each in got for payload in each] == sent


def test_a_whole_batch_leaves_as_the_bytes_that_came(call: Connection) -> None:
    number = call.subscribe("t", "s")
    (blob,) = encode_batches(["a", 1, b"x"])
    call.ask(frames.Publish("t", [msgspec.Raw(blob)], {}, 1), frames.Published)
    (grant,) = call.poll(number, count=10)
    assert bytes(grant.payloads) == blob


def test_a_pickle_is_never_opened_by_the_broker(call: Connection) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (eval, ("1/0",))

    number = call.subscribe("t", "s", max_deliveries=1, filter="headers:a")
    call.publish("t", Bomb(), Bomb(), a="1")
    (grant,) = call.poll(number)
    call.ask(frames.Reject(number, grant.token, None, "bad"), Answers)
    (letter,) = call.ask(frames.DeadLetters(None, None, 0), Letters).letters
    ext = msgspec.msgpack.decode(bytes(letter.payload))
    with pytest.raises(ZeroDivisionError):
        pickle.loads(ext.data)
    call.ask(frames.Redrive("t/s", None, None), Number)
    assert len(sequences(call.poll(number, count=5))) == 2


def test_grants_carry_what_the_message_had(call: Connection) -> None:
    number = call.subscribe("t", "s", ack_timeout=12.0)
    call.publish("t", "x", priority=3, a="1", b="é")
    (grant,) = call.poll(number)
    assert (grant.first, grant.attempt, grant.redelivered, grant.priority) == (1, 1, False, 3)
    assert (grant.timestamp, grant.headers) == (WALL, {"a": "1", "b": "é"})
    assert grant.deadline == 112.0


def test_messages_leave_by_priority_then_by_sequence(call: Connection) -> None:
    number = call.subscribe("t", "s")
    for priority in (1, 0, 3, 1, 2):
        call.publish("t", priority, priority=priority)
    assert payloads(call.poll(number, count=9)) == [3, 2, 1, 1, 0]


def test_settling_by_member_and_by_token(call: Connection) -> None:
    number = call.subscribe("t", "s")
    call.publish("t", *range(6))
    held = tokens(call.poll(number, "w", 6))
    assert call.ask(frames.Ack(number, "w", [1, 1, 99, -5]), Answers).values == [True, False, False, False]
    assert call.ack(number, held[1], held[1], 0, -1) == [True, False, False, False]
    assert call.ask(frames.Nack(number, 3, "w", None, "e", None), Answers).values == [True]
    assert call.ask(frames.Release(number, 4, "w"), Answers).values == [True]
    assert call.ask(frames.Reject(number, held[4], None, "e"), Answers).values == [True]
    assert call.ask(frames.Extend(number, 6, "w", 50.0, None), frames.Moment).value == 150.0
    assert call.ask(frames.Extend(number, 1, "w", 50.0, None), frames.Moment).value is None
    assert call.ask(frames.Release(number, held[4], None), Answers).values == [False]
    stats = call.stats(number)
    assert {name: stats[name] for name in ("acked", "ready", "in_flight", "dead", "late_acks")} == {
        "acked": 2,
        "ready": 2,
        "in_flight": 1,
        "dead": 1,
        "late_acks": 6,
    }


def test_a_copy_is_offered_to_one_subscription(call: Connection) -> None:
    call.subscribe("t", "a")
    call.publish("t", "x", kind="k")
    number = call.subscribe("t", "b")
    payload = msgspec.Raw(encode_payload("x"))
    offer = frames.Offer(number, payload, {"kind": "k"}, 2, 5.5, 1, f"{INCARNATION}-1")
    assert call.ask(offer, Answers).values == [True]
    assert call.ask(offer, Answers).values == [False]
    (grant,) = call.poll(number)
    assert (grant.first, grant.priority, grant.timestamp, payloads([grant])) == (1, 2, 5.5, ["x"])


@pytest.mark.parametrize(
    ("sequence", "uid"), [(2, f"{INCARNATION}-2"), (1, "ffffffffffffffff-1"), (1, ""), (1, f"{INCARNATION}-2")]
)
def test_a_message_of_another_broker_cannot_be_offered(call: Connection, sequence: int, uid: str) -> None:
    number = call.subscribe("t", "s")
    call.publish("t", "x")
    payload = msgspec.Raw(encode_payload("x"))
    failed = call.failed(frames.Offer(number, payload, {}, 1, 0.0, sequence, uid))
    assert failed.kind == "ValueError"
    assert "not published by this broker" in str(failed.args[0])


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_publish_that_could_not_be_delivered_is_too_large() -> None:
    limits = Limits(max_frame_bytes=2 * frames.ROOM_BYTES)
    broker = Broker(limits=limits)
    call = broker.call()
    number = call.subscribe("t", "s")
    room = limits.request_bytes
    request = publish("t", b"x" * room)
    size = len(frames.encode(request))
    assert call.failed(request) == Failed("PayloadTooLarge", ["this publish", size, room])
    assert call.stats(number)["accepted"] == 0
    request = publish("t", b"x" * (room - (size - room)))
    assert len(frames.encode(request)) == room
    call.ask(request, frames.Published)
    assert len(frames.encode(Granted(call.poll(number)))) < limits.max_frame_bytes


def test_headers_count_as_well() -> None:
    limits = Limits(max_frame_bytes=2 * frames.ROOM_BYTES, max_header_bytes=1 << 20)
    broker = Broker(limits=limits)
    call = broker.call()
    number = call.subscribe("t", "s")
    blobs = [msgspec.Raw(encode_batches([bytes(300)])[0]) for _ in range(100)]
    call.ask(frames.Publish("t", blobs, {"h": "x" * 500_000}, 1), frames.Published)
    seen = 0
    while grants := call.poll(number, count=100):
        assert len(frames.encode(Granted(grants))) < limits.max_frame_bytes
        seen += len(grants)
    assert seen == 100


def test_an_answer_to_a_poll_fits_in_a_frame() -> None:
    limits = Limits(max_frame_bytes=2 * frames.ROOM_BYTES)
    broker = Broker(limits=limits)
    call = broker.call()
    number = call.subscribe("t", "s", max_queue=100_000)
    for _ in range(8):
        call.publish("t", *[bytes(10_000)] * 50)
    seen = 0
    while grants := call.poll(number, count=10**18):
        assert len(frames.encode(Granted(grants))) < limits.max_frame_bytes
        seen += len(sequences(grants))
    assert seen == 400


def test_small_messages_fit_as_well() -> None:
    limits = Limits(max_frame_bytes=2 * frames.ROOM_BYTES)
    broker = Broker(limits=limits, is_checked=False)
    call = broker.call()
    number = call.subscribe("t", "s", max_queue=100_000)
    blobs = [msgspec.Raw(encode_batches([bytes(256)])[0]) for _ in range(3000)]
    for _ in range(4):
        call.ask(frames.Publish("t", blobs, {"a": "b"}, 1), frames.Published)
    grants = call.poll(number, count=10**9)
    assert 1000 < len(grants) < 12_000
    assert len(frames.encode(Granted(grants))) < limits.max_frame_bytes


@pytest.mark.parametrize("request_", [frames.Topics(), frames.Subscriptions(None)])
def test_a_listing_that_does_not_fit_is_an_error(request_: frames.Frame) -> None:
    broker = Broker(limits=Limits(max_frame_bytes=2 * frames.ROOM_BYTES), is_checked=False)
    call = broker.call()
    for n in range(4100):
        topic = f"{n:05}" + "é" * 250
        broker.engine.create_topic(topic)
        if n % 2:
            broker.engine.subscribe(topic, "é" * 255, Given())
    assert call.failed(request_) == Failed("LimitReached", ["bytes in one listing", 2031616, "max_frame_bytes"])
    call.ask(frames.Subscriptions("00000" + "é" * 250), frames.SubscriptionsReply)


# -- dead letters -----------------------------------------------------------------------------------------------------


def bury(call: Connection, number: int, count: int) -> None:
    call.publish("t", *range(count))
    for token in tokens(call.poll(number, count=count)):
        call.ask(frames.Reject(number, token, None, f"bad {token}"), Answers)


def test_dead_letters_say_everything(broker: Broker, call: Connection) -> None:
    number = call.subscribe("t", "s", max_deliveries=2)
    call.publish("t", "x", priority=2, a="1")
    (token,) = tokens(call.poll(number, "one"))
    broker.later(1.0)
    call.ask(frames.Nack(number, token, None, None, "first", None), Answers)
    (token,) = tokens(call.poll(number, "two"))
    broker.later(1.0)
    call.ask(frames.Nack(number, token, None, None, "last", None), Answers)
    page = call.ask(frames.DeadLetters("t/s", None, 0), Letters)
    assert not page.more
    (letter,) = page.letters
    assert bytes(letter.payload) == encode_payload("x")
    assert (letter.subscription_id, letter.topic, letter.sequence, letter.uid) == ("t/s", "t", 1, f"{INCARNATION}-1")
    assert (letter.priority, letter.timestamp, letter.headers) == (2, WALL, {"a": "1"})
    assert (letter.reason, letter.error, letter.attempts) == ("retries_exhausted", "last", 2)
    assert (letter.dead_since, letter.last_member) == (102.0, "two")
    assert letter.history == [
        frames.AttemptRecord(1, "one", 100.0, 101.0, "failed", "first"),
        frames.AttemptRecord(2, "two", 101.0, 102.0, "failed", "last"),
    ]


def test_pages_of_dead_letters_go_through_all_subscriptions(call: Connection) -> None:
    for name in ("a", "b", "c"):
        number = call.subscribe("t", name)
        if name != "b":
            bury(call, number, 3)
            call.ask(frames.Unsubscribe("t", name), Done)
    first = call.subscribe("t", "first")
    call.subscribe("t", "empty")
    third = call.subscribe("t", "third")
    call.publish("t", *range(4))
    for number in (first, third):
        for token in tokens(call.poll(number, count=4)):
            call.ask(frames.Reject(number, token, None, "bad"), Answers)
    for offset in range(10):
        for limit in (None, 1, 3, 4, 5, 8, 100):
            page = call.ask(frames.DeadLetters(None, limit, offset), Letters)
            expected = [*["t/first"] * 4, *["t/third"] * 4][offset : None if limit is None else offset + limit]
            assert [letter.subscription_id for letter in page.letters] == expected
            assert not page.more


def test_dead_letters_come_in_pages_that_fit() -> None:
    limits = Limits(max_frame_bytes=2 * frames.ROOM_BYTES)
    broker = Broker(limits=limits)
    call = broker.call()
    number = call.subscribe("t", "s", max_queue=1)
    for _ in range(3):
        call.publish("t", *[bytes(9_000)] * 100)
    assert call.stats(number)["dead"] == 299
    found: list[int] = []
    pages = 0
    while True:
        page = call.ask(frames.DeadLetters("t/s", None, len(found)), Letters)
        assert len(frames.encode(page)) < limits.max_frame_bytes
        found += [letter.sequence for letter in page.letters]
        pages += 1
        if not page.more:
            break
    assert found == list(range(2, 301))
    assert pages > 1


def test_a_long_history_is_cut_at_its_old_end_to_fit() -> None:
    limits = Limits(max_frame_bytes=2 * frames.ROOM_BYTES)
    broker = Broker(limits=limits)
    call = broker.call()
    number = call.subscribe("t", "s", max_deliveries=100)
    call.publish("t", bytes(limits.request_bytes - 200))
    for n in range(100):
        (token,) = tokens(call.poll(number, "é" * 255))
        call.ask(frames.Nack(number, token, None, None, f"{n}" + "\N{GRINNING FACE}" * 4000, None), Answers)
    (letter,) = call.ask(frames.DeadLetters("t/s", None, 0), Letters).letters
    assert len(frames.encode(Letters([letter], False))) < limits.max_frame_bytes
    numbers = [attempt.number for attempt in letter.history]
    assert numbers == list(range(101 - len(numbers), 101))
    assert 10 < len(numbers) < 100


def test_dead_letters_are_redriven_and_purged(call: Connection) -> None:
    number = call.subscribe("t", "s")
    bury(call, number, 5)
    assert call.ask(frames.Redrive("t/s", [2, 4, 99], None), Number).value == 2
    assert call.ask(frames.Purge("t/s", None, 1), Number).value == 1
    assert call.ask(frames.Redrive("t/s", None, None), Number).value == 2
    assert sequences(call.poll(number, count=9)) == [2, 3, 4, 5]
    for request in (frames.Redrive("t/x", None, None), frames.Purge("x", None, None), frames.DeadLetters("", None, 0)):
        assert call.failed(request).kind == "UnknownSubscription"


# -- time -------------------------------------------------------------------------------------------------------------


def test_expire_and_next_deadline_of_all_and_of_one(broker: Broker, call: Connection) -> None:
    numbers = [call.subscribe("t", f"s{n}", ack_timeout=10.0 + n) for n in range(3)]
    call.publish("t", 1)
    for number in numbers:
        call.poll(number)
    assert call.ask(frames.NextDeadline(), frames.Moment).value == 110.0
    broker.now = 111.0
    assert call.ask(frames.Expire(numbers[1], None), Number).value == 1
    assert call.ask(frames.Expire(None, None), Number).value == 1
    assert call.ask(frames.NextDeadline(), frames.Moment).value == 112.0
    assert call.ask(frames.Expire(numbers[2], None), Number).value == 0


NOW_REQUESTS = [
    frames.Poll(1, "w", 10.0, 1, 0.0),
    frames.Nack(1, 1, "w", None, "", 10.0),
    frames.Extend(1, 1, "w", None, 10.0),
    frames.Expire(1, 10.0),
    frames.Expire(None, 10.0),
    frames.Stats(1, 10.0),
]


@pytest.mark.parametrize("request_", NOW_REQUESTS, ids=lambda request: type(request).__name__)
def test_now_is_refused_by_a_broker_that_reads_its_own_clock(call: Connection, request_: frames.Frame) -> None:
    assert call.subscribe("t", "s") == 1
    call.publish("t", 1)
    failed = call.failed(request_)
    assert failed.kind == "ValueError"
    text = str(failed.args[0])
    assert 'poll("w", 10) means now=10, not ten messages' in text
    assert "max_messages=10" in text
    assert "manual_time=True" in text
    assert call.stats(1)["ready"] == 1


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_a_moment_that_is_none_changes_nothing(now: float) -> None:
    broker = Broker(manual_time=True)
    call = broker.call()
    number = call.subscribe("t", "s", ack_timeout=5.0)
    call.publish("t", 1)
    call.poll(number)
    for request in (
        frames.Poll(number, "w", now, 1, 0.0),
        frames.Expire(None, now),
        frames.Expire(number, now),
        frames.Stats(number, now),
        frames.Nack(number, 1, "w", None, "", now),
        frames.Extend(number, 1, "w", None, now),
    ):
        assert call.failed(request).kind == "ValueError"
    assert call.stats(number)["in_flight"] == 1
    assert call.ask(frames.NextDeadline(), frames.Moment).value == 5.0


# -- status -----------------------------------------------------------------------------------------------------------


def test_the_status_shows_use_against_limits_and_totals() -> None:
    broker = Broker(limits=Limits(max_connections=100, max_topics=7, max_subscriptions=8))
    process = broker.process()
    call, waiting = process.call(), process.call()
    number = call.subscribe("t", "s")
    call.subscribe("t", "gone")
    call.publish("t", 1, 2, 3, 4)
    first, second, third = tokens(call.poll(number, count=3))
    call.ack(number, first)
    call.ask(frames.Reject(number, second, None, "bad"), Answers)
    call.ask(frames.Release(number, third, None), Answers)
    call.poll(number)
    call.ask(frames.Unsubscribe("t", "gone"), Done)
    other = call.subscribe("t", "other")
    waiting.wait(other)
    broker.process().die()
    broker.later(7.5)
    report = call.ask(frames.Status(), frames.Report)
    assert (report.pid, report.incarnation, report.uptime, report.memory_bytes) == (4711, INCARNATION, 7.5, 12345)
    assert report.limits == {
        "connections": [3, 100],
        "sessions": [1, 100],
        "rings": [0, 512],
        "waiting_calls": [1, 100],
        "topics": [1, 7],
        "subscriptions": [2, 8],
        "messages": [2, 1000 + 1_000_000 - 1000 + 1_000_000],
        "queue_bytes": [report.limits["queue_bytes"][0], 1 << 30],
        "dead_letters": [1, 20_000],
    }
    counters = report.counters
    assert counters["published"] == 4
    assert counters["accepted"] == 8
    assert counters["acked"] == 1
    assert counters["deliveries"] == 4
    assert counters["redelivered"] == 1
    assert counters["dead_lettered"] == 1
    assert counters["dropped"] == 4
    assert counters["sessions_died"] == 1
    assert set(counters) >= {"calls", "calls_failed", "undone", "sessions_closed", "refused", "violations"}


def test_the_status_shows_every_bound_that_can_be_given(call: Connection) -> None:
    report = call.ask(frames.Status(), frames.Report)
    shown = {f"max_{name}" for name in report.limits} | set(report.bounds)
    assert set(LimitOptions.__annotations__) <= shown
    assert report.bounds["ring_bytes"] == 256 * 1024


# -- defects ----------------------------------------------------------------------------------------------------------


def test_a_defect_while_something_is_looked_up_is_told_and_logged_and_the_broker_goes_on(
    broker: Broker, call: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise KeyError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(broker.engine, "topics", broken)
        failed = call.failed(frames.Topics())
    assert failed == Failed("CallFailed", ["KeyError: 'lost'"])
    assert "Traceback" in caplog.text
    assert "KeyError: 'lost'" in caplog.text
    call.ask(frames.Topics(), frames.TopicsReply)


@pytest.mark.parametrize("defect", [KeyError("lost"), MemoryError(), RuntimeError("lost"), AssertionError()])
def test_a_defect_in_the_middle_of_a_change_is_the_end_of_the_broker(
    broker: Broker, call: Connection, monkeypatch: pytest.MonkeyPatch, defect: Exception
) -> None:
    """What is half done would go on being wrong: here, a message that one subscription has and another has not."""
    call.subscribe("t", "a")
    second = broker.engine.by_number(call.subscribe("t", "b"))
    assert second is not None

    def broken(*_: object) -> bool:
        raise defect

    monkeypatch.setattr(second, "put", broken)
    with pytest.raises(type(defect)) as raised:
        call.send(publish("t", 1))
    assert raised.value is defect


def test_a_defect_in_a_poll_that_waits_is_the_end_of_the_broker(
    broker: Broker, call: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = call.subscribe("t", "s")
    broker.call().wait(number)
    subscription = broker.engine.by_number(number)
    assert subscription is not None

    def broken(*_: object, **__: object) -> object:
        raise KeyError("lost")

    monkeypatch.setattr(subscription, "take", broken)
    with pytest.raises(KeyError, match="lost"):
        call.send(publish("t", 1))
