"""The clients of a run as the checker knows them: what each has asked, and when it could have lost what it held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from mpbroker.testing.history import End, Fault, Invoke

HARMLESS: Final = frozenset({"stop", "continue", "fork"})
"""Faults that take nothing from a client and excuse no failed call."""

GRACE_NS: Final = 3_000_000_000
"""Until a broker has served what a process had asked for when it died, and taken note of its death."""

LATE_NS: Final = 6_000_000_000
"""Until what was said to be done to a client is done, and the broker has noticed it."""

NEVER: Final = 2**63 - 1
"""A time that does not come."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Between these times the broker may have taken back what a client held.

    counted: whether that counts as an attempt; None: it may or may not.
    """

    at: int
    until: int
    counted: bool | None
    what: str


@dataclass(slots=True, eq=False)
class Client:
    """One history.

    Attributes:
        last: time of its last event.
        excused: since when its calls may fail.
        stopped: when it was last stopped, or told to go on.
        ended: when its process was seen to have ended.
    """

    number: int
    name: str = ""
    last: int = 0
    pending: Invoke | None = None
    losses: list[Loss] = field(default_factory=list)
    excused: int | None = None
    ended: int | None = None
    stopped: int | None = None

    def is_late(self, error: str, at: int) -> bool:
        """Whether it was stopped while it opened a connection, and refused for that: what it held is lost with it."""
        if self.stopped is None or self.stopped + LATE_NS < at or "no handshake within" not in error:
            return False
        self.losses.append(Loss(self.stopped, at + LATE_NS, counted=None, what="refusal"))
        return True

    def losses_since(self, at: int) -> list[Loss]:
        """Those that what was asked for at a time may have fallen to."""
        return [loss for loss in self.losses if loss.until >= at]


class Clients:
    """All of them, by number and by name. A process with several calls out at once has a history for each, and all have
    its name."""

    def __init__(self) -> None:
        self.numbered: dict[int, Client] = {}
        self._named: dict[str, list[Client]] = {}
        # A client may be struck before the first event of its own, or before its next history begins.
        self._struck: dict[str, list[Loss]] = {}

    def begin(self, number: int, name: str) -> Client:
        client = self.of(number)
        client.name = name
        self._named.setdefault(name, []).append(client)
        for loss in self._struck.get(name, ()):
            _strike(client, loss)
        return client

    def of(self, number: int) -> Client:
        client = self.numbered.get(number)
        if client is None:
            client = self.numbered[number] = Client(number, f"history {number}")
        return client

    def fault(self, fault: Fault) -> list[tuple[Client, Loss]]:
        """Something is about to be done; who may lose what by it."""
        if fault.kind in {"stop", "continue"}:
            for client in self._meant(fault.client):
                client.stopped = fault.at
        if fault.kind in HARMLESS:
            return []
        if fault.kind == "kill":
            loss = Loss(fault.at, NEVER, counted=True, what="kill")
        else:
            loss = Loss(fault.at, fault.at + LATE_NS, counted=None, what=fault.kind)
        if fault.client:
            self._struck.setdefault(fault.client, []).append(loss)
        struck = self._meant(fault.client)
        for client in struck:
            _strike(client, loss)
        return [(client, loss) for client in struck]

    def end(self, end: End) -> None:
        for client in self._meant(end.client):
            client.ended = end.at
            if not end.died:
                client.losses.append(Loss(client.last, NEVER, counted=False, what="exit"))
            elif all(loss.what != "kill" for loss in client.losses):
                _strike(client, Loss(client.last, NEVER, counted=True, what="death"))

    def _meant(self, name: str) -> list[Client]:
        if not name:
            return list(self.numbered.values())
        return self._named.get(name, [])


def _strike(client: Client, loss: Loss) -> None:
    client.losses.append(loss)
    if client.excused is None:
        client.excused = loss.at
