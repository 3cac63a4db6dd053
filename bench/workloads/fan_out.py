"""P5: one array of 8 MiB to eight subscriptions, beside one: what the publisher takes, what the arena, and until all
have it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from bench import ours
from bench.crew import DEADLINE_S, SPAWN, Crew, Gate
from bench.measure import typical
from bench.peers.arrays import Ours, array
from bench.peers.lane import Taken
from bench.terms import Terms
from bench.workload import Contestant, NotHere, Outcome, Side, Target, Workload

MANY: Final = 8

_COUNT: Final = (5, 200)
_FIRST: Final = 5
_TOUCHED_BYTES: Final = 4096
_LOOK_S: Final = 0.001


def _publish(gate: Gate, broker: Any, count: int, readers: int, taken: Taken) -> tuple[list[float], list[float]]:
    """In a child: publish, and wait until every reader has acked; milliseconds of each, of CPU and in all."""
    sent = array()
    used, took = [], []
    gate.wait()
    for _ in range(_FIRST + count):
        began, cpu = time.perf_counter(), time.process_time()
        broker.publish(ours.TOPIC, sent)
        used.append(1000 * (time.process_time() - cpu))
        for _ in range(readers):
            taken.acquire()
        took.append(1000 * (time.perf_counter() - began))
    broker.close()
    return used[_FIRST:], took[_FIRST:]


def _round(terms: Terms, readers: int) -> tuple[list[float], list[float]]:
    count = terms.choose(*_COUNT)
    taken = SPAWN.Semaphore(0)
    with ours.broker_of(terms) as (manager, broker), Crew() as crew:
        assert manager.pid is not None
        subscriptions = [broker.subscribe(ours.TOPIC, f"group-{number}") for number in range(readers)]
        for each in subscriptions:
            crew.add(Ours(broker, each, manager.pid).receive, count, taken, _TOUCHED_BYTES)
        publisher = crew.add(_publish, broker, count, readers, taken)
        crew.begin()
        found: tuple[list[float], list[float]] = publisher.result()
        for child in crew.children[:-1]:
            child.result()
    return found


def _publishers_time(readers: int) -> Callable[[Terms], Outcome]:
    return lambda terms: Outcome(statistics.mean(_round(terms, readers)[0]))


def _until_all_have_it(readers: int) -> Callable[[Terms], Outcome]:
    return lambda terms: typical(_round(terms, readers)[1])


def _bytes_of(readers: int) -> Callable[[Terms], Outcome]:
    """What is used while every subscription holds it."""

    def once(terms: Terms) -> Outcome:
        with ours.broker_of(terms) as (_, broker):
            held = [broker.subscribe(ours.TOPIC, f"group-{number}") for number in range(readers)]
            broker.publish(ours.TOPIC, array())
            deliveries = [each.poll("worker", timeout=DEADLINE_S)[0] for each in held]
            used = sum(each.used for each in broker._status().arena)
            if not used:
                raise NotHere("arrays travel as bytes on this transport")
            for delivery in deliveries:
                delivery.ack()
            deliveries.clear()
            del delivery
            deadline = time.monotonic() + DEADLINE_S
            while any(each.used for each in broker._status().arena):
                if time.monotonic() > deadline:
                    raise TimeoutError("the block did not go with its last reader")
                threading.Event().wait(_LOOK_S)
        return Outcome(used / 2**20)

    return once


def _pair(round_of: Callable[[int], Callable[[Terms], Outcome]]) -> tuple[Contestant, Contestant]:
    return (
        Contestant(f"{MANY} subscriptions", round_of(MANY), Side.OURS),
        Contestant("1 subscription", round_of(1), Side.OURS),
    )


def _workload(
    key: str, title: str, unit: str, round_of: Callable[[int], Callable[[Terms], Outcome]], bound: float
) -> Workload:
    many, one = _pair(round_of)
    return Workload(
        key, title, unit, higher_is_better=False, contestants=(many, one), targets=(Target(many.name, one.name, bound),)
    )


WORKLOADS: Final = (
    _workload("P5-publisher", f"CPU time of a publish of 8 MiB to {MANY} subscriptions", "ms", _publishers_time, 1.15),
    _workload("P5-bytes", f"arena in use for 8 MiB that {MANY} subscriptions hold", "MiB", _bytes_of, 1.0),
    _workload(
        "P5-end", f"publish of 8 MiB until {MANY} readers have looked at 4 KiB and acked", "ms", _until_all_have_it, 2.0
    ),
)
