"""The calls of an executor in one worker: run one after another, and answered together.

Owns how many are fetched at once, what is finished and not yet answered, and the thread that sees to both where a call
takes longer than those before it. A short call must not pay for a trip to the broker of its own, and a long one must
keep neither the results of others nor their calls. For the worker process.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from mpbroker.deliveries import Delivery
from mpbroker.errors import AccessRefused, BrokerGone, MpbrokerError
from mpbroker.workers.board import MAX_PREFETCH, Slot
from mpbroker.workers.deaths import Exit
from mpbroker.workers.handling import Work, flush_output, own
from mpbroker.workers.tasks import Runner
from mpbroker.workers.verdicts import failure_text

_TOGETHER_S: Final = 0.005
"""Of work, that is fetched at once: many times a trip to the broker, and no time for whoever waits for a result."""

_PATIENCE_S: Final = 0.01
"""How long a call may take before the results of others go without waiting for its own."""


class Bulk:
    """For one worker. Attributes: size: how many calls to fetch next, by how long the last ones took."""

    def __init__(self, runner: Runner, subscription: Any, slot: Slot, member: str) -> None:
        self.size = 1
        self._runner = runner
        self._subscription = subscription
        self._slot = slot
        self._member = member
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows, and the slot while two threads may be at it
        self._waiting: deque[Delivery] = deque()
        self._done: list[tuple[Delivery, bytes]] = []
        self._begun = 0
        self._is_tended = False
        self._sending = threading.Lock()  # held from the taking of what is done to its ack
        self._bell: queue.SimpleQueue[None] | None = None

    def run(self, deliveries: list[Delivery], is_over: Callable[[], bool]) -> int:
        """Run calls, until the worker is to end; the others are given back. How many were run.

        Raises what the broker's end raises.
        """
        began, ran = time.monotonic(), 0
        with self._lock:
            self._waiting.extend(deliveries)
        while (delivery := self._next(is_over)) is not None:
            reply = self._call(delivery)
            ran += 1
            with self._lock:
                self._slot.ended(failed=reply is None)
                if reply is not None:
                    self._done.append((delivery, reply))
            if ran == 1 and len(deliveries) > 1:
                self._have_it_tended()
        self.send()
        took = time.monotonic() - began
        fitting = int(_TOGETHER_S * ran / took) if took > 0.0 else MAX_PREFETCH
        self.size = max(1, min(2 * self.size, fitting, MAX_PREFETCH))
        return ran

    def _next(self, is_over: Callable[[], bool]) -> Delivery | None:
        if is_over():
            self._let_go()
        with self._lock:
            if not self._waiting:
                return None
            delivery = self._waiting.popleft()
            self._begun += 1
            self._slot.begins(int(delivery.message_id[1:]), len(self._waiting))
            return delivery

    def _call(self, delivery: Delivery) -> bytes | None:
        own.work = Work(delivery, self._member, self._slot)
        try:
            return self._runner.reply(delivery)
        except Exception as error:  # noqa: BLE001 - no call of an executor's: somebody else published it
            delivery.nack(error=failure_text(error))
            return None
        finally:
            own.work = None
            if os.getpid() != self._pid:
                # Forked by the call, and not ended by it: see Handling.
                os._exit(Exit.FORKED)

    def send(self) -> None:
        """Answer what is done, then ack it."""
        with self._sending:
            with self._lock:
                done, self._done = self._done, []
            if not done:
                return
            flush_output()
            try:
                self._answer(done)
                self._subscription.ack_many([delivery.message_id for delivery, _ in done], self._member)
            except AccessRefused:
                pass  # taken for dead while it was stopped; the calls are others'

    def _answer(self, done: list[tuple[Delivery, bytes]]) -> None:
        replies: dict[str, list[bytes]] = {}
        for delivery, reply in done:
            replies.setdefault(self._runner.client(delivery), []).append(reply)
        for client, several in replies.items():
            try:
                self._runner.send(client, several)
            except (BrokerGone, AccessRefused):
                raise
            except MpbrokerError:
                # One that is too large, perhaps: the others are not to suffer for it.
                for each in several:
                    self._runner.send_alone(client, each)

    # -- beside a long call -------------------------------------------------------------------------------------------

    def _have_it_tended(self) -> None:
        with self._lock:
            if self._is_tended:
                return
            self._is_tended = True
        if self._bell is None:
            self._bell = queue.SimpleQueue()
            threading.Thread(target=self._tend, args=(self._bell,), name="mpbroker-bulk", daemon=True).start()
        self._bell.put(None)

    def _tend(self, bell: queue.SimpleQueue[None]) -> None:
        while True:
            bell.get()
            before = -1
            while True:
                with self._lock:
                    if not self._waiting and not self._done:
                        self._is_tended = False
                        break
                    is_long, before = self._begun == before, self._begun
                if is_long:
                    # Should it fail, the other thread will see why.
                    with suppress(MpbrokerError):
                        self.send()
                        self._let_go()
                time.sleep(_PATIENCE_S)

    def _let_go(self) -> None:
        """Give back what waits."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
            if waiting:
                self._slot.waits_no_more()
        for delivery in waiting:
            delivery.release()
