"""Publisher: publish without waiting for each answer, bounded, in order, and each message once.

Owns what is between the caller and the broker's answer: the batch under way, those that were sent, those that were not,
and the error that nobody has seen yet. Never talks to a broker: a PublishWire does, and may be interrupted anywhere.

A batch is in the queue from its first message to its answer. What was sent on a line that broke (also by Ctrl-C in the
middle of a call) is sent again on the next one, and whoever applies it does so once: batches are numbered.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, Self, TypedDict

from mpbroker import checks
from mpbroker.errors import AccessRefused, BrokerGone, PayloadTooLarge, ProtocolViolation
from mpbroker.messages import MessagePriority, checked_priority
from mpbroker.pipeline.batches import BATCH_BYTES, BATCH_MESSAGES, Answer, Batch, Receipt
from mpbroker.pipeline.filling import Filling
from mpbroker.pipeline.tending import Tended

WINDOW: Final = 64
"""Batches that are out without an answer, at most: enough for the broker never to wait."""

MAX_MESSAGES: Final = 8192
MAX_BYTES: Final = 16 * 1024 * 1024
"""Defaults: what is lost at most when the broker dies, and a fraction of a second of its work."""

LINGER_S: Final = 0.005

_LONGEST_LOOK_S: Final = 0.1
"""Seconds between two looks for answers that nobody waits for."""


class PublishOptions(TypedDict, total=False):
    """The options of BrokerAPI.publisher, for who passes them on."""

    max_messages: int
    max_bytes: int
    linger: float


class PublishWire(Protocol):
    """The way of batches to a broker. Everything but `encode` is called by one thread at a time."""

    payload_bytes: int
    """Bound of one payload; 0 before `take` was called."""

    window: int
    """Batches that may be out without an answer: at most WINDOW, and no more than the answers of fit the way back."""

    def encode(self, payload: Any) -> tuple[Any, int]:
        """What goes into a batch for a payload that is no bytes, and its size. Raises PayloadError."""

    def take(self, is_anything_out: bool) -> bool:
        """Begin to use the line; whether it is another one, on which nothing was sent. Without `put` it is the last use
        of it. is_anything_out: batches were sent that have no answer. Raises what says that the broker is gone, or does
        not answer."""

    def put(self) -> None:
        """End to use the line: all that was begun on it was finished."""

    def send(self, topic: str, batch: Batch) -> None: ...

    def receive(self, timeout_s: float | None) -> Answer | Exception | None:
        """The answer to the first batch that has none yet; None: none came in so many seconds."""

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""

    def close(self) -> None: ...


class Publisher(Filling, Tended):
    """Publishes to one topic without waiting for each answer; made by ``broker.publisher(topic)``.

    Messages leave in batches, in the order of publish, and each is published once, whatever interrupts a call. The
    broker's answers are awaited in ``flush``, in ``close``, in ``Receipt.result``, and where more than max_messages or
    max_bytes would be unconfirmed. What the broker refuses raises in the next call (publish, flush or close), unless
    every message of the batch has a receipt; the batches behind it are published all the same.

    For any number of threads; while one waits for the broker in a call, the others' calls wait, too. In a forked child
    it starts empty, with a connection of its own. At a normal exit of the interpreter it flushes; a process that is
    killed loses what it has not sent. As a context manager it closes.
    """

    def __init__(self, topic: str, wire: PublishWire, options: PublishOptions) -> None:
        """Made by `BrokerAPI.publisher`."""
        super().__init__(wire.encode)
        self.topic: Final = checks.name(topic, "topic")
        self._max_messages = checks.count(options.get("max_messages", MAX_MESSAGES), "max_messages")
        self._max_bytes = checks.count(options.get("max_bytes", MAX_BYTES), "max_bytes")
        self._linger = checks.seconds(options.get("linger", LINGER_S), "linger")
        self._patience = self._linger
        self._wire = wire
        self._queue: deque[Batch] = deque()
        self._sent = 0
        self._error: Exception | None = None
        self._refused = 0
        self._is_turning = False
        self._is_closed = False

    # -- the verbs ----------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> bool:
        """Send everything and wait until the broker has answered all of it.

        Returns:
            False when ``timeout`` seconds (None: for ever) passed first; nothing is lost, and it can be called again.
            A call of another thread that waits for the broker is waited for, whatever the timeout.

        Raises:
            What the broker refused since an error was raised last, once everything else is confirmed.
            BrokerGone: the broker ended, with so many messages unconfirmed.
        """
        deadline = _deadline(timeout)
        with self._lock:
            self._check_open()
            return self._flush(deadline)

    def close(self) -> None:
        """Flush, and let go of the connection. Safe to call again.

        Raises:
            What flush raises. Where that left something to send (the broker has no room for a connection), it is not
            closed, and goes on trying.
        """
        with self._lock:
            if self._is_closed:
                return
            try:
                self._flush(None)
            except Exception:
                if not self._queue:
                    self._end()
                raise
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """What was published is sent, whatever ended the block; its exception is not hidden behind one of ours."""
        try:
            self.close()
        except Exception as ours:
            if error is None:
                raise
            error.add_note(f"and the publisher to {self.topic!r} failed: {type(ours).__name__}: {ours}")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a publisher stays in its process; pass the broker, and make one there")

    def __repr__(self) -> str:
        return f"<Publisher to {self.topic!r}: {self._unconfirmed()[0]} messages unconfirmed>"

    # -- batches ------------------------------------------------------------------------------------------------------

    def _fitting(self, headers: Mapping[str, str] | None, priority: MessagePriority, size: int) -> Batch:
        """The open batch, once it takes a message of that size. The condition is the last thing it does."""
        while (
            (batch := self._open) is None
            or priority is not batch.priority
            or headers != batch.headers
            or size > batch.room
        ):
            headers, priority = self._begin(headers, priority, size)
        return batch

    def _begin(
        self, headers: Mapping[str, str] | None, priority: MessagePriority, size: int
    ) -> tuple[dict[str, str] | None, MessagePriority]:
        """Make room for a message of that size in the open batch; its headers and priority as batches have them."""
        self._check_open()
        plain = checks.headers(headers) or None
        level = checked_priority(priority)
        batch = self._open
        if batch is not None and batch.headers == plain and batch.priority is level and size <= batch.room:
            return plain, level
        self._open = None
        if not self._is_turning:
            self._turn(lambda: self._is_full(size))
            if size > self._wire.payload_bytes:
                raise PayloadTooLarge("this message", size, self._wire.payload_bytes)
        self._raise_error()
        messages, used = self._unconfirmed()
        most = 1 if self._linger == 0.0 else max(1, min(BATCH_MESSAGES, self._max_messages - messages))
        room = max(size, min(BATCH_BYTES, self._max_bytes - used))
        batch = Batch(plain, level, most, room, time.monotonic())
        self._queue.append(batch)
        self._open = batch
        if not self._is_tended:
            self._wake()
        return plain, level

    def _cut(self) -> None:
        """The open batch is full."""
        self._open = None
        if not self._is_turning:
            self._turn(None)

    def _receipt(self, batch: Batch, payload: Any) -> Receipt:
        receipt = Receipt(self, batch, len(batch.parts) - 1, payload)
        if len(batch.parts) >= batch.most:
            self._cut()
        return receipt

    def _unconfirmed(self) -> tuple[int, int]:
        """Messages and bytes; the queue is never much longer than WINDOW."""
        queue = list(self._queue)
        return sum([batch.messages for batch in queue]), sum([batch.nbytes for batch in queue])

    def _is_full(self, size: int) -> bool:
        messages, used = self._unconfirmed()
        return messages >= self._max_messages or bool(messages and used + size > self._max_bytes)

    # -- sending, and hearing the answers -----------------------------------------------------------------------------

    def _flush(self, deadline: float | None) -> bool:
        self._open = None
        done = not self._queue or self._turn(lambda: bool(self._queue), deadline)
        if done:
            self._raise_error()
        return done

    def _await(self, batch: Batch, timeout: float | None) -> bool:
        """Wait for the answer of a batch, for a receipt."""
        deadline = _deadline(timeout)
        with self._lock:
            if batch is self._open:
                self._open = None
            return self._turn(lambda: batch.answer is None, deadline)

    def _turn(self, is_unmet: Callable[[], bool] | None, deadline: float | None = None, *, waits: bool = True) -> bool:
        """Send the batches that are cut, take the answers that are there, and wait for more while ``is_unmet`` says so.

        Returns False when the deadline came first. waits: also for room in the window.
        """
        if self._is_turning:
            raise RuntimeError(
                "a signal handler or finalizer cannot wait for a publisher in the middle of one of its calls; "
                "it may publish, and leave the rest to the call"
            )
        if not self._queue and not (is_unmet is not None and self._wire.payload_bytes == 0):
            return True
        self._is_turning = True
        try:
            try:
                return self._turn_once(is_unmet, deadline, waits)
            except ProtocolViolation:
                # One connection ended, and the broker lives: it cuts those that are stopped in the middle of a frame.
                return self._turn_once(is_unmet, deadline, waits)
        except (BrokerGone, AccessRefused) as error:
            raise self._lost(error) from None
        finally:
            self._is_turning = False

    def _turn_once(self, is_unmet: Callable[[], bool] | None, deadline: float | None, waits: bool) -> bool:
        wire, queue = self._wire, self._queue
        if wire.take(bool(queue) and queue[0].count > 0):
            self._sent = 0
        is_met = True
        while True:
            for batch in list(islice(queue, self._sent, wire.window)):
                if batch is self._open:
                    break
                self._send(batch)
            while self._sent and (answer := wire.receive(0.0)) is not None:
                self._confirm(answer)
            is_left = len(queue) > self._sent and queue[self._sent] is not self._open
            if is_left and self._sent < wire.window:
                continue
            if not self._sent or not ((waits and is_left) or (is_unmet is not None and is_unmet())):
                break
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            answer = wire.receive(left)
            if answer is not None:
                self._confirm(answer)
            elif left is not None and time.monotonic() >= deadline:  # type: ignore[operator]
                is_met = is_unmet is None or not is_unmet()
                break
        wire.put()
        return is_met

    def _send(self, batch: Batch) -> None:
        if not batch.count:
            if not batch.parts:
                # A call was interrupted between beginning it and putting something in.
                self._queue.remove(batch)
                return
            batch.count = len(batch.parts)
        self._wire.send(self.topic, batch)
        self._sent += 1

    def _confirm(self, answer: Answer | Exception) -> None:
        """The first batch has its answer. Interrupted, it is done again."""
        batch = self._queue[0]
        if isinstance(answer, Exception) and batch.answer is None and not batch.watched:
            self._error, self._refused = self._error or answer, self._refused + batch.count
            self._open = None  # so that the next call sees it
        batch.answer = answer
        batch.body = None
        batch.parts = []
        self._queue.popleft()
        self._sent -= 1

    # -- errors -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"this publisher to {self.topic!r} is closed; broker.publisher() makes another one")

    def _raise_error(self) -> None:
        error, count = self._error, self._refused
        if error is not None:
            if count:
                error.add_note(
                    f"{count} messages of the publisher to {self.topic!r} were not published: a batch is published "
                    "whole or not at all, and publisher(max_messages=...) bounds it"
                )
            self._error, self._refused = None, 0
            raise error

    def _lost(self, error: BrokerGone | AccessRefused) -> Exception:
        """Nobody will answer any more: forget what waits for it, and say how much that was."""
        count = self._unconfirmed()[0]
        gone = type(error)(f"{error.args[0]}; {count} messages of the publisher to {self.topic!r} are unconfirmed")
        for batch in self._queue:
            batch.answer = gone
            batch.body = None
            batch.parts = []
        self._open = None
        self._queue.clear()
        self._error, self._refused = None, 0
        self._wire.payload_bytes = 0  # the next publish asks again who is there
        return gone

    def _end(self) -> None:
        self._is_closed = True
        self._end_tending()
        self._wire.close()

    # -- while nobody calls -------------------------------------------------------------------------------------------

    def _tend(self) -> float | None:
        with self._lock:
            if self._is_turning:
                return self._linger
            batch = self._open
            if batch is not None:
                left = batch.begun + self._linger - time.monotonic()
                if left > 0.0:
                    return left
                self._open = None
            try:
                self._turn(None, waits=False)
            except Exception as error:  # noqa: BLE001 - the next call tells it
                self._error = self._error or error
                self._open = None
            if not self._queue:
                self._rest()
                return None
            age = time.monotonic() - self._queue[0].begun
            return min(max(self._linger, age), _LONGEST_LOOK_S)

    def _before_fork(self) -> None:
        if self._is_turning:
            return  # another thread sends, and may wait for a broker that does not answer
        with self._lock:
            try:
                self._open = None
                self._turn(None, waits=False)
            except Exception as error:  # noqa: BLE001 - the next call tells it
                self._error = self._error or error

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        for batch in self._queue:
            batch.answer = RuntimeError("what became of a message is known in the process that published it")
        self._queue = deque()
        self._open = self._error = None
        self._sent = self._refused = 0
        self._is_turning = False
        self._wire.forget()

    def _at_exit(self) -> None:
        self.close()


def _deadline(timeout: float | None) -> float | None:
    timeout = checks.optional_seconds(timeout, "timeout")
    return None if timeout is None else time.monotonic() + timeout
