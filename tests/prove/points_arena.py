"""The kill points of client and worker processes inside the arena's code, as points_clients has those of all planes.

What must become of a message is the same as at the equal place of a small one: a block that no publish brought is no
message, and one that was accepted is one, whoever wrote it and whatever became of that. What is done at a point in the
thread of a lane is done to its process.
"""

from __future__ import annotations

from typing import Any, Final

from tests.prove import points_arena_deeds as deeds
from tests.prove.planes import RING
from tests.prove.points_clients import AFTER, BEFORE, ClientPoint, answered_to, in_call, reply_waits
from tests.prove.points_trap import Asked, Spot, When

_CHANNEL: Final = "mpbroker.process.channel:Channel"
_LENDING: Final = "mpbroker.process.lending:Lending"
_HOLDING: Final = "mpbroker.process.holding:Holding"
_LANE: Final = "mpbroker.process.lane:Lane"
_SEGMENT: Final = "mpbroker.shm.segment:Segment"


def _on_the_lane(kind: str, when: When) -> Spot:
    return Spot(f"{_LANE}.ask", when, only=lambda asked, _: _kind(asked) == kind)


def _kind(asked: Asked) -> str:
    return type(asked[1]).__name__


def _is_some(_: Asked, result: Any) -> bool:
    return result is not None


_FIRST: Final = ("fresh", "none", "none")

LENDING: Final = [
    ClientPoint(f"client {where}", spot, deeds.publishes_its_first_block, *_FIRST, planes=RING)
    for where, spot in (
        ("before it has an arena", Spot("mpbroker.process.presence:Session.place")),
        ("before it opens its lane", Spot(f"{_HOLDING}._current")),
        ("opened its lane", Spot(f"{_HOLDING}._current", AFTER)),
        ("before it makes a segment of its arena", Spot(f"{_SEGMENT}.create", within=f"{_LENDING}._make_segment")),
        ("made a segment of its arena", Spot(f"{_SEGMENT}.create", AFTER, within=f"{_LENDING}._make_segment")),
        ("offered a segment and does not know its number", _on_the_lane("OfferSegment", AFTER)),
        ("has a segment that its arena does not know", Spot("mpbroker.shm.view:Mapped.__init__", AFTER)),
        ("has a segment and no block of it", Spot(f"{_LENDING}._grow", AFTER)),
    )
]

_UNSENT: Final = ("fresh fresh fresh", "fresh none none", "fresh none none")
_SENT: Final = ("fresh fresh fresh", "fresh none|fresh none", "fresh none|fresh none")
_ANSWERED: Final = ("fresh fresh fresh", "fresh fresh none", "fresh fresh none")

PUBLISHING: Final = [
    ClientPoint(f"client {where}", spot, deeds.publishes_blocks, *fates, planes=RING)
    for where, spot, fates in (
        ("before it takes a block", Spot(f"{_LENDING}._take"), _UNSENT),
        ("has a block and has written nothing", Spot(f"{_LENDING}._lend", AFTER), _UNSENT),
        ("wrote a block and has not sent its frame", Spot(f"{_LENDING}._kept", AFTER), _UNSENT),
        ("sent the frame of a block", in_call("Publish", f"{_CHANNEL}.send", AFTER), _SENT),
        ("published a block, and the reply waits", reply_waits("Publish"), _ANSWERED),
        ("published a block, and its caller has not heard", answered_to("Publish"), _ANSWERED),
        ("before it asks what is free", Spot(f"{_LENDING}._ask"), _UNSENT),
        ("asked what is free, and the reply waits", reply_waits("Freed"), _UNSENT),
        ("heard what is free and gave nothing back", Spot(f"{_LENDING}._hear"), _UNSENT),
        ("took back a block that is still in doubt", Spot("mpbroker.shm.arena:Arena.give_back", AFTER), _UNSENT),
        ("took back all that is free", Spot(f"{_LENDING}._hear", AFTER), _UNSENT),
    )
]

LOANS: Final = [
    ClientPoint(f"client {where}", spot, deeds.publishes_a_loan, "fresh fresh", "fresh none", "fresh none", planes=RING)
    for where, spot in (
        ("filled a loan and does not publish it", Spot("mpbroker.loans:Loan.take")),
        ("gave a loan out of its hands", Spot("mpbroker.loans:Loan.take", AFTER)),
        ("published a loan, and the reply waits", in_call("Publish", f"{_CHANNEL}.send", AFTER, 1)),
    )
]

_TAKEN: Final = ("acked acked fresh", "again again fresh")
_UNDONE: Final = (*_TAKEN, "fresh fresh fresh", "again again fresh")
_DROPPED: Final = (*_TAKEN, "back back fresh", "again again fresh")
_ACKED: Final = ("acked acked fresh", "acked acked fresh", "acked acked fresh", "acked acked fresh")

LOOKING: Final = [
    ClientPoint(f"worker {where}", spot, deed, *fates, ready=3, bulk=deeds.BLOCK_BYTES, planes=RING)
    for where, spot, deed, fates in (
        ("was handed a block and has no lane", Spot(f"{_HOLDING}.pin"), deeds.works_on_blocks, _UNDONE),
        ("opened its lane for a pin", Spot(f"{_HOLDING}._current", AFTER), deeds.works_on_blocks, _UNDONE),
        ("noted a pin, and its caller has nothing", Spot(f"{_HOLDING}.pin", AFTER), deeds.works_on_blocks, _UNDONE),
        ("before it asks for a map", Spot(f"{_HOLDING}._map"), deeds.works_on_blocks, _DROPPED),
        ("was passed a descriptor", _on_the_lane("MapSegment", AFTER), deeds.works_on_blocks, _DROPPED),
        ("has a map that nobody knows", Spot(f"{_HOLDING}._map", AFTER), deeds.works_on_blocks, _DROPPED),
        ("before it looks at a block", Spot("mpbroker.shm.view:Mapped.look"), deeds.works_on_blocks, _DROPPED),
        (
            "has a view and nothing made of it",
            Spot("mpbroker.shm.view:Mapped.look", AFTER),
            deeds.works_on_blocks,
            _DROPPED,
        ),
        ("before it tells of a pin that ended", _on_the_lane("Unpin", BEFORE), deeds.works_on_blocks, _ACKED),
        ("told of a pin that ended", _on_the_lane("Unpin", AFTER), deeds.works_on_blocks, _ACKED),
        (
            "looks at a block that it has acked",
            in_call("Topics", f"{_CHANNEL}.send", AFTER),
            deeds.keeps_blocks,
            _ACKED,
        ),
    )
]

POINTS: Final = [*LENDING, *PUBLISHING, *LOANS, *LOOKING]
