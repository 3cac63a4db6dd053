"""Lines of publishes that wait for room: who stands where, who is woken, and when."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.engine import Engine, NoRoom, Payloads, Published, Subscription, Waiter, invariants
from mpbroker.engine.room import ThreadWaiter
from mpbroker.errors import QueueFull, UnknownTopic
from mpbroker.messages import Headers
from mpbroker.overflow import Overflow
from mpbroker.settings import Given
from tests.conformance.support import LIMIT_S, Call, until
from tests.engine.bench import NORMAL


class Room:
    """An engine with topic t, whose subscriptions take what has a header of their name."""

    def __init__(self, **rooms: int) -> None:
        self.engine = Engine(incarnation="abc")
        self.engine.create_topic("t")
        self.woken: list[str] = []
        self.waiters: dict[str, Waiter] = {}
        for name, max_queue in rooms.items():
            self.subscribe(name, max_queue)

    def subscribe(self, name: str, max_queue: int, **given: Any) -> Subscription:
        chosen = {"filter": f"headers:{name}", "overflow": Overflow.WAIT(5), **given}
        return self.engine.subscribe("t", name, Given.check(max_queue=max_queue, **chosen))

    def publish(self, count: int, kinds: str, waiter: Waiter | None = None) -> Published:
        headers = Headers(dict.fromkeys(kinds, ""))
        return self.engine.publish("t", [Payloads([0] * count)], headers, NORMAL, 0.0, 0.0, waiter)

    def wait(self, name: str, count: int, kinds: str) -> None:
        """A publish that finds no room."""
        self.waiters[name] = Waiter(count, lambda: self.woken.append(name))
        self.again(name, kinds)

    def again(self, name: str, kinds: str) -> None:
        """Another attempt, in vain."""
        waiter = self.waiters[name]
        with pytest.raises(NoRoom):
            self.publish(waiter.count, kinds, waiter)
        self.check()

    def line(self, name: str) -> list[str]:
        """Who stands there."""
        names = {waiter: each for each, waiter in self.waiters.items()}
        return [names[waiter] for waiter in self.engine.subscription("t", name).line.waiters]

    def ack(self, name: str, count: int = 1) -> None:
        subscription = self.engine.subscription("t", name)
        leases = subscription.take("w", 0.0, count)
        assert all(subscription.ack([lease.sequence for lease in leases], "w"))

    def check(self) -> None:
        invariants.check(self.engine)


def test_whoever_is_first_is_woken_once_it_fits() -> None:
    room = Room(a=3)
    room.publish(1, "a")
    room.publish(2, "a")
    room.wait("two", 2, "a")
    room.wait("one", 1, "a")
    room.ack("a")
    assert room.woken == []
    room.check()
    room.ack("a")
    assert room.woken == ["two"]
    room.ack("a")
    assert room.woken == ["two"]  # it was told, and has not tried
    room.publish(2, "a", room.waiters["two"])
    assert room.woken == ["two"]  # the room beside it is not for it
    room.waiters["two"].leave()
    assert room.woken == ["two", "one"]
    room.publish(1, "a", room.waiters["one"])
    room.waiters["one"].leave()
    assert room.line("a") == []
    room.check()


def test_who_gives_up_wakes_the_next_in_each_of_its_lines() -> None:
    room = Room(a=2, b=2)
    room.publish(1, "ab")
    room.wait("both", 2, "ab")
    room.wait("a", 1, "a")
    room.wait("b", 1, "b")
    assert (room.line("a"), room.line("b")) == (["both", "a"], ["both", "b"])
    room.waiters["both"].leave()
    assert sorted(room.woken) == ["a", "b"]
    room.check()
    room.waiters["both"].leave()
    assert sorted(room.woken) == ["a", "b"]


def test_who_leaves_from_the_middle_wakes_nobody() -> None:
    room = Room(a=1)
    room.publish(1, "a")
    for name in ("one", "two", "three"):
        room.wait(name, 1, "a")
    room.waiters["two"].leave()
    assert (room.line("a"), room.woken) == (["one", "three"], [])


def test_the_end_of_a_subscription_wakes_all_that_wait_for_it() -> None:
    room = Room(a=1, b=1)
    room.publish(1, "ab")
    for name in ("one", "two"):
        room.wait(name, 1, "ab")
    ended = room.engine.unsubscribe("t", "a")
    assert room.woken == ["one", "two"]
    room.again("two", "ab")
    room.again("one", "ab")
    assert ended.line.waiters == []
    assert room.line("b") == ["one", "two"]


def test_who_waits_for_two_goes_when_both_have_room() -> None:
    room = Room(a=1, b=1)
    room.publish(1, "ab")
    room.wait("both", 1, "ab")
    room.ack("a")
    assert room.woken == ["both"]
    room.again("both", "ab")
    room.ack("b")
    assert room.woken == ["both", "both"]
    assert room.publish(1, "ab", room.waiters["both"]).first == 2


def test_a_line_keeps_the_order_of_arrival_however_late_one_joins_it() -> None:
    room = Room(a=1)
    room.publish(1, "a")
    room.wait("one", 1, "ab")
    room.wait("two", 1, "ab")
    room.subscribe("b", 1)
    room.again("two", "ab")
    room.again("one", "ab")
    assert room.line("b") == ["one", "two"]


def test_who_is_no_longer_wanted_stands_there_no_longer() -> None:
    room = Room(a=1, b=1)
    room.publish(1, "ab")
    room.wait("one", 1, "ab")
    room.again("one", "b")
    assert (room.line("a"), room.line("b")) == ([], ["one"])


def test_whoever_comes_later_waits_behind_though_it_would_fit() -> None:
    room = Room(a=2)
    room.publish(1, "a")
    room.wait("two", 2, "a")
    with pytest.raises(NoRoom) as caught:
        room.publish(1, "a")
    assert (caught.value.args, caught.value.seconds) == (("t/a", 2), 5.0)
    assert type(caught.value.final()) is QueueFull
    assert caught.value.final().args == ("t/a", 2)


def test_nothing_needs_no_room() -> None:
    room = Room(a=1)
    room.publish(1, "a")
    room.wait("one", 1, "a")
    assert room.engine.publish("t", [], Headers({"a": ""}), NORMAL, 0.0, 0.0).first == 2


def test_who_can_never_fit_or_is_rejected_is_told_at_once() -> None:
    room = Room(a=1)
    room.publish(1, "a")
    for subscription, count in (("a", 2), ("strict", 1)):
        if subscription == "strict":
            room.subscribe("strict", 1, filter=None, overflow=Overflow.REJECT)
            room.publish(1, "")
        with pytest.raises(QueueFull) as caught:
            room.publish(count, "a", Waiter(count, lambda: None))
        assert type(caught.value) is QueueFull
        assert caught.value.args == (f"t/{subscription}", 1)


def test_the_least_patient_of_the_full_ones_says_how_long() -> None:
    room = Room(a=1)
    room.subscribe("b", 1, overflow=Overflow.WAIT(2))
    room.subscribe("c", 2, overflow=Overflow.WAIT(1))
    room.publish(1, "abc")
    with pytest.raises(NoRoom) as caught:
        room.publish(1, "abc")
    assert (caught.value.args[0], caught.value.seconds) == ("t/b", 2.0)


def test_a_topic_of_the_same_name_is_another_one() -> None:
    room = Room(a=1)
    room.publish(1, "a")
    room.wait("one", 1, "a")
    room.engine.delete_topic("t")
    assert room.woken == ["one"]
    room.engine.create_topic("t")
    with pytest.raises(UnknownTopic) as caught:
        room.publish(1, "a", room.waiters["one"])
    assert caught.value.args == ("t",)
    assert room.engine.topics()["t"].published == 0


def publishing(room: Room, clock: Any) -> Call[Published]:
    def publish() -> Published:
        contents, headers = [Payloads([0])], Headers({"a": ""})
        return room.engine.publish_waiting("t", contents, headers, NORMAL, lambda: 7.0, clock, clock())

    return Call(publish)


def test_a_thread_goes_on_when_there_is_room_though_the_clock_stands_still() -> None:
    room = Room(a=1)
    room.publish(1, "a")
    line = room.engine.subscription("t", "a").line
    call = publishing(room, lambda: 100.0)
    until(lambda: bool(line.waiters))
    room.ack("a")
    published = call.result()
    assert (published.first, published.batches[0].timestamp) == (2, 7.0)
    until(lambda: not line.waiters)


def test_a_thread_is_refused_when_the_clock_says_that_its_time_is_over() -> None:
    room = Room()
    subscription = room.subscribe("a", 2, overflow=Overflow.WAIT(LIMIT_S * 10))
    room.publish(2, "a")
    now = [100.0]
    call = publishing(room, lambda: now[0])
    until(lambda: bool(subscription.line.waiters))
    now[0] += LIMIT_S * 10
    subscription.line.waiters[0].wake()
    with pytest.raises(QueueFull) as caught:
        call.result()
    assert type(caught.value) is QueueFull
    assert subscription.line.waiters == []


def test_who_was_interrupted_before_it_stood_somewhere_can_leave() -> None:
    room = Room(a=1, b=1)
    room.publish(1, "ab")
    room.wait("one", 1, "a")
    room.waiters["one"].lines.add(room.engine.subscription("t", "b").line)
    room.waiters["one"].leave()
    assert (room.line("a"), room.line("b")) == ([], [])
    room.check()


def test_a_thread_that_is_not_woken_waits_no_longer_than_it_is_told() -> None:
    assert not Call(lambda: ThreadWaiter(1).wait(0.01)).result()
