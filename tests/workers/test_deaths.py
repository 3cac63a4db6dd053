"""Where a worker dies, and what the message, the pool and the statistics say then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mpbroker import AttemptOutcome, DeadLetterReason, PoolEnded
from mpbroker.workers.deaths import Deaths, in_words
from tests.workers import handlers
from tests.workers.support import LIMIT_S, bench, until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("SIGKILL", "signal 9 (SIGKILL), possibly out of memory"),
        ("segfault", "signal 11 (SIGSEGV)"),
        ("exit", "exit code 3"),
    ],
)
def test_a_worker_that_dies_costs_an_attempt_and_its_end_is_in_the_history(
    tmp_path: Path, how: str, words: str
) -> None:
    with bench(tmp_path, max_deliveries=2) as b:
        b.publish(how=how, times=9)
        with b.pool(handlers.die, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        (letter,) = b.letters()
        assert letter.reason is DeadLetterReason.RETRIES_EXHAUSTED
        assert [attempt.outcome for attempt in letter.history] == [AttemptOutcome.WORKER_DIED] * 2
        assert all(words in attempt.error for attempt in letter.history)
        assert (stats.died, len(stats.deaths)) == (2, 2)
        assert all(words in death.how and death.message_ids == ("m1",) for death in stats.deaths)
        assert {death.pid for death in stats.deaths} == {int(line[2]) for line in b.noted()}


def test_a_killed_worker_is_replaced_and_its_message_is_done_by_another(tmp_path: Path) -> None:
    with bench(tmp_path, ack_timeout=3600.0) as b:
        b.publish(5, how="SIGKILL", times=1)
        with b.pool(handlers.die, processes=2, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        assert (stats.done, stats.died, stats.started) == (5, 5, 7)
        assert b.jobs.stats().acked == 5


def test_an_idle_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with bench(tmp_path) as b, b.pool() as pool:
        (before,) = pool.worker_pids()
        os.kill(before, signal.SIGKILL)
        until(lambda: pool.stats().died == 1 and pool.worker_pids() not in ([], [before]))
        b.publish()
        b.wait_for_acks(1)
        assert not psutil.pid_exists(before), "a zombie"


def test_a_message_that_takes_too_long_is_failed_and_its_worker_replaced(tmp_path: Path) -> None:
    with bench(tmp_path, max_deliveries=2) as b:
        b.publish(how="hang", times=1)
        with b.pool(handlers.die, timeout=0.5, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        assert (stats.done, stats.failed, stats.died) == (1, 1, 1)
        assert stats.deaths[0].how == "timeout: it took more than 0.5 s; the worker was killed"


def test_the_history_of_a_timeout_says_so(tmp_path: Path) -> None:
    with bench(tmp_path, max_deliveries=1) as b:
        b.publish(how="hang", times=9)
        with b.pool(handlers.die, timeout=0.2, burst=True) as pool:
            assert pool.wait(LIMIT_S)
        (letter,) = b.letters()
        assert letter.error == "timeout: it took more than 0.2 s; the worker was killed"
        assert [attempt.outcome for attempt in letter.history] == [AttemptOutcome.FAILED]


def test_what_a_handler_started_ends_with_its_worker(tmp_path: Path) -> None:
    with bench(tmp_path, max_deliveries=1) as b:
        b.publish(how="hang with children", times=9)
        with b.pool(handlers.die) as pool:
            until(lambda: any(psutil.Process(pid).children() for pid in pool.worker_pids()))
            (worker,) = pool.worker_pids()
            (grandchild,) = psutil.Process(worker).children()
            os.kill(worker, signal.SIGKILL)
            until(lambda: not grandchild.is_running())


def test_workers_end_with_a_supervisor_that_is_killed_also_one_that_holds_the_interpreter(tmp_path: Path) -> None:
    with bench(tmp_path, max_deliveries=1) as b:
        b.publish(seconds=3600.0)
        with b.pool(handlers.hold_the_interpreter, processes=2) as pool:
            b.wait_for("begins")
            stats = pool.stats()
            workers = [psutil.Process(pid) for pid in pool.worker_pids()]
            os.kill(stats.pid, signal.SIGKILL)
            until(lambda: not any(worker.is_running() for worker in workers))
            assert pool.wait(LIMIT_S)
            assert (
                pool.ended == f"its supervisor, process {stats.pid}, died: signal 9 (SIGKILL), possibly out of memory"
            )
            with pytest.raises(PoolEnded):
                pool.stats()
        until(lambda: b.jobs.stats().dead == 1)
        (letter,) = b.letters()
        assert letter.error == "worker died: signal 9 (SIGKILL), possibly out of memory"


def test_what_handlers_started_ends_also_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(how="hang with children", times=9)
        with b.pool(handlers.die) as pool:
            b.wait_for("m1", "1")
            stats = pool.stats()
            os.kill(stats.workers[0].pid, signal.SIGKILL)
            b.wait_for("m1", "2")
            # The owner has not asked who its workers are since there is this one.
            (worker,) = psutil.Process(stats.pid).children()
            until(lambda: bool(worker.children()))
            (grandchild,) = worker.children()
            os.kill(stats.pid, signal.SIGKILL)
            assert pool.wait(LIMIT_S)
            until(lambda: not grandchild.is_running())


OWNER = """
import sys
from mpbroker import WorkerPool
from tests.workers import handlers
with WorkerPool("jobs", "jobs", "workers", handlers.hold_the_interpreter, processes=1) as pool:
    print(*pool.worker_pids(), pool.stats().pid, flush=True)
    sys.stdin.read()
"""


def test_a_pool_ends_with_an_owner_that_is_killed_and_what_ran_goes_back_uncounted(tmp_path: Path) -> None:
    from mpbroker import BrokerManager

    with BrokerManager("jobs") as manager:
        broker = manager.broker()
        broker.create_topic("jobs")
        jobs = broker.subscribe("jobs", "workers")
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", OWNER]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT) as owner:
            assert owner.stdout is not None
            processes = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
            broker.publish("jobs", {"log": str(tmp_path / "noted"), "seconds": 3600.0})
            until(lambda: jobs.stats().in_flight == 1)
            owner.kill()
            owner.wait(LIMIT_S)
            until(lambda: not any(process.is_running() for process in processes))
        (delivery,) = jobs.poll("after", timeout=LIMIT_S)
        assert delivery.attempt == 1


def test_a_worker_that_dies_at_once_again_and_again_is_replaced_ever_more_slowly() -> None:
    deaths = Deaths()
    pauses = [deaths.pause_s(0) for _ in range(12)]
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert pauses[-1] == 10.0
    assert deaths.pause_s(1) == 0.05


def test_how_a_worker_ended_is_told_in_words() -> None:
    assert in_words(-9, out_of_memory=True) == "signal 9 (SIGKILL), out of memory"
    assert in_words(-9) == "signal 9 (SIGKILL), possibly out of memory"
    assert in_words(-64) == "signal 64 (SIGRTMAX)"
    assert in_words(3) == "exit code 3"
