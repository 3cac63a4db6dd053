"""Which files the demonstration works on.

Owns the walk through a folder: it follows no links, so no loop catches it, takes regular files alone, so nothing
blocks, and says what it left out. Paths are bytes: a file's name need not be text.
"""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

MAX_FILES: Final = 20_000
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Bounds that keep the demonstration under a minute; what is beyond them is said."""

_PACKAGES: Final = frozenset({b"site-packages", b"dist-packages", b"__pycache__"})


@dataclass(frozen=True, slots=True)
class File:
    """A file to work on. suffix: of its name, as text, for a header."""

    path: bytes
    suffix: str
    size: int


@dataclass(slots=True)
class Found:
    """The files of a folder, and how many entries were left out, by the reason."""

    folder: bytes
    files: list[File] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def standard_library() -> bytes:
    """The folder of the running Python's standard library."""
    return os.fsencode(sysconfig.get_path("stdlib"))


def find(folder: bytes, *, leave_out: frozenset[bytes] = frozenset()) -> Found:
    """The files below a folder, in the order of their paths; nothing raises, what cannot be read is counted.

    Args:
        leave_out: names of folders that are not entered.
    """
    found = Found(folder)
    for entry in _walk(folder, leave_out, found):
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            found.leave_out("vanished")
            continue
        if not stat.S_ISREG(status.st_mode):
            found.leave_out("links" if stat.S_ISLNK(status.st_mode) else "no regular files")
        elif status.st_size > MAX_FILE_BYTES:
            found.leave_out(f"larger than {MAX_FILE_BYTES // 1024 // 1024} MiB")
        elif len(found.files) == MAX_FILES:
            found.leave_out(f"beyond the first {MAX_FILES:,}")
        else:
            found.files.append(File(entry.path, suffix(entry.path), status.st_size))
    return found


def find_standard_library() -> Found:
    """Without what was installed into it, and without compiled files."""
    return find(standard_library(), leave_out=_PACKAGES)


def suffix(path: bytes) -> str:
    """The suffix of a path as a header can carry it: valid Unicode, and short."""
    return os.path.splitext(path)[1][:32].decode("utf-8", "replace")


def _walk(folder: bytes, leave_out: frozenset[bytes], found: Found) -> Iterator[os.DirEntry[bytes]]:
    """Everything below a folder that is no folder itself, depth first, sorted."""
    pending = [folder]
    while pending:
        at = pending.pop()
        try:
            with os.scandir(at) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            found.leave_out("folders that cannot be read")
            continue
        below = []
        for entry in entries:
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                is_folder = False
            if not is_folder:
                yield entry
            elif entry.name not in leave_out:
                below.append(entry.path)
        pending.extend(reversed(below))
