"""Where the boundary lies between what a request is refused for and a defect that ends the broker: by the step, not by
the class of the exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import pytest

from mpbroker.engine.leases import LeaseTable
from mpbroker.engine.letters import DeadLetters
from mpbroker.engine.places import Places
from mpbroker.engine.ready import Delayed, ReadyQueue
from mpbroker.engine.room import Line
from mpbroker.engine.subscription import Subscription
from mpbroker.errors import (
    AccessRefused,
    LimitReached,
    PayloadTooLarge,
    ProtocolViolation,
    TopicExists,
    UnknownSubscription,
    VersionMismatch,
)
from mpbroker.process import frames, verbs
from mpbroker.process.acts import Change
from mpbroker.process.blocks import Blocks, Lender
from mpbroker.process.encoded import EncodedPayloads
from mpbroker.process.limits import Limits
from mpbroker.process.waiting import Line as Parking
from tests.process.driver import INCARNATION, Broker, Connection, placed, publish, subscribe


class Missing(LookupError):
    """A LookupError that is nobody's refusal."""


DEFECTS: Final[list[Exception]] = [
    TypeError("planted"),
    ValueError("planted"),
    KeyError("planted"),
    Missing("planted"),
    AttributeError("planted"),
    RuntimeError("planted"),
    MemoryError(),
    AssertionError(),
    UnicodeDecodeError("utf-8", b"", 0, 0, "planted"),
    ProtocolViolation("planted"),
    AccessRefused("planted"),
    VersionMismatch("1", "2"),
    LimitReached("planted", 1, ""),
    PayloadTooLarge("planted", 1, 1),
]
"""None of them is what the engine refuses a request with, whatever they are called."""


@dataclass
class Scene:
    """A broker with one of everything: s has m1 and m2 ready; held has m1 in flight (token 256) and m2 dead."""

    broker: Broker
    call: Connection
    s: int
    held: int
    push: int

    @classmethod
    def begin(cls) -> Scene:
        broker = Broker(manual_time=True, is_checked=False)
        call = broker.call()
        s = call.subscribe("t", "s")
        held = call.subscribe("t", "held", retry=frames.Retry(5, 10.0, 1.0, 10.0))
        push = call.subscribe("t", "push", push=True)
        call.publish("t", "one", "two", "three")
        grants = call.poll(held, count=3)
        assert [each.token for each in grants] == [256]
        call.ask(frames.Reject(held, 257, None, "never"), frames.Answers)
        call.ask(frames.Nack(held, 258, None, None, "again", None), frames.Answers)
        return cls(broker, call, s, held, push)


def _dispatching(scene: Scene) -> frames.Frame:
    member = scene.call.ask(frames.Attach(scene.push), frames.Text).value
    assert scene.call.poll(scene.push, member)
    return frames.Detach(scene.push, member)


Asks = Callable[[Scene], frames.Frame]

SEGMENT_BYTES: Final = 16 * 4096


def _lane(scene: Scene) -> Connection:
    """A lane of the process of the call, with a segment: number 1."""
    lane = scene.broker.connect(scene.call.session, "lane", 9)
    assert lane.ask(frames.OfferSegment(SEGMENT_BYTES), frames.Number).value == 1
    return lane


def _in_a_block(scene: Scene) -> frames.Frame:
    _lane(scene)
    return placed("t", 1, 1)


def _doubts(scene: Scene) -> frames.Frame:
    _lane(scene)
    return frames.Freed(0, [1, 0, 9], 0.0)


def _block_is_ready(scene: Scene) -> int:
    """The number of a subscription that has a block ready."""
    number = scene.call.subscribe("blocks", "s")
    _lane(scene)
    scene.call.ask(placed("blocks", 1, 1), frames.Published)
    return number


