"""The kill points of publishers and consumers, which send without waiting, as points_clients has those of single calls.

Interrupted, the victim closes what it has: what a publisher took is published, once, and what was acked stays acked.
Killed, what was not sent is lost or comes back, and what the broker may have read is there whole or not at all.
"""

from __future__ import annotations

import select
import threading
import time
from typing import Any, Final

from tests.prove import points_pipe_deeds as deeds
from tests.prove.planes import RING, SOCKET, ring_in
from tests.prove.points_clients import AFTER, BEFORE, MIDWAY, ClientPoint
from tests.prove.points_trap import LIMIT_S, Asked, Spot

_PUBLISHER: Final = "mpbroker.pipeline.publisher:Publisher"
_CONSUMER: Final = "mpbroker.pipeline.consumer:Consumer"
_SETTLER: Final = "mpbroker.pipeline.settling:Settler"
_SENDING: Final = "mpbroker.process.publishing:ProcessPublishWire"
_FETCHING: Final = "mpbroker.process.consuming:ProcessFetchWire"
_ACKING: Final = "mpbroker.process.consuming:ProcessSettleWire"
_LINE: Final = "mpbroker.process.line:Line"
_SOCKET: Final = "mpbroker.process.channel:_Socket"
_RING: Final = "mpbroker.shm.ring:Ring"


def _answer_is_there(asked: Asked) -> None:
    """The broker did what was asked on the line of a wire, and said so."""
    channel = asked[0]._line.channel
    ring = ring_in(channel)
    if ring is None:
        found, _, _ = select.select([channel.sock], [], [], LIMIT_S)
        assert found, "no answer came"
        return
    deadline = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not ring.waiting():
        assert time.monotonic() < deadline, "no answer came"
        pause.wait(0.001)


def _answered(target: str, within: str = "", nth: int = 1) -> Spot:
    """It was sent, and the answer waits."""
    return Spot(target, AFTER, nth, within, ready=_answer_is_there)


def _something(_: Asked, result: Any) -> bool:
    return result is not None


def _has_noted(asked: Asked, _: Any) -> bool:
    return bool(asked[0].noted)


_UNSENT: Final = ("fresh fresh fresh", "fresh none none", "fresh fresh fresh")
_SENT: Final = ("fresh fresh fresh", "fresh none|fresh none|fresh", "fresh fresh fresh")
_ANSWERED: Final = ("fresh fresh fresh", "fresh fresh fresh", "fresh fresh fresh")

