"""What a broker process should do with its clients, said as simply as possible: lists, and loops over all of them.

Every copy is an object in one place; every call that waits is in a list. Nothing is indexed, nothing is lazy, and time
is looked at everywhere at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

Granted = list[tuple[int, int, bool, float]]
"""Sequence, attempt, redelivered and deadline of each message of an answer."""


@dataclass(eq=False)
class Client:
    """A client process."""

    calls: list[Call] = field(default_factory=list)
    polled: list[Sub] = field(default_factory=list)
    is_alive: bool = True


@dataclass(eq=False)
class Call:
    """A call connection, and the one call that may be out on it.

    expected: the answer to it, once there is one. handed: the copies that it handed over, and which hand-over that was.
    is_seen: it was compared.
    """

    client: Client
    expected: object = None
    waits: Wait | None = None
    handed: list[tuple[Copy, int]] = field(default_factory=list)
    is_seen: bool = False
    seat: tuple[Sub, str] | None = None
    is_open: bool = True


@dataclass(eq=False)
class Wait:
    call: Call
    member: str | None  # None: wait_idle
    count: int = 0
    deadline: float = math.inf


@dataclass(eq=False)
class Copy:
    sequence: int
    priority: int
    place: str = "ready"
    attempts: int = 0
    seen: bool = False
    alone: bool = False
    due: float = 0.0
    holder: Client | None = None
    member: str = ""
    deadline: float = 0.0
    was_seen: bool = False
    lease: int = 0  # which hand-over, of all there were


@dataclass(eq=False)
class Sub:
    name: str
    ack_timeout: float
    max_deliveries: int
    delay: float
    copies: list[Copy] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    idles: list[Wait] = field(default_factory=list)
    dispatcher: tuple[Client, str] | None = None
    dispatchers: int = 0
    deliveries: int = 0
    redelivered: int = 0
    is_ended: bool = False

    def at(self, place: str) -> list[Copy]:
        return [copy for copy in self.copies if copy.place == place]

    @property
    def reader(self) -> str | None:
        return None if self.dispatcher is None else self.dispatcher[1]

    @property
    def is_idle(self) -> bool:
        return not any(copy.place in ("ready", "delayed", "held") for copy in self.copies)


class Model:
    def __init__(self, now: float) -> None:
        self.now = now
        self.subs: dict[str, Sub] = {}
        self.clients: list[Client] = []
        self.published = 0
        self.leases = 0

    # -- what is due --------------------------------------------------------------------------------------------------

    def times(self) -> Iterator[float]:
        for sub in self.subs.values():
            yield from (copy.deadline for copy in sub.at("held"))
            yield from (copy.due for copy in sub.at("delayed"))
            yield from (wait.deadline for wait in (*sub.waits, *sub.idles))

    def next_due(self) -> float | None:
        return min((time for time in self.times() if time < math.inf), default=None)

    def tick(self) -> None:
        for sub in self.subs.values():
            times = [copy.deadline for copy in sub.at("held")] + [copy.due for copy in sub.at("delayed")]
            if min(times, default=math.inf) <= self.now:
                self.expire(sub)
                self.serve(sub)
        for sub in self.subs.values():
            for wait in [wait for wait in (*sub.waits, *sub.idles) if wait.deadline <= self.now]:
                self.answer(sub, wait, [False] if wait.member is None else [])

    def expire(self, sub: Sub) -> int:
        ended = [copy for copy in sub.at("held") if copy.deadline <= self.now]
        for copy in ended:
            self.fail(sub, copy, sub.delay)
        for copy in sub.at("delayed"):
            if copy.due <= self.now:
                copy.place = "ready"
        return len(ended)

    # -- moves --------------------------------------------------------------------------------------------------------

    def fail(self, sub: Sub, copy: Copy, delay: float, *, died: bool = False) -> None:
        copy.attempts += 1
        copy.seen = True
        copy.alone |= died
        copy.holder = None
        if copy.attempts >= sub.max_deliveries:
            copy.place = "dead"
        elif delay > 0.0:
            copy.place, copy.due = "delayed", self.now + delay
        else:
            copy.place = "ready"

    def give_back(self, copy: Copy, *, seen: bool) -> None:
        copy.place, copy.seen, copy.holder = "ready", seen, None

    def hold(self, sub: Sub, copy: Copy, client: Client, member: str) -> None:
        self.leases += 1
        copy.place, copy.holder, copy.member, copy.was_seen = "held", client, member, copy.seen
        copy.deadline = math.inf if member == sub.reader else self.now + sub.ack_timeout
        copy.lease = self.leases
        sub.deliveries += 1
        sub.redelivered += copy.seen

    def take(self, sub: Sub, client: Client, member: str, count: int) -> list[Copy]:
        self.expire(sub)
        taken: list[Copy] = []
        for copy in sorted(sub.at("ready"), key=lambda copy: (-copy.priority, copy.sequence)):
            if len(taken) == count or (copy.alone and taken):
                break
            taken.append(copy)
            if copy.alone:
                break
        for copy in taken:
            self.hold(sub, copy, client, member)
        if taken and sub not in client.polled:
            client.polled.append(sub)
        return taken

    # -- calls that wait ----------------------------------------------------------------------------------------------

    def serve(self, sub: Sub) -> None:
        """After anything that touched a subscription."""
        while sub.waits:
            wait = sub.waits[0]
            assert wait.member is not None
            if sub.is_ended:
                self.answer(sub, wait, "UnknownSubscription")
            elif wait.member.startswith("$") and wait.member != sub.reader:
                self.answer(sub, wait, [])
            elif sub.reader not in (None, wait.member):
                self.answer(sub, wait, "SubscriptionBusy")
            else:
                taken = self.take(sub, wait.call.client, wait.member, wait.count)
                if not taken:
                    break
                self.answer(sub, wait, self.hand(wait.call, taken))
        while sub.idles and (sub.is_ended or sub.is_idle):
            self.answer(sub, sub.idles[0], "UnknownSubscription" if sub.is_ended else [True])

    def answer(self, sub: Sub, wait: Wait, reply: object) -> None:
        self.cancel(sub, wait)
        wait.call.expected = reply

    def cancel(self, sub: Sub, wait: Wait) -> None:
        (sub.idles if wait.member is None else sub.waits).remove(wait)
        wait.call.waits = None

    def hand(self, call: Call, copies: list[Copy]) -> Granted:
        call.handed = [(copy, copy.lease) for copy in copies]
        call.is_seen = False
        return [(copy.sequence, copy.attempts + 1, copy.seen, copy.deadline) for copy in copies]

    # -- calls --------------------------------------------------------------------------------------------------------

    def publish(self, priorities: list[int]) -> None:
        for priority in priorities:
            self.published += 1
            for sub in self.subs.values():
                sub.copies.append(Copy(self.published, priority))
        for sub in self.subs.values():
            self.serve(sub)

    def poll(self, call: Call, sub: Sub, member: str, count: int, timeout: float) -> None:
        self.begin(call)
        if member.startswith("$") and sub.dispatcher != (call.client, member):
            call.expected = "SubscriptionBusy"
        else:
            if sub.waits:
                self.expire(sub)
                self.serve(sub)
            if sub.reader not in (None, member):
                call.expected = "SubscriptionBusy"
            else:
                taken = self.take(sub, call.client, member, count)
                call.expected = self.hand(call, taken)
                if not taken and timeout > 0.0:
                    call.expected = None
                    call.waits = Wait(call, member, count, self.now + timeout)
                    sub.waits.append(call.waits)
        self.serve(sub)

    def wait_idle(self, call: Call, sub: Sub, timeout: float) -> None:
        self.begin(call)
        if sub.is_idle or timeout == 0.0:
            call.expected = [sub.is_idle]
        else:
            call.waits = Wait(call, None, deadline=self.now + timeout)
            sub.idles.append(call.waits)
        self.serve(sub)

    def attach(self, call: Call, sub: Sub) -> None:
        self.begin(call)
        if sub.dispatcher is not None:
            call.expected = "SubscriptionBusy"
        else:
            sub.dispatchers += 1
            member = f"$dispatcher-{sub.dispatchers}"
            sub.dispatcher = (call.client, member)
            call.expected, call.seat = member, (sub, member)
            if sub not in call.client.polled:
                call.client.polled.append(sub)
        self.serve(sub)

    def detach(self, call: Call, sub: Sub, member: str) -> None:
        self.begin(call)
        if sub.dispatcher == (call.client, member):
            self.leave(sub, member)
        self.serve(sub)

    def leave(self, sub: Sub, member: str) -> None:
        if sub.reader == member:
            sub.dispatcher = None
            for copy in sub.at("held"):
                if copy.member == member:
                    self.give_back(copy, seen=True)

    def retry(self, call: Call, sub: Sub, copy: Copy | None) -> None:
        self.begin(call)
        call.expected = []
        if copy is not None:
            client, member = copy.holder, copy.member
            assert client is not None
            self.fail(sub, copy, 0.0)
            if copy.place == "ready":
                self.hold(sub, copy, client, member)
                call.expected = self.hand(call, [copy])
        self.serve(sub)

    def begin(self, call: Call) -> None:
        """A call goes out; the one before is settled."""
        call.handed = []
        call.seat = None
        call.expected = None

    # -- ends ---------------------------------------------------------------------------------------------------------

    def close(self, call: Call) -> None:
        call.is_open = False
        call.client.calls.remove(call)
        if call.waits is not None:
            for sub in self.subs.values():
                if call.waits in sub.waits or call.waits in sub.idles:
                    self.cancel(sub, call.waits)
                    break

    def undo(self, call: Call) -> None:
        """The answer was never taken."""
        touched = []
        for sub in self.subs.values():
            for copy, lease in call.handed:
                if copy in sub.copies:
                    touched.append(sub)
                    if copy.place == "held" and copy.lease == lease:
                        sub.deliveries -= 1
                        sub.redelivered -= copy.was_seen
                        self.give_back(copy, seen=copy.was_seen)
        if call.seat is not None and not call.seat[0].is_ended:
            sub, member = call.seat
            self.leave(sub, member)
            touched.append(sub)
        for sub in touched:
            self.serve(sub)

    def end(self, client: Client, *, died: bool) -> None:
        client.is_alive = False
        self.clients.remove(client)
        for call in list(client.calls):
            self.close(call)
        subs = [sub for sub in client.polled if not sub.is_ended]
        for sub in subs:
            for copy in sub.at("held"):
                if copy.holder is client:
                    if died:
                        self.fail(sub, copy, sub.delay, died=True)
                    else:
                        self.give_back(copy, seen=True)
            if sub.dispatcher is not None and sub.dispatcher[0] is client:
                sub.dispatcher = None
        for sub in subs:
            self.serve(sub)

    def delete(self, name: str) -> None:
        sub = self.subs.pop(name)
        sub.is_ended = True
        sub.dispatcher = None
        sub.copies = []
        self.serve(sub)
