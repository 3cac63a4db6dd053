"""A world in which nothing is left to chance: tests say what each simulated process does, and what befalls it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from mpbroker.process.limits import Limits
from mpbroker.process.proxy import BrokerProxy
from tests.simulation.broker import Broker, Whereabouts
from tests.simulation.checks import Watch
from tests.simulation.clients import proxy_in
from tests.simulation.network import Network
from tests.simulation.stand_ins import installed
from tests.simulation.world import Process, World

T = TypeVar("T")

LONGEST_S = 600.0
"""Virtual seconds that anything may take."""


class Deed(Generic[T]):
    """What one simulated thread does: its result or its error, and when that was."""

    def __init__(self, stage: Stage, ask: Callable[[], T]) -> None:
        self._stage = stage
        self._ask = ask
        self._result: list[T] = []
        self.error: Exception | None = None
        self.ended_at: float | None = None

    def run(self) -> None:
        try:
            self._result.append(self._ask())
        except Exception as error:
            self.error = error
        self.ended_at = self._stage.world.now

    def result(self) -> T:
        """Lets time pass until it is there; raises what was raised."""
        self._stage.until(lambda: self.ended_at is not None)
        if self.error is not None:
            raise self.error
        return self._result[0]


class Player:
    """A client process on stage."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self.process = Process(stage.world, name)
        self.broker: BrokerProxy = proxy_in(self.process)

    def begin(self, ask: Callable[[], T]) -> Deed[T]:
        """Do something in a new thread."""
        deed = Deed(self._stage, ask)
        self.process.spawn(deed.run)
        return deed

    def does(self, ask: Callable[[], T]) -> T:
        return self.begin(ask).result()

    def loses_presence(self) -> None:
        """Its first connection ends, while the process lives."""
        self._stage.network.drop(next(iter(self.process.sockets)))

    def dies(self) -> None:
        self._stage.network.end_process(self.process, "signal 9 (SIGKILL)", 0.0)


class Stage:
    def __init__(self, world: World, network: Network, limits: Limits) -> None:
        self.world = world
        self.network = network
        self.broker = Broker(world, network, limits)
        self.watch = Watch(self.broker)
        self.broker.start()

    def player(self, name: str = "client") -> Player:
        return Player(self, name)

    def until(self, holds: Callable[[], bool]) -> None:
        limit = self.world.now + LONGEST_S
        while not holds():
            assert not self.world.failures, self.world.failures[0]
            assert self.world.step(), f"nothing can go on: {self.world.waiting()}"
            assert self.world.now < limit, f"still after {LONGEST_S} s: {self.world.waiting()}"

    def passes(self, seconds: float) -> None:
        """Let time pass."""
        until = self.world.now + seconds
        reached: list[bool] = []
        self.world.at(until, lambda _: reached.append(True))
        self.until(lambda: bool(reached))


@contextmanager
def on_stage(limits: Limits | None = None) -> Iterator[Stage]:
    world = World(0)
    network = Network(world)
    where = Whereabouts()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with installed(world, network, where.locate_at):
            stage = Stage(world, network, limits or Limits())
            where.broker = stage.broker
            try:
                yield stage
            finally:
                world.end()
    finally:
        if was_enabled:
            gc.enable()
