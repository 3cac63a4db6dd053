"""The kill points of a broker process inside the code of rings, as points_brokers has those of all planes."""

from __future__ import annotations

from typing import Any, Final

from tests.prove import points_stirs as stirs
from tests.prove.planes import RING
from tests.prove.points_brokers import AFTER, BrokerPoint, Phase
from tests.prove.points_trap import Asked, Spot

_LOOP: Final = "mpbroker.process.loop:Loop"
_ACCEPT: Final = "mpbroker.process.segments:accept"
_RINGS: Final = "mpbroker.process.rings:Rings"
_END: Final = "mpbroker.shm.link:RingEnd"
_SEGMENT: Final = "mpbroker.shm.segment:Segment"


def _all(asked: Asked, count: Any) -> bool:
    return bool(count == len(asked[1]))


SHARING: Final = [
    BrokerPoint(f"broker {where}", spot, stirs.connects, planes=RING)
    for where, spot in (
        ("before it shares memory with a client", Spot(_ACCEPT)),
        ("mapped a client's segment and has none for it", Spot(f"{_SEGMENT}.attach", AFTER, within=_ACCEPT)),
        ("made a segment and has not sent it", Spot(f"{_SEGMENT}.create", AFTER, within=_ACCEPT)),
        ("sent its segment and does not know it", Spot(_ACCEPT, AFTER)),
        ("goes through a ring and does not look at it", Spot("mpbroker.process.link:Link.goes_through", AFTER)),
    )
]

SERVING: Final = [
    BrokerPoint(f"broker {where}", spot, stir, planes=RING)
    for where, spot, stir in (
        ("before it takes a bell from a socket", Spot(f"{_END}.hear"), stirs.publishes),
        ("heard a bell and has not looked", Spot(f"{_RINGS}.rung", AFTER), stirs.publishes),
        (
            "took a request out of a ring",
            Spot(f"{_END}.recv_into", AFTER, only=lambda _, count: count),
            stirs.publishes,
        ),
        ("put a reply in a ring and has not rung", Spot(f"{_END}.send", AFTER, only=_all), stirs.publishes),
        ("before it rings for a reply", Spot(f"{_END}.wake"), stirs.publishes),
        ("rang for a reply", Spot(f"{_END}.wake", AFTER), stirs.publishes),
        ("before it sleeps for a ring", Spot(f"{_END}.arm"), stirs.publishes),
        (
            "said that it sleeps for a ring and has not looked a last time",
            Spot("mpbroker.shm.ring:Ring.announce", AFTER, within=f"{_END}.arm"),
            stirs.publishes,
        ),
        ("sleeps for a ring", Spot(f"{_END}.arm", AFTER, only=lambda _, sleeps: sleeps), stirs.publishes),
        ("before it lets go of a dead worker's ring", Spot(f"{_END}.close"), stirs.loses_a_worker),
    )
]

ENDING: Final = [
    BrokerPoint(f"broker {where}", spot, phase=Phase.END, planes=RING)
    for where, spot in (
        ("put its last words in one ring", Spot(f"{_END}.send", AFTER, 1, f"{_LOOP}._farewell")),
        ("closed one of its rings", Spot(f"{_END}.close", AFTER, 1, f"{_LOOP}._close_all")),
    )
]

POINTS: Final = [*SHARING, *SERVING, *ENDING]
