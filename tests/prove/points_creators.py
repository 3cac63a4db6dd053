"""The kill points of a process that starts a broker and ends it, and the scenes at them.

Whatever becomes of it, its broker does not outlive it, nothing is left, and the name is free.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpbroker import BrokerManager, NameTaken
from mpbroker._version import __version__
from mpbroker.process.claims import BrokerFolder
from mpbroker.process.frames import PROTOCOL
from mpbroker.process.naming import BrokerInfo, Transport
from mpbroker.testing import LeakCheck
from tests.prove.planes import BOTH, Planes, wrong_rings
from tests.prove.points_deeds import Book
from tests.prove.points_scene import Missed, wait_until
from tests.prove.points_trap import LIMIT_S, Action, Signs, Spot, Trap, When, is_stopped

NAME: Final = "created"

_STOP_S: Final = 0.4
_LAUNCH: Final = "mpbroker.process.launch"
_FORK: Final = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class CreatorPoint:
    """One point in a process that has a BrokerManager."""

    name: str
    spot: Spot
    planes: Planes = BOTH

    @property
    def side(self) -> str:
        return "creator"


POINTS: Final = [
    CreatorPoint(f"creator {where}", spot)
    for where, spot in (
        ("before it starts its broker's process", Spot(f"{_LAUNCH}:_spawn")),
        ("started its broker's process and told it nothing", Spot(f"{_LAUNCH}:_spawn", When.AFTER)),
        ("heard that its broker is ready", Spot(f"{_LAUNCH}:answer_in")),
        ("has a broker and its manager does not know it", Spot(f"{_LAUNCH}:BrokerProcess.__init__", When.AFTER)),
        ("has a manager that knows half", Spot("mpbroker.process.manager:BrokerManager._stands_for", When.AFTER)),
        ("has a manager that has just started", Spot("mpbroker.process.manager:BrokerManager.start", When.AFTER)),
        ("before it ends its broker", Spot(f"{_LAUNCH}:BrokerProcess.stop")),
        (
            "told its broker to end",
            Spot(f"{_LAUNCH}:BrokerProcess.wait", within=f"{_LAUNCH}:BrokerProcess.stop"),
        ),
        ("ended its broker and has not let go of it", Spot(f"{_LAUNCH}:BrokerProcess.stop", When.AFTER)),
    )
]


class CreatorScene:
    """One creator, from its start to the end of all it started. wrong: what must not be."""

    def __init__(self, point: CreatorPoint, action: Action, plane: Transport, base: Path, folder: Path) -> None:
        self.wrong: list[str] = []
        self._plane = plane
        self._point = point
        self._action = action
        self._base = base
        self._folder = folder

    def play(self) -> None:
        check = LeakCheck([self._base]).start()
        try:
            self._play()
            wait_until("the name", self._takes_the_name)
            check.verify()
        except Exception as error:
            self.wrong.append(str(error) if isinstance(error, Missed) else traceback.format_exc())
        if self.wrong:
            with suppress(OSError):
                self.wrong.append(f"it wrote: {(self._folder / 'stderr').read_text()[-2000:]}")

    def _play(self) -> None:
        signs = Signs(self._folder)
        signs.open()
        creator = _FORK.Process(target=_create, args=(self._point, self._action, self._plane, self._base, self._folder))
        creator.start()
        try:
            assert creator.pid is not None
            pid = creator.pid
            wait_until("the point", lambda: signs.reached or not creator.is_alive())
            if not signs.reached:
                self.wrong.append("the point was not reached")
            elif self._action is Action.STOP:
                wait_until("the stop", lambda: is_stopped(pid))
                threading.Event().wait(_STOP_S)
                os.kill(pid, signal.SIGCONT)
            creator.join(LIMIT_S)
            expected = -signal.SIGKILL if self._action is Action.KILL else 0
            if creator.exitcode != expected:
                self.wrong.append(f"the creator ended with {creator.exitcode}, not {expected}")
            lines = Book.read(self._folder / "book")
            self.wrong += [str(line[1]) for line in lines if line[0] == "failed"]
            if self._action is not Action.KILL and ["done"] not in lines:
                self.wrong.append(f"the creator did not get to the end; its book: {lines}")
        finally:
            if creator.is_alive():
                creator.kill()
            creator.join(LIMIT_S)
            creator.close()

    def _takes_the_name(self) -> bool:
        info = BrokerInfo(os.getpid(), __version__, PROTOCOL, "0" * 16, time.time())
        try:
            BrokerFolder.claim(NAME, self._base, info).release()
        except NameTaken:
            return False
        return True


def _create(point: CreatorPoint, action: Action, plane: Transport, base: Path, folder: Path) -> None:
    """The creator's life: a broker, and after an interruption another one of the same name."""
    fd = os.open(folder / "stderr", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(fd, 2)
    os.close(fd)
    # So that its broker is found, whoever its parent is then.
    os.environ["MPBROKER_DIR"] = os.fspath(base)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    book = Book(folder / "book")
    trap = Trap(point.spot, action, Signs(folder), KeyboardInterrupt)
    trap.arm()
    try:
        try:
            _use_a_broker(base, plane)
        except KeyboardInterrupt:
            trap.disarm()
            wait_until("the name, after an interruption", lambda: _is_used(base, plane))
        book.note("done")
    except BaseException:
        book.note("failed", traceback.format_exc())
    trap.reap()


def _use_a_broker(base: Path, plane: Transport) -> None:
    with BrokerManager(NAME, directory=base, transport=plane) as manager:
        broker = manager.broker()
        broker.create_topic("t")
        subscription = broker.subscribe("t", "a")
        broker.publish("t", "one")
        (delivery,) = subscription.poll("w")
        assert delivery.ack()
        assert not wrong_rings(plane, broker._status().limits["rings"][0], 1)


def _is_used(base: Path, plane: Transport) -> bool:
    """Whether the name was free."""
    gc.collect()
    try:
        _use_a_broker(base, plane)
    except NameTaken:
        return False
    return True
