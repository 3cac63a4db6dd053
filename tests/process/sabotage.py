"""A filter module that plants a defect: a broker that imports it fails at whatever speaks of sabotage."""

from __future__ import annotations

from mpbroker.process.effects import Effect
from mpbroker.process.sessions import Sessions

_received = Sessions.received


def _fail(self: Sessions, connection: int, body: bytes | memoryview, now: float) -> list[Effect]:
    if b"sabotage" in bytes(body):
        raise RuntimeError("sabotage")
    return _received(self, connection, body, now)


Sessions.received = _fail  # type: ignore[method-assign]
