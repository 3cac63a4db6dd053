"""A filter module that plants one defect in the broker that imports it, by the name in its environment.

For the tests of the judge: what it does not notice here, it would not notice when it matters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from mpbroker.engine import Batch, Subscription

MODULE: Final = __name__
VARIABLE: Final = "MPBROKER_PLANTED"

_end_owner = Subscription.end_owner
_put = Subscription.put


def _forgive(self: Subscription, owner: object, now: float, *, died: bool, error: str = "") -> int:
    """A worker's death is not counted as an attempt."""
    return _end_owner(self, owner, now, died=False, error=error)


def _blame(self: Subscription, owner: object, now: float, *, died: bool, error: str = "") -> int:
    """A worker's goodbye counts as an attempt."""
    return _end_owner(self, owner, now, died=True, error=error)


def _overlook(self: Subscription, batches: Sequence[Batch], now: float) -> bool:
    """One subscription does not get what the others get."""
    return self.name != "audit" and _put(self, batches, now)


def _repeat(self: Subscription, batches: Sequence[Batch], now: float) -> bool:
    """One subscription gets each message twice."""
    return _put(self, [*batches, *(batches if self.name == "work" else ())], now)


DEFECTS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "a death is forgiven": ("end_owner", _forgive),
    "a goodbye is blamed": ("end_owner", _blame),
    "a copy is lost": ("put", _overlook),
    "a copy is doubled": ("put", _repeat),
}

if VARIABLE in os.environ:
    setattr(Subscription, *DEFECTS[os.environ[VARIABLE]])
