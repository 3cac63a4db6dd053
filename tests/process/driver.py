"""Drives Sessions without sockets: client processes and their connections, and a time that the test moves.

Every reply is encoded and decoded on its way, as on a wire. After every event the engine must agree with itself, and
no poll may wait while a copy that it could have is ready.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from mpbroker._version import __version__
from mpbroker.engine import Engine, invariants
from mpbroker.filters import Filter
from mpbroker.messages import SubscriptionStats
from mpbroker.process import frames, handshake
from mpbroker.process.effects import Close, Effect, Hold, Quit, Send, Share, Unwatch, Watch
from mpbroker.process.frames import Frame, Grant, Reply
from mpbroker.process.limits import Limits
from mpbroker.process.payloads import decode_payloads, encode_batches, list_length, open_payload
from mpbroker.process.sessions import Sessions

KEY: Final = bytes(range(32))
INCARNATION: Final = "0123456789abcdef"
WALL: Final = 1_700_000_000.0

R = TypeVar("R", bound=Frame)


class Connection:
    """One connection of a client, as seen from there. shares: bytes of the memory that the loop was told to share."""

    def __init__(self, broker: Broker, session: bytes, role: str, number: int) -> None:
        self.broker = broker
        self.id = next(broker.ids)
        self.session = session
        self.role = role
        self.number = number
        self.inbox: list[Reply] = []
        self.is_closed = False
        self.is_held = False
        self.shares = 0
        self.behind: list[bytes] = []
        self.answered = 0
        broker.connections[self.id] = self

    def send(self, request: Frame) -> None:
        self.send_bytes(frames.encode(request))

    def send_bytes(self, body: bytes) -> None:
        """What comes behind a publish that waits stays with the loop."""
        broker = self.broker
        if self.is_held:
            self.behind.append(body)
        else:
            broker.carry_out(broker.sessions.received(self.id, body, broker.now))

    def take(self) -> Reply:
        """The one reply that is here."""
        assert len(self.inbox) == 1, self.inbox
        return self.inbox.pop()

    def got(self, kind: type[R]) -> R:
        reply = self.take()
        assert isinstance(reply, kind), reply
        self.answered += 1
        return reply

    def ask(self, request: Frame, kind: type[R]) -> R:
        self.send(request)
        return self.got(kind)

    def failed(self, request: Frame) -> frames.Failed:
        """The error that a request is answered with; the connection stays usable."""
        failed = self.ask(request, frames.Failed)
        assert not self.is_closed
        return failed

    @property
    def waits(self) -> bool:
        """Nothing came, and the connection is up."""
        return not self.inbox and not self.is_closed

    def close(self, *, unsent: bool = False) -> None:
        """The client closes it."""
        self.is_closed, self.is_held = True, False
        broker = self.broker
        broker.carry_out(broker.sessions.closed(self.id, broker.now, unsent=unsent))

    # -- short ways to say things -------------------------------------------------------------------------------------

    def subscribe(self, topic: str, name: str, *, push: bool = False, **settings: object) -> int:
        """Make topic and subscription; its number."""
        self.ask(frames.CreateTopic(topic, True), frames.Done)
        return self.ask(subscribe(topic, name, push=push, **settings), frames.Subscribed).number

    def publish(self, topic: str, *payloads: object, priority: int = 1, **headers: str) -> frames.Published:
        return self.ask(publish(topic, *payloads, priority=priority, **headers), frames.Published)

    def poll(
        self, number: int, member: str = "w", count: int = 1, *, now: float | None = None, timeout: float | None = 0.0
    ) -> list[Grant]:
        """The grants of a poll that does not wait."""
        return self.ask(frames.Poll(number, member, now, count, timeout), frames.Granted).grants

    def wait(self, number: int, member: str = "w", count: int = 1, timeout: float | None = None) -> None:
        """Poll, and be parked."""
        self.send(frames.Poll(number, member, None, count, timeout))
        assert self.waits, self.inbox

    def publish_waiting(self, topic: str, *payloads: object, **headers: str) -> None:
        """Publish, and be parked."""
        self.send(publish(topic, *payloads, priority=1, **headers))
        assert self.waits, self.inbox

    def granted(self) -> list[Grant]:
        """What the poll that waited was answered with."""
        return self.got(frames.Granted).grants

    def ack(self, number: int, *tokens: int) -> list[bool]:
        return self.ask(frames.AckTokens(number, list(tokens)), frames.Answers).values

    def stats(self, number: int, now: float | None = None) -> dict[str, int]:
        values = self.ask(frames.Stats(number, now), frames.StatsReply).values
        return dict(zip(SubscriptionStats.__slots__, values, strict=True))


class Process:
    """A client process that has announced itself."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.session = next(broker.session_ids)
        self._numbers = itertools.count(1)
        self.presence = broker.connect(self.session, "presence", next(self._numbers))

    def call(self, *, replaces: int = 0, answered: int = -1) -> Connection:
        return self.connect("call", replaces=replaces, answered=answered)

    def connect(self, role: str, *, replaces: int = 0, answered: int = -1) -> Connection:
        number = next(self._numbers)
        return self.broker.connect(self.session, role, number, replaces=replaces, answered=answered)

    def die(self, how: str | None = None) -> None:
        """The kernel's word comes first."""
        broker = self.broker
        broker.carry_out(broker.sessions.process_ended(self.session, how, broker.now))

    def goodbye(self) -> None:
        self.presence.ask(frames.Goodbye(), frames.Done)


