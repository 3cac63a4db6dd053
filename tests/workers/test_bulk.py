"""Short calls of an executor travel together, and none of them pays for that."""

from __future__ import annotations

from concurrent.futures import wait
from pathlib import Path

import pytest

from mpbroker import BrokerManager, Executor, PayloadTooLarge
from tests.workers import calls
from tests.workers.support import LIMIT_S, until

NUMBERS = range(300)


def warm(executor: Executor) -> None:
    """Until the workers know that calls are short, and fetch many."""
    assert list(executor.map(calls.square, NUMBERS)) == [number * number for number in NUMBERS]


def test_what_was_fetched_with_a_long_call_does_not_wait_for_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Executor(max_workers=2) as executor:
        for _ in range(5):
            warm(executor)
            before = [executor.submit(calls.square, number) for number in NUMBERS]
            long = executor.submit(calls.wait_for, str(go))
            after = [executor.submit(calls.square, number) for number in NUMBERS]
            assert not wait([*before, *after], LIMIT_S).not_done
            assert not long.done()
            go.write_text("")
            assert long.result(LIMIT_S) == str(go)
            go.unlink()


def test_results_before_a_long_call_come_also_from_the_only_worker(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Executor(max_workers=1) as executor:
        warm(executor)
        before = [executor.submit(calls.square, number) for number in NUMBERS]
        long = executor.submit(calls.wait_for, str(go))
        after = executor.submit(calls.square, 7)
        assert not wait(before, LIMIT_S).not_done
        assert not after.done()
        go.write_text("")
        assert (long.result(LIMIT_S), after.result(LIMIT_S)) == (str(go), 49)


def test_a_worker_that_dies_among_many_short_calls_loses_none(tmp_path: Path) -> None:
    with Executor(max_workers=2, max_deliveries=20) as executor:
        warm(executor)
        futures, deadly = [], []
        for number in NUMBERS:
            futures.append(executor.submit(calls.square, number))
            if number % 50 == 7:
                deadly.append(executor.submit(calls.die_once, str(tmp_path / f"died-{number}")))
        assert [future.result(2 * LIMIT_S) for future in futures] == [number * number for number in NUMBERS]
        assert len([future.result(2 * LIMIT_S) for future in deadly]) == len(list(tmp_path.iterdir())) == 6
        pool = executor._state.pool
        assert pool is not None
        until(lambda: pool.stats().died == 6)


def test_a_result_that_cannot_go_is_the_error_of_its_call_alone() -> None:
    with BrokerManager(max_payload_bytes=20_000) as manager, Executor(manager.broker(), max_workers=1) as executor:
        warm(executor)
        futures = [executor.submit(bytes, 40_000 if number == 50 else number) for number in range(100)]
        assert isinstance(futures[50].exception(LIMIT_S), PayloadTooLarge)
        del futures[50]
        assert sum(len(future.result(LIMIT_S)) for future in futures) == sum(range(100)) - 50
        large = executor.submit(len, bytes(40_000))
        assert isinstance(large.exception(LIMIT_S), PayloadTooLarge)
        assert executor.submit(len, bytes(4_000)).result(LIMIT_S) == 4_000


def test_what_is_no_call_is_a_dead_letter_and_the_workers_go_on() -> None:
    with (
        BrokerManager() as manager,
        Executor(manager.broker(), max_workers=1, name="crunch", max_deliveries=2) as executor,
    ):
        warm(executor)
        broker = manager.broker()
        broker.publish("executor.crunch", {"no": "call"})
        until(lambda: len(broker.dead_letters("executor.crunch/workers")) == 1)
        (letter,) = broker.dead_letters("executor.crunch/workers")
        assert "TypeError" in letter.error
        assert executor.submit(calls.square, 3).result(LIMIT_S) == 9


@pytest.mark.parametrize("workers", [1, 2])
def test_calls_that_are_long_stay_with_the_caller_until_a_worker_is_free(tmp_path: Path, workers: int) -> None:
    go = tmp_path / "go"
    with Executor(max_workers=workers) as executor:
        warm(executor)
        futures = [executor.submit(calls.wait_for, str(go)) for _ in range(20)]
        cancelled = [future.cancel() for future in futures]
        assert cancelled == [False] * (workers + 2) + [True] * (18 - workers)
        go.write_text("")
        assert not wait(futures, LIMIT_S).not_done


def test_a_worker_that_is_told_to_end_finishes_one_call_and_gives_the_others_back(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Executor(max_workers=1) as executor:
        warm(executor)
        futures = [executor.submit(calls.square, number) for number in NUMBERS]
        long = executor.submit(calls.wait_for, str(go))
        pool = executor._state.pool
        assert pool is not None
        until(lambda: pool.stats().workers[0].state == "busy")
        pool.replace_workers()
        go.write_text("")
        assert [future.result(LIMIT_S) for future in futures] == [number * number for number in NUMBERS]
        assert long.result(LIMIT_S) == str(go)
        until(lambda: pool.stats().recycled == 1)
        assert pool.stats().died == 0
