"""A client that writes into its shared memory what it likes, or offers what is none, harms itself alone."""

from __future__ import annotations

import fcntl
import os
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from mpbroker import BrokerManager, BrokerProxy, ProtocolViolation, connect
from mpbroker.process import frames
from mpbroker.process.frames import Done, Failed, TopicsReply
from mpbroker.process.naming import Located
from mpbroker.process.payloads import encode_batches
from mpbroker.shm.ring import HEAD_BYTES, is_known_machine
from mpbroker.shm.segment import Segment, is_there
from tests.conformance.support import until
from tests.hostile.ringed import HEAD, RING_BYTES, SIZE, TAIL, WANTS_BYTES, WANTS_ROOM, RingPeer, offered, ringed
from tests.hostile.support import Peer, error_of, let_in, packed, times
from tests.process.puppets import LIMIT_S

pytestmark = pytest.mark.skipif(not (is_there() and is_known_machine()), reason="there are no rings here")

U64 = 2**64 - 1
GROWTH_BYTES = 24 << 20
"""What a broker may have more of after many attacks: buffers of the largest frame, and what an allocator keeps."""


class Bystander:
    """A client of the same broker that publishes, polls and acks, and notices nothing."""

    def __init__(self, located: Located, transport: str) -> None:
        self.broker = connect(located.folder.name, directory=located.folder.parent, transport=transport)
        self.topic = f"of {transport}"
        self.broker.create_topic(self.topic)
        self.own = self.broker.subscribe(self.topic, "own")
        self.count = 0
        self.turn()

    def turn(self) -> None:
        self.count += 1
        self.broker.publish(self.topic, self.count)
        (delivery,) = self.own.poll("m", timeout=LIMIT_S)
        assert delivery.payload == self.count
        assert delivery.attempt == 1
        assert delivery.ack()

    def close(self) -> None:
        self.turn()
        stats = self.own.stats()
        assert (stats.acked, stats.accepted, stats.late_acks) == (self.count, self.count, 0)
        self.broker.delete_topic(self.topic)
        self.broker.close()


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerManager]:
    log = tmp_path_factory.mktemp("rings") / "log"
    # Short, so that a frame that never completes is cut within the test; long enough for those that do.
    with BrokerManager("rings", log_file=log, log_level="info", frame_timeout=2.0) as manager:
        yield manager


