"""Defects of the broker process and of its clients; rounds of real processes show each.

In the broker process ("broker") they are planted by `planted`; in clients ("client") before these are forked. In calm
rounds nobody is struck, and in quiet ones little is published either; in struck ones workers are killed and fork, in
idle ones that happens while they wait. In killed and forked ones the few there are are busy, and only that is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from mpbroker.deliveries import Delivery
from mpbroker.engine.batch import Run
from mpbroker.engine.places import Places
from mpbroker.engine.subscription import Subscription
from mpbroker.messages import Message
from mpbroker.process import desk, frames, verbs
from mpbroker.process.acts import Act, Change
from mpbroker.process.clients import Connection, Session
from mpbroker.process.desk import PUBLISH_REFUSALS, Desk
from mpbroker.process.encoded import EncodedBatch
from mpbroker.process.frames import Granted, Reply
from mpbroker.process.handle import SubscriptionHandle
from mpbroker.process.link import Link
from mpbroker.process.loop import Loop
from mpbroker.process.proxy import BrokerProxy
from mpbroker.process.received import ReceivedBatch
from mpbroker.process.rings import Rings
from mpbroker.process.sessions import Sessions
from mpbroker.process.waiting import Janitor
from mpbroker.shm.link import RingEnd
from mpbroker.shm.ring import Ring
from mpbroker.shm.stream import RingStream
from mpbroker.testing.checker import Law
from tests.prove.bugs.plant import bug, every, instead

CALM_BROKER = "calm broker"
STRUCK_BROKER = "struck broker"
KILLED_BROKER = "killed broker"
FORKED_BROKER = "forked broker"
QUIET_BROKER = "quiet broker"
IDLE_BROKER = "idle broker"
CALM_CLIENT = "calm client"

# -- who is there ------------------------------------------------------------------------------------------------------


@bug(KILLED_BROKER, Law.ENDED)
def death_not_noticed() -> Iterator[None]:
    """what a killed worker held stays held."""

    def make(end_owner: Any) -> Any:
        def ended(self: Subscription, owner: object, now: float, *, died: bool, error: str = "") -> int:
            count: int = 0 if died else end_owner(self, owner, now, died=died, error=error)
            return count

        return ended

    with instead(Subscription, "end_owner", make):
        yield


@bug(KILLED_BROKER, Law.ATTEMPTS)
def death_not_counted() -> Iterator[None]:
    """the attempt of a killed worker does not count."""

    def make(end: Any) -> Any:
        def ended(self: Sessions, session: Session, now: float, *, died: bool, error: str) -> None:
            end(self, session, now, died=died and False, error=error)

        return ended

    with instead(Sessions, "_end", make):
        yield


@bug(FORKED_BROKER, Law.ATTEMPTS)
def goodbye_counted() -> Iterator[None]:
    """what a process held that left in order comes back as from a dead one."""

    def make(end: Any) -> Any:
        def ended(self: Sessions, session: Session, now: float, *, died: bool, error: str) -> None:
            end(self, session, now, died=died or True, error=error)

        return ended

    with instead(Sessions, "_end", make):
        yield


@bug(IDLE_BROKER, Law.ENDED, Law.INNOCENT)
def poll_of_the_dead_is_served() -> Iterator[None]:
    """a waiting poll is served after its process has died."""

    def make(forget: Any) -> Any:
        def forgotten(self: Sessions, peer: Connection) -> None:
            parked, peer.parked = peer.parked, None
            forget(self, peer)
            peer.parked = parked

        return forgotten

    with instead(Sessions, "_forget", make), instead(Desk, "unpark", _unpark_gently):
        yield


def _unpark_gently(unpark: Any) -> Any:
    return lambda self, parked: unpark(self, parked) if parked.connection.parked is not None else None


@bug(KILLED_BROKER, Law.ORDER)
def killer_in_company() -> Iterator[None]:
    """what comes back from a dead worker is handed over with others."""

    def make(failed: Any) -> Any:
        def runs(self: Places, *rest: Any) -> list[Run]:
            made: list[Run] = failed(self, *rest)
            for run in made:
                run.alone = False
            return made

        return runs

    with instead(Places, "_failed", make):
        yield


# -- calls and answers -------------------------------------------------------------------------------------------------


@bug(CALM_BROKER, Law.WAITING)
def missed_wake_up() -> Iterator[None]:
    """a publish does not wake the polls that wait."""
    strikes = every(2)
    with instead(Desk, "changed", lambda changed: lambda self, which: None if strikes() else changed(self, which)):
        yield


@bug(QUIET_BROKER, Law.WAITING)
def due_unnoticed() -> Iterator[None]:
    """what is due again does not wake the polls that wait."""
    with instead(Janitor, "arm", lambda _: lambda self, subscription: None):
        yield


@bug(CALM_BROKER, Law.HELD, Law.TOKENS, Law.ORDER)
def answer_of_another_poll() -> Iterator[None]:
    """a poll is answered with what another one of its subscription got."""
    strikes = every(5)
    last: dict[int, Granted] = {}

    def make(hand_over: Any) -> Any:
        def handed(self: Desk, connection: Connection, subscription: Subscription, *rest: Any) -> Granted:
            granted: Granted = hand_over(self, connection, subscription, *rest)
            if granted.grants and strikes():
                return last.get(subscription.number, granted)
            if granted.grants:
                last[subscription.number] = granted
            return granted

        return handed

    with instead(Desk, "hand_over", make):
        yield


@bug(CALM_BROKER, Law.GENUINE)
def publish_applied_twice() -> Iterator[None]:
    """a publish is applied twice."""
    strikes = every(5)

    def published(where: Desk, connection: Connection, request: frames.Publish, now: float) -> Act:
        act = verbs.publish(where, connection, request, now)

        def twice() -> Reply | None:
            act()
            return act()

        return twice if strikes() else act

    honest = verbs.VERBS[frames.Publish]
    verbs.VERBS[frames.Publish] = Change(published, PUBLISH_REFUSALS)
    try:
        yield
    finally:
        verbs.VERBS[frames.Publish] = honest


@bug(CALM_BROKER, Law.ENDED)
def answer_not_sent() -> Iterator[None]:
    """an answer is not sent."""
    strikes = every(60)

    def make(send: Any) -> Any:
        def sent(self: Loop, link: Link, reply: Any) -> None:
            if type(reply) is not Granted or not strikes():
                send(self, link, reply)

        return sent

    with instead(Loop, "_send", make):
        yield


@bug(CALM_BROKER, Law.INNOCENT)
def connection_closed() -> Iterator[None]:
    """the broker closes a connection that did nothing wrong."""
    strikes = every(60)

    def make(send: Any) -> Any:
        def sent(self: Loop, link: Link, reply: Any) -> None:
            send(self, link, reply)
            if type(reply) is Granted and strikes():
                self._closed(link)

        return sent

    with instead(Loop, "_send", make):
        yield


@bug(CALM_BROKER, Law.FIGURES)
def figures_mixed_up() -> Iterator[None]:
    """the status of a subscription has two figures in each other's place."""

    def make(figures: Any) -> Any:
        def mixed(stats: Any) -> list[int]:
            values = [*figures(stats)]
            values[1], values[8] = values[8], values[1]
            return values

        return mixed

    with instead(verbs, "figures", make):
        yield


