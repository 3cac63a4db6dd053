"""Ways to carry one large array at a time from a process to another that sums it, and the limit: a copy and a sum.

A way is opened for one round by the process that measures, and pickled to the children that use it. Each child returns
the CPU seconds that it took, all of its threads included.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import shared_memory
from typing import Any, Final

from bench import ours
from bench.crew import SPAWN, Gate
from bench.measure import cpu_s
from bench.peers.lane import Taken
from bench.server import folder
from bench.terms import Terms
from bench.workload import load

ARRAY_BYTES: Final = 8 << 20

_FIRST: Final = 5
"""Arrays before those that count: the first ones make connections, segments and maps."""


def array() -> Any:
    """What is sent: 8 MiB of doubles."""
    return load("numpy", "numpy").arange(ARRAY_BYTES // 8, dtype="float64")


class Way:
    """One way to carry arrays."""

    @abstractmethod
    def sender(self) -> AbstractContextManager[Callable[[Any], object]]:
        """Connect; a call sends one array."""

    @abstractmethod
    def receiver(self) -> AbstractContextManager[Callable[[Callable[[Any], object]], object]]:
        """Connect; a call waits for one array, has it worked on, and is done with it."""

    def others_s(self) -> float:
        """CPU seconds that processes beside the two have taken so far."""
        return 0.0

    def send(self, gate: Gate, count: int, taken: Taken) -> float:
        """In a child: send so many, each once the one before it is done with."""
        sent = array()
        began = 0.0
        with self.sender() as send:
            gate.wait()
            for number in range(_FIRST + count):
                if number == _FIRST:
                    began = time.process_time()
                send(sent)
                taken.acquire()
            return time.process_time() - began

    def receive(self, gate: Gate, count: int, taken: Taken, touched: int | None = None) -> float:
        """In a child: sum each, or the first bytes of it."""
        right = array()[: None if touched is None else touched // 8].sum()

        def work(came: Any) -> None:
            if came[: None if touched is None else touched // 8].sum() != right:
                raise RuntimeError("another array came than was sent")

        began = 0.0
        with self.receiver() as receive:
            gate.wait()
            for number in range(_FIRST + count):
                if number == _FIRST:
                    began = time.process_time()
                receive(work)
                taken.release()
            return time.process_time() - began


@dataclass(frozen=True, slots=True)
class Ours(Way):
    """A publish call, a poll and an ack for each; the broker is beside them."""

    broker: Any
    subscription: Any
    pid: int

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[Any], object]]:
        yield lambda sent: self.broker.publish(ours.TOPIC, sent)
        self.broker.close()

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[Callable[[Any], object]], object]]:
        poll = self.subscription.poll
        poll("worker")  # connects

        def receive(work: Callable[[Any], object]) -> None:
            (delivery,) = poll("worker", timeout=None)
            work(delivery.payload)
            delivery.ack()

        yield receive

    def others_s(self) -> float:
        return cpu_s([self.pid])


@contextlib.contextmanager
def ours_opened(terms: Terms) -> Iterator[Ours]:
    with ours.broker_of(terms) as (manager, broker):
        assert manager.pid is not None
        yield Ours(broker, broker.subscribe(ours.TOPIC, "group"), manager.pid)


@dataclass(frozen=True, slots=True)
class Queue(Way):
    """multiprocessing.Queue: a pickle through a pipe."""

    queue: Any

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[Any], object]]:
        yield self.queue.put

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[Callable[[Any], object]], object]]:
        yield lambda work: work(self.queue.get())


@contextlib.contextmanager
def queue_opened(terms: Terms) -> Iterator[Queue]:
    queue = SPAWN.Queue()
    try:
        yield Queue(queue)
    finally:
        queue.close()
        queue.join_thread()


@dataclass(frozen=True, slots=True)
class PushPull(Way):
    """pyzmq, which copies on neither side, but through a socket between them."""

    address: str

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[Any], object]]:
        zmq = load("zmq", "pyzmq")
        with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
            socket.connect(self.address)
            yield lambda sent: socket.send(sent, copy=False)

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[Callable[[Any], object]], object]]:
        zmq, numpy = load("zmq", "pyzmq"), load("numpy", "numpy")
        with zmq.Context() as context, context.socket(zmq.PULL) as socket:
            socket.bind(self.address)
            yield lambda work: work(numpy.frombuffer(socket.recv(copy=False).buffer))


@contextlib.contextmanager
def push_pull_opened(terms: Terms) -> Iterator[PushPull]:
    load("zmq", "pyzmq")
    with folder() as place:
        yield PushPull(f"ipc://{place}/z")


@dataclass(frozen=True, slots=True)
class ByHand(Way):
    """One block of SharedMemory and a semaphore: no queue, no bound, and nobody who cleans up."""

    name: str
    ready: Any

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[Any], object]]:
        with _attached(self.name) as there:

            def send(sent: Any) -> None:
                there[:] = sent
                self.ready.release()

            yield send

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[Callable[[Any], object]], object]]:
        with _attached(self.name) as there:

            def receive(work: Callable[[Any], object]) -> None:
                self.ready.acquire()
                work(there)

            yield receive


@contextlib.contextmanager
def _attached(name: str) -> Iterator[Any]:
    memory = shared_memory.SharedMemory(name)
    there = load("numpy", "numpy").frombuffer(memory.buf)
    try:
        yield there
    finally:
        del there
        with contextlib.suppress(BufferError):  # a lambda of the caller's still has it, until the process ends
            memory.close()


@contextlib.contextmanager
def by_hand_opened(terms: Terms) -> Iterator[ByHand]:
    memory = shared_memory.SharedMemory(create=True, size=ARRAY_BYTES)
    try:
        yield ByHand(memory.name, SPAWN.Semaphore(0))
    finally:
        memory.close()
        memory.unlink()


def copy_and_sum(gate: Gate, count: int) -> float:
    """In a child: what every way must do at least."""
    sent = array()
    there = sent.copy()
    right = sent.sum()
    began = 0.0
    gate.wait()
    for number in range(_FIRST + count):
        if number == _FIRST:
            began = time.process_time()
        there[:] = sent
        if there.sum() != right:
            raise RuntimeError("a copy is another array")
    return time.process_time() - began
