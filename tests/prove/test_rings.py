"""The part that lies in shared memory: it counts, holds on this broker, and sees what the broker would not survive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpbroker.process.link import Link
from mpbroker.process.loop import Loop
from mpbroker.process.rings import Rings
from mpbroker.shm.link import RingEnd
from mpbroker.shm.ring import Ring
from tests.prove import rings
from tests.prove.part import Outcome


def test_lies_are_counted_and_hurt_nobody_else() -> None:
    outcome = rings.run(1.0, 1, quick=True)
    assert outcome.failures == []
    assert int(outcome.figures["ring_mutations"]) > 1000
    assert int(outcome.figures["ring_connections"]) > 10
    assert int(outcome.figures["bystander_calls"]) > 1


def test_the_long_form_goes_on_until_it_was_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "AT_LEAST", 3000)
    monkeypatch.setattr(rings, "_A_STAGE", 100)
    outcome = rings.run(0.0, 1, quick=False)
    assert outcome.failures == []
    assert int(outcome.figures["ring_mutations"]) >= 3000


def _a_lie_in_a_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RingEnd, "arm", lambda self, *, for_bytes, for_room: not (for_bytes and self._ring.waiting()))


def _unchecked_room(patch: pytest.MonkeyPatch) -> None:
    def room(self: Ring) -> int:
        self._seen_head = self._peer_words[8]
        return self._capacity - self._tail + self._seen_head

    patch.setattr(Ring, "room", room)


def _not_forgotten(patch: pytest.MonkeyPatch) -> None:
    honest: Callable[..., Any] = Rings.forget
    patch.setattr(Rings, "forget", lambda self, link: honest(self, link) if link.number % 2 else None)


def _everybody_pays(patch: pytest.MonkeyPatch) -> None:
    honest: Callable[..., Any] = Loop._drop

    def drop(self: Loop, link: Link) -> None:
        honest(self, link)
        for other in list(self._links.values())[1:]:
            honest(self, other)

    patch.setattr(Loop, "_drop", drop)


@pytest.mark.parametrize("defect", [_a_lie_in_a_turn, _unchecked_room, _not_forgotten, _everybody_pays])
def test_a_planted_defect_is_seen(defect: Callable[[pytest.MonkeyPatch], None]) -> None:
    outcome = Outcome("rings", dict.fromkeys(("ring_mutations", "ring_connections", "bystander_calls", "turns"), 0))
    with pytest.MonkeyPatch.context() as patch:
        defect(patch)
        rings.play(outcome, 1, None)  # a whole life, however long it takes: in seconds a busy machine plays little
    assert outcome.failures
