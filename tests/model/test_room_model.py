"""Publishes that wait for room against a naive model: who goes, in which order, and that nobody is left asleep.

The model has one list of all that wait, in the order in which they came. One of them may go when it fits into each
subscription that it is for and no earlier one in the list is for one of these. MPBROKER_LONG=1 runs the long form.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mpbroker.engine import Engine, NoRoom, Payloads, Subscription, Waiter, invariants
from mpbroker.engine.leases import offsets
from mpbroker.errors import QueueFull
from mpbroker.messages import Headers, MessagePriority
from mpbroker.overflow import Overflow
from mpbroker.settings import Given

LONG: Final = bool(os.environ.get("MPBROKER_LONG"))
ROOMS: Final = {"x": 2, "y": 3, "z": 4}
"""Subscriptions by the header that they want, and what each holds."""

WHICH: Final = st.sampled_from(sorted(ROOMS))
KINDS: Final = st.sampled_from([frozenset(kinds) for kinds in ("x", "y", "x", "xy", "xyz", "yz", "")])


@dataclass(eq=False)
class Publish:
    """One that waits, or would have to."""

    number: int
    count: int
    kinds: frozenset[str]
    waiter: Waiter = field(init=False)


class RoomMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(incarnation="abc")
        self.engine.create_topic("t")
        self.subscriptions: dict[str, Subscription] = {}
        for kind, max_queue in ROOMS.items():
            given = Given.check(f"headers:{kind}", max_queue=max_queue, overflow=Overflow.WAIT(1), max_deliveries=99)
            self.subscriptions[kind] = self.engine.subscribe("t", kind, given)
        self.waiting: list[Publish] = []
        self.woken: list[Publish] = []
        self.published = 0
        self.sizes = dict.fromkeys(ROOMS, 0)

    # -- the model ----------------------------------------------------------------------------------------------------

    def wanted(self, kinds: frozenset[str]) -> frozenset[str]:
        return kinds & self.subscriptions.keys()

    def may_go(self, count: int, kinds: frozenset[str], before: list[Publish]) -> bool:
        wanted = self.wanted(kinds)
        taken = frozenset().union(*(self.wanted(each.kinds) for each in before))
        return not wanted & taken and all(self.sizes[kind] + count <= ROOMS[kind] for kind in wanted)

    def goes(self, count: int, kinds: frozenset[str]) -> None:
        for kind in self.wanted(kinds):
            self.sizes[kind] += count

    # -- what happens -------------------------------------------------------------------------------------------------

    def attempt(self, publish: Publish, waiter: Waiter | None) -> bool:
        """Whether it went."""
        contents = [Payloads([publish.number] * publish.count)]
        headers = Headers(dict.fromkeys(publish.kinds, ""))
        try:
            self.engine.publish("t", contents, headers, MessagePriority.NORMAL, 0.0, 0.0, waiter)
        except NoRoom:
            return False
        return True

    def settle(self) -> None:
        """Try whoever was told to; the model says that it goes, or could not yet."""
        while self.woken:
            publish = self.woken.pop(0)
            at = self.waiting.index(publish)
            expected = self.may_go(publish.count, publish.kinds, self.waiting[:at])
            assert self.attempt(publish, publish.waiter) is expected
            if expected:
                self.goes(publish.count, publish.kinds)
                self.waiting.remove(publish)
                publish.waiter.leave()

    @rule(count=st.integers(1, 3), kinds=KINDS)
    def publish(self, count: int, kinds: frozenset[str]) -> None:
        self.published += 1
        publish = Publish(self.published, count, kinds)
        if any(count > ROOMS[kind] for kind in self.wanted(kinds)):
            with pytest.raises(QueueFull) as caught:
                self.attempt(publish, None)
            assert not isinstance(caught.value, NoRoom)
            return
        expected = self.may_go(count, kinds, self.waiting)
        assert self.attempt(publish, None) is expected
        if expected:
            self.goes(count, kinds)
        else:
            publish.waiter = Waiter(count, lambda: self.woken.append(publish))
            self.waiting.append(publish)
            assert self.attempt(publish, publish.waiter) is False

    @rule(kind=WHICH, count=st.integers(1, 4), ends=st.sampled_from(["ack", "reject", "release"]))
    def settle_some(self, kind: str, count: int, ends: str) -> None:
        subscription = self.subscriptions.get(kind)
        if subscription is None:
            return
        leases = subscription.take("w", 0.0, count)
        tokens = [lease.token + offset for lease in leases for offset in offsets(lease.open)]
        for token in tokens:
            if ends == "ack":
                assert subscription.ack_tokens([token]) == [True]
            elif ends == "reject":
                assert subscription.reject(token, None, "", 0.0)
            else:
                assert subscription.release(token, None)
            self.sizes[kind] -= ends != "release"
            self.settle()

    @rule(kind=WHICH, limit=st.integers(1, 3))
    def redrive(self, kind: str, limit: int) -> None:
        if kind in self.subscriptions:
            self.sizes[kind] += self.subscriptions[kind].redrive(None, limit)
            self.settle()

    @rule(which=st.integers(0, 9))
    def give_up(self, which: int) -> None:
        if self.waiting:
            publish = self.waiting.pop(which % len(self.waiting))
            publish.waiter.leave()
            self.settle()

    @rule(kind=WHICH, really=st.sampled_from([False] * 15 + [True]))
    def unsubscribe(self, kind: str, really: bool) -> None:
        if really and kind in self.subscriptions:
            self.engine.unsubscribe("t", kind)
            del self.subscriptions[kind]
            self.settle()

    # -- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def nobody_waits_who_could_go(self) -> None:
        for at, each in enumerate(self.waiting):
            assert not self.may_go(each.count, each.kinds, self.waiting[:at])

    @invariant()
    def the_engine_is_sound(self) -> None:
        invariants.check(self.engine)
        for kind, subscription in self.subscriptions.items():
            stats = subscription.stats(None)
            assert stats.backlog + stats.in_flight == self.sizes[kind]
            line = [each.waiter for each in self.waiting if kind in each.kinds]
            assert subscription.line.waiters == line


RoomMachine.TestCase.settings = settings(
    max_examples=5_000 if LONG else 100,
    stateful_step_count=100 if LONG else 40,
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
)

TestRoom = pytest.mark.timeout(3600 if LONG else 300)(RoomMachine.TestCase)
