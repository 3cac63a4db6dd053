"""The broker process without its sockets: who is connected, what each client process holds, what follows from what.

Sessions is driven by events (a connection opened, a frame came, a process ended, a time was reached) and answers each
with effects, which the loop carries out in their order. It owns the handshake, the lifetimes of connections and
processes, and the rule of one answer for each call; the verbs themselves are in verbs. It never blocks and never reads
a clock, a socket or a random number: everything is given, so the same events have the same effects. For the loop.

A connection:   new --Hello--> challenged --Proof--> open --> closed       5 s from new to open
A process:      from the Proof of its presence to Goodbye (what it holds is released, uncounted), or to the end of the
                presence or of the process itself without one (it died: counted)
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from mpbroker.engine import Engine
from mpbroker.errors import (
    AccessRefused,
    LimitReached,
    MpbrokerError,
    ProtocolViolation,
    VersionMismatch,
)
from mpbroker.filters import Filter
from mpbroker.process import frames, handshake
from mpbroker.process.acts import Act, Change
from mpbroker.process.clients import Connection, Numbered, ParkedPublish, Role, Session, Stage, check_place
from mpbroker.process.desk import About, Desk
from mpbroker.process.effects import Close, Effect, Hold, Quit, Send, Share, Unwatch, Watch
from mpbroker.process.failures import failure
from mpbroker.process.frames import Reply
from mpbroker.process.handshake import HANDSHAKE_S
from mpbroker.process.limits import Limits
from mpbroker.process.verbs import VERBS

_log = logging.getLogger("mpbroker.sessions")

_RESERVES: Final = {Role.CALL: 0, Role.PRESENCE: 1, Role.ADMIN: 2}
"""How many times the reserved connections each role may have beyond max_connections."""

_Step = tuple[Act, tuple[type[MpbrokerError], ...]]
"""What follows from a frame that was checked, and what it may be refused for; see acts.Change."""


class Sessions:
    """What the broker process decides.

    Connections are numbered by the loop, and no number is used twice. ``now`` is the loop's monotonic time, which
    never goes back; with ``manual_time`` only handshakes and waiting calls live in it, and the engine lives in the
    time that calls give. Events of connections that are closed already have no effect. An exception out of a method
    is a defect of the broker, which the loop ends.
    A frame is first checked, then acted on (see acts).

    Args:
        engine: a new one; it is changed by nobody else.
        key: what client processes prove to have.
        functions: the filters that have a name, ``module:qualified.name``.
        nonce: so many random bytes.
        wall_clock: seconds since the epoch, for the timestamps of messages.
        started: the loop's time now; memory: the bytes the process takes. For the status.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        key: bytes,
        limits: Limits,
        manual_time: bool,
        functions: Mapping[str, Filter],
        nonce: Callable[[int], bytes],
        wall_clock: Callable[[], float],
        version: str,
        pid: int,
        started: float = 0.0,
        memory: Callable[[], int] = lambda: 0,
    ) -> None:
        about = About(version, pid, started, memory)
        self._desk = Desk(engine, limits, manual_time, functions, wall_clock, about)
        self._key = key
        self._nonce = nonce
        self._shaking: OrderedDict[int, Connection] = OrderedDict()
        self._next_owner = 1
        self._effects: list[Effect] = []
        self._stopped = False

    # -- events -------------------------------------------------------------------------------------------------------

    def opened(self, connection: int, now: float) -> list[Effect]:
        """A connection was accepted, from a peer of the right user."""
        if self._stopped:
            return [Close(connection)]
        new = Connection(connection)
        limits, connections = self._desk.limits, self._desk.connections
        if len(connections) >= limits.sockets and self._shaking:
            # The longest in its handshake is the least likely to finish it.
            self._refuse(next(iter(self._shaking.values())), self._full(), now)
        if len(connections) >= limits.sockets:
            self._refuse(new, self._full(), now)
        else:
            connections[connection] = self._shaking[connection] = new
            self._desk.timers.set(connection, now + HANDSHAKE_S)
        return self._finished(now)

    def received(self, connection: int, body: bytes | memoryview, now: float) -> list[Effect]:
        """A frame came; body: without its length."""
        peer = self._desk.connections.get(connection)
        if peer is None or self._stopped:
            return []
        step: _Step | None = None
        try:
            if len(body) > peer.limit_bytes:
                raise ProtocolViolation(f"a frame of {len(body)} bytes")
            if peer.stage is Stage.NEW:
                self._hello(peer, bytes(body))
            elif peer.stage is Stage.CHALLENGED:
                step = self._proof(peer, body, now)
            else:
                step = self._request(peer, body, now)
        except ProtocolViolation as error:
            self._violation(peer, error, now)
        except (VersionMismatch, AccessRefused, LimitReached) as error:
            self._refuse(peer, error, now)
        if step is not None:
            self._act(peer, *step)
        return self._finished(now)

    def violated(self, connection: int, reason: str, now: float) -> list[Effect]:
        """The loop could not make a frame of what came."""
        peer = self._desk.connections.get(connection)
        if peer is None or self._stopped:
            return []
        self._violation(peer, ProtocolViolation(reason), now)
        return self._finished(now)

    def closed(self, connection: int, now: float, *, unsent: bool = False) -> list[Effect]:
        """The peer closed it, or it broke. unsent: its last answer was not written completely, so nobody got it."""
        peer = self._desk.connections.get(connection)
        if peer is None or self._stopped:
            return []
        session = peer.session
        if unsent and session is not None and peer.last is not None:
            self._desk.undo(session, peer.last)
            peer.last = None
        self._forget(peer)
        if session is not None and session.presence is peer:
            self._died(session, None, now)
        return self._finished(now)

    def process_ended(self, session: bytes, how: str | None, now: float) -> list[Effect]:
        """A watched process is gone; how: "signal 9 (SIGKILL)", "exit code 3", where that is known."""
        found = self._desk.sessions.get(session)
        if found is None or self._stopped:
            return []
        self._died(found, how, now)
        return self._finished(now)

    def unshared(self, connection: int, reason: str) -> list[Effect]:
        """A connection could not go on in shared memory: it stays as it was."""
        peer = self._desk.connections.get(connection)
        if peer is None or self._stopped:
            return []
        peer.rings = False
        self._desk.rings -= 1
        return [Send(connection, failure(AccessRefused(reason)))]

    def tick(self, now: float) -> list[Effect]:
        """A time was reached: take back what is due, end what waited long enough."""
        if self._stopped:
            return []
        desk = self._desk
        if not desk.manual_time:
            desk.expire(now)
            desk.settle(now)
        for connection in desk.timers.pop_due(now):
            peer = desk.connections[connection]
            if peer.parked is not None:
                desk.time_out(peer.parked)
            else:
                self._refuse(peer, AccessRefused(f"no handshake within {HANDSHAKE_S:g} s"), now)
        return self._finished(now)

    def next_due(self) -> float | None:
        """When tick has something to do, exactly; None when only an event can change that."""
        if self._stopped:
            return None
        first = self._desk.timers.first()
        deadline = None if self._desk.manual_time else self._desk.janitor.next_deadline()
        if first is None or deadline is None:
            return deadline if first is None else first[0]
        return min(first[0], deadline)

    @property
    def limits(self) -> Limits:
        """What bounds it all."""
        return self._desk.limits

    def frame_limit(self, connection: int) -> int:
        """Bytes that the next frame on a connection may have."""
        peer = self._desk.connections.get(connection)
        return frames.MAX_HELLO_BYTES if peer is None else peer.limit_bytes

    # -- the handshake ------------------------------------------------------------------------------------------------

    def _hello(self, peer: Connection, body: bytes) -> None:
        hello = handshake.read_hello(body)
        try:
            peer.role = Role(hello.role)
        except ValueError:
            raise ProtocolViolation("the hello has an unknown role") from None
        peer.number, peer.replaces, peer.answered = hello.connection, hello.replaces, hello.answered
        peer.session_id = hello.session
        peer.hello = body
        peer.nonce = self._nonce(handshake.NONCE_BYTES)
        peer.stage = Stage.CHALLENGED
        proof = handshake.broker_proof(self._key, body, peer.nonce)
        challenge = frames.Challenge(frames.PROTOCOL, self._desk.about.version, peer.nonce, proof)
        self._effects.append(Send(peer.id, challenge))

    def _proof(self, peer: Connection, body: bytes | memoryview, now: float) -> _Step:
        frame = frames.decode_hello(body)
        if not isinstance(frame, frames.Proof):
            raise ProtocolViolation("the second frame is not a proof")
        expected = handshake.client_proof(self._key, peer.hello, peer.nonce)
        if not handshake.is_proof(frame.proof, expected):
            raise AccessRefused("it was given another key than this broker has")
        check_place(peer, self._desk.sessions.get(peer.session_id))
        return partial(self._join, peer, now), ()

    def _join(self, peer: Connection, now: float) -> None:
        """Give a connection that proved itself its place, where there is room."""
        desk = self._desk
        session = desk.sessions.get(peer.session_id)
        if session is not None and peer.replaces:
            self._replace(session, peer, now)
        if not self._has_room(peer.role):
            self._refuse(peer, self._full(), now)
            return
        if peer.role is Role.PRESENCE:
            self._begin(peer)
        elif session is not None:
            peer.session = session
            session.connections[peer.number] = peer
        peer.stage = Stage.OPEN
        peer.hello = peer.nonce = b""
        if peer.role is not Role.PRESENCE:
            peer.limit_bytes = desk.limits.max_frame_bytes
        del self._shaking[peer.id]
        desk.timers.cancel(peer.id)
        limits = desk.limits
        ring_bytes = limits.ring_bytes if peer.role is Role.CALL else 0
        welcome = frames.Welcome(
            desk.engine.incarnation, desk.about.pid, limits.max_frame_bytes, desk.manual_time, ring_bytes
        )
        self._effects.append(Send(peer.id, welcome))

    def _has_room(self, role: Role) -> bool:
        """Whether there are fewer open connections than this role may make."""
        used = len(self._desk.connections) - len(self._shaking)
        limits = self._desk.limits
        return used < limits.max_connections + limits.reserved * _RESERVES[role]

    def _replace(self, session: Session, peer: Connection, now: float) -> None:
        """A call was interrupted: whatever its connection has still to bring is void, and so is its answer."""
        old = session.connections.get(peer.replaces)
        if old is not None:
            self._drop(old, now)
        lost = session.lost.pop(peer.replaces, None)
        if lost is not None:
            answers, hand_over = lost
            if answers > peer.answered:
                self._desk.undo(session, hand_over)
        peer.numbered = session.numbered_on(peer.replaces)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _request(self, peer: Connection, body: bytes | memoryview, now: float) -> _Step | None:
        if peer.parked is not None:
            raise ProtocolViolation("a request while another one waits for its answer")
        request = frames.decode_request(body)
        peer.request_bytes = len(body)
        peer.last = None
        desk = self._desk
        desk.counters["calls"] += 1
        kind = type(request)
        verb = VERBS.get(kind)
        if kind is frames.Share:
            self._share(peer, request)
            return None
        if verb is None or peer.role is Role.PRESENCE:
            return self._last_request(peer, request, now)
        number = request.number if type(request) is frames.Publish else 0
        if number:
            peer.numbered = peer.numbered or Numbered()
            known = peer.numbered.again(number)
            if known is not None:
                self._answer(peer, known)
                return None
            peer.publishing = number
        try:
            if isinstance(verb, Change):
                return verb.check(desk, peer, request, now), verb.refusals
            reply = verb.answer(desk, peer, request, now)
        except ProtocolViolation:
            raise
        except Exception as error:  # noqa: BLE001 - nothing changed yet, so even a defect is this call's trouble alone
            reply = failure(error)
        self._answer(peer, reply)
        return None

    def _act(self, peer: Connection, act: Act, refusals: tuple[type[MpbrokerError], ...]) -> None:
        """Do what was checked. A defect comes out: a broker that ends does less harm than one that is half wrong."""
        try:
            reply = act()
        except refusals as error:
            reply = failure(error)
        if reply is not None:
            self._answer(peer, reply)
        elif isinstance(peer.parked, ParkedPublish):
            self._effects.append(Hold(peer.id))

    def _last_request(self, peer: Connection, request: frames.Request, now: float) -> _Step | None:
        """Goodbye or Stop, from who may send it."""
        if isinstance(request, frames.Stop) and peer.role is Role.ADMIN:
            # The loop tells everybody, once the name of the broker is free.
            self._stopped = True
            self._effects.append(Quit("it was asked to stop"))
            return None
        session = peer.session
        if not isinstance(request, frames.Goodbye) or session is None or session.presence is not peer:
            raise ProtocolViolation(f"a {type(request).__name__} on a connection of the role {peer.role}")
        return partial(self._goodbye, peer, session, now), ()

    def _share(self, peer: Connection, request: frames.Request) -> None:
        """Go on in shared memory, where there is room."""
        assert isinstance(request, frames.Share)
        desk = self._desk
        if peer.role is not Role.CALL or peer.answers or peer.has_asked:
            raise ProtocolViolation("shared memory is for a call connection, once, before its first call")
        peer.has_asked = True
        if not request.ring_bytes or request.ring_bytes != desk.limits.ring_bytes:
            raise ProtocolViolation("shared memory of another size than was offered")
        if desk.rings >= desk.limits.max_rings:
            self._effects.append(Send(peer.id, failure(LimitReached("rings", desk.limits.max_rings, "max_rings"))))
            return
        desk.rings += 1
        peer.rings = True
        self._effects.append(Share(peer.id, request.ring_bytes))

    def _answer(self, peer: Connection, reply: Reply) -> None:
        peer.answers += 1
        if peer.publishing and peer.numbered is not None:
            peer.numbered.note(peer.publishing, reply)
            peer.publishing = 0
        if type(reply) is frames.Failed:
            self._desk.counters["calls_failed"] += 1
        self._effects.append(Send(peer.id, reply))

    # -- lifetimes ----------------------------------------------------------------------------------------------------

    def _begin(self, peer: Connection) -> None:
        session = Session(peer.session_id, self._next_owner, peer, {peer.number: peer})
        self._next_owner += 1
        peer.session = session
        self._desk.sessions[session.id] = session
        self._effects.append(Watch(peer.id, session.id))

    def _goodbye(self, peer: Connection, session: Session, now: float) -> None:
        self._desk.counters["sessions_closed"] += 1
        self._effects.append(Send(peer.id, frames.Done()))
        self._end(session, now, died=False, error="")

    def _died(self, session: Session, how: str | None, now: float) -> None:
        self._desk.counters["sessions_died"] += 1
        error = f"worker died: {how}" if how else "worker died"
        _log.info("a client process ended without a goodbye (%s)", how or "how is not known")
        self._end(session, now, died=True, error=error)

    def _end(self, session: Session, now: float, *, died: bool, error: str) -> None:
        """A process is gone: nobody answers its calls, and what it holds goes back."""
        desk = self._desk
        del desk.sessions[session.id]
        self._effects.append(Unwatch(session.id))
        for peer in list(session.connections.values()):
            self._forget(peer)
            self._effects.append(Close(peer.id))
        desk.end_with(session, now, died=died, error=error)

    def _drop(self, peer: Connection, now: float) -> None:
        """Close a connection from this side."""
        session = peer.session
        self._forget(peer)
        self._effects.append(Close(peer.id))
        if session is not None and session.presence is peer:
            self._died(session, "its presence connection broke the protocol", now)

    def _forget(self, peer: Connection) -> None:
        """A connection is no more; a call that waits on it is cancelled."""
        desk = self._desk
        if peer.parked is not None:
            desk.unpark(peer.parked)
        desk.connections.pop(peer.id, None)
        self._shaking.pop(peer.id, None)
        desk.timers.cancel(peer.id)
        if peer.rings:
            peer.rings = False
            desk.rings -= 1
        if peer.session is not None and peer.session.connections.get(peer.number) is peer:
            del peer.session.connections[peer.number]
            peer.session.lose(peer)

    def _violation(self, peer: Connection, error: ProtocolViolation, now: float) -> None:
        self._desk.counters["violations"] += 1
        _log.warning("connection %d: %s", peer.id, error)
        self._effects.append(Send(peer.id, failure(error)))
        self._drop(peer, now)

    def _refuse(self, peer: Connection, error: MpbrokerError, now: float) -> None:
        """Turn a connection away that is not open yet."""
        self._desk.counters["refused"] += 1
        _log.info("connection %d: %s", peer.id, error)
        self._effects.append(Send(peer.id, failure(error)))
        self._drop(peer, now)

    def _full(self) -> LimitReached:
        limits = self._desk.limits
        return LimitReached("connections", limits.max_connections, limits.connections_option)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _finished(self, now: float) -> list[Effect]:
        """The effects of an event, once everything followed that follows."""
        desk = self._desk
        if not self._stopped:
            desk.settle(now)
            for peer, reply in desk.answers:
                self._answer(peer, reply)
            desk.answers.clear()
        return self._taken_effects()

    def _taken_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
