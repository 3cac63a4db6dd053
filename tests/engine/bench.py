"""An engine at hand, without clock or threads: topic t with subscription s, and short ways to use it."""

from __future__ import annotations

from typing import Any, Final

from mpbroker.engine import Engine, Lease, Payloads, Subscription, invariants
from mpbroker.engine.batch import MAX_BATCH
from mpbroker.engine.leases import offsets
from mpbroker.messages import Headers, MessagePriority
from mpbroker.settings import Given

NORMAL: Final = MessagePriority.NORMAL


class Bench:
    """An engine with one topic and one subscription; settings as in subscribe."""

    def __init__(self, **settings: Any) -> None:
        self.readied: list[Subscription] = []
        self.engine = Engine(incarnation="abc", on_ready=self.readied.append)
        self.engine.create_topic("t")
        self.s = self.engine.subscribe("t", "s", Given.check(**settings))

    def publish(self, *payloads: object, priority: MessagePriority = NORMAL, now: float = 0.0, **headers: str) -> int:
        """The sequence of the first."""
        contents = [Payloads(payloads[at : at + MAX_BATCH]) for at in range(0, len(payloads), MAX_BATCH)]
        return self.engine.publish("t", contents, Headers(headers), priority, 7.0, now).first

    def take(self, count: int = 1000, member: str = "w", now: float = 0.0, **options: Any) -> list[Lease]:
        leases = self.s.take(member, now, count, **options)
        self.check()
        return leases

    def stats(self) -> dict[str, int]:
        """The figures that are not 0."""
        stats = self.s.stats(None)
        return {name: value for name in stats.__slots__ if (value := getattr(stats, name))}

    def check(self) -> None:
        invariants.check(self.engine)


def sequences(leases: list[Lease]) -> list[int]:
    return [lease.sequence + offset for lease in leases for offset in offsets(lease.open)]


def tokens(leases: list[Lease]) -> list[int]:
    return [lease.token + offset for lease in leases for offset in offsets(lease.open)]
