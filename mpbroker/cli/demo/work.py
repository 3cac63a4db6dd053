"""The work itself: the SHA-256 of a file, and how many lines and definitions a Python file has.

Owns the two functions that the plain pass and the workers share, so that both do the same. They never block: a path
that became something else than a file is an error like any other.
"""

from __future__ import annotations

import ast
import hashlib
import os
import stat
import warnings
from collections.abc import Callable
from typing import Final, NamedTuple

from mpbroker.messages import error_text

PYTHON: Final = ".py"
MAX_SOURCE_BYTES: Final = 2 * 1024 * 1024
"""Of a Python file that is parsed: a syntax tree takes a hundred times its source."""

_CHUNK_BYTES: Final = 1024 * 1024

CANNOT_WORK: Final = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
"""What says that a file can't be worked on, now or ever."""


class Census(NamedTuple):
    """How much is in a Python file."""

    lines: int
    definitions: int


Result = str | Census
"""What a piece of work gives: a digest in hexadecimal digits, or a census."""


class Failed(NamedTuple):
    """What a piece of work gives that can't be done: the error as dead letters have it."""

    error: str


def digest(path: bytes) -> str:
    """The SHA-256 of a file's content. Raises OSError."""
    hashed = hashlib.sha256()
    fd = _open(path)
    try:
        while chunk := os.read(fd, _CHUNK_BYTES):
            hashed.update(chunk)
    finally:
        os.close(fd)
    return hashed.hexdigest()


def census(path: bytes) -> Census:
    """Count the lines and the definitions (classes and functions) of a Python file. Raises of CANNOT_WORK."""
    source = _read(path)
    with warnings.catch_warnings():
        # Old code has escapes and comparisons that newer Pythons warn of; that is its own affair.
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    return Census(len(source.splitlines()), _definitions(tree))


def outcome(kind: str, path: bytes) -> Result | Failed:
    """The result of a kind of work on a file, or how it failed."""
    try:
        return KINDS[kind](path)
    except CANNOT_WORK as error:
        return Failed(error_text(error))


KINDS: Final[dict[str, Callable[[bytes], Result]]] = {"digest": digest, "census": census}


def read_once(path: bytes) -> None:
    """Have the system cache a file, if it can be read."""
    try:
        digest(path)
    except OSError:
        pass


def _open(path: bytes) -> int:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    fd = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("not a regular file any more")
    return fd


def _read(path: bytes) -> bytes:
    fd = _open(path)
    with open(fd, "rb") as file:
        source = file.read(MAX_SOURCE_BYTES + 1)
    if len(source) > MAX_SOURCE_BYTES:
        raise ValueError(f"more than {MAX_SOURCE_BYTES:,} bytes of source are not parsed")
    return source


def _definitions(tree: ast.Module) -> int:
    """Only statements are looked at: an expression holds no definition."""
    count = 0
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            count += 1
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                pending.extend(inner)
    return count
