"""Whatever lies in a broker's folder, a look at it finds a broker that is one, or says why not."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

import msgspec

from mpbroker.errors import BrokerNotFound, InvalidName
from mpbroker.process.naming import INFO, KEY, KEY_BYTES, SOCKET, BrokerInfo, check_broker_name, list_brokers, locate_at
from tests.fuzz.draw import Draw

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def target(data: bytes) -> None:
    draw = Draw(data)
    is_held, has_socket, has_key = draw.below(4) > 0, draw.below(4) > 0, draw.below(4) > 0
    key = draw.take(draw.one_of((KEY_BYTES, KEY_BYTES, KEY_BYTES - 1, KEY_BYTES + 1, 0)))
    content = draw.rest()
    check_name(content.decode("utf-8", "surrogateescape"))
    folder = a_folder()
    write(folder / INFO, content)
    (folder / KEY).unlink(missing_ok=True)
    (folder / SOCKET).unlink(missing_ok=True)
    if has_key:
        write(folder / KEY, key)
    if has_socket:
        os.mknod(folder / SOCKET, stat.S_IFSOCK | 0o600)
    holder = os.open(folder / INFO, os.O_RDONLY)
    try:
        if is_held:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        look(folder, content, key, is_held and has_socket and has_key, is_held)
    finally:
        os.close(holder)


@cache
def a_folder() -> Path:
    """The folder of a broker named orders, in a base of its own; one for all inputs of this process."""
    base = tempfile.mkdtemp(prefix="mpb-")
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    folder = Path(base, "orders")
    folder.mkdir(0o700)
    return folder


def write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, content)
    os.close(fd)


def look(folder: Path, content: bytes, key: bytes, is_whole: bool, is_held: bool) -> None:
    assert list_brokers(folder.parent) == (["orders"] if is_held else [])
    try:
        located = locate_at(folder)
    except BrokerNotFound as error:
        name, where, reason = error.args
        assert (name, where) == ("orders", str(folder))
        assert reason
        assert reason in str(error)
        assert not (is_whole and len(key) == KEY_BYTES and info_in(content) is not None)
        return
    assert is_whole
    assert located.key == key
    assert len(key) == KEY_BYTES
    assert located.info == info_in(content)


def info_in(content: bytes) -> BrokerInfo | None:
    """None for what cannot be read."""
    try:
        return msgspec.json.decode(content, type=BrokerInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def check_name(text: str) -> None:
    try:
        check_broker_name(text)
    except InvalidName as error:
        assert not _NAME.fullmatch(text)
        str(error)
    else:
        assert _NAME.fullmatch(text)
