"""Workers that are replaced in good order: by count, memory, age, and on request."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.workers import handlers
from tests.workers.support import LIMIT_S, bench, until


def test_a_worker_is_replaced_after_so_many_messages(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(7)
        with b.pool(max_messages_per_child=3, prefetch=5, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        pids = [line[2] for line in b.noted()]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]
        assert (stats.done, stats.died, stats.started) == (7, 0, 3)
        assert b.jobs.stats().redelivered == 0


def test_a_worker_with_too_much_memory_is_replaced_after_its_message(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(3)
        with b.pool(handlers.grow, max_rss=64 << 20, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        assert len({line[2] for line in b.noted()}) == 3
        assert (stats.done, stats.died) == (3, 0)


def test_a_worker_that_is_old_is_replaced(tmp_path: Path) -> None:
    with bench(tmp_path) as b, b.pool(max_age=0.5) as pool:
        until(lambda: pool.stats().recycled >= 2)
        assert pool.stats().died == 0


def test_on_request_workers_are_replaced_one_after_another(tmp_path: Path) -> None:
    with bench(tmp_path) as b, b.pool(processes=2) as pool:
        until(lambda: [worker.state for worker in pool.stats().workers] == ["idle"] * 2)
        before = set(pool.worker_pids())
        os.kill(pool.stats().pid, signal.SIGHUP)
        until(lambda: pool.stats().recycled == 2 and len(pool.worker_pids()) == 2)
        middle = set(pool.worker_pids())
        assert not before & middle
        until(lambda: [worker.state for worker in pool.stats().workers] == ["idle"] * 2)
        pool.replace_workers()
        until(lambda: pool.stats().recycled == 4 and pool.stats().started == 6)
        assert pool.stats().died == 0