class Broker:
    """Sessions with a new engine. is_checked: after every event, which is slow with many leases or subscriptions."""

    def __init__(
        self,
        *,
        manual_time: bool = False,
        limits: Limits | None = None,
        functions: Mapping[str, Filter] | None = None,
        now: float = 100.0,
        is_checked: bool = True,
    ) -> None:
        self.engine = Engine(incarnation=INCARNATION)
        self.now = now
        self.is_checked = is_checked
        self.ids = itertools.count(1)
        self.session_ids = (n.to_bytes(handshake.SESSION_BYTES, "big") for n in itertools.count(1))
        self.nonces = (bytes([n % 256]) * handshake.NONCE_BYTES for n in itertools.count(1))
        self.connections: dict[int, Connection] = {}
        self.watched: set[bytes] = set()
        self.quit: str | None = None
        self.sessions = Sessions(
            self.engine,
            key=KEY,
            limits=limits or Limits(),
            manual_time=manual_time,
            functions=functions or {},
            nonce=lambda count: next(self.nonces)[:count],
            wall_clock=lambda: WALL,
            version=__version__,
            pid=4711,
            started=now,
            memory=lambda: 12345,
        )

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(connection, reply):
                    to = self.connections[connection]
                    assert not to.is_closed, "something was sent on a connection that is closed"
                    to.inbox.append(frames.decode_reply(frames.encode(reply)))
                    to.is_held = False
                case Hold(connection):
                    assert not self.connections[connection].is_held
                    self.connections[connection].is_held = True
                case Close(connection):
                    assert not self.connections[connection].is_closed, "a connection was closed twice"
                    self.connections[connection].is_closed = True
                    self.connections[connection].is_held = False
                case Watch(_, session):
                    self.watched.add(session)
                case Unwatch(session):
                    self.watched.remove(session)
                case Share(connection, ring_bytes):
                    to = self.connections[connection]
                    assert not to.shares, "a connection shares memory twice"
                    to.shares = ring_bytes
                case Quit(reason):
                    assert self.quit is None
                    self.quit = reason
        self.check()
        for each in list(self.connections.values()):
            while each.behind and not each.is_held and not each.is_closed:
                self.carry_out(self.sessions.received(each.id, each.behind.pop(0), self.now))

    def check(self) -> None:
        if not self.is_checked:
            return
        invariants.check(self.engine)
        if self.quit is not None:
            assert self.sessions.next_due() is None
            return
        desk = self.sessions._desk
        for subscription in desk.polls.subscriptions():
            assert not subscription.ended
            assert subscription.stats(None).ready == 0, subscription.subscription_id
        assert all(not subscription.is_idle() for subscription in desk.idles.subscriptions())
        # Whoever may go went: nobody is left to be tried again, and a publish that waits is of a connection that is up.
        assert not desk._woken
        assert not any(waiter.woken for each in self.engine.all_subscriptions() for waiter in each.line.waiters)
        assert desk.publishes.keys() == {each.id for each in self.connections.values() if each.is_held}

    def open(self, session: bytes, role: str, number: int) -> Connection:
        """Accept a connection that says nothing yet."""
        connection = Connection(self, session, role, number)
        self.carry_out(self.sessions.opened(connection.id, self.now))
        return connection

    def greet(
        self, connection: Connection, *, replaces: int = 0, answered: int = -1, key: bytes = KEY
    ) -> frames.Failed | None:
        """Shake hands on a connection; the error that it came to."""
        hello = hello_of(connection, replaces=replaces, answered=answered)
        connection.send(hello)
        challenge = connection.take()
        if isinstance(challenge, frames.Failed):
            return challenge
        assert isinstance(challenge, frames.Challenge), challenge
        sent = frames.encode(hello)
        assert challenge.proof == handshake.broker_proof(KEY, sent, challenge.nonce)
        connection.send(frames.Proof(handshake.client_proof(key, sent, challenge.nonce)))
        welcome = connection.take()
        if isinstance(welcome, frames.Failed):
            return welcome
        assert isinstance(welcome, frames.Welcome), welcome
        return None

    def connect(self, session: bytes, role: str, number: int, *, replaces: int = 0, answered: int = -1) -> Connection:
        """A connection that has been let in."""
        connection = self.open(session, role, number)
        assert self.greet(connection, replaces=replaces, answered=answered) is None
        return connection

    def process(self) -> Process:
        return Process(self)

    def call(self) -> Connection:
        """A call connection of a new process."""
        return self.process().call()

    def at(self, now: float) -> None:
        """Let the time come, and tick only when something is due, as the loop does."""
        assert now >= self.now
        while (due := self.sessions.next_due()) is not None and due <= now:
            assert due > self.now or due <= now
            self.now = max(self.now, due)
            self.carry_out(self.sessions.tick(self.now))
            after = self.sessions.next_due()
            assert after is None or after > self.now, "tick left something that is due"
        self.now = now

    def later(self, seconds: float) -> None:
        self.at(self.now + seconds)

    def held(self) -> int:
        """Copies in flight in all subscriptions."""
        return sum(each.stats(None).in_flight for each in self.engine.all_subscriptions())


