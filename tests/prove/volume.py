"""Very many messages through real processes while workers are killed: `mpbroker stress`, again and again.

The stress verifies every id from the histories of its processes: acked once in the group, delivered again once for each
worker killed holding it, seen in order by a second subscription. Here are its sizes and the sum of its figures.
Its processes use rings and sockets side by side, at one broker; see volume_planes.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from tests.prove.part import Outcome
from tests.prove.planes import BOTH
from tests.prove.volume_planes import COMMAND

ROOT: Final = Path(__file__).resolve().parents[2]

LIMIT_S: Final = 600.0
"""Of one run; a million messages take about a minute."""

METHODS: Final = ("fork", "spawn", "forkserver")


class _Kill(msgspec.Struct):
    held: int


class _Report(msgspec.Struct):
    """What is used of the report of a run."""

    passed: bool
    redelivered: int
    kills: list[_Kill]
    shares: dict[str, int]


def run(seconds: float, seed: int, *, quick: bool) -> Outcome:
    """Runs of the stress, each with another start method and kills, for about so many seconds."""
    rng = random.Random(seed)
    outcome = Outcome("volume")
    messages = killed = redelivered = runs = 0
    published: Counter[str] = Counter()
    acked: Counter[str] = Counter()
    each = 5_000 if quick else 100_000
    started = time.monotonic()
    for method in itertools.cycle(METHODS):
        options = ["--publishers", "4", "--messages", str(each), "--workers", "3", "--batch", "100", "--json"]
        options += ["--kill-workers", str(rng.randrange(2, 12)), "--seed", str(rng.randrange(2**31))]
        options += ["--start-method", method, *rng.choice([[], ["--priorities"], ["--payload-bytes", "1000"]])]
        with tempfile.TemporaryDirectory(prefix="mpv-") as folder:
            told = Path(folder, "planes")
            command = [sys.executable, "-P", "-c", COMMAND, str(told), rng.choice(BOTH), "stress", *options]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment
            )
            planes: dict[str, str] = json.loads(told.read_bytes()) if told.exists() else {}
        if done.returncode != 0:
            outcome.failures.append(f"{' '.join(command[4:])}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
            break
        report = msgspec.json.decode(done.stdout, type=_Report)
        messages += 4 * each
        for name, plane in planes.items():
            published[plane] += each * name.startswith("publisher")
            acked[plane] += report.shares.get(name, 0)
        killed += len(report.kills)
        redelivered += report.redelivered
        runs += 1
        if time.monotonic() - started > seconds:
            break
    outcome.figures = {
        "messages verified through real processes": messages,
        "workers killed while holding messages": killed,
        "redelivered": redelivered,
        "runs": runs,
        **{f"published on the {plane} plane": published[plane] for plane in BOTH},
        **{f"acked on the {plane} plane": acked[plane] for plane in BOTH},
        "messages a second": round(messages / (time.monotonic() - started)),
    }
    return outcome
