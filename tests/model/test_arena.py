"""The arena's protocol: every interleaving and every death of it within bounds; and each planted defect, found."""

from __future__ import annotations

import pytest

from tests.model.arena import Arena, Defect
from tests.model.search import Wrong, search

# As in test_ring: all of it is computing, and ends by itself.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("blocks", "hand_overs", "forks", "states"),
    [(2, 2, False, 20_503), (2, 1, True, 15_414), (2, 2, True, 305_261), (3, 2, False, 46_413)],
)
def test_nobody_sees_other_bytes_and_nothing_leaks_whoever_dies_when(
    blocks: int, hand_overs: int, forks: bool, states: int
) -> None:
    """The number of states is part of what is tested: a model that shrinks looks at less."""
    result = search(Arena(blocks, hand_overs, forks=forks))
    assert result.wrong is None, str(result)
    assert result.states == states


@pytest.mark.parametrize(
    ("defect", "blocks", "hand_overs", "wrong"),
    [
        (Defect.FREED_BY_ACK, 2, 2, Wrong.OTHER_BYTES),
        (Defect.UNPINNED_BY_LEASE, 2, 2, Wrong.OTHER_BYTES),
        (Defect.UNPINNED_BY_SESSION, 2, 2, Wrong.OTHER_BYTES),
        (Defect.UNPINNED_WHILE_SHARED, 2, 2, Wrong.OTHER_BYTES),
        (Defect.NOT_RETIRED, 2, 2, Wrong.OTHER_BYTES),
        (Defect.HALF_KNOWN, 2, 2, Wrong.LEAKED),
        (Defect.NOT_VOID, 2, 2, Wrong.OTHER_BYTES),
        (Defect.FREED_BY_PLACE, 3, 2, Wrong.OTHER_BYTES),
        (Defect.TRUSTED_UNDO, 2, 2, Wrong.LEAKED),
        (Defect.FORGOTTEN, 2, 2, Wrong.NO_WAY_TO_AN_END),
    ],
    ids=lambda value: value.name if isinstance(value, Defect) else "",
)
def test_each_planted_defect_is_found_as_what_it_is(defect: Defect, blocks: int, hand_overs: int, wrong: Wrong) -> None:
    forks = defect in {
        Defect.UNPINNED_BY_SESSION,
        Defect.UNPINNED_WHILE_SHARED,
        Defect.NOT_RETIRED,
        Defect.HALF_KNOWN,
    }
    result = search(Arena(blocks, hand_overs, defect, forks=forks))
    assert result.wrong is wrong, str(result)
