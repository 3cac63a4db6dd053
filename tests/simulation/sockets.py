"""Simulated Unix stream sockets, with what the product uses of `socket.socket`; and the broker's listening socket."""

from __future__ import annotations

import errno
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self

from mpbroker.process.frames import HEADER_BYTES, Goodbye, encode
from tests.simulation.wires import Endpoint, oserror
from tests.simulation.world import Process, Thread

if TYPE_CHECKING:
    from tests.simulation.network import Network
    from tests.simulation.selector import Key


_GOODBYE: Final = len(encode(Goodbye())).to_bytes(HEADER_BYTES, "little") + encode(Goodbye())
"""Said again by a close that was interrupted while it waited for the answer; there is none but the end."""


class Socket:
    """A descriptor of an endpoint in one process, with what the product uses of `socket.socket`."""

    # The product makes its sockets a class of its own, which this one can only pretend.
    __class__ = property(lambda _: Socket, lambda _, __: None)

    def __init__(self, process: Process, endpoint: Endpoint) -> None:
        self.process = process
        self.endpoint = endpoint
        self.timeout: float | None = None
        self.is_open = True
        endpoint.hold()
        process.sockets[self] = None

    def __repr__(self) -> str:
        return self.endpoint.name

    def settimeout(self, timeout: float | None) -> None:
        self.timeout = timeout

    def recv(self, limit: int) -> bytes:
        endpoint = self._live()
        network = endpoint.network
        network.world.transport_steps += 1
        network.give_way()
        until = None if self.timeout is None else network.world.now + self.timeout
        while (part := endpoint.take(limit)) is None:
            self._wait(endpoint, endpoint.readers, until)
        endpoint.received.feed(part)
        return part

    def recv_into(self, view: Any) -> int:
        if self.timeout == 0.0:
            endpoint = self._live()
            endpoint.network.world.transport_steps += 1
            part = endpoint.take(len(view))
            if part is None:
                raise BlockingIOError
        else:
            part = self.recv(len(view))
        view[: len(part)] = part
        return len(part)

    def send(self, part: bytes) -> int:
        """Without waiting."""
        endpoint = self._live()
        endpoint.network.world.transport_steps += 1
        count = endpoint.put(bytes(part))
        if not count:
            raise BlockingIOError
        return count

    def sendall(self, whole: bytes, _flags: int = 0) -> None:
        endpoint = self._live()
        network = endpoint.network
        until = None if self.timeout is None else network.world.now + self.timeout
        if endpoint.sent.count > endpoint.received.count and whole != _GOODBYE:
            network.world.fail(f"{self} asks again before it has read the last answer")
        endpoint.sent.feed(whole)
        while True:
            network.world.transport_steps += 1
            network.give_way()
            count = endpoint.put(whole)
            whole = whole[count:]
            if not whole:
                return
            if not count or not endpoint.peer.has_room():
                self._wait(endpoint, endpoint.writers, until)

    def shutdown(self, _how: int) -> None:
        self._live().shut_down()

    def close(self) -> None:
        if self.is_open and self.process.is_alive and not self.process.world.is_over:
            self.is_open = False
            del self.process.sockets[self]
            self.endpoint.let_go()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def duplicate(self, process: Process) -> Socket:
        """In a forked child."""
        twin = Socket(process, self.endpoint)
        twin.timeout = self.timeout
        return twin

    def _live(self) -> Endpoint:
        if not self.is_open or not self.process.is_alive or self.process.world.is_over:
            raise oserror(errno.EBADF)
        return self.endpoint

    def _wait(self, endpoint: Endpoint, line: list[Thread], until: float | None) -> None:
        world = self.process.world
        me = world.me()
        line.append(me)
        endpoint.hold()  # as the kernel does for a call that is under way
        try:
            if not world.wait(until):
                raise TimeoutError("timed out")
        finally:
            line.remove(me)
            if self.process.is_alive and not world.is_over:
                endpoint.let_go()
            else:
                endpoint.refs -= 1


class Listener:
    """The broker's listening socket."""

    def __init__(self, network: Network, process: Process) -> None:
        self.network = network
        self.process = process
        self.key: Key | None = None
        self.queue: deque[Endpoint] = deque()
        self.connecting: list[Thread] = []
        self.is_open = True

    def settimeout(self, timeout: float) -> None:
        assert timeout == 0.0

    @property
    def is_readable(self) -> bool:
        return bool(self.queue)

    @property
    def is_writable(self) -> bool:
        return False

    def accept(self) -> tuple[Socket, str]:
        world = self.network.world
        if not self.queue:
            raise BlockingIOError
        if world.chance(self.network.weather.full):
            world.faults["no descriptors left"] += 1
            world.note("no descriptors left")
            raise oserror(errno.EMFILE)
        endpoint = self.queue.popleft()
        for thread in self.connecting:
            world.wake(thread)
        sock = Socket(self.process, endpoint)
        endpoint.refs -= 1
        return sock, ""

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            for endpoint in self.queue:
                endpoint.let_go()
            self.queue.clear()
            for thread in self.connecting:
                self.network.world.wake(thread)

    def connect(self, process: Process, timeout_s: float) -> Socket:
        """Raises ConnectionRefusedError, TimeoutError."""
        network = self.network
        world = network.world
        until = world.now + timeout_s
        network.give_way()
        while self.is_open and len(self.queue) >= network.weather.backlog:
            me = world.me()
            self.connecting.append(me)
            try:
                if not world.wait(until):
                    raise TimeoutError
            finally:
                self.connecting.remove(me)
        if not self.is_open:
            raise ConnectionRefusedError
        near, far = network.pair(process, self.process)
        self.queue.append(far)
        far.hold()
        if self.key is not None:
            self.key.stir()
        return Socket(process, near)
