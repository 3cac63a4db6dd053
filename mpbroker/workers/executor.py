"""Executor: calls in worker processes that outlive their deaths, with the interface of concurrent.futures.

Owns the caller's side: what was submitted, what is out, and a thread that takes in the replies. Each call is a message;
what makes a killed worker cost a retry and not the pool is what holds for every message.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor as StandardExecutor
from concurrent.futures import Future
from multiprocessing import util
from typing import Any, Final, TypeVar

from mpbroker import checks
from mpbroker.api import SubscriptionAPI
from mpbroker.errors import BrokerGone, ExecutorBroken, MpbrokerError, UnknownSubscription, WorkerDied
from mpbroker.messages import DeadLetter
from mpbroker.process.manager import BrokerManager, connect
from mpbroker.process.proxy import BrokerProxy
from mpbroker.workers.config import available_cpus
from mpbroker.workers.pool import WorkerPool
from mpbroker.workers.target import check_not_importing, main_program
from mpbroker.workers.tasks import CLIENT, Runner, head_of, open_reply, pack_task

T = TypeVar("T")

_MORE: Final = 2
"""Calls that are out beyond one for each worker, so that none waits for the next; what is out cannot be cancelled."""

_SHARED: Final = 16
"""The same, for an executor without workers of its own."""

_AHEAD_S: Final = 0.02
"""Where calls are short, more are out: what is done in so many seconds."""

_MOST_OUT: Final = 4096
_TOGETHER: Final = 256
_TOGETHER_BYTES: Final = 1 << 20
"""Calls, and their bytes, that one publish takes."""

_LOOK_S: Final = 0.5
"""Between two looks for calls that will have no reply, while there are some and none comes."""

_REPLIES: Final = 1024
_MAX_LEASE_S: Final = 7 * 86400.0
_EXIT_PRIORITY: Final = 30
"""Of the end of an executor at exit: what was submitted is finished, before pools (20) and connections (5) end."""


class Executor(StandardExecutor):
    """A concurrent.futures.Executor whose calls survive the death of workers.

    A worker that is killed is replaced, and its call is made again by another one, up to max_deliveries times; so calls
    should be such that they may be made twice. Functions, arguments, results and exceptions are pickled.

    Args:
        broker: what connect or BrokerManager.broker gave, or the name of a broker; None: one of its own, which ends
            with it.
        max_workers: worker processes; default: one for each processor. 0: none of its own, which needs a name.
        name: executors of one name and broker share their workers, also from several processes.
        initializer, initargs: called in each worker before its first call.
        max_deliveries: attempts for a call whose worker dies, or has its time out; default 5.
        timeout: seconds for one call; then its worker is killed, and the call tried again.
        max_tasks_per_child: a worker is replaced after so many calls.
        ack_timeout: lease of a call, kept alive while it runs; default 30.

    The workers are started with the first call. One with a name may be pickled: what comes out shares the workers.
    """

    def __init__(
        self,
        broker: BrokerProxy | str | None = None,
        max_workers: int | None = None,
        *,
        name: str | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        max_deliveries: int = 5,
        timeout: float | None = None,
        max_tasks_per_child: int | None = None,
        ack_timeout: float = 30.0,
    ) -> None:
        check_not_importing()
        workers = available_cpus() if max_workers is None else max_workers
        least = 0 if name is not None and broker is not None else 1
        if isinstance(workers, int) and workers < least:
            raise ValueError("max_workers must be greater than 0; 0 is for an executor that shares by broker and name")
        checks.count(workers, "max_workers", minimum=0)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._name: Final = checks.name(secrets.token_hex(6) if name is None else name, "name")
        self._broker = connect(broker) if isinstance(broker, str) else broker
        self._is_shared = name is not None and broker is not None
        self._state = _State(self._name, workers)
        self._options: dict[str, Any] = {
            "initializer": initializer,
            "initargs": tuple(initargs),
            "timeout": timeout,
            "max_messages_per_child": max_tasks_per_child,
        }
        self._settings: dict[str, Any] = {"max_deliveries": max_deliveries, "ack_timeout": ack_timeout}
        weakref.finalize(self, _State.end, self._state).atexit = False

    @property
    def _broken(self) -> str | None:
        """Why it can run nothing more; None while it can."""
        return self._state.broken

    # -- calls --------------------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a worker call ``fn``; the Future has its result, or its exception with the worker's traceback as cause.

        What is not out yet can be cancelled. One that ran out of attempts has WorkerDied.

        Raises:
            ExecutorBroken: no worker could start, the broker or the supervisor is gone.
            RuntimeError: after shutdown.
        """
        state = self._state
        future: Future[T] = Future()
        with state.lock:
            state.check(os.getpid())
            self._start()
            try:
                task = pack_task(state.next_number(), fn, args, kwargs, state.main)
            except Exception as error:  # noqa: BLE001 - as ProcessPoolExecutor does, it is told by the future
                future.set_running_or_notify_cancel()
                future.set_exception(error)
                return future
            state.waiting.append((future, task))
            if len(state.out) < state.least:
                state.fill()
        return future

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """The results of ``fn``, in order, as ``map`` gives them.

        Lazy: as many chunks are out as keep the workers busy, and more is taken from the iterables as results are taken
        out. Leaving the iterator cancels what is not out.

        Args:
            timeout: seconds from this call for each result; then TimeoutError.
            chunksize: arguments in one call: for short calls, many.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        end = None if timeout is None else time.monotonic() + timeout
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        window = 2 * self._state.least
        futures = deque(self.submit(_call_chunk, fn, chunk) for chunk in itertools.islice(chunks, window))
        return self._results(fn, chunks, futures, end)

    def _results(
        self, fn: Callable[..., T], chunks: Iterator[list[Any]], futures: deque[Future[list[T]]], end: float | None
    ) -> Iterator[T]:
        try:
            while futures:
                left = None if end is None else end - time.monotonic()
                results = futures[0].result(left)
                futures.popleft()
                for chunk in itertools.islice(chunks, 1):
                    futures.append(self.submit(_call_chunk, fn, chunk))
                results.reverse()
                while results:
                    yield results.pop()
        finally:
            for future in futures:
                future.cancel()

    # -- workers ------------------------------------------------------------------------------------------------------

    def worker_pids(self) -> list[int]:
        """The worker processes of this executor now; empty before the first call."""
        pool = self._state.pool
        return [] if pool is None else pool.worker_pids()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; what was submitted is finished, or, what is not out, cancelled. wait: until then."""
        state = self._state
        with state.lock:
            state.is_over = True
            if cancel_futures:
                for future, _ in state.waiting:
                    future.cancel()
                state.waiting.clear()
            state.changed.notify_all()
        if wait:
            state.join()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._is_shared:
            raise TypeError("an executor without a name and a broker stays in its process")
        return _sharing, (self._broker, self._name)

    def _start(self) -> None:
        """With the first call. Raises ExecutorBroken."""
        state = self._state
        if state.thread is not None:
            return
        try:
            state.start(self._broker, self._options, self._settings)
        except Exception as error:
            state.breaks(str(error))
            state.let_go()
            raise ExecutorBroken(state.broken) from error


