"""The client's end behaves as a blocking socket does: it waits for ever or until its deadline, and sees the end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from mpbroker.errors import ProtocolViolation
from mpbroker.shm import stream as module
from mpbroker.shm.stream import RingStream
from tests.conformance.support import Call, until
from tests.process.puppets import LIMIT_S
from tests.shm.support import HEAD, TAIL, U64, WANTS_BYTES, WANTS_ROOM, Ends

CAPACITY = 64


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    # The bell alone must be enough.
    monkeypatch.setattr(module, "_NET_S", LIMIT_S)
    with Ends(CAPACITY) as ends:
        yield ends


def sleeps(ends: Ends, place: int = WANTS_BYTES) -> bool:
    return ends.words_a[place] != 0


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, CAPACITY - 1, CAPACITY, CAPACITY + 1, 2 * CAPACITY, 100 * CAPACITY + 7])
def test_what_is_sent_arrives_whole_whatever_its_size(ends: Ends, size: int) -> None:
    body = os.urandom(size)
    sending = Call(lambda: ends.stream.sendall(body))
    came = bytearray()

    def take() -> bool:
        try:
            came.extend(ends.received())
        except BlockingIOError:
            pass
        ends.end.wake()
        return len(came) >= size

    until(take)
    sending.result()
    assert bytes(came) == body


@pytest.mark.parametrize("size", [1, CAPACITY, 10 * CAPACITY])
def test_who_sleeps_is_woken_by_bytes(ends: Ends, size: int) -> None:
    body = os.urandom(size)
    came = bytearray()

    def receive() -> None:
        while len(came) < size:
            came.extend(ends.stream.recv(1))

    receiving = Call(receive)
    until(lambda: sleeps(ends))
    rest = memoryview(body)
    while rest:
        count = ends.end.send(rest)
        rest = rest[count:]
        ends.end.wake()
        if not count:
            until(lambda: bool(ends.b.room()))
    receiving.result()
    assert bytes(came) == body


def test_who_sleeps_for_room_is_woken_by_room(ends: Ends) -> None:
    ends.stream.sendall(bytes(CAPACITY))
    sending = Call(lambda: ends.stream.sendall(b"more"))
    until(lambda: sleeps(ends, WANTS_ROOM))
    assert ends.received(10) == bytes(10)
    ends.end.wake()
    sending.result()
    assert ends.received() == bytes(CAPACITY - 10) + b"more"


def test_nobody_rings_for_who_is_awake(ends: Ends) -> None:
    ends.stream.sendall(b"x")
    assert not ends.rung()
    assert ends.end.arm(for_bytes=True, for_room=False) is False
    assert ends.received() == b"x"
    assert ends.end.arm(for_bytes=True, for_room=False)
    ends.stream.sendall(b"y")
    assert ends.rung()
    ends.end.disarm()
    ends.stream.sendall(b"z")
    assert not ends.rung()


def test_the_end_of_a_sleep_is_told(ends: Ends) -> None:
    ends.stream.settimeout(0.001)
    with pytest.raises(TimeoutError):
        ends.stream.recv(1)
    assert not sleeps(ends)
    assert not sleeps(ends, WANTS_ROOM)


def test_a_bell_without_bytes_is_no_answer(ends: Ends) -> None:
    receiving = Call(lambda: ends.stream.recv(1))
    until(lambda: sleeps(ends))
    for _ in range(3):
        ends.theirs.send(b"\0")
    until(lambda: sleeps(ends))
    assert receiving.running
    ends.end.send(b"x")
    ends.end.wake()
    assert receiving.result() == b"x"


def test_a_lost_bell_is_made_up_for_by_the_second_net(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NET_S", 0.001)
    receiving = Call(lambda: ends.stream.recv(1))
    until(lambda: sleeps(ends))
    ends.end.send(b"x")
    assert receiving.result() == b"x"


def test_a_look_for_bytes_without_a_time_does_not_wait(ends: Ends) -> None:
    assert ends.stream.recv_within(0.0) is None
    ends.end.send(b"abc")
    assert ends.stream.recv_within(0.0) == b"abc"


def test_bytes_that_come_within_a_time_are_waited_for_and_others_are_none(ends: Ends) -> None:
    assert ends.stream.recv_within(0.001) is None
    receiving = Call(lambda: ends.stream.recv_within(LIMIT_S))
    until(lambda: sleeps(ends))
    ends.end.send(b"x")
    ends.end.wake()
    assert receiving.result() == b"x"
    assert ends.stream.recv_within(0.0) is None


# -- deadlines --------------------------------------------------------------------------------------------------------


def test_a_deadline_ends_waiting_for_bytes_and_for_room(ends: Ends) -> None:
    ends.stream.settimeout(0.001)
    with pytest.raises(TimeoutError):
        ends.stream.recv(1)
    with pytest.raises(TimeoutError):
        ends.stream.sendall(bytes(CAPACITY + 1))
    ends.stream.settimeout(None)
    ends.end.send(b"x")
    assert ends.stream.recv(1) == b"x"


def test_a_deadline_that_is_over_still_gives_what_is_there(ends: Ends) -> None:
    ends.end.send(b"abc")
    ends.stream.settimeout(-1.0)
    assert ends.stream.recv(10) == b"abc"
    with pytest.raises(TimeoutError):
        ends.stream.recv(1)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_the_last_words_come_before_the_end(ends: Ends) -> None:
    ends.end.send(b"farewell")
    ends.theirs.close()
    assert ends.stream.recv(1) == b"farewell"
    assert ends.stream.recv(1) == b""
    assert ends.stream.recv(1) == b""


def test_last_words_that_come_in_a_sleep_are_read_to_the_end(ends: Ends) -> None:
    receiving = Call(lambda: ends.stream.recv(1))
    until(lambda: sleeps(ends))
    ends.end.send(b"farewell")
    ends.theirs.close()
    assert receiving.result() == b"farewell"
    assert ends.stream.recv(1) == b""


def test_who_sleeps_sees_the_end(ends: Ends) -> None:
    receiving = Call(lambda: ends.stream.recv(1))
    until(lambda: sleeps(ends))
    ends.theirs.close()
    assert receiving.result() == b""


def test_who_looks_without_waiting_sees_the_end_after_the_last_words(ends: Ends) -> None:
    assert ends.stream.recv_within(0.0) is None
    ends.end.send(b"farewell")
    ends.theirs.close()
    assert ends.stream.recv_within(0.0) == b"farewell"
    assert ends.stream.recv_within(0.0) == b""


def test_who_waits_for_room_sees_the_end(ends: Ends) -> None:
    ends.stream.sendall(bytes(CAPACITY))
    sending = Call(lambda: ends.stream.sendall(b"x"))
    until(lambda: sleeps(ends, WANTS_ROOM))
    ends.theirs.close()
    with pytest.raises(BrokenPipeError) as caught:
        sending.result()
    assert caught.value.errno == errno.EPIPE


def test_shutdown_from_another_thread_ends_a_sleep(ends: Ends) -> None:
    receiving = Call(lambda: ends.stream.recv(1))
    until(lambda: sleeps(ends))
    ends.stream.shutdown(socket.SHUT_RDWR)
    assert receiving.result() == b""


def test_a_broker_that_lies_is_a_violation(ends: Ends) -> None:
    ends.words_b[TAIL] = U64
    with pytest.raises(ProtocolViolation):
        ends.stream.recv(1)
    ends.words_b[TAIL] = 0
    ends.stream.sendall(bytes(CAPACITY))
    ends.words_b[HEAD] = CAPACITY + 1
    with pytest.raises(ProtocolViolation):
        ends.stream.sendall(b"x")


# -- what a signal handler raises --------------------------------------------------------------------------------------


class Struck(Exception):
    pass


def struck_while(ends: Ends, error: BaseException, act: Callable[[], object], place: int) -> BaseException:
    """What comes out of a call in whose sleep a signal handler raised something."""

    def handler(number: int, frame: FrameType | None) -> None:
        if not is_struck.is_set():
            is_struck.set()
            raise error

    def strike() -> None:
        until(lambda: sleeps(ends, place))
        while not is_struck.wait(0.01):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    is_struck = threading.Event()
    before = signal.signal(signal.SIGUSR1, handler)
    striking = Call(strike)
    try:
        try:
            act()
        except BaseException as raised:
            return raised
        raise AssertionError("nothing was raised")
    finally:
        is_struck.set()
        striking.result()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("error", [Struck(), KeyboardInterrupt(), TimeoutError("mine"), ConnectionResetError("mine")])
@pytest.mark.parametrize("place", [WANTS_BYTES, WANTS_ROOM], ids=["bytes", "room"])
def test_what_a_signal_handler_raises_in_a_sleep_comes_out_as_it_is(
    ends: Ends, error: BaseException, place: int
) -> None:
    if place == WANTS_BYTES:
        raised = struck_while(ends, error, lambda: ends.stream.recv(1), place)
    else:
        raised = struck_while(ends, error, lambda: ends.stream.sendall(bytes(CAPACITY + 1)), place)
    assert raised is error
    assert not sleeps(ends, place)  # and nobody rings for it any more
    # It did not pass for the broker's end.
    ends.end.send(b"x")
    assert ends.stream.recv(1) == b"x"


def test_ctrl_c_comes_out_of_a_spin(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def others() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module, "_let_others", others)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ends.stream.recv(1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert looks == 3
    ends.end.send(b"x")
    assert ends.stream.recv(1) == b"x"


class Handled(socket.socket):
    """Between its calls a signal handler raises."""

    def recv(self, *_: object) -> bytes:
        raise ConnectionResetError

    send = recv  # type: ignore[assignment]


def test_an_error_without_a_number_is_a_handlers_and_not_the_end() -> None:
    with Ends(CAPACITY) as ends:
        ours, theirs = socket.socketpair()
        with theirs, Handled(fileno=ours.detach()) as handled:
            stream = RingStream(handled, ends.a, CAPACITY)
            theirs.send(b"\0")
            with pytest.raises(ConnectionResetError):
                stream.recv(1)
            assert not stream._ended
            ends.b.announce(for_bytes=True, for_room=False)
            with pytest.raises(ConnectionResetError):
                stream.sendall(b"x")


# -- spinning ---------------------------------------------------------------------------------------------------------


def test_spinning_stops_when_it_has_not_paid_and_comes_back_when_it_would(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def others() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(module, "_let_others", others)

    def waited_in_vain(short_s: float) -> int:
        """Looks before a sleep, and whether it was short."""
        nonlocal looks
        monkeypatch.setattr(module, "_SHORT_S", short_s)
        looks = 0
        receiving = Call(lambda: ends.stream.recv(1))
        until(lambda: sleeps(ends))
        ends.end.send(b"x")
        ends.end.wake()
        assert receiving.result() == b"x"
        return looks

    assert waited_in_vain(0.0) == module._SPINS
    assert waited_in_vain(LIMIT_S) == 0
    assert waited_in_vain(0.0) == module._SPINS


def test_closing_lets_go_of_the_memory_and_may_be_repeated(ends: Ends) -> None:
    ring = weakref.ref(ends.a)
    ends.stream.close()
    ends.stream.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        ends.stream.recv(1)
    ends.a, ends.words_a, ends.memory_a = ends.b, ends.words_b, ends.memory_b
    assert ring() is None


def test_closing_in_another_thread_ends_a_wait_and_pulls_no_memory_from_under_it(ends: Ends) -> None:
    receiving = Call(lambda: ends.stream.recv(1))
    until(lambda: sleeps(ends))
    ends.stream.shutdown(socket.SHUT_RDWR)
    ends.stream.close()
    assert receiving.result() in (b"", None)
