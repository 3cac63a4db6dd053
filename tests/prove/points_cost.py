"""What kill points cost: nothing where none is set, for then nothing is there; and what one that is elsewhere does.

Figures for people. Nothing asserts them.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from mpbroker import BrokerManager
from mpbroker.process.proxy import BrokerProxy
from tests.prove import points_armed
from tests.prove.points_brokers import POINTS as BROKER_POINTS
from tests.prove.points_clients import POINTS, ClientPoint
from tests.prove.points_trap import Action, Signs, Trap

_ROUNDS: Final = 15
_CYCLES: Final = 200


def measure() -> dict[str, int | float | str]:
    """Microseconds of a publish, poll and ack: without points; with one that they do not pass in client and broker;
    with one in each that they all pass and that never strikes."""
    elsewhere = _named("client said goodbye"), "broker before its farewell"
    passed = _named("client sent a subscribe whose reply waits"), "broker half through the writing of a reply"
    with ExitStack() as opened, tempfile.TemporaryDirectory(prefix="mpp-", dir="/tmp") as folder:
        cases: dict[str, tuple[BrokerProxy, ClientPoint | None]] = {}
        for number, (name, pair) in enumerate(
            {"without points": None, "with points elsewhere": elsewhere, "with points on the way": passed}.items()
        ):
            signs = Path(folder, f"signs-{number}")
            signs.mkdir()
            with ExitStack() as told:
                if pair is not None:
                    (point,) = [each for each in BROKER_POINTS if each.name == pair[1]]
                    told.enter_context(points_armed.told(point, Action.KILL, signs))
                modules = [] if pair is None else [points_armed.MODULE]
                manager = opened.enter_context(BrokerManager(directory=Path(folder, "brokers"), filter_modules=modules))
            broker = manager.broker()
            broker.create_topic("t")
            broker.subscribe("t", "s")
            cases[name] = broker, None if pair is None else pair[0]
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(_ROUNDS):
            for name, (broker, point_of_client) in cases.items():
                taken[name].append(_cycle_us(broker, point_of_client, Path(folder)))
        for broker, _ in cases.values():
            broker.close()
    return {f"us of a publish, poll and ack {name}": round(median(each), 1) for name, each in taken.items()}


def _named(name: str) -> ClientPoint:
    (point,) = [each for each in POINTS if each.name == name]
    return point


def _cycle_us(broker: BrokerProxy, point: ClientPoint | None, folder: Path) -> float:
    trap = None if point is None else Trap(point.spot, Action.KILL, Signs(folder), KeyboardInterrupt)
    if trap is not None:
        trap.arm()
    try:
        subscription = broker.subscription("t", "s")
        began = time.perf_counter()
        for number in range(_CYCLES):
            broker.publish("t", number)
            (delivery,) = subscription.poll("w")
            assert delivery.ack()
        return 1e6 * (time.perf_counter() - began) / _CYCLES
    finally:
        if trap is not None:
            trap.disarm()
