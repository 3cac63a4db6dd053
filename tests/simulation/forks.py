"""Forks of simulated client processes: a child that has a copy of everything, of which one thread goes on."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from mpbroker.deliveries import Delivery
from mpbroker.process import connection
from mpbroker.process.channel import Channel
from mpbroker.process.connection import ClientProcess
from mpbroker.process.handle import SubscriptionHandle
from mpbroker.process.presence import Session
from tests.simulation.broker import INCARNATION
from tests.simulation.clients import FOLDER, Client, Held, proxy_in
from tests.simulation.world import Process


def fork(client: Client) -> None:
    """A child that has a copy of everything, of which only the thread that forked goes on."""
    crew, world = client.crew, client.world
    if crew.forks >= crew.plan.most_forks:
        return
    crew.forks += 1
    world.faults["fork"] += 1
    child = Process(world, "child")
    child.on_idle = client.process.on_idle
    inherited = forked_client(client.broker._client, client.process, child)
    for held in client.held:
        held.sub.copies[held.delivery.message.sequence].has_outside = True
    mine = list(client.held) if world.chance(0.3) else []
    delay = world.random() * 0.01

    def live() -> None:
        world.sleep(delay)
        inherited.let_go()
        broker = proxy_in(child)
        twin = Client(crew, child, broker)
        for held in mine:
            # A delivery that was inherited speaks through the child's own connection.
            handle = SubscriptionHandle(broker, held.handle._subscribed, held.handle._retry)
            old = held.delivery
            twin.held.append(
                Held(
                    Delivery(
                        old._batch,
                        old._index,
                        old.attempt,
                        old.redelivered,
                        old.deadline,
                        old.member,
                        old.token,
                        handle,
                    ),
                    held.sub,
                    handle,
                )
            )
        twin.run()

    world.note(f"fork of {child.name}")
    child.spawn(live, "forked")


@dataclass
class Inherited:
    """What a forked child has of its parent's session until it lets go of it."""

    client: ClientProcess
    channels: list[Channel]

    def let_go(self) -> None:
        self.client._after_fork()
        self.channels.clear()


def forked_client(parent: ClientProcess, process: Process, child: Process) -> Inherited:
    folder = FOLDER + child.name
    client = connection.client_process(folder, INCARNATION)
    twins = {id(sock): sock.duplicate(child) for sock in list(process.sockets)}
    channels: list[Channel] = []
    session = parent._session
    if session is not None:
        copy: Any = Session.__new__(Session)
        copy._transport = session._transport
        copy.located, copy.number, copy.left = session.located, session.number, session.left
        copy.finalizer = None
        copy._own = type(session._own)()
        copy._channels = {}
        for channel in [*session._live(), session.presence]:
            twin: Any = twins.get(id(channel.sock))
            if twin is not None and channel.number not in copy._channels:
                made = Channel(twin, channel.number)
                channels.append(made)
                copy._channels[channel.number] = weakref.ref(made)
                if channel is session.presence:
                    copy.presence = made
        client._session = copy
    return Inherited(client, channels)
