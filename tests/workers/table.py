"""The table of deaths: where a worker dies, and what message, worker, caller and figures show. See scripts/deaths."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from mpbroker import Executor, PoolEnded, WorkerDied, WorkerPool
from mpbroker.cli.output import table
from tests.workers import calls, handlers
from tests.workers.support import LIMIT_S, Bench, bench, until

COLUMNS = ("dies", "message", "worker", "caller", "figures")


def died(folder: Path, how: str) -> tuple[str, str, str]:
    """A handler that dies whenever it is called, in a subscription that allows two attempts."""
    with bench(folder, max_deliveries=2) as b:
        b.publish(how=how, times=9)
        with b.pool(handlers.die, timeout=0.5 if how == "hang" else None, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            return _seen(b, pool)


def _seen(b: Bench, pool: WorkerPool) -> tuple[str, str, str]:
    (letter,) = b.letters()
    stats = pool.stats()
    last = letter.history[-1]
    message = f"{letter.reason} after {letter.attempts}: {last.outcome}: {last.error}"
    return message, f"{stats.started} started", f"{stats.died} died, {stats.failed} failed; {stats.deaths[-1].how}"


def of_executor(folder: Path, function: Callable[..., object]) -> str:
    """What a caller sees of the same."""
    with Executor(max_workers=1, max_deliveries=2, timeout=0.5) as executor:
        try:
            executor.submit(function, str(folder / "never")).result(LIMIT_S)
        except WorkerDied as error:
            return f"WorkerDied: {error.args[1]}"
    return "a result"


def ended(folder: Path, end: Callable[[WorkerPool], None]) -> tuple[str, str, str]:
    """A worker that holds the interpreter while its pool is ended."""
    with bench(folder) as b:
        b.publish(seconds=3600.0)
        with b.pool(handlers.hold_the_interpreter, grace=0.5) as pool:
            b.wait_for("begins")
            (pid,) = pool.worker_pids()
            end(pool)
            assert pool.wait(LIMIT_S)
            (delivery,) = b.jobs.poll("another", timeout=LIMIT_S)
            until(lambda: not Path(f"/proc/{pid}").exists())
            try:
                figures = f"{pool.stats().died} died"
            except PoolEnded as error:
                figures = str(error)
        counted = "counted" if delivery.attempt == 2 else "uncounted"
        return f"with another, {counted}", "gone", figures


def rows() -> list[tuple[str, ...]]:
    """One for each death."""
    found: list[tuple[str, ...]] = [COLUMNS]
    for how, function in (
        ("SIGKILL", calls.kill_always),
        ("segfault", calls.segfault_always),
        ("exit", calls.exit_always),
        ("hang", calls.wait_for),
    ):
        with tempfile.TemporaryDirectory() as folder:
            message, worker, figures = died(Path(folder), how)
            found.append((how, message, worker, of_executor(Path(folder), function), figures))
    for name, end in (
        ("supervisor killed", lambda pool: os.kill(pool.stats().pid, signal.SIGKILL)),
        ("drained, grace over", WorkerPool.drain),
        ("released", WorkerPool.release),
        ("killed", WorkerPool.kill),
    ):
        with tempfile.TemporaryDirectory() as folder:
            message, worker, figures = ended(Path(folder), end)
            found.append((name, message, worker, "-", figures))
    return found


if __name__ == "__main__":
    sys.stdout.write(table(rows()) + "\n")
