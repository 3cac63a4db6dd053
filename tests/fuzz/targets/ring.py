"""Whatever a client writes in its half of a ring, before a turn of the broker's loop or in the middle, it alone is cut.

The bytes are choices; the deeds and the laws are those of tests.shm.mutant.
"""

from __future__ import annotations

from tests.fuzz.draw import Draw
from tests.shm.mutant import Stage

_DEEDS = 64


def target(data: bytes) -> None:
    draw = Draw(data)
    stage = Stage()
    try:
        for _ in range(_DEEDS):
            if not draw:
                break
            stage.mutate(draw)
            if not draw.below(3):
                stage.turn()
        stage.turn()
        stage.serves()
    finally:
        stage.close()
