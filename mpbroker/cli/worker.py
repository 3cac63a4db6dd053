"""``mpbroker worker``: worker pools in the foreground, until they are told to end or have nothing to do."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpbroker.cli.exits import Interrupted, verb
from mpbroker.cli.options import Directory, Name, connected
from mpbroker.cli.output import complain, say

if TYPE_CHECKING:
    from mpbroker.process.proxy import BrokerProxy
    from mpbroker.workers import WorkerPool

_GRACE_S = 30.0
_LOOK_S = 0.2

_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text and text[-1].isalpha() else (text, "")
    try:
        return int(float(number) * _SIZES[unit])
    except (ValueError, KeyError, OverflowError):
        raise typer.BadParameter(f"it takes bytes, as in 200000000, 512M or 2G, not {text!r}") from None


@verb
def worker(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="A handler, or an App with its handlers.", show_default=False),
    ],
    name: Name = "default",
    directory: Directory = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="For a handler: its topic.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="For a handler: its subscription. Default: its name.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", "-p", help="Worker processes of each handler. Default: one a processor."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads in each, for handlers that wait more than they compute.")] = 1,
    prefetch: Annotated[int, typer.Option(help="Messages handed to a worker together.")] = 1,
    burst: Annotated[bool, typer.Option("--burst", help="End when there is nothing left to do.")] = False,
    max_messages: Annotated[int | None, typer.Option(help="End after so many messages.")] = None,
    max_idle: Annotated[float | None, typer.Option(help="End when nothing came for so many seconds.")] = None,
    max_messages_per_child: Annotated[int | None, typer.Option(help="Replace a worker after so many messages.")] = None,
    max_rss: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Replace a worker that has more memory: 512M, 2G.")
    ] = None,
    max_age: Annotated[float | None, typer.Option(help="Replace a worker after so many seconds.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for one message; then its worker is killed, and the attempt failed.")
    ] = None,
    grace: Annotated[float, typer.Option(help="Seconds that what runs has to finish at the end.")] = _GRACE_S,
    reload: Annotated[
        bool, typer.Option("--reload", help="Replace the workers when Python files change below the current folder.")
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="How the log on standard error looks.", case_sensitive=False)
    ] = LogFormat.TEXT,
) -> None:
    """Run workers in the foreground.

    The first SIGTERM or Ctrl-C lets what runs finish and gives the rest back; the second gives back what runs, too; the
    third kills. SIGHUP replaces the workers one by one. Ended so after the first, and by --burst, --max-messages and
    --max-idle, the exit code is 0.
    """
    # Whoever names a module means one that Python finds from here.
    sys.path.insert(0, os.getcwd())
    options: dict[str, Any] = {
        "processes": processes,
        "threads": threads,
        "prefetch": prefetch,
        "burst": burst,
        "max_messages": max_messages,
        "max_idle": max_idle,
        "max_messages_per_child": max_messages_per_child,
        "max_rss": None if max_rss is None else _bytes(max_rss),
        "max_age": max_age,
        "timeout": timeout,
        "grace": grace,
        "log_format": log_format.value,
    }
    watch = _watcher() if reload else None
    with connected(name, directory) as broker:
        try:
            pools = _pools(broker, target, topic, group, options)
        except (TypeError, ValueError) as error:
            raise typer.BadParameter(str(error)) from None
        _run(pools, watch)
        for pool in pools:
            # Says what is wrong where the broker or the subscription is gone.
            broker.subscription(pool.topic, pool.group)


def _pools(
    broker: BrokerProxy, target: str, topic: str | None, group: str | None, options: dict[str, Any]
) -> list[WorkerPool]:
    from mpbroker.errors import HandlerError
    from mpbroker.workers import App, WorkerPool
    from mpbroker.workers.target import by_name

    found = by_name(target)
    if isinstance(found, App):
        if topic is not None or group is not None:
            raise typer.BadParameter(f"{target} is an App, whose handlers have topics and groups of their own")
        if not found.declared:
            raise HandlerError(target, "no handler is declared in it: @app.subscriber(topic) does that")
        return found.pools(broker, **options)
    if not callable(found):
        raise HandlerError(target, f"it is neither callable nor an App, but {type(found).__name__}")
    if topic is None:
        raise typer.BadParameter("a handler needs --topic; an App says it for its handlers")
    own = target.partition(":")[2].rpartition(".")[2]
    return [WorkerPool(broker, topic, own if group is None else group, target, **options)]


def _run(pools: list[WorkerPool], watch: Callable[[], bool] | None) -> None:
    started: list[WorkerPool] = []
    asked: list[int] = []

    def on_signal(number: int, _: object) -> None:
        asked.append(number)
        _ask(started, len(asked))

    def on_hangup(*_: object) -> None:
        for pool in started:
            pool.replace_workers()

    # Before there is a worker that could be at work when one comes.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGHUP, on_hangup)
    with ExitStack() as stack:
        for pool in pools:
            if asked:
                return
            stack.callback(pool.close)
            pool.start()
            started.append(pool)
            say(f"ready: {pool.topic}/{pool.group}, workers {', '.join(map(str, pool.worker_pids()))}")
        if asked:
            _ask(started, len(asked))
        for pool in pools:
            while not pool.wait(_LOOK_S):
                if watch is not None and watch():
                    on_hangup()
    _tell_ends(pools)
    if len(asked) > 1:
        raise Interrupted(asked[-1])


def _tell_ends(pools: list[WorkerPool]) -> None:
    for pool in pools:
        stats = pool.stats()
        figures = f"{stats.done:,} done, {stats.failed:,} failed, {stats.died:,} workers died"
        say(f"ended: {pool.topic}/{pool.group}: {pool.ended}; {figures}")


def _ask(pools: list[WorkerPool], times: int) -> None:
    ways = ("drain", "release", "kill")
    for pool in pools:
        getattr(pool, ways[min(times, len(ways)) - 1])()


def _watcher() -> Callable[[], bool]:
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise typer.BadParameter("--reload needs watchfiles: pip install 'mpbroker[reload]'") from None
    changes: Iterator[set[Any]] = watch(
        ".", watch_filter=PythonFilter(), rust_timeout=1, yield_on_timeout=True, raise_interrupt=False
    )

    next(changes)  # it looks from here on

    def has_changed() -> bool:
        changed = next(changes, None)
        if changed:
            complain(f"{len(changed)} files changed: workers are replaced")
        return bool(changed)

    return has_changed
