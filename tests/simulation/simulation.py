"""One run: a safety phase with faults, then none of them, and everything must come to its end."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from mpbroker.deliveries import Delivery
from mpbroker.engine import Subscription
from mpbroker.errors import BrokerGone, LimitReached, QueueFull, SubscriptionBusy, UnknownSubscription, UnknownTopic
from mpbroker.messages import MessagePriority
from tests.simulation.broker import Broker, Whereabouts
from tests.simulation.checks import Watch
from tests.simulation.clients import KINDS, Client, Crew, proxy_in
from tests.simulation.deeds import DEEDS
from tests.simulation.faults import Chaos, draw_plan, draw_swarm
from tests.simulation.network import Network
from tests.simulation.shadow import Sent, Shadow, payload_of
from tests.simulation.stand_ins import installed
from tests.simulation.world import Process, Violation, World

LONGEST_DRAIN_S: Final = 2_000.0
"""Virtual seconds from the last fault until nothing is left: six leases and their delays one after the other, and some
more."""

KEEP_UP: Final = 50
"""Steps between two looks at who is still there."""


@dataclass(slots=True)
class Result:
    """What one seed did."""

    seed: int
    trace: str = ""
    seconds: float = 0.0
    calls: int = 0
    transport_steps: int = 0
    verified: int = 0
    deliveries: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def run_seed(seed: int, steps: int = 10_000, *, interrupts: bool = False) -> Result:
    """Run a seed.

    Args:
        steps: how often a thread is let run while there are faults.
        interrupts: many of them, and no other faults.
    """
    world = World(seed)
    network = Network(world)
    where = Whereabouts()
    was_enabled = gc.isenabled()
    gc.disable()  # when the collector runs is not in the seed
    try:
        with installed(world, network, where.locate_at):
            try:
                run = Run(world, network, steps, interrupts=interrupts)
                where.broker = run.broker
                run.all()
            except Stopped:
                pass
            except Violation as violation:
                world.fail(str(violation))
            finally:
                world.end()
    finally:
        if was_enabled:
            gc.enable()
    return Result(
        seed,
        world.trace,
        run.seconds,
        run.crew.calls,
        world.transport_steps,
        run.shadow.verified,
        run.shadow.deliveries,
        world.faults,
        world.failures,
    )


class Run:
    """The phases of a run."""

    def __init__(self, world: World, network: Network, steps: int, *, interrupts: bool = False) -> None:
        self.world = world
        self.network = network
        self.seconds = 0.0
        self._began = world.now
        self.steps = steps
        self.swarm = draw_swarm(world)
        if interrupts:
            self.swarm.kinds = ["interrupt"]
            self.swarm.rate = 0.05
            self.swarm.weather.yields = 0.5
        self.shadow = Shadow(world)
        self.crew = Crew(world, network, self.shadow, draw_plan(world), DEEDS, is_slow=self.swarm.is_slow)
        self.broker = Broker(world, network, self.swarm.limits)
        self.watch = Watch(self.broker)
        self.chaos = Chaos(world, self.crew, self.broker, self.swarm)
        network.weather = self.swarm.weather

    def all(self) -> None:
        world = self.world
        self.broker.start()
        self.safety()
        if world.failures:
            return
        if world.chance(0.15):
            self.sudden_end()
        else:
            self.liveness()

    def safety(self) -> None:
        world, chaos, swarm = self.world, self.chaos, self.swarm
        random, step, rate = world.random, world.step, swarm.rate
        failures = world.failures
        for index in range(self.steps):
            if not index % KEEP_UP:
                chaos.keep_up()
                if failures:
                    return
            if rate and random() < rate:
                chaos.strike()
            step()

    def liveness(self) -> None:
        world, network, broker = self.world, self.network, self.broker
        self.chaos.calm()
        world.note("calm")
        # Those that wait for ever may hold every connection, and nobody could wake them.
        broker.desk.limits = replace(broker.desk.limits, max_connections=1024)
        self.crew.is_draining = True
        waker = Process(world, "waker")
        waker.on_idle = network.ended
        self.crew.ends_broker = False
        others = self._clients(waker)
        waker.spawn(lambda: self._wake_all(waker), "waker")
        self._until(lambda: not any(each.is_alive for each in others) and not waker.is_alive, "clients do not end")
        world.note("drain")
        drainer = Process(world, "drainer")
        drainer.on_idle = network.ended
        drainer.spawn(lambda: self._drain(drainer), "drainer")
        self._until(lambda: not drainer.is_alive, "messages are left")
        if world.failures:
            return
        self._account()
        self._until(lambda: not broker.desk.connections, "connections are left")
        self.watch.everything()
        if broker.desk.sessions:
            raise Violation("sessions are left")
        stopper = Process(world, "stopper")
        stopper.on_idle = network.ended
        stopper.spawn(lambda: self._stop(stopper), "stopper")
        self._until(lambda: broker.ended is not None and not stopper.is_alive, "the broker does not end")
        self._nothing_is_left()

    def sudden_end(self) -> None:
        """The broker dies, or is told to stop, in the middle of everything: every call must come back."""
        world, crew, broker = self.world, self.crew, self.broker
        crew.ends_broker = True
        others = self._clients()
        if world.chance(0.5):
            world.note("the broker is killed")
            broker.kill(world.pick((0.0, 0.05)))
        else:
            world.note("the broker is told to stop")
            broker.loop.endings.reason = "it was stopped by SIGTERM"
            broker.process.resume()
            self.network.selectors[0].interrupt()
        crew.is_draining = True
        self.chaos.calm()
        self._until(lambda: not any(each.is_alive for each in others), "clients do not end")
        self._until(lambda: broker.ended is not None, "the broker does not end")
        self._nothing_is_left()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _clients(self, *but: Process) -> list[Process]:
        aside = (self.broker.process, *but)
        return [each for each in self.world.processes if each.is_alive and each not in aside]

    def _until(self, holds: Callable[[], bool], else_what: str) -> None:
        world = self.world
        limit = world.now + LONGEST_DRAIN_S
        while not holds():
            if world.failures:
                raise Stopped
            if not world.step():
                if holds():
                    return
                raise Violation(f"{else_what}: nothing can go on, and nothing is due; {world.waiting()}")
            if world.now > limit:
                raise Violation(f"{else_what} within {LONGEST_DRAIN_S:g} s; {world.waiting()}")

    def _wake_all(self, process: Process) -> None:
        """Publish until nobody waits any more who could wait for ever."""
        world, plan, crew = self.world, self.crew.plan, self.crew
        client = Client(crew, process, proxy_in(process))
        while self._clients(process):
            is_full = False
            for topic in plan.topics:
                for kind in KINDS:
                    crew.next_key += 1
                    key = crew.next_key
                    sent = [Sent(key, topic, payload_of(key, 0), {"kind": kind}, MessagePriority.LOW, 0)]
                    self.shadow.publishing(sent)
                    try:
                        message = client.broker.publish(
                            topic, sent[0].payload, {"kind": kind}, priority=sent[0].priority
                        )
                    except (QueueFull, UnknownTopic) as error:
                        self.shadow.refused(sent)
                        is_full = is_full or isinstance(error, QueueFull)
                    except LimitReached:
                        pass  # until others end
                    else:
                        self.shadow.published(sent, message.sequence)
            if is_full:
                for subscription in self.broker.engine.all_subscriptions():
                    with suppress(SubscriptionBusy, UnknownSubscription):
                        self._take(client, subscription, 0.0)
            world.sleep(1.0)

    def _drain(self, process: Process) -> None:
        client = Client(self.crew, process, proxy_in(process))
        for subscription in self.broker.engine.all_subscriptions():
            while not self._take(client, subscription, 1.0):
                pass
        client.broker.close()

    def _take(self, client: Client, subscription: Subscription, timeout: float) -> bool:
        """Take and ack what a subscription has; whether nothing is there."""
        shadow = self.shadow
        topic, name = subscription.topic, subscription.name
        handle = client.broker.subscription(topic, name)
        sub = shadow.watched.get(subscription.number)
        if sub is None:
            accepts = self.crew.plan.settings.get((topic, name), (None, None))[0]
            sub = shadow.subscribed(subscription.number, topic, name, accepts, subscription.settings)
            sub.ended = True  # when it began is not known
        epoch = client.process.epoch
        deliveries: list[Delivery] = handle.poll("drainer", max_messages=50, timeout=timeout)
        shadow.handed(sub, deliveries, client.process, epoch, limit=50, member="drainer")
        for delivery in deliveries:
            asked = shadow.settling(sub, delivery.message.sequence, delivery.token, ack=True)
            shadow.settled(sub, delivery.message.sequence, asked, answer=delivery.ack(), ack=True)
        stats = handle.stats()
        return not stats.backlog and not stats.in_flight

    def _account(self) -> None:
        for sub in self.shadow.watched.values():
            subscription = self.broker.engine.by_number(sub.number)
            if subscription is None:
                if not sub.ended:
                    raise Violation(f"{sub.topic}/{sub.name} is gone, and nobody ended it")
                continue
            if sub.ended:
                continue
            stats = subscription.stats(None)
            letters = {record.sequence for record in subscription.dead_letters(None, 0)}
            self.shadow.account(sub, letters, stats.acked, stats.accepted)

    def _stop(self, process: Process) -> None:
        broker = proxy_in(process)
        broker._stop()
        try:
            broker.topics()
        except BrokerGone:
            broker.close()
        else:
            raise Violation("a broker that was stopped answers")

    def _nothing_is_left(self) -> None:
        network = self.network
        self.seconds = self.world.now - self._began
        while self.world.step():
            pass
        if network.open_ends or network.pidfds:
            raise Violation(f"left open: {[end.name for end in network.open_ends]}, {list(network.pidfds)}")


class Stopped(Violation):
    """A failure was noted already."""
