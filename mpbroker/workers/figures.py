"""What a pool tells of itself: values, and nothing that does anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker (one thread of it, where a process has several) at one instant.

    Attributes:
        member: the name by which it polls; it is in the history of the messages that it failed.
        pid: its process.
        state: "starting", "idle", "busy", "ending".
        message_id: what it works on; None unless it is busy.
        for_s: seconds since its state began.
        waiting: messages that it fetched and did not begin.
        age_s: seconds since the process was started.
        rss_bytes, cpu_s: of the process: memory now, processor time so far.
        done, failed: messages that it finished; failed ones raised, or lost their lease.
    """

    member: str
    pid: int
    state: str
    message_id: str | None
    for_s: float
    waiting: int
    age_s: float
    rss_bytes: int
    cpu_s: float
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class Death:
    """A worker process that ended otherwise than by itself in good order.

    Attributes:
        how: "signal 9 (SIGKILL), possibly out of memory", "exit code 3", "timeout: …".
        message_ids: what it held; back in the subscription, counted as an attempt.
        at: when, in seconds since the epoch.
    """

    member: str
    pid: int
    how: str
    message_ids: tuple[str, ...]
    at: float

    def __str__(self) -> str:
        held = ", ".join(self.message_ids) or "nothing"
        return f"worker {self.member}, process {self.pid}, died: {self.how}; it held {held}"


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool at one instant.

    Attributes:
        name, topic, group: of the pool and its subscription.
        pid: of the supervisor.
        stage: "running", "draining", "releasing", "killing", "ended".
        workers: in the order of their places.
        started, died, recycled: worker processes so far.
        done, failed: messages so far, by workers that ended, too.
        deaths: the last hundred.
    """

    name: str
    topic: str
    group: str
    pid: int
    stage: str
    workers: tuple[WorkerStats, ...]
    started: int
    died: int
    recycled: int
    done: int
    failed: int
    deaths: tuple[Death, ...]
