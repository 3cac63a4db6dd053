"""Many at once, and too many: connections, descriptors, comings and goings."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from mpbroker import AccessRefused, BrokerGone, BrokerManager, BrokerProxy, InvalidFilter, LimitReached, connect
from mpbroker.process.doors import Doors, Exhausted
from mpbroker.process.frames import Welcome
from mpbroker.process.handshake import HANDSHAKE_S
from mpbroker.process.naming import Located, locate_at
from tests.conformance.support import until
from tests.hostile.support import Peer, assert_serves, error_of, let_in, times
from tests.process.puppets import LIMIT_S, ROOT, Puppet


def test_among_500_silent_connections_a_client_gets_in_within_the_handshake_deadline(
    broker: BrokerProxy, located: Located
) -> None:
    if broker._status().limits["connections"][1] < 510:
        pytest.skip("the broker may not open that many files here: see ulimit -Hn")
    peers = [Peer(located) for _ in range(500)]
    for number, peer in enumerate(peers):
        peer.send(b"\x40\x00\x00\x00x"[: number % 6])
    with connect("hostile", HANDSHAKE_S, directory=located.folder.parent) as other:
        assert_serves(other)
    assert_serves(broker)
    begun = time.monotonic()
    for peer in peers:
        assert isinstance(error_of(peer.reply()), AccessRefused)
        assert peer.reply() is None
        peer.close()
    assert time.monotonic() - begun < LIMIT_S


def test_more_silent_connections_than_there_is_room_for_keep_nobody_out() -> None:
    with BrokerManager("orders", max_connections=20) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        located = locate_at(Path(broker._address.folder))
        peers = [Peer(located) for _ in range(300)]
        with Puppet(broker) as other:
            assert other.do(_topics) == 1
            other.finish()
        assert_serves(broker)
        for peer in peers:
            peer.close()


def _topics(broker: BrokerProxy) -> int:
    return len(broker.topics())


def test_ten_thousand_connections_that_come_and_go_leave_nothing(
    manager: BrokerManager, broker: BrokerProxy, located: Located
) -> None:
    process = psutil.Process(manager.pid)

    def come_and_go(rounds: int) -> None:
        for number in range(rounds):
            if number % 20:
                located.connect(LIMIT_S).close()
            else:
                with let_in(located):
                    pass

    def look() -> tuple[int, int, dict[str, int]]:
        limits = broker._status().limits
        return process.num_fds(), process.num_threads(), {name: limits[name][0] for name in ("connections", "sessions")}

    before = look()
    come_and_go(2000)
    until(lambda: look() == before)
    memory = process.memory_info().rss
    come_and_go(times(8000, 100_000))
    until(lambda: look() == before)
    assert process.memory_info().rss - memory < 4 << 20


def test_beyond_the_limit_connections_are_refused_and_the_others_go_on() -> None:
    with BrokerManager("orders", max_connections=4) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        with Puppet(broker) as other:
            other.do(_topics)
            with Puppet(broker) as third:
                # Its presence comes in by the reserve; its call does not.
                with pytest.raises(LimitReached, match="max_connections"):
                    third.do(_topics)
                assert_serves(broker)
                other.finish()
                assert third.do(_topics) == 1
    assert manager.pid is not None


def test_a_full_broker_can_still_be_stopped() -> None:
    with BrokerManager("orders", max_connections=2) as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        with connect("orders") as same:
            same._stop()
        manager.join(LIMIT_S)
        with pytest.raises(BrokerGone):
            broker.topics()


# -- descriptors of the broker ----------------------------------------------------------------------------------------


@contextmanager
def no_more_descriptors(pid: int, *, gaps: bool = True) -> Iterator[None]:
    """A process that can open nothing more. gaps: unless it closes something, or has closed something before."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    limit = max(opened) + 1 if gaps else min(set(range(len(opened) + 1)) - opened)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def _pid(manager: BrokerManager) -> int:
    assert manager.pid is not None
    return manager.pid


def first_refusal(located: Located, let_in_before: ExitStack) -> Exception:
    """What the first is told for whom there is no descriptor; those before it take what was closed below others."""
    for _ in range(20):
        peer = let_in_before.enter_context(Peer(located))
        peer.hello("admin", os.urandom(16), 1)
        reply = peer.reply()
        if type(reply) is not Welcome:
            assert peer.reply() is None
            return error_of(reply)
    pytest.fail("everybody was let in")


def test_a_broker_without_descriptors_says_so_at_once_and_serves_those_it_has(
    manager: BrokerManager, broker: BrokerProxy, located: Located
) -> None:
    with Puppet(broker) as other:
        with no_more_descriptors(_pid(manager)), ExitStack() as let_in_before:
            error = first_refusal(located, let_in_before)
            assert isinstance(error, LimitReached)
            assert "open files" in str(error)
            for _ in range(times(20, 1000)):
                with pytest.raises(LimitReached, match="ulimit -n"):
                    other.do(_topics)
                assert_serves(broker)
        # The very same client, once there is room.
        assert other.do(_topics) == 1
        other.finish()


