"""Loan: memory to write a large payload into, instead of having it copied there.

Owns the life of one: written, then published once, or given back. Where the memory is does not matter to it; it only
makes sure that nobody can write there any more once others may read.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Final, NoReturn, Self

_OTHERS: Final = 3
"""References to what exports the memory where nobody looks at it: the loan's, the caller's, and the argument."""


class Loan:
    """A buffer to fill in place and publish; made by ``broker.loan(nbytes)``.

    ``publish`` takes it as a payload, once. Then it is nobody's to write: arrays made of it, slices and other views
    must be gone before (``del array``), or publish raises BufferError and nothing changes. Its readers get a read-only
    memoryview. As a context manager it is given back at the end of the block, unless it was published. It belongs to
    the process that asked for it, and what is written into it in a forked child is not seen by anybody else.

    Attributes:
        nbytes: its size.
    """

    __slots__ = ("__weakref__", "_exporter", "_view", "block", "nbytes")

    def __init__(self, exporter: Any, nbytes: int, block: object = None) -> None:
        """exporter: what has the memory; block: what it is where it was lent."""
        self.nbytes: Final = nbytes
        self.block: object = block
        self._exporter: Any = exporter
        self._view: memoryview | None = memoryview(exporter).cast("B")[:nbytes]

    @property
    def buffer(self) -> memoryview:
        """The memory, bytes to write; what is in it at first is anything. Raises ValueError: it is over."""
        if self._view is None:
            raise ValueError("this loan was published or given back; broker.loan() makes another one")
        return self._view

    @property
    def is_over(self) -> bool:
        """Whether it was published or given back."""
        return self._view is None

    def take(self) -> memoryview:
        """For publish: what was written, to read; nobody writes there from now on.

        Raises:
            ValueError: it is over. BufferError: there are views of it.
        """
        view = self.buffer
        exporter = self._exporter
        try:
            view.release()
        except BufferError:
            raise self._refusal() from None
        if sys.getrefcount(exporter) > _OTHERS:
            self._view = memoryview(exporter).cast("B")[: self.nbytes]
            raise self._refusal()
        self._view = self._exporter = None
        return memoryview(exporter).cast("B")[: self.nbytes].toreadonly()

    def close(self) -> None:
        """Give it back, unless it was published. Views of it that are left stay valid. Any number of times."""
        self._view = self._exporter = self.block = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a loan stays in its process; publish it there")

    def __repr__(self) -> str:
        return f"<Loan of {self.nbytes:,} bytes{'' if self._view is not None else ', over'}>"

    def _refusal(self) -> BufferError:
        return BufferError(
            f"a loan of {self.nbytes:,} bytes cannot be published while arrays or views of it can still write there; "
            "delete them first"
        )


def empty_loan(nbytes: int) -> Loan:
    """A loan of this process's own memory, where there is no arena."""
    return Loan(bytearray(nbytes), nbytes)
