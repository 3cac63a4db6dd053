"""The kill points of client and worker processes inside the code of rings, as points_clients has those of all planes.

What must become of a message is the same as at the equal place on a socket: bytes that are in memory and of which
nobody was told are bytes in a socket that nobody has read.
"""

from __future__ import annotations

from typing import Any, Final

from mpbroker.shm.stream import RingStream
from tests.prove import points_deeds as deeds
from tests.prove.planes import RING
from tests.prove.points_clients import AFTER, BEFORE, MIDWAY, ClientPoint, in_call
from tests.prove.points_trap import Asked, Spot, When

_CHANNEL: Final = "mpbroker.process.channel:Channel"
_SOCKET: Final = "mpbroker.process.channel:_Socket"
_SHARE: Final = "mpbroker.process.channel:share"
_STREAM: Final = "mpbroker.shm.stream:RingStream"
_RING: Final = "mpbroker.shm.ring:Ring"
_SEGMENT: Final = "mpbroker.shm.segment:Segment"


def _partly(kind: str, target: str) -> Spot:
    """Bytes of which there was room for some."""
    spot = in_call(kind, target, AFTER)
    return Spot(spot.target, AFTER, 1, spot.within, spot.outer, only=_is_part)


def _is_part(asked: Asked, count: Any) -> bool:
    return bool(0 < count < len(asked[1]))


def _some(kind: str, target: str) -> Spot:
    """Bytes that were there."""
    spot = in_call(kind, target, AFTER)
    return Spot(spot.target, AFTER, 1, spot.within, spot.outer, only=lambda _, count: count)


def _woken(target: str, when: When) -> Spot:
    """Where it was woken for a reply, and for nothing less."""
    spot = in_call("Poll", target, when)
    return Spot(spot.target, when, 1, spot.within, spot.outer, only=_has_bytes)


def _has_bytes(asked: Asked, _: Any) -> bool:
    found = asked[0]
    return bool((found._live() if isinstance(found, RingStream) else found).waiting())


SHARING: Final = [
    ClientPoint(f"client {where}", spot, deeds.connects, "fresh", "none", "none", planes=RING)
    for where, spot in (
        ("before it offers shared memory", Spot(f"{_CHANNEL}.share")),
        ("before it makes its segment", Spot(f"{_SEGMENT}.create")),
        ("made its segment", Spot(f"{_SEGMENT}.create", AFTER)),
        ("before it sends its segment", Spot("socket:send_fds", within=_SHARE)),
        ("sent its segment", Spot("socket:send_fds", AFTER, within=_SHARE)),
        ("before it maps the broker's segment", Spot(f"{_SEGMENT}.attach", within=_SHARE)),
        ("mapped the broker's segment", Spot(f"{_SEGMENT}.attach", AFTER, within=_SHARE)),
        ("has a ring that its connection does not know", Spot(_SHARE, AFTER)),
        ("goes through a ring and called nothing", Spot(f"{_CHANNEL}.share", AFTER)),
    )
]

_SENT: Final = ("fresh fresh fresh", "fresh none|fresh none", "fresh none|fresh none")
_UNSENT: Final = ("fresh fresh fresh", "fresh none none", "fresh none none")
_LARGE_UNSENT: Final = ("fresh fresh", "none none", "none none")
_ANSWERED: Final = ("fresh fresh fresh", "fresh fresh none", "fresh fresh none")

PUBLISHING: Final = [
    ClientPoint(f"client {where}", spot, deed, *fates, planes=RING)
    for where, spot, deed, fates in (
        (
            "put half a publish in its ring",
            in_call("Publish", f"{_RING}.send", MIDWAY),
            deeds.publishes,
            _UNSENT,
        ),
        (
            "put a publish in its ring and has not looked whether the broker sleeps",
            in_call("Publish", f"{_RING}.send", AFTER),
            deeds.publishes_to_a_sleeper,
            _SENT,
        ),
        (
            "before it rings for its publish",
            in_call("Publish", f"{_STREAM}._ring_the_bell", BEFORE),
            deeds.publishes_to_a_sleeper,
            _SENT,
        ),
        (
            "rang for its publish",
            in_call("Publish", f"{_STREAM}._ring_the_bell", AFTER),
            deeds.publishes_to_a_sleeper,
            _SENT,
        ),
        (
            "took the reply to its publish out of its ring",
            _some("Publish", f"{_RING}.receive"),
            deeds.publishes,
            _ANSWERED,
        ),
        (
            "between head and body of a large frame in its ring",
            in_call("Publish", f"{_STREAM}.sendall", AFTER),
            deeds.publishes_many,
            _LARGE_UNSENT,
        ),
        (
            "filled its ring with the beginning of a large frame",
            _partly("Publish", f"{_RING}.send"),
            deeds.publishes_many,
            _LARGE_UNSENT,
        ),
        (
            "before it closes its ring",
            Spot(f"{_STREAM}.close"),
            deeds.publishes_and_closes,
            ("fresh", "fresh", "fresh"),
        ),
        (
            "closed its socket and has its memory",
            Spot(f"{_SOCKET}.close", AFTER, within=f"{_STREAM}.close"),
            deeds.publishes_and_closes,
            ("fresh", "fresh", "fresh"),
        ),
    )
]

POLLING: Final = [
    ClientPoint(
        "worker said that it sleeps and does not yet",
        in_call("Poll", f"{_RING}.announce", AFTER),
        deeds.waits,
        "acked",
        "fresh",
        "fresh",
        "again",
        coming=1,
        parks=True,
        planes=RING,
    ),
    *(
        ClientPoint(
            f"worker {where}",
            spot,
            deeds.waits,
            "acked",
            "again",
            "fresh",
            "again",
            coming=1,
            fed=True,
            planes=RING,
        )
        for where, spot in (
            ("was woken and took no bell", _woken(f"{_STREAM}._hear", BEFORE)),
            ("was woken and has not looked", _woken(f"{_STREAM}._hear", AFTER)),
            ("was woken and still says that it sleeps", _woken(f"{_RING}.wakes", BEFORE)),
        )
    ),
    *(
        ClientPoint(
            f"worker {where}",
            spot,
            deeds.works,
            "acked acked fresh",
            "again|fresh again|fresh fresh",
            "fresh fresh fresh",
            "again again fresh",
            ready=3,
            bulk=deeds.LARGE_BYTES,
            planes=RING,
        )
        for where, spot in (
            ("has some of what it was handed in its ring", in_call("Poll", f"{_STREAM}.recv_into", AFTER)),
            ("made room in its ring and has not rung", _some("Poll", f"{_RING}.receive")),
        )
    ),
]

SETTLING: Final = [
    ClientPoint(
        "worker put half an ack in its ring",
        in_call("AckTokens", f"{_RING}.send", MIDWAY),
        deeds.acks,
        "acked acked fresh",
        "again again fresh",
        "back back fresh",
        "again again fresh",
        ready=3,
        planes=RING,
    ),
    ClientPoint(
        "worker put an ack in its ring and has not looked whether the broker sleeps",
        in_call("AckTokens", f"{_RING}.send", AFTER),
        deeds.acks,
        "acked acked fresh",
        "acked|again again fresh",
        "acked|back back fresh",
        "acked|again again fresh",
        ready=3,
        planes=RING,
    ),
    ClientPoint(
        "worker before it closes the ring through which it holds",
        Spot(f"{_STREAM}.close"),
        deeds.closes,
        "acked back fresh",
        "acked back fresh",
        "acked back fresh",
        ready=3,
        planes=RING,
    ),
]

POINTS: Final = [*SHARING, *PUBLISHING, *POLLING, *SETTLING]
