"""A broker's loop, sessions and rings without a kernel, and clients whose half of the memory says anything at all.

What a client can do to a broker by way of shared memory is to write in it, at any time: before a turn of the loop or
between two looks of one. Both are made here, millions of times, and after each turn the laws are looked at: no
exception leaves the loop, who lied is cut and nobody else, an honest client beside it gets its answers, nothing is kept
of who is gone.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from mpbroker._version import __version__
from mpbroker.engine import Engine
from mpbroker.process import frames, handshake
from mpbroker.process.frames import Challenge, Frame, Hello, Proof, Reply, TopicsReply
from mpbroker.process.limits import Limits
from mpbroker.process.link import Link
from mpbroker.process.loop import Loop
from mpbroker.process.sessions import Sessions
from mpbroker.shm.link import RingEnd
from mpbroker.shm.ring import HEAD_BYTES, Ring
from mpbroker.shm.segment import Segment
from tests.shm.support import HEAD, TAIL, U64, WANTS_BYTES, WANTS_ROOM

CAPACITY: Final = 4096
KEY: Final = bytes(32)
LIMITS: Final = Limits(ring_bytes=CAPACITY, max_frame_bytes=2 << 20, frame_timeout=5.0)

_WORDS: Final = (TAIL, HEAD, WANTS_BYTES, WANTS_ROOM)
_NEAR: Final = (0, 1, -1, 4, 100, CAPACITY, CAPACITY + 1, -CAPACITY, CAPACITY - 1)
_FAR: Final = (0, 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, U64 - CAPACITY, U64)
_LENGTHS: Final = (0, 1, 5, 100, CAPACITY, LIMITS.max_frame_bytes, LIMITS.max_frame_bytes + 1, 2**31, 2**32 - 1)
_STEPS_S: Final = (0.0, 0.000_01, 0.000_1, 0.1, 1.0, 6.0)

_TOPICS: Final = frames.encode(frames.Topics())
_REQUESTS: Final = (
    _TOPICS,
    frames.encode(frames.Status()),
    frames.encode(frames.CreateTopic("more", exist_ok=True)),
    frames.encode(frames.Share(CAPACITY)),
    frames.encode(frames.Goodbye()),
    b"",
    b"\xc1" * 20,
)


class Choices(Protocol):
    """Where the choices come from: a fuzzer's bytes, or dice."""

    def below(self, limit: int) -> int: ...


class Memory:
    """A segment of this process alone."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(HEAD_BYTES + CAPACITY))
        self.words: Any = self.view.cast("Q")

    def close(self) -> None:
        """Others may still look at it, as the client's own mapping does."""


class Lies:
    """A client's words as the broker reads them: each look may find another one."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.planned: list[int | None] = []
        """What the next looks find; None: what is written."""
        self.told = 0

    def __getitem__(self, place: int) -> int:
        lie = self.planned.pop() if self.planned else None
        if lie is None:
            return self.words[place]
        self.told += 1
        return lie


class Sock:
    """The bell: a socket whose other end is played."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.rings = 0
        self.is_ended = self.is_closed = False

    def recv(self, _size: int) -> bytes:
        rings, self.rings = self.rings, 0
        if not rings and not self.is_ended:
            raise BlockingIOError
        return b"\0" * rings

    def send(self, part: bytes, _flags: int = 0) -> int:
        self.sent += part
        return len(part)

    def getsockopt(self, *_: object) -> bytes:
        raise OSError("it has no process")

    def close(self) -> None:
        self.is_closed = True


class Selector:
    """Shows what the stage says."""

    def __init__(self) -> None:
        self.known: dict[object, object] = {}
        self.rung: list[Link] = []

    def register(self, what: object, _events: int, data: object) -> None:
        assert what not in self.known
        self.known[what] = data

    def modify(self, what: object, _events: int, data: object) -> None:
        assert what in self.known
        self.known[what] = data

    def unregister(self, what: object) -> None:
        del self.known[what]

    def select(self, _timeout: float | None) -> list[tuple[Any, int]]:
        rung, self.rung = self.rung, []
        return [(_Key(link), 1) for link in rung if link.sock in self.known]

    def close(self) -> None:
        pass


class _Key:
    def __init__(self, data: object) -> None:
        self.data = data


