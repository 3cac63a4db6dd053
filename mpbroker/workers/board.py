"""The board: what each worker does at this moment, in memory that it shares with its supervisor.

Owns the layout and the reading of a slot that another process may be changing. A worker writes its own slot and wakes
nobody, so that a message costs no system call; the supervisor looks when it has to. Decides nothing.

A slot is a row of 64-bit words. Its first one is odd while the worker changes the others: who reads looks at it before
and after. A worker that is killed in between leaves it odd, so a reader takes what is there after some tries.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

MAX_PREFETCH: Final = 256
"""Messages that one worker may have fetched and not begun; each has a word in its slot."""

(
    _VERSION,
    _STATE,
    _SINCE,
    _SEQUENCE,
    _DEADLINE,
    _LEASE,
    _DONE,
    _FAILED,
    _LOST,
    _STOP,
    _PID,
    _SERIAL,
    _STARTED,
    _WAITING,
    _FIRST_WAITING,
) = range(15)
_WORDS: Final = _FIRST_WAITING + MAX_PREFETCH
_TRIES: Final = 100

MEMORY_NAME: Final = "mpbroker-pool"
"""Of the memory, where the system shows it beside the supervisor's descriptor."""

_HEADER_BYTES: Final = 4096


class State(IntEnum):
    """What a worker does. EMPTY: there is none in this slot."""

    EMPTY = 0
    STARTING = 1
    IDLE = 2
    BUSY = 3
    ENDING = 4


@dataclass(frozen=True, slots=True)
class Look:
    """One slot, at one instant.

    since_ns: when its state began, on the host's monotonic clock. sequence: of the message it works on. deadline_ns,
    lease_ns: of what it was handed last. waiting: sequences that it fetched and did not begin.
    """

    state: State
    since_ns: int
    sequence: int
    deadline_ns: int
    lease_ns: int
    done: int
    failed: int
    waiting: tuple[int, ...]

    @property
    def held(self) -> tuple[int, ...]:
        """All that it has: what it works on, and what waits."""
        return (self.sequence, *self.waiting) if self.state is State.BUSY else self.waiting


class Slot:
    """The words of one worker (or of one thread of it)."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    # -- for the worker -----------------------------------------------------------------------------------------------

    def starting(self, serial: int) -> None:
        """A new worker has this slot; for the supervisor, before there is one."""
        words = self._words
        for index in range(_WORDS):
            words[index] = 0
        words[_STATE], words[_SERIAL] = State.STARTING, serial
        words[_SINCE] = words[_STARTED] = time.monotonic_ns()

    def fetched(self, sequences: list[int], deadline_ns: int, lease_ns: int) -> None:
        """These were handed over, and wait."""
        words = self._words
        words[_VERSION] += 1
        words[_DEADLINE], words[_LEASE] = deadline_ns, lease_ns
        for index, sequence in enumerate(sequences, _FIRST_WAITING):
            words[index] = sequence
        words[_WAITING] = len(sequences)
        words[_VERSION] += 1

    def begins(self, sequence: int, left: int) -> None:
        """It works on a message now, the first of those that waited; ``left`` of them wait on."""
        words = self._words
        words[_VERSION] += 1
        words[_STATE], words[_SINCE], words[_SEQUENCE] = State.BUSY, time.monotonic_ns(), sequence
        start = _FIRST_WAITING + words[_WAITING] - left
        # The list is kept at its beginning, which is cheap for the few that there are.
        for index in range(left):
            words[_FIRST_WAITING + index] = words[start + index]
        words[_WAITING] = left
        words[_VERSION] += 1

    def ended(self, *, failed: bool) -> None:
        """It is done with the message."""
        words = self._words
        words[_VERSION] += 1
        words[_FAILED if failed else _DONE] += 1
        words[_STATE], words[_SINCE] = State.IDLE, time.monotonic_ns()
        words[_VERSION] += 1

    def waits_no_more(self) -> None:
        """What waited was given back."""
        words = self._words
        words[_VERSION] += 1
        words[_WAITING] = 0
        words[_VERSION] += 1

    def idle(self) -> None:
        """It waits for messages."""
        self._to(State.IDLE)

    def ending(self) -> None:
        """It works on nothing more."""
        self._to(State.ENDING)

    def _to(self, state: State) -> None:
        words = self._words
        if words[_STATE] != state:
            words[_VERSION] += 1
            words[_STATE], words[_SINCE] = state, time.monotonic_ns()
            words[_WAITING] = 0
            words[_VERSION] += 1

    @property
    def is_told_to_stop(self) -> bool:
        return self._words[_STOP] != 0

    @property
    def is_lost(self) -> bool:
        """The message it works on was taken back, or soon will be."""
        return self._words[_LOST] == self._words[_SINCE]

    # -- for the supervisor -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Have the worker begin nothing more."""
        self._words[_STOP] = 1

    def lost(self, since_ns: int) -> None:
        """What the worker does since then is for nothing."""
        self._words[_LOST] = since_ns

    def started(self, pid: int) -> None:
        """The worker is that process."""
        self._words[_PID] = pid

    @property
    def process(self) -> tuple[int, int, int]:
        """Its pid, its serial, and when it was started, in ns."""
        return self._words[_PID], self._words[_SERIAL], self._words[_STARTED]

    def clear(self) -> None:
        self._words[_STATE] = State.EMPTY

    def look(self) -> Look:
        words = self._words
        for _ in range(_TRIES):
            before = words[_VERSION]
            found = self._look()
            if before % 2 == 0 and words[_VERSION] == before:
                break
        return found

    def _look(self) -> Look:
        words = self._words
        count = min(words[_WAITING], MAX_PREFETCH)
        return Look(
            State(words[_STATE]),
            words[_SINCE],
            words[_SEQUENCE],
            words[_DEADLINE],
            words[_LEASE],
            words[_DONE],
            words[_FAILED],
            tuple(words[_FIRST_WAITING : _FIRST_WAITING + count]),
        )


class Board:
    """The slots of a pool; made before the fork, and shared by it.

    told: what it says of its pool to whoever looks at it from outside, at most 4 KiB; see `looking`.
    """

    def __init__(self, slots: int, told: bytes = b"") -> None:
        size = _HEADER_BYTES + slots * _WORDS * 8
        create = getattr(os, "memfd_create", None)
        descriptor = -1 if create is None else create(MEMORY_NAME)
        if descriptor >= 0:
            os.ftruncate(descriptor, size)
        self._memory = mmap.mmap(descriptor, size)
        if descriptor >= 0:
            os.close(descriptor)  # the memory has one of its own
        self._memory[: len(told)] = told
        self.slots = _slots_in(memoryview(self._memory))


def read_board(board: int) -> tuple[bytes, list[Slot]]:
    """What a board says of its pool, and its slots at this moment. Raises OSError, ValueError.

    board: a descriptor of its memory, which outlives the processes of the pool.
    """
    with open(board, "rb", closefd=False) as file:
        file.seek(0)
        found = bytearray(file.read())
    return bytes(found[:_HEADER_BYTES]).rstrip(b"\0"), _slots_in(memoryview(found))


def _slots_in(memory: memoryview) -> list[Slot]:
    words = memory[_HEADER_BYTES:].cast("Q")
    return [Slot(words[at : at + _WORDS]) for at in range(0, len(words), _WORDS)]
