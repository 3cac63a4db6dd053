"""One connection of a client to a broker: one request is out on it at a time.

Owns the socket, the handshake and the framing on the client's side. Never decides whether the broker is gone, and
never reconnects: that is for `connection`, which alone imports it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Final

from mpbroker import errors
from mpbroker._version import __version__
from mpbroker.errors import (
    AccessRefused,
    BrokerNotFound,
    CallFailed,
    LimitReached,
    MpbrokerError,
    ProtocolViolation,
    VersionMismatch,
)
from mpbroker.process import frames
from mpbroker.process.frames import HEADER_BYTES, Challenge, Failed, Gone, Hello, Proof, Reply, Welcome
from mpbroker.process.handshake import NONCE_BYTES, broker_proof, client_proof, is_proof
from mpbroker.process.naming import OVERLOADED, Located
from mpbroker.shm.segment import NoSharedMemory
from mpbroker.shm.stream import RingStream, share

_READ_BYTES: Final = 64 * 1024
_JOINED_BYTES: Final = 64 * 1024
"""Up to here header and body leave in one system call, at the price of a copy."""

_LONGEST_WAIT_S: Final = 86_400.0
"""Seconds that one look for a reply lasts at most; what the kernel counts in has a bound."""

_ENDED: Final = frozenset(
    {errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN, errno.EBADF}
)

NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
"""Programs that write to pipes like to be killed by SIGPIPE; not because a broker ended."""

_BUILTIN: Final = {"TypeError": TypeError, "ValueError": ValueError}


class Ended(Exception):
    """The other end of a channel is closed. Args: its last words (Gone), or None."""


def rebuild(failed: Failed) -> Exception:
    """The exception that a reply tells of."""
    builtin = _BUILTIN.get(failed.kind)
    if builtin is not None:
        return builtin(*failed.args)
    kind: object = getattr(errors, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, MpbrokerError):
        return kind(*failed.args)
    return CallFailed(f"{failed.kind}{tuple(failed.args)!r}")


class _Socket(socket.socket):
    """A socket that is closed when nobody has it any more, as when its thread ended; that is no oversight."""

    __slots__ = ()

    def close(self) -> None:
        try:
            super().close()
        except OSError:
            pass  # somebody closed all descriptors, as programs do that become daemons

    def __del__(self) -> None:
        self.close()


class Channel:
    """A connection that has been let in.

    For one thread at a time. After any exception from `exchange`, `dispatch` or `receive` it is good for nothing but
    `close`.

    Attributes:
        number: this process's own number for it.
        answered: how many calls on it ended with their answer in the caller's hands; counted by who calls.
    """

    __slots__ = ("__weakref__", "_limit", "_rest", "_sock", "_stream", "answered", "number", "welcome")

    def __init__(self, sock: socket.socket, number: int) -> None:
        """Made by `open_channel`."""
        # In one step, so that no interruption loses the descriptor.
        sock.__class__ = _Socket
        self._sock = sock
        self._stream: socket.socket | RingStream = sock
        self._rest = b""
        self._limit = frames.MAX_HELLO_BYTES
        self.number = number
        self.answered = 0
        self.welcome: Welcome

    def exchange(self, body: bytes) -> Reply:
        """Send an encoded request and wait for its reply, for ever.

        Raises:
            Ended: the broker closed the connection, or there is none any more.
            ProtocolViolation: the broker answered with what is no reply.
        """
        try:
            self.send(body)
            return frames.decode_reply(self._read())
        except OSError as error:
            # A signal handler may raise an OSError of its own in the middle of the wait.
            if error.errno not in _ENDED:
                raise
            raise Ended(self._left_words()) from None

    def send(self, body: bytes) -> None:
        if len(body) <= _JOINED_BYTES:
            self._stream.sendall(frames.framed(body), NO_SIGNAL)
        else:
            self._stream.sendall(len(body).to_bytes(HEADER_BYTES, "little"), NO_SIGNAL)
            self._stream.sendall(body, NO_SIGNAL)

    def dispatch(self, body: bytes) -> None:
        """Send an encoded request whose reply is for `receive`, in the order of the requests. Raises Ended."""
        try:
            self.send(body)
        except OSError as error:
            if error.errno not in _ENDED:
                raise
            raise Ended(self._left_words()) from None

    def receive(self, timeout_s: float | None = None) -> Reply | None:
        """The next reply; None when it did not begin to come within ``timeout_s`` seconds (0: is not here yet).

        Raises what `exchange` raises.
        """
        try:
            if not self._rest and timeout_s is not None:
                # Without an end of its own where none can be told; who calls looks at the time again.
                chunk = self._received_within(min(timeout_s, _LONGEST_WAIT_S))
                if chunk is None:
                    return None
                if not chunk:
                    raise Ended(None)
                self._rest = chunk
            return frames.decode_reply(self._read())
        except OSError as error:
            if error.errno not in _ENDED:
                raise
            raise Ended(self._left_words()) from None

    def _received_within(self, timeout_s: float) -> bytes | None:
        """What comes first; None when nothing came in time, and nothing of the broker's end."""
        stream = self._stream
        if isinstance(stream, RingStream):
            return stream.recv_within(timeout_s)
        if timeout_s > 0.0:
            waiting = select.poll()
            waiting.register(stream, select.POLLIN)
            waiting.poll(timeout_s * 1000.0)
        try:
            return stream.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def last_words(self, timeout_s: float) -> Gone | None:
        """What the broker said when it ended, if it does so within the time.

        Raises TimeoutError when the connection is still up after it.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                reply = frames.decode_reply(self._read(deadline))
                if type(reply) is Gone:
                    return reply
        except TimeoutError:
            raise
        except (OSError, Ended, ProtocolViolation):
            return None

    def last_reply(self) -> Reply | None:
        """The last thing that the broker said on a connection that has ended, if there is any."""
        reply: Reply | None = None
        try:
            while True:
                reply = frames.decode_reply(self._read(time.monotonic()))
        except (OSError, Ended, ProtocolViolation):
            return reply

    def _left_words(self) -> Gone | None:
        """last_words of a connection that has ended."""
        try:
            return self.last_words(0.0)
        except TimeoutError:
            return None

    def stop(self) -> None:
        """Make a thread that waits in `exchange` see the end. Of a connection that a forked child shares, too."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the broker was faster

    def close(self) -> None:
        """Let go of the socket. In a forked child this leaves the parent's connection as it is."""
        self._stream.close()

    def share(self, timeout_s: float) -> None:
        """Go on in shared memory, before the first call.

        Raises:
            NoSharedMemory: it cannot be had, and this channel is good for nothing but `close`.
            Ended: the broker closed the connection. And what it answered with.
        """
        deadline = time.monotonic() + timeout_s
        self._patience(deadline)
        ring_bytes = self.welcome.ring_bytes
        offer = frames.framed(frames.encode(frames.Share(ring_bytes)))
        sock = self._sock
        try:
            ring, self._rest = share(sock, ring_bytes, offer)
        except TimeoutError:
            raise NoSharedMemory(f"the broker did not answer within {timeout_s:g} s") from None
        except OSError as error:
            if error.errno not in _ENDED:
                raise
            raise Ended(None) from None
        try:
            reply = self._answer(deadline)
            if type(reply) is not frames.Done or ring is None:
                raise ProtocolViolation(f"the broker answered a request for shared memory with {type(reply).__name__}")
            self._stream = RingStream(sock, ring, ring_bytes)
        except TimeoutError:
            raise NoSharedMemory(f"the broker did not answer within {timeout_s:g} s") from None
        except (AccessRefused, LimitReached) as error:
            raise NoSharedMemory(error.args[0] if isinstance(error, AccessRefused) else str(error)) from None
        finally:
            if ring is not None and not self.is_ring:
                ring.close()

    @property
    def is_ring(self) -> bool:
        """Whether it goes through shared memory."""
        return self._stream is not self._sock

    @property
    def sock(self) -> socket.socket:
        """For asking the kernel who is at the other end."""
        return self._sock

    def _read(self, deadline: float | None = None) -> bytes | memoryview:
        """The body of the next frame. With a deadline, TimeoutError once it passed."""
        rest = self._rest
        while len(rest) < HEADER_BYTES:
            if deadline is not None:
                self._patience(deadline)
            chunk = self._stream.recv(_READ_BYTES)
            if not chunk:
                raise Ended(None)
            rest += chunk
        length = int.from_bytes(rest[:HEADER_BYTES], "little")
        if length > self._limit:
            raise ProtocolViolation(f"the broker sent a frame of {length:,} bytes")
        end = HEADER_BYTES + length
        if len(rest) >= end:
            self._rest = rest[end:]
            return rest[HEADER_BYTES:end]
        self._rest = b""
        view = memoryview(bytearray(length))
        filled = len(rest) - HEADER_BYTES
        view[:filled] = rest[HEADER_BYTES:]
        while filled < length:
            if deadline is not None:
                self._patience(deadline)
            count = self._stream.recv_into(view[filled:])
            if not count:
                raise Ended(None)
            filled += count
        return view

    def _patience(self, deadline: float) -> None:
        # Not 0, which would mean something else than a short time.
        self._stream.settimeout(max(0.001, deadline - time.monotonic()))

    def _greet(self, hello: Hello, located: Located, deadline: float) -> None:
        """The handshake; see `open_channel`."""
        self._patience(deadline)
        sent = frames.encode(hello)
        self.send(sent)
        challenge = self._answer(deadline)
        if type(challenge) is not Challenge:
            raise ProtocolViolation("the broker did not answer the hello with a challenge")
        if challenge.protocol != frames.PROTOCOL:
            raise VersionMismatch(__version__, challenge.version)
        if not is_proof(challenge.proof, broker_proof(located.key, sent, challenge.nonce)):
            raise AccessRefused(f"what listens in {located.folder} does not have the key that is there")
        self._patience(deadline)
        self.send(frames.encode(Proof(client_proof(located.key, sent, challenge.nonce))))
        welcome = self._answer(deadline)
        if type(welcome) is not Welcome:
            raise ProtocolViolation("the broker did not answer the proof with a welcome")
        self.welcome = welcome
        self._limit = welcome.max_frame_bytes + frames.ROOM_BYTES
        self._sock.settimeout(None)

    def _answer(self, deadline: float) -> Reply:
        reply = frames.decode_reply(self._read(deadline))
        if type(reply) is Failed:
            raise rebuild(reply)
        if type(reply) is Gone:
            raise Ended(reply)
        return reply


