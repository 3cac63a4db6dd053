"""Defects that are planted into the product, to show that a simulation finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from mpbroker.engine import Subscription
from mpbroker.engine.places import Places
from mpbroker.engine.room import Line
from mpbroker.process.desk import Desk
from mpbroker.process.frames import Granted
from mpbroker.process.loop import Loop
from mpbroker.process.presence import Session
from mpbroker.process.sessions import Sessions
from mpbroker.process.waiting import Janitor

Patch = pytest.MonkeyPatch


def nobody_is_served_after_a_death(patch: Patch) -> None:
    """What a dead process held is ready again, and those that wait for it are not told."""
    end: Any = Sessions._end

    def ends(self: Any, *args: Any, **options: Any) -> None:
        self._desk.changed = lambda _: None
        try:
            end(self, *args, **options)
        finally:
            del self._desk.changed

    patch.setattr(Sessions, "_end", ends)


def the_answer_before_is_undone(patch: Patch) -> None:
    """An interrupted call takes back what the call before it was given, and answered for."""
    replace: Any = Sessions._replace

    def replaces(self: Any, session: Any, peer: Any, now: float) -> None:
        peer.answered -= 1
        replace(self, session, peer, now)

    patch.setattr(Sessions, "_replace", replaces)


def an_answer_goes_to_a_neighbour(patch: Patch) -> None:
    """Now and then a hand-over is sent on the wrong connection."""
    send: Any = Loop._send
    count = 0

    def sends(self: Any, link: Any, reply: Any) -> None:
        nonlocal count
        if type(reply) is Granted and reply.grants:
            count += 1
            others = [each for each in self._links.values() if each is not link and not each.session]
            if count % 50 == 0 and others:
                link = others[0]
        send(self, link, reply)

    patch.setattr(Loop, "_send", sends)


def the_next_call_reads_the_interrupted_ones_answer(patch: Patch) -> None:
    """An interrupted call leaves its connection to the next one."""

    def replaces(self: Any, channel: Any) -> None:
        self.put(channel)

    patch.setattr(Session, "replace", replaces)


def a_lease_that_ends_earlier_is_not_noticed(patch: Patch) -> None:
    """Once it knows a time, the janitor learns of no earlier one."""
    arm: Any = Janitor.arm

    def arms(self: Any, subscription: Any) -> None:
        if self._timers.when(subscription.number) is None:
            arm(self, subscription)

    patch.setattr(Janitor, "arm", arms)


def a_dead_process_keeps_what_it_holds(patch: Patch) -> None:
    """Now and then the end of a process gives nothing back."""
    end_owner: Any = Subscription.end_owner
    count = 0

    def ends(self: Any, *args: Any, **options: Any) -> int:
        nonlocal count
        count += 1
        return 0 if count % 5 == 0 else int(end_owner(self, *args, **options))

    patch.setattr(Subscription, "end_owner", ends)


def a_message_is_lost(patch: Patch) -> None:
    """One copy of some that are given back is counted as acked instead."""
    back: Any = Places.give_back
    count = 0

    def gives(self: Any, lease: Any, mask: int) -> None:
        nonlocal count
        count += 1
        if count % 5 == 0 and lease.left == 1:
            self.ack(lease, mask.bit_length() - 1)
        else:
            back(self, lease, mask)

    patch.setattr(Places, "give_back", gives)


def a_copy_has_two_holders(patch: Patch) -> None:
    """Some of what is handed over stays ready, too."""
    from mpbroker.engine.batch import Run

    grant: Any = Places.grant
    count = 0

    def grants(self: Any, run: Any, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count % 40 == 0:
            self.ready.put_back(Run(run.batch, run.start, run.stop, run.attempts, True))
            self._accepted += run.stop - run.start
        return grant(self, run, *args)

    patch.setattr(Places, "grant", grants)


def a_poll_that_times_out_is_forgotten(patch: Patch) -> None:
    """Some polls are never answered when their time has come."""
    time_out: Any = Desk.time_out
    count = 0

    def times_out(self: Any, parked: Any) -> None:
        nonlocal count
        count += 1
        if count % 3:
            time_out(self, parked)

    patch.setattr(Desk, "time_out", times_out)


def a_publish_is_not_told_of_room(patch: Patch) -> None:
    """Whoever is first in line is not woken now and then."""
    wake: Any = Line.wake
    count = 0

    def wakes(self: Any) -> None:
        nonlocal count
        count += 1
        if count % 3:
            wake(self)

    patch.setattr(Line, "wake", wakes)


DEFECTS: Final[tuple[Callable[[Patch], None], ...]] = (
    nobody_is_served_after_a_death,
    the_answer_before_is_undone,
    an_answer_goes_to_a_neighbour,
    the_next_call_reads_the_interrupted_ones_answer,
    a_lease_that_ends_earlier_is_not_noticed,
    a_dead_process_keeps_what_it_holds,
    a_message_is_lost,
    a_copy_has_two_holders,
    a_poll_that_times_out_is_forgotten,
    a_publish_is_not_told_of_room,
)
