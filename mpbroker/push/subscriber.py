"""Who gets messages by push: the Subscriber interface, and two that are ready to use.

Imports the value modules only; knows nothing of dispatchers, threads or brokers.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from mpbroker import checks
from mpbroker.messages import Message

DEFAULT_CAPACITY: Final = 10_000
"""Uids that a DedupingSubscriber remembers: about 1.5 MB, and far more than one worker has open."""


class Subscriber(ABC):
    """Something that is called with each message of a subscription; subclass it, or see
    CallbackSubscriber.

    Calls for one subscription never overlap, and no lock of the broker is held during one: it may
    publish, subscribe, unsubscribe and close.
    """

    @property
    @abstractmethod
    def subscriber_id(self) -> str:
        """The name of its subscription; the same each time."""

    @abstractmethod
    def on_message(self, message: Message) -> None:
        """Process one message, and return when it is done for good.

        An Exception is a failed attempt: the subscription's retry policy says when this is called
        again, and later messages wait until it succeeds or its attempts are used up. The same
        message may come again although it succeeded (the process died before the broker knew), so
        processing it twice must do no harm; see DedupingSubscriber.
        """


class CallbackSubscriber(Subscriber):
    """A subscriber made of a name and a function of the message.

    Args:
        name: the subscriber_id, a name such as a subscription may have.
        callback: what on_message calls; what it returns is ignored.

    Raises:
        InvalidName: the name cannot be one.
        TypeError: ``callback`` cannot be called, or is a coroutine function, which a call would
            only create and never run.
    """

    def __init__(self, name: str, callback: Callable[[Message], object]) -> None:
        self._name = checks.name(name, "subscriber")
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {type(callback).__name__}")
        if inspect.iscoroutinefunction(callback):
            raise TypeError(
                "callback is a coroutine function, and a dispatcher runs no event loop; "
                "pass a function that hands the message to yours"
            )
        self._callback = callback

    @property
    def subscriber_id(self) -> str:
        """The name it was made with."""
        return self._name

    def on_message(self, message: Message) -> None:
        """Call the callback."""
        self._callback(message)

    def __repr__(self) -> str:
        return f"<CallbackSubscriber {self._name!r}>"


class DedupingSubscriber(Subscriber):
    """Passes on to another subscriber what that has not finished yet, by the uid of the message.

    It has the id of the other, so it takes its place. A message counts as finished when the other's
    on_message returned; one that failed comes through again. It remembers in memory, so it covers
    repeats to this object, not those to the process that is started after this one died.

    Args:
        inner: the subscriber to protect.
        capacity: how many finished uids are remembered, at least 1; the oldest are forgotten first.
            Choose more than the messages that can pass between a message and its repeat.

    Raises:
        TypeError, ValueError: an argument of the wrong type or range, by name.
    """

    def __init__(self, inner: Subscriber, capacity: int = DEFAULT_CAPACITY) -> None:
        if not isinstance(inner, Subscriber):
            raise TypeError(f"inner must be a Subscriber, not {type(inner).__name__}")
        self._inner = inner
        self._capacity = checks.count(capacity, "capacity")
        # Single steps on it are atomic, which is enough for dispatchers that never bring one
        # message twice at a time; a lock would keep this from travelling to a spawned process.
        self._finished: OrderedDict[str, None] = OrderedDict()

    @property
    def subscriber_id(self) -> str:
        """The id of the subscriber inside."""
        return self._inner.subscriber_id

    def on_message(self, message: Message) -> None:
        """Call the inner subscriber, unless it finished this message before."""
        if message.uid in self._finished:
            return
        self._inner.on_message(message)
        # A message that no broker published has no uid to know it by.
        if message.uid:
            self._finished[message.uid] = None
            while len(self._finished) > self._capacity:
                self._finished.popitem(last=False)

    def __repr__(self) -> str:
        return f"<DedupingSubscriber of {self._inner!r}>"
