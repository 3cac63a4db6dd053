"""The bounds of a broker process: what a client, or a defect in one, can make it hold.

Owns the numbers and their reasons; who reaches one is told an error with the name of the option. Imports the argument
checks and frames.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from typing import Final, TypedDict

from mpbroker import checks
from mpbroker.errors import BrokerFailed
from mpbroker.process.frames import MAX_FRAME_BYTES, ROOM_BYTES
from mpbroker.process.payloads import BATCH_BYTES

RESERVED_CONNECTIONS: Final = 16
"""Connections beyond max_connections for presence alone, and as many again for admin alone: a broker that is full of
calls still learns of new processes, and can always be stopped."""

SLOWEST_BYTES_S: Final = 1 << 20
"""Bytes of a frame that must travel in a second beyond frame_timeout. Between processes of one host it is a thousand
times as many: who is slower than this is stopped, or plays for time."""

MOST_UNSENT_BYTES: Final = 256 << 20
"""Bytes of replies, over all connections, that may wait for clients to read them; beyond it they wait UNREAD_S."""

UNREAD_S: Final = 5.0
"""Seconds that a reply may wait for its reader while MOST_UNSENT_BYTES are exceeded."""

OTHER_FILES: Final = 24
"""Descriptors a broker needs beside those of its clients, with the few that it opens for a moment."""

_LARGEST_FRAME: Final = 2**32 - 1  # its length travels in 4 bytes
_PAGE_BYTES: Final = 4096
_LARGEST_RING: Final = 2**30
_DESCRIPTORS_OF_A_RING: Final = 0 if sys.version_info >= (3, 13) else 2
"""Before 3.13 Python keeps one for each mapping."""

_FEWEST: Final = 2  # connections: a process that calls has two


class LimitOptions(TypedDict, total=False):
    """The options of Limits, for who passes them on."""

    max_frame_bytes: int
    max_connections: int
    max_topics: int
    max_subscriptions: int
    max_name_length: int
    max_headers: int
    max_header_bytes: int
    max_payload_bytes: int | None
    max_queue_bytes: int
    max_dead_letters: int
    max_waiting_calls: int | None
    max_rings: int
    ring_bytes: int
    arena_threshold: int
    max_arena_bytes: int
    max_client_arena_bytes: int
    arena_timeout: float
    frame_timeout: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Attributes:
    max_frame_bytes: of one request or reply; payloads of one call may have ROOM_BYTES less. At least twice that.
    max_connections: a client process has one for its presence and one for each thread that calls: enough for 200
        processes of four threads, within the descriptors that systems usually allow.
    max_topics, max_subscriptions: ten times what is measured to be as quick as one; a loop that makes names ends
        here while the broker is still small.
    max_name_length: characters in the name of a topic, a subscription or a member; 255 is what every part can carry.
    max_headers: of one message; many times what anybody routes by.
    max_header_bytes: of the headers of one message, in UTF-8: filters look at all of them under the broker's lock.
    max_payload_bytes: of one message, as it travels; None: what a frame carries.
    max_queue_bytes: of memory that all messages in the broker take, those that are dead letters and those in flight
        included. Payloads and headers count once, however many subscriptions share them, until the last copy is gone;
        what a copy takes beside them counts in each. A publish beyond it is refused; what comes back from workers
        always fits, but histories keep no more attempts then. Only polls still add to it, up to a fourth more and one
        full answer (8 MiB); from there on a subscription hands out one message at a time, which max_subscriptions
        bounds. So messages make the broker grow by at most about twice this. A gibibyte: a broker that needs more holds
        what nobody reads, more often than not, and hosts have it to spare.
    max_dead_letters: kept in one subscription; the oldest give way, counted. As many as somebody may look through.
    max_waiting_calls: polls, wait_idle and publishes that wait at once; None: one for each connection.
    max_rings: connections that go through shared memory at once; further ones go through their sockets. Each takes
        twice ring_bytes, and a page.
    ring_bytes: of the shared memory of a connection, each way; a multiple of 4096. 0: none; then all go through their
        sockets. A batch of small messages fits several times, and the processors' caches hold some; larger frames pass
        in pieces.
    arena_threshold: bytes of a payload from which its publisher puts it into its arena, where the client's calls go
        through shared memory; at least 64 KiB, so that it is a batch of its own. 0, or without rings: none does. About
        where reading in place costs less than carrying it, everything included.
    max_arena_bytes: of all arenas; a fraction of what hosts have, and reserved only as it is used.
    max_client_arena_bytes: of one client process's, and so of one payload there.
    arena_timeout: seconds that a publish waits for room in the arena.
    frame_timeout: seconds from the first byte of a request to its last, and from the first that a client does not
        take of a reply to its last; a second more for each MiB. Longer is who was stopped, or is no client.
    reserved: see RESERVED_CONNECTIONS; fewer where descriptors are few.
    connections_option: what raises max_connections.
    """

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_connections: int = 1024
    max_topics: int = 100_000
    max_subscriptions: int = 100_000
    max_name_length: int = checks.MAX_NAME
    max_headers: int = 1000
    max_header_bytes: int = 256 * 1024
    max_payload_bytes: int | None = None
    max_queue_bytes: int = 1 << 30
    max_dead_letters: int = 10_000
    max_waiting_calls: int | None = None
    max_rings: int = 512
    ring_bytes: int = 256 * 1024
    arena_threshold: int = 256 * 1024
    max_arena_bytes: int = 1 << 30
    max_client_arena_bytes: int = 512 << 20
    arena_timeout: float = 30.0
    frame_timeout: float = 30.0
    reserved: int = RESERVED_CONNECTIONS
    connections_option: str = "max_connections"

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.startswith("max_") and not (value is None and each.default is None):
                checks.count(value, each.name)
        checks.count(self.max_frame_bytes, "max_frame_bytes", minimum=2 * ROOM_BYTES)
        if self.max_frame_bytes > _LARGEST_FRAME:
            raise ValueError(f"max_frame_bytes must be at most {_LARGEST_FRAME}, not {self.max_frame_bytes}")
        checks.count(self.max_name_length, "max_name_length", maximum=checks.MAX_NAME)
        checks.count(self.ring_bytes, "ring_bytes", minimum=0, maximum=_LARGEST_RING)
        if self.ring_bytes % _PAGE_BYTES:
            raise ValueError(f"ring_bytes must be a multiple of {_PAGE_BYTES}, not {self.ring_bytes}")
        checks.count(self.arena_threshold, "arena_threshold", minimum=0)
        if 0 < self.arena_threshold < BATCH_BYTES:
            raise ValueError(f"arena_threshold must be 0 or at least {BATCH_BYTES}, not {self.arena_threshold}")
        checks.seconds(self.arena_timeout, "arena_timeout")
        checks.seconds(self.frame_timeout, "frame_timeout", positive=True)

    @classmethod
    def given(cls, options: LimitOptions) -> Limits:
        """Limits as people give them. Raises TypeError, ValueError: an option that cannot be, by name."""
        for name in options:
            if name not in LimitOptions.__annotations__:
                raise TypeError(f"a broker has no option {name!r}")
        return cls(**options)

    @property
    def request_bytes(self) -> int:
        """Bound of a request that brings payloads, so that each of them can go out again with its company."""
        return self.max_frame_bytes - ROOM_BYTES

    @property
    def payload_bytes(self) -> int:
        """Bound of one message's payload."""
        return self.request_bytes if self.max_payload_bytes is None else self.max_payload_bytes

    @property
    def has_arena(self) -> bool:
        """Whether large payloads may lie in arenas."""
        return bool(self.ring_bytes and self.arena_threshold)

    @property
    def waiting_calls(self) -> int:
        return self.max_connections if self.max_waiting_calls is None else self.max_waiting_calls

    @property
    def sockets(self) -> int:
        """All connections, those in the handshake included."""
        return self.max_connections + 2 * self.reserved

    @property
    def descriptors(self) -> int:
        """What the process needs for them: each connection can be the only one of its process, which has a pidfd."""
        return 2 * self.sockets + self._ring_descriptors(self.max_rings) + OTHER_FILES

    def _ring_descriptors(self, rings: int) -> int:
        return _DESCRIPTORS_OF_A_RING * min(rings, self.max_connections) if self.ring_bytes else 0

    def within(self, descriptors: int) -> Limits:
        """These, or fewer rings and connections where the process may not open that many files.

        Raises BrokerFailed when they are too few for any client.
        """
        if descriptors >= self.descriptors:
            return self
        spare = max(0, descriptors - OTHER_FILES)
        rings = self.max_rings
        if _DESCRIPTORS_OF_A_RING:
            # Beside what connections leave, a fourth: who has no ring has its socket.
            rings = min(rings, max(1, max(spare - 2 * self.sockets, spare // 4) // _DESCRIPTORS_OF_A_RING))
        room = (spare - self._ring_descriptors(rings)) // 2
        reserved = min(self.reserved, max(1, room // 8))
        connections = min(self.max_connections, room - 2 * reserved)
        if connections < min(_FEWEST, self.max_connections):
            raise BrokerFailed(f"a process may open {descriptors} files here, too few for a client; see `ulimit -n`")
        return replace(
            self,
            max_connections=connections,
            max_rings=rings,
            reserved=reserved,
            connections_option="a larger `ulimit -n` (open files)",
        )

    def frame_seconds(self, size: int) -> float:
        """Seconds that a frame of so many bytes may take."""
        return self.frame_timeout + size / SLOWEST_BYTES_S
