"""Requests that are well formed, and mostly about things that exist: a few bytes say one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from mpbroker.process import frames
from mpbroker.process.frames import Frame
from tests.fuzz.draw import Draw
from tests.process.driver import INCARNATION, placed, publish, subscribe

TOPICS: Final = ("t", "t", "u", "", "no/name")
NAMES: Final = ("a", "b", "c", "$d")
MEMBERS: Final = ("w", "v", "$dispatcher-1", "$dispatcher-2", "")
SECONDS: Final = (0.0, 0.25, 1.0, 5.0, 1e308, -1.0, float("nan"), float("inf"))
TIMEOUTS: Final = (0.0, 0.0, 1.0, 2.5, None, float("nan"))
COUNTS: Final = (1, 2, 3, 5, 100, 300, 0, -1, 2**63 - 1)
LIMITS: Final = (None, 1, 2, 5, 0)
NUMBERS: Final = (1, 1, 2, 3, 4, 0, -1, 2**64 - 1)
SEQUENCES: Final = (1, 2, 3, 4, 5, 6, 7, 8, 0, 300, 2**64 - 1)
TEXTS: Final = ("", "trouble", "é" * 5000, "\0")
FILTERS: Final = ("", 'headers.k = "x"', "NOT headers:k", "headers:", "module:function")
SEGMENTS: Final = (1, 1, 2, 3, 0, -1)
OFFSETS: Final = (0, 0, 4096, 8192, 65536, 1, -4096, 2**62)
ONE: Final = msgspec.Raw(b"\x01")


def _headers(draw: Draw) -> dict[str, str]:
    return draw.one_of(({}, {"k": "x"}, {"k": "y", "é": ""}))


def _subscribe(draw: Draw) -> Frame:
    values: dict[str, object] = {
        "ack_timeout": draw.one_of(SECONDS),
        "max_deliveries": draw.one_of(COUNTS),
        "max_queue": draw.one_of(COUNTS),
        "overflow": draw.one_of(("dead_letter", "drop_oldest", "reject", "wait", "other")),
        "retry": draw.one_of((None, frames.Retry(2, 0.5, 2.0, 30.0), frames.Retry(0, -1.0, float("nan"), 0.0))),
        "filter": draw.one_of(FILTERS),
    }
    which = draw.byte()
    given = {name: value for bit, (name, value) in enumerate(values.items()) if which >> bit & 1}
    if given.get("overflow") == "wait":
        given["overflow_wait"] = draw.one_of((0.5, 10.0, 0.0, float("nan")))
    request = subscribe(draw.one_of(TOPICS), draw.one_of(NAMES), push=which > 200, **given)
    if which & 64:
        return msgspec.structs.replace(request, filter_kind=draw.one_of(("none", "function", "other")))
    return request


def _publish(draw: Draw) -> Frame:
    count = draw.one_of((1, 1, 2, 3, 20, 0, 300))
    return publish(draw.one_of(TOPICS), *[None] * count, priority=draw.one_of((1, 1, 0, 3, 4, -1)), **_headers(draw))


def _poll(draw: Draw) -> Frame:
    now = draw.one_of((None, None, None, 1.0, 200.0, float("nan")))
    number, member = draw.one_of(NUMBERS), draw.one_of(MEMBERS)
    return frames.Poll(number, member, now, draw.one_of(COUNTS), draw.one_of(TIMEOUTS))


def _target(draw: Draw) -> tuple[int, str | None]:
    """Held by a member, or by its token."""
    member = draw.one_of((None, None, "w", "v", "$dispatcher-1", ""))
    return (_token(draw), None) if member is None else (draw.one_of(SEQUENCES), member)


def _token(draw: Draw) -> int:
    at = draw.byte()
    return 2**63 if at == 255 else (at >> 3) << 8 | at & 7


def _ranges(draw: Draw) -> list[int]:
    ranges = []
    for _ in range(draw.below(4)):
        first = _token(draw)
        ranges += [first, first + draw.one_of((0, 1, 2, 254, 255, 256, -1))]
    return ranges[draw.one_of((0, 0, 0, 1)) :]


def _letters(draw: Draw) -> tuple[str, list[int] | None, int | None]:
    name = draw.one_of(("t/a", "t/b", "u/a", "t", "/"))
    return name, draw.one_of((None, None, [1, 2], [])), draw.one_of(LIMITS)


def _numbered(draw: Draw) -> Frame:
    return msgspec.structs.replace(_publish(draw), number=draw.one_of((1, 2, 3, 4, 0, -1, 2**63)))


def _placed(draw: Draw) -> Frame:
    sizes = [draw.one_of((5000, 1, 0, 65536, -1, 2**62)) for _ in range(1 + draw.below(2))]
    return placed(draw.one_of(TOPICS), draw.one_of(SEGMENTS), draw.one_of(SEQUENCES), draw.one_of(OFFSETS), *sizes)


def _doubts(draw: Draw) -> list[int]:
    told: list[int] = []
    for _ in range(draw.below(3)):
        told += [draw.one_of(SEGMENTS), draw.one_of(OFFSETS), draw.one_of(SEQUENCES)]
    return told[draw.one_of((0, 0, 0, 1)) :]


def _hand_overs(draw: Draw) -> list[int]:
    told: list[int] = []
    for _ in range(draw.below(3)):
        told += [draw.one_of(NUMBERS), _token(draw)]
    return told[draw.one_of((0, 0, 0, 1)) :]


_MAKERS: Final[tuple[Callable[[Draw], Frame], ...]] = (
    _publish,
    _poll,
    lambda draw: frames.AckTokens(draw.one_of(NUMBERS), [_token(draw) for _ in range(draw.below(5))]),
    _subscribe,
    lambda draw: frames.Ack(
        draw.one_of(NUMBERS), draw.one_of(MEMBERS), [draw.one_of(SEQUENCES) for _ in range(draw.below(5))]
    ),
    lambda draw: frames.Nack(
        draw.one_of(NUMBERS),
        *_target(draw),
        draw.one_of((None, *SECONDS)),
        draw.one_of(TEXTS),
        draw.one_of((None, 1.0)),
    ),
    lambda draw: frames.Release(draw.one_of(NUMBERS), *_target(draw)),
    lambda draw: frames.Reject(draw.one_of(NUMBERS), *_target(draw), draw.one_of(TEXTS)),
    lambda draw: frames.Extend(draw.one_of(NUMBERS), *_target(draw), draw.one_of((None, *SECONDS)), None),
    lambda draw: frames.RetryHeld(draw.one_of(NUMBERS), _token(draw), draw.one_of(TEXTS)),
    lambda draw: frames.Attach(draw.one_of(NUMBERS)),
    lambda draw: frames.Detach(draw.one_of(NUMBERS), draw.one_of(MEMBERS)),
    lambda draw: frames.WaitIdle(draw.one_of(NUMBERS), draw.one_of(TIMEOUTS)),
    lambda draw: frames.Offer(
        draw.one_of(NUMBERS),
        ONE,
        _headers(draw),
        draw.one_of((1, 0, 9)),
        0.0,
        n := draw.one_of(SEQUENCES),
        f"{INCARNATION}-{n}",
    ),
    lambda draw: frames.Redrive(*_letters(draw)),
    lambda draw: frames.Purge(*_letters(draw)),
    lambda draw: frames.DeadLetters(
        draw.one_of((None, "t/a", "t/b", "x")), draw.one_of(LIMITS), draw.one_of((0, 1, -1))
    ),
    lambda draw: frames.Expire(draw.one_of((None, *NUMBERS)), draw.one_of((None, 1.0, 200.0))),
    lambda draw: frames.Stats(draw.one_of(NUMBERS), draw.one_of((None, 1.0))),
    lambda draw: frames.Unsubscribe(draw.one_of(TOPICS), draw.one_of(NAMES)),
    lambda draw: frames.CreateTopic(draw.one_of(TOPICS), draw.below(2) == 1),
    lambda draw: frames.DeleteTopic(draw.one_of(TOPICS)),
    lambda draw: frames.FindSubscription(draw.one_of(TOPICS), draw.one_of(NAMES)),
    lambda draw: frames.Subscriptions(draw.one_of((None, *TOPICS))),
    lambda _: frames.Topics(),
    lambda _: frames.NextDeadline(),
    lambda _: frames.Status(),
    lambda _: frames.Goodbye(),
    lambda _: frames.Stop(),
    # Behind the others, so that what is kept says what it said.
    lambda draw: frames.AckRanges(draw.one_of(NUMBERS), _ranges(draw)),
    lambda draw: frames.ReleaseRanges(draw.one_of(NUMBERS), _ranges(draw)),
    _numbered,
    _placed,
    lambda draw: frames.OfferSegment(draw.one_of((65536, 65536, 4096, 0, 1, -4096, 2**62))),
    lambda draw: frames.MapSegment(draw.one_of(SEGMENTS)),
    lambda draw: frames.DropSegment(draw.one_of(SEGMENTS)),
    lambda draw: frames.Unpin(_hand_overs(draw)),
    lambda draw: frames.RetireLane(draw.below(8), _hand_overs(draw)),
    lambda draw: frames.Freed(draw.below(5) - 1, _doubts(draw), draw.one_of((0.0, 0.0, 1.0, -1.0, float("nan")))),
    lambda draw: frames.ReadBlock(
        draw.one_of(SEGMENTS), draw.one_of(SEQUENCES), draw.one_of(OFFSETS), draw.one_of((1, 5000, 0, -1, 2**62))
    ),
)


def request_in(draw: Draw) -> Frame:
    """The request that the next bytes say."""
    return draw.one_of(_MAKERS)(draw)
