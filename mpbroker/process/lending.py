"""A publisher process's arena: the segments that it writes, and the blocks of them that it lends.

Owns where a payload is put, and when a place may be written again: when the broker says that nobody needs it. What
became of a block this side never assumes: whatever ended its use here (published, refused, interrupted), it is in doubt
until the broker, asked, says that no publish brought it, or that it is over. So nothing is written twice, and nothing
that is interrupted anywhere is lost. Small messages have nothing to do with it. Client side; imported by presence.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from mpbroker.errors import ArenaFull, LimitReached, MpbrokerError, PayloadTooLarge, ProtocolViolation
from mpbroker.loans import Loan
from mpbroker.process import frames
from mpbroker.process.channel import Ended
from mpbroker.process.frames import Freed, FreedReply, Number, Reply, Report, Welcome
from mpbroker.process.holding import Holding
from mpbroker.process.payloads import BATCH_BYTES, Buffer, Kept, Placed, encode_placed, places
from mpbroker.shm.arena import PAGE_BYTES, Arena, class_bytes
from mpbroker.shm.segment import NoSharedMemory, Segment
from mpbroker.shm.view import Mapped

FIRST_BYTES: Final = 8 << 20
LARGEST_BYTES: Final = 64 << 20
"""Of a segment: as much as all before it, between these; one that a larger payload needs has its size."""

_MOST_DOUBTS: Final = 4096
"""Blocks in one question."""

_SELDOM: Final = 64
"""Blocks taken between two questions, at most, where the last ones freed nothing."""

_IDLE_S: Final = 1.0
"""Seconds without a publish after which segments of which nothing is lent are let go of; then twice as many."""

_RARELY_S: Final = 64.0

Exchange = Callable[[frames.Frame], Reply]
"""A call of this process."""

Explain = Callable[[Ended], NoReturn]
"""Raises what it means that the lane ended."""

_log = logging.getLogger("mpbroker.client")


class Lent:
    """A block, while this side has something to do with it. Then it is in doubt."""

    __slots__ = ("lending", "offset", "segment", "serial", "size")

    def __init__(self, lending: Lending, segment: int, offset: int, serial: int, size: int) -> None:
        self.lending = lending
        self.segment = segment
        self.offset = offset
        self.serial = serial
        self.size = size

    def __del__(self) -> None:
        self.lending.doubtful[self.serial] = (self.segment, self.offset)


class Lending:
    """The arena of one session. For any number of threads.

    Attributes:
        threshold: bytes from which a payload goes there.
        doubtful: blocks of which it is not known what became of them: serial -> segment, offset.
    """

    def __init__(self, holding: Holding, welcome: Welcome, exchange: Exchange, explain: Explain) -> None:
        self.threshold: Final = welcome.arena_threshold
        self.doubtful: dict[int, tuple[int, int]] = {}
        self._most = welcome.arena_bytes
        self._timeout = welcome.arena_timeout
        self._holding = holding
        self._exchange = exchange
        self._explain = explain
        self._arena = Arena()
        self._segments: dict[int, Mapped] = {}
        self._serials = itertools.count(1)
        self._seen = 0
        self._every = 1  # blocks taken between two questions
        self._taken = 0
        self._used_at = 0.0
        self._pause_s = _IDLE_S
        self._lock = threading.RLock()  # guards the arena and the segments; never held while anybody is asked
        self._loans: weakref.WeakSet[Loan] = weakref.WeakSet()
        holding.helper = self._tend
        holding.on_fork = self._after_fork

    # -- a place ------------------------------------------------------------------------------------------------------

    def put(self, pickled: bytes, buffers: Sequence[Buffer]) -> Kept | None:
        """Copy buffers into a block; see Place. Waits for room up to the broker's arena_timeout.

        Raises ArenaFull; PayloadTooLarge: more than ever fits; and what a call raises.
        """
        views = [memoryview(each).cast("B") if type(each) is memoryview else memoryview(each) for each in buffers]
        sizes = [view.nbytes for view in views]
        *begins, total = places(sizes)
        lent = self._lend(total)
        if lent is None:
            return None
        memory = self._segments[lent.segment].segment.view
        for begin, view in zip(begins, views, strict=True):
            at = lent.offset + begin
            memory[at : at + view.nbytes] = view
        return self._kept(lent, sizes, pickled)

    def loan(self, nbytes: int) -> Loan | None:
        """A block to write in place; None: there is none to be had. Raises what `put` raises."""
        lent = self._lend(nbytes)
        if lent is None:
            return None
        loan = Loan(self._segments[lent.segment].exporter(lent.offset, nbytes, lent), nbytes, lent)
        self._loans.add(loan)
        return loan

    def _after_fork(self) -> None:
        """In the child, which may write into what it inherited, and is not to be seen doing so."""
        self._lock = threading.RLock()
        written = [(loan.buffer, bytes(loan.buffer)) for loan in list(self._loans) if not loan.is_over]
        for mapped in self._segments.values():
            mapped.become_private()
        for buffer, content in written:
            buffer[:] = content

    def settle(self, loan: Loan, pickled: bytes) -> Kept | None:
        """The encoded payload of a loan; None: it is not of here."""
        lent = loan.block
        if not isinstance(lent, Lent) or lent.lending is not self:
            return None
        return self._kept(lent, [loan.nbytes], pickled)

    def _kept(self, lent: Lent, sizes: list[int], pickled: bytes) -> Kept:
        return Kept.of(encode_placed(Placed(lent.segment, lent.serial, lent.offset, sizes, pickled)), lent)

    # -- room ---------------------------------------------------------------------------------------------------------

    def _lend(self, nbytes: int) -> Lent | None:
        """A block of that size; None where no memory is to be had at all."""
        if class_bytes(nbytes) > self._most:
            raise PayloadTooLarge("this payload", nbytes, self._most, "max_client_arena_bytes")
        self._used_at = time.monotonic()
        self._taken += 1
        if self._taken >= self._every and (self.doubtful or self._arena.used):
            self._ask_what_is_free()
        lent = self._take(nbytes)
        if lent is not None:
            return lent
        self._ask_what_is_free()
        deadline = time.monotonic() + self._timeout
        limit = ("max_client_arena_bytes", self._most)
        while True:
            lent = self._take(nbytes)
            if lent is not None:
                return lent
            try:
                if self._grow(nbytes):
                    continue
            except NoSharedMemory as error:
                _log.warning("a payload of %d bytes travels as it is: %s", nbytes, error)
                return None
            except LimitReached as full:
                limit = (str(full.args[2]) or "segments", int(full.args[1]))
            left = deadline - time.monotonic()
            if left <= 0.0:
                raise self._full(nbytes, *limit)
            self._ask(left)

    def _take(self, nbytes: int) -> Lent | None:
        serial = next(self._serials)
        with self._lock:
            found = self._arena.take(nbytes, serial)
            # Interrupted before this, it is never given back: with it goes one block of the session.
            return None if found is None else Lent(self, *found, serial, class_bytes(nbytes))

    def _grow(self, nbytes: int) -> bool:
        """Make a segment in which that fits; whether there is one.

        Raises:
            LimitReached: the broker takes no more. NoSharedMemory: there is none.
        """
        try:
            return self._holding.do(lambda: self._make_segment(class_bytes(nbytes)))
        except Ended as error:
            self._explain(error)

    def _full(self, nbytes: int, option: str, limit: int) -> ArenaFull:
        """The error, with who pins most."""
        top_pid = top_bytes = used = 0
        report = self._exchange(frames.Status())
        if isinstance(report, Report):
            used = sum([each.used for each in report.arena])
            top = max(report.arena, key=lambda each: each.pinned, default=None)
            if top is not None:
                top_pid, top_bytes = top.pid, top.pinned
        return ArenaFull(nbytes, option, limit, used, top_pid, top_bytes)

    # -- what is free -------------------------------------------------------------------------------------------------

    def _ask_what_is_free(self) -> None:
        before = self._arena.used
        if not before and not self.doubtful:
            return
        self._taken = 0
        self._ask(0.0)
        self._every = 1 if self._arena.used < before else min(2 * self._every, _SELDOM)

    def _ask(self, timeout_s: float) -> None:
        """What is free, waiting so long while nothing is."""
        doubts = self._doubts()
        self._hear(self._exchange(Freed(self._seen, doubts, timeout_s)), doubts)

    def _doubts(self) -> list[int]:
        doubts = itertools.islice(list(self.doubtful.items()), _MOST_DOUBTS)
        return [number for serial, (segment, offset) in doubts for number in (segment, offset, serial)]

    def _hear(self, reply: Reply, doubts: list[int]) -> None:
        """What the broker said; heard twice, it is the same. It knows of the doubtful ones that were asked about."""
        if not isinstance(reply, FreedReply):
            raise ProtocolViolation(f"Freed was answered with {type(reply).__name__}")
        freed, at = reply.freed, 0
        with self._lock:
            while at < len(freed):
                self._arena.give_back(freed[at], freed[at + 1], freed[at + 2])
                at += 3
            self._seen = max(self._seen, reply.position)
        for serial in doubts[2::3]:
            self.doubtful.pop(serial, None)

    # -- in the thread of the lane ------------------------------------------------------------------------------------

    def _make_segment(self, nbytes: int) -> bool:
        with self._lock:
            reserved = self._arena.reserved
        size = max(nbytes, min(LARGEST_BYTES, max(FIRST_BYTES, reserved)))
        room = self._most - reserved
        if size > room and nbytes > room:
            # Those of which nothing is lent are too small for it.
            self._drop_free()
            with self._lock:
                room = self._most - self._arena.reserved
            if nbytes > room:
                return False
        size = min(size, room - room % PAGE_BYTES)
        self._holding.open()
        segment, descriptor = Segment.create(size, populate=True)
        try:
            reply, _ = self._holding.ask(frames.OfferSegment(size), descriptor)
        except LimitReached:
            raise
        except MpbrokerError as error:
            raise NoSharedMemory(str(error)) from None
        finally:
            os.close(descriptor)
        if type(reply) is not Number:
            raise ProtocolViolation(f"OfferSegment was answered with {type(reply).__name__}")
        with self._lock:
            self._segments[reply.value] = Mapped(segment)
            self._arena.add(reply.value, size)
        return True

    def _drop_free(self) -> None:
        """Let go of the segments of which nothing is lent."""
        with self._lock:
            gone = [segment for segment in self._arena.segments if self._arena.remove(segment)]
        for segment in gone:
            self._segments.pop(segment, None)
            self._holding.ask(frames.DropSegment(segment))

    def _tend(self) -> float | None:
        """While nobody publishes: give memory back."""
        with self._lock:
            if not self._arena.reserved:
                return None
        left = self._used_at + self._pause_s - time.monotonic()
        if left > 0.0:
            return left
        if self._used_at + 2 * _IDLE_S > time.monotonic():
            self._pause_s = _IDLE_S
        doubts = self._doubts()
        reply, _ = self._holding.ask(Freed(self._seen, doubts, 0.0))
        self._hear(reply, doubts)
        self._drop_free()
        self._pause_s = min(2 * self._pause_s, _RARELY_S)
        return self._pause_s


class Unopened:
    """The place of a process that has no session yet, which only a large payload opens."""

    __slots__ = ("_open",)
    threshold: Final = BATCH_BYTES

    def __init__(self, open_place: Callable[[], Lending | None]) -> None:
        self._open = open_place

    def put(self, pickled: bytes, buffers: Sequence[Buffer]) -> Kept | None:
        place = self._open()
        if place is None or sum([memoryview(each).nbytes for each in buffers]) < place.threshold:
            return None
        return place.put(pickled, buffers)

    def settle(self, loan: Loan, pickled: bytes) -> Kept | None:
        place = self._open()
        return None if place is None else place.settle(loan, pickled)