def hello_of(
    connection: Connection, *, replaces: int = 0, answered: int = -1, version: str = __version__
) -> frames.Hello:
    nonce = bytes([connection.id % 256]) * handshake.NONCE_BYTES
    return frames.Hello(
        frames.PROTOCOL,
        version,
        connection.role,
        connection.session,
        connection.number,
        replaces,
        nonce,
        answered,
    )


def subscribe(topic: str, name: str, *, push: bool = False, **settings: object) -> frames.Subscribe:
    """A Subscribe with these settings given; "filter" is an expression, "function" a name."""
    kind, text = "none", ""
    if "function" in settings:
        kind, text = "function", str(settings.pop("function"))
        settings["filter"] = text
    elif settings.get("filter") is not None:
        kind, text = "expression", str(settings["filter"])
    values: dict[str, object] = {
        "ack_timeout": 30.0,
        "max_deliveries": 5,
        "retry": None,
        "max_queue": 1000,
        "overflow": "dead_letter",
        "overflow_wait": 0.0,
        "ephemeral": False,
        **settings,
    }
    given = [name for name in settings if name != "overflow_wait"]
    values.pop("filter", None)
    return frames.Subscribe(topic, name, push, given, kind, text, **values)  # type: ignore[arg-type]


def publish(topic: str, *payloads: object, priority: int = 1, **headers: str) -> frames.Publish:
    batches = [msgspec.Raw(batch) for batch in encode_batches(payloads)]
    return frames.Publish(topic, batches, headers, priority)


def sequences(grants: list[Grant]) -> list[int]:
    return [n for grant in grants for n in range(grant.first, grant.first + list_length(grant.payloads))]


def tokens(grants: list[Grant]) -> list[int]:
    return [token for grant in grants for token in range(grant.token, grant.token + list_length(grant.payloads))]


def payloads(grants: list[Grant]) -> list[object]:
    return [open_payload(value) for grant in grants for value in decode_payloads(memoryview(grant.payloads))]
