"""A worker process: polls, runs, settles, until it is told to stop, has done its share, or cannot go on.

Owns the process: its signals, its threads, its end. Forked by the supervisor, which has one thread; what it inherits
and must not keep it closes first.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

from mpbroker.deliveries import Delivery
from mpbroker.errors import AccessRefused, BrokerGone, HandlerError, LimitReached, UnknownSubscription, UnknownTopic
from mpbroker.workers.board import Slot
from mpbroker.workers.bulk import Bulk
from mpbroker.workers.config import PoolConfig
from mpbroker.workers.deaths import Exit
from mpbroker.workers.handling import Handling, logger
from mpbroker.workers.logs import set_up
from mpbroker.workers.tasks import Runner
from mpbroker.workers.verdicts import failure_text

_PR_SET_PDEATHSIG: Final = 1

_LOOK_S: Final = 0.5
"""Of a thread beside others, which no signal wakes: how long a poll waits before it looks whether to stop."""

_LIMITED_S: Final = 0.2
"""Between two polls that the broker refuses because too many wait."""


def member_name(pool: str, serial: int, thread: int, threads: int) -> str:
    """Of one worker: no other one of any pool has it, so what is said of a member's message is said of its own."""
    return f"{pool}.{serial}" if threads == 1 else f"{pool}.{serial}.{thread}"


class _Stop(BaseException):
    """Raised by the signal handler out of a poll that waits."""


def run(
    config: PoolConfig,
    serial: int,
    slots: list[Slot],
    share: int | None,
    notices: Connection,
    inherited: Iterable[Callable[[], None]],
    supervisor: int,
) -> NoReturn:
    """Be a worker, and exit. inherited: close what is the supervisor's. share: messages it may finish."""
    worker = _Worker(config, serial, slots, share, notices)
    try:
        worker.take_over(inherited, supervisor)
        code = worker.work()
    except _Stop:
        code = Exit.DONE
    except BaseException as error:  # noqa: BLE001 - the last place to say it
        logger.exception("a worker failed")
        worker.tell("failed", f"{type(error).__name__}: {error}")
        code = Exit.UNUSABLE
    for slot in slots:
        slot.ending()
    sys.exit(code)


