"""Handlers of the tests, good and bad; worker processes import them by name.

Payloads are dicts; "log" is a file to which each call appends a line.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from mpbroker import Delivery, Reject, Retry, current_work

not_callable = 7


def note(delivery: Delivery, *words: object) -> None:
    """A line that is whole, whoever writes at the same time."""
    line = " ".join(map(str, (delivery.message_id, delivery.attempt, os.getpid(), *words))) + "\n"
    descriptor = os.open(delivery.payload["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def work(delivery: Delivery) -> None:
    note(delivery)


def fail(delivery: Delivery) -> None:
    note(delivery)
    raise ValueError("no such customer")


def reject(delivery: Delivery) -> None:
    note(delivery)
    raise Reject("it can never work")


def retry_once(delivery: Delivery) -> None:
    note(delivery)
    if delivery.attempt == 1:
        raise Retry(0.0, "the first is never good enough")


def settle(delivery: Delivery) -> None:
    note(delivery, delivery.ack())
    raise ValueError("too late to matter")


def leave(delivery: Delivery) -> None:
    """Neither acks nor fails."""
    note(delivery)


def wait_for_file(delivery: Delivery) -> None:
    """Until payload["until"] is there."""
    note(delivery, "begins")
    while not Path(delivery.payload["until"]).exists():
        time.sleep(0.005)
    note(delivery, "ends")


def wait_until_told(delivery: Delivery) -> None:
    """Until the worker is to stop, or has lost its message."""
    note(delivery, "begins")
    work = current_work()
    assert work is not None
    assert work.delivery is delivery
    while not (work.is_lost or work.is_stopping):
        time.sleep(0.005)
    note(delivery, "lost" if work.is_lost else "stopping")


def hold_the_interpreter(delivery: Delivery) -> None:
    """For payload["seconds"], in one call of C that never lets go of the GIL, nor looks for signals."""
    note(delivery, "begins")
    end = time.monotonic() + delivery.payload["seconds"]
    deque(takewhile(end.__gt__, iter(time.monotonic, None)), maxlen=0)
    note(delivery, "ends")


def die(delivery: Delivery) -> None:
    """In payload["how"], the first payload["times"] times."""
    note(delivery)
    if delivery.attempt > delivery.payload["times"]:
        return
    how = delivery.payload["how"]
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "hang":
        time.sleep(3600)
    elif how == "memory":
        _kept.append(b"x" * delivery.payload["bytes"])
    elif how == "hang with children":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], stdout=subprocess.DEVNULL)
        time.sleep(3600)
    else:
        os.kill(os.getpid(), getattr(signal, how))
        signal.pause()


class Awkward(Exception):
    """Cannot be pickled, nor shown."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __str__(self) -> str:
        raise RuntimeError("and cannot be shown")


def misbehave(delivery: Delivery) -> object:
    """In payload["how"], the first time; then it is good."""
    note(delivery)
    if delivery.attempt > 1:
        return None
    return _WAYS[delivery.payload["how"]](delivery)


def _system_exit(_: Delivery) -> NoReturn:
    sys.exit(3)


def _interrupt(_: Delivery) -> NoReturn:
    raise KeyboardInterrupt


def _awkward(_: Delivery) -> NoReturn:
    raise Awkward


def _returns_lock(_: Delivery) -> object:
    return threading.Lock()


def _memory(_: Delivery) -> object:
    import resource

    used = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (512 << 20, used[1]))
    try:
        return bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, used)


def _fork(delivery: Delivery) -> None:
    """The child comes back out of the handler, as its parent does."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        note(delivery, "child", os.waitstatus_to_exitcode(status))


def _pool(delivery: Delivery) -> None:
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]


def _closed_pipe(_: Delivery) -> None:
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    os.close(write)
    print("for nobody", flush=True)


def _closed_pipe_at_the_end(_: Delivery) -> None:
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    os.close(write)
    sys.stdout = os.fdopen(1, "w", closefd=False)  # buffered, whatever the environment says
    print("for nobody")


def _closed_output(_: Delivery) -> None:
    sys.stdout.close()


_WAYS: dict[str, Any] = {
    "system exit": _system_exit,
    "interrupt": _interrupt,
    "awkward": _awkward,
    "lock": _returns_lock,
    "memory": _memory,
    "fork": _fork,
    "pool": _pool,
    "closed pipe": _closed_pipe,
    "closed pipe at the end": _closed_pipe_at_the_end,
    "closed output": _closed_output,
}


def start_up(log: str, word: str) -> None:
    """An initializer."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{word} {os.getpid()}\n".encode())
    os.close(descriptor)


def cannot_start() -> NoReturn:
    raise OSError("no database here")


def grow(delivery: Delivery) -> None:
    """Keep what it allocates."""
    note(delivery)
    _kept.append(b"x" * (64 << 20))


_kept: list[bytes] = []
