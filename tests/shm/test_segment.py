"""A segment is written by one process alone, has its size for ever, and costs no descriptor."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpbroker.shm.segment import NoSharedMemory, Segment, is_there
from tests.shm.support import descriptors, mappings

SIZE = 2 * 4096


@pytest.fixture
def made() -> Iterator[tuple[Segment, int]]:
    own, fd = Segment.create(SIZE)
    yield own, fd
    own.close()
    os.close(fd)


def test_what_is_written_is_read_through_the_descriptor(made: tuple[Segment, int]) -> None:
    own, fd = made
    seen = Segment.attach(os.dup(fd), SIZE)
    own.words[3] = 2**64 - 1
    own.view[SIZE - 1] = 7
    assert (seen.words[3], seen.view[SIZE - 1], len(seen.view)) == (2**64 - 1, 7, SIZE)
    seen.close()


def test_a_new_segment_is_zero_everywhere(made: tuple[Segment, int]) -> None:
    assert bytes(made[0].view) == bytes(SIZE)


def test_its_size_is_fixed(made: tuple[Segment, int]) -> None:
    _, fd = made
    for size in (0, 4096, SIZE - 1, SIZE + 1, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        os.posix_fallocate(fd, 0, SIZE + 4096)


def test_nobody_else_can_write_it(made: tuple[Segment, int]) -> None:
    own, fd = made
    for way in (
        lambda: mmap.mmap(fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        lambda: os.pwrite(fd, b"x", 0),
        lambda: os.write(fd, b"x"),
    ):
        with pytest.raises(PermissionError):
            way()
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(again, SIZE, mmap.MAP_SHARED, mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.pwrite(again, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(again, 0)
    finally:
        os.close(again)
    with pytest.raises(OSError, match=r"."):
        Path(f"/proc/self/fd/{fd}").write_bytes(b"x")
    assert bytes(own.view[:8]) == bytes(8)


def test_its_seals_cannot_be_changed(made: tuple[Segment, int]) -> None:
    with pytest.raises(PermissionError):
        fcntl.fcntl(made[1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_who_attaches_cannot_write(made: tuple[Segment, int]) -> None:
    seen = Segment.attach(os.dup(made[1]), SIZE)
    with pytest.raises(TypeError, match="read-only"):
        seen.words[0] = 1
    seen.close()


def test_its_pages_are_there_before_anybody_writes(made: tuple[Segment, int]) -> None:
    assert os.fstat(made[1]).st_blocks * 512 >= SIZE


def test_nothing_keeps_a_descriptor_and_closing_unmaps() -> None:
    before, mapped = descriptors(), mappings()
    own, fd = Segment.create(SIZE)
    seen = Segment.attach(fd, SIZE)
    # Before 3.13 Python keeps one a mapping.
    kept = [] if sys.version_info >= (3, 13) else ["/memfd:mpbroker (deleted)"] * 2
    assert descriptors() == sorted(before + kept)
    assert mappings() == mapped + 2
    for each in (own, seen, own):
        each.close()
    assert (descriptors(), mappings()) == (before, mapped)


# -- what is not attached ---------------------------------------------------------------------------------------------


def memory(size: int, seals: int | None) -> int:
    fd = os.memfd_create("other", os.MFD_CLOEXEC | (0 if seals is None else os.MFD_ALLOW_SEALING))
    os.posix_fallocate(fd, 0, size)
    if seals is not None:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def a_file() -> int:
    with tempfile.TemporaryFile() as file:
        file.truncate(SIZE)
        return os.dup(file.fileno())


def one_of_a_pair() -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


def one_of_a_pipe() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


NOT_ATTACHED: dict[str, Callable[[], int]] = {
    "memory without seals": lambda: memory(SIZE, None),
    "memory that may still be sealed": lambda: memory(SIZE, 0),
    "memory that may be cut short": lambda: memory(SIZE, fcntl.F_SEAL_GROW),
    "too small": lambda: memory(SIZE - 4096, fcntl.F_SEAL_SHRINK),
    "too large": lambda: memory(SIZE + 4096, fcntl.F_SEAL_SHRINK),
    "empty": lambda: os.memfd_create("empty", os.MFD_ALLOW_SEALING),
    "a file": a_file,
    "a socket": one_of_a_pair,
    "a pipe": one_of_a_pipe,
    "a folder": lambda: os.open("/", os.O_RDONLY),
    "a device": lambda: os.open("/dev/zero", os.O_RDWR),
    "a path": lambda: os.open("/", os.O_PATH),
}


@pytest.mark.parametrize("kind", NOT_ATTACHED)
def test_what_is_no_sealed_memory_of_the_size_is_refused_and_closed(kind: str) -> None:
    before = descriptors()
    fd = NOT_ATTACHED[kind]()
    with pytest.raises(NoSharedMemory):
        Segment.attach(fd, SIZE)
    assert descriptors() == before


# -- what the system does not give ------------------------------------------------------------------------------------


def refuse(number: int) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("where", "name", "number"),
    [
        (os, "memfd_create", errno.EMFILE),
        (os, "memfd_create", errno.ENOSYS),
        (os, "posix_fallocate", errno.ENOSPC),
        (os, "posix_fallocate", errno.ENOMEM),
        (mmap, "mmap", errno.ENOMEM),
        (fcntl, "fcntl", errno.EINVAL),
    ],
)
def test_a_segment_that_cannot_be_made_says_so_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, number: int
) -> None:
    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(where, name, refuse(number))
        with pytest.raises(NoSharedMemory, match=os.strerror(number)):
            Segment.create(SIZE)
    assert descriptors() == before


def test_a_limit_on_the_size_of_files_is_no_signal_and_no_crash() -> None:
    """RLIMIT_FSIZE sends SIGXFSZ, which Python ignores."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(NoSharedMemory, match="8,192 bytes"):
            Segment.create(SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_interruption_between_the_steps_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before, mapped = descriptors(), mappings()
    for where, name in ((os, "posix_fallocate"), (fcntl, "fcntl")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                Segment.create(SIZE)
    assert (descriptors(), mappings()) == (before, mapped)


@pytest.mark.parametrize(("where", "name"), [(os, "memfd_create"), (socket, "send_fds"), (socket, "recv_fds")], ids=str)
def test_without_one_of_the_calls_there_is_none(monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> None:
    assert is_there()
    monkeypatch.delattr(where, name)
    assert not is_there()


def test_there_is_none_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not is_there()
