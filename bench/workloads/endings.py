"""P7 and its kin: how long until a death is dealt with; the bounds of the last two are the contract's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, Final

import psutil

from bench.crew import Crew, Gate
from bench.measure import percentile
from bench.ours import TOPIC, broker_of, started
from bench.terms import Terms
from bench.workload import Contestant, Outcome, Side, Target, Workload
from mpbroker import BrokerGone, Delivery

LEASE_S: Final = 60.0
_HELD: Final = 10
"""Messages that a victim holds."""

_WORKER = "SIGKILL of a worker that holds messages under leases of 60 s, until another has them, 99th percentile"


def _hold(gate: Gate, subscription: Any) -> None:
    subscription.poll("victim", max_messages=_HELD)
    gate.wait()
    signal.pause()


def worker_killed(terms: Terms) -> Outcome:
    """Kill workers that hold messages; milliseconds until another has them."""
    times = []
    with broker_of(terms) as (_, broker), Crew() as crew:
        subscription = broker.subscribe(TOPIC, "group", ack_timeout=LEASE_S, max_deliveries=1_000_000)
        for _ in range(terms.choose(3, 60, tiny=2)):
            broker.publish_many(TOPIC, [b"x"] * _HELD)
            victim = crew.add(_hold, subscription)
            victim.ready()
            killed = time.perf_counter()
            os.kill(victim.process.pid or 0, signal.SIGKILL)
            deliveries: list[Delivery] = []
            while len(deliveries) < _HELD:
                # What comes back from a dead process is handed over one by one.
                got = subscription.poll("heir", max_messages=_HELD, timeout=LEASE_S)
                if not got:
                    raise RuntimeError(f"after {LEASE_S:g} s the heir has {len(deliveries)} of {_HELD} messages")
                deliveries += got
            times.append((time.perf_counter() - killed) * 1000)
            for delivery in deliveries:
                delivery.ack()
            victim.end()
    return Outcome(percentile(times, 99), {"median": percentile(times, 50)})


def broker_killed(terms: Terms) -> Outcome:
    """Kill brokers under a waiting poll; milliseconds until BrokerGone."""
    times: list[float] = []
    for _ in range(terms.choose(2, 20, tiny=1)):
        with started(terms) as manager, Crew() as crew:
            broker = manager.broker()
            broker.create_topic(TOPIC)
            waiter = crew.add(_wait_for_gone, broker.subscribe(TOPIC, "group"))
            crew.begin()
            killed = time.monotonic()
            os.kill(manager.pid or 0, signal.SIGKILL)
            times.append((waiter.result() - killed) * 1000)
            broker.close()
    return Outcome(max(times), {"median": percentile(times, 50)})


def _wait_for_gone(gate: Gate, subscription: Any) -> float:
    subscription.poll("worker")
    gate.wait()
    try:
        subscription.poll("worker", timeout=LEASE_S)
    except BrokerGone:
        return time.monotonic()
    raise RuntimeError("the poll returned though its broker was killed")


_CREATOR = """
import signal
from mpbroker import BrokerManager
manager = BrokerManager()
manager.start()
print(manager.pid, flush=True)
signal.pause()
"""


def creator_killed(terms: Terms) -> Outcome:
    """Kill the creators of brokers; milliseconds until the broker is gone."""
    times = []
    for _ in range(terms.choose(2, 20, tiny=1)):
        with subprocess.Popen([sys.executable, "-c", _CREATOR], stdout=subprocess.PIPE, text=True) as creator:
            broker = psutil.Process(int((creator.stdout or sys.stdin).readline()))
            killed = time.perf_counter()
            creator.kill()
            _wait_for_exit(broker)
            times.append((time.perf_counter() - killed) * 1000)
    return Outcome(max(times), {"median": percentile(times, 50)})


def _wait_for_exit(process: psutil.Process) -> None:
    """Until it is dead, whenever its new parent, which is the system's, takes notice."""
    deadline = time.monotonic() + LEASE_S
    try:
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                raise RuntimeError("the broker outlived its creator")
            time.sleep(0.0005)
    except psutil.NoSuchProcess:
        pass


def _workload(key: str, title: str, contestant: Contestant, bound_ms: float) -> Workload:
    return Workload(
        key,
        title,
        "ms",
        higher_is_better=False,
        contestants=(contestant,),
        targets=(Target(contestant.name, None, bound_ms),),
    )


WORKLOADS = (
    _workload("P7", _WORKER, Contestant("mpbroker", worker_killed, Side.OURS), 50),
    _workload(
        "P7-broker",
        "SIGKILL of the broker until BrokerGone in a poll that waits, slowest",
        Contestant("mpbroker", broker_killed, Side.OURS),
        1000,
    ),
    _workload(
        "P7-creator",
        "SIGKILL of a broker's creator until the broker is gone, slowest",
        Contestant("mpbroker", creator_killed, Side.OURS),
        1000,
    ),
)
