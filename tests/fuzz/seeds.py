"""Inputs to begin with, made from what the product says itself: the kept corpus is gathered from them."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from mpbroker.process import frames
from mpbroker.process.config import NotStarted, Started, check_config, line_of
from mpbroker.process.frames import Frame
from mpbroker.process.naming import BrokerInfo
from mpbroker.process.payloads import encode_batches
from mpbroker.testing import history

S = TypeVar("S", bound=msgspec.Struct)

_PAYLOADS: Final[tuple[list[Any], ...]] = (
    [1],
    [None, True, 1.5, "é", b"x", 2**64 - 1, -(2**63)],
    [{"a": [1]}],
    [float("nan")] * 3,
    [None] * 16,
    [None] * 256,
    [None] * 257,
    [],
)
_FILTERS: Final = (
    'headers.type = "created" AND NOT headers.region = "eu"',
    'headers:a OR (headers:b AND headers.c != "x")',
    'hasPrefix(headers."k", "\\x41\\101\\u00e9\\n") OR -headers:k',
    'NOT (headers:a AND (headers:b OR headers.a = ""))',
    "headers.k == 'v'",
    'headers.k = "',
    "attributes:k",
    'hasPrefix(headers.k, "")',
    "headers:a AND headers:b OR headers:c",
    "(" * 65 + "headers:a" + ")" * 65,
    " OR ".join([f"headers:{number}" for number in range(30)]),
)
_BROKEN: Final = (b"", b"\xc1", b"\x92\xa4Text", b"\x92\xa4Text\xa1\xff", b"\x91" * 2000)
_INFO: Final = BrokerInfo(4711, "0.1.0", 1, "0123456789abcdef", 1.5)


def seeds(name: str) -> list[bytes]:
    """Of one target; none for what has none."""
    match name:
        case "hello":
            good = frames.Hello(frames.PROTOCOL, "0.1.0", "call", bytes(16), 1, 0, bytes(32))
            other = msgspec.msgpack.encode(["Hello", frames.PROTOCOL + 1, "9.9" * 30, {"new": 1}])
            newer = msgspec.structs.replace(good, protocol=frames.PROTOCOL + 1)
            return [*encoded([good, newer, frames.Proof(bytes(32))]), other]
        case "request":
            return [*_BROKEN, *encoded(each for kind in get_args(frames.Request) for each in samples(kind))]
        case "reply":
            return [*_BROKEN, *encoded(each for kind in get_args(frames.Reply) for each in samples(kind))]
        case "framing":
            stream = b"\1\0\0\0a" + bytes(4) + b"\4\0\0\0bcde" + b"\5\0\0\0fghij" + b"\xe8\3\0\0" + bytes(1000)
            return [bytes([limit, len(cuts), *cuts]) + stream for limit in range(6) for cuts in ((), (1,), (3, 0, 9))]
        case "payloads":
            blobs = [blob for payloads in _PAYLOADS for blob in encode_batches(payloads)]
            return [*[bytes([1, 2]) + blob for blob in blobs], b"\0\0\x90", b"\0\0\xdd\0\0\0\2\1\2", b"\0\0\xd4\2\0"]
        case "filters":
            return [text.encode() for text in _FILTERS]
        case "naming":
            info = msgspec.json.encode(_INFO)
            return [
                bytes([1, 1, 1, 0]) + bytes(32) + info,
                bytes([0, 1, 1, 0]) + bytes(32) + info,
                b"\1\1\1\4orders",
                bytes([1, 1, 1, 4]) + b'{"x":' + b"[" * 4000,
            ]
        case "config":
            config = check_config(
                "orders",
                manual_time=False,
                filter_modules=["a.b"],
                max_frame_bytes=2**26,
                max_connections=1024,
                directory="/tmp",
                log_level="INFO",
                log_file="/tmp/log",
            )
            words = (config, Started("/tmp/x", "abc", 1), NotStarted("NameTaken", ["a", None, 1.5, ["b"]]))
            lines = [line_of(word) for word in words]
            arguments = bytes([0, 1, 1, 1, 1, 1, 1, 6]) + b"orders" + b"\2\3a.b\4__x_" + b"\4/tmp"
            return [
                b"\1" + lines[0],
                b"\2" + lines[1],
                b"\2" + lines[2],
                arguments,
                b"\1" + repr(asdict(config)).encode(),
            ]
        case "ring":
            return [
                bytes([deed, *rest, deed, *rest, 8, 0]) for deed in range(12) for rest in ((0, 0), (1, 2), (3, 7, 5))
            ]
        case "history":
            kinds = [*get_args(history.Request), *get_args(history.Result), *get_args(history.Event)]
            events = [each for kind in kinds for each in samples(kind)]
            records = [msgspec.msgpack.encode(recorded(event)) for event in events]
            return [
                b"\5" + b"".join([len(each).to_bytes(4, "little") + each for each in records[at : at + 3]])
                for at in range(0, len(records), 2)
            ]
        case "sessions":
            raw = [b"\0\3\0" + len(body).to_bytes(2, "little") + body for body in seeds("request")]
            more = ((0, 2, 8, 9, 16, 8), (1, 0, 1, 2, 3, 4), (0, 0, 0, 0, 0, 0))
            asked = [bytes([0, *[0, 0, kind, *rest] * 2]) for kind in range(29) for rest in more]
            lane = bytes([0, 5, 0, 4, 0, 0, 0, 1, 33, 0])  # a lane of the first process, with a segment
            deeds = [bytes([0, at, kind, *rest]) for at in (0, 1) for kind in range(32, 40) for rest in more]
            published = lane + bytes([0, 0, 32, 0, 0, 0, 0, 0, 0])
            taken = published + bytes([0, 0, 1, 0, 0, 0, 4, 0])
            arena = [before + deed for before in (lane, published, taken) for deed in deeds]
            return [
                *raw,
                *asked,
                *arena,
                *[bytes([0, event, *rest, event, 1]) for event in range(4, 10) for rest in more],
            ]
    return []


def recorded(said: msgspec.Struct) -> msgspec.Struct:
    """As an event, what is none by itself."""
    if isinstance(said, history.Request):
        return history.Invoke(1, 1, said)
    return history.Ok(1, 1, said) if isinstance(said, history.Result) else said


def encoded(given: Iterable[Frame]) -> list[bytes]:
    return [frames.encode(frame) for frame in given]


def samples(kind: type[S]) -> Iterator[S]:
    """A frame with something in every field, and one with nothing in each that may be empty."""
    hints = get_type_hints(kind, include_extras=True)
    for is_full in (True, False):
        yield kind(*[sample(hints[name], is_full) for name in kind.__struct_fields__])


def sample(hint: Any, is_full: bool) -> Any:
    """A value of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return sample(arguments[0], is_full)
    if origin in (Union, types.UnionType):
        given = [each for each in arguments if each is not type(None)]
        return sample(given[0], is_full) if is_full or len(given) == len(arguments) else None
    if origin is list:
        return [sample(arguments[0], is_full)] * 2 if is_full else []
    if origin is tuple:
        return tuple([sample(each, is_full) for each in arguments])
    if origin is dict:
        return {"k": sample(arguments[1], is_full)} if is_full else {}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = get_type_hints(hint, include_extras=True)
        return hint(*[sample(hints[name], is_full) for name in hint.__struct_fields__])
    plain = {int: 1, str: "t", bool: is_full, float: 1.5, bytes: b"x" * 16, msgspec.Raw: msgspec.Raw(b"\x91\x01")}
    return plain[hint]
