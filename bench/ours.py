"""mpbroker as a contestant: how a round's broker is started, and the forms in which messages go through it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.crew import DEADLINE_S, Gate
from bench.measure import PAYLOAD, age_us
from bench.peers.lane import CALLS, PACED, GroupLane, Peer, PlainLane, Taken
from bench.tally import Tally
from bench.terms import Terms
from bench.workload import NotHere, Side
from mpbroker import BrokerManager, Delivery, UnknownSubscription

TOPIC: Final = "bench"
ROOM: Final = 4_000_000
"""Messages that a subscription may hold: more than any round publishes."""

PREFETCH: Final = 1_000
"""Deliveries that a consumer may hold unacked."""

_PAUSE_S: Final = 0.001


@contextlib.contextmanager
def started(terms: Terms) -> Iterator[BrokerManager]:
    """A broker for one round; the one place where the transport of a run is chosen."""
    options: dict[str, Any] = {} if terms.transport is None else {"transport": terms.transport}
    try:
        manager = BrokerManager(**options)
    except TypeError as error:
        raise NotHere(f"this mpbroker cannot choose its transport: {error}") from error
    with manager:
        yield manager


@contextlib.contextmanager
def broker_of(terms: Terms) -> Iterator[tuple[BrokerManager, Any]]:
    """The same, with its proxy and the topic of the workloads."""
    with started(terms) as manager:
        broker = manager.broker()
        broker.create_topic(TOPIC)
        try:
            yield manager, broker
        finally:
            broker.close()


@dataclass(frozen=True, slots=True)
class OursLane(GroupLane, PlainLane):
    """One call a message: confirmed publishes, polls of one, acks of one."""

    broker: Any
    subscriptions: Sequence[Any]
    batch: int = 1

    @contextlib.contextmanager
    def sender(self) -> Iterator[Callable[[bytes], object]]:
        self.broker.topics()  # connects
        yield lambda payload: self.broker.publish(TOPIC, payload)
        self.broker.close()

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Callable[[], bytes]]:
        poll = self.subscriptions[0].poll
        held: list[Delivery] = []
        poll("worker")  # connects

        def receive() -> bytes:
            # The ack of the one before goes first: its message was in hand, and is worked on by now.
            if held:
                held.pop().ack()
            held.extend(poll("worker", timeout=None))
            payload: bytes = held[0].payload
            return payload

        yield receive
        for delivery in held:
            delivery.ack()

    def stream_out(self, gate: Gate, count: int) -> float:
        subscription = self.subscriptions[0]
        subscription.poll("worker")  # connects
        gate.wait()
        done = 0
        while done < count:
            deliveries = subscription.poll("worker", max_messages=self.batch, timeout=None)
            done += self.ack(subscription, "worker", deliveries)
        return counted(subscription, count)

    def ack(self, subscription: Any, member: str, deliveries: Sequence[Delivery]) -> int:
        return sum(delivery.ack() for delivery in deliveries)

    def work(self, gate: Gate, group: int, worker: int, tally: Tally) -> None:
        subscription, member = self.subscriptions[group], f"w{worker}"
        subscription.poll(member)
        gate.wait()
        with contextlib.suppress(UnknownSubscription):
            while True:
                self.ack(subscription, member, subscription.poll(member, max_messages=self.batch, timeout=None))

    def acked(self, tally: Tally) -> int:
        return sum(subscription.stats().acked for subscription in self.subscriptions)

    def end(self, tally: Tally) -> None:
        """Waiting polls of a subscription that ends raise UnknownSubscription."""
        for subscription in self.subscriptions:
            self.broker.unsubscribe(subscription.topic, subscription.name)


@dataclass(frozen=True, slots=True)
class Batches(OursLane):
    """Batches: publish_many, polls of as many, ack_many; each call confirmed."""

    def stream_in(self, gate: Gate, count: int) -> None:
        publish_many = self.broker.publish_many
        payloads = [PAYLOAD] * self.batch
        self.broker.topics()  # connects
        gate.wait()
        for _ in range(count // self.batch):
            publish_many(TOPIC, payloads)
        if rest := payloads[: count % self.batch]:
            publish_many(TOPIC, rest)

    def ack(self, subscription: Any, member: str, deliveries: Sequence[Delivery]) -> int:
        return sum(subscription.ack_many([delivery.message_id for delivery in deliveries], member))


@dataclass(frozen=True, slots=True)
class Pipelined(OursLane):
    """A publisher and a consumer: a call a message, which go to the broker together and are confirmed later."""

    def stream_in(self, gate: Gate, count: int) -> None:
        self.broker.topics()  # connects
        with self.broker.publisher(TOPIC) as out:
            publish = out.publish
            gate.wait()
            for _ in range(count):
                publish(PAYLOAD)

    def stream_out(self, gate: Gate, count: int) -> float:
        subscription = self.subscriptions[0]
        left = count
        with subscription.consume("worker", prefetch=PREFETCH) as deliveries:
            gate.wait()
            for delivery in deliveries:
                delivery.ack()
                left -= 1
                if not left:
                    break
        return counted(subscription, count)

    def paced_out(self, gate: Gate, count: int, taken: Taken) -> list[float]:
        ages: list[float] = []
        with self.subscriptions[0].consume("worker", prefetch=PREFETCH) as deliveries:
            gate.wait()
            for delivery in deliveries:
                ages.append(age_us(delivery.payload))
                delivery.ack()
                taken.release()
                if len(ages) == count:
                    break
        return ages

    def work(self, gate: Gate, group: int, worker: int, tally: Tally) -> None:
        with (
            contextlib.suppress(UnknownSubscription),
            self.subscriptions[group].consume(f"w{worker}", prefetch=PREFETCH) as deliveries,
        ):
            gate.wait()
            for delivery in deliveries:
                delivery.ack()


def counted(subscription: Any, count: int) -> float:
    """Wait until the broker has counted so many acks; when that was."""
    deadline = time.monotonic() + DEADLINE_S
    while (acked := subscription.stats().acked) != count:
        if acked > count or time.monotonic() > deadline:
            raise RuntimeError(f"the broker counted {acked} acks, not {count}")
        time.sleep(_PAUSE_S)
    return time.monotonic()


@contextlib.contextmanager
def _opened(form: type[OursLane], batch: int, terms: Terms, groups: int) -> Iterator[OursLane]:
    with broker_of(terms) as (_, broker):
        subscriptions = [broker.subscribe(TOPIC, f"group-{number}", max_queue=ROOM) for number in range(groups)]
        yield form(broker, subscriptions, batch)


def pipelined(terms: Terms, groups: int) -> contextlib.AbstractContextManager[OursLane]:
    return _opened(Pipelined, 1, terms, groups)


def batches_of_100(terms: Terms, groups: int) -> contextlib.AbstractContextManager[OursLane]:
    return _opened(Batches, 100, terms, groups)


def batches_of_1000(terms: Terms, groups: int) -> contextlib.AbstractContextManager[OursLane]:
    return _opened(Batches, 1000, terms, groups)


def one_by_one(terms: Terms, groups: int) -> contextlib.AbstractContextManager[OursLane]:
    return _opened(OursLane, 1, terms, groups)


PIPELINED = Peer(
    "mpbroker, pipelined",
    pipelined,
    side=Side.OURS,
    stream=(50_000, 1_000_000),
    groups=(10_000, 400_000),
)
BATCHES_100 = Peer(
    "mpbroker, batches of 100",
    batches_of_100,
    side=Side.OURS,
    stream=(20_000, 500_000),
    groups=(10_000, 200_000),
)
BATCHES_1000 = Peer("mpbroker, batches of 1000", batches_of_1000, side=Side.OURS, stream=(50_000, 1_000_000))
CONSUMED = Peer("mpbroker, read by consume()", pipelined, side=Side.OURS, paced=PACED)
CALLED = Peer("mpbroker", one_by_one, side=Side.OURS, calls=CALLS, paced=PACED)
ONE_BY_ONE = Peer("mpbroker, one call a message", one_by_one, side=Side.OURS, stream=(1_000, 20_000))

OURS = (PIPELINED, BATCHES_100, BATCHES_1000, ONE_BY_ONE, CALLED, CONSUMED)
