"""How typed frames travel under multiprocessing's managers: the serializer "mpbroker".

Owns what `multiprocessing.managers` asks of a serializer: a Client that gives a connection, and the address that says
where to. A BaseProxy hands its connection ``(ident, method, args, keywords)`` and reads ``(kind, result)`` back; here
the arguments are a request frame and what makes the result of its reply, and nothing is pickled. Client side.
"""

from __future__ import annotations

from collections import deque
from multiprocessing import managers
from typing import Any, Final, NamedTuple, NoReturn, cast

from mpbroker.errors import MpbrokerError
from mpbroker.process.connection import Taker, client_process
from mpbroker.process.frames import Frame
from mpbroker.process.naming import Transport

SERIALIZER: Final = "mpbroker"

_NESTED: Final = 64
"""Calls of one thread that may be between send and recv: those of signal handlers and finalizers, each inside another.
One that an exception stopped there is never asked for, and falls out in the end."""


class BrokerAddress(NamedTuple):
    """Which broker: where it is, which of all that ever were there, and the way to it.

    folder: the broker's folder. incarnation: 16 hex digits, the first part of every uid.
    """

    folder: str
    incarnation: str
    transport: Transport = Transport.AUTO


class Connection:
    """What BaseProxy takes for its thread's connection. Holds no socket: those are the client process's."""

    __slots__ = ("_client", "_requests")

    def __init__(self, address: BrokerAddress) -> None:
        self._client = client_process(*address)
        self._requests: deque[tuple[Frame, Taker[object]]] = deque(maxlen=_NESTED)

    def send(self, call: tuple[object, str, tuple[object, ...], dict[str, object]]) -> None:
        """Note what is asked. It leaves in recv, so that nothing comes between a request and its reply.

        A signal handler or a finalizer that calls here has done both before the call that it interrupted goes on.
        """
        _, method, arguments, _ = call
        if len(arguments) != 2 or not isinstance(arguments[0], Frame):
            raise TypeError(f"a broker process serves frames, and has no {method!r} of other managers")
        self._requests.append(cast("tuple[Frame, Taker[object]]", arguments))

    def recv(self) -> tuple[str, object]:
        request, take = self._requests.pop()
        try:
            # A plain call, after which Python looks for no signal: the result reaches the caller of the verb.
            return "#RETURN", self._client.exchange(request, take)
        except (MpbrokerError, TypeError, ValueError) as error:
            return "#ERROR", error

    def close(self) -> None:
        """Nothing: connections belong to the process, and end with its session."""


def Client(address: BrokerAddress, authkey: bytes | None = None) -> Connection:  # noqa: ARG001, N802 - managers' words
    return Connection(address)


class Listener:
    """The other half of a serializer; the broker process has a loop of its own instead."""

    def __init__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a broker process is started by BrokerManager.start or `mpbroker serve`")


# The table is how managers find a serializer by its name, also in a process that only unpickles a proxy.
cast("Any", managers).listener_client[SERIALIZER] = (Listener, Client)
