"""What the tests of the executor have called."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path


def square(number: int) -> int:
    return number * number


def fail(word: str) -> None:
    raise ValueError(word)


def pid() -> int:
    return os.getpid()


def wait_for(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.005)
    return path


def die_once(path: str, how: str = "SIGKILL") -> int:
    """Dies unless somebody did so before."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return os.getpid()
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), getattr(signal, how))
    return 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def cannot_travel() -> object:
    return threading.Lock()


class Awkward(Exception):
    """Can be pickled, and not be made again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)


def raise_awkward() -> None:
    raise Awkward(1, 2)


def leave() -> None:
    raise SystemExit(3)


class State:
    """What the initializer of a worker left there."""

    word = "nothing"


def set_up(word: str) -> None:
    State.word = word


def word() -> str:
    return State.word


def cannot_set_up() -> None:
    raise OSError("no database here")


def kill_always(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault_always(_: str) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def exit_always(_: str) -> None:
    os._exit(3)
