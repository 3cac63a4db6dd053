"""What must hold inside the broker whenever its loop is about to wait: read from the structures, by brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Final

from mpbroker.engine import Subscription, invariants
from mpbroker.engine.leases import offsets
from mpbroker.process.clients import Parked, Stage
from mpbroker.process.desk import AnyParked
from mpbroker.process.frames import Reply
from tests.simulation.broker import Broker
from tests.simulation.world import Violation

EVERY: Final = 64
"""Waits of the loop between two looks at everything; what was touched is looked at each time."""

SMALL: Final = 64
"""Copies up to which a subscription that was touched is looked at each time; larger ones are as often as they are
small, so that looking costs the same."""


class Watch:
    """Looks at one broker. looks: how often it did."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._touched: dict[int, Subscription] = {}
        self.looks = 0
        self._owed = 0
        self._until: dict[int, float] = {}  # when whoever waits has waited long enough, by connection
        desk = broker.desk
        serve: Callable[[Subscription, float], None] = desk.serve

        def watched(subscription: Subscription, now: float) -> None:
            self._touched[subscription.number] = subscription
            serve(subscription, now)

        park: Callable[[Parked, float, float | None], Reply | None] = desk.park

        def parked(call: Parked, now: float, timeout: float | None) -> Reply | None:
            refused = park(call, now, timeout)
            if refused is None:
                self._until[call.connection.id] = inf if timeout is None else now + timeout
            return refused

        desk.serve = watched  # type: ignore[method-assign]
        desk.park = parked  # type: ignore[assignment,method-assign]
        broker.network.on_select = self._about_to_wait

    def _about_to_wait(self, timeout: float | None) -> None:
        self.looks += 1
        touched, self._touched = self._touched, {}
        if self._broker.loop.endings.reason is not None:
            return
        everything = self.looks % EVERY == 0
        try:
            for subscription in touched.values():
                size = subscription._places.size
                self._owed += SMALL
                if size <= SMALL or self._owed >= size:
                    self._owed = 0
                    self._subscription(subscription)
            if everything:
                self.everything()
                self._wakes_in_time(timeout)
            self._nobody_waits_for_what_is_there()
        except AssertionError as error:
            # Not raised: the loop would take it for its own crash, and tell everybody first.
            self._broker.world.fail(str(error))

    # -- each ---------------------------------------------------------------------------------------------------------

    def _subscription(self, subscription: Subscription) -> None:
        if subscription.ended:
            return
        invariants.check_subscription(subscription)
        owners = {session.owner for session in self._broker.desk.sessions.values()}
        held = set(subscription._places.leases._by_owner)
        if not held <= owners:
            raise Violation(f"{subscription.subscription_id}: copies are held by dead processes {held - owners}")
        if subscription.dispatcher is not None and subscription._dispatcher_owner not in owners:
            raise Violation(f"{subscription.subscription_id} is dispatched by a dead process")

    def _nobody_waits_for_what_is_there(self) -> None:
        for subscription in self._broker.desk.polls.subscriptions():
            if subscription.ended or subscription._places.ready.count:
                raise Violation(
                    f"somebody waits for {subscription.subscription_id}, "
                    f"where {subscription._places.ready.count} copies are ready, ended: {subscription.ended}"
                )
        for subscription in self._broker.desk.idles.subscriptions():
            if subscription.ended or not subscription._places.size:
                raise Violation(f"somebody waits for {subscription.subscription_id} to be idle, which it is")
        for parked in self._broker.desk.publishes.values():
            waiter = parked.waiter
            rooms = [line._max_queue - line._places.size for line in waiter.lines if line.waiters[0] is waiter]
            if len(rooms) == len(waiter.lines) and waiter.count <= min(rooms):
                raise Violation(f"connection {parked.connection.id} waits for room, and there is some")

    # -- all ----------------------------------------------------------------------------------------------------------

    def everything(self) -> None:
        broker = self._broker
        for subscription in broker.engine.all_subscriptions():
            self._subscription(subscription)
        self._books()
        self._links()
        due, said = min(self._times(), default=None), broker.sessions.next_due()
        if due != said:
            raise Violation(f"something is due at {due}, and next_due says {said}")

    def _times(self) -> Iterator[float]:
        desk = self._broker.desk
        yield from (when for when, _ in desk.timers._times.values())
        for subscription in self._broker.engine.all_subscriptions():
            places = subscription._places
            for lease in places.leases.by_number.values():
                for offset in offsets(lease.open):
                    if lease.deadline_of(offset) < inf:
                        yield lease.deadline_of(offset)
            due = places.delayed.next_due()
            if due is not None:
                yield due

    def _now(self) -> float:
        """By the loop's clock, which leaves out the time in which it was stopped."""
        return self._broker.world.now - self._broker.loop._clock.lost

    def _wakes_in_time(self, timeout: float | None) -> None:
        due = min(self._times(), default=None)
        now = self._now()
        if due is not None and (timeout is None or now + timeout > max(due, now) + 1e-6):
            raise Violation(f"something is due at {due}, and the loop waits {timeout} s at {now}")

    def _books(self) -> None:
        """Connections, sessions, waiting calls and times know of each other."""
        desk = self._broker.desk
        for session in desk.sessions.values():
            if desk.connections.get(session.presence.id) is not session.presence:
                raise Violation(f"session {session.owner} has lost its presence")
            for number, connection in session.connections.items():
                if connection.number != number or connection.session is not session:
                    raise Violation(f"connection {connection.id} is in the wrong session")
        for connection in desk.connections.values():
            session_of = connection.session
            if session_of is not None and desk.sessions.get(session_of.id) is not session_of:
                raise Violation(f"connection {connection.id} belongs to a process that ended")
            if (connection.stage is Stage.OPEN) == (connection.id in self._broker.sessions._shaking):
                raise Violation(f"connection {connection.id} is open and in its handshake, or neither")
        self._waiting()

    def _waiting(self) -> None:
        """Who waits is in line, for something that exists, and not longer than it was to."""
        desk, now = self._broker.desk, self._now()
        self._until = {number: when for number, when in self._until.items() if number in desk.connections}
        waiting = 0
        for connection in desk.connections.values():
            if connection.parked is not None:
                waiting += 1
                until = self._waits_until(connection.parked)
                if until < now:
                    raise Violation(f"connection {connection.id} was to wait until {until}")
        if waiting != desk.waiting:
            raise Violation(f"{waiting} connections wait, and {desk.waiting} calls")
        for subscription in (*desk.polls.subscriptions(), *desk.idles.subscriptions()):
            if self._broker.engine.by_number(subscription.number) is not subscription:
                raise Violation(f"somebody waits for {subscription.subscription_id}, which ended")

    def _waits_until(self, parked: AnyParked) -> float:
        if isinstance(parked, Parked):
            return self._until[parked.connection.id]
        until = self._broker.desk.timers.when(parked.connection.id)
        if until is None:
            raise Violation(f"the publish of connection {parked.connection.id} waits for ever")
        return until

    def _links(self) -> None:
        """The loop reads what it should."""
        loop, desk = self._broker.loop, self._broker.desk
        for number, link in loop._links.items():
            if link.unsent and not link.events & 2:
                raise Violation(f"connection {number} has {link.unsent} bytes to send, and nobody waits to")
            is_behind = link.held and (link.begun or len(link.pending) > 0)
            if link.held != (number in desk.publishes):
                raise Violation(f"connection {number} is held: {link.held}")
            if (not link.events) != is_behind and number not in loop._leaving:
                raise Violation(f"nobody looks at connection {number}")
            if number not in desk.connections and number not in loop._leaving:
                raise Violation(f"connection {number} is open, and nobody knows it")
            is_later = link.unsent or link.held or number in loop._busy or number in loop._leaving
            if link.pending and not is_later:
                raise Violation(f"calls of connection {number} are left lying")
        for number in desk.connections:
            if number not in loop._links:
                raise Violation(f"connection {number} is known, and closed")
