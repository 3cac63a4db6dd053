"""A request in two steps: what is checked, and what is done.

Owns the shape of every verb of the broker process. The first step refuses whatever can be refused for what a request
says, and changes nothing; so whatever it raises is that call's error, even a defect. In the second only the refusals of
the engine are answers, which it makes before it changes anything; all else there is a defect in the middle of a change,
and ends the broker. For the broker's side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpbroker.errors import MpbrokerError
from mpbroker.process.clients import Connection
from mpbroker.process.desk import Desk
from mpbroker.process.frames import Reply

Act = Callable[[], Reply | None]
"""What a request does, once it is checked; None when the call waits."""


class Look(NamedTuple):
    """Serves one kind of request, at a time of the loop, and changes nothing."""

    answer: Callable[[Desk, Connection, Any, float], Reply]


class Change(NamedTuple):
    """Serves one kind of request, at a time of the loop, in two steps.

    check: refuses what is to be refused for what it was sent, by any exception, and changes nothing.
    refusals: what the engine may answer to its act, always before it changes anything. All else is a defect there.
    """

    check: Callable[[Desk, Connection, Any, float], Act]
    refusals: tuple[type[MpbrokerError], ...] = ()


Verb = Look | Change
