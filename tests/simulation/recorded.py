"""A run whose clients record histories, which the checker of `mpbroker.testing` judges at the end.

The same world, with fewer kinds of deeds and of faults than `simulation` has: those that histories can tell of. One
process is one client there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final

from mpbroker.deliveries import Delivery
from mpbroker.errors import MpbrokerError
from mpbroker.messages import MessagePriority
from mpbroker.overflow import Overflow
from mpbroker.process.limits import Limits
from mpbroker.retry import RetryPolicy
from mpbroker.testing.checker import Verdict, check
from mpbroker.testing.history import Event, Recorder
from mpbroker.testing.payloads import Payloads
from mpbroker.testing.recorded import RecordedBroker, RecordedSubscription
from tests.simulation.broker import Broker, Whereabouts
from tests.simulation.checks import Watch
from tests.simulation.clients import proxy_in
from tests.simulation.network import Network
from tests.simulation.stand_ins import installed
from tests.simulation.wires import Weather
from tests.simulation.world import Interrupted, Process, Violation, World

_TOPIC: Final = "orders"
_PROCESSES: Final = 4
_KEEP_UP: Final = 50
_STOPPED_S: Final = 4.0
"""Virtual seconds: longer than some leases, and not as long as a handshake may take."""

_LONGEST_S: Final = 600.0


def run_recorded(seed: int, steps: int = 4_000) -> tuple[Verdict, list[str]]:
    """What the checker says of a run, and what failed besides."""
    world = World(seed)
    network = Network(world)
    where = Whereabouts()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with installed(world, network, where.locate_at):
            try:
                run = _Run(world, network)
                where.broker = run.broker
                run.all(steps)
            except Violation as violation:
                world.fail(str(violation))
            finally:
                world.end()
    finally:
        if was_enabled:
            gc.enable()
    return check(run.histories, drained=not world.failures), world.failures


class _Run:
    def __init__(self, world: World, network: Network) -> None:
        self.world = world
        self.network = network
        self.broker = Broker(world, network, Limits())
        self.watch = Watch(self.broker)
        self.payloads = Payloads(64, seed=world.seed)
        self.histories: list[list[Event]] = []
        self.is_draining = False
        self._last_ns = 0
        self._clients: list[tuple[Process, str]] = []
        self._conductor = Recorder("conductor", self._history(None), self._clock)
        retry = RetryPolicy(4, 0.1 + world.random(), 2.0, 5.0)
        self.settings: dict[str, dict[str, Any]] = {
            "audit": {"ack_timeout": 1.0 + 8.0 * world.random(), "retry": retry},
            "bill": {"ack_timeout": 2.0, "max_deliveries": 3, "max_queue": 40, "overflow": Overflow.DROP_OLDEST},
        }
        network.weather = Weather(
            delay=world.pick((0.0, 0.1)), longest_s=0.01, trickle=world.pick((0.0, 0.1)), yields=world.pick((0.0, 0.3))
        )

    def _clock(self) -> int:
        """Nanoseconds, never the same twice: what is done one after the other is told so."""
        self._last_ns = max(self._last_ns + 1, int(self.world.now * 1e9))
        return self._last_ns

    def _history(self, process: Process | None) -> Callable[[Event], object]:
        """Where a client's events go; the dead tell nothing."""
        events: list[Event] = []
        self.histories.append(events)
        return lambda event: events.append(event) if process is None or process.is_alive else None

    def _recorded(self, process: Process) -> RecordedBroker:
        recorder = Recorder(process.name, self._history(process), self._clock)
        return RecordedBroker(proxy_in(process), recorder, self.payloads, publisher=process.number)

    # -- phases -------------------------------------------------------------------------------------------------------

    def all(self, steps: int) -> None:
        world = self.world
        self.broker.start()
        self._alone("setter", self._set_up)
        for index in range(steps):
            if not index % _KEEP_UP:
                self._keep_up()
            if world.chance(0.01):
                self._strike()
            world.step()
            if world.failures:
                return
        self.network.weather = Weather()
        self.is_draining = True
        for process, _ in self._clients:
            if process.is_paused:
                process.resume()
        self._until(lambda: not any(process.is_alive for process, _ in self._clients))
        self._keep_up()
        self._alone("drainer", self._drain)

    def _alone(self, name: str, does: Callable[[RecordedBroker], None]) -> None:
        process = Process(self.world, name)
        process.on_idle = self.network.ended
        broker = self._recorded(process)
        process.spawn(lambda: does(broker), name)
        self._until(lambda: process.is_reported)
        self._conductor.end(process.name, died=False)

    def _until(self, holds: Callable[[], bool]) -> None:
        world = self.world
        limit = world.now + _LONGEST_S
        while not holds():
            if world.failures or not world.step() or world.now > limit:
                raise Violation(f"not everything ends: {world.waiting()}")

    def _set_up(self, broker: RecordedBroker) -> None:
        broker.broker.create_topic(_TOPIC)
        for name, settings in self.settings.items():
            broker.subscribe(_TOPIC, name, **settings)
        broker.close()

    def _drain(self, broker: RecordedBroker) -> None:
        for name in self.settings:
            group = broker.subscription(_TOPIC, name)
            while True:
                held = group.poll("drainer", None, 20, timeout=1.0)
                for delivery in held:
                    group.ack_delivery(delivery)
                stats = group.stats()
                if not held and not stats.backlog and not stats.in_flight:
                    break
            broker.dead_letters(f"{_TOPIC}/{name}")
        broker.close()

    # -- faults -------------------------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        living = []
        for process, name in self._clients:
            if process.is_reported:
                self._conductor.end(name, died=process.how != "exit code 0")
            else:
                living.append((process, name))
        self._clients = living
        while not self.is_draining and len(self._clients) < _PROCESSES:
            process = Process(self.world, "client")
            process.on_idle = self.network.ended
            self._clients.append((process, process.name))
            process.spawn(_Client(self, process).run, "client")

    def _strike(self) -> None:
        world = self.world
        living = [each for each in self._clients if each[0].is_alive and not each[0].is_paused]
        if not living:
            return
        process, name = world.pick(living)
        kind = world.pick(("kill", "stop", "interrupt", "interrupt"))
        world.faults[kind] += 1
        if kind == "kill":
            self._conductor.fault("kill", name)
            self.network.end_process(process, "signal 9 (SIGKILL)", 0.1)
        elif kind == "stop":
            self._conductor.fault("stop", name)
            process.pause()
            world.at(world.now + world.random() * _STOPPED_S, self._resume, (process, name))
        else:
            for thread in process.threads:
                if thread.in_call:
                    self._conductor.fault("interrupt", name)
                    world.throw(thread, Interrupted())

    def _resume(self, whose: tuple[Process, str]) -> None:
        if whose[0].is_alive and whose[0].is_paused:
            self._conductor.fault("continue", whose[1])
            whose[0].resume()


