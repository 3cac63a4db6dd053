"""WorkerPool: a worker group for as long as a block runs, or until its work is done.

Owns the public face of a pool: its arguments, its documentation, its end. What runs is in other processes.
"""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Callable, Iterable
from multiprocessing import util
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from mpbroker import checks
from mpbroker.api import SubscriptionAPI
from mpbroker.deliveries import Delivery
from mpbroker.errors import HandlerError, PoolEnded
from mpbroker.process.manager import connect
from mpbroker.process.proxy import BrokerProxy
from mpbroker.retry import RetryPolicy
from mpbroker.settings import UNSET, Filter, Unset
from mpbroker.workers.config import (
    DEFAULT_GRACE_S,
    DEFAULT_MAX_LEASE_S,
    DEFAULT_START_TIMEOUT_S,
    PoolConfig,
    available_cpus,
)
from mpbroker.workers.figures import PoolStats
from mpbroker.workers.launch import Supervising
from mpbroker.workers.supervisor import Stage
from mpbroker.workers.target import Target, check_not_importing
from mpbroker.workers.verdicts import AckPolicy

_MORE_S: Final = 10.0
"""Beyond its grace, for a pool to end, before its supervisor is killed."""

_EXIT_PRIORITY: Final = 20
"""Of the end of a pool whose owner exits: before anything else of multiprocessing's, and of the broker's."""

Handler = Callable[[Delivery], object]