# -- what travels ------------------------------------------------------------------------------------------------------


@bug(CALM_BROKER, Law.GENUINE)
def part_of_a_batch_shifted() -> Iterator[None]:
    """part of a batch goes out with the payloads one further on."""

    def make(part: Any) -> Any:
        def cut(self: EncodedBatch, start: int, stop: int) -> bytes:
            shift = int(stop < self.count)
            found: bytes = part(self, start + shift, stop + shift)
            return found

        return cut

    with instead(EncodedBatch, "_part", make):
        yield


@bug(STRUCK_BROKER, Law.ORDER)
def flag_lost_on_the_wire() -> Iterator[None]:
    """a redelivery is not marked on the wire."""

    def make(grant: Any) -> Any:
        return lambda lease: msgspec.structs.replace(grant(lease), redelivered=False)

    with instead(desk, "grant", make):
        yield


# -- clients -----------------------------------------------------------------------------------------------------------


@bug(CALM_CLIENT, Law.GENUINE)
def publish_sent_again() -> Iterator[None]:
    """a client sends a publish again, as after a lost connection."""
    strikes = every(5)

    def make(publish: Any) -> Any:
        def published(self: BrokerProxy, *rest: Any) -> list[Message]:
            if strikes():
                publish(self, *rest)
            messages: list[Message] = publish(self, *rest)
            return messages

        return published

    with instead(BrokerProxy, "_publish", make):
        yield


@bug(CALM_CLIENT, Law.ENDED)
def delivery_dropped() -> Iterator[None]:
    """a client loses the last delivery of a poll."""
    strikes = every(5)

    def make(poll: Any) -> Any:
        def polled(self: SubscriptionHandle, *rest: Any) -> list[Delivery]:
            deliveries: list[Delivery] = poll(self, *rest)
            return deliveries[:-1] if strikes() else deliveries

        return polled

    with instead(SubscriptionHandle, "_poll", make):
        yield


