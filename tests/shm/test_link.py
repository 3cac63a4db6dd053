"""The broker's end never blocks, sleeps only when there is nothing, and outlives whatever its client writes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from mpbroker.errors import ProtocolViolation
from mpbroker.process.link import Closed, Link
from mpbroker.shm.link import RingEnd, accept
from mpbroker.shm.ring import HEAD_BYTES
from mpbroker.shm.segment import NoSharedMemory, Segment
from mpbroker.shm.stream import share
from tests.conformance.support import Call
from tests.shm.support import HEAD, TAIL, U64, Ends, descriptors, mappings

CAPACITY = 4096
SIZE = HEAD_BYTES + CAPACITY


@pytest.fixture
def ends() -> Iterator[Ends]:
    with Ends(64) as ends:
        yield ends


def test_nothing_there_is_said_without_waiting(ends: Ends) -> None:
    with pytest.raises(BlockingIOError):
        ends.received()


def test_a_full_ring_takes_nothing(ends: Ends) -> None:
    assert ends.end.send(bytes(100)) == 64
    assert ends.end.send(b"x") == 0


def test_it_sleeps_for_bytes_only_when_there_are_none(ends: Ends) -> None:
    assert ends.end.arm(for_bytes=True, for_room=False)
    assert ends.a.peer_wants_bytes()
    ends.stream.sendall(b"x")
    assert not ends.end.arm(for_bytes=True, for_room=False)
    assert not ends.a.peer_wants_bytes()
    assert ends.end.arm(for_bytes=False, for_room=False)


def test_it_sleeps_for_room_only_when_there_is_none(ends: Ends) -> None:
    assert not ends.end.arm(for_bytes=False, for_room=True)
    ends.end.send(bytes(64))
    assert ends.end.arm(for_bytes=False, for_room=True)
    assert ends.a.peer_wants_room()
    assert not ends.a.peer_wants_bytes()
    assert ends.stream.recv(1)
    assert ends.rung()


def test_a_client_is_rung_for_what_it_sleeps_for_and_for_nothing_else(ends: Ends) -> None:
    ends.a.announce(for_bytes=True, for_room=False)
    ends.a.send(b"to the broker")
    assert ends.received() == b"to the broker"
    ends.end.wake()
    assert not ends.rung_client()
    ends.end.send(b"to the client")
    ends.end.wake()
    assert ends.rung_client()
    ends.end.wake()
    assert not ends.rung_client()


def test_it_never_sleeps_after_the_end(ends: Ends) -> None:
    ends.stream.sendall(b"last")
    ends.stream._sock.close()
    ends.end.hear()
    assert not ends.end.arm(for_bytes=True, for_room=False)
    assert ends.received() == b"last"
    assert ends.end.send(bytes(1000)) == 1000  # nobody is there who could take it
    assert ends.received() == b""


def test_hearing_takes_the_bells_and_is_no_end(ends: Ends) -> None:
    for _ in range(3):
        ends.stream._sock.send(b"\0")
    ends.end.hear()
    ends.end.hear()
    assert not ends.rung()
    with pytest.raises(BlockingIOError):
        ends.received()


def test_a_flood_of_bells_is_heard_in_bounded_pieces(ends: Ends) -> None:
    ends.stream._sock.setblocking(False)
    try:
        while True:
            ends.stream._sock.send(bytes(4096))
    except BlockingIOError:
        pass
    ends.end.hear()
    assert ends.rung()  # the rest waits for another turn


def test_a_bell_that_nobody_hears_does_not_block(ends: Ends) -> None:
    ends.a.announce(for_bytes=True, for_room=False)
    for _ in range(100_000):
        ends.end.wake()
    ends.stream._sock.close()
    ends.end.wake()


def test_what_moved_is_told_once(ends: Ends) -> None:
    assert not ends.end.has_moved()
    ends.stream.sendall(b"x")
    assert not ends.end.has_moved()  # it did not come yet
    ends.received()
    assert ends.end.has_moved()
    assert not ends.end.has_moved()
    ends.end.send(b"y")
    assert ends.end.has_moved()
    assert not ends.end.has_moved()


# -- lies -------------------------------------------------------------------------------------------------------------


def test_a_lie_between_two_looks_of_a_turn_is_told_by_reading_alone(ends: Ends) -> None:
    """The turn reads, finds nothing, and then looks whether it may sleep."""
    with pytest.raises(BlockingIOError):
        ends.received()
    ends.words_a[TAIL] = U64
    assert not ends.end.arm(for_bytes=True, for_room=False)
    ends.words_a[TAIL] = 0  # as if nothing had been
    with pytest.raises(ProtocolViolation):
        ends.received()


@pytest.mark.parametrize("what", ["send", "arm"])
def test_a_lie_about_room_is_told_by_reading_alone(ends: Ends, what: str) -> None:
    ends.end.send(bytes(64))
    ends.words_a[HEAD] = U64
    if what == "send":
        assert ends.end.send(b"words") == 5  # who lies gets nothing, and holds nobody up
    else:
        assert not ends.end.arm(for_bytes=False, for_room=True)
    with pytest.raises(ProtocolViolation):
        ends.received()


def test_who_lied_about_what_it_sent_is_still_told_why_it_is_cut(ends: Ends) -> None:
    ends.words_a[TAIL] = U64
    with pytest.raises(ProtocolViolation):
        ends.received()
    assert ends.end.send(b"why") == 3
    assert ends.stream.recv(1) == b"why"


def test_a_link_tells_a_violation_from_the_end(ends: Ends) -> None:
    link = Link(ends.theirs, 1)
    link.goes_through(ends.end)
    buffer = memoryview(bytearray(1000))
    assert link.read(buffer) == ()
    ends.words_a[TAIL] = 65
    with pytest.raises(ProtocolViolation):
        link.read(buffer)
    ends.words_a[TAIL] = 0
    ends.stream._sock.close()
    ends.end.hear()
    ends.end._broken = None
    with pytest.raises(Closed):
        link.read(buffer)


# -- attaching --------------------------------------------------------------------------------------------------------


class Attaching:
    """A client's socket and a broker's, before they share memory."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(20.0)
        self.theirs.settimeout(20.0)

    def offered(self) -> int:
        """The descriptor that came with the request."""
        _, (fd,), _, _ = socket.recv_fds(self.theirs, 100, 1)
        return fd


