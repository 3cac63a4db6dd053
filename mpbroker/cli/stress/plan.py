"""What one stress run will do, decided before anything starts.

Owns the numbers of a run and what follows from them: the priority of a message, and how much each worker may ack
before it must stand still to be killed. Pure: the same plan and seed decide the same.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Final

from mpbroker.testing.payloads import SMALLEST

MAX_TOTAL: Final = 100_000_000
"""Messages of one run: what judges it keeps about twenty bytes for each, and ten more for each group."""

MAX_PROCESSES: Final = 250
"""At one time: each costs the parent three descriptors, and systems allow 1,024 where nobody asked for more."""

MAX_CALL_BYTES: Final = 32 * 1024 * 1024
"""Payload bytes of one call: half of what a broker takes in one frame."""

BACKLOG_BYTES: Final = 1024 * 1024 * 1024
BACKLOG_MESSAGES: Final = 1_000_000
"""Bounds of what waits in one subscription: publishers wait when readers are that far behind."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers of a run; ValueError when they make no run.

    Attributes:
        messages: for each publisher.
        workers: in each group.
        subscriptions: how many groups; an observer reads one more subscription.
        batch: messages in one publish_many, poll and ack_many.
        kill_workers: how many workers, over all groups, are killed while they hold messages.
        timeout: seconds after which the run has failed; None: chosen by the size of the run.
    """

    publishers: int = 4
    messages: int = 250
    workers: int = 3
    subscriptions: int = 1
    payload_bytes: int = 100
    batch: int = 1
    kill_workers: int = 0
    priorities: bool = False
    seed: int = 1
    start_method: str | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("publishers", "messages", "workers", "subscriptions", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.kill_workers < 0:
            raise ValueError("kill_workers must be at least 0")
        if self.payload_bytes < SMALLEST:
            raise ValueError(f"payload_bytes must be at least {SMALLEST}: a payload proves what it is")
        if self.total > MAX_TOTAL:
            raise ValueError(f"{self.total:,} messages are more than the {MAX_TOTAL:,} of one run")
        if self.payload_bytes * self.batch > MAX_CALL_BYTES:
            raise ValueError(f"payload_bytes x batch must be at most {MAX_CALL_BYTES:,}: so much goes in a call")
        if self.processes > MAX_PROCESSES:
            raise ValueError(f"{self.processes} processes are more than {MAX_PROCESSES}")
        if self.timeout is not None and not 0 < self.timeout < inf:
            raise ValueError("timeout must be more than 0 seconds, and finite")

    @property
    def total(self) -> int:
        """Messages that are published."""
        return self.publishers * self.messages

    @property
    def processes(self) -> int:
        """Processes at one time, without the broker's and the one that runs them."""
        return self.publishers + self.workers * self.subscriptions + 1

    @property
    def limit(self) -> float:
        """Seconds the run may take."""
        return self.timeout if self.timeout is not None else 120.0 + self.total / 1000.0

    @property
    def max_queue(self) -> int:
        """The bound of each subscription; every publisher's call fits."""
        fits = min(BACKLOG_MESSAGES, BACKLOG_BYTES // self.payload_bytes)
        return max(fits, self.batch * self.publishers)

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the worker groups' subscriptions."""
        if self.subscriptions == 1:
            return ("workers",)
        return tuple(f"workers-{number}" for number in range(1, self.subscriptions + 1))

    def kills(self, group: int) -> int:
        """How many workers of the group with this number are killed."""
        return self.kill_workers // self.subscriptions + (group < self.kill_workers % self.subscriptions)

    def allowances(self, group: int) -> list[int]:
        """How many messages each worker of a group may ack before it stands still.

        One for every worker that starts before the last kill was made, in the order of their start. Together they
        stay below the number of messages, so until the last kill there is always one that is not acked, and whoever
        holds it in the end has used up its allowance: a kill never waits for luck. They differ, so that workers are
        struck early and late, and not all at once.
        """
        starts = self.workers + self.kills(group) - 1
        most = (self.total - 1) // max(1, starts)
        draw = random.Random(f"{self.seed}/{group}")  # noqa: S311 - a seed, not a secret
        return [draw.randint(0, most) for _ in range(starts)]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def priority_of(plan: Plan, publisher: int, number: int) -> int:
    """The priority of a message; messages of one call have one."""
    if not plan.priorities:
        return 1
    call = number // plan.batch
    return (plan.seed * 31 + publisher * 17 + call * 2654435761 >> 7) % 4
