"""Bare round trips between two processes: what waking each other costs here, with nothing carried.

Where the system puts the two makes most of it, so they are shown as it likes, on one CPU, and on two.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.crew import Crew, Gate
from bench.measure import PAYLOAD
from bench.peers.lane import CALLS, WARM_UP, Lane, Peer, timed_us
from bench.terms import Terms
from bench.workload import NotHere, Side


@dataclass(frozen=True, slots=True)
class EchoLane(Lane):
    """``echo`` runs in a child with the given ends; ``call`` is one round trip, in this process."""

    echo: Callable[..., None]
    ends: tuple[Any, ...]
    call: Callable[[], object]
    cpus: tuple[int, int] | None = None

    def confirmed(self, count: int) -> list[float]:
        here, there = self.cpus or (None, None)
        with Crew() as crew, _on_cpu(here):
            child = crew.add(_echo, there, self.echo, *self.ends, WARM_UP + count)
            crew.begin()
            times = timed_us(self.call, count)
            child.result()
        return times


def _echo(gate: Gate, cpu: int | None, echo: Callable[..., None], *rest: Any) -> None:
    with _on_cpu(cpu):
        echo(gate, *rest)


@contextlib.contextmanager
def _on_cpu(cpu: int | None) -> Iterator[None]:
    """Keep this process on one CPU meanwhile, if one is given."""
    if cpu is None or sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cpus(count: int) -> tuple[int, int]:
    """The first and the last of the CPUs of this process, or twice the first."""
    if sys.platform != "linux":
        raise NotHere("this system cannot keep a process on one CPU")
    mine = sorted(os.sched_getaffinity(0))
    if count > len(mine):
        raise NotHere("this process has only one CPU")
    return mine[0], mine[0] if count == 1 else mine[-1]


class _Descriptor:
    """A descriptor that is picklable to a child that is being spawned."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return _detached, (DupFd(self.number),)


def _detached(sent: Any) -> _Descriptor:
    return _Descriptor(sent.detach())


def _eventfd_echo(gate: Gate, there: _Descriptor, back: _Descriptor, count: int) -> None:
    gate.wait()
    for _ in range(count):
        os.eventfd_read(there.number)
        os.eventfd_write(back.number, 1)


@contextlib.contextmanager
def eventfds(terms: Terms, groups: int, cpus: int = 0) -> Iterator[EchoLane]:
    if sys.platform != "linux":
        raise NotHere("this system has no eventfd")
    places = _cpus(cpus) if cpus else None
    with contextlib.ExitStack() as stack:
        there, back = os.eventfd(0), os.eventfd(0)
        stack.callback(os.close, there)
        stack.callback(os.close, back)

        def call() -> None:
            os.eventfd_write(there, 1)
            os.eventfd_read(back)

        yield EchoLane(_eventfd_echo, (_Descriptor(there), _Descriptor(back)), call, places)


def _socket_echo(gate: Gate, peer: socket.socket, count: int) -> None:
    gate.wait()
    for _ in range(count):
        peer.sendall(peer.recv(256))
    peer.close()


@contextlib.contextmanager
def sockets(terms: Terms, groups: int) -> Iterator[EchoLane]:
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def call() -> None:
            ours.sendall(PAYLOAD)
            ours.recv(256)

        yield EchoLane(_socket_echo, (theirs,), call)


EVENTFD = Peer("eventfd ping-pong", eventfds, side=Side.LIMIT, calls=CALLS)
ONE_CPU = Peer("eventfd ping-pong, on one CPU", partial(eventfds, cpus=1), side=Side.LIMIT, calls=CALLS)
TWO_CPUS = Peer("eventfd ping-pong, on two CPUs", partial(eventfds, cpus=2), side=Side.LIMIT, calls=CALLS)
SOCKET = Peer("socket ping-pong", sockets, side=Side.LIMIT, calls=CALLS)
