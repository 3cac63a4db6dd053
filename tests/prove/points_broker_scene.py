"""A scene of a broker's kill point: a broker of its own, clients that use it, and the judgment of what they saw.

Whatever becomes of the broker, each of its clients learns it, nothing is left, and the next broker gets the name.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from mpbroker import BrokerFailed, BrokerGone, BrokerManager, BrokerNotFound, Delivery, connect
from mpbroker._version import __version__
from mpbroker.process.claims import BrokerFolder
from mpbroker.process.frames import PROTOCOL
from mpbroker.process.naming import BrokerInfo, Transport
from mpbroker.process.proxy import BrokerProxy
from mpbroker.testing import LeakCheck
from tests.prove import points_armed
from tests.prove import points_stirs as stirs
from tests.prove.planes import wrong_rings
from tests.prove.points_arena_deeds import THRESHOLD
from tests.prove.points_brokers import BrokerPoint, Phase
from tests.prove.points_scene import Missed, wait_until
from tests.prove.points_trap import LIMIT_S, Action, Signs, is_stopped

NAME: Final = "struck"

_STOP_S: Final = 0.4
"""Longer than the leases that are out meanwhile, had they not been extended."""

_FORK: Final = multiprocessing.get_context("fork")
_ENDS: Final = (Action.KILL, Action.RAISE)


class Scene:
    """One broker, from its start to the start of the next.

    Attributes:
        wrong: what must not be.
        slowest_s: of the clients, from the strike to BrokerGone.
    """

    def __init__(
        self, point: BrokerPoint, action: Action, plane: Transport, base: Path, folder: Path, *, whole: bool = True
    ) -> None:
        """whole: another broker takes the name and works; else this process takes it, the way brokers do."""
        self._plane = plane
        self._whole = whole
        self.wrong: list[str] = []
        self.slowest_s = 0.0
        self._point = point
        self._action = action
        self._base = base
        self._folder = folder
        self._signs = Signs(folder)

    def play(self) -> None:
        check = LeakCheck([self._base]).start()
        try:
            with _woken(self._signs, self._action), _errors_to(self._folder / "stderr"):
                self._play()
                if not self._signs.reached:
                    self.wrong.append("the point was not reached")
                self._next_takes_the_name()
            check.verify()
        except Exception as error:
            self.wrong.append(str(error) if isinstance(error, Missed) else traceback.format_exc())
        if self.wrong:
            with suppress(OSError):
                self.wrong.append(f"the broker wrote: {(self._folder / 'stderr').read_text()[-2000:]}")

    def _play(self) -> None:
        manager = BrokerManager(
            NAME,
            directory=self._base,
            filter_modules=[points_armed.MODULE],
            transport=self._plane,
            arena_threshold=THRESHOLD,
        )
        starting = self._point.phase is Phase.START
        if starting:
            self._signs.open()
        try:
            with points_armed.told(self._point, self._action, self._folder):
                manager.start()
        except BrokerFailed as failed:
            if not (starting and self._action in _ENDS):
                raise
            self._expect("kill point" if self._action is Action.RAISE else "SIGKILL", "it failed to start", failed)
            self._is_not_found()
            return
        try:
            if starting:
                self._ready(manager)
            else:
                self._use(manager)
            if self._action in _ENDS and self._point.phase is not Phase.END:
                manager.join(LIMIT_S)
                self._is_gone(manager.broker())
        finally:
            manager.shutdown()

    def _ready(self, manager: BrokerManager) -> None:
        """The broker started although its start was struck."""
        if self._action not in _ENDS:
            manager.broker().create_topic("t")
        elif not self._point.ready:
            self.wrong.append("a broker that was struck while it started says that it is ready")

    def _use(self, manager: BrokerManager) -> None:
        ours, theirs = _FORK.Pipe()
        crowd = _FORK.Process(target=_crowd, args=(self._point, manager.broker(), theirs, ours))
        crowd.start()
        theirs.close()
        try:
            self._heard(ours)
            broker = manager.broker()
            wait_until("the poll that waits", lambda: broker._status().limits["waiting_calls"][0] == 1)
            # This process has one, who waits another one, and who stirs a third one.
            self.wrong += wrong_rings(self._plane, broker._status().limits["rings"][0], 3)
            self._signs.open()
            ends = self._action in _ENDS
            if self._point.phase is Phase.END:
                manager.shutdown()
                ends = True
            ours.send(ends)
            self._judge(ends, self._heard(ours))
            crowd.join(LIMIT_S)
            if crowd.exitcode != 0:
                self.wrong.append(f"the clients' process ended with {crowd.exitcode}")
        finally:
            if crowd.is_alive():
                crowd.kill()
            crowd.join(LIMIT_S)
            crowd.close()
            ours.close()

    def _heard(self, pipe: Connection) -> Any:
        # They have half of it to say that they hang.
        if not pipe.poll(2 * LIMIT_S):
            raise Missed("the clients hang")
        return pipe.recv()

    def _judge(self, ends: bool, answers: dict[str, tuple[str, float, str]]) -> None:
        reached = self._signs.reached
        for who, (what, when, text) in answers.items():
            if what == "gone" and ends:
                if reached and self._action is not Action.STOP:
                    self.slowest_s = max(self.slowest_s, when - reached[1])
                # Who was not let in yet cannot be told.
                told = who != "stirring" or self._point.stir is not stirs.connects
                if told and self._action is Action.RAISE and self._point.phase is Phase.SERVE:
                    self._expect("kill point", who, text)
            # What the broker was asked last may have been answered before it was struck.
            elif what != "ok" or (ends and who != "stirring"):
                self.wrong.append(f"{who}: {what}: {text}")

    def _expect(self, words: str, who: str, text: object) -> None:
        if words not in str(text):
            self.wrong.append(f"{who}, and is not told {words!r}: {text}")

    def _is_gone(self, broker: BrokerProxy) -> None:
        try:
            broker.topics()
        except BrokerGone:
            return
        self.wrong.append("a call after the end was answered")

    def _is_not_found(self) -> None:
        try:
            connect(NAME, 0.0, directory=self._base, transport=self._plane).close()
        except BrokerNotFound:
            return
        self.wrong.append("a broker that failed to start is found")

    def _next_takes_the_name(self) -> None:
        if not self._whole:
            info = BrokerInfo(os.getpid(), __version__, PROTOCOL, "0" * 16, time.time())
            BrokerFolder.claim(NAME, self._base, info).release()
        else:
            self._next_works()
        left = sorted(each.name for each in self._base.iterdir())
        if left:
            self.wrong.append(f"left in the folder: {left}")

    def _next_works(self) -> None:
        with BrokerManager(NAME, directory=self._base, transport=self._plane) as manager:
            broker = manager.broker()
            broker.create_topic("t")
            subscription = broker.subscribe("t", "a")
            broker.publish("t", "one")
            (delivery,) = subscription.poll("w")
            if (delivery.payload, delivery.attempt, delivery.ack()) != ("one", 1, True):
                self.wrong.append(f"the next broker handed over {delivery}")


@contextmanager
def _woken(signs: Signs, action: Action) -> Iterator[None]:
    """Have a process that goes on whatever becomes of this one continue the broker that STOP stops."""
    if action is not Action.STOP:
        yield
        return
    waker = _FORK.Process(target=_wake, args=(signs,))
    waker.start()
    try:
        yield
    finally:
        if waker.is_alive():
            waker.kill()
        waker.join(LIMIT_S)
        waker.close()


def _wake(signs: Signs) -> None:
    pid, _ = wait_until("the point", lambda: signs.reached)
    wait_until("the stop", lambda: is_stopped(pid))
    threading.Event().wait(_STOP_S)
    os.kill(pid, signal.SIGCONT)


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Where a broker writes its last words to."""
    before = os.dup(2)
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(fd, 2)
    os.close(fd)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


