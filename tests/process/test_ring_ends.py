"""The end of a client whose calls go through a ring, seen by a broker that has much to see at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from mpbroker import BrokerManager
from mpbroker.process import presence
from mpbroker.process.naming import Transport
from mpbroker.process.proxy import BrokerProxy
from tests.prove.points_scene import wait_until
from tests.prove.points_trap import is_stopped

_FORK = multiprocessing.get_context("fork")

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="rings, and who is stopped, are told on Linux"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """What happens meanwhile the broker sees at once."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until("the stop", lambda: is_stopped(pid))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def manager(broker_folder: Path) -> Iterator[BrokerManager]:
    with BrokerManager(directory=broker_folder, transport="ring") as manager:
        manager.broker().create_topic("t")
        yield manager


def _pid(manager: BrokerManager) -> int:
    assert manager.pid is not None
    return manager.pid


def _is_alone(manager: BrokerManager) -> None:
    """The broker goes on, and has nothing of the client that left."""
    broker = manager.broker()
    wait_until("the end of the other session", lambda: broker._status().limits["sessions"][0] == 1)
    assert broker._status().limits["rings"][0] == 1
    assert [*broker.topics()] == ["t"]


def test_a_goodbye_and_the_end_of_a_ring_in_one_turn_of_the_loop_end_the_client_alone(
    manager: BrokerManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_GOODBYE_S", 0.01)
    # Of this process, too, but by a session of its own.
    other = BrokerProxy(manager.broker()._address._replace(transport=Transport.AUTO))
    other.topics()
    with _stopped(_pid(manager)):
        other.close()

    _is_alone(manager)


def test_a_death_and_the_end_of_a_ring_in_one_turn_of_the_loop_end_the_client_alone(manager: BrokerManager) -> None:
    ours, theirs = _FORK.Pipe()
    worker = _FORK.Process(target=_call_and_wait, args=(manager.broker(), theirs))
    worker.start()
    try:
        assert ours.poll(20.0)
        with _stopped(_pid(manager)):
            worker.kill()
            worker.join(20.0)
    finally:
        worker.kill()
        worker.join(20.0)
        worker.close()
        ours.close()
        theirs.close()

    _is_alone(manager)


def _call_and_wait(broker: BrokerProxy, pipe: Connection) -> None:
    pipe.send(len(broker.topics()))
    pipe.recv()
