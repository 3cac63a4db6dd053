"""BrokerManager: a broker process for as long as somebody needs it. connect: one that runs already.

Owns the start and the end of a broker of this process, the way `multiprocessing` managers do it. Client side.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterable
from multiprocessing import managers, util
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self, Unpack, cast

from mpbroker import checks
from mpbroker.errors import BrokerGone, BrokerNotFound, TransportUnavailable
from mpbroker.process.config import broker_base, check_config
from mpbroker.process.connection import client_process
from mpbroker.process.hook import SERIALIZER, BrokerAddress
from mpbroker.process.launch import BrokerProcess
from mpbroker.process.limits import LimitOptions
from mpbroker.process.naming import INFO, PRIVATE, Located, Transport, check_broker_name, locate
from mpbroker.process.proxy import BrokerProxy

_EXIT_PRIORITY: Final = -1
"""Of the end of the broker when its creator exits: after the creator's children were joined, so it ends last."""

_FINISH_S: Final = 5.0
"""Seconds that children get to finish what they do after a Ctrl-C that they got, too."""

_IMPATIENT_S: Final = 1.0
"""Seconds that a broker gets to end when the wait for it was interrupted: a person waits for its Ctrl-C."""

_RETRY_S: Final = 0.01
_SHUTDOWN_S: Final = 5.0

_State: Final = cast("Any", managers).State


