"""A machine of processes that share words and sockets, one step at a time: what each may see of the others, and death.

Owns the memory model, the sockets and the ways to die; knows no protocol. Imported by `ring` and its tests.

Every word has one writer and one reader. A store waits in its writer's buffer; how far that has drained is decided by
the load that looks (draining earlier shows nobody anything else), which keeps the states few. `Order.TSO` is x86-64:
one buffer a process, first in first out. `Order.WEAK` is 64-bit Arm, and weaker: stores to different words pass each
other, and a load may see an old value until its own process has fenced, even if the writer fenced long ago.

A step is one deed that others can notice or that notices others (a load, a fence, a system call), then the stores and
decisions up to the next such deed: a store shows nothing by itself. Death strikes before each deed and each store.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeVar

from tests.model.search import Violation, Wrong


class Order(enum.Enum):
    TSO = "x86-TSO"
    WEAK = "weak"


class Taken(enum.Enum):
    """What reading a socket without waiting gave: every byte that was there, the end, or nothing."""

    BYTES = "bytes"
    END = "the end"
    NOTHING = "nothing"


Stores = tuple[tuple[int, int], ...]
Frozen = tuple[object, ...]
DEAD: Frozen = ("dead",)
T = TypeVar("T")


class State(NamedTuple):
    """All there is. ``buffers``: stores that their writer has not fenced; ``arriving``: those that it has, and their
    reader has not. ``bells``: bytes in each socket and direction. ``ended``: whose sockets the kernel has closed."""

    memory: tuple[int, ...]
    buffers: tuple[Stores, ...]
    arriving: Stores
    bells: tuple[int, ...]
    ended: tuple[bool, ...]
    actors: tuple[Frozen, ...]


class Machine(NamedTuple):
    """What does not change: the memory model, who reads a word, its name, and the bounds."""

    order: Order
    readers: tuple[int, ...]
    words: tuple[str, ...]
    actors: tuple[str, ...]
    room_for_bells: int
    """A socket takes this many bytes; more are dropped, as a send that would block is."""
    most_bells: int
    """More bytes than this in a socket are a violation."""
    ends_pass_bells: bool
    """The end of a process is seen before bytes that it sent and nobody has read."""
    deaths_show: bool
    """Else a fork's child holds the dead one's sockets open, and nobody sees them end."""


class Act:
    """One step of one process under way: what it does to a state, how many ways its load can go, where it may die."""

    __slots__ = (
        "_arriving", "_bells", "_buffer", "_ended", "_machine", "_memory", "_notes", "_state", "_who",
        "choice", "choices", "dies",
    )  # fmt: skip

    def __init__(
        self, machine: Machine, state: State, who: int, choice: int, *, notes: list[str] | None = None
    ) -> None:
        self._machine = machine
        self._state = state
        self._who = who
        self._memory = state.memory
        self._buffer = state.buffers[who]
        self._arriving = state.arriving
        self._bells = state.bells
        self._ended = state.ended
        self._notes = notes
        self.choice = choice
        self.choices = 1
        self.dies: list[State] = []

    def say(self, words: str) -> None:
        if self._notes is not None:
            self._notes.append(words)

    def fail(self, wrong: Wrong, detail: str) -> Violation:
        return Violation(wrong, f"{self._machine.actors[self._who]}: {detail}", "; ".join(self._notes or ()))

    # What others can notice, or what notices them.

    def load(self, word: int, writer: int) -> int:
        """One of the values that may be seen; ``choice`` says which, ``choices`` how many there are."""
        written = self._state.buffers[writer]
        if self._machine.order is Order.TSO:
            ways = [0, *(place for place, store in enumerate(written, 1) if store[0] == word)]
            self.choices = len(ways)
            drained = ways[self.choice]
            if drained:
                self._apply(written[:drained])
                self._state = self._state._replace(buffers=_put(self._state.buffers, writer, written[drained:]))
        else:
            queue = [store for store in self._arriving if store[0] == word]
            fenced = len(queue)
            queue += [store for store in written if store[0] == word]
            self.choices = len(queue) + 1
            if self.choice:
                self._apply(tuple(queue[: self.choice]))
                self._arriving = _without(self._arriving, word, min(fenced, self.choice))
                if self.choice > fenced:
                    left = _without(written, word, self.choice - fenced)
                    self._state = self._state._replace(buffers=_put(self._state.buffers, writer, left))
        value = self._memory[word]
        if self._notes is not None:
            self.say(f"reads {self._machine.words[word]}: {value}")
        return value

    def may_see(self, word: int, writer: int) -> list[int]:
        """Every value that a load of the word may give now, without the load."""
        coming = (*self._arriving, *self._state.buffers[writer])
        return [self._memory[word], *(value for name, value in coming if name == word)]

    def fence(self) -> None:
        self.say("fence")
        self._drain()
        self._catch_up()

    def ring(self, socket: int, peer: int) -> bool:
        """One byte, without waiting. False if the peer is gone, which its socket's end tells too."""
        if self._ended[peer]:
            self.say("rings a bell that nobody holds")
            return False
        if self._bells[socket] == self._machine.room_for_bells:
            self.say("rings: the socket is full")
        else:
            self._drain()  # the kernel's own locks order the byte after the stores
            self._bells = _put(self._bells, socket, self._bells[socket] + 1)
            self.say(f"rings ({self._bells[socket]} in the socket)")
            if self._bells[socket] > self._machine.most_bells:
                raise self.fail(Wrong.TOO_MANY_BELLS, f"{self._bells[socket]} bytes in a socket")
        return True

    def readable(self, socket: int, peer: int) -> bool:
        return self._bells[socket] > 0 or self._ended[peer]

    def take(self, socket: int, peer: int) -> Taken:
        """Read the socket empty. Its end comes after all bytes that were sent before."""
        taken = Taken.NOTHING
        if self._ended[peer] and self._machine.ends_pass_bells:
            taken = Taken.END
        elif self._bells[socket]:
            taken = Taken.BYTES
            self._bells = _put(self._bells, socket, 0)
        elif self._ended[peer]:
            taken = Taken.END
        if taken is not Taken.NOTHING:
            self._catch_up()
        self.say(f"takes from the socket: {taken.value}")
        return taken

    def close(self) -> None:
        self.say("closes its socket")
        self._drain()
        self._ended = _put(self._ended, self._who, True)

    # What nobody can notice yet.

    def store(self, word: int, value: int) -> None:
        self.dies.append(self._dead())
        if self._notes is not None:
            self.say(f"{self._machine.words[word]} = {value}")
        buffer = (*self._buffer, (word, value))
        # Without order between words only the order of each word's own values makes a difference.
        self._buffer = buffer if self._machine.order is Order.TSO else tuple(sorted(buffer, key=_word))

    # How it ends.

    def after(self, actor: Frozen) -> State:
        state = self._state
        return State(
            self._memory,
            _put(state.buffers, self._who, self._buffer),
            self._arriving,
            self._bells,
            self._ended,
            _put(state.actors, self._who, actor),
        )

    def die(self) -> State:
        """SIGKILL now. What the process stored becomes visible before the kernel closes its sockets, and what others
        see between the two they could as well see of one that is only slow."""
        return self._dead()

    def _dead(self) -> State:
        state = self._state
        memory, arriving = self._memory, self._arriving
        if self._machine.order is Order.TSO:
            memory = _applied(memory, self._buffer)
        else:
            arriving = tuple(sorted((*arriving, *self._buffer), key=_word))
        return State(
            memory,
            _put(state.buffers, self._who, ()),
            arriving,
            self._bells,
            _put(self._ended, self._who, self._machine.deaths_show),
            _put(state.actors, self._who, DEAD),
        )

    # The memory model.

    def _drain(self) -> None:
        if not self._buffer:
            return
        if self._machine.order is Order.TSO:
            self._apply(self._buffer)
        else:
            self._arriving = tuple(sorted((*self._arriving, *self._buffer), key=_word))
        self._buffer = ()

    def _catch_up(self) -> None:
        """From here on this process sees what others had fenced."""
        if self._arriving:
            readers = self._machine.readers
            self._apply(tuple(store for store in self._arriving if readers[store[0]] == self._who))
            self._arriving = tuple(store for store in self._arriving if readers[store[0]] != self._who)

    def _apply(self, stores: Stores) -> None:
        self._memory = _applied(self._memory, stores)


def _word(store: tuple[int, int]) -> int:
    return store[0]


def _applied(memory: tuple[int, ...], stores: Stores) -> tuple[int, ...]:
    if not stores:
        return memory
    changed = list(memory)
    for word, value in stores:
        changed[word] = value
    return tuple(changed)


def _without(stores: Stores, word: int, count: int) -> Stores:
    """Without the first so many stores to that word."""
    left = []
    for store in stores:
        if store[0] == word and count:
            count -= 1
        else:
            left.append(store)
    return tuple(left)


def _put(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])
