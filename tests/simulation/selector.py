"""The broker's selector, and the descriptors of processes that it watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation.sockets import Socket
from tests.simulation.world import Process, Thread

if TYPE_CHECKING:
    from tests.simulation.network import Network

READ: Final = 1
WRITE: Final = 2


class Key:
    """What a selector was asked to look for."""

    __slots__ = ("data", "events", "fileobj", "selector")

    def __init__(self, selector: Selector, fileobj: Any, events: int, data: Any) -> None:
        self.selector = selector
        self.fileobj = fileobj
        self.events = events
        self.data = data

    def stir(self) -> None:
        """Something happened there."""
        self.selector.stir(self)

    def ready(self) -> int:
        source: Any = self.fileobj
        if type(source) is Socket:
            source = source.endpoint
        return self.events & ((READ if source.is_readable else 0) | (WRITE if source.is_writable else 0))


class Pidfd:
    """A descriptor of a process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.key: Key | None = None
        process.watchers.append(self._ended)

    is_writable = False

    @property
    def is_readable(self) -> bool:
        return self.process.is_reported

    def _ended(self) -> None:
        if self.key is not None:
            self.key.stir()


class Selector:
    """The broker's selector: level-triggered, and in no order that anybody could rely on."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._keys: dict[Any, Key] = {}
        self._stirred: dict[Key, None] = {}
        self._waiting: Thread | None = None
        self._is_interrupted = False
        network.selectors.append(self)

    def _source(self, fileobj: Any) -> Any:
        if type(fileobj) is int:
            return self._network.pidfds[fileobj]
        return fileobj.endpoint if type(fileobj) is Socket else fileobj

    def register(self, fileobj: Any, events: int, data: Any = None) -> Key:
        source = self._source(fileobj)
        if source in self._keys:
            raise KeyError(f"{fileobj!r} is registered already")
        key = self._keys[source] = source.key = Key(self, source, events, data)
        self.stir(key)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> Key:
        key = self._keys[self._source(fileobj)]
        key.events, key.data = events, data
        self.stir(key)
        return key

    def unregister(self, fileobj: Any) -> Key:
        source = self._source(fileobj)
        key = self._keys.pop(source)
        source.key = None
        self._stirred.pop(key, None)
        return key

    def close(self) -> None:
        for source in self._keys:
            source.key = None
        self._keys.clear()
        self._stirred.clear()

    def interrupt(self) -> None:
        """A signal came: select returns, with nothing."""
        self._is_interrupted = True
        if self._waiting is not None:
            self._network.world.wake(self._waiting)

    def stir(self, key: Key) -> None:
        self._stirred[key] = None
        if self._waiting is not None and key.ready():
            self._network.world.wake(self._waiting)

    def select(self, timeout: float | None = None) -> list[tuple[Key, int]]:
        network, world = self._network, self._network.world
        world.transport_steps += 1
        if network.on_select is not None:
            network.on_select(timeout)
        until = None if timeout is None else world.now + max(0.0, timeout)
        world.give_way()
        while not (found := self._ready()):
            if self._is_interrupted or (until is not None and world.now >= until):
                break
            self._waiting = world.me()
            try:
                world.wait(until)
            finally:
                self._waiting = None
        first = world.below(len(found)) if len(found) > 1 else 0
        return found[first:] + found[:first]

    def _ready(self) -> list[tuple[Key, int]]:
        found = []
        for key in list(self._stirred):
            events = key.ready()
            if events:
                found.append((key, events))
            else:
                del self._stirred[key]
        return found