class Log:
    """What the broker logs while a test runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = path.stat().st_size

    def lines(self) -> list[str]:
        with self._path.open() as file:
            file.seek(self._from)
            return file.read().splitlines()

    def violations(self) -> list[str]:
        """The connections with their reasons."""
        return [line for line in self.lines() if re.search(r"connection \d+: protocol violation", line)]


@pytest.fixture
def log(manager: BrokerManager) -> Log:
    return Log(Path(str(manager._config.log_file)))


@pytest.fixture(params=["manager", "ring"])
def bystander(request: pytest.FixtureRequest, located: Located, manager: BrokerManager) -> Iterator[Bystander]:
    """It is served before, in between and after; the broker is the same process, and no larger."""
    broker = psutil.Process(manager.pid)
    bystander = Bystander(located, request.param)
    before = broker.memory_info().rss
    yield bystander
    bystander.close()
    assert broker.is_running()
    assert broker.memory_info().rss - before < GROWTH_BYTES


def is_cut(peer: RingPeer) -> None:
    """The broker ends this connection; it may say why."""
    assert peer.is_cut()


# -- words ------------------------------------------------------------------------------------------------------------

TAILS = {
    "one byte too far": RING_BYTES + 1,
    "far too far": 2**40,
    "negative as a signed number": 2**63,
    "minus one": U64,
    "wrapped around": U64 - RING_BYTES + 1,
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_a_tail_that_cannot_be_ends_its_connection(bystander: Bystander, located: Located, log: Log, tail: int) -> None:
    with ringed(located) as peer:
        peer.own.words[TAIL] = tail
        peer.bell()
        is_cut(peer)
    bystander.turn()
    (line,) = log.violations()
    assert "sent what does not fit" in line


def test_a_tail_that_goes_back_ends_its_connection(bystander: Bystander, located: Located, log: Log) -> None:
    with ringed(located) as peer:
        peer.frame(frames.Topics())
        assert isinstance(peer.reply(), TopicsReply)
        peer.own.words[TAIL] = 0
        peer.bell()
        is_cut(peer)
    bystander.turn()
    assert len(log.violations()) == 1


@pytest.mark.parametrize("head", [U64, 2**63, 2**40, RING_BYTES])
def test_a_head_beyond_what_was_sent_ends_its_connection(
    bystander: Bystander, broker: BrokerProxy, located: Located, log: Log, head: int
) -> None:
    for number in range(100):
        broker.create_topic(f"{number:03}" * 80)
    with ringed(located) as peer:
        # Answers of 25 KiB each, until one needs the room that this claims.
        peer.own.words[HEAD] = head
        for _ in range(20):
            peer.frame(frames.Topics())
        until(lambda: len(log.violations()) == 1)
    bystander.turn()
    assert "read what was never sent" in log.violations()[0]


def test_words_that_change_between_two_looks_end_their_connection_alone(
    bystander: Bystander, located: Located, log: Log
) -> None:
    cut = 0
    for _ in range(times(20, 500)):
        with ringed(located) as peer:
            words = peer.own.words
            for _ in range(50):
                for _ in range(50):
                    words[TAIL] = 0
                    words[TAIL] = 2**40
                peer.bell()
                if has_ended(peer.sock):
                    cut += 1
                    break
        bystander.turn()
    # On a busy machine it may not look before all is written, which ends with a lie.
    until(lambda: len(log.violations()) >= max(1, cut))
    numbers = [re.findall(r"connection (\d+)", line)[0] for line in log.violations()]
    assert len(numbers) == len(set(numbers))


def has_ended(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_wishes_are_nothing_to_trip_over(bystander: Bystander, located: Located) -> None:
    dice = random.Random(4)
    with ringed(located) as peer:
        for _ in range(200):
            peer.own.words[dice.choice((WANTS_BYTES, WANTS_ROOM))] = dice.choice((0, 1, U64, dice.randrange(2**64)))
            peer.frame(frames.Topics())
            assert isinstance(peer.reply(), TopicsReply)
    bystander.turn()


def test_what_is_beside_the_words_is_nothing(bystander: Bystander, located: Located) -> None:
    with ringed(located) as peer:
        for place in range(HEAD_BYTES // 8):
            if place not in (TAIL, HEAD, WANTS_BYTES, WANTS_ROOM):
                peer.own.words[place] = U64
        peer.own.view[HEAD_BYTES:] = os.urandom(RING_BYTES)
        peer.frame(frames.Topics())
        assert isinstance(peer.reply(), TopicsReply)
    bystander.turn()


def test_garbage_in_every_place_ends_its_connection_alone(bystander: Bystander, located: Located) -> None:
    for seed in range(times(40, 2000)):
        dice = random.Random(seed)
        with ringed(located) as peer:
            for _ in range(dice.randrange(1, 40)):
                spoil(dice, peer)
                if dice.random() < 0.3:
                    peer.bell()
                if has_ended(peer.sock):
                    break
        if seed % 10 == 0:
            bystander.turn()


def spoil(dice: random.Random, peer: RingPeer) -> None:
    """One change of anything."""
    match dice.randrange(4):
        case 0:
            place = dice.choice((TAIL, HEAD, WANTS_BYTES, WANTS_ROOM, dice.randrange(HEAD_BYTES // 8)))
            old = peer.own.words[place]
            near = (old + dice.randrange(-70_000, 70_000)) & U64
            peer.own.words[place] = dice.choice((0, 1, U64, 2**63, near, near, dice.randrange(2**64)))
        case 1:
            peer.own.view[dice.randrange(SIZE)] = dice.randrange(256)
        case 2:
            at = dice.randrange(SIZE - 64)
            peer.own.view[at : at + 64] = dice.randbytes(64)
        case _:
            peer.own.view[HEAD_BYTES : HEAD_BYTES + 4] = dice.randrange(2**32).to_bytes(4, "little")


# -- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2**32 - 1, 2**31, 2**31 - 1, 2**30], ids=hex)
def test_a_frame_of_a_giant_or_negative_length_ends_its_connection(
    bystander: Bystander, located: Located, log: Log, length: int
) -> None:
    with ringed(located) as peer:
        peer.send(length.to_bytes(4, "little") + b"x" * 100)
        assert isinstance(error_of(peer.reply()), ProtocolViolation)
        is_cut(peer)
    bystander.turn()
    assert len(log.violations()) == 1


@pytest.mark.parametrize("beginning", [b"\x10", packed(bytes(1000))[:500], (1 << 20).to_bytes(4, "little")])
def test_a_frame_that_never_completes_is_cut_after_frame_timeout(
    bystander: Bystander, located: Located, log: Log, beginning: bytes
) -> None:
    with ringed(located) as peer:
        peer.send(beginning)
        bystander.turn()
        assert isinstance(error_of(peer.reply()), ProtocolViolation)
        is_cut(peer)
    (line,) = log.violations()
    assert "frame_timeout" in line


def test_answers_that_nobody_reads_are_cut_after_frame_timeout(
    bystander: Bystander, broker: BrokerProxy, located: Located, log: Log
) -> None:
    for number in range(100):
        broker.create_topic(f"{number:03}" * 80)
    with ringed(located) as peer:
        for _ in range(50):
            peer.frame(frames.Topics())
        bystander.turn()
        until(lambda: any("does not read its replies" in line for line in log.lines()))
        bystander.turn()


def test_a_socket_that_closes_in_the_middle_of_a_frame_is_an_end_and_no_request(
    bystander: Bystander, located: Located
) -> None:
    (batch,) = encode_batches(["never"])
    whole = packed(frames.encode(frames.Publish(bystander.topic, [msgspec.Raw(batch)], {}, 0)))
    for count in (1, 4, 5, len(whole) - 1):
        with ringed(located) as peer:
            peer.send(whole[:count])
    bystander.turn()


def test_a_client_that_calls_without_waiting_is_served_in_its_turn(bystander: Bystander, located: Located) -> None:
    asked = packed(frames.encode(frames.Topics()))
    with ringed(located) as peer:
        sending = threading.Thread(target=lambda: peer.send(asked * 500))
        peer.send(asked * 200)
        for _ in range(200):
            assert isinstance(peer.reply(), TopicsReply)
        sending.start()
        bystander.turn()
        sending.join(LIMIT_S)
        for _ in range(500):
            assert isinstance(peer.reply(), TopicsReply)


def test_a_flood_of_bells_starves_nobody(bystander: Bystander, located: Located) -> None:
    is_over = threading.Event()

    def flood(peer: RingPeer) -> None:
        while not is_over.is_set():
            peer.bell()

    with ringed(located) as peer:
        flooding = threading.Thread(target=flood, args=(peer,))
        flooding.start()
        try:
            for _ in range(20):
                bystander.turn()
        finally:
            is_over.set()
            flooding.join(LIMIT_S)


def test_the_bell_carries_nothing(bystander: Bystander, located: Located) -> None:
    with ringed(located) as peer:
        peer.sock.sendall(packed(frames.encode(frames.DeleteTopic(bystander.topic))))
        fd = os.open("/dev/null", os.O_RDONLY)
        socket.send_fds(peer.sock, [b"\0"], [fd] * 10)
        os.close(fd)
        peer.frame(frames.Topics())
        reply = peer.reply()
        assert isinstance(reply, TopicsReply)
        assert bystander.topic in reply.values
    bystander.turn()


# -- memory -----------------------------------------------------------------------------------------------------------


def test_what_a_client_was_given_and_gave_can_be_neither_cut_short_nor_written(
    bystander: Bystander, located: Located
) -> None:
    with let_in(located) as (_, call):
        own, fd = Segment.create(SIZE)
        reply, (theirs,) = offered(call, [fd])
        assert isinstance(reply, Done)
        for each in (fd, theirs):
            for size in (0, SIZE - 1, SIZE + 1):
                with pytest.raises(PermissionError):
                    os.ftruncate(each, size)
            with pytest.raises(PermissionError):
                os.pwrite(each, b"x", 0)
            again = os.open(f"/proc/self/fd/{each}", os.O_RDWR)
            with closing(again), pytest.raises(PermissionError):
                os.pwrite(again, b"x", 0)
            os.close(each)
        own.close()
    bystander.turn()


@contextmanager
def closing(*descriptors: int) -> Iterator[list[int]]:
    try:
        yield list(descriptors)
    finally:
        for each in descriptors:
            os.close(each)


def memory(size: int, seals: int) -> int:
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


WRONG: dict[str, Callable[[], tuple[int, ...]]] = {
    "no descriptor": lambda: (),
    "a file": lambda: (os.open(__file__, os.O_RDONLY),),
    "a device": lambda: (os.open("/dev/zero", os.O_RDWR),),
    "a folder": lambda: (os.open("/", os.O_RDONLY),),
    "a socket": lambda: (socket.socket(socket.AF_UNIX).detach(),),
    "unsealed memory": lambda: (memory(SIZE, 0),),
    "memory of another size": lambda: (memory(SIZE + 4096, fcntl.F_SEAL_SHRINK),),
    "two, of which the first is a device": lambda: (os.open("/dev/zero", os.O_RDWR), memory(SIZE, fcntl.F_SEAL_SHRINK)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_descriptor_is_refused_and_the_socket_goes_on(
    bystander: Bystander, located: Located, manager: BrokerManager, kind: str
) -> None:
    broker = psutil.Process(manager.pid)
    with let_in(located) as (_, call):
        before = broker.num_fds()
        with closing(*WRONG[kind]()) as descriptors:
            reply, theirs = offered(call, descriptors)
        assert theirs == []
        assert isinstance(reply, Failed)
        assert broker.num_fds() <= before  # others may just be leaving
        call.frame(frames.Topics())
        assert isinstance(call.reply(), TopicsReply)
    bystander.turn()


def test_of_two_descriptors_the_first_is_taken_and_none_is_kept(
    bystander: Bystander, located: Located, manager: BrokerManager
) -> None:
    broker = psutil.Process(manager.pid)
    with let_in(located) as (_, call):
        own, fd = Segment.create(SIZE)
        before = broker.num_fds()
        with closing(fd) as (first,):
            reply, theirs = offered(call, [first, first])
        assert isinstance(reply, Done)
        until(lambda: broker.num_fds() <= before + 2)
        for each in theirs:
            os.close(each)
        own.close()
    bystander.turn()


def test_descriptors_that_nobody_asked_for_are_closed(
    bystander: Bystander, located: Located, manager: BrokerManager
) -> None:
    broker = psutil.Process(manager.pid)
    with let_in(located) as (_, call):
        before = broker.num_fds()
        with closing(os.open("/dev/null", os.O_RDONLY)) as (fd,):
            for _ in range(5):
                socket.send_fds(call.sock, [packed(frames.encode(frames.Topics()))], [fd])
                assert isinstance(call.reply(), TopicsReply)
        # It closes the last one after its answer; others may just be leaving.
        until(lambda: broker.num_fds() <= before)
    bystander.turn()


def test_shared_memory_is_asked_for_once(bystander: Bystander, located: Located, log: Log) -> None:
    with let_in(located) as (_, call):
        assert isinstance(offered(call, [])[0], Failed)
        assert isinstance(error_of(offered(call, [])[0]), ProtocolViolation)
        assert call.reply() is None
    with ringed(located) as peer:
        peer.frame(frames.Share(RING_BYTES))
        assert isinstance(error_of(peer.reply()), ProtocolViolation)
        is_cut(peer)
    bystander.turn()
    assert len(log.violations()) == 2


def test_shared_memory_is_asked_for_before_the_first_call(bystander: Bystander, located: Located) -> None:
    with let_in(located) as (_, call):
        call.frame(frames.Topics())
        assert isinstance(call.reply(), TopicsReply)
        own, fd = Segment.create(SIZE)
        with closing(fd):
            reply, theirs = offered(call, [fd])
        assert isinstance(error_of(reply), ProtocolViolation)
        assert (theirs, call.reply()) == ([], None)
        own.close()
    bystander.turn()


@pytest.mark.parametrize("size", [0, 4096, RING_BYTES + 4096, 2**40, -1, -(2**63)])
def test_shared_memory_of_another_size_than_was_offered_is_a_violation(
    bystander: Bystander, located: Located, size: int
) -> None:
    with let_in(located) as (_, call):
        own, fd = Segment.create(SIZE)
        with closing(fd):
            reply, theirs = offered(call, [fd], size)
        assert isinstance(error_of(reply), ProtocolViolation)
        assert (theirs, call.reply()) == ([], None)
        own.close()
    bystander.turn()


@pytest.mark.parametrize("role", ["presence", "admin"])
def test_shared_memory_is_for_calls(bystander: Bystander, located: Located, role: str) -> None:
    with Peer(located) as peer:
        peer.hello(role, os.urandom(16), 1)
        welcome = peer.reply()
        assert isinstance(welcome, frames.Welcome)
        assert welcome.ring_bytes == 0
        assert isinstance(error_of(offered(peer, [])[0]), ProtocolViolation)
        assert peer.reply() is None
    bystander.turn()


def test_what_a_client_leaves_is_all_let_go_of(bystander: Bystander, located: Located, manager: BrokerManager) -> None:
    broker = psutil.Process(manager.pid)
    descriptors, mappings = broker.num_fds(), mapped(manager.pid)
    for _ in range(times(20, 1000)):
        with ringed(located) as peer:
            peer.own.words[TAIL] = U64
            peer.bell()
    # Whoever was just leaving at the beginning is gone, too.
    until(lambda: broker.num_fds() <= descriptors and mapped(manager.pid) <= mappings)
    bystander.turn()


def mapped(pid: int | None) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:mpbroker")
