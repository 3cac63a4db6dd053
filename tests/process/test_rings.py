"""Calls through shared memory: taken where they can be, done without where they cannot, and gone with their threads."""

from __future__ import annotations

import errno
import gc
import logging
import mmap
import os
import pickle
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mpbroker import BrokerGone, BrokerManager, BrokerProxy, SubscriptionAPI, TransportUnavailable, connect
from mpbroker.process.limits import Limits
from mpbroker.shm import stream
from mpbroker.shm.ring import is_known_machine
from mpbroker.shm.segment import is_there
from tests.conformance.support import Call, together, until
from tests.process.puppets import LIMIT_S, ROOT, Program, Puppet, wait_for_end, waits

pytestmark = pytest.mark.skipif(not (is_there() and is_known_machine()), reason="there are no rings here")

RING_BYTES = Limits().ring_bytes


@pytest.fixture(scope="module")
def manager() -> Iterator[BrokerManager]:
    # No arena: what is large goes through the rings here.
    with BrokerManager("ringed", transport="ring", arena_threshold=0) as manager:
        yield manager


@pytest.fixture
def broker(manager: BrokerManager) -> Iterator[BrokerProxy]:
    broker = manager.broker()
    yield broker
    for topic in broker.topics():
        broker.delete_topic(topic)
    broker.close()


@pytest.fixture
def own(broker: BrokerProxy) -> SubscriptionAPI:
    broker.create_topic("t")
    return broker.subscribe("t", "own")


def rings(broker: BrokerProxy) -> int:
    return broker._status().limits["rings"][0]


def mapped(pid: int | str | None = "self") -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:mpbroker")


def serves(broker: BrokerProxy) -> None:
    """Everything works."""
    broker.create_topic("works")
    own = broker.subscribe("works", "own")
    for size in (0, 1, 1000, RING_BYTES, 3 * RING_BYTES):
        broker.publish("works", bytes(size))
    deliveries = [own.poll("m", timeout=LIMIT_S)[0] for _ in range(5)]
    assert [len(each.payload) for each in deliveries] == [0, 1, 1000, RING_BYTES, 3 * RING_BYTES]
    assert all(each.ack() for each in deliveries)
    assert own.poll("m", timeout=0.01) == []
    broker.delete_topic("works")


# -- which way --------------------------------------------------------------------------------------------------------


def test_a_client_takes_rings_by_itself_and_status_shows_them() -> None:
    with BrokerManager(arena_threshold=0) as manager, manager.broker() as broker:
        assert broker._status().limits["rings"] == [1, Limits().max_rings]
        serves(broker)
        together([lambda: rings(broker)] * 3)
        # Those threads are gone, and their rings with them.
        until(lambda: rings(broker) == 1)
        assert mapped() == mapped(manager.pid) == 2


def test_the_manager_way_never_makes_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> int:
        raise AssertionError("a segment was made")

    monkeypatch.setattr(os, "memfd_create", never)
    with BrokerManager(transport="manager") as manager, manager.broker() as broker:
        serves(broker)
        assert rings(broker) == 0
        assert mapped() == mapped(manager.pid) == 0


def test_the_environment_chooses_where_no_argument_does(
    monkeypatch: pytest.MonkeyPatch, manager: BrokerManager
) -> None:
    for word, argument, expected in [
        ("manager", None, 0),
        ("manager", "ring", 1),
        ("", "manager", 0),
        ("auto", None, 1),
    ]:
        monkeypatch.setenv("MPBROKER_TRANSPORT", word)
        with at(manager, argument) as broker:
            assert rings(broker) == expected


def at(manager: BrokerManager, transport: str | None = None) -> BrokerProxy:
    """The broker of a manager, as a client of its own sees it."""
    folder = Path(manager.broker()._address.folder)
    return connect(folder.name, directory=folder.parent, transport=transport)


@pytest.mark.parametrize("word", ["rings", "RING", "", " ring", "shm"])
def test_a_way_that_is_none_is_a_value_error_that_names_it(manager: BrokerManager, word: str) -> None:
    expected = f"^transport must be one of auto, ring, manager, not {word!r}$"
    with pytest.raises(ValueError, match=expected):
        BrokerManager(transport=word)
    with pytest.raises(ValueError, match=expected):
        at(manager, word)