class _Worker:
    def __init__(
        self, config: PoolConfig, serial: int, slots: list[Slot], share: int | None, notices: Connection
    ) -> None:
        self._config = config
        self._serial = serial
        self._slots = slots
        self._notices = notices
        self._left = _least(share, config.max_messages_per_child)
        self._counting = threading.Lock()  # guards _left
        self._is_waiting = False
        self._is_stopping = False
        self._told_lease_ns = 0
        self._handler: Callable[..., object]
        self._code = Exit.DONE
        self._pid = os.getpid()

    # -- the process --------------------------------------------------------------------------------------------------

    def take_over(self, inherited: Iterable[Callable[[], None]], supervisor: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, self._on_terminate)
        for close in inherited:
            close()
        os.register_at_fork(after_in_child=_be_nobody)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _end_with(supervisor)
        set_up(self._config.log_format)

    def _on_terminate(self, *_: object) -> None:
        self._is_stopping = True
        if self._is_waiting:
            raise _Stop

    def tell(self, *notice: Any) -> None:
        """Say something to the supervisor; one that is gone hears nothing."""
        try:
            self._notices.send(notice)
        except OSError:
            pass

    # -- the work -----------------------------------------------------------------------------------------------------

    def work(self) -> Exit:
        """Returns the exit code."""
        try:
            self._handler = self._config.handler.load()
            if self._config.initializer:
                function, arguments = pickle.loads(self._config.initializer)
                function(*arguments)
        except HandlerError as error:
            self.tell("failed", str(error), error)
            return Exit.UNUSABLE
        except BaseException as error:  # noqa: BLE001 - the initializer is the user's
            self.tell("failed", f"the initializer failed: {failure_text(error)}")
            return Exit.UNUSABLE
        for slot in self._slots:
            slot.idle()
        self.tell("ready")
        if len(self._slots) == 1:
            self._loop(0)
        else:
            self._loop_in_threads()
        return self._code

    def _loop_in_threads(self) -> None:
        threads = [
            threading.Thread(target=self._loop, args=(number,), name=f"mpbroker-worker {number}", daemon=True)
            for number in range(len(self._slots))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            # With a limit each time: a join without one keeps signals waiting.
            while thread.is_alive():
                thread.join(_LOOK_S)

    def _loop(self, thread: int) -> None:
        config, slot = self._config, self._slots[thread]
        member = member_name(config.name, self._serial, thread, config.threads)
        handling = Handling(self._handler, config.ack, slot, member)
        handler = self._handler
        bulk = Bulk(handler, config.subscription, slot, member) if isinstance(handler, Runner) else None
        try:
            while not self._is_over(slot):
                taken = self._take(config.prefetch if bulk is None else bulk.size)
                deliveries = self._poll(slot, member, taken) if taken else []
                self._give_back(taken - len(deliveries))
                if taken == 0:
                    break
                if bulk is None:
                    self._run_all(slot, handling, deliveries)
                else:
                    self._give_back(len(deliveries) - bulk.run(deliveries, lambda: self._is_over(slot)))
        except (BrokerGone, UnknownSubscription, UnknownTopic) as error:
            self._code = Exit.NO_BROKER if isinstance(error, BrokerGone) else Exit.NO_SUBSCRIPTION
            self._is_stopping = True
            self.tell("ended", str(error))
        except (_Stop, KeyboardInterrupt):
            self._is_stopping = True

    def _is_over(self, slot: Slot) -> bool:
        return self._is_stopping or slot.is_told_to_stop

    def _poll(self, slot: Slot, member: str, limit: int) -> list[Delivery]:
        slot.idle()
        subscription = self._config.subscription
        timeout = None if len(self._slots) == 1 else _LOOK_S
        # Its own state: the signal handler interrupts the main thread only, which polls where there is one slot.
        self._is_waiting = len(self._slots) == 1
        try:
            if self._is_over(slot):
                return []
            deliveries: list[Delivery] = subscription.poll(member, max_messages=limit, timeout=timeout)
        except LimitReached:
            time.sleep(_LIMITED_S)
            return []
        except AccessRefused:
            return []  # taken for dead while it was stopped; the next poll connects again
        finally:
            self._is_waiting = False
        if deliveries:
            self._note(slot, deliveries)
        return deliveries

    def _note(self, slot: Slot, deliveries: list[Delivery]) -> None:
        """On the board: what is held now, and until when."""
        deadline = min(delivery.deadline for delivery in deliveries)
        deadline_ns, now_ns = int(deadline * 1e9), time.monotonic_ns()
        lease_ns = max(1, deadline_ns - now_ns)
        slot.fetched([int(delivery.message_id[1:]) for delivery in deliveries], deadline_ns, lease_ns)
        if self._told_lease_ns == 0 or lease_ns * 2 < self._told_lease_ns:
            # Until it knows how short they are, the supervisor looks too seldom.
            self._told_lease_ns = lease_ns
            self.tell("lease")

    def _run_all(self, slot: Slot, handling: Handling, deliveries: list[Delivery]) -> None:
        left = len(deliveries)
        for delivery in deliveries:
            if self._is_over(slot):
                # The supervisor gave them back from outside, perhaps; a second time is refused and does no harm.
                self._release(deliveries[-left:])
                self._give_back(left)
                return
            left -= 1
            slot.begins(int(delivery.message_id[1:]), left)
            is_done = False
            try:
                is_done = handling.run(delivery)
            except AccessRefused:
                pass  # as above; the message is with another one
            finally:
                slot.ended(failed=not is_done)
            self._look_at_memory()

    def _release(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            delivery.release()

    def _look_at_memory(self) -> None:
        limit = self._config.max_rss_bytes
        if limit is None:
            return
        import psutil

        if psutil.Process().memory_info().rss > limit:
            logger.info("a worker ends: it has more than %d bytes of memory", limit)
            self._is_stopping = True

    # -- how many it may ----------------------------------------------------------------------------------------------

    def _take(self, count: int) -> int:
        if self._left is None:
            return count
        with self._counting:
            taken = min(count, self._left)
            self._left -= taken
            return taken

    def _give_back(self, count: int) -> None:
        if self._left is not None and count:
            with self._counting:
                self._left += count


def _least(*limits: int | None) -> int | None:
    given = [limit for limit in limits if limit is not None]
    return min(given) if given else None


def _end_with(supervisor: int) -> None:
    """Have the kernel kill this process when the supervisor ends, whatever holds the interpreter at that moment.

    The signal follows the thread that forked, and the supervisor has only that one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(supervisor,), name="mpbroker-watch", daemon=True).start()
    if os.getppid() != supervisor:
        os._exit(Exit.NO_BROKER)


def _watch(supervisor: int) -> None:
    while os.getppid() == supervisor:
        time.sleep(_LOOK_S)
    os.killpg(0, signal.SIGKILL)


def _be_nobody() -> None:
    """In a child that a handler forked: signals mean there what they mean anywhere."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