@pytest.fixture
def attaching() -> Iterator[Attaching]:
    pair = Attaching()
    yield pair
    pair.ours.close()
    pair.theirs.close()


def test_both_attach_and_keep_no_descriptor_but_what_mappings_keep(attaching: Attaching) -> None:
    before, mapped = descriptors(), mappings()
    sharing = Call(lambda: share(attaching.ours, CAPACITY, b"please"))
    end = accept(attaching.theirs, attaching.offered(), CAPACITY, b"yes")
    ring, answer = sharing.result()
    assert answer == b"yes"
    assert ring is not None
    assert mappings() == mapped + 4
    assert ring.send(b"hello") == 5
    into = memoryview(bytearray(10))
    assert end.recv_into(into) == 5
    assert end.send(b"you") == 3
    assert ring.receive(into) == 3
    ring.close()
    end.close()
    assert (descriptors(), mappings()) == (before, mapped)


def test_a_refusal_comes_without_memory_and_leaves_nothing(attaching: Attaching) -> None:
    before, mapped = descriptors(), mappings()
    sharing = Call(lambda: share(attaching.ours, CAPACITY, b"please"))
    os.close(attaching.offered())
    attaching.theirs.send(b"no")
    assert sharing.result() == (None, b"no")
    assert (descriptors(), mappings()) == (before, mapped)


def test_the_end_instead_of_an_answer_leaves_nothing(attaching: Attaching) -> None:
    mapped = mappings()
    sharing = Call(lambda: share(attaching.ours, CAPACITY, b"please"))
    os.close(attaching.offered())
    attaching.theirs.close()
    try:
        assert sharing.result() == (None, b"")
    except ConnectionError:
        pass  # the request was unread
    assert mappings() == mapped


def test_a_broker_does_not_take_what_may_be_cut_short(attaching: Attaching) -> None:
    before, mapped = descriptors(), mappings()
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    with pytest.raises(NoSharedMemory, match="cut short"):
        accept(attaching.theirs, fd, CAPACITY, b"yes")
    with pytest.raises(NoSharedMemory, match="no descriptor"):
        accept(attaching.theirs, -1, CAPACITY, b"yes")
    assert (descriptors(), mappings()) == (before, mapped)


def test_a_broker_that_can_make_no_memory_lets_go_of_the_clients(
    attaching: Attaching, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, fd = Segment.create(SIZE)
    before, mapped = descriptors(), mappings()

    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        with pytest.raises(NoSharedMemory, match="Too many open files"):
            accept(attaching.theirs, os.dup(fd), CAPACITY, b"yes")
    assert (descriptors(), mappings()) == (before, mapped)
    own.close()
    os.close(fd)


def test_a_client_that_is_gone_or_reads_nothing_leaves_nothing(attaching: Attaching) -> None:
    attaching.theirs.setblocking(False)
    before, mapped = descriptors(), mappings()
    try:
        while True:
            attaching.theirs.send(bytes(4096))
    except BlockingIOError:
        pass
    for expected in (BlockingIOError, OSError):
        own, fd = Segment.create(SIZE)
        with pytest.raises(expected):
            accept(attaching.theirs, fd, CAPACITY, b"yes")
        own.close()
        if expected is BlockingIOError:
            assert (descriptors(), mappings()) == (before, mapped)
            attaching.ours.close()
    assert mappings() == mapped


def test_descriptors_that_pass_are_not_inherited(attaching: Attaching) -> None:
    link = Link(attaching.theirs, 1)
    attaching.theirs.setblocking(False)
    link.brings = True
    own, fd = Segment.create(SIZE)
    socket.send_fds(attaching.ours, [b"\1\0\0\0x"], [fd, fd])
    os.close(fd)
    assert [bytes(each) for each in link.read(memoryview(bytearray(100)))] == [b"x"]
    taken = link.take_descriptor()
    assert not os.get_inheritable(taken)
    assert link.take_descriptor() == -1
    os.close(taken)
    own.close()


def test_an_end_is_what_a_link_uses(ends: Ends) -> None:
    assert isinstance(ends.end, RingEnd)
    link = Link(ends.theirs, 1)
    link.goes_through(ends.end)
    assert not link.write(bytes(200))
    assert link.unsent == 204 - 64
    assert ends.stream.recv(1)[:4] == (200).to_bytes(4, "little")
    assert not link.flush()