def _sharing(broker: BrokerProxy, name: str) -> Executor:
    return Executor(broker, 0, name=name)


def _chunks(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(items, size)):
        yield chunk


def _call_chunk(fn: Callable[..., T], chunk: list[Any]) -> list[T]:
    return [fn(*args) for args in chunk]


class _State:
    """What an executor and its thread share; does not keep the executor alive.

    Attributes:
        lock: guards all of it. changed: when there is something for the thread to do.
        waiting: not out yet. out: by the number of the task.
        least: so many are out at least, if there are so many; window: at most, at this moment.
    """

    def __init__(self, name: str, workers: int) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.waiting: deque[tuple[Future[Any], bytes]] = deque()
        self.out: dict[int, Future[Any]] = {}
        self.least: Final = workers + _MORE if workers else _SHARED
        self.window = self.least
        self.is_over = False
        self.broken: str | None = None
        self.pool: WorkerPool | None = None
        self.thread: threading.Thread | None = None
        self.main = main_program()
        self._name = name
        self._workers = workers
        self._pid = os.getpid()
        self._look_at = 0.0
        self._number = 0
        self._at_once = max(1, workers)
        self._client = secrets.token_hex(8)
        self._manager: BrokerManager | None = None
        self._at_exit: util.Finalize | None = None
        self._broker: BrokerProxy
        self._tasks: SubscriptionAPI
        self._replies: SubscriptionAPI

    def check(self, pid: int) -> None:
        if self.broken is not None:
            raise ExecutorBroken(self.broken)
        if self.is_over:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if pid != self._pid:
            raise ExecutorBroken("it belongs to the process that made it; one with a name can be shared")

    # -- start and end ------------------------------------------------------------------------------------------------

    def start(self, broker: BrokerProxy | None, options: dict[str, Any], settings: dict[str, Any]) -> None:
        if broker is None:
            self._manager = BrokerManager()
            self._manager.start()
            broker = self._manager.broker()
        self._broker = broker
        topic, replies = f"executor.{self._name}", f"executor.{self._name}.replies"
        for each in (topic, replies):
            broker.create_topic(each, exist_ok=True)
        # Whoever comes first says how it is; the others take it so.
        try:
            self._tasks = broker.subscription(topic, "workers")
        except UnknownSubscription:
            self._tasks = broker.subscribe(topic, "workers", **settings)
        expression = f'headers.{CLIENT} = "{self._client}"'
        self._replies = broker.subscribe(replies, self._client, expression, ephemeral=True)
        if self._workers:
            self.pool = WorkerPool(
                broker,
                topic,
                "workers",
                Runner(broker, replies),
                processes=self._workers,
                name=f"{self._name[:200]}-{self._client[:6]}",
                max_lease=_MAX_LEASE_S,
                **options,
            )
            self.pool.start()
        # At exit what was submitted is finished first.
        self._at_exit = util.Finalize(self, _State._finish, args=(self, self._pid), exitpriority=_EXIT_PRIORITY)
        self.thread = threading.Thread(target=self._run, name=f"mpbroker-executor {self._name}", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Take no more; what was submitted is finished."""
        with self.lock:
            self.is_over = True
            self.changed.notify_all()

    @staticmethod
    def _finish(state: _State, pid: int) -> None:
        if os.getpid() == pid:
            state.end()
            state.join()

    def join(self) -> None:
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def breaks(self, reason: str) -> None:
        """Nothing more can be run: all calls have that as their end."""
        with self.lock:
            self.broken = self.broken or reason
            futures = [*self.out.values(), *(future for future, _ in self.waiting)]
            self.out.clear()
            self.waiting.clear()
        for future in futures:
            if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
                future.set_exception(ExecutorBroken(reason))

    def let_go(self) -> None:
        if self._at_exit is not None:
            self._at_exit.cancel()
        if self.pool is not None:
            self.pool.close()
        try:
            if self._manager is not None:
                self._manager.shutdown()
            elif hasattr(self, "_replies"):
                self._broker.unsubscribe(self._replies.topic, self._replies.name)
        except MpbrokerError:
            pass  # it is gone

    # -- calls out, replies in ----------------------------------------------------------------------------------------

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def fill(self) -> None:
        """Send what there is room for; the lock is held."""
        while self.waiting and len(self.out) < self.window:
            batch: list[bytes] = []
            size = 0
            while self.waiting and len(self.out) < self.window and len(batch) < _TOGETHER and size < _TOGETHER_BYTES:
                future, task = self.waiting.popleft()
                if future.set_running_or_notify_cancel():
                    batch.append(task)
                    size += len(task)
                    self.out[head_of(task)[0]] = future
            if batch:
                self._send(batch)
                self.changed.notify_all()

    def _send(self, batch: list[bytes]) -> None:
        try:
            self._broker.publish_many(self._tasks.topic, batch, {CLIENT: self._client})
        except BrokerGone as error:
            self.breaks(str(error))
        except MpbrokerError as error:
            if len(batch) > 1:
                # One that is too large, perhaps: the others are not to suffer for it.
                for task in batch:
                    self._send([task])
            else:
                self.out.pop(head_of(batch[0])[0]).set_exception(error)

    def _run(self) -> None:
        """The thread."""
        try:
            while True:
                with self.lock:
                    while not self.out and not self.waiting and not self.is_over:
                        self.changed.wait()
                    if not self.out and not self.waiting:
                        break
                    self.fill()
                deliveries = self._replies.poll("caller", max_messages=_REPLIES, timeout=_LOOK_S)
                if deliveries:
                    self._replies.ack_many([delivery.message_id for delivery in deliveries], "caller")
                    self._take_in([delivery.payload for delivery in deliveries])
                del deliveries
                if time.monotonic() >= self._look_at:
                    self._look_for_ends()
                    self._look_at = time.monotonic() + _LOOK_S
        except Exception as error:  # noqa: BLE001 - every call must have its end
            self.breaks(f"{type(error).__name__}: {error}")
        self.let_go()

    def _take_in(self, replies: list[bytes]) -> None:
        heads = [head_of(reply) for reply in replies]
        with self.lock:
            # None: a second one, by a worker that died before its ack.
            futures = [self.out.pop(number, None) for number, _ in heads]
            self._measure(sum(took_s for _, took_s in heads) / len(heads))
            self.fill()
        for future, reply in zip(futures, replies, strict=True):
            if future is not None:
                _settle(future, *open_reply(reply))

    def _measure(self, call_s: float) -> None:
        """How many may be out, from how long a call took of late."""
        # With nothing to go out, the next ones may be of another kind.
        ahead = int(_AHEAD_S * self._at_once / max(call_s, 1e-9)) if self.waiting else 0
        self.window = self.least + min(ahead, _MOST_OUT)

    def _look_for_ends(self) -> None:
        """Calls that had their last attempt, and a pool that is no more."""
        if self._tasks.stats().dead:
            for letter in self._broker.dead_letters(self._tasks.subscription_id):
                self._give_up(letter)
        if self.pool is not None and self.pool.ended is not None:
            self.breaks(str(self.pool.ended))

    def _give_up(self, letter: DeadLetter) -> None:
        if letter.message.headers.get(CLIENT) != self._client:
            return
        self._broker.purge_dead_letters(self._tasks.subscription_id, [letter.message.message_id])
        with self.lock:
            future = self.out.pop(head_of(letter.message.payload)[0], None)
            self.fill()
        if future is not None:
            _settle(future, None, WorkerDied(letter.attempts, letter.error.partition("\n")[0]))


def _settle(future: Future[Any], result: object, error: BaseException | None) -> None:
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
