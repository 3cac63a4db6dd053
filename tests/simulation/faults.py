"""What goes wrong in a run: which kinds, and how often, is drawn once for each seed (a swarm), then one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpbroker.overflow import Overflow
from mpbroker.process.limits import Limits
from mpbroker.retry import RetryPolicy
from mpbroker.settings import Settings
from tests.simulation.broker import Broker
from tests.simulation.clients import KINDS, NAMES, TOPICS, Crew, Plan
from tests.simulation.wires import Weather
from tests.simulation.world import Interrupted, Process, World


@dataclass(slots=True)
class Swarm:
    """The faults of one run. rate: of a fault before each step; kinds: as often as each is likely."""

    rate: float
    kinds: list[str]
    weather: Weather
    limits: Limits
    processes: int
    threads: int
    pause_s: float
    late_s: float

    @property
    def is_slow(self) -> bool:
        return "late" in self.kinds or self.weather.longest_s > 0.5 or self.weather.backlog < 8


def draw_swarm(world: World) -> Swarm:
    kinds: list[str] = []
    for kind in ("kill", "pause", "interrupt", "drop", "late"):
        if world.chance(0.5):
            weight = {"interrupt": 8, "kill": 4, "drop": 3, "pause": 3, "late": 1}[kind]
            kinds += [kind] * (1 + world.below(weight))
    weather = Weather(
        delay=world.pick((0.0, 0.0, 0.02, 0.2)),
        longest_s=world.pick((0.001, 0.1, 0.1, 3.0)),
        trickle=world.pick((0.0, 0.0, 0.02, 0.3)),
        yields=world.pick((0.0, 0.1, 0.5)),
        full=world.pick((0.0, 0.0, 0.05)),
        capacity=world.pick((2_000, 20_000, 208 * 1024, 208 * 1024)),
        backlog=world.pick((2, 64, 64)),
        shows_pidfds=world.chance(0.75),
    )
    if not weather.delay:
        weather.longest_s = 0.0
    few = world.chance(0.15)
    return Swarm(
        rate=world.pick((0.003, 0.01, 0.03)) if kinds else 0.0,
        kinds=kinds,
        weather=weather,
        limits=Limits(max_connections=4 + world.below(12) if few else 1024),
        processes=2 + world.below(5),
        threads=1 + world.below(3),
        pause_s=world.pick((0.5, 20.0, 60.0)),
        late_s=world.pick((1.0, 30.0)),
    )


def draw_plan(world: World) -> Plan:
    weights = {"publish": 6, "publish_many": 2, "poll": 5, "wait": 5, "settle": 14, "look": 1}
    deeds = [name for name, weight in weights.items() for _ in range(weight)] * 4
    for name, most in (
        ("letters", 6),
        ("resubscribe", 2),
        ("delete_topic", 1),
        ("close", 3),
        ("fork", 2),
        ("push", 20),
    ):
        if world.chance(0.4):
            deeds += [name] * (1 + world.below(most))
    topics = TOPICS[: 1 + world.below(3)]
    names = NAMES[: 1 + world.below(3)]
    return Plan(
        deeds=deeds,
        settings={(topic, name): _draw_settings(world) for topic in topics for name in names},
        topics=topics,
        names=names,
        think_s=world.pick((0.001, 0.05, 0.5)),
        long_think=world.pick((0.0, 0.02, 0.1)),
        long_think_s=world.pick((2.0, 20.0)),
        many=world.pick((3, 20, 60)),
        payload_bytes=world.pick((10, 100, 2000)),
        large=world.pick((0.0, 0.0, 0.01)),
        by_id=world.pick((0.0, 0.1, 0.5)),
        shares_members=world.chance(0.2),
        most_forks=world.pick((0, 3, 10)),
    )


def _draw_settings(world: World) -> tuple[str | None, Settings]:
    retry = None
    most = 1 + world.below(6)
    if world.chance(0.5):
        retry = RetryPolicy(most, world.random(), 1.0 + world.random(), 5.0)
    return (
        world.pick((None, None, *KINDS)),
        Settings(
            ack_timeout=world.pick((0.2, 2.0, 10.0, 30.0)),
            max_deliveries=most,
            retry=retry,
            max_queue=world.pick((3, 20, 100, 100)),
            overflow=world.pick((*Overflow, Overflow.WAIT(0.3), Overflow.WAIT(15.0))),
        ),
    )


class Chaos:
    """Does the faults of one run, from the hub, between two steps."""

    def __init__(self, world: World, crew: Crew, broker: Broker, swarm: Swarm) -> None:
        self._world = world
        self._crew = crew
        self._broker = broker
        self._swarm = swarm
        self._does: dict[str, Callable[[], bool]] = {
            "kill": self._kill,
            "pause": self._pause,
            "interrupt": self._interrupt,
            "drop": self._drop,
            "late": self._late,
        }

    def strike(self) -> None:
        """Do one."""
        kind = self._world.pick(self._swarm.kinds)
        if self._does[kind]():
            self._world.faults[kind] += 1

    def _clients(self) -> list[Process]:
        return [each for each in self._world.processes if each.is_alive and each is not self._broker.process]

    def keep_up(self) -> None:
        """New processes come for those that ended."""
        world, swarm = self._world, self._swarm
        world.processes = [each for each in world.processes if each.is_alive or each.sockets or not each.is_reported]
        while len(self._clients()) < swarm.processes:
            process = self._crew.spawn(1 + world.below(swarm.threads))
            world.note(f"{process.name} begins")

    def _kill(self) -> bool:
        victims = self._clients()
        if not victims:
            return False
        victim = self._world.pick(victims)
        self._world.note(f"kill {victim.name}")
        how = "signal 9 (SIGKILL)" if self._world.chance(0.7) else ""
        self._crew.network.end_process(victim, how, self._world.pick((0.0, 0.001, 0.2)))
        return True

    def _pause(self) -> bool:
        world = self._world
        victims = [each for each in self._clients() if not each.is_paused]
        if not victims:
            return False
        victim = world.pick(victims)
        seconds = world.random() * self._swarm.pause_s
        world.note(f"pause {victim.name} for {seconds:.3f} s")
        victim.pause()
        world.at(world.now + seconds, lambda _: victim.resume())
        return True

    def _interrupt(self) -> bool:
        world = self._world
        victims = [
            thread
            for process in self._clients()
            if not process.is_paused
            for thread in process.threads
            if thread.in_call
        ]
        if not victims:
            return False
        victim = world.pick(victims)
        world.note(f"interrupt {victim}")
        world.throw(victim, Interrupted())
        return True

    def _drop(self) -> bool:
        world = self._world
        sockets = [(process, sock) for process in self._clients() for sock in process.sockets]
        if not sockets:
            return False
        process, sock = world.pick(sockets)
        world.note(f"drop {sock}")
        process.was_dropped = True
        # A forked child has the same connections for a moment.
        for other in world.processes:
            if any(each.endpoint is sock.endpoint for each in other.sockets):
                other.was_dropped = True
        self._crew.network.drop(sock)
        return True

    def _late(self) -> bool:
        world, broker = self._world, self._broker.process
        if broker.is_paused:
            return False
        seconds = world.random() ** 2 * self._swarm.late_s
        world.note(f"the loop stands still for {seconds:.3f} s")
        broker.pause()
        world.at(world.now + seconds, lambda _: broker.resume())
        return True

    def calm(self) -> None:
        """No more faults."""
        world = self._world
        self._crew.network.weather = Weather(shows_pidfds=self._swarm.weather.shows_pidfds)
        for process in world.processes:
            if process.is_paused:
                process.resume()
