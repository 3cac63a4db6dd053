"""All connections of a world, how the transport is, and how processes end with what they have open."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.selector import Pidfd, Selector
from tests.simulation.sockets import Listener, Socket
from tests.simulation.wires import Endpoint, Weather
from tests.simulation.world import Process, World


class Network:
    """All sockets of a world, and how the transport is."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather()
        self.open_ends: dict[Endpoint, None] = {}
        self.pidfds: dict[int, Pidfd] = {}
        self.selectors: list[Selector] = []
        self.listener: Listener | None = None
        self.on_select: Callable[[float | None], None] | None = None
        self._connections = 0
        self._next_pidfd = 1_000_000

    def pair(self, near: Process, far: Process) -> tuple[Endpoint, Endpoint]:
        self._connections += 1
        one = Endpoint(self, near, f"connection {self._connections} of {near.name}")
        other = Endpoint(self, far, f"connection {self._connections} at {far.name}")
        one.peer, other.peer = other, one
        self.open_ends[one] = self.open_ends[other] = None
        return one, other

    def delay(self) -> float:
        weather = self.weather
        if weather.delay and self.world.random() < weather.delay:
            self.world.faults["delay"] += 1
            return weather.shortest_s + self.world.random() ** 3 * (weather.longest_s - weather.shortest_s)
        return 0.0

    def part(self, count: int) -> int:
        """How much of so many bytes goes at once."""
        weather = self.weather
        if count > 1 and weather.trickle and self.world.random() < weather.trickle:
            self.world.faults["trickle"] += 1
            return 1 + self.world.below(count - 1)
        return count

    def give_way(self) -> None:
        weather = self.weather
        if weather.yields and self.world.random() < weather.yields:
            self.world.give_way()

    # -- ends of processes --------------------------------------------------------------------------------------------

    def end_process(self, process: Process, how: str, last_s: float) -> None:
        """Kill a process: its descriptors close one by one, and it is reported somewhere in between. For the hub."""
        world = self.world
        sockets = world.shuffled(process.sockets)
        process.how = how
        process.stop_threads()
        times = [world.now + last_s * world.random() for _ in sockets]
        for sock, when in zip(sockets, times, strict=True):
            world.at(when, self._close_dead, sock)
        world.at(world.now + last_s * world.random() * 2, lambda _: process.report())

    def ended(self, process: Process) -> None:
        """The last thread of a process is through."""
        if process.is_alive:
            self.end_process(process, "exit code 0", 0.0)

    def _close_dead(self, sock: Socket) -> None:
        if sock.is_open:
            sock.is_open = False
            sock.process.sockets.pop(sock, None)
            sock.endpoint.let_go()

    def drop(self, sock: Socket) -> None:
        """End a connection under a living process, as somebody does who closes all descriptors."""
        sock.endpoint.shut_down()

    # -- what the product asks of peers -------------------------------------------------------------------------------

    def peer_pidfd(self, sock: Socket) -> int | None:
        if not self.weather.shows_pidfds:
            return None
        number = self._next_pidfd
        self._next_pidfd += 1
        self.pidfds[number] = Pidfd(sock.endpoint.peer.owner)
        return number

    def has_ended(self, pidfd: int, timeout_s: float) -> bool:
        process = self.pidfds[pidfd].process
        until = self.world.now + timeout_s
        while not process.is_reported and self.world.now < until:
            self.world.sleep(min(0.01, until - self.world.now))
        return process.is_reported

    def exit_status(self, pidfd: int) -> str | None:
        process = self.pidfds[pidfd].process
        return process.how or None if process.is_reported else None

    def close_pidfd(self, number: int) -> None:
        found = self.pidfds.pop(number)
        found.process.watchers.remove(found._ended)
