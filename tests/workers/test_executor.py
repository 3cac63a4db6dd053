"""An executor whose calls survive its workers."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, as_completed, wait
from pathlib import Path

import psutil
import pytest

from mpbroker import BrokerManager, Executor, ExecutorBroken, HandlerError, WorkerDied
from tests.workers import calls
from tests.workers.support import LIMIT_S, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(max_workers=2) as executor:
        yield executor


def test_calls_have_results_and_exceptions_with_the_remote_traceback(executor: Executor) -> None:
    assert executor.submit(pow, 2, 5).result(LIMIT_S) == 32
    assert executor.submit(int, "11", base=2).result(LIMIT_S) == 3
    error = executor.submit(calls.fail, "a word").exception(LIMIT_S)
    assert isinstance(error, ValueError)
    assert error.args == ("a word",)
    assert "raise ValueError(word)" in str(error.__cause__)
    futures = [executor.submit(calls.square, number) for number in range(20)]
    assert {future.result() for future in as_completed(futures, LIMIT_S)} == {number * number for number in range(20)}
    assert not wait(futures, LIMIT_S).not_done


def test_whatever_cannot_travel_is_the_futures_error(executor: Executor) -> None:
    assert isinstance(executor.submit(lambda: 1).exception(LIMIT_S), (pickle.PicklingError, AttributeError))
    assert isinstance(executor.submit(calls.cannot_travel).exception(LIMIT_S), TypeError)
    error = executor.submit(calls.raise_awkward).exception(LIMIT_S)
    assert isinstance(error, HandlerError)
    assert "it raised Awkward, which cannot travel: 3" in str(error)
    assert isinstance(executor.submit(calls.leave).exception(LIMIT_S), SystemExit)
    assert executor.submit(calls.square, 3).result(LIMIT_S) == 9


def test_map_is_lazy_chunked_and_in_order(executor: Executor) -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    results = executor.map(calls.square, numbers(), chunksize=3)
    assert [next(results) for _ in range(50)] == [number * number for number in range(50)]
    assert len(taken) < 150
    results.close()  # type: ignore[attr-defined]
    assert list(executor.map(pow, [2, 3], [3, 2, 9])) == [8, 9]
    with pytest.raises(ValueError, match="a word"):
        list(executor.map(calls.fail, ["a word"]))
    with pytest.raises(ValueError, match="chunksize"):
        executor.map(calls.square, [1], chunksize=0)


def test_map_gives_up_at_its_timeout(executor: Executor, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with pytest.raises(TimeoutError):
        list(executor.map(calls.wait_for, [str(go)], timeout=0.2))
    go.write_text("")


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "exit"])
def test_a_killed_worker_costs_a_retry_and_not_the_pool(executor: Executor, tmp_path: Path, how: str) -> None:
    neighbours = [executor.submit(calls.square, number) for number in range(10)]
    assert executor.submit(calls.die_once, str(tmp_path / "died"), how).result(LIMIT_S) in executor.worker_pids()
    assert [future.result(LIMIT_S) for future in neighbours] == [number * number for number in range(10)]


def test_a_call_that_kills_every_worker_is_given_up_and_the_executor_goes_on() -> None:
    with Executor(max_workers=1, max_deliveries=2) as executor:
        error = executor.submit(calls.die).exception(LIMIT_S)
        assert isinstance(error, WorkerDied)
        assert isinstance(error, BrokenExecutor)
        assert error.args == (2, "worker died: signal 9 (SIGKILL), possibly out of memory")
        assert executor.submit(calls.square, 3).result(LIMIT_S) == 9


def test_a_call_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with Executor(max_workers=1, max_deliveries=1, timeout=0.3) as executor:
        error = executor.submit(calls.wait_for, str(tmp_path / "never")).exception(LIMIT_S)
        assert isinstance(error, WorkerDied)
        assert "timeout: it took more than 0.3 s" in str(error)


def test_what_is_not_out_can_be_cancelled(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Executor(max_workers=1) as executor:
        first = executor.submit(calls.wait_for, str(go))
        others = [executor.submit(calls.square, number) for number in range(9)]
        assert others[-1].cancel()
        assert not first.cancel()
        go.write_text("")
        assert [future.result(LIMIT_S) for future in others[:-1]] == [number * number for number in range(8)]
        with pytest.raises(CancelledError):
            others[-1].result()


def test_shutdown_finishes_what_was_submitted_or_cancels_what_is_not_out(tmp_path: Path) -> None:
    executor = Executor(max_workers=1)
    futures = [executor.submit(calls.square, number) for number in range(20)]
    executor.shutdown()
    assert [future.result(0) for future in futures] == [number * number for number in range(20)]
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(calls.square, 1)

    go = tmp_path / "go"
    executor = Executor(max_workers=1)
    waiting = [executor.submit(calls.wait_for, str(go)) for _ in range(20)]
    executor.shutdown(wait=False, cancel_futures=True)
    go.write_text("")
    executor.shutdown()
    cancelled = [future for future in waiting if future.cancelled()]
    assert 15 <= len(cancelled) < 20
    assert all(future.result(0) == str(go) for future in waiting if future not in cancelled)


def test_an_executor_that_was_never_used_starts_nothing() -> None:
    before = psutil.Process().children(recursive=True)
    with Executor(max_workers=2) as executor:
        assert executor.worker_pids() == []
        assert psutil.Process().children(recursive=True) == before


def test_one_that_nobody_has_any_more_ends(tmp_path: Path) -> None:
    executor = Executor(max_workers=1)
    future = executor.submit(calls.square, 3)
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("mpbroker-executor")}
    del executor
    assert future.result(LIMIT_S) == 9
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_each_worker_calls_the_initializer_first_and_one_that_raises_breaks_the_executor() -> None:
    with Executor(max_workers=1, initializer=calls.set_up, initargs=("up",)) as executor:
        assert executor.submit(calls.word).result(LIMIT_S) == "up"
    with Executor(max_workers=1, initializer=calls.cannot_set_up) as executor:
        with pytest.raises(ExecutorBroken, match="no database here"):
            executor.submit(calls.word)
        with pytest.raises(BrokenExecutor):
            executor.submit(calls.word)


def test_workers_are_replaced_after_so_many_calls() -> None:
    with Executor(max_workers=1, max_tasks_per_child=2) as executor:
        pids = [executor.submit(calls.pid).result(LIMIT_S) for _ in range(6)]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 2]


def test_the_end_of_its_broker_is_the_end_of_every_call(tmp_path: Path) -> None:
    with BrokerManager() as manager, Executor(manager.broker(), max_workers=1) as executor:
        futures = [executor.submit(calls.wait_for, str(tmp_path / "never")) for _ in range(9)]
        until(lambda: executor.worker_pids() != [])
        assert manager.pid is not None
        manager.shutdown()
        assert all(isinstance(future.exception(LIMIT_S), ExecutorBroken) for future in futures)


def test_the_end_of_its_supervisor_is_the_end_of_every_call(tmp_path: Path) -> None:
    with Executor(max_workers=1) as executor:
        future = executor.submit(calls.wait_for, str(tmp_path / "never"))
        pool = executor._state.pool
        assert pool is not None
        os.kill(pool.stats().pid, signal.SIGKILL)
        assert isinstance(future.exception(LIMIT_S), ExecutorBroken)
        with pytest.raises(ExecutorBroken):
            executor.submit(calls.pid)


def test_executors_of_one_name_share_their_workers() -> None:
    with BrokerManager() as manager, Executor(manager.broker(), max_workers=1, name="crunch") as first:
        (worker,) = {first.submit(calls.pid).result(LIMIT_S) for _ in range(3)}
        with pickle.loads(pickle.dumps(first)) as second:
            assert second.submit(calls.pid).result(LIMIT_S) == worker
            assert second.worker_pids() == []
            mixed = [executor.submit(calls.square, number) for number in range(20) for executor in (first, second)]
            assert [future.result(LIMIT_S) for future in mixed[::2]] == [number * number for number in range(20)]
            assert [future.result(LIMIT_S) for future in mixed[1::2]] == [number * number for number in range(20)]
    with pytest.raises(TypeError, match="without a name"), Executor(max_workers=1) as executor:
        pickle.dumps(executor)
    with pytest.raises(ValueError, match="max_workers"):
        Executor(max_workers=0)


SHARER = """
import pickle, sys
from tests.workers import calls
with pickle.load(sys.stdin.buffer) as executor:
    print(executor.submit(calls.pid).result(60), *executor.map(calls.square, range(20), chunksize=3))
