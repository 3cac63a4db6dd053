"""The broker's table of blocks, without a process: whose they are, how long they are needed, what is told of them."""

from __future__ import annotations

import os
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mpbroker.errors import LimitReached, PayloadError, ProtocolViolation
from mpbroker.process.blocks import MAX_SEGMENTS, PAGE_BYTES, Block, Blocks, Claims, Lender, Segment
from mpbroker.process.limits import Limits
from mpbroker.process.payloads import Placed

LONG: Final = bool(os.environ.get("MPBROKER_LONG"))
SIZE: Final = 16 * PAGE_BYTES


@pytest.fixture
def blocks() -> Blocks:
    return Blocks(Limits(max_arena_bytes=4 * SIZE, max_client_arena_bytes=2 * SIZE))


def placed(segment: Segment, serial: int = 1, offset: int = 0, *sizes: int) -> Placed:
    return Placed(segment.number, serial, offset, list(sizes or [5000]), b"")


def claim(blocks: Blocks, lender: Lender, named: Placed) -> Block:
    return Claims(blocks, lender).check(named)()


def offer(blocks: Blocks, lender: Lender, nbytes: int = SIZE) -> Segment:
    blocks.check_size(nbytes)
    blocks.check_room(lender, nbytes)
    return blocks.offer(lender, nbytes)


def told(blocks: Blocks, lender: Lender, seen: int) -> tuple[int, list[int]]:
    blocks.sweep()
    blocks.check_doubts(lender, seen, [])
    return lender.after(seen)


def doubt(blocks: Blocks, lender: Lender, *doubtful: int) -> None:
    blocks.check_doubts(lender, 0, list(doubtful))
    blocks.doubt(lender, list(doubtful))


def test_a_block_is_needed_until_nothing_refers_to_it_and_then_its_publisher_hears(blocks: Blocks) -> None:
    lender = Lender()
    segment = offer(blocks, lender, SIZE)
    block = claim(blocks, lender, placed(segment, 7, PAGE_BYTES))
    pin = block
    assert (blocks.count, blocks.used, lender.used) == (1, 5000, 5000)
    del block
    assert told(blocks, lender, 0) == (0, [])
    del pin
    blocks.sweep()
    assert (blocks.count, blocks.used) == (0, 0)
    assert told(blocks, lender, 0) == (1, [segment.number, PAGE_BYTES, 7])


def test_the_log_is_told_until_it_is_said_to_be_seen(blocks: Blocks) -> None:
    lender = Lender()
    segment = offer(blocks, lender, SIZE)
    for serial in (1, 2, 3):
        claim(blocks, lender, placed(segment, serial))
        blocks.sweep()
    first = (3, [segment.number, 0, 1, segment.number, 0, 2, segment.number, 0, 3])
    assert [told(blocks, lender, 0), told(blocks, lender, 0)] == [first, first]
    assert told(blocks, lender, 2) == (3, [segment.number, 0, 3])
    assert told(blocks, lender, 0) == (3, [segment.number, 0, 3])  # an older question that comes late
    assert told(blocks, lender, 3) == (3, [])


@pytest.mark.parametrize("seen", [-1, 1])
def test_nobody_has_seen_what_was_not_told(blocks: Blocks, seen: int) -> None:
    lender = Lender()
    offer(blocks, lender, SIZE)
    with pytest.raises(ProtocolViolation):
        told(blocks, lender, seen)


@pytest.mark.parametrize(
    ("serial", "offset", "sizes"),
    [
        (1, SIZE, (1,)),
        (1, SIZE - PAGE_BYTES, (PAGE_BYTES + 1,)),
        (1, -PAGE_BYTES, (1,)),
        (1, 1, (1,)),
        (0, 0, (1,)),
        (1, 0, (SIZE, 0, 1)),
        (1, 0, (2**62, 2**62, 2**62, 2**62)),
    ],
)
def test_a_block_outside_of_its_segment_is_a_violation(
    blocks: Blocks, serial: int, offset: int, sizes: tuple[int, ...]
) -> None:
    lender = Lender()
    segment = offer(blocks, lender, SIZE)
    with pytest.raises(ProtocolViolation):
        claim(blocks, lender, placed(segment, serial, offset, *sizes))
    assert (blocks.count, blocks.used) == (0, 0)


def test_a_block_in_a_segment_of_somebody_else_is_a_violation(blocks: Blocks) -> None:
    mine, other = Lender(), Lender()
    segment = offer(blocks, mine, SIZE)
    offer(blocks, other, SIZE)
    with pytest.raises(ProtocolViolation):
        claim(blocks, other, placed(segment))
    with pytest.raises(ProtocolViolation):
        doubt(blocks, other, segment.number, 0, 1)
    with pytest.raises(ProtocolViolation):
        blocks.check_own(other, segment.number)


