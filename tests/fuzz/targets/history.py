"""A history comes back as it was written, up to a half last record; and what nobody wrote is refused as such."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

import msgspec

from mpbroker.testing import history
from mpbroker.testing.history import Event
from tests.fuzz.draw import Draw
from tests.fuzz.shape import shape_of

_KINDS = get_args(Event)
_shape = shape_of(_KINDS)
_requests = shape_of(get_args(history.Request))
_results = shape_of(get_args(history.Result))


class File:
    """Stands for a path; opening it gives these bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self, *_: object, **__: object) -> io.BytesIO:
        return io.BytesIO(self._content)


def read(content: bytes) -> Iterator[Event]:
    return history.read(cast(Path, File(content)))


def target(data: bytes) -> None:
    draw = Draw(data)
    cut, stream = draw.byte(), draw.rest()
    events: list[Event] = []
    is_refused = False
    try:
        for event in read(stream):
            assert type(event) in _KINDS
            look(event)
            events.append(event)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        is_refused = True
    assert (encoded(events), is_refused) == events_in(stream)
    written = b"".join(framed(event) for event in events)
    again = list(read(written))
    assert encoded(again) == encoded(events)
    # A writer that was killed leaves the beginning of what it wrote.
    rest = written[: max(0, len(written) - cut)]
    whole = list(read(rest))
    assert encoded(whole) == encoded(events[: len(whole)])
    assert len(events) - len(whole) <= cut


def events_in(stream: bytes) -> tuple[list[bytes], bool]:
    """What is in it, by the words of its documentation; and whether something is that nobody wrote."""
    events: list[bytes] = []
    while len(stream) >= 4 and len(stream) >= (end := 4 + int.from_bytes(stream[:4], "little")):
        try:
            event: Event = msgspec.msgpack.decode(stream[4:end], type=Event)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return events, True
        events.append(msgspec.msgpack.encode(event))
        stream = stream[end:]
    return events, False


def look(event: Event) -> None:
    _shape(event)
    if isinstance(event, history.Invoke):
        _requests(event.request)
    elif isinstance(event, history.Ok):
        _results(event.result)


def framed(event: Event) -> bytes:
    body = msgspec.msgpack.encode(event)
    return len(body).to_bytes(4, "little") + body


def encoded(events: list[Event]) -> list[bytes]:
    """By their bytes, since no NaN equals itself."""
    return [msgspec.msgpack.encode(event) for event in events]