# -- the clients ------------------------------------------------------------------------------------------------------

_Answer = tuple[str, float, str]


def _attempt(call: Callable[[], object]) -> _Answer:
    """What became of a call, and when."""
    try:
        call()
    except BrokerGone as gone:
        return "gone", time.monotonic(), str(gone)
    except Exception:
        return "failed", time.monotonic(), traceback.format_exc()
    return "ok", time.monotonic(), ""


def _hold(broker: BrokerProxy) -> Delivery:
    """A delivery whose lease would end while a broker is stopped, had it not been extended."""
    broker.create_topic("held")
    subscription = broker.subscribe("held", "held", ack_timeout=_STOP_S / 2, max_deliveries=1_000)
    broker.publish("held", "held")
    while True:
        (delivery,) = subscription.poll("holder", timeout=LIMIT_S)
        if delivery.extend(60.0):
            return delivery


def _crowd(point: BrokerPoint, broker: BrokerProxy, pipe: Connection, theirs: Connection) -> None:
    """A client process: one thread waits, one calls all the time, and this one brings the broker to the point."""
    theirs.close()
    answers: dict[str, _Answer] = {}
    over = threading.Event()
    for topic in ("t", "quiet", "beside"):
        broker.create_topic(topic)
    for topic, name in (("t", "a"), ("t", "b"), ("quiet", "quiet"), ("beside", "beside")):
        broker.subscribe(topic, name)
    held = _hold(broker)
    performance = point.stir(broker)
    next(performance)

    def finish() -> None:
        assert held.ack(), "a lease that was extended ended while the broker was stopped"

    def wait() -> None:
        (delivery,) = broker.subscription("quiet", "quiet").poll("waiting", timeout=None)
        assert delivery.ack()

    def call() -> None:
        beside = broker.subscription("beside", "beside")
        number = 0
        while not over.wait(0.005):
            number += 1
            broker.publish("beside", number)
            (delivery,) = beside.poll("calling")
            assert (delivery.payload, delivery.attempt) == (number, 1)
            assert delivery.extend(60.0)
            assert delivery.ack()

    def note(who: str, what: Callable[[], object]) -> None:
        answers[who] = _attempt(what)

    threads = [
        threading.Thread(target=note, args=(who, what), daemon=True)
        for who, what in (("waiting", wait), ("calling", call))
    ]
    for thread in threads:
        thread.start()
    pipe.send("set")
    ends = pipe.recv()
    note("stirring", lambda: next(performance, None))
    if not ends:
        note("holding", finish)
        note("ending the wait", lambda: broker.publish("quiet", "the last"))
        over.set()
    for thread in threads:
        thread.join(LIMIT_S / 2)
    answers |= {who: ("hangs", 0.0, "") for who in ("waiting", "calling") if who not in answers}
    over.set()
    pipe.send(answers)
    broker.close()
