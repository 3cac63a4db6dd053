"""The targets, and how much of the time each gets.

Imports nothing that is fuzzed: who fuzzes imports that under watch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"

KEPT_FILES: Final = 60
KEPT_BYTES: Final = 100 * 1024
"""Bounds of one target's kept corpus: what is replayed on every run of the tests, and lies in every checkout."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a target is fuzzed.

    share: of the time, in parts of the sum of all; targets that are quick get more, where it buys many executions.
    max_bytes: of an input; nothing new is beyond that.
    words: what inputs are made of.
    watched: the modules whose branches guide the fuzzer; watching costs time. (What is written in C is watched by way
        of `shape`.)
    """

    share: int
    max_bytes: int
    words: tuple[bytes, ...] = ()
    watched: tuple[str, ...] = ()


_HELLO_WORDS: Final = (b"\xa5Hello", b"\xa5Proof", b"\xa4call", b"\xa8presence", b"\xa5admin")
_NUMBER_WORDS: Final = (
    b"\xc0",
    b"\xc2",
    b"\xc3",
    b"\xcb\x7f\xf8\0\0\0\0\0\0",
    b"\xcb\xff\xf0\0\0\0\0\0\0",
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7),
    b"\xdc\x01\x00",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\0\0\0\1",
    b"\xc7\x01\x01N",
    b"\xd4\x01\x00",
    b"\xc4\x01x",
)
_REQUEST_WORDS: Final = (
    *(
        bytes([0xA0 | len(name)]) + name.encode()
        for name in (
            *("CreateTopic", "DeleteTopic", "Topics", "Subscriptions", "Subscribe", "FindSubscription", "Unsubscribe"),
            *("ReleaseRanges",),
            *(
                "Publish",
                "Poll",
                "Ack",
                "AckTokens",
                "AckRanges",
                "Nack",
                "Release",
                "Reject",
                "Extend",
                "RetryHeld",
                "Offer",
            ),
            *("Expire", "NextDeadline", "Stats", "WaitIdle", "Attach", "Detach", "DeadLetters", "Redrive", "Purge"),
            *("Status", "Stop", "Goodbye", "filter", "ack_timeout", "max_deliveries", "retry", "max_queue"),
            *("overflow", "expression", "function", "none", "reject", "drop_oldest", "dead_letter", "wait"),
        )
    ),
    *_NUMBER_WORDS,
)
_REPLY_WORDS: Final = (
    *(
        bytes([0xA0 | len(name)]) + name.encode()
        for name in (
            *("Challenge", "Welcome", "Done", "Number", "Moment", "Text", "Answers", "Subscribed", "Published"),
            *("Granted", "StatsReply", "TopicsReply", "SubscriptionsReply", "Letters", "Report", "Failed", "Gone"),
            *("TypeError", "InvalidName", "QueueFull", "MpbrokerError", "CallFailed"),
        )
    ),
    *_NUMBER_WORDS,
)
_FILTER_WORDS: Final = tuple(
    word.encode()
    for word in (
        *("headers", "headers.", "headers:", "hasPrefix", "hasPrefix(headers.", " AND ", " OR ", "NOT ", "-", "(", ")"),
        *("=", "!=", ",", '"', '"x"', "\\x41", "\\377", "\\u00e9", "\\ud800", '\\"', "\\n", "and", "\ufffd", "''"),
    )
)
_JSON_WORDS: Final = (
    *(b'"pid":', b'"version":', b'"protocol":', b'"incarnation":', b'"started":', b'"name":', b'"base":', b'"path":'),
    *(b'"manual_time":', b'"max_frame_bytes":', b'"max_connections":', b'"filter_modules":', b'"log_level":'),
    *(
        b'"log_file":',
        b'"stderr":',
        b'"folder":',
        b'"kind":',
        b'"args":',
        b"null",
        b"true",
        b"NaN",
        b"1e999",
        b"\\ud800",
    ),
    *(b"[[[[[[[[", b'{"x":', b"}", b"__main__"),
)

_SESSIONS: Final = tuple(
    f"mpbroker.process.{name}" for name in ("sessions", "desk", "verbs", "reports", "waiting", "clients")
)

TARGETS: Final[dict[str, Shape]] = {
    "hello": Shape(10, 400, (*_HELLO_WORDS, *_NUMBER_WORDS), ("mpbroker.process.handshake",)),
    "request": Shape(20, 600, _REQUEST_WORDS, ("mpbroker.process.frames",)),
    "reply": Shape(18, 600, _REPLY_WORDS, ("mpbroker.process.frames", "mpbroker.process.channel")),
    "framing": Shape(
        6,
        160,
        (b"\0\0\0\0", b"\1\0\0\0", b"\xff\xff\xff\xff", b"\xe8\3\0\0", b"\xe9\3\0\0"),
        ("mpbroker.process.link", "mpbroker.process.channel"),
    ),
    "payloads": Shape(10, 1200, _NUMBER_WORDS, ("mpbroker.process.payloads", "mpbroker.process.encoded")),
    "filters": Shape(10, 400, _FILTER_WORDS, ("mpbroker.filters",)),
    "naming": Shape(4, 4200, _JSON_WORDS, ("mpbroker.process.naming", "mpbroker.process.private")),
    "config": Shape(6, 400, _JSON_WORDS, ("mpbroker.process.config", "mpbroker.process.limits", "mpbroker.checks")),
    "history": Shape(4, 600, _NUMBER_WORDS, ("mpbroker.testing.history",)),
    "ring": Shape(
        8,
        200,
        (),
        (
            "mpbroker.shm.ring",
            "mpbroker.shm.link",
            "mpbroker.process.link",
            "mpbroker.process.rings",
            "mpbroker.process.loop",
        ),
    ),
    "sessions": Shape(12, 500, _REQUEST_WORDS, _SESSIONS),
}
"""By the name of its module in ``tests.fuzz.targets``."""
