"""What becomes of a message when its handler is done with it: the policy, and what a handler may raise to say more.

Imports the value modules only.
"""

from __future__ import annotations

import traceback
from enum import StrEnum
from typing import Final

from mpbroker import checks
from mpbroker.messages import MAX_ERROR, error_text


class AckPolicy(StrEnum):
    """When a worker finishes a message. Whatever the policy, a handler may settle its delivery itself.

    FIRST: before the handler is called: at most once, and a failure is only counted.
    NACK_ON_ERROR: after it returned; an exception is a failed attempt, and the message comes back.
    REJECT_ON_ERROR: after it returned; an exception makes a dead letter at once.
    ALWAYS: after it returned or raised.
    MANUAL: the handler settles; what it leaves is held until its lease ends, and is not kept alive. An exception
        before it did is a failed attempt.
    """

    FIRST = "first"
    NACK_ON_ERROR = "nack-on-error"
    REJECT_ON_ERROR = "reject-on-error"
    ALWAYS = "always"
    MANUAL = "manual"


class Reject(Exception):
    """Raised by a handler: this message can never work; it becomes a dead letter now. Args: why."""


class Retry(Exception):
    """Raised by a handler: try this message again later; counts as a failed attempt. Args: delay, why.

    delay: seconds; None: the retry policy's, or at once.
    """

    def __init__(self, delay: float | None = None, why: str = "") -> None:
        self.delay = checks.optional_seconds(delay, "delay")
        super().__init__(delay, why)

    def __str__(self) -> str:
        return str(self.args[1])


_CUT: Final = "\n[…]\n"


def failure_text(error: BaseException) -> str:
    """The error in a line and its traceback, whose end is kept where all is too long. Never raises an Exception."""
    line = error_text(error)
    try:
        trace = "".join(traceback.format_exception(error, limit=-20)).strip()
    except Exception:  # noqa: BLE001 - an exception that cannot be shown must not hide that the handler failed
        return line
    text = f"{line}\n{trace}"
    if len(text) > MAX_ERROR:
        head = min(len(line), MAX_ERROR // 4)
        text = f"{line[:head]}{_CUT}{trace[len(_CUT) + head - MAX_ERROR :]}"
    return text
