"""Handlers that misbehave, and programs that were not written for workers: each has a clear outcome."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers import handlers
from tests.workers.support import LIMIT_S, bench

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("system exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("awkward", "Awkward"),
        ("memory", "MemoryError"),
        ("closed pipe", "BrokenPipeError"),
    ],
)
def test_whatever_a_handler_raises_is_a_failed_attempt_and_its_worker_goes_on(
    tmp_path: Path, how: str, words: str
) -> None:
    with bench(tmp_path, max_deliveries=1) as b:
        b.publish(how=how)
        b.publish(how="lock")
        with b.pool(handlers.misbehave, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        (letter,) = b.letters()
        assert letter.error.startswith(words)
        assert (stats.done, stats.failed, stats.died, stats.started) == (1, 1, 0, 1)


@pytest.mark.parametrize("how", ["lock", "pool", "closed pipe at the end", "closed output"])
def test_what_harms_nobody_is_no_failure(tmp_path: Path, how: str) -> None:
    with bench(tmp_path, max_deliveries=1) as b:
        b.publish(2, how=how)
        with b.pool(handlers.misbehave, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        assert (stats.done, stats.failed, stats.died) == (2, 0, 0)


def test_a_child_that_comes_back_out_of_a_handler_is_ended(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.publish(how="fork")
        with b.pool(handlers.misbehave, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        assert [line[3:] for line in b.noted() if len(line) > 3] == [["child", "73"]]
        assert (stats.done, stats.died) == (1, 0)
        assert b.jobs.stats().acked == 1


GUARDED = """
from mpbroker import BrokerManager, WorkerPool

def handle(delivery):
    print("handled", delivery.payload, flush=True)

if __name__ == "__main__":
    with BrokerManager() as manager:
        broker = manager.broker()
        broker.create_topic("t")
        broker.subscribe("t", "g")
        broker.publish("t", 7)
        with WorkerPool(broker, "t", "g", handle, processes=1, burst=True) as pool:
            pool.wait(30)
"""

UNGUARDED = """
from mpbroker import BrokerManager, HandlerError, WorkerPool

def handle(delivery):
    print("handled", delivery.payload, flush=True)

with BrokerManager() as manager:
    broker = manager.broker()
    broker.create_topic("t")
    broker.subscribe("t", "g")
    broker.publish("t", 7)
    try:
        with WorkerPool(broker, "t", "g", handle, processes=1, burst=True) as pool:
            pool.wait(30)
    except HandlerError as error:
        print(error)
        raise SystemExit(5)
"""

MODULE = """
from mpbroker import BrokerManager, WorkerPool
with BrokerManager() as manager:
    broker = manager.broker()
    broker.create_topic("t")
    jobs = broker.subscribe("t", "g")
    broker.publish("t", {"log": "noted"})
    with WorkerPool(broker, "t", "g", "tests.workers.handlers:work", processes=1, burst=True) as pool:
        pool.wait(30)
    print("acked", jobs.stats().acked)
"""


def python(*arguments: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
        timeout=2 * LIMIT_S,
        check=False,
    )


def script(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


def test_a_script_with_a_guard_has_its_own_handler(tmp_path: Path) -> None:
    done = python(script(tmp_path, GUARDED), folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "handled 7\n", "")


def test_a_script_without_a_guard_that_has_its_own_handler_is_told_so(tmp_path: Path) -> None:
    done = python(script(tmp_path, UNGUARDED), folder=tmp_path)
    assert done.returncode == 5
    assert 'if __name__ == "__main__"' in done.stdout
    assert "handled" not in done.stdout


@pytest.mark.parametrize("way", ["file", "stdin", "-c"])
def test_without_a_guard_a_handler_of_a_module_works_from_anywhere(tmp_path: Path, way: str) -> None:
    if way == "file":
        done = python(script(tmp_path, MODULE), folder=tmp_path)
    elif way == "stdin":
        done = python("-", folder=tmp_path, stdin=MODULE)
    else:
        done = python("-c", MODULE, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "acked 1\n"), done.stderr


@pytest.mark.parametrize("way", ["stdin", "-c", "repl"])
def test_a_handler_of_a_program_without_a_file_is_refused_at_once(tmp_path: Path, way: str) -> None:
    if way == "stdin":
        done = python("-", folder=tmp_path, stdin=UNGUARDED)
    elif way == "-c":
        done = python("-c", UNGUARDED, folder=tmp_path)
    else:
        lines = f"exec({UNGUARDED!r})\n"
        done = python("-i", "-q", folder=tmp_path, stdin=lines)
    assert "it is in a program that has no file" in done.stdout + done.stderr
    assert "handled" not in done.stdout
