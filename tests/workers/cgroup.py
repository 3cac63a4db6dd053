"""A control group with little memory, where this user may make one."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.workers.support import LIMIT_S

LIMIT_BYTES = 96 << 20

_FIRST = Path("/sys/fs/cgroup/memory")
_SECOND = Path("/sys/fs/cgroup")


@contextmanager
def little_memory() -> Iterator[Path]:
    """The file to which a process that is to be in it writes its number. Skips where there can be none."""
    try:
        group = _make()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                group.rmdir()
                break
            except OSError:  # who was in it is being buried
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def _make() -> Path:
    name = f"mpbroker-test-{secrets.token_hex(4)}"
    if (_FIRST / "memory.limit_in_bytes").exists():
        group = _FIRST / name
        limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    else:
        if "memory" not in (_SECOND / "cgroup.subtree_control").read_text().split():
            raise OSError("the memory controller is not delegated")
        group = _SECOND / name
        limits = ("memory.max", "memory.swap.max")
    group.mkdir()
    try:
        (group / limits[0]).write_text(str(LIMIT_BYTES))
        if (group / limits[1]).exists():
            (group / limits[1]).write_text("0" if limits[1] == "memory.swap.max" else str(LIMIT_BYTES))
    except OSError:
        group.rmdir()
        raise
    return group


def join(procs: str) -> None:
    """Have this process be in it."""
    Path(procs).write_text(str(os.getpid()))
