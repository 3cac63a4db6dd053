"""What client processes ask of shared memory: rings for their calls, segments and pins on their lane.

Owns the answers; what is there to be passed or kept is the loop's, as effects. A lane is a connection beside those for
calls, always a socket: descriptors travel on it, one with one frame, each answered before the next. And pins belong to
it: they end when its socket is closed by the last process that has it, which after a fork is the kernel's to know.

For the broker's side; reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpbroker import checks
from mpbroker.engine import OFFSET_BITS
from mpbroker.errors import AccessRefused, LimitReached, PayloadError, ProtocolViolation
from mpbroker.process import frames
from mpbroker.process.blocks import Lender
from mpbroker.process.clients import Connection, HandedOver, ParkedFreed, Role
from mpbroker.process.desk import REPLY_ROOM_BYTES, Desk
from mpbroker.process.effects import Effect, Keep, Pass, Send, Share
from mpbroker.process.failures import failure
from mpbroker.process.frames import Reply


def welcome(desk: Desk, role: Role) -> frames.Welcome:
    """What a client is told once it is in."""
    limits = desk.limits
    return frames.Welcome(
        desk.engine.incarnation,
        desk.about.pid,
        limits.max_frame_bytes,
        desk.manual_time,
        limits.ring_bytes if role is Role.CALL else 0,
        limits.arena_threshold if limits.has_arena else 0,
        limits.max_client_arena_bytes,
        limits.arena_timeout,
    )


def serve(desk: Desk, peer: Connection, request: frames.Request) -> Effect:
    """Share, or what comes on a lane. Raises ProtocolViolation."""
    return _share(desk, peer, request) if isinstance(request, frames.Share) else _on_lane(desk, peer, request)


def _share(desk: Desk, peer: Connection, request: frames.Share) -> Effect:
    """Go on in shared memory, where there is room."""
    if peer.role is not Role.CALL or peer.answers or peer.has_asked:
        raise ProtocolViolation("shared memory is for a call connection, once, before its first call")
    peer.has_asked = True
    if not request.ring_bytes or request.ring_bytes != desk.limits.ring_bytes:
        raise ProtocolViolation("shared memory of another size than was offered")
    if desk.rings >= desk.limits.max_rings:
        return Send(peer.id, failure(LimitReached("rings", desk.limits.max_rings, "max_rings")))
    desk.rings += 1
    peer.rings = True
    return Share(peer.id, request.ring_bytes)


# -- lanes ------------------------------------------------------------------------------------------------------------


def _on_lane(desk: Desk, lane: Connection, request: frames.Request) -> Effect:
    match request:
        case frames.OfferSegment():
            try:
                segment = desk.blocks.offer(_lender(lane), request.nbytes)
            except (LimitReached, AccessRefused) as error:
                return Send(lane.id, failure(error))
            return Keep(lane.id, segment.number, segment.nbytes)
        case frames.DropSegment():
            # Of a process that has ended for the broker it is gone already.
            if lane.session is not None:
                desk.blocks.drop(_lender(lane), request.segment)
            return Send(lane.id, frames.Done())
        case frames.MapSegment():
            if not _looks_into(lane, request.segment):
                raise ProtocolViolation(f"a look into segment {request.segment}, of which it has no block")
            return Pass(lane.id, request.segment)
        case frames.Freed() if request.timeout <= 0.0:
            if lane.session is None or lane.session.lends is None:
                return Send(lane.id, frames.FreedReply(request.seen, []))
            return Send(lane.id, _freed(desk, lane.session.lends, request))
        case frames.RetireLane():
            _retire(lane, request)
            return Send(lane.id, frames.Done())
        case frames.Unpin():
            for hand_over in _hand_overs(request.hand_overs):
                # One that is not there was undone.
                lane.pins.pop(hand_over, None)
            return Send(lane.id, frames.Done())
        case _:
            raise ProtocolViolation(f"a {type(request).__name__} on a lane")


def _looks_into(lane: Connection, segment: int) -> bool:
    """Whether the process of a lane has a block of a segment pinned."""
    connections = [lane] if lane.session is None else lane.session.connections.values()
    return any(block.segment.number == segment for each in connections for block in each.pins.values())


def _retire(lane: Connection, request: frames.RetireLane) -> None:
    """What is pinned on an older lane, and its process does not know of yet, is pinned here from now on."""
    old = None if lane.session is None else lane.session.connections.get(request.lane)
    if old is None or old is lane or old.role is not Role.LANE:
        return  # it is over, and its pins with it
    known = set(_hand_overs(request.hand_overs))
    for hand_over in [each for each in old.pins if each not in known]:
        lane.pins[hand_over] = old.pins.pop(hand_over)


def _hand_overs(told: list[int]) -> Iterator[HandedOver]:
    if len(told) % 2:
        raise ProtocolViolation("a subscription without a token")
    for subscription, token in zip(told[::2], told[1::2], strict=True):
        yield subscription, token >> OFFSET_BITS


def joined(lane: Connection) -> None:
    """A lane is open: what its process was handed before it had one is pinned there from now on."""
    session = lane.session
    assert session is not None
    session.lane = lane
    lane.pins.update(session.presence.pins)
    session.presence.pins.clear()


def unshared(desk: Desk, peer: Connection, effect: Share | Keep | Pass, reason: str) -> Effect:
    """What an effect was to do cannot be had."""
    if isinstance(effect, Share):
        peer.rings = False
        desk.rings -= 1
    elif isinstance(effect, Keep) and peer.session is not None:
        desk.blocks.drop(_lender(peer), effect.segment)
    return Send(peer.id, failure(AccessRefused(reason)))


def _lender(lane: Connection) -> Lender:
    """Raises AccessRefused: its process has ended for the broker."""
    session = lane.session
    if session is None:
        raise AccessRefused("its process has no presence connection, or is taken for dead")
    if session.lends is None:
        session.lends = Lender()
    return session.lends


# -- calls ------------------------------------------------------------------------------------------------------------


def freed(desk: Desk, connection: Connection, request: frames.Freed, now: float) -> Reply | None:
    session = connection.session
    if session is None or session.lends is None:
        raise AccessRefused("a process that asks for its blocks has a lane, and segments there")
    timeout = checks.seconds(request.timeout, "timeout")
    reply = _freed(desk, session.lends, request)
    if reply.freed or timeout == 0.0:
        return reply
    desk.park_freed(ParkedFreed(connection, session.lends, request.seen), now, timeout)
    return None


def _freed(desk: Desk, lender: Lender, request: frames.Freed) -> frames.FreedReply:
    desk.blocks.doubt(lender, request.doubtful)
    return frames.FreedReply(*lender.after(request.seen))


def read_block(desk: Desk, _: Connection, request: frames.ReadBlock, __: float) -> Reply:
    block = desk.blocks.find(request.segment, request.serial)
    if block is None:
        raise PayloadError("the payload", "its block of the arena is gone: nothing holds the message any more")
    most = desk.limits.max_frame_bytes - REPLY_ROOM_BYTES
    if not (request.offset >= 0 and 0 < request.size <= most and request.offset + request.size <= block.nbytes):
        raise ValueError(f"{request.size} bytes at {request.offset} of a block of {block.nbytes}")
    return frames.Chunk(desk.about.read(request.segment, block.offset + request.offset, request.size))