def open_channel(
    located: Located,
    *,
    role: str,
    session: bytes,
    number: int,
    replaces: int = 0,
    answered: int = -1,
    timeout_s: float,
) -> Channel:
    """Connect and prove the key both ways; see Hello for most arguments.

    Raises:
        BrokerNotFound: nobody listens, or nobody answered in time.
        VersionMismatch: the broker is of another version.
        AccessRefused: one of the two does not have the key.
        LimitReached: the broker takes no more connections.
        Ended: the broker ended or closed the connection meanwhile.
    """
    if located.info.protocol != frames.PROTOCOL:
        raise VersionMismatch(__version__, located.info.version)
    deadline = time.monotonic() + timeout_s
    nonce = os.urandom(NONCE_BYTES)
    hello = Hello(frames.PROTOCOL, __version__, role, session, number, replaces, nonce, answered, os.getpid())
    channel = Channel(located.connect(timeout_s), number)
    try:
        channel._greet(hello, located, deadline)
    except TimeoutError:
        channel.close()
        if time.monotonic() < deadline:
            raise  # a signal handler's
        reason = f"process {located.info.pid} did not answer within {timeout_s:.3g} s, {OVERLOADED}"
        raise BrokerNotFound(located.name, str(located.folder), reason) from None
    except OSError as error:
        if error.errno not in _ENDED:
            channel.close()
            raise
        # A broker that is full says so and closes, perhaps before this side has said a word.
        reply = channel.last_reply()
        channel.close()
        if type(reply) is Failed:
            raise rebuild(reply) from None
        raise Ended(reply if type(reply) is Gone else None) from None
    except BaseException:
        channel.close()
        raise
    return channel
