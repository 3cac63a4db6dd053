"""Virtual time, simulated processes and threads, and what happens next, drawn from one seed.

A simulated thread is a greenlet; it runs until it waits. The hub, which is whoever calls `World.run`, then draws the
next of those that can go on. Nothing here reads a clock or anything else of the machine. Knows nothing of the product.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

import greenlet

STEP_S: Final = 1e-5
"""Seconds that pass while a thread runs until it waits: time goes on for those that never wait, too."""

KEPT_LINES: Final = 30
FIRST_PID: Final = 100


class Interrupted(BaseException):
    """What a signal handler raised in the middle of a call."""


class Violation(AssertionError):
    """Something was seen that must not be."""


class Thread:
    """A simulated thread, and what `threading.Thread` shows of one."""

    def __init__(self, process: Process, name: str, target: Callable[[], object], *, daemon: bool = False) -> None:
        world = process.world
        self.number = world.next_number()
        self.process = process
        self.name = name
        self.daemon = daemon
        self.target = target
        self.locals: dict[int, dict[str, Any]] = {}
        self.waits = False
        self.woken = False
        self.thrown: BaseException | None = None
        self.turn = 0  # which of its waits
        self.is_done = False
        self.is_started = False
        self.in_call = False  # a fault may interrupt it
        self.joiners: list[Thread] = []
        self.greenlet = greenlet.greenlet(self._run, world.hub)

    def __hash__(self) -> int:
        return self.number  # so that the order of a set does not depend on addresses

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"{self.process.name}.{self.number}"

    def start(self) -> None:
        self.is_started = True
        self.process.threads.append(self)
        self.process.world.runnable.append(self)

    def is_alive(self) -> bool:
        return self.is_started and not self.is_done

    def join(self, timeout: float | None = None) -> None:
        world = self.process.world
        while self.is_alive():
            self.joiners.append(world.me())
            if not world.wait(None if timeout is None else world.now + timeout) and timeout is not None:
                return

    def _run(self) -> None:
        world = self.process.world
        try:
            self.target()
        except greenlet.GreenletExit:
            pass
        except Violation as violation:
            world.fail(str(violation))
        except BaseException as error:
            world.crashed(self, error)
        finally:
            self.is_done = True
            self.locals.clear()
            process = self.process
            process.threads.remove(self)
            for thread in self.joiners:
                world.wake(thread)
            if process.is_alive and process.on_idle is not None and all(each.daemon for each in process.threads):
                world.at(world.now, process.on_idle, process)


class Process:
    """A simulated process.

    Attributes:
        sockets: the descriptors it has, in the order it got them.
        is_reported: its end shows to those that watch it; watchers: called when it does.
        epoch: raised whenever what it holds may go back.
        closing: closes that go on: what another thread is handed meanwhile may go back with the rest.
        was_dropped: a fault ended one of its connections; was_paused: it was stopped for a while.
    closes: how often it let go of the broker by itself.
    on_idle: called when its last thread that is no daemon has ended.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.number = world.next_number()
        self.name = f"{name}{self.number}"
        self.pid = FIRST_PID + self.number
        self.is_alive = True
        self.is_paused = False
        self.is_exiting = False
        self.is_reported = False
        self.how = ""
        self.threads: list[Thread] = []
        self.stalled: list[Thread] = []
        self.sockets: dict[Any, None] = {}
        self.finalizers: list[tuple[int, int, Callable[[], object]]] = []
        self.watchers: list[Callable[[], None]] = []
        self.epoch = 0
        self.closing = 0
        self.was_dropped = False
        self.was_paused = False
        self.closes = 0
        self.on_idle: Callable[[Process], None] | None = None
        world.processes.append(self)

    def spawn(self, target: Callable[[], object], name: str = "", *, daemon: bool = False) -> Thread:
        thread = Thread(self, name, target, daemon=daemon)
        thread.start()
        return thread

    def pause(self) -> None:
        self.is_paused = True
        self.was_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.world.runnable.extend(self.stalled)
        self.stalled.clear()

    def stop_threads(self) -> None:
        """It is dead: its threads never run again. What they have on their stacks is let go of, without effect."""
        self.is_alive = False
        for thread in list(self.threads):
            if not thread.is_done:
                thread.waits = False
                self.world.current = thread
                thread.greenlet.throw(greenlet.GreenletExit())
                self.world.current = None
                if not thread.is_done:
                    # It had not begun.
                    thread.is_done = True
                    self.threads.remove(thread)

    def report(self) -> None:
        """Show its end to those that watch it."""
        self.is_reported = True
        for watcher in self.watchers:
            watcher()