def test_a_way_that_is_none_in_the_environment_is_a_value_error_that_names_the_variable(
    manager: BrokerManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPBROKER_TRANSPORT", "carrier pigeon")
    for act in (BrokerManager, lambda: at(manager)):
        with pytest.raises(ValueError, match=r"MPBROKER_TRANSPORT must be one of .*, not 'carrier pigeon'"):
            act()
    with at(manager, "ring") as broker:
        assert rings(broker) == 1


def test_a_proxy_takes_its_way_along_to_other_processes(manager: BrokerManager) -> None:
    for transport, expected in (("ring", True), ("manager", False)):
        with at(manager, transport) as broker:
            before = rings(broker)
            with Puppet(broker, "spawn") as child:
                assert (child.do(rings) == before + 1) is expected
                child.finish()


# -- where there are none ---------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def refuse(number: int) -> Callable[..., int]:
    def call(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return call


LACKS: dict[str, Callable[[Patch], None]] = {
    "no memfd_create": lambda patch: patch.delattr(os, "memfd_create"),
    "no more descriptors": lambda patch: patch.setattr(os, "memfd_create", refuse(errno.EMFILE)),
    "no descriptor passing": lambda patch: patch.delattr(socket, "send_fds"),
    "no mappings": lambda patch: patch.setattr(mmap, "mmap", refuse(errno.ENOMEM)),
    "no room": lambda patch: patch.setattr(os, "posix_fallocate", refuse(errno.ENOSPC)),
    "an unknown machine": lambda patch: patch.setattr(platform, "machine", lambda: "vax"),
}


@pytest.mark.parametrize("lack", LACKS)
def test_without_what_rings_need_calls_go_through_the_socket_and_one_line_is_logged(
    manager: BrokerManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lack: str
) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    mapped_before = mapped(manager.pid)
    with monkeypatch.context() as patch:
        LACKS[lack](patch)
        with at(manager, "auto") as broker:
            serves(broker)
            together([broker.topics] * 4)
            assert rings(broker) == 0
    (record,) = caplog.records
    assert "no shared memory with the broker in" in record.message
    assert broker._address.folder in record.message
    assert mapped(manager.pid) <= mapped_before  # others may just be leaving


@pytest.mark.parametrize("lack", LACKS)
def test_rings_that_were_asked_for_and_cannot_be_had_are_an_error_that_says_why(
    manager: BrokerManager, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    with monkeypatch.context() as patch:
        LACKS[lack](patch)
        with pytest.raises(TransportUnavailable, match="no transport 'ring' to this broker: ") as caught:
            at(manager, "ring")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.args, str(again)) == (TransportUnavailable, caught.value.args, str(caught.value))
    with at(manager, "ring") as broker:  # and nothing is left of it
        serves(broker)


def test_a_broker_that_offers_none_is_asked_for_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    with BrokerManager("without", ring_bytes=0) as manager:
        with manager.broker() as broker:
            serves(broker)
            assert broker._status().limits["rings"][0] == 0
            assert mapped() == mapped(manager.pid) == 0
        (record,) = caplog.records
        assert record.levelno == logging.INFO  # somebody wanted it so
        assert "ring_bytes" in record.message
        with pytest.raises(TransportUnavailable, match="ring_bytes"):
            at(manager, "ring")


def test_beyond_max_rings_calls_go_through_the_socket_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    with BrokerManager("one", max_rings=1) as manager, manager.broker() as broker:
        serves(broker)
        assert broker._status().limits["rings"] == [1, 1]
        # A thread of the same process, and then another one.
        assert [Call(lambda: broker._status().limits["rings"]).result() for _ in range(3)] == [[1, 1]] * 3
        (record,) = caplog.records
        assert "max_rings" in record.message
        with pytest.raises(TransportUnavailable, match="max_rings"):
            at(manager, "ring")
        with at(manager, "manager") as other:
            serves(other)


def test_a_broker_without_descriptors_for_rings_is_reached_through_its_socket(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MPBROKER_TEST_RINGLESS", "1")
    with BrokerManager("ringless", filter_modules=["tests.process.ringless"]) as manager:
        with manager.broker() as broker:
            serves(broker)
            assert rings(broker) == 0
        (record,) = caplog.records
        assert "Too many open files" in record.message
        with pytest.raises(TransportUnavailable, match="Too many open files"):
            at(manager, "ring")


# -- bytes ------------------------------------------------------------------------------------------------------------

SIZES = [
    0,
    1,
    *[RING_BYTES + more for more in (-65, -64, -33, -32, -9, -8, -5, -4, -1, 0, 1, 4)],
    2 * RING_BYTES,
    20 << 20,
]


@pytest.mark.parametrize("size", SIZES)
def test_a_payload_of_any_size_goes_and_comes(broker: BrokerProxy, own: SubscriptionAPI, size: int) -> None:
    payload = os.urandom(min(size, 1 << 16)) * (size // (1 << 16) + 1)
    payload = payload[:size]
    broker.publish("t", payload)
    (delivery,) = own.poll("m", timeout=LIMIT_S)
    assert delivery.payload == payload
    assert delivery.ack()


def test_a_large_answer_comes_to_a_poll_that_waits(broker: BrokerProxy, own: SubscriptionAPI) -> None:
    waiting = Call(lambda: own.poll("m", timeout=LIMIT_S))
    waits(broker)
    payload = os.urandom(1 << 20) * 5
    broker.publish("t", payload)
    (delivery,) = waiting.result()
    assert delivery.payload == payload


def test_a_ring_of_one_page_carries_everything() -> None:
    with BrokerManager(ring_bytes=4096, transport="ring") as manager, manager.broker() as broker:
        serves(broker)
        assert rings(broker) == 1


# -- threads, forks, ends ----------------------------------------------------------------------------------------------


def test_each_thread_has_a_ring_of_its_own_until_it_ends(manager: BrokerManager, broker: BrokerProxy) -> None:
    barrier = threading.Barrier(5)

    def call() -> None:
        broker.topics()
        barrier.wait(LIMIT_S)
        barrier.wait(LIMIT_S)

    before, mapped_before = rings(broker), mapped()
    calls = [Call(call) for _ in range(4)]
    barrier.wait(LIMIT_S)
    assert rings(broker) == before + 4
    assert mapped() == mapped_before + 8
    barrier.wait(LIMIT_S)
    for each in calls:
        each.result()
    until(lambda: rings(broker) == before)
    until(lambda: mapped() == mapped_before)


def test_after_close_nothing_is_mapped_on_either_side(manager: BrokerManager) -> None:
    broker = at(manager, "ring")
    before = mapped(manager.pid)
    serves(broker)
    together([broker.topics] * 3)
    assert mapped() > 0
    broker.close()
    assert mapped() == 0
    until(lambda: mapped(manager.pid) <= before - 2)


@pytest.mark.timeout(300)
def test_a_thousand_connects_leave_nothing_mapped_and_nothing_open(manager: BrokerManager) -> None:
    process, ours = psutil.Process(manager.pid), psutil.Process()
    at(manager, "ring").close()
    until(lambda: mapped(manager.pid) == 0)
    theirs_before, ours_before = process.num_fds(), ours.num_fds()
    for _ in range(1000):
        with at(manager, "ring") as broker:
            broker.topics()
    until(lambda: mapped(manager.pid) == mapped() == 0)
    until(lambda: process.num_fds() <= theirs_before and ours.num_fds() <= ours_before)


def fork_and_call(broker: BrokerProxy) -> int:
    """Fork; the child calls, and says how many rings there are then."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, bytes([rings(broker), mapped()]))
        finally:
            os._exit(0)
    os.close(write)
    said = os.read(read, 10)
    os.close(read)
    os.waitpid(pid, 0)
    assert len(said) == 2, "the child failed"
    assert said[1] == 2  # its own pair; what it inherited is let go of
    return said[0]


def test_a_forked_child_has_a_ring_of_its_own_and_the_parents_goes_on(
    broker: BrokerProxy, own: SubscriptionAPI
) -> None:
    before = rings(broker)
    broker.publish("t", 1)
    (held,) = own.poll("m")
    assert fork_and_call(broker) == before + 1
    with Puppet(broker, "fork") as child:
        assert child.do(rings) == before + 1
        assert child.do(mapped_of) == 2
        child.finish()
    assert held.ack()
    until(lambda: rings(broker) == before)


def mapped_of(_: BrokerProxy) -> int:
    return mapped()


def test_a_child_that_a_signal_handler_forks_in_a_call_leaves_the_parents_call_alone(
    broker: BrokerProxy, own: SubscriptionAPI
) -> None:
    main = os.getpid()
    children: list[int] = []
    read, write = os.pipe()
    is_struck = threading.Event()

    def handler(*_: object) -> None:
        if not is_struck.is_set():
            is_struck.set()  # first: another signal may come in the middle of the fork
            children.append(os.fork())

    def strike() -> None:
        waits(broker)
        while not is_struck.wait(0.01):
            os.kill(main, signal.SIGUSR1)
        os.read(read, 1)  # the child is over
        broker.publish("t", "to the parent")

    before = signal.signal(signal.SIGUSR1, handler)
    striking = Call(strike)
    try:
        answer: object = None
        try:
            answer = own.poll("m", timeout=LIMIT_S)
        except BaseException as error:
            answer = error
        if os.getpid() != main:
            try:
                # Its call is void, and it says so; the next one has a connection of its own.
                if isinstance(answer, ConnectionError) and not isinstance(answer, BrokerGone):
                    broker.topics()
                    os.write(write, b"y")
            finally:
                os._exit(0)
        assert isinstance(answer, list), answer
        assert [each.payload for each in answer] == ["to the parent"]
    finally:
        if os.getpid() == main:
            signal.signal(signal.SIGUSR1, before)
            os.waitpid(children[0], 0)
            striking.result()
            os.close(read)
            os.close(write)


def poll_for_ever(own: SubscriptionAPI) -> list[object]:
    return list(own.poll("m", timeout=600.0))


@pytest.mark.leaves("files")
def test_a_broker_that_is_killed_is_gone_for_who_sleeps_in_a_ring() -> None:
    with BrokerManager("killed", transport="ring") as manager:
        broker = manager.broker()
        broker.create_topic("t")
        own = broker.subscribe("t", "own")
        waiting = [Call(lambda: own.poll("m", timeout=600.0)) for _ in range(3)]
        waits(broker, 3)
        os.kill(manager.pid or 0, signal.SIGKILL)
        for each in waiting:
            with pytest.raises(BrokerGone, match="SIGKILL"):
                each.result()
    del waiting, each  # what they raised has hold of the session
    gc.collect()
    assert mapped() == 0


def test_a_broker_that_is_stopped_leaves_its_last_words_in_the_rings() -> None:
    manager = BrokerManager("stopped", transport="ring")
    manager.start()
    broker = manager.broker()
    broker.create_topic("t")
    own = broker.subscribe("t", "own")
    with Puppet(own, "fork") as child:
        child.begin(poll_for_ever)
        waits(broker)
        manager.shutdown()
        with pytest.raises(BrokerGone, match="manager shut it down"):
            child.result()
        child.finish()


def test_a_client_that_is_killed_in_a_ring_gives_back_what_it_held(
    manager: BrokerManager, broker: BrokerProxy, own: SubscriptionAPI
) -> None:
    before = mapped(manager.pid)
    broker.publish("t", 1)
    with Puppet(own, "fork") as child:
        assert len(child.do(poll_for_ever)) == 1
        child.begin(poll_for_ever)
        waits(broker)
        child.kill()
    (again,) = own.poll("other", timeout=LIMIT_S)
    assert again.attempt == 2
    assert again.ack()
    until(lambda: mapped(manager.pid) <= before)


# -- many who wait ----------------------------------------------------------------------------------------------------


def poll_once(own: SubscriptionAPI) -> tuple[int, int]:
    """What came; and how often this process slept for it."""
    before = psutil.Process().num_ctx_switches().voluntary
    (delivery,) = own.poll("m", timeout=600.0)
    delivery.ack()
    return delivery.payload, psutil.Process().num_ctx_switches().voluntary - before


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("no_net")
def test_of_many_who_wait_one_message_wakes_one_and_they_come_in_their_order(
    broker: BrokerProxy, own: SubscriptionAPI
) -> None:
    children = [Puppet(own, "fork") for _ in range(32)]
    try:
        for number, child in enumerate(children, 1):
            child.begin(poll_once)
            waits(broker, number)
        watched = [psutil.Process(child.pid) for child in children]
        for number, child in enumerate(children):
            slept = [each.num_ctx_switches().voluntary for each in watched[number + 1 :]]
            broker.publish("t", number)
            assert child.result()[0] == number  # the one that waited longest
            woken = [
                each.num_ctx_switches().voluntary - before
                for each, before in zip(watched[number + 1 :], slept, strict=True)
            ]
            # A herd would have woken all of them. Who just begins to wait, one or two of them, still falls asleep.
            assert sum(each > 0 for each in woken) <= max(2, len(woken) // 2), woken
        for child in children:
            child.finish()
    finally:
        for child in children:
            child.__exit__(None, None, None)


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sleeps in a ring is woken by the bell or by nothing."""
    monkeypatch.setattr(stream, "_NET_S", 3600.0)


@pytest.mark.usefixtures("no_net")
def test_who_sleeps_is_woken_when_its_poll_has_waited_long_enough(own: SubscriptionAPI) -> None:
    assert Call(lambda: own.poll("w", timeout=0.05)).result() == []


def ticks(pid: int) -> int:
    """CPU time that a process used, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_who_waits_and_an_idle_broker_use_no_cpu(
    manager: BrokerManager, broker: BrokerProxy, own: SubscriptionAPI
) -> None:
    with Puppet(own, "fork") as child:
        child.begin(poll_for_ever)
        waits(broker)
        pids = [manager.pid or 0, child.pid]
        before = [ticks(pid) for pid in pids]
        broker._client.close()  # this process asks for nothing meanwhile
        threading.Event().wait(1.5)
        after = [ticks(pid) for pid in pids]
        broker.publish("t", 1)
        assert len(child.result()) == 1
        child.finish()
    # Whoever looks all the time has 150 by then.
    assert [now - then < 30 for now, then in zip(after, before, strict=True)] == [True, True]


# -- nothing beside ---------------------------------------------------------------------------------------------------

WORK = """
import multiprocessing, os
from mpbroker import BrokerManager, BrokerProxy

def child(own):
    (delivery,) = own.poll("m", timeout=30.0)
    assert delivery.ack()

if __name__ == "__main__":
    with BrokerManager(transport="ring") as manager, manager.broker() as broker:
        broker.create_topic("t")
        own = broker.subscribe("t", "own")
        for method in ("fork", "spawn"):
            process = multiprocessing.get_context(method).Process(target=child, args=(own,))
            process.start()
            broker.publish("t", bytes(3_000_000))
            process.join(30)
            assert process.exitcode == 0
        print("rings", broker._status().limits["rings"][0])
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(WORK)
    return path


def run(*command: str) -> tuple[str, str]:
    """What a program said, and its errors."""
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


def test_no_resource_tracker_and_nobody_else_has_a_word(work: Path) -> None:
    assert run(sys.executable, "-X", "dev", "-W", "error", str(work)) == ("rings 1\n", "")


def test_rings_need_no_room_in_dev_shm(work: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may make no mount namespaces")
    script = f"mount -t tmpfs -o size=1m none /dev/shm && df -k /dev/shm | tail -1 && {sys.executable} {work}"
    told, errors = run(unshare, "-m", "sh", "-c", script)
    assert told.splitlines()[1:] == ["rings 1"]
    assert told.split()[1] == "1024"
    assert errors == ""


def test_nobody_opens_anything_in_dev_shm(work: Path, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if (
        strace is None
        or subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("there is no strace, or it is not permitted")
    log = tmp_path / "calls"
    told, _ = run(strace, "-f", "-qq", "-e", "trace=%file,memfd_create", "-o", str(log), sys.executable, str(work))
    assert told == "rings 1\n"
    calls = log.read_text()
    assert calls.count("memfd_create") >= 6
    assert [line for line in calls.splitlines() if "/dev/shm" in line] == []


def test_nobody_is_left(work: Path) -> None:
    with Program(str(work)) as program:
        assert program.line() == "rings 1"
        assert program.end() == (0, "", "")
        wait_for_end(program.process.pid)
