"""python -m bench.steps: where each nanosecond goes that a message of P1 takes, step by step, in one process.

Each step is the product's own code, on what it has before it in P1: batches of 256 messages of 100 bytes, on rings.
Nothing waits and nobody is woken, so what is missing to the CPU time of the three processes is looking, sleeping,
waking and the caches of two processors. CPU time of the thread; of many repetitions the quickest, as others may run.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec

from bench.measure import PAYLOAD
from mpbroker._version import __version__
from mpbroker.deliveries import Delivery
from mpbroker.engine import Engine
from mpbroker.loans import Loan
from mpbroker.pipeline import Answer
from mpbroker.pipeline.batches import BATCH_MESSAGES, Batch
from mpbroker.pipeline.consumer import Consumer, Run
from mpbroker.pipeline.publisher import WINDOW, Publisher
from mpbroker.pipeline.settling import Settler, ranges_of
from mpbroker.process import frames, handshake, payloads
from mpbroker.process.effects import Send
from mpbroker.process.limits import Limits
from mpbroker.process.link import READ_BYTES, Link
from mpbroker.process.received import ReceivedBatch
from mpbroker.process.sessions import Sessions
from mpbroker.shm.link import RingEnd
from mpbroker.shm.ring import HEAD_BYTES, Ring
from mpbroker.shm.segment import Segment
from mpbroker.shm.stream import RingStream

COUNT: Final = BATCH_MESSAGES
_KEY: Final = bytes(32)
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """nanoseconds: for each message."""

    process: str
    name: str
    nanoseconds: float


class Watch:
    """Times what is done for a batch; repeats: how often, and of those the quickest counts."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.steps: list[Step] = []

    def time(self, do: Callable[[], object], after: Callable[[], object] = lambda: None) -> float:
        """Nanoseconds a message of ``do``; ``after`` is done after each, and not counted."""
        clock, best = time.thread_time_ns, _NS
        for _ in range(self.repeats):
            began = clock()
            do()
            best = min(best, clock() - began)
            after()
        return best / COUNT

    def note(self, process: str, name: str, nanoseconds: float) -> None:
        self.steps.append(Step(process, name, nanoseconds))


@contextlib.contextmanager
def rings(capacity: int) -> Iterator[tuple[Link, RingStream]]:
    """The broker's end and the client's end of a connection."""
    size = HEAD_BYTES + capacity
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        segments = [Segment.create(size) for _ in range(2)]
        (first, first_fd), (second, second_fd) = segments
        client = Ring(first, Segment.attach(second_fd, size), capacity)
        broker = Ring(second, Segment.attach(first_fd, size), capacity)
        link = Link(theirs, 1)
        link.limit = frames.MAX_FRAME_BYTES
        link.goes_through(RingEnd(theirs, broker))
        stream = RingStream(ours, client, capacity)
        try:
            yield link, stream
        finally:
            stream.close()
            link.close()
            client.close()


# -- publisher --------------------------------------------------------------------------------------------------------


class PromptWire:
    """A PublishWire whose broker has answered before it is asked."""

    payload_bytes = frames.MAX_FRAME_BYTES
    window = WINDOW

    def __init__(self) -> None:
        self._answer = Answer(1, 0.0, "0")
        self._out = 0

    def encode(self, payload: Any) -> tuple[Any, int]:
        raise NotImplementedError

    def loan(self, nbytes: int) -> Loan:
        raise NotImplementedError

    def take(self, is_anything_out: bool) -> bool:
        return False

    def put(self) -> None:
        pass

    def send(self, topic: str, batch: Batch) -> None:
        self._out += 1

    def receive(self, timeout_s: float | None) -> Answer | Exception | None:
        if not self._out:
            return None
        self._out -= 1
        return self._answer

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


