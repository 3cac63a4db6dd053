"""What client processes ask of shared memory: rings for their calls, segments and pins on their lane.

Owns the answers; what is there to be passed or kept is the loop's, as effects. A lane is a connection beside those for
calls, always a socket: descriptors travel on it, one with one frame, each answered before the next. And pins belong to
it: they end when its socket is closed by the last process that has it, which after a fork is the kernel's to know.

For the broker's side; reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from mpbroker import checks
from mpbroker.engine import OFFSET_BITS
from mpbroker.errors import AccessRefused, LimitReached, PayloadError, ProtocolViolation
from mpbroker.process import frames
from mpbroker.process.acts import Act, Change, Look, Verb
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


def check(desk: Desk, peer: Connection, request: frames.Request) -> Callable[[], Effect]:
    """What follows from a Share, or from what comes on a lane, once it is checked. Raises ProtocolViolation."""
    return _share(desk, peer, request) if isinstance(request, frames.Share) else _on_lane(desk, peer, request)


def _share(desk: Desk, peer: Connection, request: frames.Share) -> Callable[[], Effect]:
    """Go on in shared memory, where there is room."""
    if peer.role is not Role.CALL or peer.answers or peer.has_asked:
        raise ProtocolViolation("shared memory is for a call connection, once, before its first call")
    if not request.ring_bytes or request.ring_bytes != desk.limits.ring_bytes:
        raise ProtocolViolation("shared memory of another size than was offered")

    def act() -> Effect:
        peer.has_asked = True
        if desk.rings >= desk.limits.max_rings:
            return Send(peer.id, failure(LimitReached("rings", desk.limits.max_rings, "max_rings")))
        desk.rings += 1
        peer.rings = True
        return Share(peer.id, request.ring_bytes)

    return act


# -- lanes ------------------------------------------------------------------------------------------------------------


def _on_lane(desk: Desk, lane: Connection, request: frames.Request) -> Callable[[], Effect]:
    match request:
        case frames.OfferSegment():
            return _offer(desk, lane, request.nbytes)
        case frames.DropSegment():
            lender = None if lane.session is None else lane.session.lends
            if lender is None:
                if lane.session is not None:
                    raise ProtocolViolation("a segment of a process that has none")
                return partial(_done, lane)  # of a process that has ended for the broker it is gone already
            desk.blocks.check_own(lender, request.segment)
            return partial(_done, lane, partial(desk.blocks.drop, lender, request.segment))
        case frames.MapSegment():
            if not _looks_into(lane, request.segment):
                raise ProtocolViolation(f"a look into segment {request.segment}, of which it has no block")
            return lambda: Pass(lane.id, request.segment)
        case frames.Freed() if request.timeout <= 0.0:
            lender = None if lane.session is None else lane.session.lends
            if lender is None:
                return lambda: Send(lane.id, frames.FreedReply(request.seen, []))
            desk.blocks.check_doubts(lender, request.seen, request.doubtful)
            return lambda: Send(lane.id, _freed(desk, lender, request))
        case frames.RetireLane():
            return partial(_done, lane, partial(_retire, lane, request.lane, set(_hand_overs(request.hand_overs))))
        case frames.Unpin():
            return partial(_done, lane, partial(_unpin, lane, _hand_overs(request.hand_overs)))
        case _:
            raise ProtocolViolation(f"a {type(request).__name__} on a lane")


def _done(lane: Connection, act: Callable[[], None] | None = None) -> Effect:
    if act is not None:
        act()
    return Send(lane.id, frames.Done())


def _offer(desk: Desk, lane: Connection, nbytes: int) -> Callable[[], Effect]:
    """One more segment, or why not."""
    blocks, session = desk.blocks, lane.session
    blocks.check_size(nbytes)
    if session is None:
        ended = AccessRefused("its process has no presence connection, or is taken for dead")
        return partial(Send, lane.id, failure(ended))
    lender = session.lends or Lender()
    try:
        blocks.check_room(lender, nbytes)
    except LimitReached as full:
        return partial(Send, lane.id, failure(full))

    def act() -> Effect:
        session.lends = lender
        segment = blocks.offer(lender, nbytes)
        return Keep(lane.id, segment.number, nbytes)

    return act


def _unpin(lane: Connection, hand_overs: list[HandedOver]) -> None:
    for each in hand_overs:
        lane.pins.pop(each, None)  # one that is not there was undone


def _looks_into(lane: Connection, segment: int) -> bool:
    """Whether the process of a lane has a block of a segment pinned."""
    connections = [lane] if lane.session is None else lane.session.connections.values()
    return any(pin.block.segment.number == segment for each in connections for pin in each.pins.values())


def _retire(lane: Connection, older: int, known: set[HandedOver]) -> None:
    """What is pinned on an older lane, and its process does not know of yet, is pinned here from now on."""
    old = None if lane.session is None else lane.session.connections.get(older)
    if old is None or old is lane or old.role is not Role.LANE:
        return  # it is over, and its pins with it
    for hand_over in [each for each in old.pins if each not in known]:
        lane.pins[hand_over] = old.pins.pop(hand_over)


def _hand_overs(told: list[int]) -> list[HandedOver]:
    if len(told) % 2:
        raise ProtocolViolation("a subscription without a token")
    return [(subscription, token >> OFFSET_BITS) for subscription, token in zip(told[::2], told[1::2], strict=True)]


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
    elif isinstance(effect, Keep) and peer.session is not None and peer.session.lends is not None:
        desk.blocks.drop(peer.session.lends, effect.segment)
    return Send(peer.id, failure(AccessRefused(reason)))


# -- calls ------------------------------------------------------------------------------------------------------------


def freed(desk: Desk, connection: Connection, request: frames.Freed, now: float) -> Act:
    session = connection.session
    lender = None if session is None else session.lends
    if lender is None:
        raise AccessRefused("a process that asks for its blocks has a lane, and segments there")
    timeout = checks.seconds(request.timeout, "timeout")
    desk.blocks.check_doubts(lender, request.seen, request.doubtful)

    def act() -> Reply | None:
        reply = _freed(desk, lender, request)
        if reply.freed or timeout == 0.0:
            return reply
        return desk.park_freed(ParkedFreed(connection, lender, request.seen), now, timeout)

    return act


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


VERBS: Final[dict[type, Verb]] = {
    frames.Freed: Change(freed),
    frames.ReadBlock: Look(read_block),
}
"""What a call connection may ask."""
