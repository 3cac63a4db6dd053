"""Filling: the way of a message into the batch under way, which is all that most calls of a publisher do.

Owns the batch under way, and the lock of its publisher; all else is of who inherits from it. It is apart so that it can
be compiled: there are weak references to a publisher, which mypyc's deallocator would not clear. That of a class that
is not compiled, as Publisher stays, does.
"""

from __future__ import annotations

import threading
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from mpbroker.messages import MessagePriority
from mpbroker.pipeline.batches import Batch, Receipt
from mpbroker.pipeline.compiling import mypyc_attr

_OVERHEAD: Final = 5
"""Bytes in front of a payload, at most."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Filling(metaclass=ABCMeta):
    """The part of a Publisher that puts messages into batches.

    No ABC: with any base that is not compiled, mypyc gives it a slot for weak references, and Publisher none.
    """

    def __init__(self, encode: Callable[[Any], tuple[Any, int]]) -> None:
        """encode: `PublishWire.encode`."""
        self._encode = encode
        # Re-entrant: a signal handler or a finalizer may publish in the middle of a call.
        self._lock = threading.RLock()
        self._open: Batch | None = None

    def publish(
        self,
        payload: Any,
        headers: Mapping[str, str] | None = None,
        *,
        priority: MessagePriority = MessagePriority.NORMAL,
        receipt: bool = False,
    ) -> Receipt | None:
        """Put a message into the batch under way, which leaves when it is full, or ``linger`` seconds later.

        Waits only while max_messages or max_bytes are unconfirmed. What is done with payload and headers afterwards
        does not matter to a broker process; in this process the payload is shared, as by `publish` of a broker.

        Args:
            payload, headers, priority: as for `publish` of a broker.
            receipt: whether to return a Receipt, which knows the message once it was published.

        Raises:
            An error of a batch before, which nobody has seen yet; then this message was not taken.
            PayloadError, PayloadTooLarge, TypeError, ValueError: it can't be published; nothing changes.
            BrokerGone: the broker ended, with so many messages unconfirmed, this one included.
            Whatever interrupts it (KeyboardInterrupt): the message was taken or not, and is never published twice.
        """
        if type(payload) is bytes:
            part: Any = payload
            size = len(payload) + _OVERHEAD
        else:
            part, size = self._encode(payload)
        with self._lock:
            # Nothing is called between the condition and the append: no signal handler's call comes in between. And no
            # loop in this block: from 3.12 on its jump back is not of the block, and an interruption there would leave
            # the lock locked.
            batch = self._open
            if batch is None or priority is not batch.priority or headers != batch.headers or size > batch.room:
                batch = self._fitting(headers, priority, size)
            batch.room -= size
            batch.parts.append(part)
            if receipt:
                return self._receipt(batch, payload)
            batch.watched = False
            if len(batch.parts) >= batch.most:
                self._cut()
        return None

    @abstractmethod
    def _fitting(self, headers: Mapping[str, str] | None, priority: MessagePriority, size: int) -> Batch:
        """The open batch, once it takes a message of that size. The condition is the last thing it does."""

    @abstractmethod
    def _cut(self) -> None:
        """The open batch is full."""

    @abstractmethod
    def _receipt(self, batch: Batch, payload: Any) -> Receipt:
        """The receipt of the message that the batch got last; cuts the batch when it is full."""
