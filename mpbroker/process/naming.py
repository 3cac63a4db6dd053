"""Where a broker lives on disk: its name, its folder, its key, its socket.

Owns the layout `<base>/<name>/{lock, sock, key, info.json}` and how a client finds and checks it.
Makes and changes nothing, and says nothing to a broker beyond connecting. Imports errors, peers
and private; the broker's and the clients' side may import it.

The base and the folders are 0700, what is in them is 0600, and all of it is checked by whoever
uses it. What is in a folder is reached through the folder's descriptor, so that the folder that
was checked is the one that is used.

Two locks, both of the kind that ends with its process, however that ends. `lock` decides who has
the name: only its holder changes the folder, and takes the lock file away last, so whoever locked
a file looks whether it is still the one in the folder. `info.json` is written last and was locked
by its writer before it appeared, so one that nobody holds is a dead broker's. Readers try only
this second lock: a look never stands in the way of a claim.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from mpbroker.errors import BrokerNotFound, InsecureFolder, InvalidName, MpbrokerError
from mpbroker.process.peers import peer_uid
from mpbroker.process.private import (
    check,
    connect,
    open_checked,
    opened_folder,
    socket_address,
    try_lock,
    user_id,
)

LOCK: Final = "lock"
SOCKET: Final = "sock"
KEY: Final = "key"
INFO: Final = "info.json"

KEY_BYTES: Final = 32

OVERLOADED: Final = "it is stopped or overloaded"
"""How the reason ends why a broker that lives is not found."""

PRIVATE: Final = ".private-"
"""How the folders of private brokers begin: no name starts with a dot, so none can mean one."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_INFO_BYTES: Final = 4096
_ENTRIES: Final = 10_000  # of a base folder that are looked at
_SHOWN: Final = 10  # names in a message
_IN_BETWEEN: Final = "it is being started or stopped at this moment, or died while it was"


class Transport(StrEnum):
    """How the frames of calls travel to a broker. AUTO: RING where that can be, else MANAGER.

    RING: through shared memory. MANAGER: through the socket that the manager's connection is, on every platform.
    """

    AUTO = "auto"
    RING = "ring"
    MANAGER = "manager"

    @classmethod
    def of(cls, given: str | None, environ: Mapping[str, str]) -> Transport:
        """The one given, else the one of `$MPBROKER_TRANSPORT`, else AUTO. Raises ValueError."""
        word = given if given is not None else environ.get("MPBROKER_TRANSPORT") or cls.AUTO
        try:
            return cls(word)
        except ValueError:
            name = "transport" if given is not None else "$MPBROKER_TRANSPORT"
            raise ValueError(f"{name} must be one of {', '.join(cls)}, not {word!r}") from None


class BrokerInfo(msgspec.Struct, frozen=True):
    """What a broker writes about itself, for people and to tell it from the next of its name.

    A field once here stays: a client of another version must be able to read it to say so.
    """

    pid: int
    version: str
    protocol: int
    incarnation: str
    started: float


