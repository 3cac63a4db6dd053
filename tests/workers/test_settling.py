"""What becomes of a message when its handler returned or raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpbroker import AckPolicy, AttemptOutcome, DeadLetterReason, HandlerError, MessageBroker, RetryPolicy, WorkerPool
from tests.workers import handlers
from tests.workers.support import LIMIT_S, bench


def test_every_message_is_handled_and_acked_by_the_workers_together(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(50)
        with b.pool(processes=2, prefetch=3, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        assert (stats.done, stats.failed, stats.died, stats.stage) == (50, 0, 0, "ended")
        assert sorted(int(line[0][1:]) for line in b.noted()) == list(range(1, 51))
        assert b.jobs.stats().acked == 50


def test_a_handler_that_raises_is_a_failed_attempt_with_its_traceback_in_the_history(tmp_path: Path) -> None:
    with bench(tmp_path, max_deliveries=2) as b:
        b.publish()
        with b.pool(handlers.fail, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            assert pool.stats().failed == 2
        (letter,) = b.letters()
        assert letter.reason is DeadLetterReason.RETRIES_EXHAUSTED
        assert [attempt.outcome for attempt in letter.history] == [AttemptOutcome.FAILED] * 2
        first, *trace = letter.history[0].error.splitlines()
        assert first == "ValueError: no such customer"
        assert trace[0] == "Traceback (most recent call last):"
        assert 'raise ValueError("no such customer")' in letter.error
        assert letter.history[0].member == f"{pool.name}.1"


def test_reject_makes_a_dead_letter_at_once(tmp_path: Path) -> None:
    with bench(tmp_path, max_deliveries=9) as b:
        b.publish()
        with b.pool(handlers.reject, burst=True) as pool:
            assert pool.wait(LIMIT_S)
        (letter,) = b.letters()
        assert (letter.reason, letter.attempts) == (DeadLetterReason.REJECTED, 1)
        assert letter.error.startswith("Reject: it can never work\n")


def test_retry_says_when_a_message_comes_back(tmp_path: Path) -> None:
    with bench(tmp_path, retry=RetryPolicy(base_delay=3600.0, max_delay=3600.0)) as b:
        b.publish()
        with b.pool(handlers.retry_once, burst=True) as pool:
            assert pool.wait(LIMIT_S)
        assert [line[:2] for line in b.noted()] == [["m1", "1"], ["m1", "2"]]
        assert b.jobs.stats().acked == 1


@pytest.mark.parametrize(
    ("policy", "acked", "dead", "calls"),
    [
        (AckPolicy.FIRST, 1, 0, 1),
        (AckPolicy.ALWAYS, 1, 0, 1),
        (AckPolicy.NACK_ON_ERROR, 0, 1, 3),
        (AckPolicy.REJECT_ON_ERROR, 0, 1, 1),
        (AckPolicy.MANUAL, 0, 1, 3),
    ],
)
def test_the_policy_says_what_an_exception_means(
    tmp_path: Path, policy: AckPolicy, acked: int, dead: int, calls: int
) -> None:
    with bench(tmp_path, max_deliveries=3) as b:
        b.publish()
        with b.pool(handlers.fail, ack=policy, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            assert pool.stats().failed == calls
        stats = b.jobs.stats()
        assert (stats.acked, stats.dead, len(b.noted())) == (acked, dead, calls)


def test_what_a_manual_handler_leaves_comes_back_when_its_lease_ends(tmp_path: Path) -> None:
    with bench(tmp_path, ack_timeout=0.3, max_deliveries=2) as b:
        b.publish()
        with b.pool(handlers.leave, ack=AckPolicy.MANUAL, burst=True) as pool:
            assert pool.wait(LIMIT_S)
        (letter,) = b.letters()
        assert [attempt.outcome for attempt in letter.history] == [AttemptOutcome.LEASE_ENDED] * 2


def test_a_handler_may_settle_its_delivery_itself(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish()
        with b.pool(handlers.settle, burst=True) as pool:
            assert pool.wait(LIMIT_S)
        assert [line[3] for line in b.noted()] == ["True"]
        stats = b.jobs.stats()
        assert (stats.acked, stats.late_acks, stats.dead) == (1, 0, 0)


def test_threads_share_the_work_of_a_process(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        until_file = tmp_path / "go"
        b.publish(3, until=str(until_file))
        with b.pool(handlers.wait_for_file, threads=3) as pool:
            for message in ("m1", "m2", "m3"):
                b.wait_for(message, "begins")
            assert [worker.state for worker in pool.stats().workers] == ["busy"] * 3
            assert len(pool.worker_pids()) == 1
            until_file.write_text("")
            b.wait_for_acks(3)


def test_each_worker_calls_the_initializer_before_its_first_message(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        with b.pool(processes=2, initializer=handlers.start_up, initargs=(str(b.log), "up"), burst=True) as pool:
            assert pool.wait(LIMIT_S)
        noted = b.noted()
        assert {line[0] for line in noted} == {"up"}
        assert 1 <= len({line[1] for line in noted}) == len(noted) <= 2


def test_a_broker_in_this_process_is_refused_for_other_processes_cannot_reach_it() -> None:
    with MessageBroker() as broker, pytest.raises(TypeError, match="other processes cannot reach"):
        WorkerPool(broker, "jobs", "workers", handlers.work)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"processes": 0},
        {"threads": 0},
        {"prefetch": 257},
        {"timeout": 0.0},
        {"timeout": 1.0, "threads": 2},
        {"max_messages": 1, "processes": 2},
        {"max_rss": 0},
        {"grace": -1.0},
        {"log_format": "xml"},
        {"name": "a/b"},
    ],
    ids=str,
)
def test_an_argument_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, options: dict[str, Any]) -> None:
    with bench(tmp_path) as b, pytest.raises(ValueError, match=next(iter(options)).split("_")[0]):
        b.pool(**options)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("tests.workers.nowhere:handle", "No module named 'tests.workers.nowhere'"),
        ("tests.workers.handlers:nothing", "has no 'nothing'"),
        ("tests.workers.handlers:not_callable", "it is not callable, but int"),
        ("tests.workers.unimportable:handle", "importing tests.workers.unimportable failed: KeyError"),
        ("tests.workers.exiting:handle", "importing tests.workers.exiting failed: SystemExit"),
        ("no colon", "it is not of the form module:function"),
    ],
)
def test_a_handler_that_cannot_be_loaded_is_an_error_of_start(tmp_path: Path, handler: str, words: str) -> None:
    with bench(tmp_path) as b:
        pool = b.pool(handler)
        with pytest.raises(HandlerError) as raised:
            pool.start()
        assert words in str(raised.value)
        pool.close()


def test_a_handler_that_cannot_be_pickled_is_an_error_at_once(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        with pytest.raises(HandlerError, match="cannot be pickled"):
            b.pool(lambda _: None)
        with pytest.raises(TypeError, match="handler must be a callable"):
            b.pool(7)  # type: ignore[arg-type]


def test_an_initializer_that_raises_is_an_error_of_start(tmp_path: Path) -> None:
    with bench(tmp_path) as b, pytest.raises(HandlerError, match="no database here"):
        b.pool(initializer=handlers.cannot_start).start()
