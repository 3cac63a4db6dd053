"""What clients saw of the broker, and whether one broker could have shown them all of it.

Every call is told here before it is made and after it came back; all of it is in one real-time order. Loss,
duplication, two holders, a wrong order, and answers that are not to the question are found as they are seen; what
must be somewhere at the end is looked for there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from mpbroker.deliveries import Delivery
from mpbroker.messages import Message, MessagePriority
from mpbroker.settings import Settings
from tests.simulation.world import Process, Violation, World

LINGERS_S: Final = 100.0
"""Virtual seconds that a request whose caller has no answer may still be on its way."""

ANY_TOKEN: Final = 2**62
"""Higher than all tokens."""


@dataclass(slots=True)
class Sent:
    """One message that somebody published, or tried to."""

    key: int
    topic: str
    payload: object
    headers: dict[str, str]
    priority: MessagePriority
    asked: int
    outcome: str = "unknown"  # or "ok" or "refused"
    sequence: int = 0


@dataclass(slots=True, eq=False)
class Seen:
    """One hand-over as its caller has it."""

    token: int
    attempt: int
    redelivered: bool
    process: Process
    epoch: int
    deadline: float
    member: str
    asked_to_settle: int = 0


@dataclass(slots=True, eq=False)
class Copy:
    """What was seen of one message in one subscription; seen: by token."""

    seen: list[Seen] = field(default_factory=list)
    acked_by: int = -1
    maybe_acked: int = 0
    maybe_gone: bool = False  # somebody purged it, or may have
    was_redriven: bool = False
    has_outside: bool = False  # somebody asked something of it by its id


@dataclass(slots=True, eq=False)
class Watched:
    """One incarnation of a subscription. born: when it surely was there; ended: somebody asked for its end."""

    number: int
    topic: str
    name: str
    accepts: str | None
    settings: Settings
    born: int
    ended: bool = False
    copies: dict[int, Copy] = field(default_factory=dict)
    tokens: set[int] = field(default_factory=set)
    is_push: bool = False
    caller: tuple[Process, int] | None = None  # who calls its subscriber
    calls: int = 0

    def wants(self, headers: dict[str, str]) -> bool:
        return self.accepts is None or headers.get("kind") == self.accepts


class Shadow:
    """The books of one world. undone: copies that were handed over to nobody, by subscription and sequence."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._order = 0
        self.by_key: dict[int, Sent] = {}
        self.by_sequence: dict[int, Sent] = {}
        self.watched: dict[int, Watched] = {}
        self._endings: list[list[Any]] = []
        self.deliveries = 0
        self.verified = 0

    def tick(self) -> int:
        """The next moment."""
        self._order += 1
        return self._order

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publishing(self, sent: list[Sent]) -> None:
        for each in sent:
            each.asked = self.tick()
            self.by_key[each.key] = each

    def published(self, sent: list[Sent], first: int) -> None:
        self.tick()
        for sequence, each in enumerate(sent, first):
            self._is(each, sequence)
            each.outcome = "ok"

    def refused(self, sent: list[Sent]) -> None:
        for each in sent:
            if each.sequence:
                raise Violation(f"m{each.sequence} was handed over, and its publish was refused")
            each.outcome = "refused"

    def _is(self, sent: Sent, sequence: int) -> None:
        if sent.sequence not in (0, sequence) or self.by_sequence.setdefault(sequence, sent) is not sent:
            raise Violation(f"m{sequence} is two messages: {sent} and {self.by_sequence[sequence]}")
        sent.sequence = sequence

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribed(self, number: int, topic: str, name: str, accepts: str | None, settings: Settings) -> Watched:
        found = self.watched.get(number)
        if found is None:
            found = self.watched[number] = Watched(number, topic, name, accepts, settings, self.tick())
            found.ended = self.may_end(topic, name)
        elif (found.topic, found.name) != (topic, name):
            raise Violation(f"subscription {number} is {found.topic}/{found.name} and {topic}/{name}")
        return found

    @contextmanager
    def ending(self, topic: str, name: str | None) -> Iterator[None]:
        """Somebody asks for the end of a subscription, or of a topic (None). What exists until it is answered may end;
        without an answer, until some time after.
        """
        mine = [topic, name, inf]
        self._endings.append(mine)
        self._mark(topic, name)
        try:
            yield
        finally:
            mine[2] = self._world.now + LINGERS_S
            self._mark(topic, name)

    def may_end(self, topic: str, name: str) -> bool:
        now = self._world.now
        self._endings = [each for each in self._endings if each[2] > now]
        return any(each[0] == topic and each[1] in (None, name) for each in self._endings)

    def _mark(self, topic: str, name: str | None) -> None:
        for each in self.watched.values():
            if each.topic == topic and name in (None, each.name):
                each.ended = True

    # -- hand over ----------------------------------------------------------------------------------------------------

    def handed(
        self, sub: Watched, deliveries: list[Delivery], process: Process, epoch: int, *, limit: int, member: str
    ) -> None:
        """A poll returned. epoch: of the process, when it began."""
        self.tick()
        if len(deliveries) > limit:
            raise Violation(f"{len(deliveries)} messages for {limit}")
        last: tuple[int, int] | None = None
        for each in deliveries:
            message = each.message
            place = (-message.priority, message.sequence)
            if last is not None and place <= last:
                raise Violation(f"{message.message_id} came out of order, after {last}")
            last = place
            if each.member != member:
                raise Violation(f"{each.member!r} got what is for {member!r}")
            self.one_handed(sub, each, process, epoch)

    def one_handed(self, sub: Watched, delivery: Delivery, process: Process, epoch: int) -> Seen:
        message = delivery.message
        self.deliveries += 1
        name = f"{sub.topic}/{sub.name} ({sub.number}) {message.message_id} token {delivery.token}"
        sent = self.by_key.get(_key_of(message.payload))
        if sent is None or sent.payload != message.payload:
            raise Violation(f"{name}: nobody published it")
        if sent.outcome == "refused":
            raise Violation(f"{name}: its publish was refused")
        self._is(sent, message.sequence)
        if (sent.topic, sent.headers, sent.priority) != (sub.topic, dict(message.headers), message.priority):
            raise Violation(f"{name}: it was published as {sent}")
        if not sub.wants(sent.headers):
            raise Violation(f"{name}: the filter does not accept it")
        if delivery.token in sub.tokens:
            raise Violation(f"{name}: the token was used before")
        sub.tokens.add(delivery.token)
        if not 1 <= delivery.attempt <= sub.settings.max_deliveries:
            raise Violation(f"{name}: attempt {delivery.attempt} of {sub.settings.max_deliveries}")
        copy = sub.copies.get(message.sequence)
        if copy is None:
            copy = sub.copies[message.sequence] = Copy()
        seen = Seen(
            delivery.token,
            delivery.attempt,
            delivery.redelivered,
            process,
            epoch,
            delivery.deadline,
            delivery.member,
        )
        self._compare(name, copy, seen)
        copy.seen.append(seen)
        return seen

    def _compare(self, name: str, copy: Copy, new: Seen) -> None:
        if 0 <= copy.acked_by < new.token:
            raise Violation(f"{name}: it was acked before")
        for old in copy.seen:
            first, second = (old, new) if old.token < new.token else (new, old)
            if not second.redelivered:
                raise Violation(f"{name}: handed over twice as if for the first time")
            if second.attempt < first.attempt and not copy.was_redriven:
                raise Violation(f"{name}: attempt {second.attempt} after attempt {first.attempt}")
            if old.token < new.token and self._holds(copy, old):
                raise Violation(f"{name}: {old.process.name} holds it by token {old.token} until {old.deadline}")

    def _holds(self, copy: Copy, seen: Seen) -> bool:
        """Whether nothing has happened that could end a hand-over."""
        return (
            not seen.asked_to_settle
            and not copy.has_outside
            and seen.process.is_alive
            and seen.process.epoch == seen.epoch
            and not seen.process.closing
            and not seen.process.was_dropped
            and self._world.now < seen.deadline
        )

    @contextmanager
    def calling(self, sub: Watched, message: Message, process: Process) -> Iterator[None]:
        """A dispatcher calls its subscriber: never two at a time, as long as the first one lives."""
        self.tick()
        self.deliveries += 1
        sent = self.by_key.get(_key_of(message.payload))
        if sent is None or sent.payload != message.payload or sent.topic != sub.topic:
            raise Violation(f"{message.message_id} of {sub.topic}: nobody published it")
        self._is(sent, message.sequence)
        if sub.caller is not None:
            other, epoch = sub.caller
            if other.is_alive and other.epoch == epoch:
                raise Violation(f"{sub.topic}/{sub.name} is dispatched by {other.name} and by {process.name}")
        sub.caller = mine = process, process.epoch
        sub.calls += 1
        try:
            yield
            sub.copies.setdefault(message.sequence, Copy()).maybe_acked += 1
        finally:
            if sub.caller is mine:
                sub.caller = None

    # -- settling -----------------------------------------------------------------------------------------------------

    def settling(self, sub: Watched, sequence: int, token: int, *, ack: bool) -> tuple[Copy, Seen | None, bool, int]:
        """Somebody is about to ask for it; what `settled` wants to know."""
        self.tick()
        copy = sub.copies[sequence]
        seen = next((each for each in copy.seen if each.token == token), None)
        newest = max(each.token for each in copy.seen)
        surely = seen is not None and token == newest and self._holds(copy, seen) and not sub.ended
        if seen is not None:
            seen.asked_to_settle += 1
        copy.maybe_acked += ack
        return copy, seen, surely, newest

    def settled(
        self,
        sub: Watched,
        sequence: int,
        asked: tuple[Copy, Seen | None, bool, int],
        *,
        answer: bool,
        ack: bool,
        by_id: bool = False,
    ) -> None:
        """It was answered."""
        self.tick()
        copy, seen, surely, newest = asked
        copy.maybe_acked -= ack
        name = f"{sub.topic}/{sub.name} ({sub.number}) m{sequence}"
        if seen is None:
            return
        if answer:
            if ack and copy.acked_by >= 0:
                raise Violation(f"{name} was acked twice")
            if not by_id and newest > seen.token:
                raise Violation(f"{name}: token {seen.token} settled what token {newest} holds")
            if ack:
                # By its id, it may be a hand-over whose answer is still on its way to somebody of that name.
                copy.acked_by = seen.token if not by_id else ANY_TOKEN if copy.has_outside else newest
        elif (
            surely
            and seen.asked_to_settle == 1
            and not copy.has_outside
            and seen.process.epoch == seen.epoch
            and not seen.process.closing
            and not seen.process.was_dropped
            and self._world.now < seen.deadline
            and not sub.ended
        ):
            raise Violation(f"{name}: its holder was refused, by token {seen.token}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def account(self, sub: Watched, letters: set[int], acked: int, accepted: int) -> None:
        """Nothing waits in a subscription any more: every message must be where somebody knows of."""
        name = f"{sub.topic}/{sub.name} ({sub.number})"
        must = may = 0
        for sent in self.by_key.values():
            if sent.topic != sub.topic or not sub.wants(sent.headers) or sent.outcome == "refused":
                continue
            may += 1
            if sent.outcome != "ok" or sent.asked < sub.born:
                continue
            must += 1
            copy = sub.copies.get(sent.sequence)
            is_dead = sent.sequence in letters
            if not is_dead and (copy is None or (copy.acked_by < 0 and not copy.maybe_acked and not copy.maybe_gone)):
                raise Violation(f"{name} lost m{sent.sequence}: {sent}, {copy}")
            self.verified += 1
        surely = sum(copy.acked_by >= 0 for copy in sub.copies.values())
        perhaps = sum(copy.acked_by < 0 and copy.maybe_acked > 0 for copy in sub.copies.values())
        if not surely <= acked <= surely + perhaps:
            raise Violation(f"{name} says that {acked} were acked, where {surely} were and {perhaps} may have been")
        if not must <= accepted <= may:
            raise Violation(f"{name} accepted {accepted} copies of {must} to {may} messages")
        for sequence in letters:
            copy = sub.copies.get(sequence)
            if copy is not None and copy.acked_by >= 0:
                raise Violation(f"{name}: m{sequence} was acked and is a dead letter")


def payload_of(key: int, size: int) -> bytes:
    """A payload that says which one it is."""
    head = b"%d:" % key
    return head + bytes([key % 251]) * max(0, size - len(head))


def _key_of(payload: object) -> int:
    if not isinstance(payload, bytes):
        raise Violation(f"nobody published {payload!r}")
    return int(payload.partition(b":")[0])