def check_broker_name(name: str) -> None:
    """Raise InvalidName unless it can name a broker; a folder has that name, so few signs do."""
    if not isinstance(name, str):
        raise TypeError(f"a broker name must be str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        reason = "use 1 to 64 letters, digits, '.', '_' or '-', first a letter or a digit"
        raise InvalidName("broker", name, reason)


def base_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that holds this user's brokers; make nothing.

    `$MPBROKER_DIR`, else `mpbroker` in `$XDG_RUNTIME_DIR`, else `/tmp/mpbroker-<uid>`. A runtime
    folder that is not this user's is passed over: `su` and `sudo` leave the other user's in
    place.

    Raises InvalidName for a relative `$MPBROKER_DIR`, which would mean another folder to every
    process.
    """
    explicit = environ.get("MPBROKER_DIR")
    if explicit:
        if not Path(explicit).is_absolute():
            reason = "MPBROKER_DIR must be an absolute path, the same for brokers and clients"
            raise InvalidName("folder for brokers", explicit, reason)
        return Path(explicit)
    user = getattr(os, "geteuid", None)
    if user is None:
        return Path(tempfile.gettempdir(), "mpbroker")
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute():
        with suppress(OSError):
            found = runtime.stat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == user():
                return runtime / "mpbroker"
    # Predictable on purpose, since clients must find it; whoever made it first, it is checked.
    return Path(f"/tmp/mpbroker-{user()}")  # noqa: S108


@dataclass(frozen=True, slots=True)
class Located:
    """A broker that lived when it was found: where it is, and the key that proves who may in."""

    folder: Path
    key: bytes = field(repr=False)
    info: BrokerInfo

    @property
    def name(self) -> str:
        """The broker's name; a private one has its folder's."""
        return self.folder.name

    def connect(self, timeout_s: float) -> socket.socket:
        """Return a socket connected to the broker, in blocking mode; nothing is sent or read.

        Waits up to `timeout_s` for a broker that has no room for another connection yet.

        Raises:
            BrokerNotFound: nobody listens (any more), or there was no room in time.
            InsecureFolder: as for `locate`, or another user's process listens.
            OSError: EMFILE or ENFILE, this process has no descriptor left.
        """
        path = self.folder / SOCKET
        with _not_found(self.folder), ExitStack() as failed, _opened(self.folder) as folder_fd:
            _check_socket(self.folder, folder_fd)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            failed.callback(sock.close)
            try:
                connect(sock, socket_address(path, folder_fd), timeout_s)
            except ConnectionRefusedError:
                reason = f"nobody listens, process {self.info.pid} has ended"
                raise BrokerNotFound(self.name, str(self.folder), reason) from None
            except TimeoutError as error:
                if error.errno is None:
                    raise  # not the socket's: a signal handler raised it
                reason = f"process {self.info.pid} took no connection in {timeout_s:g} s, {OVERLOADED}"
                raise BrokerNotFound(self.name, str(self.folder), reason) from None
            listening = peer_uid(sock)
            if listening is not None and listening != user_id():
                raise InsecureFolder(str(path), f"a process of user {listening} listens there")
            failed.pop_all()
            return sock


def locate(name: str, base: Path) -> Located:
    """Find the running broker of a name. Does not wait, connect or make anything.

    Raises:
        InvalidName: it can't name a broker.
        BrokerNotFound: none is ready; says where it looked, why not, which others run there.
        InsecureFolder: the base, the folder or something in it is another user's, open to others,
            or not what it should be.
    """
    check_broker_name(name)
    return locate_at(base / name)


def locate_at(folder: Path) -> Located:
    """Find the running broker of a folder, of a private one too; otherwise as `locate`."""
    with _not_found(folder), _opened(folder) as folder_fd:
        info, alive = read_info(folder, folder_fd)
        if not alive:
            who = "the broker that was there" if info is None else f"its process {info.pid}"
            raise BrokerNotFound(folder.name, str(folder), f"{who} died")
        if info is None:
            reason = f"this version can't read the {INFO} of the one that runs, so stop that"
            raise BrokerNotFound(folder.name, str(folder), reason)
        key = _read(folder / KEY, KEY_BYTES, folder_fd)[0]
        # Looked at again: the key of the next broker does not go with the info of this one.
        if len(key) != KEY_BYTES or read_info(folder, folder_fd) != (info, True):
            raise BrokerNotFound(folder.name, str(folder), _IN_BETWEEN)
        _check_socket(folder, folder_fd)
        return Located(folder, key, info)


def list_brokers(base: Path) -> list[str]:
    """Return the names of the brokers that run there, sorted, without the private ones.

    Connects to nobody. Empty too when there is no such folder; InsecureFolder when it is not safe.
    """
    names = []
    with suppress(FileNotFoundError), opened_folder(base) as base_fd:
        for name in filter(_NAME.fullmatch, entries(base_fd)):
            with suppress(OSError), opened_folder(base / name, base_fd) as folder_fd:
                if read_info(base / name, folder_fd)[1]:
                    names.append(name)
    return sorted(names)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    with opened_folder(folder.parent) as base_fd, opened_folder(folder, base_fd) as folder_fd:
        yield folder_fd


@contextmanager
def _not_found(folder: Path) -> Iterator[None]:
    """Turn what the system answers while a broker is looked for into BrokerNotFound."""
    try:
        yield
    except MpbrokerError:
        raise
    except FileNotFoundError:
        raise BrokerNotFound(folder.name, str(folder), _why_missing(folder)) from None
    except OSError as error:
        if error.errno is None:
            raise  # not the system's: a signal handler raised it
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise OSError(error.errno, _no_descriptor(error.errno)) from None
        raise BrokerNotFound(folder.name, str(folder), f"can't look there, {error}") from error


def _no_descriptor(number: int) -> str:
    """Why this process cannot look: nothing is said of the broker by that."""
    return (
        f"{os.strerror(number)}: this process has no file descriptor left for a connection to the broker; "
        "close some, or raise its limit (`ulimit -n`), and call again"
    )


def _why_missing(folder: Path) -> str:
    base = folder.parent
    if not os.path.lexists(base):
        return f"there is no folder {base}"
    if os.path.lexists(folder):
        return _IN_BETWEEN
    others: list[str] = []
    with suppress(OSError):
        others = list_brokers(base)
    if not others:
        return "none runs there"
    more = " and more" if len(others) > _SHOWN else ""
    return f"none of that name runs there, only {', '.join(others[:_SHOWN])}{more}"


def _check_socket(folder: Path, folder_fd: int) -> None:
    found = os.stat(SOCKET, dir_fd=folder_fd, follow_symlinks=False)
    check(found, stat.S_IFSOCK, folder / SOCKET)


def entries(base_fd: int) -> list[str]:
    """Return the names in a base folder, as many as are worth a look."""
    with os.scandir(base_fd) as found:
        return [entry.name for entry in islice(found, _ENTRIES)]


def read_info(folder: Path, folder_fd: int) -> tuple[BrokerInfo | None, bool]:
    """Return what a broker wrote about itself, None if that can't be read; and whether it lives."""
    content, alive = _read(folder / INFO, _INFO_BYTES, folder_fd)
    try:
        return msgspec.json.decode(content, type=BrokerInfo), alive
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, alive


def _read(path: Path, limit: int, folder_fd: int) -> tuple[bytes, bool]:
    """The content of a file, one byte over the limit at most; and whether its writer holds it."""
    fd = open_checked(path, os.O_RDONLY, stat.S_IFREG, folder_fd)
    try:
        return os.read(fd, limit + 1), not try_lock(fd, shared=True)
    finally:
        os.close(fd)