class Client:
    """One connection through shared memory, at both ends."""

    def __init__(self, link: Link, sock: Sock) -> None:
        self.link = link
        self.sock = sock
        self.memory = Memory()
        self.theirs = Memory()
        self.lies = Lies(self.memory.words)
        seen = Memory()
        seen.view, seen.words = self.memory.view, self.lies
        link.goes_through(RingEnd(cast("socket.socket", sock), ring_of(self.theirs, seen)))
        self.honest = ring_of(self.memory, self.theirs)
        self.tail = 0

    @property
    def is_cut(self) -> bool:
        return self.sock.is_closed


def ring_of(own: Memory, peer: Memory) -> Ring:
    return Ring(cast("Segment", own), cast("Segment", peer), CAPACITY)


class Stage:
    """A broker with an honest client, and one that is not.

    Attributes:
        mutations: things written or told that no client would; connections: how many clients were cut or left.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.mutations = 0
        self.connections = 0
        self._logger = logging.getLogger("mpbroker")
        self._level = self._logger.level
        self._logger.setLevel(logging.CRITICAL)  # each violation has its line
        self._sessions = Sessions(
            Engine(incarnation="0123456789abcdef"),
            key=KEY,
            limits=LIMITS,
            manual_time=False,
            functions={},
            nonce=bytes,
            wall_clock=lambda: 0.0,
            version=__version__,
            pid=1,
        )
        listener, self._other = socket.socketpair()
        self._loop = Loop(self._sessions, listener, release=lambda: None, clock=lambda: self.now)
        self._loop._selector.close()
        self._selector = Selector()
        self._loop._selector = cast("Any", self._selector)
        self._numbers = 0
        self._presence = self._connected("presence")
        self.bystander = self.connect()
        self.mutant = self.connect()
        self.answers = 0
        self._asks = 0
        self._request(frames.encode(frames.CreateTopic("t" * 200, exist_ok=True)))

    def close(self) -> None:
        self._loop._close_all()
        self._other.close()
        self._logger.setLevel(self._level)

    def connect(self) -> Client:
        """A client that shares memory."""
        link = self._connected("call")
        desk = self._sessions._desk
        peer = desk.connections[link.number]
        peer.has_asked = peer.rings = True
        desk.rings += 1
        link.brings = False
        client = Client(link, cast("Sock", link.sock))
        self._loop._rings.look_at(link)
        return client

    # -- what a client that lies does ----------------------------------------------------------------------------------

    def mutate(self, choose: Choices) -> None:
        """Do something to the mutant's memory."""
        _DEEDS[choose.below(len(_DEEDS))](self, self.mutant, choose)

    def word(self, client: Client, choose: Choices) -> None:
        client.memory.words[_WORDS[choose.below(4)]] = self._value(client, choose)
        self.mutations += 1

    def words(self, client: Client, choose: Choices) -> None:
        """All that a client may write in the first page."""
        for place in _WORDS:
            client.memory.words[place] = _FAR[choose.below(len(_FAR))]
        self.mutations += len(_WORDS)

    def lie(self, client: Client, choose: Choices) -> None:
        planned: list[int | None] = []
        for _ in range(1 + choose.below(6)):
            planned.append(self._value(client, choose) if choose.below(2) else None)
        client.lies.planned = planned

    def noise(self, client: Client, choose: Choices) -> None:
        for _ in range(4):
            place = HEAD_BYTES + choose.below(256) * 16 + choose.below(16)
            client.memory.view[place] = choose.below(256)
        self.mutations += 4

    def announced(self, client: Client, choose: Choices) -> None:
        """A frame of some length, of which some bytes come."""
        length = _LENGTHS[choose.below(len(_LENGTHS))]
        self._put(client, length.to_bytes(4, "little") + b"x" * choose.below(200))
        self.mutations += 1

    def request(self, client: Client, choose: Choices) -> None:
        """As it should be; answers pile up when nobody takes them."""
        body = _REQUESTS[choose.below(len(_REQUESTS))]
        for _ in range(1 + choose.below(8)):
            self._put(client, len(body).to_bytes(4, "little") + body)

    def taken(self, client: Client, choose: Choices) -> None:
        """It reads, or says so."""
        tail = client.theirs.words[TAIL]
        client.memory.words[HEAD] = max(0, tail - choose.below(3) * choose.below(200))
        self.mutations += 1

    def rung(self, client: Client, choose: Choices) -> None:
        client.sock.rings += 1 + choose.below(3)
        self._selector.rung.append(client.link)

    def later(self, client: Client, choose: Choices) -> None:
        self.now += _STEPS_S[choose.below(len(_STEPS_S))]

    def ended(self, client: Client, choose: Choices) -> None:
        if not choose.below(16):
            client.sock.is_ended = True
            self._selector.rung.append(client.link)

    def _value(self, client: Client, choose: Choices) -> int:
        match choose.below(3):
            case 0:
                return _FAR[choose.below(len(_FAR))]
            case 1:
                near = client.theirs.words[HEAD if choose.below(2) else TAIL]
                return cast("int", near + _NEAR[choose.below(len(_NEAR))]) & U64
            case _:
                return client.tail + choose.below(256) & U64

    def _put(self, client: Client, content: bytes) -> None:
        """Behind what was sent, whether there is room or not."""
        for byte_at, byte in enumerate(content, client.tail):
            client.memory.view[HEAD_BYTES + byte_at % CAPACITY] = byte
        client.tail += len(content)
        client.memory.words[TAIL] = client.tail & U64

    # -- what must hold ----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """A turn of the loop; then all laws but the bystander's answers."""
        mutant, violations = self.mutant, self._sessions._desk.counters["violations"]
        self._loop._turn()
        self.mutations += mutant.lies.told
        mutant.lies.told = 0
        told = self._sessions._desk.counters["violations"] - violations
        assert told <= 1
        assert not told or mutant.is_cut or mutant.link.number in self._loop._leaving
        assert not self.bystander.is_cut
        assert not cast("Sock", self._presence.sock).is_closed
        if mutant.is_cut:
            self._forgotten(mutant)
            self.connections += 1
            self.mutant = self.connect()
        else:
            theirs = mutant.theirs.words
            assert mutant.link.unsent <= 2 * LIMITS.max_frame_bytes
            assert len(mutant.link.pending) <= CAPACITY
            assert theirs[HEAD] >= 0
        assert self._sessions._desk.rings <= 3

    def serves(self) -> None:
        """The bystander asks and is answered, whatever the other one does."""
        reply = self._request(_TOPICS)
        assert isinstance(reply, TopicsReply), reply
        self.answers += 1

    def _forgotten(self, client: Client) -> None:
        number = client.link.number
        loop, rings = self._loop, self._loop._rings
        for holder in (loop._links, loop._busy, loop._leaving, rings._looked_at, rings._touched, loop._transit.frames):
            assert number not in holder
        assert number not in self._sessions._desk.connections
        assert client.sock not in self._selector.known

    def _request(self, body: bytes) -> Reply:
        client = self.bystander
        frame = len(body).to_bytes(4, "little") + body
        assert client.honest.send(frame) == len(frame)
        came = bytearray()
        into = memoryview(bytearray(CAPACITY))
        for _ in range(20):
            if client.honest.peer_wants_bytes():
                client.sock.rings += 1
                self._selector.rung.append(client.link)
            self.turn()
            came += into[: client.honest.receive(into)]
            if len(came) >= 4 and len(came) == 4 + int.from_bytes(came[:4], "little"):
                return frames.decode_reply(bytes(came[4:]))
        raise AssertionError("the bystander has no answer")

    # -- connections --------------------------------------------------------------------------------------------------

    def _connected(self, role: str) -> Link:
        """A connection that was let in through its socket."""
        self._numbers += 1
        number = self._loop._next_number
        self._loop._next_number += 1
        sock = Sock()
        link = self._loop._links[number] = Link(cast("socket.socket", sock), number)
        self._loop._look_for(link, 1)
        loop, sessions = self._loop, self._sessions
        loop._apply(sessions.opened(number, self.now))
        hello = frames.encode(Hello(frames.PROTOCOL, __version__, role, b"s" * 16, self._numbers, 0, bytes(32)))
        loop._apply(sessions.received(number, hello, self.now))
        challenge = frames.decode_reply(bytes(sock.sent[4:]))
        assert isinstance(challenge, Challenge), challenge
        sock.sent.clear()
        proof: Frame = Proof(handshake.client_proof(KEY, hello, challenge.nonce))
        loop._apply(sessions.received(number, frames.encode(proof), self.now))
        sock.sent.clear()
        return link


_DEEDS: Final[tuple[Callable[[Stage, Client, Choices], None], ...]] = (
    Stage.word,
    Stage.words,
    Stage.lie,
    Stage.lie,
    Stage.noise,
    Stage.announced,
    Stage.request,
    Stage.request,
    Stage.taken,
    Stage.rung,
    Stage.later,
    Stage.ended,
)
