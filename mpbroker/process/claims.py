"""How a broker takes its place on disk, keeps it, and gives it back.

Owns the broker's side of the layout that `naming` describes: the claim of a name, the files that
go with it, and what dead brokers left. Never accepts a connection and never waits. Imports
errors, naming and private; for the broker's side alone.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from mpbroker.errors import BrokerFailed, MpbrokerError, NameTaken
from mpbroker.process.naming import (
    INFO,
    KEY,
    KEY_BYTES,
    LOCK,
    PRIVATE,
    SOCKET,
    BrokerInfo,
    check_broker_name,
    entries,
    read_info,
)
from mpbroker.process.private import (
    check,
    is_at,
    make_folder,
    open_checked,
    open_folder,
    opened_folder,
    socket_address,
    try_lock,
    user_id,
)

BACKLOG: Final = 512
"""Connections that may wait to be accepted: as many workers may start at once."""

_NEW: Final = ".new"
_FILES: Final = (INFO, SOCKET, KEY, INFO + _NEW, KEY + _NEW)
_CLAIM_TRIES: Final = 100  # a lost one means that another broker came or went at that moment


class BrokerFolder:
    """The folder of one broker, held from `claim` to `release` or to the end of the process.

    Also a context manager that releases. `listener` listens, in blocking mode; the caller accepts
    from it, and may close it early. A process that claimed must not fork: the child would hold
    the name too.
    """

    def __init__(self, folder: Path, key: bytes, listener: socket.socket, held: ExitStack) -> None:
        """Made by `claim`."""
        self.folder: Final = folder
        self.key: Final = key
        self.listener: Final = listener
        self._held: Final = held

    @classmethod
    def claim(cls, name: str | None, base: Path, info: BrokerInfo, *, backlog: int = BACKLOG) -> Self:
        """Take the folder of a name for this process and make it one that clients find.

        Does not wait. What a dead broker left under the name is replaced. With name None the
        broker is private: a fresh folder that no name can mean, for clients that are told its
        path. If the process dies midway, nobody finds half a broker and the next claim succeeds.
        Folders of dead private brokers are removed on the way.

        Raises:
            InvalidName: it can't name a broker.
            NameTaken: a living process holds it.
            InsecureFolder: the base, the folder or something in it is another user's, open to
                others, or not what it should be.
            BrokerFailed: the system refused: no space, no permission, no file locks there.
        """
        if name is not None:
            check_broker_name(name)
        user_id()
        try:
            with ExitStack() as held:
                base_fd = _make_base(base)
                held.callback(os.close, base_fd)
                _sweep(base, base_fd)
                folder, folder_fd, lock_fd = _take(name, base, base_fd)
                held.callback(os.close, folder_fd)
                held.callback(os.close, lock_fd)
                for leftover in _FILES:
                    _clear(folder / leftover, folder_fd)
                # Not before: what was refused stays for its owner to look at.
                held.callback(_vacate, folder.name, base_fd, folder_fd, lock_fd)
                # systemd-tmpfiles passes over a locked folder, however old what is in it gets.
                try_lock(folder_fd, shared=True)
                key = secrets.token_bytes(KEY_BYTES)
                os.close(_write(KEY, key, folder_fd))
                listener = _listen(folder / SOCKET, folder_fd, backlog)
                held.callback(listener.close)
                info_fd = _write(INFO, msgspec.json.encode(info), folder_fd)
                held.callback(os.close, info_fd)
                return cls(folder, key, listener, held.pop_all())
        except MpbrokerError:
            raise
        except OSError as error:
            reason = f"its folder in {base} can't be made: {error}; MPBROKER_DIR names another"
            raise BrokerFailed(reason) from error

    def release(self) -> None:
        """Give the name back: close the listener, take away what `claim` made.

        A named folder stays if something else is in it. Nothing is taken away if the lock file is
        not this broker's any more: somebody removed it, and another broker may be there now. A
        second release does nothing.
        """
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def sweep_private(base: Path) -> None:
    """Remove the folders of private brokers that died without releasing; `claim` does it too."""
    with suppress(OSError), opened_folder(base) as base_fd:
        _sweep(base, base_fd)


def _make_base(base: Path) -> int:
    base.parent.mkdir(parents=True, exist_ok=True)
    make_folder(base)
    return open_folder(base)


def _take(name: str | None, base: Path, base_fd: int) -> tuple[Path, int, int]:
    """Return a folder, its descriptor and that of its lock, held."""
    for _ in range(_CLAIM_TRIES):
        folder = base / (name or PRIVATE + secrets.token_hex(8))
        # What vanishes midway was released or swept: the next try makes it again.
        with suppress(FileNotFoundError), ExitStack() as opened:
            make_folder(folder, base_fd)
            folder_fd = open_folder(folder, base_fd)
            opened.callback(os.close, folder_fd)
            lock_fd = _open_lock(folder / LOCK, folder_fd)
            opened.callback(os.close, lock_fd)
            locked = try_lock(lock_fd)
            if not is_at(lock_fd, LOCK, folder_fd):
                continue
            if locked:
                opened.pop_all()
                return folder, folder_fd, lock_fd
            # Who holds a folder just made for a private broker is sweeping it away.
            if name is not None:
                raise NameTaken(name, str(folder), _holder(folder, folder_fd))
    raise BrokerFailed(f"{base} kept changing while a folder was claimed in it")


def _open_lock(path: Path, folder_fd: int) -> int:
    try:
        fd = os.open(path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder_fd)
    except FileExistsError:
        return open_checked(path, os.O_RDWR, stat.S_IFREG, folder_fd)
    os.fchmod(fd, 0o600)
    return fd


def _holder(folder: Path, folder_fd: int) -> int | None:
    with suppress(OSError):
        info, alive = read_info(folder, folder_fd)
        if alive and info is not None:
            return info.pid
    return None


def _clear(path: Path, folder_fd: int) -> None:
    """Remove what a dead broker left, if it can have been one's."""
    with suppress(FileNotFoundError):
        found = os.stat(path.name, dir_fd=folder_fd, follow_symlinks=False)
        kind = stat.S_IFSOCK if path.name == SOCKET else stat.S_IFREG
        check(found, kind, path, any_mode=True)
        os.unlink(path.name, dir_fd=folder_fd)


