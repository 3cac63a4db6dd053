"""A ring is a byte stream: what goes in comes out, in its order, wherever it wraps; and no lie moves anything."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.errors import ProtocolViolation
from mpbroker.shm.ring import HEAD_BYTES, Ring, is_known_machine
from tests.shm.support import HEAD, TAIL, U64, WANTS_BYTES, WANTS_ROOM, Sides, segments, taken


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(platform, "machine", lambda: name)
    return name


@pytest.fixture
def sides(machine: str) -> Iterator[Sides]:
    with Sides(64) as sides:
        yield sides


def test_a_part_may_wrap_at_every_offset(machine: str) -> None:
    with Sides(16) as sides:
        for place in range(16):
            for size in range(17):
                sides.moved_to(16 + place)
                part = bytes(range(1, size + 1))
                assert sides.a.send(part) == size
                assert taken(sides.b, 16) == part
                assert sides.b.send(part) == size  # the other way at once
                assert taken(sides.a, 16) == part


@given(
    moves=st.lists(st.one_of(st.binary(max_size=40), st.integers(1, 40)), max_size=60),
    start=st.one_of(st.integers(0, 100), st.integers(2**63 - 100, 2**63 + 100)),
)
def test_the_bytes_come_out_in_their_order_whatever_the_pieces(moves: list[bytes | int], start: int) -> None:
    with Sides(24) as sides:
        sides.moved_to(start)
        went = came = b""
        for move in moves:
            if isinstance(move, bytes):
                count = sides.a.send(move)
                assert count == min(len(move), 24 - (len(went) - len(came)))
                went += move[:count]
            else:
                piece = taken(sides.b, move)
                assert len(piece) == min(move, len(went) - len(came))
                came += piece
            assert went.startswith(came)
            assert sides.b.waiting() == len(went) - len(came)
            assert sides.a.room() == 24 - sides.b.waiting()
        assert came + taken(sides.b, 24) == went


def test_a_ring_takes_exactly_its_capacity(sides: Sides) -> None:
    assert sides.a.send(bytes(64)) == 64
    assert sides.a.send(b"x") == 0
    assert sides.a.room() == 0
    assert taken(sides.b, 1) == b"\0"
    assert sides.a.send(b"xy") == 1
    assert sides.b.waiting() == 64


def test_a_part_larger_than_the_room_goes_in_as_far_as_it_fits(sides: Sides) -> None:
    assert sides.a.send(b"a" * 60) == 60
    assert sides.a.send(b"0123456789") == 4
    assert taken(sides.b, 100) == b"a" * 60 + b"0123"


def test_a_frame_larger_than_the_ring_passes_in_pieces(sides: Sides) -> None:
    frame = bytes(range(256)) * 4
    rest, came = memoryview(frame), b""
    while rest:
        rest = rest[sides.a.send(rest) :]
        came += taken(sides.b, 50)
    assert came + taken(sides.b, 64) == frame


def test_nothing_goes_in_and_nothing_comes_out_of_nothing(sides: Sides) -> None:
    assert sides.a.send(b"") == 0
    assert taken(sides.b, 10) == b""
    assert sides.b.receive(memoryview(b"")) == 0
    assert (sides.a.sent, sides.a.received, sides.b.sent, sides.b.received) == (0, 0, 0, 0)


@pytest.mark.parametrize("position", [2**31, 2**32, 2**53, 2**63])
def test_positions_pass_every_power_of_two_that_a_word_may_trip_over(sides: Sides, position: int) -> None:
    sides.moved_to(position - 5)
    for number in range(5):
        part = bytes([number]) * 7
        assert sides.a.send(part) == 7
        assert taken(sides.b, 7) == part
        assert sides.b.send(part) == 7
        assert taken(sides.a, 7) == part
    assert sides.words_a[TAIL] == sides.words_a[HEAD] == position + 30


def test_beyond_the_last_position_is_an_error_and_no_wrapped_one(sides: Sides) -> None:
    """At ten gigabytes a second that is after 58 years."""
    sides.moved_to(U64 - 3)
    assert sides.a.send(b"abc") == 3
    assert taken(sides.b, 3) == b"abc"
    with pytest.raises(ValueError, match=r"format|range"):
        sides.a.send(b"x")
    assert sides.words_a[TAIL] == U64


# -- what the other side says is not believed --------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [99, 100 + 65, 0, 2**62, 2**63, U64, U64 - 63])
def test_a_tail_that_cannot_be_is_a_violation_and_moves_nothing(sides: Sides, tail: int) -> None:
    sides.moved_to(100)
    sides.words_b[TAIL] = tail
    for look in (sides.a.waiting, lambda: taken(sides.a, 10)):
        with pytest.raises(ProtocolViolation):
            look()
    assert sides.words_a[HEAD] == 100
    assert sides.a.send(b"x") == 1  # the other direction goes on


@pytest.mark.parametrize("head", [99, 100 + 65, 0, 2**62, 2**63, U64])
def test_a_head_that_cannot_be_is_a_violation_and_moves_nothing(sides: Sides, head: int) -> None:
    sides.moved_to(100)
    assert sides.a.send(bytes(64)) == 64
    sides.words_b[HEAD] = head
    with pytest.raises(ProtocolViolation):
        sides.a.room()
    with pytest.raises(ProtocolViolation):
        sides.a.send(b"x")
    assert sides.words_a[TAIL] == 164


def test_a_head_never_goes_back(sides: Sides) -> None:
    assert sides.a.send(bytes(64)) == 64
    assert taken(sides.b, 40) == bytes(40)
    assert sides.a.room() == 40
    sides.words_b[HEAD] = 39
    with pytest.raises(ProtocolViolation):
        sides.a.room()


def test_bytes_are_copied_before_anybody_looks_at_them(sides: Sides) -> None:
    sides.b.send(b"abcd")
    came = taken(sides.a, 10)
    sides.memory_b[HEAD_BYTES : HEAD_BYTES + 4] = b"XXXX"
    assert came == b"abcd"


# -- sleep and wake ----------------------------------------------------------------------------------------------------


def test_who_sleeps_says_for_what_until_it_wakes(sides: Sides) -> None:
    assert (sides.b.peer_wants_bytes(), sides.b.peer_wants_room()) == (False, False)
    sides.a.announce(for_bytes=True, for_room=False)
    assert (sides.b.peer_wants_bytes(), sides.b.peer_wants_room()) == (True, False)
    sides.a.announce(for_bytes=False, for_room=True)
    assert (sides.b.peer_wants_bytes(), sides.b.peer_wants_room()) == (False, True)
    sides.a.wakes()
    assert (sides.b.peer_wants_bytes(), sides.b.peer_wants_room()) == (False, False)
    assert [sides.words_a[place] for place in (WANTS_BYTES, WANTS_ROOM)] == [0, 0]


@pytest.mark.parametrize("word", [1, 2**63, U64])
def test_any_flag_that_is_not_zero_is_a_wish(sides: Sides, word: int) -> None:
    sides.words_a[WANTS_ROOM] = word
    assert (sides.b.peer_wants_bytes(), sides.b.peer_wants_room()) == (False, True)


@pytest.mark.parametrize("name", ["riscv64", "ppc64le", "s390x", "armv7l", "i686", ""])
def test_rings_are_for_machines_whose_order_of_memory_is_known(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: name)
    assert not is_known_machine()


def test_the_machines_with_a_fence_of_their_own_are_known(machine: str) -> None:
    assert is_known_machine()


def test_a_weak_machine_has_a_fence_between_bytes_and_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing one is seen by no test on a strong machine, so the calls are counted."""
    for name, fences in (("x86_64", [0, 0, 0, 0]), ("aarch64", [1, 1, 1, 2])):
        monkeypatch.setattr(platform, "machine", lambda name=name: name)
        with Sides(64) as sides:
            sides.b.send(b"x")
            assert fences_in_each(sides.a) == fences


def fences_in_each(ring: Ring) -> list[int]:
    """How many fences a send, a look at room, a look at bytes and a receive have."""
    made = 0

    def fence() -> None:
        nonlocal made
        made += 1

    ring._fence = fence
    seen = []
    for act in (lambda: ring.send(b"x"), ring.room, ring.waiting, lambda: taken(ring, 1)):
        made = 0
        act()
        seen.append(made)
    return seen


def test_closing_unmaps_and_may_be_repeated() -> None:
    own, _own_seen = segments(HEAD_BYTES + 64)
    peer, _peer_seen = segments(HEAD_BYTES + 64)
    ring = Ring(own, peer, 64)
    ring.close()
    ring.close()
    assert (own._map.closed, peer._map.closed) == (True, True)
