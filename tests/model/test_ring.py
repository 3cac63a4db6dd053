"""The ring plane's protocol, every interleaving and every death of it within bounds; and each planted defect, found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.machine import Order
from tests.model.ring import Bounds, Defect
from tests.model.ring_model import RingModel
from tests.model.search import Result, Wrong, search

# Seconds each, but all of them computing, so on a machine that is busy the usual limit is near. None can hang: the
# search ends by itself when it grows too large.
pytestmark = pytest.mark.timeout(300)

ONE_WAY = Bounds(requests=(1, 3, 1))
"""A frame that fits, one that passes in pieces, and one behind it."""
BOTH_WAYS = Bounds(requests=(1, 3), replies=(3, 1))
"""Pipelined: the client waits for room and for answers at once, while the broker's answers do not fit either."""
HELD_BACK = replace(BOTH_WAYS, reads_on=False)
WEAK = replace(ONE_WAY, order=Order.WEAK)
WEAK_BOTH_WAYS = Bounds(requests=(2,), replies=(2,), capacity=1, order=Order.WEAK)
BESIDE_A_SILENT_ONE = Bounds(requests=(1, 1), replies=(1, 1), clients=2, silent=1)

SOUND = {
    "one way": (ONE_WAY, 12_599),
    "one way, a larger ring": (Bounds(requests=(1, 4, 2, 1), capacity=3), 35_459),
    "both ways": (BOTH_WAYS, 70_114),
    "both ways, a larger ring": (Bounds(requests=(1, 4), replies=(4, 1), capacity=3), 70_498),
    "both ways, a broker that reads no further while its answers wait": (HELD_BACK, 29_121),
    "both ways, one request at a time": (Bounds(requests=(3, 1, 2), replies=(1, 3, 1), in_step=True), 29_214),
    "a client that empties its socket before it sleeps": (replace(BOTH_WAYS, empties_first=True), 54_811),
    "sleeps that end without a bell": (replace(HELD_BACK, early_wakes=1), 57_741),
    "a socket that takes one byte": (replace(BOTH_WAYS, room_for_bells=1), 29_843),
    "ends seen before the bells sent earlier": (replace(BOTH_WAYS, ends_pass_bells=True), 74_044),
    "two clients, one way": (Bounds(requests=(1, 1), clients=2), 145_192),
    "two clients, both ways": (Bounds(requests=(1,), replies=(1,), clients=2), 172_530),
    "beside a client that does nothing": (BESIDE_A_SILENT_ONE, 4_370),
    "weak order, one way": (WEAK, 93_151),
    "weak order, both ways": (WEAK_BOTH_WAYS, 46_220),
}


def run(bounds: Bounds) -> Result:
    return search(RingModel(bounds))


@pytest.mark.parametrize(("bounds", "states"), SOUND.values(), ids=SOUND.keys())
def test_nothing_is_lost_torn_or_asleep_for_ever_whoever_dies_when(bounds: Bounds, states: int) -> None:
    """The number of states is part of what is tested: a model that shrinks looks at less."""
    result = run(bounds)
    assert result.wrong is None, str(result)
    assert result.states == states


