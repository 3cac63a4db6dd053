"""How a pool ends: what runs is finished, what was fetched is others', nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from mpbroker import BrokerGone, PoolEnded
from tests.workers import handlers
from tests.workers.support import LIMIT_S, Bench, bench, until


def one_runs_and_five_wait(b: Bench, until_file: Path) -> None:
    b.publish(6, until=str(until_file))
    b.wait_for("begins")
    until(lambda: b.jobs.stats().in_flight == 6)


def test_the_end_of_a_block_finishes_what_runs_and_gives_the_rest_back_uncounted(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with bench(tmp_path) as b:
        pool = b.pool(handlers.wait_for_file, prefetch=6)
        with pool:
            one_runs_and_five_wait(b, go)
            assert pool.stats().workers[0].waiting == 5
            pool.drain()
            others = b.jobs.poll("another", max_messages=9, timeout=LIMIT_S)
            while len(others) < 5:
                others += b.jobs.poll("another", max_messages=9, timeout=LIMIT_S)
            assert [(each.message_id, each.attempt) for each in others] == [(f"m{n}", 1) for n in range(2, 7)]
            assert b.jobs.stats().in_flight == 6, "the one runs on"
            go.write_text("")
        assert pool.ended == "it was told to end"
        stats = b.jobs.stats()
        assert (stats.acked, stats.in_flight, stats.late_acks) == (1, 5, 0)
        assert [line[3] for line in b.noted()] == ["begins", "ends"]


def test_what_is_fetched_goes_back_at_once_also_from_a_worker_that_holds_the_interpreter(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(6, seconds=3.0)
        with b.pool(handlers.hold_the_interpreter, prefetch=6) as pool:
            b.wait_for("begins")
            pool.drain()
            others = b.jobs.poll("another", max_messages=9, timeout=LIMIT_S)
            assert b.jobs.stats().acked == 0, "the one runs on"
            while len(others) < 5:
                others += b.jobs.poll("another", max_messages=9, timeout=LIMIT_S)
            assert {each.attempt for each in others} == {1}
        assert b.jobs.stats().acked == 1


def test_released_what_runs_goes_back_uncounted_and_its_worker_is_killed(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(2, seconds=3600.0)
        with b.pool(handlers.hold_the_interpreter, prefetch=2) as pool:
            b.wait_for("begins")
            pool.release()
            assert pool.wait(LIMIT_S)
            assert pool.stats().died == 0
        assert [each.attempt for each in b.jobs.poll("another", max_messages=2)] == [1, 1]


def test_killed_what_runs_goes_back_as_an_attempt(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(seconds=3600.0)
        with b.pool(handlers.hold_the_interpreter) as pool:
            b.wait_for("begins")
            pool.kill()
            assert pool.wait(LIMIT_S)
        (delivery,) = b.jobs.poll("another", timeout=LIMIT_S)
        assert delivery.attempt == 2


def test_beyond_the_grace_what_runs_is_given_back_and_its_worker_killed(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(seconds=3600.0)
        with b.pool(handlers.hold_the_interpreter, grace=0.2):
            b.wait_for("begins")
        (delivery,) = b.jobs.poll("another", timeout=LIMIT_S)
        assert delivery.attempt == 1


def test_signals_to_the_supervisor_drain_release_and_kill(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(seconds=3600.0)
        with b.pool(handlers.hold_the_interpreter) as pool:
            b.wait_for("begins")
            supervisor = pool.stats().pid
            os.kill(supervisor, signal.SIGTERM)
            until(lambda: pool.stats().stage == "draining")
            os.kill(supervisor, signal.SIGTERM)
            assert pool.wait(LIMIT_S)
            assert pool.ended == "it was told to end by a signal"
        assert b.jobs.stats().ready == 1


def test_one_worker_that_is_told_to_end_finishes_and_is_replaced(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with bench(tmp_path) as b:
        b.publish(until=str(go))
        with b.pool(handlers.wait_for_file) as pool:
            b.wait_for("begins")
            (pid,) = pool.worker_pids()
            os.kill(pid, signal.SIGTERM)
            go.write_text("")
            b.wait_for_acks(1)
            until(lambda: pool.stats().recycled == 1 and pool.worker_pids() not in ([], [pid]))
            assert pool.stats().died == 0


def test_an_idle_pool_ends_at_once_with_nothing_left(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        with b.pool(processes=3) as pool:
            pids = pool.worker_pids()
            supervisor = pool.stats().pid
        assert not any(psutil.pid_exists(pid) for pid in [*pids, supervisor])
        pool.close()


def test_a_pool_ends_when_its_broker_does(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        with b.pool(processes=2) as pool:
            b.broker._stop()
            assert pool.wait(LIMIT_S)
            assert "the broker" in str(pool.ended)
        with pytest.raises(BrokerGone):
            b.jobs.stats()


def test_a_pool_ends_when_its_subscription_does(tmp_path: Path) -> None:
    with bench(tmp_path) as b, b.pool(processes=2) as pool:
        b.broker.unsubscribe("jobs", "workers")
        assert pool.wait(LIMIT_S)
        assert "jobs/workers" in str(pool.ended)


def test_a_pool_ends_after_so_many_messages_and_exactly_then(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(20)
        with b.pool(processes=2, max_messages=7, prefetch=3) as pool:
            assert pool.wait(LIMIT_S)
            assert pool.stats().done == 7
        stats = b.jobs.stats()
        assert (stats.acked, stats.ready) == (7, 13)


def test_a_pool_ends_when_nothing_came_for_so_long(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(3)
        with b.pool(max_idle=0.3) as pool:
            assert pool.wait(LIMIT_S)
            assert pool.ended == "nothing came for 0.3 s"
        assert b.jobs.stats().acked == 3


def test_a_pool_is_started_once(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        pool = b.pool()
        with pytest.raises(PoolEnded, match="not started"):
            pool.stats()
        with pool, pytest.raises(PoolEnded, match="started before"):
            pool.start()
        with pytest.raises(PoolEnded, match="started before"):
            pool.start()