def test_a_block_that_is_needed_is_not_published_again(blocks: Blocks) -> None:
    lender = Lender()
    segment = offer(blocks, lender, SIZE)
    block = claim(blocks, lender, placed(segment, 3))
    with pytest.raises(ProtocolViolation):
        claim(blocks, lender, placed(segment, 3))
    assert block.serial == 3


def test_a_stale_generation_of_a_place_is_refused(blocks: Blocks) -> None:
    lender = Lender()
    segment = offer(blocks, lender, SIZE)
    claim(blocks, lender, placed(segment, 3))
    blocks.sweep()
    for serial in (3, 2):
        with pytest.raises(PayloadError):
            claim(blocks, lender, placed(segment, serial))
    claim(blocks, lender, placed(segment, 4))


def test_what_no_publish_brought_is_free_and_void_once_it_is_in_doubt(blocks: Blocks) -> None:
    lender = Lender()
    segment = offer(blocks, lender, SIZE)
    held = claim(blocks, lender, placed(segment, 1))
    doubt(blocks, lender, segment.number, 0, 1, segment.number, 2 * PAGE_BYTES, 2)
    assert told(blocks, lender, 0) == (1, [segment.number, 2 * PAGE_BYTES, 2])
    with pytest.raises(PayloadError):
        claim(blocks, lender, placed(segment, 2, 2 * PAGE_BYTES))
    doubt(blocks, lender, segment.number, 2 * PAGE_BYTES, 2)  # told already, and not once more
    assert told(blocks, lender, 1) == (1, [])
    assert held.serial == 1


def test_two_payloads_of_one_publish_do_not_name_the_same_block(blocks: Blocks) -> None:
    lender = Lender()
    segment = offer(blocks, lender, SIZE)
    claims = Claims(blocks, lender)
    claims.check(placed(segment, 1))
    claims.check(placed(segment, 2, PAGE_BYTES))
    with pytest.raises(ProtocolViolation):
        claims.check(placed(segment, 1))
    assert blocks.count == 0  # a check takes nothing


