"""Histories: what clients of a broker asked, when, and what they were answered.

Owns the events, the recorder that appends them and the reader that gets them back. Each client (a process, or a thread
of one) has a history of its own: an append-only file in which every event is one write, so that it survives SIGKILL up
to a half last record; or a list, for a run on one thread. The clock is given, CLOCK_MONOTONIC of the host by default,
so events of all processes have one order. Batches are stretches: one record a call, whatever its size. Nobody here
judges: the checker does.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from pathlib import Path
from typing import Final, Self

import msgspec

from mpbroker.errors import CallFailed, MpbrokerError

NOBODY: Final = 2**32 - 1
"""The publisher that a damaged payload claims."""

_HEADER: Final = struct.Struct("<I")  # in front of every event in a file: its length in bytes


# -- what is asked -----------------------------------------------------------------------------------------------------


class Publish(msgspec.Struct, tag=1, array_like=True, frozen=True, gc=False):
    """Messages with consecutive numbers of one publisher; count 1 is publish, more are one publish_many."""

    topic: str
    publisher: int
    number: int
    count: int
    priority: int
    headers: dict[str, str]


class Subscribe(msgspec.Struct, tag=2, array_like=True, frozen=True, gc=False):
    """subscribe, with the settings that a new subscription gets. retry: as in RetryPolicy. filter: None, an expression,
    or ``module:name`` of a function."""

    topic: str
    name: str
    ack_timeout: float
    max_deliveries: int
    retry: tuple[int, float, float, float] | None
    max_queue: int
    overflow: str
    filter: str | None


class Unsubscribe(msgspec.Struct, tag=3, array_like=True, frozen=True, gc=False):
    """unsubscribe; with an empty name, delete_topic."""

    topic: str
    name: str


class Poll(msgspec.Struct, tag=4, array_like=True, frozen=True, gc=False):
    """poll. timeout: seconds, None for ever. now: the time that was given."""

    subscription: str
    member: str
    max_messages: int
    timeout: float | None
    now: float | None


class Target(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages with consecutive sequences, and tokens; token 0: named by id alone."""

    sequence: int
    token: int
    count: int


class Settle(msgspec.Struct, tag=5, array_like=True, frozen=True, gc=False):
    """ack, nack, release, reject, extend or retry (verb), of exact deliveries, or of ids held by ``member``; or note:
    an ack that a consumer sends later. seconds: the delay of a nack or the seconds of an extend, where given."""

    subscription: str
    verb: str
    member: str
    targets: list[Target]
    seconds: float | None
    error: str
    now: float | None


class Redrive(msgspec.Struct, tag=6, array_like=True, frozen=True, gc=False):
    """redrive of these dead letters, None: of all, up to a limit."""

    subscription: str
    sequences: list[int] | None
    limit: int | None


class Purge(msgspec.Struct, tag=7, array_like=True, frozen=True, gc=False):
    """purge_dead_letters."""

    subscription: str
    sequences: list[int] | None
    limit: int | None


class Look(msgspec.Struct, tag=8, array_like=True, frozen=True, gc=False):
    """stats or dead_letters (what) of a subscription."""

    what: str
    subscription: str


class Leave(msgspec.Struct, tag=9, array_like=True, frozen=True, gc=False):
    """close of the broker's proxy: what this process holds is released, uncounted."""


class Expire(msgspec.Struct, tag=10, array_like=True, frozen=True, gc=False):
    """expire, of a subscription or ("") of all."""

    subscription: str
    now: float | None


class Consume(msgspec.Struct, tag=11, array_like=True, frozen=True, gc=False):
    """A consumer of this client begins, is asked for deliveries, or is closed (step: begin, take or close); one at a
    time. timeout: seconds after which a take may end with nothing; None: when it likes, as more is held already."""

    step: str
    subscription: str
    member: str
    prefetch: int
    timeout: float | None


Request = Publish | Subscribe | Unsubscribe | Poll | Settle | Redrive | Purge | Look | Leave | Expire | Consume


# -- what is answered --------------------------------------------------------------------------------------------------


