"""What simulated client processes do: threads that publish, poll, settle, look, close and fork, drawn from the seed.

Everything goes through the product's own proxies. What is asked and answered is told to the shadow.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mpbroker.deliveries import Delivery
from mpbroker.errors import (
    AccessRefused,
    BrokerGone,
    BrokerNotFound,
    LimitReached,
    MpbrokerError,
    ProtocolViolation,
    UnknownTopic,
)
from mpbroker.errors import SubscriptionConflict as Conflict
from mpbroker.process.handle import SubscriptionHandle
from mpbroker.process.hook import BrokerAddress
from mpbroker.process.proxy import BrokerProxy
from mpbroker.settings import Settings
from tests.simulation.broker import INCARNATION
from tests.simulation.network import Network
from tests.simulation.shadow import Shadow, Watched
from tests.simulation.world import Interrupted, Process, Violation, World

TOPICS: Final = ("orders", "mail", "logs")
NAMES: Final = ("audit", "bill", "ship")
KINDS: Final = ("created", "paid")
FOLDER: Final = "/simulated/"


@dataclass(slots=True)
class Plan:
    """How the clients of a run behave; drawn once.

    deeds: what a client draws from, each as often as it is likely. long_think_s: how long a worker may keep what it
    holds. many: messages of one publish_many at most.
    """

    deeds: list[str]
    settings: dict[tuple[str, str], tuple[str | None, Settings]]
    topics: tuple[str, ...]
    names: tuple[str, ...]
    think_s: float
    long_think: float
    long_think_s: float
    many: int
    payload_bytes: int
    large: float
    by_id: float
    shares_members: bool
    most_forks: int

    @property
    def keeps_names(self) -> bool:
        return not {"resubscribe", "delete_topic"} & set(self.deeds)


@dataclass(slots=True, eq=False)
class Held:
    delivery: Delivery
    sub: Watched
    handle: SubscriptionHandle


@dataclass(eq=False)
class Crew:
    """All clients of a world, and what they have in common.

    deeds: by the names in the plan, and "settle all". is_slow: the transport or the broker may be late for any
    deadline. ends_broker: the broker may be gone.
    """

    world: World
    network: Network
    shadow: Shadow
    plan: Plan
    deeds: dict[str, Callable[[Client], None]]
    calls: int = 0
    is_draining: bool = False
    is_slow: bool = False
    ends_broker: bool = False
    next_key: int = 0
    forks: int = 0

    def spawn(self, threads: int) -> Process:
        """A new client process."""
        process = Process(self.world, "client")
        process.on_idle = self.network.ended
        broker = proxy_in(process)
        for _ in range(threads):
            process.spawn(Client(self, process, broker).run, "client")
        return process

    def is_prompt(self, process: Process) -> bool:
        """Whether nothing was done that makes a call late."""
        return not (process.was_dropped or process.was_paused or self.is_slow)

    def explain(self, process: Process, name: str, error: MpbrokerError) -> None:
        """Raise Violation unless something that was done explains what a call raised."""
        if isinstance(error, BrokerGone):
            if process.closes or self.ends_broker:
                return
        elif isinstance(error, LimitReached):
            return
        elif isinstance(error, (AccessRefused, ProtocolViolation, BrokerNotFound)) and (
            process.was_dropped
            or process.was_paused
            or self.is_slow
            or self.ends_broker
            # Who is turned away may be told in part only, where sends are cut: real sockets take the few bytes whole.
            or self.world.faults["no descriptors left"]
        ):
            process.epoch += 1
            return
        text = "".join(traceback.format_exception(error))
        raise Violation(f"{name} raised {type(error).__name__}: {error}\n{text}") from error


def proxy_in(process: Process) -> BrokerProxy:
    return BrokerProxy(BrokerAddress(FOLDER + process.name, INCARNATION))


class Client:
    """One thread of a client process: makes calls, and explains what they raise."""

    def __init__(self, crew: Crew, process: Process, broker: BrokerProxy) -> None:
        self.crew = crew
        self.world = crew.world
        self.shadow = crew.shadow
        self.plan = crew.plan
        self.process = process
        self.broker = broker
        self.held: list[Held] = []
        self.handles: dict[tuple[str, str], tuple[SubscriptionHandle, Watched]] = {}
        self.member = "worker" if self.plan.shares_members else f"w{self.world.next_number()}"
        self.pushed: tuple[SubscriptionHandle, Watched] | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        world, crew = self.world, self.crew
        deeds = [crew.deeds[name] for name in self.plan.deeds]
        while not crew.is_draining:
            deeds[int(world.random() * len(deeds))](self)
            if world.random() < 0.3:
                self.think()
        if world.chance(0.5):
            crew.deeds["settle all"](self)
        if not self.process.is_exiting:
            self.process.is_exiting = True
            if world.chance(0.6):
                self.exit()

    def think(self) -> None:
        world, plan = self.world, self.plan
        longest = plan.long_think_s if world.chance(plan.long_think) else plan.think_s
        me = world.me()
        me.in_call = True
        try:
            world.sleep(world.random() * longest)
        except Interrupted as error:
            error.__traceback__ = None
        finally:
            me.in_call = False

    def exit(self) -> None:
        """As the interpreter does: what was registered runs, last things first."""
        process = self.process
        process.epoch += 1
        process.closes += 1
        process.closing += 1
        while process.finalizers:
            first = min(process.finalizers)
            process.finalizers.remove(first)
            first[2]()

    def call(self, name: str, ask: Callable[[], Any], *expected: type[Exception]) -> tuple[Any, BaseException | None]:
        """Make one call: its result, and what it raised of what can be expected.

        What nothing explains is a violation.
        """
        world, crew = self.world, self.crew
        crew.calls += 1
        world.note(name)
        me = world.me()
        me.in_call = True
        raised: BaseException
        try:
            result = ask()
        except MpbrokerError as error:
            me.in_call = False
            raised = error
            world.note(f"{name}: {type(error).__name__}")
            if not isinstance(error, expected):
                crew.explain(self.process, name, error)
        except Interrupted as error:
            me.in_call = False
            world.note(f"{name}: interrupted")
            raised = error
        else:
            me.in_call = False
            world.note(f"{name}: ok")
            return result, None
        _forget_frames(raised)
        return None, raised

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def a_subscription(self) -> tuple[SubscriptionHandle, Watched] | None:
        world, plan = self.world, self.plan
        key = (world.pick(plan.topics), world.pick(plan.names))
        found = self.handles.get(key)
        return self.subscribe(*key) if found is None or world.chance(0.02) else found

    def subscribe(self, topic: str, name: str) -> tuple[SubscriptionHandle, Watched] | None:
        accepts, settings = self.plan.settings[topic, name]
        given: dict[str, Any] = {"ack_timeout": settings.ack_timeout, "max_queue": settings.max_queue}
        given["overflow"] = settings.overflow
        if accepts is not None:
            given["filter"] = f'headers.kind = "{accepts}"'
        if settings.retry is not None:
            given["retry"] = settings.retry
        else:
            given["max_deliveries"] = settings.max_deliveries
        if self.plan.keeps_names and (topic, name) in self.handles and self.world.chance(0.1):
            given["ack_timeout"] = settings.ack_timeout + 1.0
            _, error = self.call("subscribe otherwise", lambda: self.broker.subscribe(topic, name, **given), Conflict)
            if error is None:
                raise Violation(f"{topic}/{name} has two settings")
            return None
        handle, error = self.call("subscribe", lambda: self.broker.subscribe(topic, name, **given), UnknownTopic)
        if isinstance(error, UnknownTopic):
            self.call("create_topic", lambda: self.broker.create_topic(topic, exist_ok=True))
        if error is not None:
            return None
        watched = self.shadow.subscribed(handle._number, topic, name, accepts, settings)
        self.handles[topic, name] = handle, watched
        return handle, watched

    def lost(self, sub: Watched) -> None:
        """A handle reaches nothing any more."""
        if not sub.ended and not self.shadow.may_end(sub.topic, sub.name):
            raise Violation(f"{sub.topic}/{sub.name} ({sub.number}) is unknown, and nobody ended it")
        sub.ended = True
        self.handles.pop((sub.topic, sub.name), None)

    def drop_ended(self) -> None:
        self.handles = {key: found for key, found in self.handles.items() if not found[1].ended}


def _forget_frames(error: BaseException) -> None:
    """An error keeps the frames it came through, and those keep connections; its own cycles would be collected later,
    at a moment that is not in the seed.
    """
    left: BaseException | None = error
    while left is not None:
        below = left.__context__
        left.__traceback__ = left.__context__ = left.__cause__ = None
        left = below
