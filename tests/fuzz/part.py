"""The part of the proof that fuzzes: each target for its share of the time, from the kept corpus.

Guided by coverage where atheris is installed (the extra ``fuzz``), else by chance. What is new and interesting stays
in a temporary folder; `gather` is what changes the kept corpus.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fuzz.child import EXECUTED
from tests.fuzz.table import CORPUS, TARGETS, Shape
from tests.prove.part import Outcome

_ROOT: Final = Path(__file__).parents[2]
_MORE_S: Final = 600.0
"""What a child may take beyond its time: to start under watch, which takes minutes on a busy machine, to read the
corpus, to end an input that is slow."""

_START_S: Final = 3.0
"""What a child takes to start, about: what it watches is compiled anew."""

_ONE_INPUT_S: Final = 20
"""An input that takes longer is a failure: nothing that one frame says may keep the broker for so long."""

_MEMORY_MB: Final = 1024
_SHOWN_BYTES: Final = 6000
_TAIL: Final = 3000
_MIN_S: Final = 0.5
"""What every target gets, whatever is left."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one child did: executions, and what it found, or "". new: inputs that reached something new."""

    executions: int
    failure: str
    new: int


def is_guided() -> bool:
    """Whether there is an atheris for this Python."""
    return importlib.util.find_spec("atheris") is not None


def run(seconds: float, seed: int, *, quick: bool) -> Outcome:
    """Fuzz every target; see tests.prove.part."""
    return fuzz(TARGETS, seconds, seed)


def fuzz(targets: Mapping[str, Shape], seconds: float, seed: int) -> Outcome:
    """run, of these targets. A name with a dot in it is a module, elsewhere."""
    outcome = Outcome("fuzzing", {"fuzz_executions": 0})
    outcome.figures["guided_by_coverage"] = "yes" if is_guided() else "no, atheris is not installed"
    total = 0
    deadline = time.monotonic() + seconds
    shares = sum(shape.share for shape in targets.values())
    for left, (name, shape) in zip(range(len(targets), 0, -1), targets.items(), strict=True):
        rest_s = deadline - time.monotonic() - left * _START_S
        with working_folder() as folder:
            found = fuzz_one(name, shape, folder, max(_MIN_S, rest_s * shape.share / shares), seed)
        shares -= shape.share
        outcome.figures[f"fuzz_{name}"] = found.executions
        total += found.executions
        if found.failure:
            outcome.failures.append(f"fuzzing {name}: {found.failure}")
    outcome.figures["fuzz_executions"] = total
    return outcome


def fuzz_one(name: str, shape: Shape, folder: Path, seconds: float, seed: int) -> Found:
    """Fuzz one target in a child process that works in ``folder``; there its corpus is left, too."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for path in kept(name):
        shutil.copy(path, corpus)
    before = len(list(corpus.iterdir()))
    seed = seed % (2**32 - 1) + 1  # libFuzzer takes 0 for "draw one"
    command = [sys.executable, "-P", "-m", "tests.fuzz.child", name]
    if is_guided():
        command += ["guided", ",".join(shape.watched), *options(shape, folder, seconds, seed), str(corpus)]
    else:
        command += ["blind", str(seconds), str(seed), str(shape.max_bytes), str(corpus)]
    said, code = run_child(command, folder, seconds + _MORE_S)
    counts = re.findall(rf"{EXECUTED}\s*(\d+)", said)
    executions = int(counts[-1]) if counts else 0
    crashes = sorted(folder.glob("crash-*")) + sorted(folder.glob("timeout-*")) + sorted(folder.glob("oom-*"))
    failure = ""
    if code or crashes or not counts:
        failure = "".join([*map(shown, crashes), f"\nexit code {code}, after {executions:,} executions:\n", tail(said)])
    return Found(executions, failure, len(list(corpus.iterdir())) - before)


def kept(name: str) -> list[Path]:
    """The kept inputs of a target."""
    return sorted((CORPUS / name).glob("*.bin"))


def options(shape: Shape, folder: Path, seconds: float, seed: int) -> Iterator[str]:
    """libFuzzer's."""
    if shape.words:
        words = folder / "words"
        words.write_text("".join([f'"{quoted(word)}"\n' for word in shape.words]))
        yield f"-dict={words}"
    yield f"-max_total_time={max(1, round(seconds))}"
    yield f"-seed={seed}"
    yield f"-max_len={shape.max_bytes}"
    yield f"-artifact_prefix={folder}/"
    yield f"-timeout={_ONE_INPUT_S}"
    yield f"-rss_limit_mb={_MEMORY_MB}"
    yield "-print_final_stats=1"
    yield "-verbosity=0"
    yield "-len_control=0"


def quoted(word: bytes) -> str:
    """A word as libFuzzer's dictionaries have it."""
    return "".join([f"\\x{byte:02x}" for byte in word])


def run_child(command: list[str], folder: Path, limit_s: float) -> tuple[str, int | str]:
    """What a child said on both streams, and its exit code."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "TMPDIR": str(folder),
        "MPBROKER_DIR": str(folder / "brokers"),
    }
    with (folder / "said").open("w+b") as said:
        code: int | str
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                cwd=folder,
                timeout=limit_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"none within {limit_s:g} s, killed"
        said.seek(0)
        return said.read().decode(errors="replace"), code


@contextmanager
def working_folder() -> Iterator[Path]:
    """In memory where that can be: targets write many small files."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="mpb-fuzz-", dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def shown(crash: Path) -> str:
    """An input, so that it can be kept: `base64 -d` of it is a file for the corpus."""
    content = crash.read_bytes()
    text = base64.b64encode(content).decode()
    return f"{crash.name} of {len(content)} bytes, in base64: {text[:_SHOWN_BYTES]}"


def tail(said: str) -> str:
    """The traceback, or what else stands at the end."""
    at = said.find("Traceback (most recent call last)")
    return said[at : at + _TAIL] if at >= 0 else said[-_TAIL:]
