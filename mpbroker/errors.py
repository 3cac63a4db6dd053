"""Every error that mpbroker raises on purpose.

Owns the exception classes and their wording. Imports nothing of the package, so anybody may import it.

Each error keeps its constructor's positional arguments in ``args`` and builds its text in ``__str__``: an exception
whose constructor formats a message does not survive pickling, and these travel between processes. Where Python has a
fitting class the error is that too, so ``except LookupError`` or ``except queue.Full`` do what a reader expects.
"""

from __future__ import annotations

import queue
from concurrent.futures import BrokenExecutor


class MpbrokerError(Exception):
    """The root of all mpbroker errors; catching it catches them all."""

    def __init__(self, *args: object) -> None:
        super().__init__()
        # Errors that are an OSError, too, would lose what comes after the second one, and call the first errno.
        self.args = args


# -- names and arguments ----------------------------------------------------------------------------------------------


class InvalidName(MpbrokerError, ValueError):
    """A topic, subscription, member or broker name that cannot be one. Args: what, name, reason."""

    def __str__(self) -> str:
        what, name, reason = self.args
        return f"{name!r} cannot name a {what}: {reason}"


class InvalidFilter(MpbrokerError, ValueError):
    """A filter that cannot be used. Args: text, reason, position (offset in characters, or None)."""

    def __str__(self) -> str:
        text, reason, position = self.args
        if position is None:
            return f"filter {text!r}: {reason}"
        start = max(0, position - 40)
        shown = "".join(c if c.isprintable() else "?" for c in text[start : position + 40])
        return f"filter: {reason}, at position {position}\n  {shown}\n  {' ' * (position - start)}^"


# -- topics and subscriptions -----------------------------------------------------------------------------------------


class UnknownTopic(MpbrokerError, LookupError):
    """The topic does not exist (any more). Args: topic."""

    def __str__(self) -> str:
        return f"no topic named {self.args[0]!r}; create_topic({self.args[0]!r}) makes it"


class TopicExists(MpbrokerError, ValueError):
    """create_topic found the name taken. Args: topic."""

    def __str__(self) -> str:
        return f"topic {self.args[0]!r} exists already; pass exist_ok=True if that is fine"


class UnknownSubscription(MpbrokerError, LookupError):
    """The subscription does not exist (any more); an old handle never reaches a new one of the same name.

    Args: subscription_id.
    """

    def __str__(self) -> str:
        return f"no subscription {self.args[0]!r}, or it was deleted; subscribe() makes a new one"


class SubscriptionConflict(MpbrokerError, ValueError):
    """subscribe() named an existing subscription with other settings. Args: subscription_id, names of the settings."""

    def __str__(self) -> str:
        subscription_id, settings = self.args
        return (
            f"subscription {subscription_id!r} exists with other settings for {', '.join(settings)}; "
            "leave them out to get it as it is, or unsubscribe() first"
        )


class SubscriptionBusy(MpbrokerError):
    """A dispatcher reads this push subscription, and only one may. Args: subscription_id."""

    def __str__(self) -> str:
        return (
            f"subscription {self.args[0]!r} is read by a push dispatcher; "
            "nobody else can poll or dispatch it until that closes or its process ends"
        )


class QueueFull(MpbrokerError, queue.Full):
    """A publish found a subscription full that has Overflow.REJECT, or Overflow.WAIT and no room in time; nothing was
    published. Args: subscription_id, limit."""

    def __str__(self) -> str:
        subscription_id, limit = self.args
        return (
            f"subscription {subscription_id!r} has no room: its max_queue is {limit} messages, and it refuses more; "
            "nothing was published"
        )


class BrokerFull(QueueFull):
    """A publish found the broker process full; nothing was published. Args: bytes held, bytes of the publish, limit."""

    def __str__(self) -> str:
        held, more, limit = self.args
        return (
            f"the broker holds {held:,} bytes of messages and this publish has {more:,}, with a max_queue_bytes of "
            f"{limit:,}; nothing was published. It goes when readers have acked; `mpbroker status` names queues that "
            "nobody reads, dead letters can be purged, and a larger max_queue_bytes raises the limit"
        )


# -- payloads ---------------------------------------------------------------------------------------------------------


class PayloadError(MpbrokerError):
    """A payload that cannot be encoded by the publisher or decoded by the reader. Args: where, reason."""

    def __str__(self) -> str:
        where, reason = self.args
        return f"{where}: {reason}"


class PayloadTooLarge(MpbrokerError, ValueError):
    """One call carries more bytes than the broker takes.

    Args: what, size in bytes, limit in bytes, the option that raises it (max_frame_bytes where it is left out).
    """

    def __str__(self) -> str:
        what, size, limit, *more = self.args
        option = more[0] if more else "max_frame_bytes"
        unit = "call" if option == "max_frame_bytes" else "message"
        return (
            f"{what} takes {size:,} bytes and the broker accepts {limit:,} in one {unit}; "
            f"send less at once, or start the broker with a larger {option}"
        )


