"""What the tests of worker pools share: a broker with one subscription, and what handlers noted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpbroker import BrokerManager, BrokerProxy, DeadLetter, SubscriptionAPI, WorkerPool
from tests.conformance.support import LIMIT_S, until
from tests.workers import handlers

__all__ = ["LIMIT_S", "Bench", "bench", "gone", "until"]


@dataclass
class Bench:
    """A broker, its topic "jobs" with the subscription "workers", and a file for what handlers note."""

    broker: BrokerProxy
    jobs: SubscriptionAPI
    log: Path

    def publish(self, count: int = 1, **payload: Any) -> None:
        self.broker.publish_many("jobs", [{"log": str(self.log), **payload}] * count)

    def pool(self, handler: Callable[..., object] | str = handlers.work, **options: Any) -> WorkerPool:
        options.setdefault("processes", 1)
        return WorkerPool(self.broker, "jobs", "workers", handler, **options)

    def noted(self) -> list[list[str]]:
        """Of each call: message, attempt, pid, and more."""
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def letters(self) -> list[DeadLetter]:
        return self.broker.dead_letters("jobs/workers")

    def wait_for(self, *words: str) -> None:
        """Until a handler noted that."""
        until(lambda: any(set(words) <= set(line) for line in self.noted()))

    def wait_for_acks(self, count: int) -> None:
        until(lambda: self.jobs.stats().acked == count)


@contextmanager
def bench(folder: Path, **settings: Any) -> Iterator[Bench]:
    with BrokerManager() as manager:
        broker = manager.broker()
        broker.create_topic("jobs")
        jobs = broker.subscribe("jobs", "workers", **settings)
        yield Bench(broker, jobs, folder / "noted")


def gone(pid: int) -> bool:
    """Whether that process has ended and was reaped, or is only waiting to be."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z" and os.getpgid(pid) != 0
