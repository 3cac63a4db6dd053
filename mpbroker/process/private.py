"""Folders, files and sockets that only this user can reach: made, opened, locked, connected to.

Owns the checks that stand between a path and trust in what is there: the kind, the owner, the
mode, the number of names; looked at without following a symbolic link, once before the opening
and once on what was opened. What another user could have put there or could change raises
InsecureFolder and is never repaired. Knows nothing of brokers. Imports errors.
"""

from __future__ import annotations

import errno
import importlib
import os
import shlex
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mpbroker.errors import BrokerFailed, InsecureFolder

_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
}
_REPLACED: Final = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
_SOCKET_PATH_BYTES: Final = 100
"""sun_path holds 104 bytes on the BSDs and macOS, 108 on Linux, its end included."""

_OPEN_FILES: Final = "/proc/self/fd"
"""Where Linux shows a process its open folders under short names."""

_LOCKED_BYTE: Final = 1 << 30
"""Where msvcrt locks: others can't read a locked byte, so it is none of the content."""


def user_id() -> int:
    """Return the user whose files are trusted: the effective one, who owns what is made here."""
    user = getattr(os, "geteuid", None)
    if user is None or not hasattr(socket, "AF_UNIX"):
        raise BrokerFailed(
            "it needs Unix sockets and files with owners, which this system does not have; "
            "MessageBroker, in one process, runs everywhere"
        )
    return int(user())


def make_folder(path: Path, dir_fd: int | None = None) -> None:
    """Make a folder of mode 0700 if there is nothing; check nothing."""
    name = path if dir_fd is None else path.name
    try:
        os.mkdir(name, 0o700, dir_fd=dir_fd)
    except FileExistsError:
        return
    # Only a umask that takes the owner's own bits gets here, and then the folder can't be opened.
    if os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=dir_fd)


def open_folder(path: Path, dir_fd: int | None = None) -> int:
    """Return a descriptor of a checked folder: by its name in `dir_fd`, or by its whole path."""
    user_id()
    return open_checked(path, os.O_RDONLY | os.O_DIRECTORY, stat.S_IFDIR, dir_fd)


@contextmanager
def opened_folder(path: Path, dir_fd: int | None = None) -> Iterator[int]:
    """The same for a `with` block."""
    fd = open_folder(path, dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def open_checked(path: Path, flags: int, kind: int, dir_fd: int | None = None) -> int:
    """Return a descriptor of what exists there, checked; never waits, not even at a pipe."""
    name = path if dir_fd is None else path.name
    # First without opening: to open a pipe or a device does something, and a refusal says little.
    check(os.stat(name, dir_fd=dir_fd, follow_symlinks=False), kind, path)
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in _REPLACED:
            raise InsecureFolder(str(path), "it was replaced while it was opened") from error
        raise
    try:
        check(os.fstat(fd), kind, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check(found: os.stat_result, kind: int, path: Path, *, any_mode: bool = False) -> None:
    """Raise InsecureFolder unless it is of the kind, this user's, and closed to all others."""
    elsewhere = "set MPBROKER_DIR to another folder"
    is_kind = stat.S_IFMT(found.st_mode)
    if is_kind != kind:
        was = _KINDS.get(is_kind, "a device")
        reason = f"it is {was}, not {_KINDS[kind]}; remove it, or {elsewhere}"
        raise InsecureFolder(str(path), reason)
    user = user_id()
    if found.st_uid != user:
        reason = f"it belongs to user {found.st_uid} and this process runs as user {user}; "
        raise InsecureFolder(str(path), reason + elsewhere)
    if any_mode:
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        mend = f"chmod {700 if kind == stat.S_IFDIR else 600} {shlex.quote(str(path))}"
        reason = f"its mode {mode:04o} lets other users in; `{mend}` if only mpbroker uses it, "
        raise InsecureFolder(str(path), f"{reason}or {elsewhere}")
    if kind == stat.S_IFREG and found.st_nlink > 1:
        reason = f"it has {found.st_nlink} names (hard links); remove it, or {elsewhere}"
        raise InsecureFolder(str(path), reason)


def is_at(fd: int, name: str, dir_fd: int) -> bool:
    """Say whether the open file is still the one of that name in the folder."""
    try:
        now = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), now)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed; False at once if another holds it."""
    try:
        import fcntl
    except ImportError:
        return _try_lock_byte(fd)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_lock_byte(fd: int) -> bool:
    """The same on a system without flock; such a lock is never shared."""
    msvcrt = importlib.import_module("msvcrt")
    os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    except PermissionError:
        return False
    return True


def socket_address(path: Path, folder_fd: int) -> str:
    """Return a path of the socket that is short enough for the system."""
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
        return str(path)
    through = Path(_OPEN_FILES, str(folder_fd))
    if through.is_dir():
        return str(through / path.name)
    raise BrokerFailed(
        f"{path} is too long for a socket here, {_SOCKET_PATH_BYTES} bytes is what fits; "
        "set MPBROKER_DIR to a shorter folder"
    )


def connect(sock: socket.socket, address: str, timeout_s: float) -> None:
    """Connect a Unix socket and leave it blocking; TimeoutError if its queue stays full so long."""
    deadline = time.monotonic() + timeout_s
    sock.settimeout(None)
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        # With a time-out of Python's own, connect fails at once instead of waiting for room.
        _set_send_timeout(sock, left_s)
        try:
            sock.connect(address)
            # After a signal during the wait, connect returns as if it had connected.
            sock.getpeername()
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                continue
            raise
        _set_send_timeout(sock, 0)
        return


def _set_send_timeout(sock: socket.socket, seconds: float) -> None:
    whole, micro = divmod(round(seconds * 1_000_000), 1_000_000)
    if seconds:
        micro = max(micro, 1)  # all zero is no time-out
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", whole, micro))
