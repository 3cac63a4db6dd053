"""The kill points of a broker process inside the arena's code, as points_brokers has those of all planes."""

from __future__ import annotations

from typing import Any, Final

from tests.prove import points_arena_stirs as stirs
from tests.prove.planes import RING
from tests.prove.points_brokers import AFTER, BrokerPoint
from tests.prove.points_trap import Asked, Spot

_DESK: Final = "mpbroker.process.desk:Desk"
_MEMORY: Final = "mpbroker.process.memory"
_BLOCKS: Final = "mpbroker.process.blocks:Blocks"
_SEGMENTS: Final = "mpbroker.process.segments:Segments"
_SESSIONS: Final = "mpbroker.process.sessions:Sessions"


def _has_pins(asked: Asked, _: Any) -> bool:
    return bool(asked[1].pins)


def _is_a_lane(asked: Asked, _: Any) -> bool:
    return bool(asked[1].role == "lane")


POINTS: Final = [
    BrokerPoint(f"broker {where}", spot, stir, planes=RING)
    for where, spot, stir in (
        ("before it lets a lane in", Spot(f"{_MEMORY}:joined"), stirs.publishes_a_block),
        ("took a segment and has no descriptor of it", Spot(f"{_BLOCKS}.offer", AFTER), stirs.publishes_a_block),
        ("before it keeps a segment", Spot(f"{_SEGMENTS}.keep"), stirs.publishes_a_block),
        ("kept a segment and has not said so", Spot(f"{_SEGMENTS}.keep", AFTER), stirs.publishes_a_block),
        ("before it takes a block", Spot(f"{_BLOCKS}.claim"), stirs.publishes_a_block),
        ("took a block that is in no queue", Spot(f"{_BLOCKS}.claim", AFTER), stirs.publishes_a_block),
        ("before it pins what it hands over", Spot(f"{_DESK}._pin"), stirs.looks_at_a_block),
        ("pinned what it has not handed over", Spot(f"{_DESK}._pin", AFTER), stirs.looks_at_a_block),
        (
            "before it passes a segment",
            Spot("socket:send_fds", within=f"{_SEGMENTS}.carry_out"),
            stirs.looks_at_a_block,
        ),
        (
            "passed a segment and does not know it",
            Spot("socket:send_fds", AFTER, within=f"{_SEGMENTS}.carry_out"),
            stirs.looks_at_a_block,
        ),
        ("before it ends a pin", Spot(f"{_MEMORY}:_unpin"), stirs.lets_go_of_a_block),
        ("before it tells of a free block", Spot("mpbroker.process.blocks:Lender.tell"), stirs.lets_go_of_a_block),
        ("told of a free block", Spot(f"{_BLOCKS}.sweep", AFTER), stirs.lets_go_of_a_block),
        ("undoes the hand-over of a block", Spot(f"{_DESK}.undo"), stirs.puts_a_block_to_no_use),
        (
            "learns that a worker with pins has died",
            Spot(f"{_SESSIONS}._forget", only=lambda asked, _: _is_a_lane(asked, _) and _has_pins(asked, _)),
            stirs.loses_a_worker_with_pins,
        ),
        ("before it closes the arena of a dead publisher", Spot(f"{_BLOCKS}.end"), stirs.loses_a_publisher),
        ("before it lets go of a descriptor", Spot(f"{_SEGMENTS}.drop"), stirs.loses_a_publisher),
    )
]
