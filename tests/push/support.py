"""What the push tests share: a subscription made of a list, and calls in other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from mpbroker import Delivery, Message, MessagePriority, RetryPolicy, SubscriptionStats
from mpbroker.deliveries import OneMessage
from mpbroker.errors import BrokerGone, SubscriptionBusy, UnknownSubscription
from mpbroker.messages import NO_HEADERS
from mpbroker.push.dispatcher import Dispatcher
from mpbroker.push.subscriber import CallbackSubscriber

LIMIT_S: Final = 20.0
"""The hard limit of every wait; far from what any of them takes on a busy machine."""

QUICK: Final = RetryPolicy(max_attempts=3, base_delay=1.0, multiplier=2.0, max_delay=60.0)

T = TypeVar("T")


class Undecodable:
    """A batch whose message this process cannot decode."""

    first = 1
    priority = MessagePriority.NORMAL
    headers: Mapping[str, str] = NO_HEADERS

    def message(self, index: int) -> Message:
        raise LookupError(f"no module named shop at {index}")


class FakeSubscription:
    """A subscription with one place for a dispatcher, priorities, attempts and dead letters.

    Attributes:
        parked: set while a poll waits.
        before_poll: called at the start of every poll, with no lock held.
        after_poll: called when a poll is about to return something, with no lock held.
        gone: what every verb raises from now on.
        member: who is attached.
        polls: member and timeout of each poll.
        released, acked: message ids, in order; dead: message id and error.
    """

    def __init__(self, retry: RetryPolicy | None = QUICK, *, max_deliveries: int = 3) -> None:
        self.parked = threading.Event()
        self.before_poll: Callable[[], None] = lambda: None
        self.after_poll: Callable[[], None] = lambda: None
        self.gone: Exception | None = None
        self.member: str | None = None
        self.polls: list[tuple[str, float | None]] = []
        self.acked: list[str] = []
        self.released: list[str] = []
        self.dead: list[tuple[str, str]] = []
        self.undecodable: set[str] = set()
        self._retry = retry
        self._limit = max_deliveries if retry is None else retry.max_attempts
        self._changed = threading.Condition()
        self._ready: list[Message] = []
        self._held: dict[int, tuple[Message, int, str]] = {}
        self._attempts: dict[str, int] = {}
        self._published = self._tokens = self._members = 0

    @property
    def subscription_id(self) -> str:
        return "orders/billing"

    @property
    def retry_policy(self) -> RetryPolicy | None:
        return self._retry

    @property
    def ready(self) -> list[str]:
        """The ids of what waits, in the order in which it leaves."""
        return [message.message_id for message in self._ready]

    @property
    def held(self) -> list[str]:
        return [message.message_id for message, _, _ in self._held.values()]

    def attempts(self, message_id: str) -> int:
        """How many counted attempts a message has behind it."""
        return self._attempts.get(message_id, 0)

    def publish(self, payload: Any = None, priority: int = 1) -> Message:
        with self._changed:
            self._published += 1
            number = self._published
            message = Message(
                "orders",
                payload,
                MessagePriority(priority),
                message_id=f"m{number}",
                sequence=number,
                uid=f"u-{number}",
            )
            self._put(message)
            return message

    def end(self, error: Exception | None = None) -> None:
        """Delete it, or lose its broker."""
        with self._changed:
            self.gone = error or UnknownSubscription(self.subscription_id)
            self._changed.notify_all()

    def refuse(self, error: Exception) -> None:
        """Answer like end(), but wake nobody."""
        with self._changed:
            self.gone = error

    def take_away(self) -> None:
        """Take back what is held, as when a broker gave up on the dispatcher."""
        with self._changed:
            for token in list(self._held):
                self._put(self._held.pop(token)[0])

    # -- what a dispatcher uses --------------------------------------------------------------------

    def _attach_dispatcher(self) -> str:
        with self._changed:
            self._check()
            if self.member is not None:
                raise SubscriptionBusy(self.subscription_id)
            self._members += 1
            self.member = f"$dispatcher-{self._members}"
            return self.member

    def _detach_dispatcher(self, member: str) -> None:
        with self._changed:
            self._check()
            if self.member == member:
                self.member = None
            for token, (message, _, holder) in list(self._held.items()):
                if holder == member:
                    del self._held[token]
                    self._put(message)
                    self.released.append(message.message_id)
            self._changed.notify_all()

    def _poll(self, member: str, now: float | None, max_messages: int, timeout: float | None) -> list[Delivery]:
        assert (now, max_messages) == (None, 1)
        self.before_poll()
        with self._changed:
            self._check()
            self.polls.append((member, timeout))
            if not self._ready and timeout != 0.0:
                self.parked.set()
                self._changed.wait_for(
                    lambda: self._ready or self.gone or self.member != member,
                    LIMIT_S if timeout is None else timeout,
                )
                self.parked.clear()
            self._check()
            if self.member != member or not self._ready:
                return []
            delivery = self._hand_over(self._ready.pop(0), member)
        self.after_poll()
        return [delivery]

    def _wait_idle(self, timeout: float | None) -> bool:
        with self._changed:
            limit = LIMIT_S if timeout is None else timeout
            self._changed.wait_for(lambda: self.gone or not (self._ready or self._held), limit)
            self._check()
            return not (self._ready or self._held)

    def _stats(self, now: float | None) -> SubscriptionStats:
        with self._changed:
            self._check()
            ready, held, dead = len(self._ready), len(self._held), len(self.dead)
            return SubscriptionStats(
                accepted=self._published,
                acked=len(self.acked),
                ready=ready,
                delayed=0,
                in_flight=held,
                dead=dead,
                dropped=0,
                backlog=ready,
                deliveries=self._tokens,
                redelivered=0,
                late_acks=0,
                filtered_out=0,
                filter_errors=0,
                dead_lettered=dead,
            )

    # -- what a delivery uses ----------------------------------------------------------------------

    def _ack_token(self, token: int) -> bool:
        with self._changed:
            self._check()
            held = self._held.pop(token, None)
            if held is not None:
                self.acked.append(held[0].message_id)
                self._changed.notify_all()
            return held is not None

    def _release_token(self, token: int) -> bool:
        with self._changed:
            self._check()
            held = self._held.pop(token, None)
            if held is not None:
                self._put(held[0])
                self.released.append(held[0].message_id)
            return held is not None

    def _retry_token(self, delivery: Delivery, error: str) -> Delivery | None:
        with self._changed:
            self._check()
            held = self._held.pop(delivery.token, None)
            if held is None:
                return None
            message, attempt, member = held
            self._attempts[message.message_id] = attempt
            if attempt >= self._limit:
                self.dead.append((message.message_id, error))
                self._changed.notify_all()
                return None
            return self._hand_over(message, member)

    def _nack_token(self, token: int, delay: float | None, error: str, now: float | None) -> bool:
        raise AssertionError("a dispatcher retries in place")

    def _reject_token(self, token: int, error: str) -> bool:
        raise AssertionError("a dispatcher does not reject")

    def _extend_token(self, token: int, seconds: float | None, now: float | None) -> float | None:
        raise AssertionError("what a dispatcher holds has no deadline")

    # -- under the lock ----------------------------------------------------------------------------

    def _check(self) -> None:
        if self.gone is not None:
            raise type(self.gone)(*self.gone.args)

    def _put(self, message: Message) -> None:
        self._ready.append(message)
        self._ready.sort(key=lambda each: (-each.priority, each.sequence))
        self._changed.notify_all()

    def _hand_over(self, message: Message, member: str) -> Delivery:
        self._tokens += 1
        attempt = self.attempts(message.message_id) + 1
        self._held[self._tokens] = message, attempt, member
        opaque = message.message_id in self.undecodable
        return Delivery(
            Undecodable() if opaque else OneMessage(message),
            0,
            attempt,
            attempt > 1,
            float("inf"),
            member,
            self._tokens,
            self,
        )


BROKER_GONE: Final = BrokerGone("it was stopped")


# -- subscribers -----------------------------------------------------------------------------------


def dispatcher_of(
    subscription: FakeSubscription,
    callback: Callable[[Message], object],
    sleep: Callable[[float], None] | None = None,
) -> Dispatcher:
    return Dispatcher(subscription, CallbackSubscriber("billing", callback), sleep)


class Gate:
    """A callback that waits in the middle until the test lets it go on."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.entered = threading.Event()
        self._open = threading.Event()

    def __call__(self, message: Message) -> None:
        self.seen.append(message.message_id)
        self.entered.set()
        assert self._open.wait(LIMIT_S)

    def wait_until_entered(self) -> None:
        assert self.entered.wait(LIMIT_S), "nothing came"

    def open(self) -> None:
        self._open.set()


class Failing:
    """A callback that fails a number of times (or always) and notes its calls."""

    def __init__(self, times: int | None = None, error: BaseException | None = None) -> None:
        self.seen: list[str] = []
        self._left = times
        self._error = error

    def __call__(self, message: Message) -> None:
        self.seen.append(message.message_id)
        if self._left is not None:
            if self._left == 0:
                return
            self._left -= 1
        raise self._error or ValueError(f"failure {len(self.seen)}")


# -- calls that wait -------------------------------------------------------------------------------


class Call(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._function())
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """What it returned or raised; it must have ended within the limit."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the call did not end"
        if self._error is not None:
            raise self._error
        return self._answer[0]


def happens(event: threading.Event) -> None:
    assert event.wait(LIMIT_S), "it did not happen"