def _write(name: str, content: bytes, folder_fd: int) -> int:
    """Make a file appear with all its content; return its descriptor, which locks it."""
    fd = os.open(name + _NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder_fd)
    try:
        os.fchmod(fd, 0o600)
        if os.write(fd, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        try_lock(fd)
        os.rename(name + _NEW, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _listen(path: Path, folder_fd: int, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(socket_address(path, folder_fd))
        # Nobody can connect before listen, so the mode that bind gave is never used.
        os.chmod(path.name, 0o600, dir_fd=folder_fd)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def _vacate(own: str, base_fd: int, folder_fd: int, lock_fd: int) -> None:
    """Remove what is in a folder whose lock is held, and the folder."""
    with suppress(OSError):
        if not is_at(lock_fd, LOCK, folder_fd):
            return
        # The lock last: until then nobody else changes the folder.
        for name in (*_FILES, LOCK):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder_fd)
        if own.startswith(PRIVATE):
            shutil.rmtree(own, ignore_errors=True, dir_fd=base_fd)
        else:
            os.rmdir(own, dir_fd=base_fd)


def _sweep(base: Path, base_fd: int) -> None:
    """Vacate the private folders that nobody holds."""
    for own in entries(base_fd):
        if not own.startswith(PRIVATE):
            continue
        with suppress(OSError), opened_folder(base / own, base_fd) as folder_fd:
            try:
                lock_fd = open_checked(base / own / LOCK, os.O_RDWR, stat.S_IFREG, folder_fd)
            except FileNotFoundError:
                # Its maker died at once, or is about to lock it and will make another.
                os.rmdir(own, dir_fd=base_fd)
                continue
            try:
                if try_lock(lock_fd):
                    _vacate(own, base_fd, folder_fd, lock_fd)
            finally:
                os.close(lock_fd)