class WorkerPool:
    """Worker processes that poll one subscription, call a handler for each delivery, and ack.

    ``with WorkerPool(broker, "orders", "billing", handle, processes=4): ...`` runs them while the block runs; at its
    end what runs is finished and acked, and what was fetched beyond that is given back. ``wait`` waits for pools that
    end by themselves (burst, max_messages, max_idle). See docs/workers.md for what each kind of death means.

    The workers are children of a supervisor process, a fresh interpreter of its own. A handler of an importable module
    needs nothing of the program; one of ``__main__`` needs a ``__name__`` guard there, as with multiprocessing.

    While the handler runs, however long, its lease is kept alive from outside, up to ``max_lease``; a handler that
    never lets go of the GIL, too. A worker that dies is replaced at once, and its message is another one's, counted.

    Args:
        broker: a broker process: what BrokerManager.broker and connect give, or the name of one that runs.
        topic, group: the subscription; made, with its topic, if it is not there.
        handler: called with the Delivery; a callable that can be pickled, or "module:function". Its return acks, an
            exception is a failed attempt, `Reject` and `Retry` say more.
        processes: worker processes; default: one for each processor.
        threads: in each process; for handlers that wait more than they compute. Default 1.
        prefetch: messages handed over together to one worker, 1 to 256, default 1: what waits behind a long message
            could be others' work.
        ack: see AckPolicy.
        max_lease: seconds a message may run before it is left to its lease, and to others; default an hour.
        timeout: seconds a message may run before its worker is killed, and the attempt is a failed one; None: for ever.
        max_messages_per_child, max_rss, max_age: a worker that has finished so many messages, has more bytes of memory
            after one, or is so many seconds old is replaced in good order.
        grace: seconds that what runs has to finish once the end has begun; default 30. Then it is given back,
            uncounted, and its worker killed.
        burst: end when the subscription is empty. max_messages: end after so many. max_idle: end when there was nothing
            to do for so many seconds.
        preload: modules that workers inherit instead of importing them; they may start no threads. For quick
            replacement of workers whose handler imports much.
        initializer, initargs: called in each worker before its first message.
        name: how the workers are called; default: the group, and something random.
        start_timeout: seconds until a worker must have loaded the handler; default 60.
        log_format: "text" or "json": the pool's processes log to standard error. Default: they do not.
        filter, ack_timeout, max_deliveries, retry: of the subscription, see BrokerAPI.subscribe.

    Raises:
        HandlerError: workers could not find or load the handler; from start() or the ``with`` statement, or at once.
        SubscriptionConflict, TypeError, ValueError: an argument that cannot be.
    """

    def __init__(
        self,
        broker: BrokerProxy | str,
        topic: str,
        group: str,
        handler: Handler | str,
        *,
        processes: int | None = None,
        threads: int = 1,
        prefetch: int = 1,
        ack: AckPolicy = AckPolicy.NACK_ON_ERROR,
        max_lease: float = DEFAULT_MAX_LEASE_S,
        timeout: float | None = None,
        max_messages_per_child: int | None = None,
        max_rss: int | None = None,
        max_age: float | None = None,
        grace: float = DEFAULT_GRACE_S,
        burst: bool = False,
        max_messages: int | None = None,
        max_idle: float | None = None,
        preload: Iterable[str] = (),
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        name: str | None = None,
        start_timeout: float = DEFAULT_START_TIMEOUT_S,
        log_format: str | None = None,
        filter: Filter | str | Unset | None = UNSET,
        ack_timeout: float | Unset = UNSET,
        max_deliveries: int | Unset = UNSET,
        retry: RetryPolicy | Unset | None = UNSET,
    ) -> None:
        check_not_importing()
        if isinstance(broker, str):
            broker = connect(broker)
        if not isinstance(broker, BrokerProxy):
            raise TypeError(
                f"broker must be a broker process (BrokerManager().broker(), connect(...)) or its name, not "
                f"{type(broker).__name__}: other processes cannot reach a broker in this one"
            )
        target = Target.of(handler)
        if log_format not in (None, "text", "json"):
            raise ValueError(f"log_format must be 'text', 'json' or None, not {log_format!r}")
        group = checks.name(group, "group")
        self.topic: Final = checks.name(topic, "topic")
        self.group: Final = group
        self.name: Final = f"{group[:200]}-{secrets.token_hex(3)}" if name is None else name
        self._make: Final[Callable[[SubscriptionAPI | None], PoolConfig]] = lambda subscription: PoolConfig(
            name=self.name,
            subscription=subscription,
            handler=target,
            processes=available_cpus() if processes is None else processes,
            broker=broker._address.folder,
            threads=threads,
            prefetch=prefetch,
            ack=ack,
            max_lease_s=max_lease,
            timeout_s=timeout,
            max_messages_per_child=max_messages_per_child,
            max_rss_bytes=max_rss,
            max_age_s=max_age,
            grace_s=grace,
            burst=burst,
            max_messages=max_messages,
            max_idle_s=max_idle,
            preload=tuple(preload),
            initializer=_pickled(initializer, initargs),
            start_timeout_s=start_timeout,
            log_format=log_format,
        )
        self._broker = broker
        self._settings: dict[str, Any] = {
            "filter": filter,
            "ack_timeout": ack_timeout,
            "max_deliveries": max_deliveries,
            "retry": retry,
        }
        self._grace_s = checks.seconds(grace, "grace")
        self._make(None)  # arguments are checked now, not when it starts
        self._supervising: Supervising | None = None
        self._at_exit: util.Finalize | None = None
        self._was_closed = False

    # -- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers, and wait until the first one works.

        Raises:
            HandlerError: it could not load the handler, or its initializer raised.
            PoolEnded: the supervisor did not come up, or the pool was closed before.
            SubscriptionConflict, BrokerGone: of the subscription; the broker is gone.
        """
        if self._supervising is not None or self._was_closed:
            raise PoolEnded("it was started before; make another one")
        self._was_closed = True
        self._broker.create_topic(self.topic, exist_ok=True)
        subscription: SubscriptionAPI = self._broker.subscribe(self.topic, self.group, **self._settings)
        self._supervising = Supervising(self._make(subscription))
        # A pool nobody closed ends with its owner's interpreter, in order.
        self._at_exit = util.Finalize(
            self,
            WorkerPool._end_at_exit,
            args=(self._supervising, self._grace_s, os.getpid()),
            exitpriority=_EXIT_PRIORITY,
        )

    def drain(self) -> None:
        """Begin the end: nothing more is begun, what was fetched goes back, what runs is finished. Does not wait."""
        self._tell(Stage.DRAINING)

    def release(self) -> None:
        """End now: what runs goes back, uncounted, and its workers are killed. Waits for nothing."""
        self._tell(Stage.RELEASING)

    def kill(self) -> None:
        """Kill the workers: what they held goes back, counted as an attempt. Waits for nothing."""
        self._tell(Stage.KILLING)

    def replace_workers(self) -> None:
        """Replace the workers by new ones, one after another, each after the message that it works on."""
        self._tell("replace")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all workers have ended; False when ``timeout`` seconds passed first."""
        return self._started().wait(checks.optional_seconds(timeout, "timeout"))

    def close(self) -> None:
        """drain, and wait for the end; an interruption (Ctrl-C) goes on to release, a second one to kill."""
        supervising = self._supervising
        if supervising is None:
            return
        if self._at_exit is not None:
            self._at_exit.cancel()
        _end(supervising, self._grace_s)

    @staticmethod
    def _end_at_exit(supervising: Supervising, grace_s: float, owner: int) -> None:
        if os.getpid() == owner:
            _end(supervising, grace_s)

    # -- what it is doing ---------------------------------------------------------------------------------------------

    def stats(self) -> PoolStats:
        """What each worker does, and what became of the others. Raises PoolEnded when the supervisor was killed."""
        return self._started().stats()

    def worker_pids(self) -> list[int]:
        """The processes of the workers that there are now."""
        return list(dict.fromkeys(worker.pid for worker in self.stats().workers))

    @property
    def ended(self) -> str | None:
        """Why it ended; None while it runs."""
        supervising = self._started()
        supervising.wait(0.0)
        return None if supervising.final is None else supervising.final[0]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a WorkerPool stays in the process that made it; what others need is the broker")

    def __repr__(self) -> str:
        return f"<WorkerPool {self.name!r} of {self.topic}/{self.group}>"

    def _tell(self, request: str | Stage) -> None:
        self._started().tell(request if isinstance(request, str) else int(request))

    def _started(self) -> Supervising:
        if self._supervising is None:
            raise PoolEnded("it was not started: use it in a with statement, or call start()")
        return self._supervising


def _end(supervising: Supervising, grace_s: float) -> None:
    interruption: BaseException | None = None
    for stage, limit_s in ((Stage.DRAINING, grace_s + _MORE_S), (Stage.RELEASING, _MORE_S), (Stage.KILLING, _MORE_S)):
        supervising.tell(int(stage))
        try:
            if supervising.wait(limit_s):
                break
        except KeyboardInterrupt as error:
            interruption = error
    else:
        supervising.kill()
    if interruption is not None:
        raise interruption


def _pickled(initializer: Callable[..., object] | None, initargs: Iterable[Any]) -> bytes:
    if initializer is None:
        return b""
    if not callable(initializer):
        raise TypeError(f"initializer must be a callable, not {type(initializer).__name__}")
    try:
        return pickle.dumps((initializer, tuple(initargs)))
    except Exception as error:
        raise HandlerError("the initializer", f"it cannot be pickled with its arguments ({error})") from error
