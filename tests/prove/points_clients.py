"""The kill points of client and worker processes, and what must become of every message at each.

A row says where the point is, what the victim does, and the fate of each message, in the order m0, m1, … (published
before) and p0, p1, … (published by the victim): what is so in the end, when everybody else has read everything.

    none     it was never published         acked    the victim finished it
    fresh    the others get it as new        back     given back uncounted: attempt 1, redelivered
    again    as attempt 2; third: as 3       dead     a dead letter        a|b  either, where the kernel decides
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.prove import points_deeds as deeds
from tests.prove.planes import BOTH as ON_BOTH
from tests.prove.planes import SOCKET, Planes, ring_in
from tests.prove.points_deeds import Deed
from tests.prove.points_trap import LIMIT_S, Action, Asked, Spot, When

_CHANNEL: Final = "mpbroker.process.channel:Channel"
_SOCKET: Final = "mpbroker.process.channel:_Socket"
_SESSION: Final = "mpbroker.process.presence:Session"
_CLIENT: Final = "mpbroker.process.connection:ClientProcess"
_HANDLE: Final = "mpbroker.process.handle:SubscriptionHandle"
_PUSH: Final = "mpbroker.push.dispatcher:Dispatcher"
_SEAT: Final = "mpbroker.push.seat:Seat"

BEFORE, AFTER, MIDWAY = When.BEFORE, When.AFTER, When.MIDWAY


@dataclass(frozen=True, slots=True)
class ClientPoint:
    """One point in a client or a worker.

    Attributes:
        calm: the fates when nothing is done; also those after FORK, and after STOP where ``stop`` is not given.
        ready, coming: how many messages are published before the deed, and once the point is reached.
        bulk: bytes of each of those.
        last: the first attempt is the last one.
        push: the victim is a dispatcher, which alone may read; what it holds does not end by time.
        ends: the victim leaves the goodbye to the exit of the interpreter.
        parks: its poll comes to wait in the broker, and nothing is published before that.
        fed: the point is reached once what is coming has come to a victim that sleeps.
        planes: where the point exists.
    """

    name: str
    spot: Spot
    deed: Deed
    calm: str
    kill: str
    raised: str
    stop: str = ""
    ready: int = 0
    coming: int = 0
    bulk: int = 0
    last: bool = False
    push: bool = False
    ends: bool = False
    parks: bool = False
    fed: bool = False
    planes: Planes = ON_BOTH

    @property
    def side(self) -> str:
        return "client" if self.name.startswith("client") else "worker"

    def fates(self, action: Action) -> dict[str, tuple[str, ...]]:
        """By message, the fates that are right."""
        words = {
            Action.KILL: self.kill,
            Action.STOP: self.stop or self.calm,
            Action.RAISE: self.raised,
            Action.FORK: self.calm,
        }[action].split()
        before = self.ready + self.coming
        keys = [f"m{n}" for n in range(before)] + [f"p{n}" for n in range(len(words) - before)]
        return {key: tuple(word.split("|")) for key, word in zip(keys, words, strict=True)}


def in_call(kind: str, target: str, when: When, nth: int = 1, ready: Callable[[Asked], None] | None = None) -> Spot:
    """A place while a request of that kind is out."""
    outer = _asks(kind)
    within = f"{_CLIENT}.exchange"
    return (
        Spot(target, when, nth, within, outer) if ready is None else Spot(target, when, nth, within, outer, ready=ready)
    )


def _asks(kind: str) -> Callable[[Asked], bool]:
    return lambda asked: type(asked[1]).__name__ == kind


def answered_to(kind: str) -> Spot:
    """The answer is decoded, and made into what the caller gets next: after this, Python looks for no signal."""
    return in_call(kind, f"{_SESSION}.put", BEFORE)


def _reply_is_there(asked: Asked) -> None:
    """The broker did what was asked, and said so."""
    channel = asked[0]
    ring = ring_in(channel)
    if ring is None:
        found, _, _ = select.select([channel.sock], [], [], LIMIT_S)
        assert found, "no reply came"
        return
    deadline = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not ring.waiting():
        assert time.monotonic() < deadline, "no reply came"
        pause.wait(0.001)


def reply_waits(kind: str) -> Spot:
    return in_call(kind, f"{_CHANNEL}.send", AFTER, ready=_reply_is_there)


CONNECTING: Final = [
    ClientPoint(f"client {where}", spot, deeds.connects, "fresh", "none", "none")
    for where, spot in (
        ("found its broker and has not connected", Spot("mpbroker.process.connection:locate_at", AFTER)),
        ("has a socket and has not said a word", Spot("mpbroker.process.naming:Located.connect", AFTER)),
        ("before the handshake of its presence", Spot(f"{_CHANNEL}._greet")),
        ("said hello", Spot(f"{_CHANNEL}.send", AFTER, 1, f"{_CHANNEL}._greet")),
        ("challenged, before its proof", Spot(f"{_CHANNEL}._answer", AFTER, 1, f"{_CHANNEL}._greet")),
        ("sent its proof", Spot(f"{_CHANNEL}.send", AFTER, 2, f"{_CHANNEL}._greet")),
        ("was welcomed", Spot(f"{_CHANNEL}._greet", AFTER)),
        ("is present and does not know it", Spot(f"{_SESSION}.__init__", AFTER)),
        ("present, without a call connection", Spot(f"{_SESSION}.take")),
        ("before the handshake of its call connection", Spot(f"{_CHANNEL}._greet", BEFORE, 2)),
        ("half through the hello of its call connection", Spot(f"{_SOCKET}.sendall", MIDWAY, 3)),
        ("has both connections and called nothing", Spot(f"{_SESSION}.take", AFTER)),
    )
]

PUBLISHING: Final = [
    ClientPoint(
        "client before a publish is sent",
        in_call("Publish", f"{_CHANNEL}.send", BEFORE),
        deeds.publishes,
        "fresh fresh fresh",
        "fresh none none",
        "fresh none none",
    ),
    ClientPoint(
        "client sent half a publish",
        in_call("Publish", f"{_SOCKET}.sendall", MIDWAY),
        deeds.publishes,
        "fresh fresh fresh",
        "fresh none none",
        "fresh none none",
        planes=SOCKET,
    ),
    ClientPoint(
        "client sent a publish",
        in_call("Publish", f"{_CHANNEL}.send", AFTER),
        deeds.publishes,
        "fresh fresh fresh",
        "fresh none|fresh none",
        "fresh none|fresh none",
    ),
    ClientPoint(
        "client before it reads that its publish was accepted",
        reply_waits("Publish"),
        deeds.publishes,
        "fresh fresh fresh",
        "fresh fresh none",
        "fresh fresh none",
    ),
    ClientPoint(
        "client read the reply to its publish",
        in_call("Publish", f"{_CHANNEL}._read", AFTER),
        deeds.publishes,
        "fresh fresh fresh",
        "fresh fresh none",
        "fresh fresh none",
    ),
    ClientPoint(
        "client has the reply to its publish and not returned it",
        answered_to("Publish"),
        deeds.publishes,
        "fresh fresh fresh",
        "fresh fresh none",
        "fresh fresh none",
    ),
    ClientPoint(
        "client between head and body of a large frame",
        in_call("Publish", f"{_SOCKET}.sendall", AFTER, 1),
        deeds.publishes_many,
        "fresh fresh",
        "none none",
        "none none",
        planes=SOCKET,
    ),
    ClientPoint(
        "client half through the body of a large frame",
        in_call("Publish", f"{_SOCKET}.sendall", MIDWAY, 2),
        deeds.publishes_many,
        "fresh fresh",
        "none none",
        "none none",
        planes=SOCKET,
    ),
    ClientPoint(
        "client sent a large frame whose reply waits",
        reply_waits("Publish"),
        deeds.publishes_many,
        "fresh fresh",
        "fresh fresh",
        "fresh fresh",
    ),
    ClientPoint(
        "client sent a subscribe whose reply waits",
        reply_waits("Subscribe"),
        deeds.subscribes,
        "fresh",
        "none",
        "none",
    ),
    ClientPoint(
        "client created a topic, and the reply waits",
        reply_waits("CreateTopic"),
        deeds.subscribes,
        "fresh",
        "none",
        "none",
    ),
    ClientPoint(
        "client before it lets go of its session",
        Spot(f"{_CLIENT}.close"),
        deeds.publishes_and_closes,
        "fresh",
        "fresh",
        "fresh",
    ),
    ClientPoint(
        "client before its goodbye",
        Spot(f"{_SESSION}.leave"),
        deeds.publishes_and_closes,
        "fresh",
        "fresh",
        "fresh",
    ),
    ClientPoint(
        "client said goodbye",
        Spot(f"{_CHANNEL}.send", AFTER, within=f"{_SESSION}.leave"),
        deeds.publishes_and_closes,
        "fresh",
        "fresh",
        "fresh",
    ),
    ClientPoint(
        "client after its goodbye",
        Spot(f"{_SESSION}.leave", AFTER),
        deeds.publishes_and_closes,
        "fresh",
        "fresh",
        "fresh",
    ),
    ClientPoint(
        "client at its exit",
        Spot(f"{_CLIENT}.close"),
        deeds.publishes_and_ends,
        "fresh",
        "fresh",
        "fresh",
        ends=True,
    ),
]

_TAKEN: Final = ("acked acked fresh", "again again fresh")

POLLING: Final = [
    ClientPoint(
        "worker before a poll is sent",
        in_call("Poll", f"{_CHANNEL}.send", BEFORE),
        deeds.works,
        "acked acked fresh",
        "fresh fresh fresh",
        "fresh fresh fresh",
        "fresh fresh fresh",
        ready=3,
    ),
    ClientPoint(
        "worker waits in a poll",
        Spot(
            f"{_CHANNEL}._read",
            BEFORE,
            1,
            f"{_CLIENT}.exchange",
            _asks("Poll"),
            outside=True,
        ),
        deeds.waits,
        "acked",
        "fresh",
        "fresh",
        "again",
        coming=1,
    ),
    ClientPoint(
        "worker before it reads what it was handed",
        reply_waits("Poll"),
        deeds.works,
        *_TAKEN,
        "fresh fresh fresh",
        "again again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker read half of what it was handed",
        in_call("Poll", f"{_SOCKET}.recv_into", AFTER),
        deeds.works,
        "acked acked fresh",
        "again|fresh again|fresh fresh",
        "fresh fresh fresh",
        "again again fresh",
        ready=3,
        bulk=deeds.LARGE_BYTES,
        planes=SOCKET,
    ),
    ClientPoint(
        "worker read what it was handed",
        in_call("Poll", f"{_CHANNEL}._read", AFTER),
        deeds.works,
        *_TAKEN,
        "fresh fresh fresh",
        "again again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker decoded what it was handed, and its caller has not got it",
        answered_to("Poll"),
        deeds.works,
        *_TAKEN,
        "fresh fresh fresh",
        "again again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker has what it was handed",
        Spot(f"{_HANDLE}._poll", AFTER),
        deeds.works,
        *_TAKEN,
        "back back fresh",
        "again again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker opens a payload",
        Spot("mpbroker.process.received:ReceivedBatch._payload"),
        deeds.works,
        *_TAKEN,
        "back back fresh",
        "again again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker before it replaces an interrupted poll",
        Spot(f"{_SESSION}.replace"),
        deeds.is_interrupted,
        "fresh",
        "fresh",
        "fresh",
        "fresh|again",
        coming=1,
    ),
    ClientPoint(
        "worker replaced an interrupted poll",
        Spot(f"{_SESSION}.connect", AFTER, within=f"{_SESSION}.replace"),
        deeds.is_interrupted,
        "fresh",
        "fresh",
        "fresh",
        coming=1,
    ),
]

SETTLING: Final = [
    ClientPoint(
        "worker in a with block",
        reply_waits("Topics"),
        deeds.works_with_care,
        *_TAKEN,
        "back back fresh",
        "again again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker on a last attempt",
        in_call("Topics", f"{_CHANNEL}.send", BEFORE),
        deeds.works_on_one,
        "acked",
        "dead",
        "back",
        "dead",
        ready=1,
        last=True,
    ),
    ClientPoint(
        "worker half through its acks of a batch",
        Spot(f"{_HANDLE}._ack_token", BEFORE, 3),
        deeds.works_through_a_batch,
        "acked acked acked acked",
        "acked acked again again",
        "acked acked back back",
        "acked acked again again",
        ready=4,
    ),
    ClientPoint(
        "worker acked half a batch in one call whose reply waits",
        reply_waits("Ack"),
        deeds.acks_many,
        "acked acked acked acked",
        "acked acked again again",
        "acked acked back back",
        "acked acked again again",
        ready=4,
    ),
    ClientPoint(
        "worker before an ack is sent",
        in_call("AckTokens", f"{_CHANNEL}.send", BEFORE),
        deeds.acks,
        *_TAKEN,
        "back back fresh",
        "again again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker acked, and the reply waits",
        reply_waits("AckTokens"),
        deeds.acks,
        "acked acked fresh",
        "acked again fresh",
        "acked back fresh",
        "acked again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker has the reply to its ack and not returned it",
        answered_to("AckTokens"),
        deeds.acks,
        "acked acked fresh",
        "acked again fresh",
        "acked back fresh",
        "acked again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker nacked, and the reply waits",
        reply_waits("Nack"),
        deeds.nacks,
        "again acked fresh",
        "again again fresh",
        "again back fresh",
        "again again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker released, and the reply waits",
        reply_waits("Release"),
        deeds.releases,
        "back acked fresh",
        "back again fresh",
        "back back fresh",
        "back again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker rejected, and the reply waits",
        reply_waits("Reject"),
        deeds.rejects,
        "dead acked fresh",
        "dead again fresh",
        "dead back fresh",
        "dead again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker extended, and the reply waits",
        reply_waits("Extend"),
        deeds.extends,
        "acked acked fresh",
        "again again fresh",
        "back back fresh",
        "acked again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker before its goodbye",
        Spot(f"{_SESSION}.leave"),
        deeds.closes,
        "acked back fresh",
        "acked again fresh",
        "acked back fresh",
        "acked again fresh",
        ready=3,
    ),
    ClientPoint(
        "worker said goodbye, and the reply waits",
        Spot(f"{_CHANNEL}.send", AFTER, within=f"{_SESSION}.leave", ready=_reply_is_there),
        deeds.closes,
        "acked back fresh",
        "acked back fresh",
        "acked back fresh",
        ready=3,
    ),
    ClientPoint(
        "worker at its exit",
        Spot(f"{_CLIENT}.close"),
        deeds.ends,
        "acked back fresh",
        "acked again fresh",
        "acked back|again fresh",
        "acked again fresh",
        ready=3,
        ends=True,
    ),
]

PUSHED: Final = [
    ClientPoint(f"worker {where}", spot, deeds.subscribed, "acked acked fresh", kill, raised, ready=3, push=True)
    for where, spot, kill, raised in (
        (
            "became the dispatcher, and the reply waits",
            reply_waits("Attach"),
            "fresh fresh fresh",
            "acked fresh fresh",
        ),
        (
            "became the dispatcher and does not know its name",
            answered_to("Attach"),
            "fresh fresh fresh",
            "acked fresh fresh",
        ),
        ("before its subscriber is called", Spot(f"{_PUSH}._call"), "again fresh fresh", "acked fresh fresh"),
        ("after its subscriber was called", Spot(f"{_PUSH}._call", AFTER), "third fresh fresh", "acked fresh fresh"),
        ("retries, and the reply waits", reply_waits("RetryHeld"), "third fresh fresh", "acked fresh fresh"),
        ("between two calls of its subscriber", Spot(f"{_SEAT}.pause"), "third fresh fresh", "acked fresh fresh"),
        (
            "acked a pushed message, and the reply waits",
            reply_waits("AckTokens"),
            "acked fresh fresh",
            "acked acked fresh",
        ),
        ("before it leaves the dispatcher's seat", Spot(f"{_SEAT}._leave"), "acked acked fresh", "acked acked fresh"),
    )
]

POINTS: Final = [*CONNECTING, *PUBLISHING, *POLLING, *SETTLING, *PUSHED]