class World:
    """One run.

    Attributes:
        now: seconds of virtual time.
        random: a number from 0 to 1, as all chance here comes from.
        steps: how often a thread was let run; faults: what was done to it, by kind.
        failures: what must not have been.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed).random
        self.now = 1000.0
        self.hub = greenlet.getcurrent()
        self.current: Thread | None = None
        self.runnable: list[Thread] = []
        self.processes: list[Process] = []
        self.steps = 0
        self.transport_steps = 0
        self.faults: Counter[str] = Counter()
        self.failures: list[str] = []
        self.is_over = False
        self._timers: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._serial = 0
        self._number = 0
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._digest = hashlib.blake2b(digest_size=8)

    # -- chance -------------------------------------------------------------------------------------------------------

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        return int(self.random() * count)

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, items: Any) -> Any:
        return items[int(self.random() * len(items))]

    def shuffled(self, items: Any) -> list[Any]:
        left = list(items)
        return [left.pop(int(self.random() * len(left))) for _ in range(len(left))]

    def urandom(self, count: int) -> bytes:
        return int(self.random() * 2**53).to_bytes(8, "little") * (count // 8)

    # -- the trace ----------------------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        line = f"{self.now:.6f} {self.current or '-'} {what}"
        self._lines.append(line)
        self._digest.update(line.encode())

    @property
    def trace(self) -> str:
        """What tells this run from all others."""
        return self._digest.hexdigest()

    def fail(self, what: str) -> None:
        self.note(f"FAILED: {what}")
        self.failures.append("\n    ".join([f"seed {self.seed}: {what}", *self._lines]))

    def crashed(self, thread: Thread, error: BaseException) -> None:
        import traceback

        text = "".join(traceback.format_exception(error))
        self.fail(f"thread {thread} raised {text}")

    # -- time and turns -----------------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.now

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def me(self) -> Thread:
        assert self.current is not None
        return self.current

    def at(self, when: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Call something at a time, from the hub."""
        self._serial += 1
        heappush(self._timers, (when, self._serial, call, argument))

    def wait(self, until: float | None = None) -> bool:
        """Let others run until somebody wakes the calling thread (True) or the time comes (False)."""
        thread = self.current
        if thread is None or self.is_over or not thread.process.is_alive:
            raise greenlet.GreenletExit
        thread.turn += 1
        thread.waits = True
        if until is not None:
            self.at(until, self._time_came, (thread, thread.turn))
        self._switch(thread)
        return thread.woken

    def _switch(self, thread: Thread) -> None:
        self.hub.switch()
        if not thread.process.is_alive:
            raise greenlet.GreenletExit
        error = thread.thrown
        if error is not None:
            thread.thrown = None
            raise error

    def wake(self, thread: Thread) -> None:
        if thread.waits:
            thread.waits = False
            thread.woken = True
            self.runnable.append(thread)

    def throw(self, thread: Thread, error: BaseException) -> None:
        """Have a thread get an exception where it is."""
        thread.thrown = error
        self.wake(thread)

    def give_way(self) -> None:
        """Let others go on, for once."""
        thread = self.current
        if thread is None or self.is_over or not thread.process.is_alive:
            raise greenlet.GreenletExit
        thread.turn += 1
        self.runnable.append(thread)
        self._switch(thread)

    def sleep(self, seconds: float) -> None:
        until = self.now + max(0.0, seconds)
        while self.now < until:
            self.wait(until)

    def _time_came(self, whose: tuple[Thread, int]) -> None:
        thread, turn = whose
        if thread.waits and thread.turn == turn:
            thread.waits = False
            thread.woken = False
            self.runnable.append(thread)

    def step(self) -> bool:
        """Let one thread run until it waits; False when nothing can happen any more."""
        timers = self._timers
        runnable = self.runnable
        if not runnable:
            if not timers:
                return False
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            _, _, call, argument = heappop(timers)
            call(argument)
        if not runnable:
            return True
        index = int(self.random() * len(runnable))
        thread = runnable[index]
        last = runnable.pop()
        if last is not thread:
            runnable[index] = last
        if thread.is_done:
            return True
        if thread.process.is_paused:
            thread.process.stalled.append(thread)
            return True
        self.steps += 1
        self.now += STEP_S
        self.current = thread
        thread.greenlet.switch()
        self.current = None
        return True

    def waiting(self) -> list[str]:
        """Who waits, for the story of a hang."""
        return [
            f"{thread} {thread.name}"
            for process in self.processes
            for thread in process.threads
            if thread.waits and process.is_alive
        ]

    def end(self) -> None:
        """Let go of all threads; nothing they do has an effect any more."""
        self.is_over = True
        for process in self.processes:
            process.stop_threads()
            process.finalizers.clear()
            process.watchers.clear()
