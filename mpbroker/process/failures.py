"""Errors on their way to a client: the reply that raises them in the caller. For the broker's side."""

from __future__ import annotations

import logging
from typing import Final

from mpbroker.errors import CallFailed, MpbrokerError
from mpbroker.process.frames import Failed

MAX_ARGUMENT: Final = 8192
"""Characters kept of a text in an error: the longest filter expression twice, and never a frame's worth."""

_log = logging.getLogger("mpbroker.calls")


def failure(error: Exception) -> Failed:
    """The reply for an error. One that nobody meant to raise is logged, and told as CallFailed."""
    if isinstance(error, MpbrokerError):
        return Failed(type(error).__name__, [_on_the_wire(each) for each in error.args])
    if type(error) in (TypeError, ValueError):
        _log.debug("refused: %s", error, exc_info=error)
        return Failed(type(error).__name__, [_on_the_wire(each) for each in error.args])
    _log.error("a call failed inside the broker", exc_info=error)
    return failure(CallFailed(f"{type(error).__name__}: {error}"))


def _on_the_wire(argument: object) -> str | int | float | list[str] | None:
    if argument is None or isinstance(argument, (int, float)):
        return argument
    if isinstance(argument, (list, tuple)):
        return [_text(each) for each in argument]
    return _text(argument)


def _text(argument: object) -> str:
    text = str(argument)[:MAX_ARGUMENT]
    return text.encode("utf-8", "backslashreplace").decode()
