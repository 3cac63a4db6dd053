"""A segment: memory that one process writes and another one reads. It has no name, so nothing is left of it.

Owns making, sealing, handing over and mapping. Knows nothing of what is written. Linux only, which `create` and
`attach` say by raising NoSharedMemory; nothing of Linux is imported before they are called.
"""

from __future__ import annotations

import mmap
import os
import socket
import stat
import sys
from array import array
from typing import Final, Self

_SEAL_FUTURE_WRITE: Final = 0x10
"""F_SEAL_FUTURE_WRITE of linux/fcntl.h: who gets the descriptor can map it for reading only, also through /proc."""


_FD_BYTES: Final = array("i").itemsize


class NoSharedMemory(Exception):
    """It cannot be had here. Args: why."""


class Segment:
    """Mapped memory.

    Attributes:
        view: all of it.
        words: the same as 64-bit words.
    """

    __slots__ = ("_map", "view", "words")

    def __init__(self, mapped: mmap.mmap) -> None:
        """Made by `create` and `attach`."""
        self._map = mapped
        self.view = memoryview(mapped)
        self.words = self.view.cast("Q")

    @classmethod
    def create(cls, size: int, *, populate: bool = False) -> tuple[Self, int]:
        """Memory to write, and the descriptor for the reader; the caller closes that. populate: see `attach`.

        Its pages are there, its size is fixed, and nobody else can ever write it. Raises NoSharedMemory.
        """
        fd = -1
        try:
            fd = os.memfd_create("mpbroker", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            import fcntl

            # Not ftruncate: memory that is short is an error here, where it would be a fatal signal later.
            os.posix_fallocate(fd, 0, size)
            mapped = _mapped(fd, size, mmap.PROT_READ | mmap.PROT_WRITE, populate=populate)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return cls(mapped), fd
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
            if isinstance(error, (ImportError, AttributeError, OSError, ValueError, OverflowError)):
                what = "memfd_create" if fd < 0 else f"a segment of {size:,} bytes"
                raise NoSharedMemory(f"{what}: {error}") from None
            raise

    @classmethod
    def attach(cls, fd: int, size: int, *, populate: bool = False) -> Self:
        """Another process's memory, to read; closes the descriptor. populate: map all of it now, which costs less than
        page by page where it is looked at again and again.

        Raises NoSharedMemory: it cannot be mapped, is of another size, or could still be cut short, which would end a
        reader by a signal.
        """
        try:
            check(fd, size)
            return cls(_mapped(fd, size, mmap.PROT_READ, populate=populate))
        except (OSError, ValueError) as error:
            raise NoSharedMemory(f"mapping the other side's memory: {error}") from None
        finally:
            os.close(fd)

    def close(self) -> None:
        """Unmap it. Any number of times; it must not be looked at after."""
        self.words.release()
        self.view.release()
        self._map.close()


def check(fd: int, size: int) -> None:
    """Raise NoSharedMemory when a descriptor is not of that much memory, which nobody can cut short."""
    try:
        import fcntl

        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise NoSharedMemory(f"the descriptor is not of {size:,} bytes of memory")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise NoSharedMemory("the memory is not sealed against being cut short")
    except (ImportError, OSError) as error:
        raise NoSharedMemory(f"looking at the other side's memory: {error}") from None


def _mapped(fd: int, size: int, protection: int, *, populate: bool) -> mmap.mmap:
    """Before 3.13 the mapping keeps a descriptor of its own, to be able to grow."""
    flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, flags, protection, trackfd=False)
    return mmap.mmap(fd, size, flags, protection)


def receive(sock: socket.socket, size: int) -> tuple[bytes, int]:
    """Up to so many bytes of a socket, and the descriptor that came with them; -1 for none.

    More descriptors than one are let go of. Not `socket.recv_fds`, which drops the flag that keeps a descriptor from
    programs that another thread starts meanwhile.
    """
    chunk, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_LEN(_FD_BYTES), socket.MSG_CMSG_CLOEXEC)
    came = array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            came.frombytes(content[: len(content) - len(content) % _FD_BYTES])
    for each in came[1:]:
        os.close(each)
    return chunk, came[0] if came else -1


def is_there() -> bool:
    """Whether segments, and passing their descriptors, are at all possible here."""
    has_calls = hasattr(os, "memfd_create") and hasattr(socket, "send_fds") and hasattr(socket, "recv_fds")
    return sys.platform.startswith("linux") and has_calls and sys.byteorder == "little"