class HeadersTooLarge(MpbrokerError, ValueError):
    """A message has more headers than the broker takes; nothing was published.

    Args: what ("headers" or "bytes of headers"), how many, limit, the option that raises it.
    """

    def __str__(self) -> str:
        what, count, limit, option = self.args
        return (
            f"a message with {count:,} {what}, and the broker accepts {limit:,}; put more into the payload, "
            f"or start the broker with a larger {option}"
        )


# -- the broker process -----------------------------------------------------------------------------------------------


class BrokerGone(MpbrokerError, ConnectionError):
    """The broker process ended, and what it held with it. Args: reason."""

    def __str__(self) -> str:
        return f"the broker is gone: {self.args[0]}"


class BrokerNotFound(MpbrokerError, ConnectionError):
    """No broker of that name answers. Args: name, folder, reason."""

    def __str__(self) -> str:
        name, folder, reason = self.args
        # A private one has no name to start it by, and one that runs cannot be started.
        hintless = name.startswith(".") or reason.endswith("overloaded")
        hint = "" if hintless else f"; `mpbroker serve --name {name}` starts one"
        return f"no broker {name!r} in {folder}: {reason}{hint}"


class NameTaken(MpbrokerError):
    """Another broker runs under that name. Args: name, folder, pid (or None)."""

    def __str__(self) -> str:
        name, folder, pid = self.args
        holder = f" (process {pid})" if pid else ""
        return f"a broker named {name!r} runs already{holder} in {folder}; `mpbroker stop --name {name}` ends it"


class InsecureFolder(MpbrokerError, PermissionError):
    """A folder or file that others could read or replace. Args: path, reason."""

    def __str__(self) -> str:
        path, reason = self.args
        return f"{path} is not safe to use: {reason}"


class VersionMismatch(MpbrokerError, ConnectionError):
    """Client and broker do not speak the same protocol. Args: version of the client, version of the broker."""

    def __str__(self) -> str:
        client, broker = self.args
        return (
            f"this client is mpbroker {client} and the broker is mpbroker {broker}; "
            "stop the broker and start it again with the version that its clients have"
        )


class AccessRefused(MpbrokerError, ConnectionError):
    """The broker did not let this process in. Args: reason."""

    def __str__(self) -> str:
        return f"the broker refused the connection: {self.args[0]}"


class LimitReached(MpbrokerError):
    """A bound of the broker process is reached. Args: what, limit, option that raises it ("" for none)."""

    def __str__(self) -> str:
        what, limit, option = self.args
        way = f"{option} raises it" if option else "delete some that nobody needs"
        return f"the broker is at its limit of {limit} {what}; {way}"


class TransportUnavailable(MpbrokerError):
    """The way to the broker that was asked for cannot be had. Args: transport, reason."""

    def __str__(self) -> str:
        transport, reason = self.args
        return f"no transport {transport!r} to this broker: {reason}; without the argument, what can be had is taken"


class ProtocolViolation(MpbrokerError, ConnectionError):
    """A peer sent something that is not the protocol; its connection is closed. Args: reason."""

    def __str__(self) -> str:
        return f"protocol violation: {self.args[0]}"


class BrokerFailed(MpbrokerError, ConnectionError):
    """The broker process did not come up. Args: reason (its last words included)."""

    def __str__(self) -> str:
        return f"the broker process did not start: {self.args[0]}"


class CallFailed(MpbrokerError):
    """The broker hit a defect of its own in one call, before that changed anything; it goes on. Args: text.

    One that it hits in the middle of a change ends it: BrokerGone, with its last words.
    """

    def __str__(self) -> str:
        return f"the broker failed inside this call (please report it): {self.args[0]}"


class HandlerError(MpbrokerError):
    """Workers cannot run a handler. Args: handler, reason."""

    def __str__(self) -> str:
        handler, reason = self.args
        return f"workers cannot run {handler}: {reason}"


class PoolEnded(MpbrokerError):
    """The processes of a worker pool are gone, or never came up. Args: reason."""

    def __str__(self) -> str:
        return f"the worker pool has ended: {self.args[0]}"


class ExecutorBroken(MpbrokerError, BrokenExecutor):
    """An executor can run nothing more. Args: reason."""

    def __str__(self) -> str:
        return f"the executor can run nothing more: {self.args[0]}"


class WorkerDied(MpbrokerError, BrokenExecutor):
    """A call had its last attempt, and no result. Args: attempts, reason (how the last one ended).

    The executor goes on.
    """

    def __str__(self) -> str:
        attempts, reason = self.args
        return f"the call was given up after {attempts} attempts: {reason}"
