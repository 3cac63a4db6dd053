"""Ctrl-C at any line of push leaves nothing stuck, lost or held."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mpbroker.push
from mpbroker.push.dispatcher import DispatcherPool
from tests.push.support import Failing, FakeSubscription, dispatcher_of

FOLDER = str(Path(mpbroker.push.__file__).parent)

UNINTERRUPTED = (
    "with ",
    "try:",
    "finally:",
    "turn.ended = True",
    "mine.ended = True",
    "here.in_a_call = before",
)
"""Lines that Python begins without looking for signals since the one before: it looks when a
function begins, when a loop begins again, and after a call of a function that is written in C. The
end of a block with a lock counts as a line of its ``with``.
"""


class Interrupt:
    """Raises KeyboardInterrupt at the start of the n-th line that is run in the package's push."""

    def __init__(self, line: int) -> None:
        self._left = line
        self.at = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(FOLDER):
            return None
        if event == "line":
            text = linecache.getline(name, frame.f_lineno).strip()
            if not text.startswith(UNINTERRUPTED):
                self._left -= 1
                if self._left == 0:
                    self.at = f"{Path(name).name}:{frame.f_lineno}: {text}"
                    raise KeyboardInterrupt
        return self


def interrupted(line: int, action: Callable[[], object]) -> str:
    """Where the action was interrupted; "" when it has fewer lines."""
    interrupt = Interrupt(line)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        action()
    except KeyboardInterrupt:
        if not interrupt.at:
            raise
    finally:
        sys.settrace(before)
    return interrupt.at


def first_use(subscription: FakeSubscription, pool: DispatcherPool) -> None:
    subscription.publish()
    pool.run_until_idle()


def later_use(subscription: FakeSubscription, pool: DispatcherPool) -> None:
    subscription.publish()
    pool.run_until_idle()
    subscription.publish()
    pool.run_until_idle()


def use_and_close(subscription: FakeSubscription, pool: DispatcherPool) -> None:
    first_use(subscription, pool)
    pool.close()


def threads(subscription: FakeSubscription, pool: DispatcherPool) -> None:
    subscription.publish()
    pool.start()
    pool.close()


@pytest.mark.parametrize("action", [first_use, later_use, use_and_close, threads])
def test_after_an_interrupt_anywhere_all_goes_on_and_nothing_is_lost(
    action: Callable[[FakeSubscription, DispatcherPool], None],
) -> None:
    places: set[str] = set()
    where = "the beginning"
    while where:
        subscription = FakeSubscription()
        pool = DispatcherPool()
        pool.add(dispatcher_of(subscription, Failing(times=1), lambda _: None))
        where = interrupted(len(places) + 1, partial(action, subscription, pool))
        pool.close()
        assert subscription.member is None, where
        pool.run_until_idle()
        pool.close()
        published = [f"m{number}" for number in range(1, subscription._published + 1)]
        assert subscription.acked == published, where
        assert (subscription.ready, subscription.held) == ([], []), where
        assert subscription.member is None, where
        assert [each for each in threading.enumerate() if each.name.startswith("mpb")] == [], where
        places.add(f"{len(places)} {where}")
    assert len(places) > 30
