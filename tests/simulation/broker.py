"""A broker in a world: the real engine, sessions and loop, in a process of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mpbroker._version import __version__
from mpbroker.engine import Engine
from mpbroker.errors import BrokerNotFound
from mpbroker.process import frames
from mpbroker.process.limits import Limits
from mpbroker.process.loop import Loop
from mpbroker.process.naming import BrokerInfo, Located
from mpbroker.process.sessions import Sessions
from tests.simulation.network import Network
from tests.simulation.sockets import Listener, Socket
from tests.simulation.world import Process, World

KEY: Final = bytes(range(32))
INCARNATION: Final = "0123456789abcdef"
WALL_S: Final = 1_700_000_000.0


class SimulatedLocated(Located):
    """Where the broker is, for one client process."""

    __slots__ = ("broker",)
    broker: Broker

    def connect(self, timeout_s: float) -> Any:
        broker = self.broker
        process = broker.world.me().process
        if not process.is_alive or broker.world.is_over:
            raise BrokerNotFound(self.name, str(self.folder), "this process is dead")
        try:
            return broker.listener.connect(process, timeout_s)
        except ConnectionRefusedError:
            raise BrokerNotFound(self.name, str(self.folder), "nobody listens") from None
        except TimeoutError:
            raise BrokerNotFound(self.name, str(self.folder), "it took no connection in time") from None


class Broker:
    """The broker of a world.

    Attributes:
        is_up: clients can find it.
        ended: why the loop ended, once it did.
    """

    def __init__(self, world: World, network: Network, limits: Limits) -> None:
        self.world = world
        self.network = network
        self.process = Process(world, "broker")
        self.is_up = True
        self.ended: str | None = None
        self.engine = Engine(incarnation=INCARNATION)
        self.sessions = Sessions(
            self.engine,
            key=KEY,
            # The simulated transport is one of sockets.
            limits=replace(limits, ring_bytes=0),
            manual_time=False,
            functions={},
            nonce=world.urandom,
            wall_clock=lambda: WALL_S + world.now,
            version=__version__,
            pid=self.process.pid,
            started=world.now,
        )
        self.desk = self.sessions._desk
        self.listener = Listener(network, self.process)
        self.info = BrokerInfo(self.process.pid, __version__, frames.PROTOCOL, INCARNATION, WALL_S)
        listening: Any = self.listener
        self.loop = Loop(self.sessions, listening, release=self._release, clock=world.clock)

    def start(self) -> None:
        self.process.spawn(self._run, "loop")

    def locate_at(self, folder: Path) -> Located:
        if not self.is_up:
            raise BrokerNotFound(folder.name, str(folder), "none runs there")
        located = SimulatedLocated(folder, KEY, self.info)
        object.__setattr__(located, "broker", self)
        return located

    def kill(self, last_s: float) -> None:
        """For the hub."""
        self.is_up = False
        self.ended = "it was killed"
        self.network.end_process(self.process, "signal 9 (SIGKILL)", last_s)
        self.listener.close()

    def _release(self) -> None:
        self.is_up = False

    def _run(self) -> None:
        self.ended = self.loop.run()
        self.process.is_exiting = True

    def sockets(self) -> list[Socket]:
        return list(self.process.sockets)


class Whereabouts:
    """Where clients look for the broker: it is made only when the product's modules are in the world already."""

    broker: Broker

    def locate_at(self, folder: Path) -> Located:
        return self.broker.locate_at(folder)