@bug(CALM_CLIENT, Law.GENUINE)
def payload_of_the_neighbour() -> Iterator[None]:
    """a client opens the payload of another message of the batch."""
    strikes = every(20)

    def make(message: Any) -> Any:
        def opened(self: ReceivedBatch, index: int) -> Message:
            found: Message = message(self, index)
            return replace(found, payload=message(self, index - 1).payload) if index and strikes() else found

        return opened

    with instead(ReceivedBatch, "message", make):
        yield


@bug(CALM_CLIENT, Law.SETTLED, Law.ENDED)
def ack_of_the_next() -> Iterator[None]:
    """a client acks the id after the one it was told."""
    strikes = every(5)

    def make(ack: Any) -> Any:
        def acked(self: SubscriptionHandle, message_ids: Sequence[str], member: str) -> list[bool]:
            if strikes():
                message_ids = [*message_ids[:-1], f"m{int(message_ids[-1][1:]) + 1}"]
            answers: list[bool] = ack(self, message_ids, member)
            return answers

        return acked

    with instead(SubscriptionHandle, "_ack_ids", make):
        yield


@bug(CALM_CLIENT, Law.ENDED, Law.HELD)
def ack_not_sent() -> Iterator[None]:
    """a client says True of an ack that it did not send."""
    strikes = every(5)

    def make(ack: Any) -> Any:
        def acked(self: SubscriptionHandle, message_ids: Sequence[str], member: str) -> list[bool]:
            answers: list[bool] = [True] * len(message_ids) if strikes() else ack(self, message_ids, member)
            return answers

        return acked

    with instead(SubscriptionHandle, "_ack_ids", make):
        yield


@bug(CALM_CLIENT, Law.SETTLED)
def late_ack_succeeds() -> Iterator[None]:
    """a client is told True whatever the broker answered."""

    def make(answer: Any) -> Any:
        def answered(self: SubscriptionHandle, request: Any) -> bool:
            answer(self, request)
            return True

        return answered

    with instead(SubscriptionHandle, "_answer", make):
        yield


@bug(CALM_CLIENT, Law.ATTEMPTS)
def release_sent_as_nack() -> Iterator[None]:
    """a client's release arrives as a nack."""

    def make(_: Any) -> Any:
        return lambda self, token: self._nack_token(token, 0.0, "", None)

    with instead(SubscriptionHandle, "_release_token", make):
        yield


@bug(CALM_CLIENT, Law.TIMES)
def delay_not_sent() -> Iterator[None]:
    """a client's nack arrives without its delay."""

    def make(nack: Any) -> Any:
        return lambda self, message_id, member, _delay, error, now: nack(self, message_id, member, 0.0, error, now)

    with instead(SubscriptionHandle, "_nack_id", make):
        yield


# -- rings -------------------------------------------------------------------------------------------------------------


def _every_elsewhere(times: int) -> Callable[[], bool]:
    """As every, but not in this process: who conducts the round must not wait for ever itself."""
    strikes, own = every(times), os.getpid()
    return lambda: os.getpid() != own and strikes()


@bug(CALM_CLIENT, Law.ENDED)
def bell_not_rung() -> Iterator[None]:
    """a client does not ring for what it put in its ring."""
    strikes = _every_elsewhere(20)
    with instead(RingStream, "_ring_the_bell", lambda ring: lambda self: None if strikes() else ring(self)):
        yield


@bug(CALM_CLIENT, Law.INNOCENT, Law.GENUINE, Law.ENDED)
def ring_read_twice() -> Iterator[None]:
    """a client takes the same bytes out of its ring twice."""
    strikes = _every_elsewhere(20)

    def make(receive: Any) -> Any:
        def received(self: Ring, into: memoryview) -> int:
            count: int = receive(self, into)
            if count and strikes():
                self._head -= count
            return count

        return received

    with instead(Ring, "receive", make):
        yield


@bug(CALM_BROKER, Law.ENDED)
def bell_not_heeded() -> Iterator[None]:
    """the broker hears the bell of a ring and does not look."""
    strikes = every(20)

    def make(rung: Any) -> Any:
        def heard(self: Rings, link: Link, ring: RingEnd) -> None:
            if strikes():
                ring.hear()
            else:
                rung(self, link, ring)

        return heard

    with instead(Rings, "rung", make):
        yield