MIDDLES: Final[dict[str, tuple[object, str, Asks]]] = {
    "create_topic": ("mpbroker.engine.broker", "Topic", lambda _: frames.CreateTopic("new", False)),
    "delete_topic": (Subscription, "end", lambda _: frames.DeleteTopic("t")),
    "subscribe": ("mpbroker.engine.broker", "Subscription", lambda _: subscribe("t", "new")),
    "unsubscribe": (Places, "drop_everything", lambda _: frames.Unsubscribe("t", "s")),
    "publish, mid-fan-out": (Places, "put", lambda _: publish("t", 1)),
    "publish, at its end": (Subscription, "_announce", lambda _: publish("t", 1)),
    "publish of a block, taking it": (Blocks, "claim", _in_a_block),
    "publish of a block, mid-fan-out": (Places, "put", _in_a_block),
    "poll of a block, pinning it": (
        "mpbroker.process.desk",
        "Pinned",
        lambda scene: frames.Poll(_block_is_ready(scene), "w", None, 1, 0.0),
    ),
    "freed": (Blocks, "doubt", _doubts),
    "offer": (
        Places,
        "put",
        lambda scene: frames.Offer(
            scene.call.subscribe("t", "late"), msgspec.Raw(b"\x01"), {}, 1, 0.0, 1, f"{INCARNATION}-1"
        ),
    ),
    "poll, mid-take": (LeaseTable, "grant", lambda scene: frames.Poll(scene.s, "w", None, 1, 0.0)),
    "poll, taking back": (Places, "fail", lambda scene: frames.Poll(scene.held, "w", 1e6, 1, 0.0)),
    "poll, going to wait": (Parking, "add", lambda scene: frames.Poll(scene.held, "w", None, 1, None)),
    "ack": (LeaseTable, "settle", lambda scene: frames.Ack(scene.held, "w", [1])),
    "ack_tokens": (LeaseTable, "settle", lambda scene: frames.AckTokens(scene.held, [256])),
    "ack_ranges": (LeaseTable, "settle", lambda scene: frames.AckRanges(scene.held, [256, 258])),
    "release_ranges": (ReadyQueue, "put_back", lambda scene: frames.ReleaseRanges(scene.held, [256, 258])),
    "nack": (LeaseTable, "settle", lambda scene: frames.Nack(scene.held, 256, None, None, "", None)),
    "nack, delayed": (Delayed, "add", lambda scene: frames.Nack(scene.held, 256, None, 5.0, "", None)),
    "release": (ReadyQueue, "put_back", lambda scene: frames.Release(scene.held, 256, None)),
    "reject": (DeadLetters, "add", lambda scene: frames.Reject(scene.held, 256, None, "")),
    "extend": (LeaseTable, "extend", lambda scene: frames.Extend(scene.held, 256, None, 5.0, None)),
    "retry_held": (LeaseTable, "grant", lambda scene: frames.RetryHeld(scene.held, 256, "")),
    "expire": (Places, "fail", lambda scene: frames.Expire(scene.held, 1e6)),
    "expire everywhere": (Places, "fail", lambda _: frames.Expire(None, 1e6)),
    "stats": (ReadyQueue, "put_back", lambda scene: frames.Stats(scene.held, 1e6)),
    "next_deadline": (LeaseTable, "next_deadline", lambda _: frames.NextDeadline()),
    "wait_idle": (Parking, "add", lambda scene: frames.WaitIdle(scene.s, None)),
    "attach": (Subscription, "_announce", lambda scene: frames.Attach(scene.push)),
    "detach": (Places, "give_back", _dispatching),
    "redrive": (ReadyQueue, "put_back", lambda _: frames.Redrive("t/held", None, None)),
    "purge": (DeadLetters, "_forget", lambda _: frames.Purge("t/held", None, None)),
    "subscriptions": (Places, "stats", lambda _: frames.Subscriptions(None)),
}


def plant(patch: pytest.MonkeyPatch, where: object, name: str, defect: Exception) -> None:
    def broken(*_: object, **__: object) -> object:
        raise defect

    if isinstance(where, str):
        patch.setattr(f"{where}.{name}", broken)
    else:
        patch.setattr(where, name, broken)


def test_every_verb_that_changes_something_has_a_defect_planted_in_its_middle() -> None:
    changing = {kind.__name__ for kind, verb in verbs.VERBS.items() if isinstance(verb, Change)}
    tried = {name.partition(",")[0].partition(" ")[0].replace("_", "") for name in MIDDLES}
    assert {name.lower() for name in changing} == tried


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: type(defect).__name__)
@pytest.mark.parametrize("middle", MIDDLES)
def test_whatever_a_change_raises_that_is_no_refusal_of_the_engine_is_the_end_of_the_broker(
    monkeypatch: pytest.MonkeyPatch, middle: str, defect: Exception
) -> None:
    where, name, asks = MIDDLES[middle]
    scene = Scene.begin()
    request = asks(scene)
    plant(monkeypatch, where, name, defect)
    with pytest.raises(type(defect)) as raised:
        scene.call.send(request)
    assert raised.value is defect
    assert not scene.call.inbox


@pytest.mark.parametrize(
    ("middle", "refusal"),
    [
        ("ack", UnknownSubscription("t/held")),
        ("publish, mid-fan-out", UnknownSubscription("t/s")),
        ("poll, mid-take", TopicExists("t")),
        ("create_topic", UnknownSubscription("t")),
        ("redrive", UnknownSubscription("t/held")),
    ],
)
def test_a_refusal_that_is_another_verbs_is_a_defect_in_this_one(
    monkeypatch: pytest.MonkeyPatch, middle: str, refusal: Exception
) -> None:
    where, name, asks = MIDDLES[middle]
    scene = Scene.begin()
    plant(monkeypatch, where, name, refusal)
    with pytest.raises(type(refusal)) as raised:
        scene.call.send(asks(scene))
    assert raised.value is refusal


def _poll_waits(scene: Scene) -> Callable[[], object]:
    scene.broker.call().wait(scene.held)
    return lambda: scene.call.send(publish("t", 1))


def _full(scene: Scene) -> int:
    number = scene.call.subscribe("w", "full", max_queue=1, overflow="wait", overflow_wait=5.0)
    scene.call.publish("w", 1)
    return number


def _is_full(scene: Scene) -> Callable[[], object]:
    _full(scene)
    return lambda: scene.call.send(publish("w", 2))


