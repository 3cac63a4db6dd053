"""Whatever the peers of a broker process send, in whatever order, each is answered, closed or waiting, and all adds up.

The bytes say events: frames as they are or well-formed ones, connections and processes that come and go, time. No
exception may leave Sessions, no call may fail for a defect of the broker, and when everybody is gone nobody holds
anything.
"""

from __future__ import annotations

from mpbroker import errors
from mpbroker.errors import MpbrokerError
from mpbroker.process import frames
from mpbroker.process.limits import Limits
from tests.fuzz.draw import Draw
from tests.fuzz.requests import request_in
from tests.process.driver import Broker, Connection, Process

_LIMITS = Limits(max_connections=10, max_topics=3, max_subscriptions=4)
_PROCESSES = 4
_EVENTS = 48
_STEPS = (0.0, 0.25, 1.0, 4.0, 5.0, 30.0, 1000.0)
_ROLES = ("call", "presence", "admin", "other", "lane")


class World:
    """A broker process and what is connected to it."""

    def __init__(self, *, manual_time: bool) -> None:
        self.broker = Broker(manual_time=manual_time, limits=_LIMITS, is_checked=False)
        first = self.broker.process()
        self.processes = [first]
        self.connections = [first.call()]
        call = self.connections[0]
        for name, settings in (("a", {"ack_timeout": 4.0}), ("b", {"max_deliveries": 2, "max_queue": 5})):
            call.subscribe("t", name, **settings)
        call.publish("t", 1, 2, 3, 4, k="x")
        call.poll(1, "w", 2)

    def play(self, draw: Draw) -> None:
        events = (
            self.well_formed,
            self.well_formed,
            self.well_formed,
            self.raw,
            self.later,
            self.connect,
            self.close,
            self.process,
            self.end,
            self.stranger,
        )
        for _ in range(_EVENTS):
            if not draw:
                break
            draw.one_of(events)(draw)
            self.look()

    # -- events -------------------------------------------------------------------------------------------------------

    def connection(self, draw: Draw) -> Connection | None:
        up = [each for each in self.connections if not each.is_closed]
        return draw.one_of(up) if up else None

    def well_formed(self, draw: Draw) -> None:
        connection = self.connection(draw)
        if connection is not None:
            self.send(connection, frames.encode(request_in(draw)))

    def raw(self, draw: Draw) -> None:
        connection, body = self.connection(draw), draw.short()
        if connection is not None:
            self.send(connection, body)

    def send(self, connection: Connection, body: bytes) -> None:
        """One frame has one answer, at once or later, and is the last one when it is no frame."""
        peer = self.broker.sessions._desk.connections.get(connection.id)
        waits = peer is not None and peer.parked is not None
        connection.send_bytes(body)
        if self.broker.quit is not None:
            return
        if waits:
            assert connection.is_closed
        if not connection.inbox:
            assert peer is not None
            assert peer.parked is not None
            assert not connection.is_closed
        else:
            (answer,) = connection.inbox
            if connection.is_closed:
                assert isinstance(answer, frames.Failed | frames.Done)

    def later(self, draw: Draw) -> None:
        self.broker.later(draw.one_of(_STEPS))

    def connect(self, draw: Draw) -> None:
        """Another connection of a process, perhaps in the place of an earlier one."""
        process, role, replaces = draw.one_of(self.processes), draw.one_of(_ROLES), draw.below(4)
        answered = draw.below(4) - 1
        connection = self.broker.open(process.session, role, next(process._numbers))
        self.connections.append(connection)
        if not connection.is_closed:
            self.broker.greet(connection, replaces=replaces, answered=answered)

    def close(self, draw: Draw) -> None:
        connection = self.connection(draw)
        if connection is not None:
            connection.close(unsent=draw.below(2) == 1)

    def process(self, _: Draw) -> None:
        if len(self.processes) < _PROCESSES and self.broker.quit is None and self.has_room():
            self.processes.append(Process(self.broker))

    def has_room(self) -> bool:
        desk = self.broker.sessions._desk
        return len(desk.connections) < _LIMITS.sockets and len(desk.connections) < _LIMITS.max_connections

    def end(self, draw: Draw) -> None:
        """The kernel says that a process is gone, or it says goodbye, or breaks its presence."""
        process, how = draw.one_of(self.processes), draw.below(4)
        presence = process.presence
        if how == 0:
            process.die(draw.one_of((None, "signal 9 (SIGKILL)")))
        elif not presence.is_closed:
            if how == 1:
                self.send(presence, frames.encode(frames.Goodbye()))
            elif how == 2:
                presence.close()
            else:
                self.send(presence, draw.short())

    def stranger(self, draw: Draw) -> None:
        """A connection that says anything instead of a hello."""
        connection = self.broker.open(bytes(16), "call", 1)
        self.connections.append(connection)
        for _ in range(draw.below(3)):
            if connection.is_closed or self.broker.quit is not None:
                break
            connection.inbox.clear()
            self.send(connection, draw.short())

    # -- laws ---------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take every answer: none tells of a defect, and no more came than was asked."""
        for connection in self.broker.connections.values():
            for reply in connection.inbox:
                if isinstance(reply, frames.Failed):
                    check_failure(reply)
            connection.inbox.clear()
        due = self.broker.sessions.next_due()
        assert due is None or due == due

    def finish(self) -> None:
        """All processes end, time passes, and nobody holds anything."""
        broker = self.broker
        self.check()
        if broker.quit is not None:
            return
        for process in self.processes:
            process.die()
        for connection in self.connections:
            if not connection.is_closed:
                connection.close()
        desk = broker.sessions._desk
        assert not desk.sessions
        assert not desk.connections
        assert not len(desk.polls)
        assert not len(desk.idles)
        assert broker.held() == 0
        assert broker.watched == set()
        # What is left of arenas is what messages are in.
        assert broker.kept == desk.blocks.segments.keys()
        assert all(each.blocks and each.lender is None for each in desk.blocks.segments.values())
        assert desk.meter.used >= 0
        if not desk.manual_time:
            broker.later(1e6)
        self.check()

    def check(self) -> None:
        self.broker.is_checked = True
        self.broker.check()
        self.broker.is_checked = False


def check_failure(reply: frames.Failed) -> None:
    assert reply.kind != "CallFailed", reply
    if reply.kind not in ("TypeError", "ValueError"):
        kind = getattr(errors, reply.kind)
        assert issubclass(kind, MpbrokerError)
        assert str(kind(*reply.args))


def target(data: bytes) -> None:
    draw = Draw(data)
    world = World(manual_time=draw.below(8) == 7)
    world.play(draw)
    world.finish()
