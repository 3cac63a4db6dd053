"""What a session holds of others' memory: its lane, the pins on it, the segments that are mapped.

A thread of its own does everything on the lane, so that no signal handler tears a request from its answer, and no
finalizer waits: those only take note. It sleeps for good while nothing is mapped, lent or noted.

A fork shares lanes: what is pinned there at that moment may be looked at in the child as well, so from then on only
the end of the lane's socket unpins it, when both processes have let go of it. The parent opens another one.

Client side; imported by presence.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from mpbroker.errors import MpbrokerError, ProtocolViolation
from mpbroker.pipeline.tending import Tended
from mpbroker.process import frames
from mpbroker.process.channel import Channel, Ended
from mpbroker.process.frames import Frame, Reply
from mpbroker.process.lane import HandOver, Lane
from mpbroker.shm.segment import NoSharedMemory, Segment
from mpbroker.shm.view import Mapped, Pin, is_alone

_SOON_S: Final = 0.001
"""Seconds that an unpin waits for others to go with."""

IDLE_S: Final = 1.0
"""Seconds without a look into a segment after which it is unmapped, unless views are left."""

_MOST: Final = 4096
"""Unpins in one request."""

_LOOK_S: Final = 1.0
"""Seconds between two looks whether the thread is still there that is waited for."""

T = TypeVar("T")


class Holding(Tended):
    """Of one session.

    Attributes:
        helper: has work of its own on the lane now and then: what it returns is as for `_tend`.
        on_fork: called in a forked child.
    """

    def __init__(self, open_lane: Callable[[], Channel]) -> None:
        self.helper: Callable[[], float | None] | None = None
        self.on_fork: Callable[[], None] | None = None
        self._open_lane = open_lane
        self._jobs: deque[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = deque()
        self._noted: deque[Pin] = deque()
        self._owed: list[HandOver] = []  # unpins that wait for a lane
        self._lane: Lane | None = None
        self._lanes: list[Lane] = []  # shared ones, and the one in use
        self._maps: dict[int, Mapped] = {}
        self._alive: weakref.WeakValueDictionary[int, Mapped] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()  # guards which lane a hand-over is noted on
        self._again_s = _SOON_S
        self._is_called = False  # the thread was woken and has not looked since
        self._is_over = False
        self._is_inherited = False

    # -- in any thread ------------------------------------------------------------------------------------------------

    @property
    def _patience(self) -> float:  # type: ignore[override]
        return 0.0 if self._jobs else _SOON_S

    def do(self, work: Callable[[], T]) -> T:
        """Have something done in the thread of the lane, and wait for it. Raises what it raises, and Ended."""
        done: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()
        self._jobs.append((work, done))
        self._call()
        while True:
            try:
                result, error = done.get(timeout=_LOOK_S)
            except queue.Empty:
                # At the end of the interpreter its threads are there, and never run again.
                if self._tender is None or self._is_inherited or sys.is_finalizing():
                    raise Ended(None) from None
                continue
            if error is None:
                return result  # type: ignore[return-value]
            try:
                raise error
            finally:
                # Or it and this frame are a cycle, which keeps what callers have, a pin, until the collector runs.
                del error

    def ask(self, request: Frame, descriptor: int = -1) -> tuple[Reply, int]:
        """A request on the lane, in its thread. See `Lane.ask`."""
        return self._current().ask(request, descriptor)

    def pin(self, subscription: int, token: int, number: int) -> Pin:
        """What was handed over with a pin, as long as anybody refers to what this returns.

        Opens the lane, if there is none; where none can be had it is pinned all the same, and is unpinned by the first
        one. Raises Ended.
        """
        lane = self._lane
        if lane is None or lane.is_shared:
            try:
                lane = self.do(self._current)
            except (MpbrokerError, OSError):
                return Pin((subscription, token), self._note)
        pin = Pin((subscription, token), self._note)
        with self._lock:
            for each in self._lanes:
                if each.number == number:
                    lane = each
            # On one that is retired what it did not know then is pinned on the next one.
            if lane.is_retired and self._lane is not None:
                lane = self._lane
            lane.hand_overs.add(pin.what)
        return pin

    def look(self, segment: int, offset: int, nbytes: int, pin: Pin) -> memoryview | None:
        """Bytes of a block that is pinned; None: it cannot be mapped here."""
        mapped = self._maps.get(segment)
        if mapped is None:
            if self._is_inherited:
                return None
            try:
                mapped = self.do(lambda: self._map(segment))
            except (NoSharedMemory, MpbrokerError, OSError, Ended):
                return None
        mapped.used = time.monotonic()
        return mapped.look(offset, nbytes, pin)

    def end(self) -> None:
        """The session is over. What is looked at stays pinned, as long as it is."""
        self._is_over = True
        # What they belong to has memory mapped, and goes with the last reference, not with the collector.
        self.helper = self.on_fork = None
        if self._is_inherited:
            return
        if self._tender is None:
            self._let_go()
        else:
            self._call()

    def _call(self) -> None:
        if self._tender is None:
            with self._lock:
                self._prepare()
        self._wake()

    def _note(self, pin: Pin) -> None:
        """For Pin: a finalizer, that may run anywhere."""
        if self._is_inherited:
            self._forget(pin.what)
            return
        self._noted.append(pin)
        if not self._is_called:
            self._is_called = True
            self._wake()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _tend(self) -> float | None:
        self._is_called = False
        while self._jobs:
            work, done = self._jobs.popleft()
            try:
                done.put((work(), None))
            except BaseException as error:  # noqa: BLE001 - it is for who waits
                done.put((None, error))
            del work, done
        is_left = self._unpin()
        # First it may be a thread that is still in the middle of noting it.
        self._again_s = min(IDLE_S, 2 * self._again_s) if is_left else _SOON_S
        pauses = [self._unmap_idle(), self._again_s if is_left else None]
        if self.helper is not None:
            with suppress(Ended, MpbrokerError, OSError):
                pauses.append(self.helper())
        if self._is_over and not any(lane.hand_overs for lane in self._lanes):
            self._let_go()
            return None
        pause = min((each for each in pauses if each is not None), default=None)
        if pause is None:
            self._rest()
            if self._noted or self._jobs:
                self._is_tended = True  # noted at this moment, by who saw that somebody will look
                return self._patience
        return pause

    def _unpin(self) -> bool:
        """Tell the broker what nobody looks at any more; whether something is left to look at again."""
        pins: list[Pin] = []
        left: list[Pin] = []
        gone: list[HandOver] = []
        while self._noted:
            pins.append(self._noted.popleft())
            if is_alone(pins):
                gone.append(pins.pop().what)
            else:
                left.append(pins.pop())
        self._noted.extend(left)
        lane = self._lane
        self._owed += [what for what in gone if not self._forget(what)]
        if lane is not None and self._owed:
            # Also if it was shared a moment ago: the child was forked without these.
            own, self._owed = self._owed, []
            with suppress(Ended, MpbrokerError):  # the session is over, or will be, and the pins with it
                for at in range(0, len(own), _MOST):
                    lane.ask(frames.Unpin(_flat(own[at : at + _MOST])))
        return bool(left)

    def _forget(self, what: HandOver) -> bool:
        """A hand-over is looked at no more; whether it was on a lane that is shared, which nobody unpins one by one."""
        with self._lock:
            for lane in list(self._lanes):
                if what in lane.hand_overs:
                    lane.hand_overs.discard(what)
                    if lane.is_shared and not lane.hand_overs and (lane is not self._lane or self._is_inherited):
                        self._lanes.remove(lane)
                        lane.close()
                    return lane.is_shared
        return False

    def open(self) -> None:
        """Have a lane, in its thread. Raises Ended, and NoSharedMemory: there is none to be had."""
        try:
            self._current()
        except (MpbrokerError, OSError) as error:
            raise NoSharedMemory(f"a connection for its descriptors: {error}") from None

    def _current(self) -> Lane:
        """The lane that is not shared; opens it."""
        lane = self._lane
        if lane is not None and not lane.is_shared:
            return lane
        if self._is_over:
            raise Ended(None)
        new = Lane(self._open_lane())
        with self._lock:
            self._lane = new
            self._lanes.append(new)
            known = []
            if lane is not None:
                lane.is_retired = True
                known = list(lane.known | lane.hand_overs)
        if lane is not None:
            new.ask(frames.RetireLane(lane.number, _flat(known)))
            with self._lock:
                if not lane.hand_overs:
                    self._lanes.remove(lane)
                    lane.close()
        return new

    def _map(self, number: int) -> Mapped:
        mapped = self._maps.get(number) or self._alive.get(number)
        if mapped is None:
            reply, descriptor = self._current().ask(frames.MapSegment(number))
            if type(reply) is not frames.Done or descriptor < 0:
                raise ProtocolViolation(f"MapSegment was answered with {type(reply).__name__}")
            mapped = Mapped(Segment.attach(descriptor, os.fstat(descriptor).st_size, populate=True))
        mapped.used = time.monotonic()
        self._maps[number] = self._alive[number] = mapped
        return mapped

    def _unmap_idle(self) -> float | None:
        """Let go of the maps that were not looked into lately; seconds until others may have to go."""
        if not self._maps:
            return None
        before = time.monotonic() - IDLE_S
        for number, mapped in list(self._maps.items()):
            if mapped.used <= before:
                del self._maps[number]
        return IDLE_S if self._maps else None

    def _let_go(self) -> None:
        self._maps.clear()
        lanes, self._lanes = self._lanes, []
        self._lane = None
        for lane in lanes:
            lane.close()
        self._end_tending()

    # -- forks --------------------------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        # Held over the fork: what another thread is handed meanwhile would be in the child, and nobody would know.
        self._lock.acquire()
        lane = self._lane
        if lane is not None and lane.hand_overs.difference([pin.what for pin in list(self._noted)]):
            lane.is_shared = True
            lane.known = set(lane.hand_overs)

    def _forked(self) -> None:
        with suppress(RuntimeError):  # it came to be after the fork had begun
            self._lock.release()

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._is_inherited = True
        self.helper = None
        if self.on_fork is not None:
            self.on_fork()
        self._is_called = False
        self._jobs.clear()
        while self._noted:
            self._forget(self._noted.popleft().what)
        self._lane = None
        for lane in list(self._lanes):
            if not (lane.is_shared and lane.hand_overs):
                self._lanes.remove(lane)
                lane.close()

    def _at_exit(self) -> None:
        """Nothing: the broker sees the end of the process, and what it looks at is there until then."""


def _flat(hand_overs: list[HandOver]) -> list[int]:
    return [number for each in hand_overs for number in each]