class BrokerManager(managers.BaseManager):
    """A broker in a process of its own, for the processes of this host.

    ``with BrokerManager() as manager`` starts it and stops it; ``manager.broker()`` is what to work with, and to hand
    to other processes. The broker is a fresh interpreter that never imports ``__main__``, so no guard is needed. It
    ends within a second when this process ends, however that happens, and its messages end with it.

    Args:
        name: for others to connect() to; None: only reachable by way of this manager's proxies.
        manual_time: the broker has no clock of its own: time is what calls give as ``now``.
        filter_modules: names of modules whose functions subscriptions may use as filters.
        directory: where the brokers of this user are; default: $MPBROKER_DIR, else the user's runtime folder.
        log_level, log_file: what the broker logs, and where; a level alone logs to this process's standard error.
        transport: how calls through this manager's proxies travel: "ring", shared memory; "manager", a socket; default:
            $MPBROKER_TRANSPORT, else rings where they can be had.
        shutdown_timeout: seconds that shutdown() waits before it kills.

    Limits, each an argument; `mpbroker status` shows what is used of them:
        max_frame_bytes: what one call may carry, about; at least 2 MiB; default 64 MiB.
        max_connections: of client processes: one each, and one for each of their threads that calls; default 1024, or
            what the system lets the broker process open (`ulimit -n`), if that is less.
        max_topics, max_subscriptions: default 100,000 each.
        max_name_length: characters in the names of topics, subscriptions and members; at most 255, the default.
        max_headers, max_header_bytes: of one message; default 1000 headers, 256 KiB.
        max_payload_bytes: of one message; default: what max_frame_bytes allows.
        max_queue_bytes: of memory for all messages, over all subscriptions, dead letters included; default 1 GiB. A
            publish beyond it raises BrokerFull, and what workers give back always fits. The broker grows by at most
            about twice this.
        max_dead_letters: kept in one subscription, the oldest give way; default 10,000.
        max_waiting_calls: polls that may wait at once; default: as many as connections.
        max_rings, ring_bytes: connections that go through shared memory, the others go through their sockets; and the
            bytes of it each way, 0 for none; default 512, 256 KiB.
        arena_threshold: bytes of a payload from which it is put into shared memory and read there, by whose calls go
            through rings; at least 64 KiB; default 256 KiB, 0 for none.
        max_arena_bytes, max_client_arena_bytes: of that memory, of all client processes and of each; default 1 GiB and
            512 MiB. Where there is no room a publish waits up to arena_timeout seconds, default 30, then raises
            ArenaFull.
        frame_timeout: seconds for a request to arrive completely and for a reply to be read, and a second more for
            each MiB, or the connection is cut; default 30.

    Raises:
        InvalidName, InvalidFilter, TypeError, ValueError: an argument that cannot be, by name.
    """

    _state: Any
    _process: BrokerProcess | None

    def __init__(
        self,
        name: str | None = None,
        *,
        manual_time: bool = False,
        filter_modules: Iterable[str] = (),
        directory: str | os.PathLike[str] | None = None,
        log_level: str | int | None = None,
        log_file: str | os.PathLike[str] | None = None,
        transport: str | None = None,
        shutdown_timeout: float = _SHUTDOWN_S,
        **limits: Unpack[LimitOptions],
    ) -> None:
        self._config = check_config(
            name,
            manual_time=manual_time,
            filter_modules=filter_modules,
            directory=directory,
            log_level=log_level,
            log_file=log_file,
            **limits,
        )
        timeout = checks.seconds(shutdown_timeout, "shutdown_timeout")
        super().__init__(None, b"", SERIALIZER, shutdown_timeout=timeout)
        self._timeout = timeout
        self._transport = Transport.of(transport, os.environ)
        self._ended_by: util.Finalize | None = None
        self._pid: int | None = None
        self._process = None

    @property
    def name(self) -> str | None:
        """The broker's name, None for a private one."""
        return self._config.name

    @property
    def pid(self) -> int | None:
        """The broker's process, None before it was started."""
        return self._pid

    def start(self, initializer: Any = None, initargs: Iterable[Any] = ()) -> None:
        """Start the broker process and wait until it is ready.

        Raises:
            NameTaken: a broker of that name runs. InsecureFolder: others could reach its folder.
            BrokerFailed: it did not come up; with what it wrote last. The manager may be started again.
            ProcessError: it was started before.
        """
        if initializer is not None or initargs:
            raise TypeError("a broker process runs no initializer; filter_modules names what it imports")
        if self._state.value != _State.INITIAL:
            raise multiprocessing.ProcessError(
                "this manager was started already"
                if self._state.value == _State.STARTED
                else "this manager was shut down; make another one"
            )
        process = self._process = BrokerProcess(self._config)
        try:
            self._owns(process)
        except BaseException:
            process.stop(_IMPATIENT_S)
            self._state.value = _State.SHUTDOWN
            raise

    def _owns(self, process: BrokerProcess) -> None:
        """Stand for a broker of this process's own, and end it when this manager is shut down or this process exits."""
        self._pid = process.pid
        self._stands_for(BrokerAddress(process.started.folder, process.started.incarnation, self._transport))
        # Kept, or the witness would be gone before the first proxy is there.
        self._client = client_process(*self._stood_for)
        creator = os.getpid()
        self._client.witness = lambda: process.how_it_ended(1.0) if os.getpid() == creator else None
        self._ended_by = util.Finalize(
            self,
            type(self)._end,
            args=(process, self._stood_for, self._state, self._timeout),
            exitpriority=_EXIT_PRIORITY,
        )

    def connect(self) -> None:
        """Stand for the running broker of this manager's name, without owning it: shutdown() then lets it run.

        Raises:
            BrokerNotFound: none runs. ProcessError: the manager was started, or has no name.
        """
        if self._state.value != _State.INITIAL or self._config.name is None:
            raise multiprocessing.ProcessError("connect() is for a manager with a name that was not started")
        located = _wait_for(self._config.name, Path(self._config.base), 0.0)
        self._pid = located.info.pid
        self._stands_for(BrokerAddress(os.fspath(located.folder), located.info.incarnation, self._transport))

    def broker(self) -> BrokerProxy:
        """The broker. Good in this process, and picklable to any other.

        Raises ProcessError before start() and after shutdown().
        """
        if self._state.value != _State.STARTED:
            raise multiprocessing.ProcessError(
                "this manager was not started; use it in a with statement, or call start()"
                if self._state.value == _State.INITIAL
                else "this manager was shut down, and its broker with it"
            )
        return BrokerProxy(self._stood_for, self)

    def shutdown(self) -> None:  # type: ignore[override]
        """End the broker process; what it holds is lost, and every call of its clients raises BrokerGone.

        Waits up to ``shutdown_timeout`` seconds, then kills. Any number of times, before start() too, and when the
        broker is gone already. In a forked child it does nothing: the broker is the parent's.
        """
        if self._ended_by is not None:
            self._ended_by()
        elif self._state.value == _State.STARTED:
            self._state.value = _State.SHUTDOWN
            client_process(*self._stood_for).close()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the broker process has ended, at most ``timeout`` seconds."""
        if self._process is not None:
            self._process.wait(timeout)

    def get_server(self) -> NoReturn:
        raise TypeError("the broker is a process of its own; `mpbroker serve` runs one in the foreground")

    def _create(self, typeid: str, /, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"a broker process shares one object, the broker; it makes no {typeid!r}")

    def _stands_for(self, address: BrokerAddress) -> None:
        self._stood_for = address
        self._address = address
        self._state.value = _State.STARTED

    @staticmethod
    def _end(process: BrokerProcess, address: BrokerAddress, state: Any, timeout_s: float) -> None:
        try:
            process.stop(timeout_s)
        except BaseException:
            # Interrupted, perhaps before the broker was told; nothing else will end it while this process lives.
            process.stop(min(timeout_s, _IMPATIENT_S))
            raise
        finally:
            state.value = _State.SHUTDOWN
            client_process(*address).retire("this process shut it down")
            folder = Path(address.folder)
            if folder.name.startswith(PRIVATE):
                # Nobody else's: its name was random. What a broker that was killed left there has no other heir.
                shutil.rmtree(folder, ignore_errors=True)
        cast("Any", managers.BaseProxy)._address_to_local.pop(address, None)

    def __enter__(self) -> Self:
        try:
            super().__enter__()
        except BaseException:
            self.shutdown()  # there is no __exit__ for what was interrupted here
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is not None and issubclass(kind, KeyboardInterrupt):
                _let_children_finish()
        finally:
            self.shutdown()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a BrokerManager stays in the process that made it; what can go to others is manager.broker()")

    def __repr__(self) -> str:
        return f"<BrokerManager {self._config.name or 'private'} pid={self._pid}>"


BrokerManager.register("broker", proxytype=BrokerProxy, create_method=False)


def connect(
    name: str = "default",
    timeout: float = 5.0,
    *,
    directory: str | os.PathLike[str] | None = None,
    transport: str | None = None,
) -> BrokerProxy:
    """The running broker of that name, as started by ``mpbroker serve`` or a BrokerManager with a name.

    Args:
        timeout: seconds to wait for one that is just starting, and for its answer. Where none is, it fails at once.
        directory: where the brokers of this user are; default: $MPBROKER_DIR, else the user's runtime folder.
        transport: how calls travel: "ring", shared memory; "manager", a socket; default: $MPBROKER_TRANSPORT, else
            rings where they can be had, which costs one line in the log where they cannot.

    Raises:
        TransportUnavailable: there are no rings here, and "ring" was asked for.
        BrokerNotFound: none runs, or it does not answer; says where it looked and how to start one.
        VersionMismatch: it is of another version. AccessRefused: it did not let this process in.
        InsecureFolder: the folder is another user's or open to others.
    """
    check_broker_name(name)
    deadline = time.monotonic() + checks.seconds(timeout, "timeout")
    base = broker_base(directory)
    while True:
        located = _wait_for(name, base, deadline)
        address = BrokerAddress(
            os.fspath(located.folder), located.info.incarnation, Transport.of(transport, os.environ)
        )
        client, proxy = client_process(*address), BrokerProxy(address)
        try:
            client.open(located, max(0.1, deadline - time.monotonic()))
            if address.transport is Transport.RING:
                proxy.next_deadline()  # a call, so that it is known now
        except TransportUnavailable:
            client.close()
            raise
        except BrokerGone as error:
            # It ended meanwhile; perhaps the next one is there already.
            if time.monotonic() >= deadline:
                raise BrokerNotFound(name, os.fspath(located.folder), error.args[0]) from None
            time.sleep(_RETRY_S)
        else:
            return proxy


def _wait_for(name: str, base: Path, deadline: float) -> Located:
    """Find a broker; wait for one whose folder is there and not ready yet."""
    while True:
        # Before the look: what gets ready in between is found by the next one.
        was_ready = (base / name / INFO).exists()
        try:
            return locate(name, base)
        except BrokerNotFound:
            if was_ready or not (base / name).is_dir() or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_S)


def _let_children_finish() -> None:
    """Wait for the children that got the same Ctrl-C: the broker ends last."""
    deadline = time.monotonic() + _FINISH_S
    for child in multiprocessing.active_children():
        if not child.daemon:
            child.join(max(0.0, deadline - time.monotonic()))
