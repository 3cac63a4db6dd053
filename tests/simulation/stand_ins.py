"""What the product's modules see in the place of `threading`, `time`, `os`, `socket`, `selectors` and the like, while a
world runs; put in from outside, and taken out again.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import managers
from types import SimpleNamespace
from typing import Any

from mpbroker.process import channel, connection, doors, loop, presence, watches
from mpbroker.push import dispatcher, seat
from tests.simulation.network import Network
from tests.simulation.selector import READ, WRITE, Selector
from tests.simulation.world import Process, Thread, World


class Lock:
    """RLock and Lock. One that is not re-entrant would only find its own holder waiting, which is a hang."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._holder: Thread | None = None
        self._depth = 0
        self._line: deque[Thread] = deque()

    def acquire(self) -> bool:
        me = self._world.current
        while self._depth and self._holder is not me:
            if me is None or not me.process.is_alive or self._world.is_over:
                break
            self._line.append(me)
            try:
                self._world.wait()
            finally:
                if me in self._line:
                    self._line.remove(me)
        self._holder = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._depth = 0
            self._holder = None
            if self._line:
                self._world.wake(self._line[0])

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, world: World, lock: Lock | None = None) -> None:
        self._world = world
        self._lock = Lock(world) if lock is None else lock
        self._line: list[Thread] = []

    def wait(self, timeout: float | None = None) -> bool:
        world, lock = self._world, self._lock
        me = world.me()
        depth, lock._depth = lock._depth, 1
        lock.release()
        self._line.append(me)
        try:
            return world.wait(None if timeout is None else world.now + timeout)
        finally:
            if me in self._line:
                self._line.remove(me)
            lock.acquire()
            lock._depth = depth

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until = None if timeout is None else self._world.now + timeout
        while not (holds := predicate()):
            if until is not None and self._world.now >= until:
                break
            self.wait(None if until is None else until - self._world.now)
        return holds

    def notify_all(self) -> None:
        line, self._line = self._line, []
        for thread in line:
            self._world.wake(thread)

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Event:
    def __init__(self, world: World) -> None:
        self._changed = Condition(world)
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_set, timeout)


def _threading(world: World) -> SimpleNamespace:
    numbers = iter(range(1, 1 << 62))
    nobody: dict[str, Any] = {}

    class Local:
        """Attributes of the running thread's own."""

        def __init__(self) -> None:
            object.__setattr__(self, "number", next(numbers))

        def __getattribute__(self, name: str) -> Any:
            me = world.current
            number: int = object.__getattribute__(self, "number")
            own = nobody if me is None else me.locals.setdefault(number, {})
            if name == "__dict__":
                return own
            try:
                return own[name]
            except KeyError:
                raise AttributeError(name) from None

        def __setattr__(self, name: str, value: object) -> None:
            self.__dict__[name] = value

        def __delattr__(self, name: str) -> None:
            del self.__dict__[name]

        def __del__(self) -> None:
            number: int = object.__getattribute__(self, "number")
            for process in world.processes:
                for thread in process.threads:
                    thread.locals.pop(number, None)

    def thread(
        target: Callable[..., object],
        args: tuple[object, ...] = (),
        name: str = "",
        daemon: bool | None = None,
    ) -> Thread:
        me = world.me()
        return Thread(me.process, name, lambda: target(*args), daemon=me.daemon if daemon is None else daemon)

    return SimpleNamespace(
        Lock=lambda: Lock(world),
        RLock=lambda: Lock(world),
        Condition=lambda lock=None: Condition(world, lock),
        Event=lambda: Event(world),
        Thread=thread,
        local=Local,
        current_thread=world.me,
        TIMEOUT_MAX=1e9,
    )


class Here:
    """`push.seat.here`: what push knows of the running thread."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def in_a_call(self) -> bool:
        return bool(self._world.me().locals.setdefault(0, {}).get("in_a_call"))

    @in_a_call.setter
    def in_a_call(self, value: bool) -> None:
        self._world.me().locals.setdefault(0, {})["in_a_call"] = value


def _util(world: World) -> SimpleNamespace:
    class Finalize:
        """Runs at the exit of the simulated process that made it."""

        def __init__(
            self, _obj: None, call: Callable[..., object], args: tuple[object, ...] = (), exitpriority: int = 0
        ) -> None:
            self._process: Process = world.me().process
            self._entry = (-exitpriority, world.next_number(), lambda: call(*args))
            self._process.finalizers.append(self._entry)

        def cancel(self) -> None:
            if self._entry in self._process.finalizers:
                self._process.finalizers.remove(self._entry)

    return SimpleNamespace(
        Finalize=Finalize,
        debug=lambda *_: None,
        is_exiting=lambda: world.me().process.is_exiting,
    )


@contextmanager
def installed(world: World, network: Network, locate_at: Callable[..., Any]) -> Iterator[None]:
    """Have the product live in a world, until the end of the block."""
    threading = _threading(world)
    time = SimpleNamespace(monotonic=world.clock, sleep=world.sleep, time=world.clock)
    system = SimpleNamespace(urandom=world.urandom, close=network.close_pidfd)
    peers = SimpleNamespace(
        peer_uid=lambda _: None,
        peer_pid=lambda _: None,
        peer_pidfd=network.peer_pidfd,
        has_ended=network.has_ended,
        exit_status=network.exit_status,
    )
    here = Here(world)
    places: list[tuple[Any, str, Any]] = [
        (channel, "os", system),
        (channel, "time", time),
        (presence, "os", system),
        (presence, "threading", threading),
        (presence, "util", _util(world)),
        (connection, "os", system),
        (connection, "time", time),
        (connection, "threading", threading),
        (connection, "util", _util(world)),
        (connection, "peers", peers),
        (connection, "locate_at", locate_at),
        (connection, "_known", weakref.WeakValueDictionary()),
        (connection, "_open", {}),
        (connection, "_see_to_forks", lambda: None),
        (seat, "threading", threading),
        (seat, "here", here),
        (seat, "_forked", weakref.WeakSet()),
        (dispatcher, "threading", threading),
        (dispatcher, "time", time),
        (dispatcher, "here", here),
        (doors, "os", SimpleNamespace(open=lambda *_: 0, close=lambda _: None, devnull="", O_RDONLY=0)),
        (doors, "peers", peers),
        (loop, "os", system),
        (watches, "os", system),
        (watches, "peers", peers),
        (watches, "selectors", SimpleNamespace(EVENT_READ=READ)),
        (
            loop,
            "selectors",
            SimpleNamespace(DefaultSelector=lambda: Selector(network), EVENT_READ=READ, EVENT_WRITE=WRITE),
        ),
        (managers.BaseProxy, "_address_to_local", {}),
    ]
    logger = logging.getLogger("mpbroker")
    level = logger.level
    before = [(where, name, getattr(where, name)) for where, name, _ in places]
    try:
        logger.setLevel(logging.CRITICAL + 1)
        for where, name, value in places:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)
        logger.setLevel(level)
