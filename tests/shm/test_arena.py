"""The allocator against a naive model: what is lent never overlaps, fits, and is counted exactly."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mpbroker.shm.arena import PAGE_BYTES, Arena, class_bytes

LONG: Final = bool(os.environ.get("MPBROKER_LONG"))
SIZES: Final = st.one_of(st.integers(1, 3 * PAGE_BYTES), st.integers(1, 80 * PAGE_BYTES))


@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 4097, 65_536, 65_537, 100_000, 1 << 20, (1 << 20) + 1, 3 << 30])
def test_a_class_holds_what_it_is_for_and_wastes_an_eighth_or_a_page_at_most(nbytes: int) -> None:
    size = class_bytes(nbytes)
    assert size >= nbytes
    assert size % PAGE_BYTES == 0
    assert size - nbytes <= max(PAGE_BYTES - 1, nbytes / 8)
    assert class_bytes(size) == size


def test_there_are_few_classes() -> None:
    assert len({class_bytes(n) for n in range(64 << 10, 1 << 20, 997)}) <= 33


class ArenaMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena()
        self.sizes: dict[int, int] = {}
        self.lent: dict[int, tuple[int, int, int]] = {}
        self.gone: list[tuple[int, int, int]] = []
        self.serial = 0
        self.number = 0

    @rule(pages=st.integers(1, 100))
    def add(self, pages: int) -> None:
        self.number += 1
        self.sizes[self.number] = pages * PAGE_BYTES
        self.arena.add(self.number, pages * PAGE_BYTES)

    def gaps(self, segment: int) -> list[int]:
        at, widths = 0, []
        for offset, size in sorted((o, size) for s, o, size in self.lent.values() if s == segment):
            widths.append(offset - at)
            at = offset + size
        return [*widths, self.sizes[segment] - at]

    @rule(nbytes=SIZES)
    def take(self, nbytes: int) -> None:
        self.serial += 1
        size = class_bytes(nbytes)
        found = self.arena.take(nbytes, self.serial)
        fits = any(width >= size for segment in self.sizes for width in self.gaps(segment))
        assert (found is not None) == fits
        if found is not None:
            segment, offset = found
            assert 0 <= offset <= self.sizes[segment] - size
            assert offset % PAGE_BYTES == 0
            self.lent[self.serial] = (segment, offset, size)

    @precondition(lambda self: self.lent)
    @rule(which=st.integers(0, 1 << 20))
    def give_back(self, which: int) -> None:
        serial = sorted(self.lent)[which % len(self.lent)]
        segment, offset, _ = self.lent.pop(serial)
        assert not self.arena.give_back(segment, offset, serial + 1)
        assert self.arena.give_back(segment, offset, serial)
        self.gone.append((segment, offset, serial))

    @precondition(lambda self: self.gone)
    @rule(which=st.integers(0, 1 << 20))
    def give_back_again(self, which: int) -> None:
        segment, offset, serial = self.gone[which % len(self.gone)]
        assert not self.arena.give_back(segment, offset, serial)

    @precondition(lambda self: self.sizes)
    @rule(which=st.integers(0, 1 << 20))
    def remove(self, which: int) -> None:
        segment = sorted(self.sizes)[which % len(self.sizes)]
        is_free = all(s != segment for s, _, _ in self.lent.values())
        assert self.arena.is_free(segment) == is_free
        assert self.arena.remove(segment) == is_free
        if is_free:
            del self.sizes[segment]

    @invariant()
    def nothing_overlaps_and_every_figure_is_exact(self) -> None:
        assert self.arena.used == sum(size for _, _, size in self.lent.values())
        assert self.arena.reserved == sum(self.sizes.values())
        assert all(width >= 0 for segment in self.sizes for width in self.gaps(segment))


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(
    max_examples=1000 if LONG else 60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_a_signal_handler_that_takes_in_the_middle_of_a_take_never_gets_the_same_range() -> None:
    arena = Arena()
    arena.add(1, 4000 * PAGE_BYTES)
    taken: list[tuple[int, int]] = []
    serials = iter(range(1, 1 << 30))

    def handler(_number: int, _frame: FrameType | None) -> None:
        found = arena.take(PAGE_BYTES, next(serials))
        if found is not None:
            taken.append(found)
        if len(taken) < 1000:  # on a machine that is slower than the timer nothing else would run
            signal.setitimer(signal.ITIMER_REAL, 0.000_05)  # anew each time, so that handlers do not pile up

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.000_05)
    try:
        own = [arena.take(PAGE_BYTES, next(serials)) for _ in range(1500)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    places = [*taken, *[each for each in own if each is not None]]
    assert taken
    assert len(set(places)) == len(places)
    assert arena.used == len(places) * PAGE_BYTES
