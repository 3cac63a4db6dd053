"""What sessions has the loop do: effects, carried out in their order. For the broker's side."""

from __future__ import annotations

from dataclasses import dataclass

from mpbroker.process.frames import Reply


@dataclass(frozen=True, slots=True)
class Send:
    """Send a reply on a connection, after what was sent before."""

    connection: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class Hold:
    """A publish waits for room: bring nothing more of this connection before its answer is sent."""

    connection: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection once what was sent is written (or can't be), reading nothing more from it."""

    connection: int


@dataclass(frozen=True, slots=True)
class Watch:
    """A process announced itself on this connection: watch the peer's pidfd, and report process_ended."""

    connection: int
    session: bytes


@dataclass(frozen=True, slots=True)
class Unwatch:
    """The session is over."""

    session: bytes


@dataclass(frozen=True, slots=True)
class Quit:
    """End the broker process, once what was sent is written (or can't be)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Share:
    """The connection is to go on in shared memory, of which it has sent its part; report `unshared` if that fails."""

    connection: int
    ring_bytes: int


@dataclass(frozen=True, slots=True)
class Keep:
    """A segment was offered with the request: keep its descriptor, and answer with its number; report `unkept` if that
    fails."""

    connection: int
    segment: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Answer with the descriptor of a segment."""

    connection: int
    segment: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the descriptor of a segment."""

    segment: int


Effect = Send | Hold | Close | Watch | Unwatch | Quit | Share | Keep | Pass | Drop
