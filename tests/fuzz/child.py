"""Fuzzes one target in a process of its own, until the time is over or a law is broken; run by `part`.

    python -m tests.fuzz.child TARGET guided WATCHED LIBFUZZER_OPTION…  atheris, which ends the process
    python -m tests.fuzz.child TARGET blind SECONDS SEED MAX_BYTES FOLDER

Both tell in their last lines how many executions there were, as libFuzzer does, and leave an input that broke a law in
the current folder.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXECUTED = "stat::number_of_executed_units:"

Target = Callable[[bytes], None]


def load(name: str) -> Target:
    target: Target = importlib.import_module(name if "." in name else f"tests.fuzz.targets.{name}").target
    return target


def guided(name: str, watched: str, options: list[str]) -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=[*watched.split(",")]):
        target = load(name)
    atheris.Setup([sys.argv[0], *options], target)
    atheris.Fuzz()


def blind(name: str, seconds: float, seed: int, max_bytes: int, folder: Path) -> int:
    """Damage what is in a folder, at random; 1 when a law is broken. Where there is no atheris."""
    target = load(name)
    dice = random.Random(seed)
    known = [path.read_bytes() for path in sorted(folder.iterdir())] or [b""]
    inputs = list(reversed(known))
    deadline = time.monotonic() + seconds
    count = 0
    while inputs or time.monotonic() < deadline:
        given = inputs.pop() if inputs else damaged(dice, dice.choice(known), dice.choice(known))[:max_bytes]
        count += 1
        try:
            target(given)
        except BaseException:  # whatever it is, it is what was looked for
            traceback.print_exc()
            Path("crash-blind").write_bytes(given)
            print(EXECUTED, count, file=sys.stderr)
            return 1
    print(EXECUTED, count, file=sys.stderr)
    return 0


def damaged(dice: random.Random, one: bytes, other: bytes) -> bytes:
    body = bytearray(one)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(body) + 1)
        match dice.randrange(5):
            case 0:
                body[at : at + 1] = bytes([dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))])
            case 1:
                del body[at : at + dice.randint(1, 8)]
            case 2:
                body[at:at] = dice.randbytes(dice.randint(1, 8))
            case 3:
                start = dice.randrange(len(other) + 1)
                body[at:at] = other[start : start + dice.randint(1, 40)]
            case _:
                body[at:] = body[at:] * 2
    return bytes(body)


def main(arguments: list[str]) -> int:
    name, how, *options = arguments
    if how == "guided":
        guided(name, options[0], options[1:])
        return 0
    seconds, seed, max_bytes, folder = options
    return blind(name, float(seconds), int(seed), int(max_bytes), Path(folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
