"""The settings of a subscription: what subscribe() was told, checked once, compared when it is told again.

Imports the other value modules. Both the broker in one process and the broker process are given a Settings.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from types import MethodType
from typing import Final

from mpbroker import checks
from mpbroker.filters import Expression, Filter
from mpbroker.overflow import Overflow, WaitForRoom
from mpbroker.retry import RetryPolicy


class Unset:
    """The type of UNSET: an argument that was not given."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<not given>"


UNSET: Final = Unset()

DEFAULT_ACK_TIMEOUT: Final = 30.0
DEFAULT_MAX_DELIVERIES: Final = 5
DEFAULT_MAX_QUEUE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How one subscription behaves.

    Attributes:
        filter: predicate on headers, or None for every message.
        ack_timeout: seconds a delivery is held before it is taken back.
        max_deliveries: counted hand-overs before a message becomes a dead letter.
        retry: delays between attempts; None: failed messages come back at once.
        max_queue: bound on ready + delayed + in flight.
        overflow: what happens to a publish beyond that bound.
        ephemeral: it ends with the process that made it, or with the broker where that is in the same process.
    """

    filter: Filter | None = None
    ack_timeout: float = DEFAULT_ACK_TIMEOUT
    max_deliveries: int = DEFAULT_MAX_DELIVERIES
    retry: RetryPolicy | None = None
    max_queue: int = DEFAULT_MAX_QUEUE
    overflow: Overflow | WaitForRoom = Overflow.DEAD_LETTER
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """The settings one subscribe() call named, checked; the rest is UNSET."""

    filter: Filter | Unset | None = UNSET
    ack_timeout: float | Unset = UNSET
    max_deliveries: int | Unset = UNSET
    retry: RetryPolicy | Unset | None = UNSET
    max_queue: int | Unset = UNSET
    overflow: Overflow | WaitForRoom | Unset = UNSET
    ephemeral: bool | Unset = UNSET

    @classmethod
    def check(
        cls,
        filter: object = UNSET,
        ack_timeout: object = UNSET,
        max_deliveries: object = UNSET,
        retry: object = UNSET,
        max_queue: object = UNSET,
        overflow: object = UNSET,
        ephemeral: object = UNSET,
    ) -> Given:
        """Check what a caller gave.

        Raises:
            TypeError, ValueError: an argument of the wrong type or range, by name, or max_deliveries and
                retry.max_attempts that differ.
            InvalidFilter: an expression that does not parse.
        """
        checked_filter: Filter | Unset | None
        if isinstance(filter, str):
            checked_filter = Expression(filter)
        elif isinstance(filter, Unset) or filter is None or callable(filter):
            checked_filter = filter
        else:
            raise TypeError(f"filter must be an expression, a callable or None, not {type(filter).__name__}")
        if not (isinstance(retry, (RetryPolicy, Unset)) or retry is None):
            raise TypeError(f"retry must be a RetryPolicy or None, not {type(retry).__name__}")
        if not isinstance(overflow, (Overflow, WaitForRoom, Unset)):
            raise TypeError(
                f"overflow must be a member of Overflow or Overflow.WAIT(seconds), not {type(overflow).__name__}"
            )
        given = cls(
            filter=checked_filter,
            ack_timeout=(
                ack_timeout
                if isinstance(ack_timeout, Unset)
                else checks.seconds(ack_timeout, "ack_timeout", positive=True)
            ),
            max_deliveries=(
                max_deliveries if isinstance(max_deliveries, Unset) else checks.count(max_deliveries, "max_deliveries")
            ),
            retry=retry,
            max_queue=max_queue if isinstance(max_queue, Unset) else checks.count(max_queue, "max_queue"),
            overflow=overflow,
            ephemeral=ephemeral if isinstance(ephemeral, Unset) else checks.flag(ephemeral, "ephemeral"),
        )
        if isinstance(given.retry, RetryPolicy):
            attempts = given.retry.max_attempts
            if not isinstance(given.max_deliveries, Unset) and given.max_deliveries != attempts:
                raise ValueError(
                    f"max_deliveries is {given.max_deliveries} and retry.max_attempts is {attempts}; "
                    "they are one limit: give one of them, or the same number"
                )
        return given

    def settings(self, default_retry: RetryPolicy | None = None) -> Settings:
        """The settings of a new subscription made with these; ``default_retry`` is what push subscriptions have."""
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if not isinstance(getattr(self, f.name), Unset)}
        if "retry" not in chosen and default_retry is not None:
            attempts = chosen.get("max_deliveries", default_retry.max_attempts)
            chosen["retry"] = replace(default_retry, max_attempts=attempts)
        if chosen.get("retry") is not None:
            chosen["max_deliveries"] = chosen["retry"].max_attempts
        return Settings(**chosen)

    def conflicts(self, existing: Settings) -> list[str]:
        """The names of the settings given here that an existing subscription has otherwise."""
        return [
            f.name
            for f in fields(self)
            if not isinstance(getattr(self, f.name), Unset)
            and not _same(getattr(self, f.name), getattr(existing, f.name))
        ]


def _same(one: object, other: object) -> bool:
    """Whether two settings are one; functions by identity, and so are methods of one object."""
    if not callable(one) or isinstance(one, Expression):
        return one == other
    if isinstance(one, MethodType) and isinstance(other, MethodType):
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return one is other


__all__ = ["UNSET", "Filter", "Given", "Settings", "Unset"]
