"""The part about the arena, in a small round."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.prove import arena
from tests.prove.arena_roles import _check

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="arenas are for Linux"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def test_nobody_sees_another_blocks_bytes_whoever_dies() -> None:
    outcome = arena.run(3.0, 7, quick=True)
    assert outcome.failures == []
    assert int(outcome.figures["blocks published"]) > 0


def test_a_view_with_other_bytes_is_seen() -> None:
    with pytest.raises(AssertionError, match="other bytes"):
        _check(np.zeros(100_000, np.uint8).data, 5)
