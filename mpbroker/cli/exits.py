"""Exit codes: what each means, and which error ends in which.

Owns the table that ``--help`` prints and the wrapper that every verb has, so that whatever goes wrong is one clear
line on stderr and a documented code, never a traceback.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Final, ParamSpec

from mpbroker import errors
from mpbroker.cli.output import complain

P = ParamSpec("P")


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_BROKER = 3
    NAME_TAKEN = 4
    REFUSED = 5
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    TERMINATED = 143


MEANINGS: Final = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "a check failed, or something unexpected happened",
    ExitCode.USAGE: "the command line is wrong, or its handler cannot be loaded",
    ExitCode.NO_BROKER: "no broker of that name answers, or it ended meanwhile",
    ExitCode.NAME_TAKEN: "a broker of that name runs already",
    ExitCode.REFUSED: "the broker refused: unknown topic, a limit, access, another version",
    ExitCode.INTERRUPTED: "ended by Ctrl-C (serve, and worker at the first: 0)",
    ExitCode.OUTPUT_CLOSED: "whoever read the output went away",
    ExitCode.TERMINATED: "ended by SIGTERM (serve, and worker at the first: 0)",
}

HELP: Final = "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {text}" for code, text in MEANINGS.items())
"""The table as help shows it; the first line keeps the lines as they are."""


class Interrupted(Exception):
    """A signal asked the command to end, and it did so in order. Args: the signal's number."""


class CheckFailed(Exception):
    """What the command was to show did not hold; what there is to say about it was said. Args: text, or none."""


def code_for(error: BaseException) -> ExitCode:
    """The code a command ends with when it raised ``error``."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return ExitCode.FAILED


_CODES: Final[tuple[tuple[tuple[type[BaseException], ...], ExitCode], ...]] = (
    ((errors.NameTaken,), ExitCode.NAME_TAKEN),
    ((errors.BrokerNotFound, errors.BrokerGone), ExitCode.NO_BROKER),
    ((errors.InvalidName, errors.HandlerError), ExitCode.USAGE),
    ((errors.BrokerFailed, errors.CallFailed, errors.PoolEnded), ExitCode.FAILED),
    ((errors.MpbrokerError,), ExitCode.REFUSED),
    ((KeyboardInterrupt,), ExitCode.INTERRUPTED),
    ((BrokenPipeError,), ExitCode.OUTPUT_CLOSED),
)


def report(error: BaseException) -> ExitCode:
    """Say on stderr what went wrong, in one line where one is enough; returns the exit code."""
    if isinstance(error, Interrupted):
        return ExitCode(128 + int(error.args[0]))
    code = code_for(error)
    if isinstance(error, CheckFailed):
        if error.args:
            complain(str(error))
    elif isinstance(error, (errors.MpbrokerError, OSError)):
        if code is not ExitCode.OUTPUT_CLOSED:
            complain(str(error))
    elif isinstance(error, Exception):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        complain(f"unexpected {type(error).__name__}: {error} (at {frame.filename}:{frame.lineno}; please report it)")
    return code


def verb(function: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors become a line and an exit code."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            # typer's own exceptions ask for usage texts and exit codes: they are its to handle.
            if type(error).__module__.partition(".")[0] in {"click", "typer"}:
                raise
            sys.exit(report(error))

    return guarded
