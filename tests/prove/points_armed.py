"""A filter module that sets a trap: a broker process that imports it has the kill point that its environment names.

Without the variable it does nothing, and nothing is wrapped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.prove import points_broker_arena, points_broker_rings, points_brokers
from tests.prove.points_brokers import BrokerPoint
from tests.prove.points_trap import Action, Signs, Trap

MODULE: Final = __name__
_VARIABLE: Final = "MPBROKER_KILL_POINT"


@contextmanager
def told(point: BrokerPoint, action: Action, folder: Path) -> Iterator[None]:
    """A broker started in the block has that point."""
    os.environ[_VARIABLE] = json.dumps([point.name, action, os.fspath(folder)])
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


def _arm(words: str | None) -> None:
    if words is None:
        return
    name, action, folder = json.loads(words)
    (point,) = [
        each
        for each in [*points_brokers.POINTS, *points_broker_rings.POINTS, *points_broker_arena.POINTS]
        if each.name == name
    ]
    error = RuntimeError(f"kill point: {name}")
    Trap(point.spot, Action(action), Signs(Path(folder)), lambda: error, waits=True).arm()


_arm(os.environ.get(_VARIABLE))
