"""`scripts/prove`: run every part of the proof, and say in one line what was proved or what failed."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from mpbroker.testing import Leak, LeakCheck
from tests.prove.part import Outcome
from tests.prove.parts import PARTS, Entry

_GRACE = 5.0
_MORE_S = 600.0
"""A part that takes so many times its seconds, and so many more, has failed: it hangs, and no machine is that slow.

Whatever a part waits for has a lower limit of its own, which says more.
"""

_LOOK_S = 0.1

_TOLD = 3
"""Failures of a part that are told again at the end, in so many lines from either side:"""
_LINES = 4


@dataclass(slots=True)
class _Running:
    """A part at work in a process of its own."""

    entry: Entry
    process: subprocess.Popen[bytes]
    result: Path
    log: Path
    started: float
    limit_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 when nothing failed."""
    options = _options(arguments)
    if options.part is not None:
        return _one(options)
    chosen = [entry for entry in PARTS if not options.only or entry.name in options.only]
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    jobs = options.jobs or min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2, len(chosen))
    print(f"seed {seed}; {len(chosen)} parts, {jobs} at a time; repeat with --seed {seed}", flush=True)
    started = time.monotonic()
    with _folder() as folder:
        outcomes = _run_all(chosen, _seconds(chosen, options, jobs), seed, jobs, options.quick, folder)
    return _say(outcomes, seed, time.monotonic() - started)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/prove",
        description="Kill, stop, fork, flood, simulate and fuzz; every accepted message is accounted for.",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="the short form, as in CI: a few minutes")
    length.add_argument("--minutes", type=float, default=10.0, help="about how long it takes in all (default 10)")
    parser.add_argument("--seed", type=int, help="what everything random is drawn from (default: another each time)")
    parser.add_argument("--jobs", type=int, help="parts at a time (default: one on each core)")
    parser.add_argument("--only", action="append", choices=[entry.name for entry in PARTS], help="repeatable")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _one(options: argparse.Namespace) -> int:
    """In a part's own process: do it, and write down what it found."""
    entry = next(entry for entry in PARTS if entry.name == options.part)
    check = LeakCheck([options.result.parent], allow_files=["result.json", "log"]).start()
    outcome = entry.load()(options.seconds, options.seed, quick=options.quick)
    try:
        check.verify()
    except Leak as leak:
        outcome.failures.append(str(leak))
    options.result.write_bytes(msgspec.json.encode(outcome))
    return 0


def _seconds(chosen: Sequence[Entry], options: argparse.Namespace, jobs: int) -> dict[str, float]:
    """What each part gets."""
    if options.quick:
        return {entry.name: entry.quick_s for entry in chosen}
    whole = options.minutes * 60 * jobs
    shares = sum(entry.share for entry in chosen)
    # No part can have more than the whole time, however few run beside it.
    return {entry.name: min(options.minutes * 60, whole * entry.share / shares) for entry in chosen}


@contextmanager
def _folder() -> Iterator[Path]:
    """For results, logs and brokers; its path is short, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="mpb-prove-", dir="/tmp" if Path("/tmp").is_dir() else None) as name:
        yield Path(name)


def _run_all(
    chosen: Sequence[Entry], seconds: dict[str, float], seed: int, jobs: int, quick: bool, folder: Path
) -> list[Outcome]:
    waiting = list(chosen)
    running: list[_Running] = []
    outcomes: dict[str, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(0), seconds, seed, quick, folder))
            time.sleep(_LOOK_S)
            for each in [each for each in running if _is_over(each)]:
                running.remove(each)
                outcomes[each.entry.name] = outcome = _collect(each)
                _show(outcome, time.monotonic() - each.started)
    finally:
        for each in running:
            _kill(each.process)
    return [outcomes[entry.name] for entry in chosen]


def _start(entry: Entry, seconds: dict[str, float], seed: int, quick: bool, folder: Path) -> _Running:
    own = folder / entry.name
    own.mkdir(mode=0o700)
    result, log = own / "result.json", own / "log"
    command = [sys.executable, "-m", "tests.prove", "--part", entry.name, "--seconds", str(seconds[entry.name])]
    command += ["--seed", str(seed), "--result", str(result), *(["--quick"] if quick else [])]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, "MPBROKER_DIR": str(own)}
        )
    limit_s = _GRACE * seconds[entry.name] + _MORE_S
    return _Running(entry, process, result, log, time.monotonic(), limit_s)


def _is_over(each: _Running) -> bool:
    if each.process.poll() is not None:
        return True
    if time.monotonic() - each.started > each.limit_s:
        _kill(each.process)
        return True
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """A part with all that it started."""
    own = psutil.Process(process.pid)
    for each in [*own.children(recursive=True), own]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def _collect(each: _Running) -> Outcome:
    """What the part wrote, or why there is nothing."""
    if each.process.returncode == 0:
        return msgspec.json.decode(each.result.read_bytes(), type=Outcome)
    last = each.log.read_text(errors="replace").splitlines()[-40:]
    how = f"it ended with {each.process.returncode} after {time.monotonic() - each.started:.0f} s"
    return Outcome(each.entry.name, failures=["\n".join([how, *last])])


def _show(outcome: Outcome, took_s: float) -> None:
    state = "FAILED" if outcome.failures else "ok"
    print(f"\n{outcome.name}: {state}, {took_s:.0f} s", flush=True)
    for name, value in outcome.figures.items():
        print(f"  {name}: {value:,}" if isinstance(value, int | float) else f"  {name}: {value}", flush=True)
    for failure in outcome.failures:
        print("  ! " + failure.replace("\n", "\n    "), flush=True)


def _say(outcomes: Sequence[Outcome], seed: int, took_s: float) -> int:
    """The one line at the end, and the exit code."""
    failed = [outcome.name for outcome in outcomes if outcome.failures]
    if failed:
        count = sum(len(outcome.failures) for outcome in outcomes)
        # Once more at the end, which is what is kept of a long output.
        for outcome in outcomes:
            for failure in outcome.failures[:_TOLD]:
                print(f"\n{outcome.name}: {_shortened(failure)}")
        print(f"\nFAILED: {count} found in {', '.join(failed)}; seed {seed}, {took_s:.0f} s")
        return 1
    told = [f"{value:,} {name}" for outcome in outcomes for name, value in _headline(outcome)]
    print(f"\nproved in {took_s:.0f} s: {'; '.join(told)}; 0 lost, 0 wrong; seed {seed}")
    return 0


def _shortened(failure: str) -> str:
    """Its first lines and, of a long one, its last."""
    lines = failure.splitlines()
    return "\n    ".join(lines if len(lines) <= 2 * _LINES else [*lines[:_LINES], "…", *lines[-_LINES:]])


def _headline(outcome: Outcome) -> Iterator[tuple[str, int]]:
    """The figures that the last line repeats: the counts among the first three of a part."""
    for name, value in list(outcome.figures.items())[:3]:
        if isinstance(value, int):
            yield name, value


if __name__ == "__main__":
    sys.exit(main())
