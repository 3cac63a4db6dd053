"""A connection of its own, for who sends without waiting: a publisher, a consumer.

Owns which connection is in use, and that the next one takes the place of one that broke. Never sends anything itself.
Client side; imported by publishing and consuming.
"""

from __future__ import annotations

from typing import NoReturn

from mpbroker.errors import AccessRefused, BrokerNotFound, ProtocolViolation
from mpbroker.process.channel import Channel, Ended
from mpbroker.process.connection import ClientProcess
from mpbroker.process.frames import Gone, Reply
from mpbroker.process.presence import Session


class Line:
    """For one thread at a time, between `take` and `put`. A use that does not come to `put` is the connection's last.

    Attributes:
        channel: what is in use.
        number, answered: of the last one; see Hello.
        is_cancelled: another thread ends it on purpose.
        requests: counted by who sends, over all connections of a session.
    """

    __slots__ = ("_client", "_idle", "_session", "answered", "channel", "is_cancelled", "number", "requests")

    def __init__(self, client: ClientProcess) -> None:
        self._client = client
        self._session: Session | None = None
        self._idle: Channel | None = None
        self.channel: Channel | None = None
        self.number = 0
        self.answered = -1
        self.requests = 0
        self.is_cancelled = False

    @property
    def max_frame_bytes(self) -> int:
        """Bound of what is sent, once it was taken."""
        assert self._session is not None
        return self._session.welcome.max_frame_bytes

    @property
    def has_manual_time(self) -> bool:
        """Whether the broker's time is what calls give it."""
        return self._session is not None and self._session.welcome.manual_time

    @property
    def answer_bytes(self) -> int:
        """Bytes of answers that the way back holds, where that is known; 0: those of a socket, many."""
        return self.channel.welcome.ring_bytes if self.channel is not None and self.channel.is_ring else 0

    def take(self, is_anything_out: bool = True) -> bool:
        """Begin to use it; whether it is another connection than last time.

        is_anything_out: something was sent whose answer is not known, so that another session is no way to go on.

        Raises:
            BrokerGone; AccessRefused: the broker has let go of this process. What was under way is lost.
            BrokerNotFound, LimitReached: no connection came up; try again.
        """
        session = self._session
        if session is not None and self._client.session is not session:
            if is_anything_out:
                self._is_lost(session, Ended(None))
            self._begin_anew()
            session = None
        if session is None:
            session = self._session = self._client.open()
        channel, self._idle = self._idle, None
        is_new = channel is None
        if channel is None:
            if self.channel is not None:
                # Here, and not when nobody has it any more: an interruption there is seen by nobody.
                self.channel.close()
            try:
                channel = session.connect("call", replaces=(self.number, self.answered))
            except (Ended, BrokerNotFound, AccessRefused) as error:
                self._is_lost(session, error)
        self.channel, self.number = channel, channel.number
        return is_new

    def put(self) -> None:
        self._idle = self.channel

    def dispatch(self, body: bytes) -> None:
        """Send a request. Raises what `take` raises, and ProtocolViolation: this connection alone has ended."""
        try:
            self._used().dispatch(body)
        except Ended as error:
            self._broke(error)

    def receive(self, timeout_s: float | None) -> Reply | None:
        """The next reply, as by `Channel.receive`. Raises what `dispatch` raises."""
        try:
            reply = self._used().receive(timeout_s)
            if type(reply) is Gone:
                raise Ended(reply)
        except Ended as error:
            self._broke(error)
        return reply

    def successor(self) -> Line:
        """Another one, whose first connection takes the place of this one's last."""
        line = Line(self._client)
        line._session, line.number, line.answered = self._session, self.number, self.answered
        return line

    def close(self) -> None:
        """Let go of it; the next use opens another one."""
        channel = self._idle or self.channel
        self._idle = self.channel = None
        if channel is not None:
            channel.close()

    def forget(self) -> None:
        """In a forked child: nothing of the parent's is touched."""
        self._begin_anew()

    def _used(self) -> Channel:
        assert self.channel is not None, "take comes first"
        return self.channel

    def _broke(self, error: Ended) -> NoReturn:
        if self.is_cancelled:
            raise ProtocolViolation("another connection of this process took the place of this one")
        assert self._session is not None
        self._is_lost(self._session, error)

    def _is_lost(self, session: Session, error: Exception) -> NoReturn:
        try:
            self._client.explain(session, error)
        finally:
            if self._client.session is not session:
                self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing is known of this on the other side any more."""
        self.close()
        self._session = self.channel = None
        self.number, self.answered, self.requests = 0, -1, 0
