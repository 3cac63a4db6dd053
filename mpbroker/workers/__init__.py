"""Worker groups: processes that poll, run and ack, and what looks after them.

    pool ── launch ══ socket ══ entry ─ supervisor ─ children ── fork ── worker ─ handling
    (owner's process)           (a fresh interpreter, one thread)        (leads a process group of its own)

A client of brokers like any other: uses the public verbs alone.
"""

from mpbroker.workers.app import App
from mpbroker.workers.executor import Executor
from mpbroker.workers.figures import Death, PoolStats, WorkerStats
from mpbroker.workers.handling import Work, current_work
from mpbroker.workers.pool import WorkerPool
from mpbroker.workers.verdicts import AckPolicy, Reject, Retry

__all__ = [
    "AckPolicy",
    "App",
    "Death",
    "Executor",
    "PoolStats",
    "Reject",
    "Retry",
    "Work",
    "WorkerPool",
    "WorkerStats",
    "current_work",
]