def _room_comes(scene: Scene) -> Callable[[], object]:
    number = _full(scene)
    scene.broker.call().publish_waiting("w", 2)
    (held,) = scene.call.poll(number)
    return lambda: scene.call.send(frames.AckTokens(number, [held.token]))


def _says_goodbye(scene: Scene) -> Callable[[], object]:
    process = scene.broker.process()
    process.call().poll(scene.s)
    return process.goodbye


def _dies(scene: Scene) -> Callable[[], object]:
    process = scene.broker.process()
    process.call().poll(scene.s)
    return process.die


def _interrupted(scene: Scene) -> Callable[[], object]:
    process = scene.broker.process()
    call = process.call()
    call.poll(scene.s)
    call.close()
    return lambda: process.call(replaces=call.number, answered=0)


def _offers(scene: Scene) -> Callable[[], object]:
    lane = _lane(scene)
    return lambda: lane.send(frames.OfferSegment(SEGMENT_BYTES))


def _drops(scene: Scene) -> Callable[[], object]:
    lane = _lane(scene)
    return lambda: lane.send(frames.DropSegment(1))


def _last_need_goes(scene: Scene) -> Callable[[], object]:
    number = _block_is_ready(scene)
    return lambda: scene.call.send(frames.Unsubscribe("blocks", "s")) if number else None


def _lender_dies(scene: Scene) -> Callable[[], object]:
    _block_is_ready(scene)
    return lambda: scene.broker.carry_out(scene.broker.sessions.process_ended(scene.call.session, None, 100.0))


FOLLOWING: Final[dict[str, tuple[object, str, Callable[[Scene], Callable[[], object]]]]] = {
    "a poll that waits gets a copy": (LeaseTable, "grant", _poll_waits),
    "a publish begins to wait": (Line, "stand", _is_full),
    "a publish that waits gets room": (Places, "put", _room_comes),
    "a process says goodbye": (Subscription, "end_owner", _says_goodbye),
    "a process dies": (Subscription, "end_owner", _dies),
    "an interrupted call is undone": (Subscription, "undo", _interrupted),
    "a segment is taken": ("mpbroker.process.blocks", "Segment", _offers),
    "a segment is let go of": (Blocks, "_leave", _drops),
    "nobody needs a block any more": (Lender, "tell", _last_need_goes),
    "a process dies that lends": (Blocks, "end", _lender_dies),
}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: type(defect).__name__)
@pytest.mark.parametrize("what", FOLLOWING)
def test_a_defect_in_what_follows_from_others_is_the_end_of_the_broker_too(
    monkeypatch: pytest.MonkeyPatch, what: str, defect: Exception
) -> None:
    where, name, prepare = FOLLOWING[what]
    act = prepare(Scene.begin())
    plant(monkeypatch, where, name, defect)
    with pytest.raises(type(defect)) as raised:
        act()
    assert raised.value is defect


@pytest.mark.parametrize("defect", [KeyError("planted"), RuntimeError("planted"), AttributeError("planted")])
def test_a_defect_before_anything_changed_is_that_calls_alone(
    monkeypatch: pytest.MonkeyPatch, defect: Exception
) -> None:
    scene = Scene.begin()
    before = scene.call.stats(scene.s)
    with monkeypatch.context() as patch:
        plant(patch, EncodedPayloads, "__init__", defect)
        failed = scene.call.failed(publish("t", 1))
    assert failed == frames.Failed("CallFailed", [f"{type(defect).__name__}: {defect}"])
    assert scene.call.stats(scene.s) == before
    assert scene.call.publish("t", 1).first == 4


def test_a_time_that_comes_with_a_refused_call_does_not_pass() -> None:
    broker = Broker(manual_time=True)
    call = broker.call()
    number = call.subscribe("t", "s", ack_timeout=5.0)
    call.publish("t", 1)
    assert call.poll(number, now=0.0)
    assert call.failed(frames.Extend(number, 256, "$none", 1.0, 100.0)).kind == "InvalidName"
    assert call.failed(frames.Poll(number, "w", 100.0, 0, 0.0)).kind == "ValueError"
    assert call.failed(frames.Poll(number, "w", float("nan"), 1, 0.0)).kind == "ValueError"
    assert call.stats(number, 1.0)["in_flight"] == 1
    assert call.ask(frames.Expire(None, None), frames.Number).value == 0


def test_a_call_that_finds_no_place_to_wait_is_refused_and_nothing_of_it_is_left() -> None:
    broker = Broker(limits=Limits(max_waiting_calls=1))
    call = broker.call()
    number = call.subscribe("t", "s", max_queue=1, overflow="wait", overflow_wait=5.0)
    broker.call().wait(number)
    assert call.failed(frames.Poll(number, "w", None, 1, None)).kind == "LimitReached"
    call.publish("t", 1)  # to the poll that waits
    assert broker.held() == 1
    broker.call().publish_waiting("t", 3)
    assert call.failed(publish("t", 4)).kind == "LimitReached"
    assert call.failed(frames.WaitIdle(number, None)).kind == "LimitReached"
    assert broker.sessions._desk.waiting == 1
