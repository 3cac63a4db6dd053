"""What a supervisor and its workers are told: one value, checked where it is made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

from mpbroker import checks
from mpbroker.workers.board import MAX_PREFETCH
from mpbroker.workers.target import Target
from mpbroker.workers.verdicts import AckPolicy

MAX_WORKERS: Final = 1024
"""Processes times threads of one pool: each has a place on its board."""

DEFAULT_MAX_LEASE_S: Final = 3600.0
"""Long enough for what people call a long job, and an end to one that hangs where nobody set a timeout."""

DEFAULT_GRACE_S: Final = 30.0
DEFAULT_START_TIMEOUT_S: Final = 60.0


def available_cpus() -> int:
    """Processors that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """See WorkerPool, whose arguments these are.

    broker: its folder, for people.
    subscription: a SubscriptionAPI; None while only the rest is checked.
    initializer: called in each worker before its first message, with initargs pickled in it.
    log_format: "text" or "json" for a supervisor and workers that log to standard error; None for those that don't.
    """

    name: str
    subscription: Any
    handler: Target
    processes: int
    broker: str = ""
    threads: int = 1
    prefetch: int = 1
    ack: AckPolicy = AckPolicy.NACK_ON_ERROR
    max_lease_s: float = DEFAULT_MAX_LEASE_S
    timeout_s: float | None = None
    max_messages_per_child: int | None = None
    max_rss_bytes: int | None = None
    max_age_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    burst: bool = False
    max_messages: int | None = None
    max_idle_s: float | None = None
    preload: tuple[str, ...] = ()
    initializer: bytes = b""
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    log_format: str | None = None

    def __post_init__(self) -> None:
        checks.name(self.name, "name")
        checks.count(self.processes, "processes", maximum=MAX_WORKERS)
        checks.count(self.threads, "threads", maximum=MAX_WORKERS)
        if self.processes * self.threads > MAX_WORKERS:
            raise ValueError(f"processes times threads must be at most {MAX_WORKERS}")
        checks.count(self.prefetch, "prefetch", maximum=MAX_PREFETCH)
        if not isinstance(self.ack, AckPolicy):
            raise TypeError(f"ack must be an AckPolicy, not {type(self.ack).__name__}")
        checks.flag(self.burst, "burst")
        for what in ("max_lease", "timeout", "max_age", "max_idle"):
            given = getattr(self, f"{what}_s")
            if given is not None:
                checks.seconds(given, what, positive=True)
        checks.seconds(self.grace_s, "grace")
        checks.seconds(self.start_timeout_s, "start_timeout", positive=True)
        for what, given in (
            ("max_messages_per_child", self.max_messages_per_child),
            ("max_rss", self.max_rss_bytes),
            ("max_messages", self.max_messages),
        ):
            if given is not None:
                checks.count(given, what)
        if self.timeout_s is not None and self.threads > 1:
            raise ValueError("timeout needs threads=1: the process of a message that takes too long is killed")
        if self.max_messages is not None and self.max_messages < self.processes * self.threads:
            raise ValueError("max_messages must be at least processes times threads: each worker gets a share of it")