class _Client:
    """One client process, of one thread."""

    def __init__(self, run: _Run, process: Process) -> None:
        self.run_ = run
        self.world = run.world
        self.broker = run._recorded(process)
        self.groups: list[RecordedSubscription] = []
        self.held: list[tuple[RecordedSubscription, Delivery]] = []
        self.member = process.name

    def run(self) -> None:
        world, me = self.world, self.world.me()
        while not self.run_.is_draining:
            me.in_call = True
            try:
                self._deed()
                world.sleep(world.random() * 0.2)
            except MpbrokerError as error:
                raise Violation(f"{type(error).__name__}: {error}") from error
            except Interrupted as error:
                error.__traceback__ = None
            me.in_call = False
        self.broker.close()

    def _deed(self) -> None:
        world, broker = self.world, self.broker
        if len(self.groups) < len(self.run_.settings):
            self.groups = [broker.subscription(_TOPIC, name) for name in self.run_.settings]
        drawn = world.below(10)
        if drawn < 2:
            broker.publish(_TOPIC, priority=MessagePriority(world.below(3)))
        elif drawn < 3:
            broker.publish_many(_TOPIC, 1 + world.below(10))
        elif drawn < 6:
            group = world.pick(self.groups)
            timeout = world.pick((0.0, 2.0 * world.random()))
            self.held += [(group, each) for each in group.poll(self.member, None, 1 + world.below(5), timeout=timeout)]
        elif self.held:
            self._settle(*self.held.pop(world.below(len(self.held))))

    def _settle(self, group: RecordedSubscription, delivery: Delivery) -> None:
        match self.world.below(12):
            case 0:
                group.nack_delivery(delivery)
            case 1:
                group.release_delivery(delivery)
            case 2:
                group.reject_delivery(delivery)
            case 3:
                group.ack(delivery.message_id, self.member)
            case 4:
                group.extend_delivery(delivery, 5.0)
            case _:
                group.ack_delivery(delivery)