def test_a_log_that_nobody_says_to_have_seen_is_bounded(blocks: Blocks) -> None:
    lender = Lender()
    segment = offer(blocks, lender, SIZE)
    most = 2 * (2 * SIZE // PAGE_BYTES)
    for serial in range(1, most + 1):
        doubt(blocks, lender, segment.number, 0, serial)
    with pytest.raises(ProtocolViolation, match="seen"):
        doubt(blocks, lender, segment.number, 0, most + 1)
    blocks.check_doubts(lender, most, [segment.number, 0, most + 1])


def test_a_segment_outlives_its_publisher_until_its_last_block_goes(blocks: Blocks) -> None:
    lender = Lender()
    segment, empty = offer(blocks, lender, SIZE), offer(blocks, lender, SIZE)
    block = claim(blocks, lender, placed(segment))
    blocks.end(lender)
    assert blocks.over == [empty.number]
    assert blocks.reserved == SIZE
    assert blocks.find(segment.number, 1) is block
    del block
    assert blocks.find(segment.number, 1) is None
    blocks.sweep()
    assert blocks.over == [empty.number, segment.number]
    assert (blocks.reserved, blocks.segments) == (0, {})
    assert blocks.find(segment.number, 1) is None


def test_arenas_are_bounded_each_and_together(blocks: Blocks) -> None:
    lenders = [Lender() for _ in range(3)]
    offer(blocks, lenders[0], SIZE)
    with pytest.raises(LimitReached, match="max_client_arena_bytes"):
        offer(blocks, lenders[0], 2 * SIZE)
    offer(blocks, lenders[0], SIZE)
    offer(blocks, lenders[1], 2 * SIZE)
    with pytest.raises(LimitReached, match="max_arena_bytes"):
        offer(blocks, lenders[2], PAGE_BYTES)
    blocks.end(lenders[1])
    assert blocks.has_room
    offer(blocks, lenders[2], 2 * SIZE)


def test_segments_are_bounded_in_number() -> None:
    blocks, lender = Blocks(Limits()), Lender()
    for _ in range(MAX_SEGMENTS):
        offer(blocks, lender, PAGE_BYTES)
    with pytest.raises(LimitReached):
        offer(blocks, lender, PAGE_BYTES)


@pytest.mark.parametrize("nbytes", [0, -PAGE_BYTES, 1, PAGE_BYTES + 1])
def test_a_segment_of_no_pages_is_a_violation(blocks: Blocks, nbytes: int) -> None:
    with pytest.raises(ProtocolViolation):
        offer(blocks, Lender(), nbytes)


def test_without_an_arena_there_are_no_segments() -> None:
    with pytest.raises(ProtocolViolation):
        offer(Blocks(Limits(arena_threshold=0)), Lender(), PAGE_BYTES)


class BlocksMachine(RuleBasedStateMachine):
    """Publishers that publish, doubt, hear, drop and end; needs that come and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(Limits(max_arena_bytes=6 * SIZE, max_client_arena_bytes=3 * SIZE))
        self.lenders = [Lender() for _ in range(3)]
        self.mine: dict[int, dict[int, Segment]] = {at: {} for at in range(3)}
        self.needs: list[Block] = []
        self.writing: list[tuple[int, int, int, int]] = []  # lender, segment, offset, serial
        self.lent: set[tuple[int, int]] = set()  # segment, offset
        self.seen = [0, 0, 0]
        self.serial = 0
        self.closed: list[int] = []

    @rule(at=st.integers(0, 2))
    def offer(self, at: int) -> None:
        try:
            segment = offer(self.blocks, self.lenders[at])
        except LimitReached:
            return
        self.mine[at][segment.number] = segment

    @rule(at=st.integers(0, 2), page=st.integers(0, 15), which=st.integers(0, 9))
    def write(self, at: int, page: int, which: int) -> None:
        if not self.mine[at]:
            return
        segment = sorted(self.mine[at])[which % len(self.mine[at])]
        place = (segment, page * PAGE_BYTES)
        if place not in self.lent:
            self.serial += 1
            self.lent.add(place)
            self.writing.append((at, *place, self.serial))

    @precondition(lambda self: self.writing)
    @rule(which=st.integers(0, 99), refused=st.booleans())
    def publish(self, which: int, refused: bool) -> None:
        at, segment, offset, serial = self.writing.pop(which % len(self.writing))
        if segment in self.mine[at]:
            block = claim(self.blocks, self.lenders[at], Placed(segment, serial, offset, [100], b""))
            if not refused:
                self.needs.append(block)

    @precondition(lambda self: self.needs)
    @rule(which=st.integers(0, 99))
    def pin(self, which: int) -> None:
        self.needs.append(self.needs[which % len(self.needs)])

    @precondition(lambda self: self.needs)
    @rule(which=st.integers(0, 99))
    def let_go(self, which: int) -> None:
        self.needs.pop(which % len(self.needs))

    @precondition(lambda self: self.writing)
    @rule(which=st.integers(0, 99))
    def doubt(self, which: int) -> None:
        at, segment, offset, serial = self.writing.pop(which % len(self.writing))
        if segment in self.mine[at]:
            doubt(self.blocks, self.lenders[at], segment, offset, serial)
            with pytest.raises(PayloadError):
                claim(self.blocks, self.lenders[at], Placed(segment, serial, offset, [100], b""))

    @rule(at=st.integers(0, 2), is_lost=st.booleans())
    def hear(self, at: int, is_lost: bool) -> None:
        position, freed = told(self.blocks, self.lenders[at], self.seen[at])
        if is_lost:
            return
        self.seen[at] = position
        needed = {(block.segment.number, block.offset) for block in self.needs}
        for entry in range(0, len(freed), 3):
            place = (freed[entry], freed[entry + 1])
            assert place not in needed
            self.lent.remove(place)

    @rule(at=st.integers(0, 2))
    def end(self, at: int) -> None:
        self.blocks.end(self.lenders[at])
        self.lenders[at] = Lender()
        self.seen[at] = 0
        self.writing = [each for each in self.writing if each[0] != at]
        self.lent = {place for place in self.lent if place[0] not in self.mine[at]}
        self.mine[at] = {}

    @invariant()
    def every_figure_is_exact_and_no_segment_goes_that_is_needed(self) -> None:
        self.blocks.sweep()
        needed = set(self.needs)
        assert self.blocks.count == len(needed)
        assert self.blocks.used == 100 * len(needed)
        self.closed += self.blocks.over
        self.blocks.over.clear()
        assert len(set(self.closed)) == len(self.closed)
        kept = {number for mine in self.mine.values() for number in mine}
        kept |= {block.segment.number for block in needed}
        assert set(self.blocks.segments) == kept
        assert not kept & set(self.closed)
        assert self.blocks.reserved == SIZE * len(kept)


TestBlocks = BlocksMachine.TestCase
TestBlocks.settings = settings(
    max_examples=1000 if LONG else 60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
