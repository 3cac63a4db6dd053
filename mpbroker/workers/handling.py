"""One message through its handler: called, judged, settled.

Owns what follows from what a handler does, and `current_work`, by which it can ask. For the worker process.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mpbroker.deliveries import Delivery
from mpbroker.workers.board import Slot
from mpbroker.workers.deaths import Exit
from mpbroker.workers.verdicts import AckPolicy, Reject, Retry, failure_text

logger: Final = logging.getLogger("mpbroker.workers")


@dataclass(frozen=True, slots=True)
class Work:
    """What the calling thread works on: for handlers that run long and can stop early."""

    delivery: Delivery
    member: str
    _slot: Slot

    @property
    def is_lost(self) -> bool:
        """The message was taken back from this worker, or is not kept for it any more: the result is for nothing."""
        return self._slot.is_lost

    @property
    def is_stopping(self) -> bool:
        """The worker was told to end after this message."""
        return self._slot.is_told_to_stop


class _Own(threading.local):
    work: Work | None = None


own = _Own()


def current_work() -> Work | None:
    """What this thread works on; None outside a handler."""
    return own.work


class Handling:
    """Calls a handler, for one thread of a worker."""

    def __init__(self, handler: Callable[..., object], policy: AckPolicy, slot: Slot, member: str) -> None:
        self._handler = handler
        self._policy = policy
        self._slot = slot
        self._member = member

    def run(self, delivery: Delivery) -> bool:
        """Call the handler and settle; whether it went well. Raises what settling raises, and nothing of the handler's.

        What is neither an Exception nor ours, SystemExit and KeyboardInterrupt above all, is a failure like any other:
        a message that ends its worker again and again would otherwise never be counted.
        """
        if self._policy is AckPolicy.FIRST and not delivery.ack():
            return False  # somebody else has it by now
        process = os.getpid()
        error: BaseException | None = None
        own.work = Work(delivery, self._member, self._slot)
        try:
            self._handler(delivery)
        except BaseException as raised:  # noqa: BLE001 - see above
            error = raised
        finally:
            own.work = None
            if os.getpid() != process:
                # Forked by the handler, and not ended by it: a second worker of the same name must not come to be.
                os._exit(Exit.FORKED)
        flush_output()
        try:
            return self._settle(delivery, error)
        finally:
            del error

    def _settle(self, delivery: Delivery, error: BaseException | None) -> bool:
        policy = self._policy
        if error is not None:
            logger.warning("%s failed: %s: %s", delivery.message_id, type(error).__name__, _shown(error))
        if policy is AckPolicy.FIRST:
            return error is None
        if delivery._settled:
            # By the handler; or by a payload that could not be decoded, and then it raised.
            return error is None
        if isinstance(error, Reject):
            delivery.reject(error=failure_text(error))
        elif isinstance(error, Retry):
            delivery.nack(delay=error.delay, error=failure_text(error))
        elif policy is AckPolicy.MANUAL and error is None:
            return True
        elif error is None or policy is AckPolicy.ALWAYS:
            if not delivery.ack():
                logger.warning("%s was done, and its lease had ended: it comes again", delivery.message_id)
                return False
        elif policy is AckPolicy.REJECT_ON_ERROR:
            delivery.reject(error=failure_text(error))
        else:
            delivery.nack(error=failure_text(error))
        return error is None


def _shown(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a __str__ of the user's
        return "?"


def flush_output() -> None:
    """What a handler printed is out before its message is settled. Nobody reading it is no failure of the message."""
    for number, stream in enumerate((sys.stdout, sys.stderr), start=1):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            try:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
                stream.flush()
            except (OSError, ValueError):
                pass  # closed by the handler itself
