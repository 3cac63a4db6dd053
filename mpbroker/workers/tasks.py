"""Calls that travel as messages, and their results that travel back: what an Executor and its workers agree on.

Owns the form of both. Functions and arguments are pickled; where something is of the caller's program, a worker imports
that program first.
"""

from __future__ import annotations

import pickle
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

TASK: Final = "task"
"""The header of a reply that says which message it answers."""


class RemoteTraceback(Exception):
    """The cause of an exception that came from a worker: the traceback there, as text. Args: text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def pack_task(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], main: Main | None
) -> list[bytes]:
    """Raises what pickling raises."""
    call = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
    return [call, pickle.dumps(main) if main is not None and MAIN in call else b""]


def _unpack_task(packed: list[bytes]) -> tuple[Callable[..., object], Sequence[object], dict[str, object]]:
    call, main = packed
    if main:
        import_main(pickle.loads(main), "the task")
    try:
        function, args, kwargs = pickle.loads(call)
    except AttributeError:
        if MAIN in call and not main:
            import_main(None, "the task")
        raise
    return function, args, kwargs


@dataclass(frozen=True)
class Runner:
    """The handler of an executor's workers: calls, and publishes what came of it, before its message is acked."""

    broker: BrokerProxy
    replies: str

    def __call__(self, delivery: Delivery) -> None:
        headers = {CLIENT: delivery.headers[CLIENT], TASK: delivery.message_id}
        try:
            function, args, kwargs = _unpack_task(delivery.payload)
            reply = _packed_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            reply = _packed_error(error)
        try:
            self.broker.publish(self.replies, reply, headers)
        except MpbrokerError as error:
            # A result that is too large, above all; what cannot be said at all is a failed attempt.
            self.broker.publish(self.replies, _packed_error(error), headers)


def _packed_result(result: object) -> list[bytes]:
    return [b"", pickle.dumps(result, pickle.HIGHEST_PROTOCOL)]


def _packed_error(error: BaseException) -> list[bytes]:
    text = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(packed)  # many that can be pickled cannot be made again
    except BaseException:  # noqa: BLE001 - anything can be wrong with it
        name = type(error).__name__
        packed = pickle.dumps(HandlerError("the task", f"it raised {name}, which cannot travel: {_shown(error)}"))
    return [text.encode("utf-8", "backslashreplace"), packed]


def _shown(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a __str__ of the user's
        return "it cannot be shown"


def open_reply(packed: list[bytes]) -> tuple[Any, BaseException | None]:
    """The result, or the exception with the worker's traceback as its cause."""
    trace, body = packed
    try:
        value = pickle.loads(body)
    except Exception as error:  # noqa: BLE001 - the class is known there and not here, or its code fails here
        return None, error
    if not trace:
        return value, None
    value.__cause__ = RemoteTraceback(trace.decode())
    return None, value