def publisher(watch: Watch) -> None:
    with Publisher("t", PromptWire(), {"linger": 3600.0}) as out:
        publish = out.publish

        def fill() -> None:
            for _ in range(COUNT - 1):
                publish(PAYLOAD)

        def loop() -> None:
            for _ in range(COUNT):
                pass

        def cut() -> None:
            publish(PAYLOAD)

        out.flush()
        bare = watch.time(loop)
        filled = watch.time(fill, cut)

        def fill_and_cut() -> None:
            fill()
            cut()

        whole = watch.time(fill_and_cut)
    watch.note("publisher", "the caller's loop", bare)
    watch.note("publisher", "publish(): lock, look, append", filled - bare)
    watch.note("publisher", "a batch begun, cut, sent and confirmed", whole - filled)
    parts = [PAYLOAD] * COUNT
    encoder = msgspec.msgpack.Encoder()
    watch.note("publisher", "encode the payloads", watch.time(lambda: encoder.encode(parts)))
    request = publish_frame(1)
    watch.note("publisher", "encode the frame", watch.time(lambda: frames.encode(request)))
    body = frames.encode(request)
    watch.note("publisher", "put its length in front", watch.time(lambda: frames.framed(body)))
    framed = frames.framed(body)
    answer = frames.encode(frames.Published(1, 1.0, 1))
    with rings(Limits().ring_bytes) as (link, stream):
        buffer = memoryview(bytearray(READ_BYTES))

        def drain() -> None:
            link.read(buffer)

        watch.note("publisher", "into the ring, and look who sleeps", watch.time(lambda: stream.sendall(framed), drain))

        def hear() -> None:
            frames.decode_reply(stream.recv(0)[frames.HEADER_BYTES :])

        link.write(answer)
        watch.note("publisher", "the answer", watch.time(hear, lambda: link.write(answer)))


# -- broker -----------------------------------------------------------------------------------------------------------


def publish_frame(number: int) -> frames.Publish:
    blob = payloads.encode_batches([PAYLOAD] * COUNT)[0]
    return frames.Publish("t", [msgspec.Raw(blob)], {}, 1, number)


class Served:
    """Sessions with one client, whose connections 2 and 3 publish and poll."""

    def __init__(self) -> None:
        self.sessions = Sessions(
            Engine(incarnation="0"),
            key=_KEY,
            limits=Limits(),
            manual_time=False,
            functions={},
            nonce=bytes,
            wall_clock=time.time,
            version=__version__,
            pid=1,
        )
        for number, role in ((1, "presence"), (2, "call"), (3, "call")):
            self.sessions.opened(number, 0.0)
            hello = frames.encode(
                frames.Hello(frames.PROTOCOL, __version__, role, bytes(16), number, 0, bytes(handshake.NONCE_BYTES))
            )
            self.sessions.received(number, hello, 0.0)
            proof = handshake.client_proof(_KEY, hello, bytes(handshake.NONCE_BYTES))
            self.sessions.received(number, frames.encode(frames.Proof(proof)), 0.0)
        self.ask(2, frames.CreateTopic("t", True))
        names = ["max_queue"]
        made = frames.Subscribe("t", "s", False, names, "none", "", 30.0, 5, None, 1_000_000, "dead_letter")
        self.number = self.ask(2, made).number
        self.published = 0

    def ask(self, connection: int, request: frames.Frame) -> Any:
        return self.hand_in(connection, frames.encode(request))

    def hand_in(self, connection: int, body: bytes) -> Any:
        for effect in self.sessions.received(connection, body, 0.0):
            if isinstance(effect, Send):
                assert type(effect.reply) is not frames.Failed, effect.reply
                return effect.reply
        raise AssertionError("no answer")

    def publish(self) -> bytes:
        """The body of the next publish."""
        self.published += 1
        return frames.encode(publish_frame(self.published))


def broker(watch: Watch) -> None:
    served = Served()
    poll = frames.encode(frames.Poll(served.number, "w", None, 2 * COUNT, None))
    first = served.publish()
    with rings(Limits().ring_bytes) as (link, stream):
        buffer = memoryview(bytearray(READ_BYTES))
        framed = frames.framed(first)
        stream.sendall(framed)
        read = watch.time(lambda: link.read(buffer), lambda: stream.sendall(framed))
    watch.note("broker", "out of the ring, and out of the buffer", read)
    decode = watch.time(lambda: frames.decode_request(first))
    watch.note("broker", "decode the frame", decode)
    blob = payloads.encode_batches([PAYLOAD] * COUNT)[0]
    check = watch.time(lambda: payloads.check_payloads(blob))
    watch.note("broker", "check each payload", check)

    bodies, last = [first], [b""]
    replies: list[Any] = []

    def take() -> None:
        replies[:] = [served.hand_in(3, poll)]
        token = replies[0].grants[0].token
        last[0] = frames.encode(frames.AckRanges(served.number, [token, token + COUNT - 1]))

    def settle() -> None:
        served.hand_in(3, last[0])

    def cycle() -> None:
        take()
        settle()
        bodies[:] = [served.publish()]

    published = watch.time(lambda: served.hand_in(2, bodies[0]), cycle)
    watch.note("broker", "publish: sessions, verbs, desk, engine, answer", published - decode - check)

    def again() -> None:
        token = replies[0].grants[0].token
        last[0] = frames.encode(frames.AckRanges(served.number, [token, token + COUNT - 1]))
        settle()
        served.hand_in(2, served.publish())

    served.hand_in(2, bodies[0])

    def polled() -> None:
        replies[:] = [served.hand_in(3, poll)]

    watch.note("broker", "poll: lease and grant", watch.time(polled, again))
    take()

    def next_lease() -> None:
        served.hand_in(2, served.publish())
        take()

    watch.note("broker", "the acks, as one range", watch.time(settle, next_lease))
    granted = replies[0]
    watch.note("broker", "encode the answer to the poll", watch.time(lambda: frames.encode(granted)))
    answer = frames.encode(granted)
    with rings(Limits().ring_bytes) as (link, stream):
        write = watch.time(lambda: link.write(answer), lambda: stream.recv(0))
    watch.note("broker", "its length in front, and into the ring", write)


