"""The start of a supervisor process, in a fresh interpreter."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from mpbroker.errors import HandlerError
from mpbroker.workers.config import PoolConfig
from mpbroker.workers.logs import set_up
from mpbroker.workers.supervisor import Supervisor


def main(descriptor: int) -> None:
    """Be the supervisor of the pool that is described on a connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline = Connection(descriptor)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - it has no name
    config: PoolConfig = lifeline.recv()
    set_up(config.log_format)
    try:
        _preload(config.preload)
    except HandlerError as error:
        lifeline.send(("failed", str(error), error))
        return
    gc.freeze()
    Supervisor(config, lifeline).serve()


def _preload(modules: tuple[str, ...]) -> None:
    """Import what workers are to have from their birth. Raises HandlerError, also where it starts threads."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            raise HandlerError(f"preload={module!r}", f"{type(error).__name__}: {error}") from error
    if _threads() > 1:
        raise HandlerError(f"preload={modules!r}", "importing it starts threads, and workers are forked from there")


def _threads() -> int:
    """Of this process, also those that Python does not know of."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()
