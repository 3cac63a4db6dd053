"""The broker process from its start to its end.

Owns what a process needs around the loop: filters, limits of the system, signals, logging, the word that it is ready,
the folder. `run_managed` is the whole life of a broker that a BrokerManager started, in a fresh interpreter that never
imports anybody's ``__main__``; `serve` is the same in the foreground.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Final, NoReturn

from mpbroker._version import __version__
from mpbroker.engine import Engine
from mpbroker.errors import BrokerFailed, MpbrokerError
from mpbroker.process import frames
from mpbroker.process.claims import BrokerFolder
from mpbroker.process.config import Config, NotStarted, Started, config_in, line_of
from mpbroker.process.failures import failure
from mpbroker.process.limits import Limits
from mpbroker.process.loop import Loop
from mpbroker.process.naming import BrokerInfo
from mpbroker.process.segments import Segments
from mpbroker.process.sessions import Sessions
from mpbroker.settings import Filter

_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


def run_managed(lifeline: socket.socket, line: bytes, pidfd: int) -> NoReturn:
    """Be the broker that the process at the other end of the lifeline wants; never returns.

    line: its Config as JSON. pidfd: of that process, or -1.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a thread of the creator may have blocked some

    def ready(loop: Loop, started: Started) -> None:
        loop.endings.with_creator(lifeline, None if pidfd < 0 else pidfd)
        _write_errors_to(config.stderr)
        _tell(lifeline, started)

    try:
        config = config_in(line)
        run(config, ready)
        code = 0
    except MpbrokerError as error:
        told = failure(error)
        _tell(lifeline, NotStarted(told.kind, told.args))
        code = 1
    except BaseException:  # noqa: BLE001 - it is told, and the process ends
        traceback.print_exc()
        _tell(lifeline, NotStarted("BrokerFailed", [traceback.format_exc()]))
        code = 1
    logging.shutdown()
    sys.stderr.flush()
    # Freeing a million messages one by one would keep those waiting who join this process.
    os._exit(code)


def serve(config: Config, on_ready: Callable[[Started], None]) -> str:
    """Be a broker in the foreground, in the main thread; return why it ended, once it did.

    SIGTERM and SIGINT end it cleanly. on_ready is called when clients can connect; systemd is told too, where it asked
    to be.

    Raises:
        NameTaken, InsecureFolder, BrokerFailed: it did not start.
    """

    def ready(_: Loop, started: Started) -> None:
        on_ready(started)
        notify_systemd("READY=1")

    try:
        return run(config, ready)
    finally:
        notify_systemd("STOPPING=1")


def run(config: Config, ready: Callable[[Loop, Started], None]) -> str:
    """Start, call ``ready``, serve, end; return why it ended."""
    log = _set_up_log(config)
    functions = load_filters(config.filter_modules)
    limits = _allow_descriptors(config.limits)
    incarnation = secrets.token_hex(8)
    info = BrokerInfo(os.getpid(), __version__, frames.PROTOCOL, incarnation, time.time())
    with BrokerFolder.claim(config.name, Path(config.base), info) as place:
        segments = Segments()
        sessions = Sessions(
            Engine(incarnation=incarnation, max_letters=limits.max_dead_letters),
            key=place.key,
            limits=limits,
            manual_time=config.manual_time,
            functions=functions,
            nonce=os.urandom,
            wall_clock=time.time,
            version=__version__,
            pid=info.pid,
            started=time.monotonic(),
            memory=_memory_bytes,
            read=segments.read,
        )
        # When its clients learn of the end, the name is free for the next one.
        loop = Loop(sessions, place.listener, release=place.release, segments=segments)
        loop.endings.on_signals(*_ending_signals())
        _show_stacks_on_request(log)
        _name_process(config.name)
        _spare_the_collector()
        ready(loop, Started(os.fspath(place.folder), incarnation, info.pid))
        logger = logging.getLogger("mpbroker")
        logger.info("broker %s is ready in %s", incarnation, place.folder)
        reason = loop.run()
        logger.info("broker %s ends: %s", incarnation, reason)
        return reason


