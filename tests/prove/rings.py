"""Very many lies told to a broker's loop by way of shared memory: none of them hurts anybody but who told it.

Between turns of the loop, and between two looks of one; see tests.shm.mutant for what must hold.
"""

from __future__ import annotations

import random
import time
import traceback
from typing import Final

from tests.prove.part import Outcome
from tests.shm.mutant import Stage

AT_LEAST: Final = 10_000_000
"""Mutations, however long they take, in the long form."""

_A_STAGE: Final = 20_000
"""Turns in the life of one broker."""

_SERVES: Final = 16
"""Turns from one call of the bystander to its next."""

_KEPT: Final = 3


class Dice:
    """Choices by chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, limit: int) -> int:
        return int(self._random() * limit)


def run(seconds: float, seed: int, *, quick: bool) -> Outcome:
    """Lie for that long, and until it was often enough unless ``quick``."""
    outcome = Outcome("rings", {"ring_mutations": 0, "ring_connections": 0, "bystander_calls": 0, "turns": 0})
    deadline = time.monotonic() + seconds
    number = 0
    while len(outcome.failures) < _KEPT:
        is_enough = quick or int(outcome.figures["ring_mutations"]) >= AT_LEAST
        if is_enough and time.monotonic() >= deadline:
            break
        play(outcome, seed + number, deadline if quick else None)
        number += 1
    return outcome


def play(outcome: Outcome, seed: int, deadline: float | None) -> None:
    """The life of one broker: figures and what broke a law go to the outcome."""
    dice, stage = Dice(seed), Stage()
    turns = 0
    try:
        for turns in range(1, _A_STAGE + 1):
            # Now and then very many, so that one turn finds nothing as it was.
            for _ in range(1 + dice.below(5 if dice.below(4) else 100)):
                stage.mutate(dice)
            stage.turn()
            if turns % _SERVES == 0:
                stage.serves()
                if deadline is not None and time.monotonic() >= deadline:
                    break
    except Exception:
        outcome.failures.append(f"seed {seed}, turn {turns}: {traceback.format_exc()}")
    finally:
        stage.close()
        found = (stage.mutations, stage.connections, stage.answers, turns)
        for name, count in zip(list(outcome.figures), found, strict=True):
            outcome.figures[name] = int(outcome.figures[name]) + count
