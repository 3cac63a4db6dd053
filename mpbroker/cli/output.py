"""What a command prints: plain lines, tables, and progress that only a terminal sees.

Owns stdout and stderr of the command line. Nothing here colours, draws boxes or moves the cursor, except the progress
line, which rewrites itself on a terminal and is silent elsewhere.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final, Self

_QUIET_FOR: Final = 1.0
"""Seconds: what takes less shows no progress."""

_PAUSE: Final = 0.1
"""Seconds between two looks of the progress line: more cannot be read."""

_LAST_STANDARD_FD: Final = 2


def make_tolerant() -> None:
    """Let output go nowhere, or come out escaped, where writing it would raise.

    That is where the standard streams were closed by who started the command, and for text that the terminal's
    encoding lacks.
    """
    _replace_closed()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _replace_closed() -> None:
    # Lowest numbers first, so that nothing else that is opened later takes the place of a standard stream.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD_FD:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, name in enumerate(("stdout", "stderr"), start=1):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def say(text: str = "") -> None:
    """One line (or several) on stdout, at once: a reader of a pipe should not wait for a buffer."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """One line on stderr, after the name of the command."""
    try:
        sys.stderr.write(f"mpbroker: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads it


def drop_output() -> None:
    """Let what is buffered for a reader that is gone go nowhere: the interpreter ends quietly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            try:
                os.dup2(nowhere, stream.fileno())
            except (OSError, ValueError):
                pass
    os.close(nowhere)


def shown(text: str) -> str:
    """The text with what could confuse a terminal (controls, lone surrogates) escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def table(rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), indent: str = "") -> str:
    """Rows as columns, two spaces apart; the columns in ``right`` are aligned there."""
    right = frozenset(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def plural(count: int, noun: str) -> str:
    """``1 message``, ``1,000 messages``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def duration(seconds: float) -> str:
    """A time span for people, with three digits that mean something."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


class Progress:
    """A line on stderr that says how far something is; as a context manager it is wiped away at the end.

    Shows nothing unless stderr is a terminal, and nothing in the first second.
    """

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._next = time.monotonic() + _QUIET_FOR
        self._width = 0

    def update(self, text: str) -> None:
        """This far; cheap to call often."""
        if not self._shows or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PAUSE
        # A line that wraps cannot be rewritten.
        text = text[: shutil.get_terminal_size().columns - 1]
        self._write("\r" + text.ljust(self._width))
        self._width = max(self._width, len(text))

    def clear(self) -> None:
        """Wipe the line, so that other output finds an empty one."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._shows = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def close(code: int, code_when_unread: int) -> int:
    """Write out what is buffered; returns the exit code, another one when nobody reads it any more."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = code_when_unread
    except OSError:
        code = code or 1
    drop_output()
    return code
