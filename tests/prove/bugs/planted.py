"""A filter module that plants a defect in the broker process: the one that the environment names."""

from __future__ import annotations

import os
from typing import Final

import tests.prove.bugs.consumers
import tests.prove.bugs.processes  # noqa: F401 - both fill the list
from tests.prove.bugs.plant import BUGS

VARIABLE: Final = "MPBROKER_PLANTED"

_plants = [bug.plant() for bug in BUGS if bug.name == os.environ.get(VARIABLE)]
for _plant in _plants:
    _plant.__enter__()