class Published(msgspec.Struct, tag=20, array_like=True, frozen=True, gc=False):
    """Consecutive sequences from the first on. uid: of the first. wrong: what is not as published, one text each."""

    first: int
    uid: str
    wrong: list[str]


class Stretch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Deliveries of one poll in whose order sequence, token and number go up by one each, and the rest is the same.

    publisher, number: what the payloads claim and prove; NOBODY for a damaged one. headers: an index in Delivered.
    """

    sequence: int
    token: int
    count: int
    publisher: int
    number: int
    attempt: int
    redelivered: bool
    priority: int
    deadline: float
    headers: int


class Delivered(msgspec.Struct, tag=21, array_like=True, frozen=True, gc=False):
    """The deliveries of a poll, a take or a retry, in their order.

    uid: of the first. wrong: what is wrong with single ones (payload, id or uid), by sequence.
    """

    stretches: list[Stretch]
    headers: list[dict[str, str]]
    uid: str
    wrong: list[tuple[int, str]]


class Answers(msgspec.Struct, tag=22, array_like=True, frozen=True, gc=False):
    """True or False for each target, a byte each. deadline: the new one of an extend, where it is known."""

    answers: bytes
    deadline: float | None


class Figures(msgspec.Struct, tag=23, array_like=True, frozen=True, gc=False):
    """SubscriptionStats, in the order of its fields."""

    values: list[int]


class Letter(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A dead letter. attempted: the numbers of its history."""

    sequence: int
    reason: str
    attempts: int
    error: str
    last_member: str
    attempted: list[int]
    publisher: int
    number: int


class Letters(msgspec.Struct, tag=24, array_like=True, frozen=True, gc=False):
    """All dead letters of a subscription, oldest first."""

    letters: list[Letter]


class Count(msgspec.Struct, tag=25, array_like=True, frozen=True, gc=False):
    """How many messages a redrive, purge or expire was about."""

    value: int


class Done(msgspec.Struct, tag=26, array_like=True, frozen=True, gc=False):
    """Nothing to say but that it is done."""


Result = Published | Delivered | Answers | Figures | Letters | Count | Done


# -- events ------------------------------------------------------------------------------------------------------------


class Begin(msgspec.Struct, tag=40, array_like=True, frozen=True, gc=False):
    """The first event of a history: whose it is. at: nanoseconds, in every event."""

    at: int
    client: str
    pid: int


class Invoke(msgspec.Struct, tag=41, array_like=True, frozen=True, gc=False):
    """A call begins. call: its number in this history."""

    at: int
    call: int
    request: Request


class Ok(msgspec.Struct, tag=42, array_like=True, frozen=True, gc=False):
    """The call was answered."""

    at: int
    call: int
    result: Result


class Fail(msgspec.Struct, tag=43, array_like=True, frozen=True, gc=False):
    """The call raised, and nothing happened."""

    at: int
    call: int
    error: str


class Info(msgspec.Struct, tag=44, array_like=True, frozen=True, gc=False):
    """The call raised, and whether it happened is not known."""

    at: int
    call: int
    error: str


class Fault(msgspec.Struct, tag=45, array_like=True, frozen=True, gc=False):
    """Somebody is about to do this to a client: "kill", "stop", "continue", "cut", "fork", … Said before it is done."""

    at: int
    kind: str
    client: str


class End(msgspec.Struct, tag=46, array_like=True, frozen=True, gc=False):
    """A client's process has ended: it died, or left in order."""

    at: int
    client: str
    died: bool


Event = Begin | Invoke | Ok | Fail | Info | Fault | End

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Event)