"""


def test_processes_share_the_workers_of_one_executor() -> None:
    with BrokerManager() as manager, Executor(manager.broker(), max_workers=1, name="crunch") as executor:
        worker = executor.submit(calls.pid).result(LIMIT_S)
        pipe = subprocess.PIPE
        others = [subprocess.Popen([sys.executable, "-c", SHARER], stdin=pipe, stdout=pipe, cwd=ROOT) for _ in range(2)]
        for other in others:
            assert other.stdin is not None
            other.stdin.write(pickle.dumps(executor))
            other.stdin.close()
            other.stdin = None
        mine = list(executor.map(calls.square, range(20)))
        expected = [str(each) for each in (worker, *mine)]
        assert [other.communicate(timeout=2 * LIMIT_S)[0].decode().split() for other in others] == [expected] * 2
        assert mine == [number * number for number in range(20)]


SCRIPT = """
import mpbroker

def square(number):
    return number * number

if __name__ == "__main__":
    executor = mpbroker.Executor(max_workers=1)
    futures = [executor.submit(square, number) for number in range(5)]
    for future in futures:
        future.add_done_callback(lambda future: print(future.result(), flush=True))
"""

UNGUARDED = """
import mpbroker

def square(number):
    return number * number

with mpbroker.Executor(max_workers=1) as executor:
    print(executor.submit(abs, -3).result())
    print(executor.submit(square, 3).exception())
"""


def program(text: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, *options, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=2 * LIMIT_S,
        check=False,
    )


def test_a_program_that_ends_without_a_shutdown_has_its_calls_finished(tmp_path: Path) -> None:
    done = program(SCRIPT, tmp_path, "-W", "error")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(map(int, done.stdout.split())) == [0, 1, 4, 9, 16]


def test_without_a_guard_calls_of_modules_work_and_those_of_the_program_say_why_not(tmp_path: Path) -> None:
    done = program(UNGUARDED, tmp_path)
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first == "3"
    assert 'if __name__ == "__main__":' in second
    stdin = subprocess.run(
        [sys.executable, "-"],
        input=UNGUARDED,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=2 * LIMIT_S,
        check=False,
    )
    assert stdin.stdout.splitlines()[0] == "3"
    assert "it is in a program that has no file" in stdin.stdout
