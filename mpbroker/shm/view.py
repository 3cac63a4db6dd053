"""A read-only view of mapped memory that keeps something until the last view of it is gone.

Views of views, casts, arrays of numpy: all refer to what exports the memory, and that to what it keeps. It is one way
for all versions: what exports is an array of ctypes at the address, since a class can export memory itself only from
Python 3.12 on. Owns that trick, and how to tell what nobody refers to any more. Linux only, when it is called.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mpbroker.shm.arena import class_bytes

if TYPE_CHECKING:
    from mpbroker.shm.segment import Segment

_ALONE: Final = 2
"""References to what only its caller knows, as sys.getrefcount counts: the caller's, and the argument."""


class Pin:
    """What a view keeps. ``note`` is called with it when nobody looks any more, or so it seems: in whatever thread, in
    the middle of whatever that does. See `is_alone`."""

    __slots__ = ("_note", "what")

    def __init__(self, what: tuple[int, int], note: Callable[[Pin], None]) -> None:
        self.what = what
        self._note = note

    def __del__(self) -> None:
        self._note(self)


def is_alone(pins: list[Pin]) -> bool:
    """Whether nobody else refers to the last one of a list.

    Python finalizes each object of a cycle that is garbage before it frees any, so a finalizer of the user's may see
    (and save) an array whose pin was finalized a moment ago. The pin is still referred to then.
    """
    return sys.getrefcount(pins[-1]) <= _ALONE


class Mapped:
    """A segment of this or another process, mapped until nobody refers to this, or to a view of it."""

    __slots__ = ("__weakref__", "address", "nbytes", "segment", "used")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.nbytes = len(segment.view)
        self.address = _address(segment.view)
        self.used = 0.0

    def look(self, offset: int, nbytes: int, keeps: object) -> memoryview:
        """Bytes of it, read-only; ``keeps`` is kept, and the mapping."""
        return memoryview(self.exporter(offset, nbytes, keeps)).cast("B")[:nbytes].toreadonly()

    def become_private(self) -> None:
        """In a forked child: put other memory, all zeros, in the place of this one, which is the parent's to write.
        Views of it stay valid."""
        import ctypes
        import mmap

        fixed = 0x10  # MAP_FIXED, of every Linux
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
        put = ctypes.CDLL(None, use_errno=True).mmap
        put.restype = ctypes.c_void_p
        put.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong)
        put(self.address, self.nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)

    def exporter(self, offset: int, nbytes: int, keeps: object) -> Any:
        """What exports these bytes, and perhaps some more, for writing; each view of it refers to it."""
        assert 0 <= offset <= self.nbytes - nbytes
        # Of the size of its class, so that there are few types: making one takes longer than all the rest.
        length = min(class_bytes(nbytes), self.nbytes - offset)
        exporter = _exporters(length).from_address(self.address + offset)
        exporter.keeps = (self.segment, keeps)
        return exporter


@functools.lru_cache(maxsize=512)
def _exporters(length: int) -> Any:
    """The type of what exports so many bytes. Its instances have attributes, as arrays of ctypes alone have not."""
    import ctypes

    return type("Exporter", (ctypes.Array,), {"_type_": ctypes.c_ubyte, "_length_": length})


def _address(view: memoryview) -> int:
    """Where memory is that may be for reading only, which ctypes itself does not tell."""
    import ctypes

    class PyBuffer(ctypes.Structure):
        """Py_buffer of the stable interface of Python."""

        _fields_ = (
            ("buf", ctypes.c_void_p),
            ("obj", ctypes.c_void_p),
            ("len", ctypes.c_ssize_t),
            ("itemsize", ctypes.c_ssize_t),
            ("readonly", ctypes.c_int),
            ("ndim", ctypes.c_int),
            ("format", ctypes.c_void_p),
            ("shape", ctypes.c_void_p),
            ("strides", ctypes.c_void_p),
            ("suboffsets", ctypes.c_void_p),
            ("internal", ctypes.c_void_p),
        )

    buffer = PyBuffer()
    if ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0) != 0:
        raise BufferError("memory without an address")
    try:
        return int(buffer.buf)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