PUBLISHING: Final = [
    *(
        ClientPoint(f"client {where}", spot, deed, *fates)
        for where, spot, deed, fates in (
            (
                "opened a batch and put nothing into it",
                Spot(f"{_PUBLISHER}._begin", AFTER),
                deeds.streams,
                ("fresh fresh fresh", "fresh none none", "fresh none none"),
            ),
            ("has a batch and has not sent it", Spot(f"{_PUBLISHER}.flush"), deeds.streams, _UNSENT),
            ("took the line for its batch", Spot(f"{_SENDING}.take", AFTER), deeds.streams, _UNSENT),
            ("before a batch is sent", Spot(f"{_SENDING}.send"), deeds.streams, _UNSENT),
            ("sent a batch", Spot(f"{_SENDING}.send", AFTER), deeds.streams, _SENT),
            ("sent a batch, and the answer waits", _answered(f"{_SENDING}.send"), deeds.streams, _ANSWERED),
            (
                "read the answer to its batch",
                Spot(f"{_SENDING}.receive", AFTER, only=_something),
                deeds.streams,
                _ANSWERED,
            ),
            ("before it notes that its batch is confirmed", Spot(f"{_PUBLISHER}._confirm"), deeds.streams, _ANSWERED),
            ("before it puts its line back", Spot(f"{_SENDING}.put"), deeds.streams, _ANSWERED),
            ("put its line back", Spot(f"{_SENDING}.put", AFTER), deeds.streams, _ANSWERED),
            ("flushed", Spot(f"{_PUBLISHER}.flush", AFTER), deeds.streams, _ANSWERED),
            (
                "waited until there is room for another batch",
                Spot(f"{_PUBLISHER}._begin", AFTER, 2),
                deeds.streams_within_a_bound,
                ("fresh fresh fresh", "fresh fresh none", "fresh fresh none"),
            ),
            (
                "before it takes another line for an unconfirmed batch",
                Spot(f"{_SENDING}.take", BEFORE, 2),
                deeds.streams_on_a_line_that_breaks,
                _SENT,
            ),
            (
                "before an unconfirmed batch is sent again",
                Spot(f"{_SENDING}.send", BEFORE, 2),
                deeds.streams_on_a_line_that_breaks,
                _SENT,
            ),
            (
                "sent an unconfirmed batch again, and the answer waits",
                _answered(f"{_SENDING}.send", nth=2),
                deeds.streams_on_a_line_that_breaks,
                _ANSWERED,
            ),
            (
                "before a receipt waits",
                Spot(f"{_PUBLISHER}._await"),
                deeds.streams_for_a_receipt,
                ("fresh fresh", "fresh none", "fresh fresh"),
            ),
            ("before it closes its publisher", Spot(f"{_PUBLISHER}.close"), deeds.streams_and_closes, _UNSENT),
            (
                "flushed in the closing of its publisher",
                Spot(f"{_PUBLISHER}._end"),
                deeds.streams_and_closes,
                _ANSWERED,
            ),
            (
                "let go of its publisher's connection",
                Spot(f"{_LINE}.close", AFTER, within=f"{_PUBLISHER}._end"),
                deeds.streams_and_closes,
                _ANSWERED,
            ),
            (
                "before the thread of its publisher sends a batch",
                Spot(f"{_SENDING}.send", within=f"{_PUBLISHER}._tend"),
                deeds.streams_and_goes_on,
                ("fresh fresh", "fresh none", "fresh fresh"),
            ),
            (
                "whose publisher's thread sent a batch, and the answer waits",
                _answered(f"{_SENDING}.send", f"{_PUBLISHER}._tend"),
                deeds.streams_and_goes_on,
                ("fresh fresh", "fresh fresh", "fresh fresh"),
            ),
        )
    ),
    ClientPoint(
        "client sent half a batch",
        Spot(f"{_SOCKET}.sendall", MIDWAY, within=f"{_SENDING}.send"),
        deeds.streams,
        *_UNSENT,
        planes=SOCKET,
    ),
    ClientPoint(
        "client put half a batch in its ring",
        Spot(f"{_RING}.send", MIDWAY, within=f"{_SENDING}.send"),
        deeds.streams,
        *_UNSENT,
        planes=RING,
    ),
]

_HANDED: Final = ("acked acked fresh", "again again fresh")

FETCHING: Final = [
    ClientPoint(
        "worker before its consumer asks",
        Spot(f"{_FETCHING}.ask"),
        deeds.consumes,
        "acked acked fresh",
        "fresh fresh fresh",
        "fresh fresh fresh",
        "fresh fresh fresh",
        ready=3,
    ),
    ClientPoint(
        "worker waits for what its consumer asked for",
        Spot(f"{_FETCHING}.fetch", outside=True),
        deeds.consumes_what_comes,
        "acked",
        "fresh",
        "fresh",
        "again",
        coming=1,
    ),
    *(
        ClientPoint(f"worker {where}", spot, deeds.consumes, *_HANDED, raised, "again again fresh", ready=3)
        for where, spot, raised in (
            ("before its consumer reads what it was handed", _answered(f"{_FETCHING}.ask"), "fresh fresh fresh"),
            (
                "fetched and has not taken over what its consumer was handed",
                Spot(f"{_FETCHING}.fetch", AFTER),
                "fresh fresh fresh",
            ),
            ("took over and has not put its line back", Spot(f"{_FETCHING}.fetched"), "back back fresh"),
            ("took over and yielded nothing", Spot(f"{_CONSUMER}._fetch", AFTER), "back back fresh"),
            ("between two that its consumer yields", Spot(f"{_CONSUMER}._buffered", BEFORE, 2), "back back fresh"),
            ("before it acks what its consumer yielded", Spot(f"{_SETTLER}._ack_token"), "back back fresh"),
            ("noted one of two acks", Spot(f"{_SETTLER}._ack_token", AFTER), "acked back fresh"),
            ("noted its acks and sent none", Spot(f"{_SETTLER}.send", only=_has_noted), "acked acked fresh"),
            ("before a range of acks is sent", Spot(f"{_ACKING}._send"), "acked acked fresh"),
        )
    ),
    ClientPoint(
        "worker before its consumer takes back what it asked for ahead",
        Spot(f"{_FETCHING}.cancel", ready=_answer_is_there),
        deeds.consumes_ahead,
        "acked acked fresh",
        "again again again",
        "acked acked fresh",
        "again again again",
        ready=3,
    ),
    ClientPoint(
        "worker's consumer took back what it asked for ahead",
        Spot(f"{_FETCHING}.cancel", AFTER),
        deeds.consumes_ahead,
        "acked acked fresh",
        "again again fresh",
        "acked acked fresh",
        "again again fresh",
        ready=3,
    ),
]

