"""App: handlers declared where they are written, for `mpbroker worker module:app`.

Owns the list of what was declared. Connects to nothing, and changes no function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mpbroker import checks
from mpbroker.process.proxy import BrokerProxy
from mpbroker.retry import RetryPolicy
from mpbroker.settings import UNSET, Filter, Given, Unset
from mpbroker.workers.pool import WorkerPool
from mpbroker.workers.verdicts import AckPolicy

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Declared:
    """A handler, and the arguments of the WorkerPool that is to run it."""

    topic: str
    group: str
    handler: Callable[..., object]
    options: dict[str, Any] = field(default_factory=dict)

    def pool(self, broker: BrokerProxy, **options: Any) -> WorkerPool:
        """options: of WorkerPool; what was declared goes before them."""
        return WorkerPool(broker, self.topic, self.group, self.handler, **{**options, **self.options})


class App:
    """Handlers with their topics and groups.

    ::

        app = App()

        @app.subscriber("orders", group="billing")
        def charge(delivery): ...

    The functions stay as they are, to be called and tested as such. `mpbroker worker module:app` runs a worker pool for
    each; `pools` makes them in a program.
    """

    def __init__(self) -> None:
        self.declared: Final[list[Declared]] = []

    def subscriber(
        self,
        topic: str,
        *,
        group: str | None = None,
        filter: Filter | str | Unset | None = UNSET,
        ack_timeout: float | Unset = UNSET,
        max_deliveries: int | Unset = UNSET,
        retry: RetryPolicy | Unset | None = UNSET,
        **options: Any,
    ) -> Callable[[F], F]:
        """Declare a function as the handler of a subscription.

        Args:
            group: the subscription's name; default: the function's.
            filter, ack_timeout, max_deliveries, retry: of the subscription.
            options: further ones of WorkerPool (ack, timeout, prefetch, threads, …); they go before those of the
                command line.

        Raises:
            ValueError: the subscription has a handler already. InvalidName, InvalidFilter, TypeError: an argument that
            cannot be.
        """
        topic = checks.name(topic, "topic")
        Given.check(filter, ack_timeout, max_deliveries, retry)
        if not isinstance(options.get("ack", AckPolicy.MANUAL), AckPolicy):
            raise TypeError(f"ack must be an AckPolicy, not {type(options['ack']).__name__}")
        given = {"filter": filter, "ack_timeout": ack_timeout, "max_deliveries": max_deliveries, "retry": retry}

        def declare(function: F) -> F:
            name = checks.name(getattr(function, "__name__", "") if group is None else group, "group")
            if any((each.topic, each.group) == (topic, name) for each in self.declared):
                raise ValueError(f"{topic}/{name} has a handler already; a second group gets its own copies")
            self.declared.append(Declared(topic, name, function, {**given, **options}))
            return function

        return declare

    def pools(self, broker: BrokerProxy, **options: Any) -> list[WorkerPool]:
        """A pool for each handler, not started. options: of WorkerPool, for all of them."""
        return [each.pool(broker, **options) for each in self.declared]
