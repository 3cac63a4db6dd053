"""Workers killed all the time: every result right, none lost, no zombie, flat memory. Run by scripts/storm."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator

import psutil

import mpbroker

WORKERS = 4
_EVERY_S = 10.0


def work(number: int) -> int:
    """A few milliseconds of computing."""
    total = 0
    for value in range(20_000):
        total = (total + value * number) & 0xFFFF
    return total


def expected(number: int) -> int:
    return number * (19_999 * 20_000 // 2) & 0xFFFF


class Killer(threading.Thread):
    """Kills a random worker again and again."""

    def __init__(self, executor: mpbroker.Executor, every_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.kills = 0
        self.zombies = 0
        self._executor = executor
        self._every_s = every_s
        self._random = random.Random(seed)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._every_s):
            pids = self._executor.worker_pids()
            if pids:
                try:
                    os.kill(self._random.choice(pids), signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    continue

    def stop(self) -> None:
        self._over.set()
        self.join()


def usage() -> tuple[int, int, int]:
    """MiB of this process and of its descendants that are no workers, and how many zombies there are."""
    mine = psutil.Process()
    others, zombies = 0, 0
    for process in mine.children():
        try:
            zombies += process.status() == psutil.STATUS_ZOMBIE
            others += process.memory_info().rss
            zombies += sum(child.status() == psutil.STATUS_ZOMBIE for child in process.children())
        except psutil.Error:
            continue
    return mine.memory_info().rss >> 20, others >> 20, zombies


def numbers(minutes: float, tasks: int) -> Iterator[int]:
    """At least so many, and for at least so long."""
    end = time.monotonic() + minutes * 60
    number = 0
    while number < tasks or time.monotonic() < end:
        yield number
        number += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=0.1, help="seconds between two kills")
    parser.add_argument("--chunk", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wrong = count = 0
    began = told = time.monotonic()
    with mpbroker.Executor(max_workers=WORKERS, max_deliveries=20) as executor:
        executor.submit(work, 0).result()
        killer = Killer(executor, options.every, options.seed)
        killer.start()
        results = executor.map(work, numbers(options.minutes, options.tasks), chunksize=options.chunk)
        most_zombies = 0
        for number, result in enumerate(results):
            count += 1
            wrong += result != expected(number)
            if time.monotonic() - told > _EVERY_S:
                told = time.monotonic()
                mine, others, zombies = usage()
                most_zombies = max(most_zombies, zombies)
                sys.stdout.write(
                    f"{told - began:6.0f} s  {count:>8,} results  {killer.kills:>6,} kills  {mine} MiB here, "
                    f"{others} MiB broker and supervisor, {zombies} zombies\n"
                )
                sys.stdout.flush()
        killer.stop()
    left = psutil.Process().children(recursive=True)
    sys.stdout.write(
        f"{count:,} results, {wrong} wrong, {killer.kills:,} workers killed, {len(left)} processes left, "
        f"{time.monotonic() - began:.0f} s\n"
    )
    return 1 if wrong or left or count < options.tasks else 0


if __name__ == "__main__":
    sys.exit(main())