def test_what_a_broker_needs_descriptors_for_fails_without_them_and_harms_nothing() -> None:
    """The first expression loads its parser, and the status asks for the memory."""
    with BrokerManager() as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        with no_more_descriptors(_pid(manager), gaps=False):
            assert broker._status().memory_bytes == 0
            with pytest.raises(InvalidFilter, match="cannot load the parser"):
                broker.subscribe("orders", "billing", 'headers.type = "paid"')
            assert broker.subscriptions() == {}
            assert_serves(broker)
        assert broker._status().memory_bytes > 0
        broker.subscribe("orders", "billing", 'headers.type = "paid"')


def test_connections_are_as_many_as_descriptors_allow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )
    # A quarter of them is for 22 rings, where each keeps two.
    connections = 66 if sys.version_info >= (3, 13) else 50
    expected = f"2048 200: {connections}\nrefused: ulimit -n\nserved\nlet in\ntoo few\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


FEW_DESCRIPTORS = """
import os, resource
from pathlib import Path
import mpbroker
from mpbroker.process.naming import locate_at
from tests.hostile.support import Peer, error_of
from mpbroker.process.frames import Welcome
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), 200))
with mpbroker.BrokerManager(max_connections=2048) as manager:
    broker = manager.broker()
    broker.create_topic("orders")
    limit = broker._status().limits["connections"][1]
    print(f"2048 200: {limit}")
    located = locate_at(Path(broker._address.folder))
    peers = []
    while True:
        peers.append(Peer(located))
        peers[-1].hello("presence", os.urandom(16), 1)
        reply = peers[-1].reply()
        if type(reply) is not Welcome:
            break
    print("refused:", "ulimit -n" if "ulimit -n" in str(error_of(reply)) else error_of(reply))
    print("served" if list(broker.topics()) == ["orders"] else "lost")
    for peer in peers:
        peer.close()
    broker.close()
    while True:
        # It looks for a moment whether the processes of those connections have ended.
        try:
            print("let in" if list(broker.topics()) == ["orders"] else "lost")
            break
        except mpbroker.LimitReached:
            pass
resource.setrlimit(resource.RLIMIT_NOFILE, (26, 26))
try:
    mpbroker.BrokerManager().start()
except mpbroker.BrokerFailed as error:
    print("too few" if "ulimit -n" in str(error) else error)
"""


class NoListener:
    """One that has no room, whatever is done."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0

    def settimeout(self, _: float) -> None:
        pass

    def accept(self) -> tuple[socket.socket, str]:
        self.calls += 1
        raise OSError(self.number, os.strerror(self.number))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_where_nobody_can_even_be_turned_away_accepting_pauses_instead_of_spinning(number: int) -> None:
    listener = NoListener(number)
    doors = Doors(listener)  # type: ignore[arg-type]
    with pytest.raises(Exhausted):
        doors.accept()
    assert listener.calls <= 2
    doors.close()


def test_a_defect_of_the_listener_is_not_mistaken_for_a_full_house() -> None:
    doors = Doors(NoListener(errno.EINVAL))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Invalid argument"):
        doors.accept()
    doors.close()


# -- descriptors of a client ------------------------------------------------------------------------------------------


def test_a_client_without_descriptors_is_told_so_and_goes_on_when_it_has_some() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT_WITHOUT],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "served\nEMFILE ulimit -n\nserved\nEMFILE ulimit -n\nserved\nheld 1\nEMFILE ulimit -n\nserved\n",
        "",
    )


CLIENT_WITHOUT = """
import errno, os, resource, threading
import mpbroker

def told(call):
    try:
        return call()
    except OSError as error:
        return f"{errno.errorcode[error.errno]} {'ulimit -n' if 'ulimit -n' in str(error) else error}"

def served():
    return "served" if list(broker.topics()) == ["orders"] else "lost"

def in_thread(call):
    said = []
    thread = threading.Thread(target=lambda: said.append(told(call)))
    thread.start()
    thread.join(20)
    return said[0]

def starved(call):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        return call()
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

with mpbroker.BrokerManager("orders") as manager:
    broker = manager.broker()
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    broker.publish("orders", 1)
    (delivery,) = billing.poll("w")
    print(served())
    # a new thread needs a connection; this one's goes on
    print(starved(lambda: in_thread(served)))
    print(starved(lambda: told(served)))
    # a process that has let go of everything
    other = mpbroker.BrokerManager("orders")
    print(starved(lambda: told(other.connect)))
    print(in_thread(served))
    print("held", billing.stats().in_flight)
    broker.close()
    print(starved(lambda: told(served)))
    print(served())
"""