SETTLING: Final = [
    *(
        ClientPoint(
            f"worker {where}",
            Spot(target, MIDWAY, within=f"{_ACKING}._send"),
            deeds.consumes,
            *_HANDED,
            "acked acked fresh",
            "again again fresh",
            ready=3,
            planes=planes,
        )
        for where, target, planes in (
            ("sent half a range of acks", f"{_SOCKET}.sendall", SOCKET),
            ("put half a range of acks in its ring", f"{_RING}.send", RING),
        )
    ),
    ClientPoint(
        "worker sent a range of acks, and the answer waits",
        _answered(f"{_ACKING}.ack"),
        deeds.consumes,
        "acked acked fresh",
        "acked acked fresh",
        "acked acked fresh",
        ready=3,
    ),
    ClientPoint(
        "worker read the answer to a range of acks",
        Spot(f"{_ACKING}._receive", AFTER),
        deeds.consumes,
        "acked acked fresh",
        "acked acked fresh",
        "acked acked fresh",
        ready=3,
    ),
    ClientPoint(
        "worker sent half of its acks",
        Spot(f"{_ACKING}.ack", BEFORE, 2, ready=_answer_is_there),
        deeds.consumes_twice,
        "acked acked acked acked",
        "acked acked again again",
        "acked acked acked acked",
        "acked acked again again",
        ready=4,
    ),
    *(
        ClientPoint(
            f"worker {where}", spot, deeds.consumes_some, "acked back back", kill, "acked back back", stop, ready=3
        )
        for where, spot, kill, stop in (
            ("before it closes its consumer", Spot(f"{_CONSUMER}.close"), "again again again", "again again again"),
            (
                "before its consumer gives back what it has",
                Spot(f"{_ACKING}.release"),
                "acked again again",
                "acked again again",
            ),
            (
                "whose consumer gave back what it has, and the answer waits",
                _answered(f"{_ACKING}._send", f"{_ACKING}.release"),
                "acked back back",
                "acked back back",
            ),
            (
                "whose consumer gave back what it has",
                Spot(f"{_ACKING}.release", AFTER),
                "acked back back",
                "acked back back",
            ),
            (
                "let go of its consumer's connection for acks",
                Spot(f"{_SETTLER}.let_go", AFTER),
                "acked back back",
                "acked back back",
            ),
        )
    ),
    ClientPoint(
        "worker before the thread of its consumer sends acks",
        Spot(f"{_ACKING}.ack", within=f"{_SETTLER}._tend"),
        deeds.consumes_and_goes_on,
        "acked fresh fresh",
        "again fresh fresh",
        "acked fresh fresh",
        "again fresh fresh",
        ready=3,
    ),
    ClientPoint(
        "worker whose consumer's thread sent acks, and the answer waits",
        _answered(f"{_ACKING}.ack", f"{_SETTLER}._tend"),
        deeds.consumes_and_goes_on,
        "acked fresh fresh",
        "acked fresh fresh",
        "acked fresh fresh",
        ready=3,
    ),
]

POINTS: Final = [*PUBLISHING, *FETCHING, *SETTLING]
