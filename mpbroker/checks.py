"""Argument checks: one place that says what a name, a duration or a count may be.

Everything here raises TypeError or ValueError (InvalidName for names) that names the argument, before anything
changes. Imports only errors.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final

from mpbroker.errors import InvalidName, UnknownSubscription

MAX_NAME: Final = 255
"""Characters in a name; what most file systems and brokers allow."""

MAX_COUNT: Final = 2**63 - 1
"""The largest whole number that every part of the way can carry."""

_FORBIDDEN: Final = frozenset("/*>")


def name(value: object, what: str) -> str:
    """A topic, subscription or member name: 1 to 255 characters, no controls, no ``/ * >``, no leading ``$``."""
    value = text(value, what)
    if not value:
        raise InvalidName(what, value, "it is empty")
    if len(value) > MAX_NAME:
        raise InvalidName(what, value[:40] + "…", f"it has {len(value)} characters and {MAX_NAME} are allowed")
    if value.isalnum() and value.isascii():
        return value
    if value[0] == "$":
        raise InvalidName(what, value, "a leading $ is reserved")
    for character in value:
        if character in _FORBIDDEN:
            raise InvalidName(what, value, f"{character!r} is not allowed")
        category = unicodedata.category(character)
        if category == "Cs":
            raise InvalidName(what, value, "it is not valid Unicode (a lone surrogate)")
        if category == "Cc":
            raise InvalidName(what, value, f"the control character {character!r} is not allowed")
    return value


def number(value: object, what: str, *, minimum: float = -math.inf) -> float:
    """A finite real number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError(f"{what} must be a number that fits a float") from None
    if not math.isfinite(result):
        raise ValueError(f"{what} must be finite, not {value!r}")
    if result < minimum:
        raise ValueError(f"{what} must be at least {minimum:g}, not {value!r}")
    return result


def seconds(value: object, what: str, *, positive: bool = False) -> float:
    """A duration in seconds, at least 0 (more than 0 where ``positive``)."""
    result = number(value, what, minimum=0.0)
    if positive and result == 0.0:
        raise ValueError(f"{what} must be more than 0 seconds")
    return result


def optional_seconds(value: object, what: str) -> float | None:
    return None if value is None else seconds(value, what)


def moment(value: object, what: str = "now") -> float:
    """A point in time, in seconds of the broker's clock."""
    return number(value, what)


def count(value: object, what: str, *, minimum: int = 1, maximum: float = MAX_COUNT) -> int:
    """A whole number of at least ``minimum``; a bool is not one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{what} must be at least {minimum}, not {value}")
    if value > maximum:
        raise ValueError(f"{what} must be at most {maximum}")
    return int(value)


def text(value: object, what: str) -> str:
    """A str; of a subclass, the plain str in it."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    return str.__str__(value)


def subscription_id(value: object) -> str:
    """``topic/name``. Raises UnknownSubscription for what cannot be one."""
    given = text(value, "subscription_id")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise UnknownSubscription(given) from None
    return given


def flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be a bool, not {type(value).__name__}")
    return value


def headers(value: object) -> dict[str, str]:
    """A copy of the headers: str to str, valid Unicode."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"headers must be a mapping of str to str, not {type(value).__name__}")
    copied = {}
    for key, entry in value.items():
        if not isinstance(key, str) or not isinstance(entry, str):
            raise TypeError(f"headers must map str to str, not {key!r} to {entry!r}")
        copied[str.__str__(key)] = str.__str__(entry)
        try:
            key.encode()
            entry.encode()
        except UnicodeEncodeError:
            raise ValueError(f"headers must be valid Unicode; {key!r}: {entry!r} has a lone surrogate") from None
    return copied


def message_ids(value: object) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"message_ids must be an iterable of str, not {type(value).__name__}")
    return [text(entry, "message_id") for entry in value]


def sequence_of(message_id: str) -> int:
    """The sequence in a message id such as ``m12``; 0 (never given) for anything else."""
    digits = message_id[1:]
    if message_id[:1] != "m" or not digits.isdecimal() or not digits.isascii() or len(digits) > 18:
        return 0
    return int(digits) if digits[0] != "0" else 0
