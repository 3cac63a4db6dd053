"""Very many blocks through real processes, whose readers keep views for as long as they like, and that die anywhere.

Publishers and readers are killed and stopped; leases end, messages come back, children look at what they inherited; and
whoever looks at a block sees its bytes and no other's. In the end every accepted message is finished, the arena is
empty, and the broker has as many descriptors as before.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from mpbroker import BrokerManager, SubscriptionAPI
from mpbroker.process.proxy import BrokerProxy
from tests.prove import arena_roles as roles
from tests.prove.arena_roles import Signs
from tests.prove.part import Outcome
from tests.prove.points_scene import Missed, wait_until
from tests.prove.points_trap import is_stopped

AT_LEAST: Final = 1_000_000
"""Publishes, however long they take, in the long form."""

ROLES: Final = (roles.calls, roles.streams, roles.reads, roles.reads, roles.consumes)

_ARENA: Final = 192 << 20
_LIMIT_S: Final = 120.0
_LOOK_S: Final = 0.1
_STOPPED_S: Final = 1.5 * roles.LEASE_S
_FORK: Final = multiprocessing.get_context("fork")


class Cast:
    """The processes of all roles; one that is killed has a successor."""

    def __init__(self, broker: BrokerProxy, signs: Signs, rng: random.Random) -> None:
        self._broker = broker
        self._signs = signs
        self._rng = rng
        self._stopped: dict[int, float] = {}
        self.killed = self.stopped = 0
        self.members = [self._start(role) for role in ROLES]

    def _start(self, role: Callable[..., None]) -> Any:
        process = _FORK.Process(target=roles.live, args=(role, self._broker, self._signs, self._rng.randrange(2**31)))
        process.start()
        return process

    def strike(self) -> None:
        """Kill or stop somebody; continue who was stopped long enough."""
        now = time.monotonic()
        for at, since in list(self._stopped.items()):
            if now - since >= _STOPPED_S:
                os.kill(self.members[at].pid, signal.SIGCONT)
                del self._stopped[at]
        at = self._rng.randrange(len(self.members))
        if at in self._stopped or self._rng.random() < 0.8:
            return
        victim = self.members[at]
        if self._rng.random() < 0.5:
            self.stopped += 1
            os.kill(victim.pid, signal.SIGSTOP)
            wait_until("the stop", lambda: is_stopped(victim.pid))
            self._stopped[at] = now
        else:
            self.killed += 1
            victim.kill()
            victim.join(_LIMIT_S)
            victim.close()
            self.members[at] = self._start(ROLES[at])

    def go_on(self) -> None:
        """Nobody is stopped any more."""
        for at in self._stopped:
            os.kill(self.members[at].pid, signal.SIGCONT)
        self._stopped.clear()

    def end(self, chosen: tuple[Callable[..., None], ...]) -> list[str]:
        """Wait for the end of some roles; what was wrong with it."""
        wrong = []
        for role, member in zip(ROLES, self.members, strict=True):
            if role in chosen:
                member.join(_LIMIT_S)
                if member.exitcode != 0:
                    wrong.append(f"{role.__name__} ended with {member.exitcode}")
        return wrong

    def close(self) -> None:
        for member in self.members:
            member.kill()
            member.join(_LIMIT_S)
            member.close()


def run(seconds: float, seed: int, *, quick: bool) -> Outcome:
    """Publish for that long, and until it was often enough unless ``quick``."""
    outcome = Outcome("arena")
    with tempfile.TemporaryDirectory(prefix="mpa-") as name:
        signs = Signs(Path(name))
        with BrokerManager(
            directory=Path(name) / "brokers",
            transport="ring",
            arena_threshold=roles.SMALLEST,
            max_arena_bytes=_ARENA,
            max_client_arena_bytes=_ARENA // 2,
            arena_timeout=_LIMIT_S,
        ) as manager:
            try:
                _play(outcome, manager, signs, random.Random(seed), seconds, 0 if quick else AT_LEAST)
            except Missed as missed:
                outcome.failures.append(f"{missed}; {manager.broker()._status()}")
            except Exception:
                outcome.failures.append(traceback.format_exc())
            manager.broker().close()
        outcome.failures += signs.complaints()[:5]
    return outcome


def _play(
    outcome: Outcome, manager: BrokerManager, signs: Signs, rng: random.Random, seconds: float, at_least: int
) -> None:
    broker = manager.broker()
    broker.create_topic(roles.TOPIC)
    work, copies = [
        broker.subscribe(roles.TOPIC, name, ack_timeout=roles.LEASE_S, max_deliveries=1_000_000)
        for name in (roles.WORK, roles.COPIES)
    ]
    process = psutil.Process(manager.pid)
    descriptors = process.num_fds()
    cast = Cast(broker, signs, rng)
    pause = threading.Event()
    began = time.monotonic()
    try:
        while time.monotonic() - began < seconds or work.stats().accepted < at_least:
            pause.wait(_LOOK_S)
            cast.strike()
            if signs.complaints():
                return
        cast.go_on()
        signs.say("published")
        outcome.failures += cast.end((roles.calls, roles.streams))
        wait_until("the last ack", lambda: _is_over(work) and _is_over(copies))
        signs.say("read")
        outcome.failures += cast.end((roles.reads, roles.consumes))
    finally:
        took = time.monotonic() - began
        cast.close()
    stats = [each.stats() for each in (work, copies)]
    for each in stats:
        if each.accepted != each.acked or each.dead:
            outcome.failures.append(f"not every message was finished: {each}")
    wait_until("an empty arena", lambda: broker._status().limits["arena_bytes"][0] == 0)
    left = [each for each in broker._status().arena if each.used or each.pinned or each.reserved]
    if left:
        outcome.failures.append(f"left in the arena: {left}")
    wait_until("the end of all descriptors", lambda: process.num_fds() <= descriptors)
    outcome.figures = {
        "blocks published": stats[0].accepted,
        "looks at blocks": sum(each.deliveries for each in stats),
        "processes killed": cast.killed,
        "processes stopped": cast.stopped,
        "deliveries that came back": sum(each.redelivered for each in stats),
        "blocks a second": round(stats[0].accepted / took),
    }


def _is_over(subscription: SubscriptionAPI) -> bool:
    stats = subscription.stats()
    return not (stats.backlog or stats.in_flight)
