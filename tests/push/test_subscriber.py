"""Subscribers that come with the package."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from mpbroker.errors import InvalidName
from mpbroker.messages import Message
from mpbroker.push.subscriber import CallbackSubscriber, DedupingSubscriber, Subscriber


class Noting(Subscriber):
    """Notes the uids it was called with; fails where it is told to."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.failing = False

    @property
    def subscriber_id(self) -> str:
        return "billing"

    def on_message(self, message: Message) -> None:
        self.seen.append(message.uid)
        if self.failing:
            raise ValueError("not now")


def message(uid: str) -> Message:
    return Message("orders", None, uid=uid)


def test_a_subscriber_says_who_it_is_and_what_it_does() -> None:
    with pytest.raises(TypeError):
        Subscriber()  # type: ignore[abstract]


def test_a_callback_subscriber_calls_its_callback_with_the_message() -> None:
    seen: list[Message] = []
    subscriber = CallbackSubscriber("billing", seen.append)
    subscriber.on_message(message("u-1"))
    assert subscriber.subscriber_id == "billing"
    assert seen == [message("u-1")]


@pytest.mark.parametrize("name", ["", "a/b", "$billing", "x" * 256])
def test_a_callback_subscriber_needs_a_name_that_a_subscription_may_have(name: str) -> None:
    with pytest.raises(InvalidName):
        CallbackSubscriber(name, print)


async def coroutine(message: Message) -> None: ...


@pytest.mark.parametrize("callback", [None, "print", coroutine])
def test_a_callback_that_would_never_run_is_refused(callback: Callable[[Message], object]) -> None:
    with pytest.raises(TypeError, match="callback"):
        CallbackSubscriber("billing", callback)


def test_a_deduping_subscriber_takes_the_place_of_the_one_inside() -> None:
    assert DedupingSubscriber(Noting()).subscriber_id == "billing"


def test_what_was_finished_is_not_processed_again() -> None:
    inner = Noting()
    subscriber = DedupingSubscriber(inner)
    for uid in ("u-1", "u-2", "u-1", "u-2"):
        subscriber.on_message(message(uid))
    assert inner.seen == ["u-1", "u-2"]


def test_what_failed_is_processed_again() -> None:
    inner = Noting()
    subscriber = DedupingSubscriber(inner)
    inner.failing = True
    with pytest.raises(ValueError, match="not now"):
        subscriber.on_message(message("u-1"))
    inner.failing = False
    for _ in range(2):
        subscriber.on_message(message("u-1"))
    assert inner.seen == ["u-1", "u-1"]


def test_the_oldest_finished_message_is_forgotten_first() -> None:
    inner = Noting()
    subscriber = DedupingSubscriber(inner, capacity=2)
    for uid in ("u-1", "u-2", "u-3"):
        subscriber.on_message(message(uid))
    inner.seen.clear()
    for uid in ("u-3", "u-2", "u-1"):
        subscriber.on_message(message(uid))
    assert inner.seen == ["u-1"]


def test_messages_that_were_never_published_are_not_taken_for_one_another() -> None:
    inner = Noting()
    subscriber = DedupingSubscriber(inner)
    for _ in range(2):
        subscriber.on_message(message(""))
    assert inner.seen == ["", ""]


def test_a_deduping_subscriber_travels_to_another_process_with_what_it_remembers() -> None:
    subscriber = DedupingSubscriber(Noting())
    subscriber.on_message(message("u-1"))
    again = pickle.loads(pickle.dumps(subscriber))
    again.on_message(message("u-1"))
    again.on_message(message("u-2"))
    assert again._inner.seen == ["u-1", "u-2"]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_is_at_least_one(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        DedupingSubscriber(Noting(), capacity)


@pytest.mark.parametrize("capacity", [True, 1.0, "1", None])
def test_a_capacity_is_a_whole_number(capacity: int) -> None:
    with pytest.raises(TypeError, match="capacity"):
        DedupingSubscriber(Noting(), capacity)


@pytest.mark.parametrize("inner", [None, "billing", Noting])
def test_only_a_subscriber_can_be_inside(inner: Subscriber) -> None:
    with pytest.raises(TypeError, match="inner"):
        DedupingSubscriber(inner)