def load_filters(modules: Iterable[str]) -> dict[str, Filter]:
    """The functions of modules that may be filters, by ``module:name``.

    Those that a module defines, and those that a package's own modules do and it shows.

    Raises:
        BrokerFailed: a module cannot be imported; with the traceback.
    """
    functions: dict[str, Filter] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except BaseException:  # noqa: BLE001 - a module may do anything when it is imported
            raise BrokerFailed(f"filter module {name!r} cannot be imported\n{traceback.format_exc()}") from None
        for value in vars(module).values():
            if isinstance(value, types.FunctionType) and f"{value.__module__}.".startswith(f"{name}."):
                functions[f"{value.__module__}:{value.__qualname__}"] = value
    return functions


def notify_systemd(state: str) -> None:
    """Tell systemd how the service is; does nothing where nobody asked, and never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in {"/", "@"}:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
    except OSError as error:
        logging.getLogger("mpbroker").warning("systemd cannot be told %s: %s", state, error)


# -- the process ------------------------------------------------------------------------------------------------------


def _tell(lifeline: socket.socket, words: Started | NotStarted) -> None:
    try:
        lifeline.sendall(line_of(words))
    except OSError:
        pass  # nobody waits for it any more; the loop sees that, too


def _write_errors_to(descriptor: int) -> None:
    """Until it is ready, what goes wrong is kept for its creator; from now on it goes where the creator's does."""
    if descriptor < 0:
        descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _ending_signals() -> Iterator[signal.Signals]:
    yield from (signal.SIGTERM, signal.SIGINT)
    hang_up = getattr(signal, "SIGHUP", None)
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:  # as nohup has it
        yield hang_up


def _set_up_log(config: Config) -> IO[str] | int:
    """Returns where the log goes; a descriptor where it is standard error, which may be replaced."""
    logger = logging.getLogger("mpbroker")
    handler: logging.Handler
    log: IO[str] | int = 2
    if config.log_file is not None:
        file = Path(config.log_file)
        log = file.open("a", encoding="utf-8", errors="backslashreplace")
        handler = logging.StreamHandler(log)
    elif config.log_level is not None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(config.log_level or logging.INFO)
    logger.propagate = False
    return log


def _show_stacks_on_request(log: IO[str] | int) -> None:
    """Print every thread's stack on SIGUSR1."""
    request = getattr(signal, "SIGUSR1", None)
    if request is not None:
        faulthandler.register(request, file=log, all_threads=True, chain=False)


def _name_process(name: str | None) -> None:
    """For ps and top, where setproctitle is installed."""
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(f"mpbroker: broker {name or '(private)'}")


def _allow_descriptors(limits: Limits) -> Limits:
    """Raise the process's own limit of descriptors as far as it needs and the system lets it; the limits that fit.

    Raises BrokerFailed when they are too few for any client.
    """
    try:
        import resource
    except ImportError:
        return limits
    logger = logging.getLogger("mpbroker")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.descriptors
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
    except (OSError, ValueError) as error:
        logger.warning("no more than %d descriptors: %s", soft, error)
        more = soft
    fitting = limits.within(more)
    if fitting is not limits:
        logger.warning("%d descriptors are enough for %d connections", more, fitting.max_connections)
    return fitting


def _spare_the_collector() -> None:
    """Never look through all that is queued for garbage: with 400,000 messages that stopped the broker for 0.6 s.

    Cycles are found while they are young; what is queued has none, and goes when the last reference does.
    """
    gc.freeze()
    gc.set_threshold(5_000, 10, 1_000_000_000)


def _memory_bytes() -> int:
    """0 where the system does not say, as when the process has no descriptor left to ask with."""
    try:
        import psutil

        return int(psutil.Process().memory_info().rss)
    except (OSError, ImportError):
        return 0