OF_EITHER_SIDE = [
    (Defect.NO_FENCE_BEFORE_SECOND_LOOK, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.NO_FENCE_BEFORE_LOOK_AT_BELL, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.FLAG_AFTER_SECOND_LOOK, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.BELL_BEFORE_TAIL, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.NO_SECOND_LOOK, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.BELL_TAKEN_AFTER_SECOND_LOOK, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.SLEEPS_ON_AFTER_EMPTY_WAKE, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.SECOND_LOOK_AT_CACHED_HEAD, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.NEVER_ASKS_FOR_ROOM, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.NEVER_TELLS_OF_ROOM, BOTH_WAYS, Wrong.LOST_WAKE_UP),
    (Defect.TAIL_BEFORE_DATA, BOTH_WAYS, Wrong.TORN),
    (Defect.HEAD_BEFORE_READING, BOTH_WAYS, Wrong.TORN),
    (Defect.WRITES_WITHOUT_ROOM, BOTH_WAYS, Wrong.TORN),
    (Defect.NO_FENCE_BEFORE_TAIL, WEAK_BOTH_WAYS, Wrong.TORN),
    (Defect.NO_FENCE_AFTER_TAIL, WEAK_BOTH_WAYS, Wrong.TORN),
    (Defect.NO_FENCE_BEFORE_HEAD, WEAK_BOTH_WAYS, Wrong.TORN),
    (Defect.NO_LAST_LOOK, BOTH_WAYS, Wrong.LOST_FRAME),
    (Defect.BROKEN_BELL_IS_THE_END, BOTH_WAYS, Wrong.LOST_FRAME),
    (Defect.PART_HANDED_OVER, BOTH_WAYS, Wrong.UNFINISHED),
]
OF_ONE_SIDE = [
    (Defect.WAITS_FOR_ROOM_ONLY, "client", HELD_BACK, Wrong.LOST_WAKE_UP),
    (Defect.FORGETS_THE_REST, "broker", BOTH_WAYS, Wrong.DEADLOCK),
    (Defect.BLOCKS_WITH_ONE_ACTIVE, "broker", BESIDE_A_SILENT_ONE, Wrong.LOST_WAKE_UP),
    (Defect.CHILD_HOLDS_SOCKET, "either", BOTH_WAYS, Wrong.UNNOTICED_DEATH),
]
PLANTED = [(each[0], side, *each[1:]) for each in OF_EITHER_SIDE for side in ("client", "broker")] + OF_ONE_SIDE


@pytest.mark.parametrize(
    ("defect", "side", "bounds", "wrong"), PLANTED, ids=[f"{defect.name} {side}" for defect, side, *_ in PLANTED]
)
def test_a_planted_defect_is_found_as_what_it_is(defect: Defect, side: str, bounds: Bounds, wrong: Wrong) -> None:
    result = run(replace(bounds, defects=frozenset({defect}), planted_in=(side,)))
    assert result.wrong is wrong, str(result)


def test_every_defect_is_planted() -> None:
    assert {defect for defect, *_ in PLANTED} == set(Defect)


@pytest.mark.parametrize(
    "defect", [Defect.NO_FENCE_BEFORE_TAIL, Defect.NO_FENCE_AFTER_TAIL, Defect.NO_FENCE_BEFORE_HEAD]
)
def test_the_fences_around_data_are_for_the_weak_order_alone(defect: Defect) -> None:
    assert run(replace(ONE_WAY, defects=frozenset({defect}))).wrong is None


def test_a_finding_is_told_step_by_step() -> None:
    result = run(replace(ONE_WAY, defects=frozenset({Defect.NO_FENCE_BEFORE_SECOND_LOOK})))
    told = str(result)
    assert told.startswith("LOST_WAKE_UP (somebody sleeps")
    assert "   1. client0: [begin] [write_piece] client0.requests.data[0] = 1" in told
    assert "broker.requests0.asleep = 1" in told
    assert told.endswith("data that nobody looks at")
    assert "?" not in told


@pytest.mark.parametrize("capacity", [2, 3])
def test_a_socket_emptied_before_each_sleep_holds_one_bell_a_unit_and_one_more(capacity: int) -> None:
    """However many frames pass: in one sleep the ring fills once, and one bell may be late from the sleep before."""
    for frames in (4, 8):
        bounds = Bounds(requests=(1,) * frames, capacity=capacity, deaths=False, empties_first=True)
        assert run(replace(bounds, most_bells=capacity + 1)).wrong is None
        assert run(replace(bounds, most_bells=capacity)).wrong is Wrong.TOO_MANY_BELLS


def test_a_socket_emptied_only_after_sleep_gathers_a_bell_for_each_sleep_that_the_second_look_spared() -> None:
    """Harmless, since a full socket loses nothing (above); but only the kernel bounds it, and each byte was a call."""
    in_step = Bounds(requests=(1,) * 6, replies=(1,) * 6, in_step=True, deaths=False)
    assert run(replace(in_step, most_bells=5)).wrong is Wrong.TOO_MANY_BELLS
    assert run(replace(in_step, most_bells=2, empties_first=True)).wrong is None
