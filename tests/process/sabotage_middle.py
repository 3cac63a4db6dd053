"""A filter module that plants defects: in a broker that imports it, a publish to the topic "TypeError" meets one in the
middle of its fan-out, and so for every other error's name."""

from __future__ import annotations

import builtins

from mpbroker import errors
from mpbroker.engine import Batch
from mpbroker.engine.places import Places

_put = Places.put


def _fail(self: Places, batch: Batch, now: float) -> bool:
    kind = getattr(builtins, batch.topic, None) or getattr(errors, batch.topic, None)
    if kind is not None and batch.first > 1:
        raise kind("planted")
    return _put(self, batch, now)


Places.put = _fail  # type: ignore[method-assign]
