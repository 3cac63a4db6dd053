"""Gathers the kept corpus anew: ``python -m tests.fuzz.gather [SECONDS [TARGET…]]``, 20 seconds a target.

Fuzzes each target from its seeds and what is kept, and keeps the few small inputs that together run every step that all
of them run. What is not found again (the fuzzer is lucky or not) stays, since it is among what is chosen from.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.fuzz import part
from tests.fuzz.child import Target, load
from tests.fuzz.seeds import seeds
from tests.fuzz.table import CORPUS, KEPT_BYTES, KEPT_FILES, TARGETS

_WATCHED: Final = ("/mpbroker/", "/tests/fuzz/", "<string>")

Step = tuple[str, int, int]
"""From one instruction of a function to another; or an exception that came to it."""


def steps(target: Target, given: bytes) -> frozenset[Step]:
    """What an input runs."""
    seen: set[Step] = set()

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not any(part in code.co_filename for part in _WATCHED):
            return None
        name = f"{code.co_filename}:{code.co_firstlineno}"
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        last = -1

        def step(frame: types.FrameType, event: str, what: Any) -> Any:
            nonlocal last
            if event == "opcode":
                seen.add((name, last, frame.f_lasti))
                last = frame.f_lasti
            elif event == "exception":
                seen.add((f"{name}:{what[0].__name__}", last, 0))
            return step

        return step

    sys.settrace(trace)
    try:
        target(given)
    finally:
        sys.settrace(None)
    return frozenset(seen)


def chosen(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """The few that run what all of them run, as far as the bounds go."""
    runs = {given: steps(target, given) for given in sorted(inputs, key=lambda given: (len(given), given))}
    missing = set().union(*runs.values()) if runs else set()
    kept: list[bytes] = []
    size = 0
    while missing and len(kept) < KEPT_FILES:
        # The first of equals is the smallest.
        best = max(runs, key=lambda given: len(runs[given] & missing) / (64 + len(given)))
        gain = runs.pop(best) & missing
        if not gain:
            break
        missing -= gain
        if size + len(best) <= KEPT_BYTES:
            kept.append(best)
            size += len(best)
    return kept


def gather(name: str, seconds: float, seed: int) -> str:
    """Renew one target's kept inputs; says what came of it."""
    inputs = {path.read_bytes() for path in part.kept(name)} | set(seeds(name))
    home = CORPUS / name
    home.mkdir(parents=True, exist_ok=True)
    write(home, inputs)
    with part.working_folder() as folder:
        found = part.fuzz_one(name, TARGETS[name], folder, seconds, seed)
        if found.failure:
            return f"{name}: {found.failure}"
        inputs |= {path.read_bytes() for path in (folder / "corpus").iterdir()}
    kept = chosen(load(name), inputs)
    for path in part.kept(name):
        path.unlink()
    write(home, kept)
    return f"{name}: {len(kept)} of {len(inputs)} inputs kept, {found.executions:,} executions"


def write(home: Path, inputs: Iterable[bytes]) -> None:
    for given in inputs:
        (home / f"{hashlib.sha256(given).hexdigest()[:16]}.bin").write_bytes(given)


def main(arguments: list[str]) -> None:
    seconds, *names = arguments or ["20"]
    for name in names or TARGETS:
        print(gather(name, float(seconds), 1), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
