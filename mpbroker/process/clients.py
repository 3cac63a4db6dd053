"""Who is connected to the broker process: its connections, the client processes behind them, and what they hold.

The nouns of sessions: plain records, changed by it and by the verbs. For the broker's side.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from mpbroker.engine import Subscription, Waiter
from mpbroker.errors import AccessRefused, ProtocolViolation, QueueFull
from mpbroker.messages import Headers, MessagePriority
from mpbroker.process.encoded import EncodedPayloads
from mpbroker.process.frames import MAX_HELLO_BYTES, REMEMBERED, Reply

MAX_LOST: Final = 64
"""Connections that closed with an unconfirmed answer, remembered for each session. A caller whose call was interrupted
names its connection in its next call; one that never calls again leaves its copies to the end of their leases."""


class Stage(Enum):
    """How far the handshake of a connection is."""

    NEW = "new"
    CHALLENGED = "challenged"
    OPEN = "open"


class Role(StrEnum):
    """What a connection is for.

    PRESENCE: one a process, silent until Goodbye; its end is the end of the process. CALL: requests. ADMIN: requests
    and Stop; needs no presence, and cannot hold messages without one.
    """

    PRESENCE = "presence"
    CALL = "call"
    ADMIN = "admin"


@dataclass(slots=True, eq=False)
class HandOver:
    """What the last answer on a connection gave to the caller, while nothing shows that it arrived."""

    subscription: Subscription
    leases: tuple[int, ...]
    dispatcher: str | None = None


@dataclass(slots=True, eq=False)
class Parked:
    """A call that waits: a poll for the first copy, or (member None) wait_idle for the last."""

    connection: Connection
    subscription: Subscription
    member: str | None = None
    max_messages: int = 0
    dispatcher: bool = False


@dataclass(slots=True, eq=False)
class ParkedPublish:
    """A publish that waits for room.

    Attributes:
        held_bytes: what the meter counts for it meanwhile.
        began: when it was asked for, in the loop's time.
        waiter: its place in the lines of the engine; refusal: what it is told when its time is over.
    """

    connection: Connection
    topic: str
    contents: Sequence[EncodedPayloads]
    headers: Headers
    priority: MessagePriority
    held_bytes: int
    began: float
    waiter: Waiter
    refusal: QueueFull


@dataclass(slots=True, eq=False)
class Numbered:
    """The numbered publishes of one publisher, over its connections.

    last: the number of the last one that was applied or refused; None: not known any more. answers: to the last ones.
    """

    last: int | None = 0
    answers: deque[Reply] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def again(self, number: int) -> Reply | None:
        """The answer to one that came before; None for the one that comes next.

        Raises:
            ProtocolViolation: it is neither.
            AccessRefused: what came before is not known any more.
        """
        if self.last is None:
            raise AccessRefused("it is not known any more what its publisher published before the connection was lost")
        back = self.last - number
        if back == -1:
            return None
        if not 0 <= back < len(self.answers):
            raise ProtocolViolation(f"a publish of number {number}, where {self.last + 1} comes next")
        return self.answers[-1 - back]

    def note(self, number: int, reply: Reply) -> None:
        """That one has this answer."""
        self.last = number
        self.answers.append(reply)


@dataclass(slots=True, eq=False)
class Connection:
    """One connection.

    Attributes:
        id: the loop's number, never used again; number: the client's.
        hello: the encoded Hello, which the proof covers.
        limit_bytes: of the next frame.
        session: None until it is open, and for an admin of a process without presence.
        has_asked: for shared memory, which it does once; rings: it goes through shared memory.
        parked: the call that waits; then nothing may be asked on this connection.
        request_bytes: of the request that is served, as it came.
        answers: calls answered; last: what the last of them handed over, until the next call confirms it.
        numbered: of the publisher whose connection it is; publishing: the number of its publish that is served.
    """

    id: int
    stage: Stage = Stage.NEW
    role: Role = Role.CALL
    number: int = 0
    replaces: int = 0
    answered: int = -1
    session_id: bytes = b""
    hello: bytes = b""
    nonce: bytes = b""
    limit_bytes: int = MAX_HELLO_BYTES
    session: Session | None = None
    has_asked: bool = False
    rings: bool = False
    parked: Parked | ParkedPublish | None = None
    request_bytes: int = 0
    answers: int = 0
    last: HandOver | None = None
    numbered: Numbered | None = None
    publishing: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """One client process, from its presence to its end.

    Attributes:
        owner: what its leases carry; never used again.
        connections: by the client's number; the presence is one of them.
        polled: subscriptions it was handed copies or the dispatcher's place of, by number.
        ephemeral: subscriptions that end with it, by number.
        lost: hand-overs of connections that closed unconfirmed, by the client's number, with the answers until then.
        numbered: of connections that closed, by the client's number; forgotten: the highest that is not kept any more.
        prune_at: so many in polled, and those that ended are forgotten.
    """

    id: bytes
    owner: int
    presence: Connection
    connections: dict[int, Connection] = field(default_factory=dict)
    polled: dict[int, Subscription] = field(default_factory=dict)
    ephemeral: dict[int, Subscription] = field(default_factory=dict)
    lost: OrderedDict[int, tuple[int, HandOver]] = field(default_factory=OrderedDict)
    numbered: OrderedDict[int, Numbered] = field(default_factory=OrderedDict)
    forgotten: int = 0
    prune_at: int = 64

    def holds(self, subscription: Subscription) -> None:
        """It was handed copies of a subscription, or its dispatcher's place."""
        self.polled[subscription.number] = subscription
        if len(self.polled) >= self.prune_at:
            self.polled = {number: each for number, each in self.polled.items() if not each.ended}
            self.prune_at = 64 + 2 * len(self.polled)

    def made(self, subscription: Subscription) -> None:
        """A subscription is to end with it."""
        self.ephemeral = {number: each for number, each in self.ephemeral.items() if not each.ended}
        self.ephemeral[subscription.number] = subscription

    def lose(self, connection: Connection) -> None:
        """Remember what the last answer on a connection that closed handed over, and what was published there."""
        if connection.numbered is not None:
            self.numbered[connection.number] = connection.numbered
            if len(self.numbered) > MAX_LOST:
                self.forgotten = max(self.forgotten, self.numbered.popitem(last=False)[0])
        if connection.last is None:
            return
        self.lost[connection.number] = (connection.answers, connection.last)
        if len(self.lost) > MAX_LOST:
            self.lost.popitem(last=False)

    def numbered_on(self, number: int) -> Numbered | None:
        """What was published on a connection that closed, for the one in its place; None: nothing numbered was."""
        known = self.numbered.get(number)
        return Numbered(None) if known is None and number <= self.forgotten else known


def check_place(peer: Connection, session: Session | None) -> None:
    """Whether a connection that proved itself may have the place in a session that it asks for.

    Raises:
        AccessRefused; ProtocolViolation.
    """
    if peer.role is Role.PRESENCE:
        if session is not None:
            raise AccessRefused("its process is announced by another connection already")
        if peer.replaces:
            raise ProtocolViolation("a presence replaces no other connection")
        return
    if session is None and peer.role is Role.CALL:
        raise AccessRefused("its process has no presence connection, or is taken for dead")
    if session is not None:
        if peer.number in session.connections:
            raise ProtocolViolation("two connections of one process have the same number")
        if peer.replaces and session.connections.get(peer.replaces) is session.presence:
            raise ProtocolViolation("a presence cannot be replaced")
