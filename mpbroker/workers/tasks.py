"""Calls that travel as messages, and their results that travel back: what an Executor and its workers agree on.

Owns the form of both. Functions and arguments are pickled; where something is of the caller's program, a worker imports
that program first.
"""

from __future__ import annotations

import pickle
import struct
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mpbroker.deliveries import Delivery
from mpbroker.errors import HandlerError, MpbrokerError
from mpbroker.process.proxy import BrokerProxy
from mpbroker.workers.target import MAIN, Main, import_main

CLIENT: Final = "client"
"""The header that says whose task it is, and so whose reply."""

_HEAD: Final = struct.Struct("<QdI")
"""Of both: the number of the task, which is the caller's; the seconds that the call took; and the bytes of a part that
most have not. A task has the caller's program there, pickled, and then function and arguments; a reply has the
traceback, and then what came of it."""


class RemoteTraceback(Exception):
    """The cause of an exception that came from a worker: the traceback there, as text. Args: text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def pack_task(
    number: int,
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    main: Main | None,
) -> bytes:
    """Raises what pickling raises."""
    call = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
    return _pack(number, pickle.dumps(main) if main is not None and MAIN in call else b"", call)


def _pack(number: int, part: bytes, rest: bytes, took_s: float = 0.0) -> bytes:
    return b"".join((_HEAD.pack(number, took_s, len(part)), part, rest))


def _unpack(packed: bytes) -> tuple[int, memoryview, memoryview]:
    number, _, size = _HEAD.unpack_from(packed)
    rest = memoryview(packed)[_HEAD.size :]
    return number, rest[:size], rest[size:]


def head_of(packed: bytes) -> tuple[int, float]:
    """The number of a task or a reply, and the seconds that the call took."""
    number, took_s, _ = _HEAD.unpack_from(packed)
    return number, took_s


def _open_call(main: memoryview, call: memoryview) -> tuple[Callable[..., object], Sequence[object], dict[str, object]]:
    if main:
        import_main(pickle.loads(main), "the task")
    try:
        function, args, kwargs = pickle.loads(call)
    except AttributeError:
        if not main and MAIN in bytes(call):
            import_main(None, "the task")
        raise
    return function, args, kwargs


@dataclass(frozen=True)
class Runner:
    """The handler of an executor's workers: calls, and says what came of it.

    replies: the topic where that is published.
    """

    broker: BrokerProxy
    replies: str

    def __call__(self, delivery: Delivery) -> None:
        """One call as a handler, answered before its message is acked."""
        self.send_alone(self.client(delivery), self.reply(delivery))

    def client(self, delivery: Delivery) -> str:
        return delivery.headers[CLIENT]

    def reply(self, delivery: Delivery) -> bytes:
        """Call it. Raises for what is no task."""
        number, main, call = _unpack(delivery.payload)
        _ = delivery.headers[CLIENT]  # somebody to answer
        began = time.perf_counter()
        try:
            function, args, kwargs = _open_call(main, call)
            body = pickle.dumps(function(*args, **kwargs), pickle.HIGHEST_PROTOCOL)
            return _pack(number, b"", body, time.perf_counter() - began)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            return _packed_error(number, error)

    def send(self, client: str, replies: list[bytes]) -> None:
        self.broker.publish_many(self.replies, replies, {CLIENT: client})

    def send_alone(self, client: str, reply: bytes) -> None:
        """Of a result that cannot go (it is too large, above all), say so."""
        try:
            self.send(client, [reply])
        except MpbrokerError as error:
            self.send(client, [_packed_error(head_of(reply)[0], error)])


def _packed_error(number: int, error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(packed)  # many that can be pickled cannot be made again
    except BaseException:  # noqa: BLE001 - anything can be wrong with it
        name = type(error).__name__
        packed = pickle.dumps(HandlerError("the task", f"it raised {name}, which cannot travel: {_shown(error)}"))
    return _pack(number, text.encode("utf-8", "backslashreplace"), packed)


def _shown(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a __str__ of the user's
        return "it cannot be shown"


def open_reply(packed: bytes) -> tuple[Any, BaseException | None]:
    """The result, or the exception with the worker's traceback as its cause."""
    _, trace, body = _unpack(packed)
    try:
        value = pickle.loads(body)
    except Exception as error:  # noqa: BLE001 - the class is known there and not here, or its code fails here
        return None, error
    if not trace:
        return value, None
    value.__cause__ = RemoteTraceback(bytes(trace).decode())
    return None, value