class Ticks:
    """A recorder's clock for a run on one thread in virtual time: no time is given twice, so the order is exact.

    Args:
        seconds: the virtual time, which the broker has as well; may stand still.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._last = 0

    def __call__(self) -> int:
        """Nanoseconds: the time, or a little more than the last that was given."""
        self._last = max(self._last + 1, int(self._seconds() * 1e9))
        return self._last


# -- the recorder ------------------------------------------------------------------------------------------------------


class Recorder:
    """Appends events to one client's history. For one thread; `RecordedBroker` calls it.

    Args:
        client: names the client in all histories of a run; a conductor's Fault and End mean it by that.
        sink: takes each event; see `in_file` and `in_memory`.
        clock: nanoseconds.

    Attributes:
        events: of a recorder in memory; what other recorders have written is in their files.
    """

    def __init__(
        self, client: str, sink: Callable[[Event], object], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.client = client
        self.events: list[Event] = []
        self.clock = clock
        self._sink = sink
        self._calls = 0
        self._close: Callable[[], None] = _nothing
        sink(Begin(clock(), client, os.getpid()))

    @classmethod
    def in_file(cls, path: Path, client: str, clock: Callable[[], int] = time.monotonic_ns) -> Self:
        """Append to a file that is new or another history's; one write an event. A forked child needs its own."""
        sink = _File(path)
        recorder = cls(client, sink, clock)
        recorder._close = sink.close
        return recorder

    @classmethod
    def in_memory(cls, client: str, clock: Callable[[], int] = time.monotonic_ns) -> Self:
        """Append to ``events``."""
        events: list[Event] = []
        recorder = cls(client, events.append, clock)
        recorder.events = events
        return recorder

    def invoke(self, request: Request) -> int:
        """A call begins; its number, for what becomes of it."""
        self._calls += 1
        self._sink(Invoke(self.clock(), self._calls, request))
        return self._calls

    def ok(self, call: int, result: Result, at: int | None = None) -> None:
        """The call was answered, now or at that time."""
        self._sink(Ok(self.clock() if at is None else at, call, result))

    def raised(self, call: int, error: BaseException) -> bool:
        """The call raised: Fail and True where that says that nothing happened, else Info and False."""
        text = f"{type(error).__name__}: {error}"[:500]
        nothing = happened_nothing(error)
        kind = Fail if nothing else Info
        self._sink(kind(self.clock(), call, text))
        return nothing

    def unknown(self, call: int, error: BaseException) -> None:
        """Nobody will be told what became of the call: Info, whatever the error says of others."""
        self._sink(Info(self.clock(), call, f"{type(error).__name__}: {error}"[:500]))

    def fault(self, kind: str, client: str) -> None:
        """Say what will be done to whom; before it is done."""
        self._sink(Fault(self.clock(), kind, client))

    def end(self, client: str, *, died: bool) -> None:
        """Say that a client's process has ended; after it has."""
        self._sink(End(self.clock(), client, died))

    def close(self) -> None:
        """Close the file, if it is one."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def happened_nothing(error: BaseException) -> bool:
    """Whether an exception from a call says that the call changed nothing."""
    if isinstance(error, MpbrokerError):
        return not isinstance(error, (ConnectionError, CallFailed))
    return isinstance(error, (TypeError, ValueError))


class _File:
    """An append-only file, one write(2) an event."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __call__(self, event: Event) -> None:
        body = _encoder.encode(event)
        frame = _HEADER.pack(len(body)) + body
        if os.write(self._file, frame) != len(frame):
            raise OSError("a history could not be written; is the disk full?")

    def close(self) -> None:
        os.close(self._file)


def _nothing() -> None:
    pass


# -- the reader --------------------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[Event]:
    """The events of a file, in their order; a half last record, as a killed writer leaves it, is left out.

    Raises msgspec.MsgspecError for what was never written by a Recorder.
    """
    decode = _decoder.decode
    with path.open("rb", buffering=1 << 18) as file:
        while len(head := file.read(_HEADER.size)) == _HEADER.size:
            (length,) = _HEADER.unpack(head)
            body = file.read(length)
            if len(body) < length:
                return
            yield decode(body)


def in_order(histories: Iterable[Iterable[Event]]) -> Iterator[tuple[int, Event]]:
    """All events in the order of their times, each with the number of its history."""

    def numbered(number: int, history: Iterable[Event]) -> Iterator[tuple[int, int, int, Event]]:
        # Events themselves are never compared: no place in a history occurs twice.
        for place, event in enumerate(history):
            yield event.at, number, place, event

    streams = [numbered(number, history) for number, history in enumerate(histories)]
    for _, number, _, event in merge(*streams):
        yield number, event
