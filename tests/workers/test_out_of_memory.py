"""A worker that the kernel kills for want of memory, and what is said of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mpbroker import AttemptOutcome
from tests.workers import cgroup, handlers
from tests.workers.support import LIMIT_S, bench, until


def test_want_of_memory_is_in_the_history_and_the_figures(tmp_path: Path) -> None:
    with cgroup.little_memory() as procs, bench(tmp_path, max_deliveries=2) as b:
        b.publish(how="memory", times=9, bytes=4 * cgroup.LIMIT_BYTES)
        with b.pool(handlers.die, burst=True, initializer=cgroup.join, initargs=(str(procs),)) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        (letter,) = b.letters()
        assert [attempt.outcome for attempt in letter.history] == [AttemptOutcome.WORKER_DIED] * 2
        assert [attempt.error for attempt in letter.history] == ["worker died: signal 9 (SIGKILL), out of memory"] * 2
        assert [death.how for death in stats.deaths] == ["signal 9 (SIGKILL), out of memory"] * 2


def test_another_kill_in_a_group_with_a_limit_is_not_taken_for_that(tmp_path: Path) -> None:
    with cgroup.little_memory() as procs, bench(tmp_path, max_deliveries=1) as b:
        b.publish(seconds=3600.0)
        with b.pool(handlers.hold_the_interpreter, initializer=cgroup.join, initargs=(str(procs),)) as pool:
            b.wait_for("begins")
            os.kill(pool.worker_pids()[0], signal.SIGKILL)
            until(lambda: b.jobs.stats().dead == 1 and pool.stats().died == 1)
            how = pool.stats().deaths[0].how
        (letter,) = b.letters()
        assert letter.error == f"worker died: {how}" == "worker died: signal 9 (SIGKILL), possibly out of memory"
