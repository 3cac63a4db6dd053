"""What decides takes the time as an argument and touches nothing outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.arch.source import Module, imports, modules, parse
from tests.arch.test_ladder import VALUES, group

OUTSIDE = {
    "asyncio", "datetime", "importlib", "io", "logging", "multiprocessing", "os", "pathlib",
    "pickle", "psutil", "random", "secrets", "select", "selectors", "signal", "socket",
    "subprocess", "sys", "tempfile", "time", "uuid",
}  # fmt: skip
"""Modules that tell the time, draw lots, or reach a file, a process, a peer or a user's code."""

CLOCKS = {
    "getpid", "monotonic", "monotonic_ns", "now", "perf_counter", "perf_counter_ns",
    "process_time", "time", "time_ns", "today", "utcnow",
}  # fmt: skip
"""Functions that do so when called without arguments, whatever module they are reached through."""

EFFECTS = {"__import__", "open", "print", "sleep", "token_bytes", "urandom"}
"""Functions that do so with any arguments."""


def is_pure(name: str) -> bool:
    return name in VALUES or name.partition(".")[0] == "engine" or name in group("deciding")


def offences(module: Module) -> Iterator[str]:
    banned = OUTSIDE
    if module.name in group("deciding"):
        # One thread serves the broker process; it may say what went wrong.
        banned = OUTSIDE - {"logging"} | {"threading", "queue"}
    for item in imports(module):
        if item.name.partition(".")[0] in banned:
            yield f"{module.path}:{item.line}: imports {item.name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            asks = name in CLOCKS and not (node.args or node.keywords)
            if asks or name in EFFECTS:
                yield f"{module.path}:{node.lineno}: calls {ast.unparse(called)}()"


@pytest.mark.parametrize("module", [m for m in modules() if is_pure(m.name)], ids=lambda module: module.name)
def test_the_deciding_modules_read_no_clock_and_touch_nothing_outside(module: Module) -> None:
    assert list(offences(module)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import time as t",
        "from time import monotonic",
        "from time import monotonic as clock",
        "def f():\n    import time",
        "import os.path",
        "import random",
        "from datetime import datetime",
        "from multiprocessing import connection",
        "def expire(self):\n    return self.owner.monotonic()",
        "def expire(self):\n    return self.clock.now()",
        "def expire(now=monotonic()): pass",
        "__import__('time')",
        "import importlib",
    ],
)
def test_an_engine_that_could_read_the_clock_is_found(text: str) -> None:
    assert list(offences(parse(text, "engine.planted")))


@pytest.mark.parametrize("text", ["import threading", "import socket", "import queue"])
def test_sessions_that_could_wait_for_somebody_are_found(text: str) -> None:
    assert list(offences(parse(text, "process.sessions")))


def test_an_engine_may_have_locks_and_take_the_time_as_an_argument() -> None:
    text = "import threading\ndef expire(self, now):\n    return self.deadline <= self.time(now)"
    assert list(offences(parse(text, "engine.planted"))) == []
