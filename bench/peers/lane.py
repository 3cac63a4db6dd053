"""What a workload asks of a way to carry messages, and what most ways have in common.

A lane is opened for one round by the process that measures, and pickled to the children that use it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from bench.crew import Gate
from bench.measure import PAYLOAD, age_us, stamp
from bench.tally import Tally
from bench.terms import Terms
from bench.workload import Side

WARM_UP: Final = 50
"""Calls before those that are timed: the first ones make connections and caches."""

PAUSE_S: Final = 0.001
"""Between paced messages: the reader gets back to waiting meanwhile; the pause itself is not measured."""


class Taken(Protocol):
    """A semaphore of multiprocessing: the reader of paced messages says that it has one."""

    def acquire(self) -> bool: ...
    def release(self) -> None: ...


class Lane:
    """One way to carry messages from one process to another, open for one round."""

    def stream_in(self, gate: Gate, count: int) -> None:
        """In a child: send so many messages of 100 B, as fast as this way goes."""
        raise NotImplementedError

    def stream_out(self, gate: Gate, count: int) -> float:
        """In a child: receive them; when the last ack was confirmed, or the last arrived where there are no acks."""
        raise NotImplementedError

    def confirmed(self, count: int) -> list[float]:
        """In this process: send one after the other, each until its answer is here; microseconds of each."""
        raise NotImplementedError

    def paced_in(self, gate: Gate, count: int, taken: Taken) -> None:
        """In a child: send stamps one by one, each once the one before it is taken and the reader waits again."""
        raise NotImplementedError

    def paced_out(self, gate: Gate, count: int, taken: Taken) -> list[float]:
        """In a child: wait for each stamp; its age in microseconds when it was here."""
        raise NotImplementedError


class PlainLane(Lane):
    """A lane that sends and receives one message a call."""

    @abstractmethod
    def sender(self) -> AbstractContextManager[Callable[[bytes], object]]:
        """Connect; a call sends one message, and returns when this way says that it is done."""

    @abstractmethod
    def receiver(self) -> AbstractContextManager[Callable[[], bytes]]:
        """Connect; a call waits for one message."""

    def stream_in(self, gate: Gate, count: int) -> None:
        with self.sender() as send:
            gate.wait()
            for _ in range(count):
                send(PAYLOAD)

    def stream_out(self, gate: Gate, count: int) -> float:
        with self.receiver() as receive:
            gate.wait()
            for _ in range(count):
                receive()
            return time.monotonic()

    def confirmed(self, count: int) -> list[float]:
        with self.sender() as send:
            return timed_us(lambda: send(PAYLOAD), count)

    def paced_in(self, gate: Gate, count: int, taken: Taken) -> None:
        with self.sender() as send:
            gate.wait()
            for _ in range(count):
                time.sleep(PAUSE_S)
                send(stamp())
                taken.acquire()

    def paced_out(self, gate: Gate, count: int, taken: Taken) -> list[float]:
        ages = []
        with self.receiver() as receive:
            gate.wait()
            for _ in range(count):
                ages.append(age_us(receive()))
                taken.release()
        return ages


class GroupLane(Lane):
    """A lane with worker groups: each group gets every message, and its workers split them."""

    @abstractmethod
    def work(self, gate: Gate, group: int, worker: int, tally: Tally) -> None:
        """In a child: receive and ack as one of a group until the tally has ended, adding each ack that counts."""

    def acked(self, tally: Tally) -> int:
        """In this process: how many deliveries are acked by now, over all groups, as far as it is confirmed."""
        return tally.acked()

    def end(self, tally: Tally) -> None:
        """In this process: make the workers return."""
        tally.end()


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to carry messages, and how much of it fills a round.

    Attributes:
        name: in tables and for --peers.
        open: a lane for one round, with so many worker groups; raises NotHere when this machine has none.
        side: ours, a rival, or a limit of the machine.
        stream: messages of a stream, (quick, full), each about a second or two of a full round; None: it has no
            streams. calls, paced: the same of confirmed and of paced messages.
        groups: messages of all publishers to worker groups; its lane is then a GroupLane.
    """

    name: str
    open: Callable[[Terms, int], AbstractContextManager[Lane]]
    side: Side = Side.PEER
    stream: tuple[int, int] | None = None
    calls: tuple[int, int] | None = None
    paced: tuple[int, int] | None = None
    groups: tuple[int, int] | None = None


PACED: Final = (100, 2_000)
CALLS: Final = (500, 20_000)


def timed_us(call: Callable[[], object], count: int) -> list[float]:
    """Microseconds of each call, after some that warm up."""
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(count):
        started = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - started) / 1000)
    return times