# -- worker -----------------------------------------------------------------------------------------------------------


class ReadyWire:
    """A FetchWire, and a SettleWire, whose broker has the next batch ready."""

    is_asked = False
    is_out = False

    def __init__(self, grant: frames.Grant) -> None:
        self._grant = grant
        self._token = 0

    def run(self) -> Run:
        self._token += COUNT
        return Run(ReceivedBatch("t", "0", self._grant), 0, COUNT, self._token, 1, False, 30.0)

    def ask(self, max_messages: int, timeout: float | None, is_new: bool) -> None:
        self.is_asked = True

    def fetch(self) -> list[Run] | None:
        return [self.run()]

    def fetched(self) -> None:
        pass

    def now(self) -> float:
        return 0.0

    def look(self) -> None:
        pass

    def cancel(self) -> None:
        pass

    def ack(self, ranges: list[int]) -> None:
        pass

    def finish(self) -> None:
        pass

    def release(self, ranges: list[int]) -> None:
        pass

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


def worker(watch: Watch) -> None:
    blob = payloads.encode_batches([PAYLOAD] * COUNT)[0]
    grant = frames.Grant(256, 1, 1, False, 30.0, 1, 1.0, {}, msgspec.Raw(blob))
    answer = frames.encode(frames.Granted([grant]))
    with rings(Limits().ring_bytes) as (link, stream):
        link.write(answer)
        watch.note(
            "worker",
            "out of the ring, and out of the buffer",
            watch.time(lambda: stream.recv(0), lambda: link.write(answer)),
        )
    framed = frames.framed(answer)
    watch.note("worker", "the body of the frame", watch.time(lambda: framed[frames.HEADER_BYTES :]))
    watch.note("worker", "decode the frame", watch.time(lambda: frames.decode_reply(answer)))
    wire = ReadyWire(grant)
    watch.note("worker", "a run of the grant", watch.time(wire.run))
    consumed(watch, wire)
    tokens = list(range(COUNT, 2 * COUNT))
    encoded = watch.time(lambda: frames.encode(frames.AckRanges(1, ranges_of(tokens))))
    watch.note("worker", "ranges of the acks, as a frame", encoded)


def consumed(watch: Watch, wire: ReadyWire) -> None:
    """What the worker's own code meets."""
    settler = Settler(Unused(), wire)
    consumer = Consumer("t/s", "w", 4 * COUNT, None, wire, settler)
    iterator = iter(consumer)
    held: list[Delivery] = []

    def loop() -> None:
        for _ in range(COUNT):
            pass

    def take() -> None:
        held.extend(islice(iterator, COUNT))

    def ack() -> None:
        for delivery in held:
            delivery.ack()

    def settle() -> None:
        held.clear()
        settler.send()

    def settle_all() -> None:
        ack()
        settle()

    def go_on() -> None:
        settle()
        take()

    bare = watch.time(loop)
    watch.note("worker", "the caller's loop", bare)
    watch.note("worker", "resume, Delivery, hold, yield", watch.time(take, settle_all))
    take()
    watch.note("worker", "ack()", watch.time(ack, go_on) - bare)
    consumer.close()


class Unused:
    """The Holder that a settler asks once it is over."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


PROCESSES: Final[dict[str, Callable[[Watch], None]]] = {"publisher": publisher, "broker": broker, "worker": worker}


def measure(repeats: int) -> list[Step]:
    watch = Watch(repeats)
    for process in PROCESSES.values():
        process(watch)
    return watch.steps


def main() -> int:
    steps = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
    for process in PROCESSES:
        mine = [step for step in steps if step.process == process]
        print(f"| {process} | {sum(step.nanoseconds for step in mine):.0f} |\n|---|---|")
        for step in mine:
            print(f"| {step.name} | {step.nanoseconds:.1f} |")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
