"""The simulation as a part of the proof: seeds, one after the other, for as long as there is time."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from tests.prove.part import Outcome
from tests.simulation.recorded import run_recorded
from tests.simulation.simulation import run_seed

STEPS: Final = 10_000
QUICK_STEPS: Final = 4_000
RECORDED_EVERY: Final = 10
"""Seeds for one whose clients record histories, which the checker judges."""

NAMES: Final = (
    "seeds",
    "calls",
    "transport steps",
    "deliveries",
    "messages verified",
    "histories checked",
    "events checked",
)
ENOUGH: Final = 5
"""Seeds that fail, until it is time to look into them."""


def run(seconds: float, seed: int, *, quick: bool) -> Outcome:
    """Run seed, seed + 1 and so on. A figure of operations counts calls of clients and steps of the transport (a read,
    a write, a wait of the broker's selector).
    """
    outcome = Outcome("simulation")
    began = time.monotonic()
    until = began + seconds
    faults: Counter[str] = Counter()
    figures = Counter(dict.fromkeys(NAMES, 0))
    virtual_s = 0.0
    failed = 0
    while time.monotonic() < until and failed < ENOUGH:
        if figures["seeds"] % RECORDED_EVERY == RECORDED_EVERY - 1:
            verdict, failures = run_recorded(seed + figures["seeds"])
            figures["histories checked"] += verdict.clients
            figures["events checked"] += verdict.events
            found = [*failures, *(f"seed {seed + figures['seeds']}: {each}" for each in verdict.violations)]
            outcome.failures += found[:1]
            failed += bool(found)
        result = run_seed(seed + figures["seeds"], QUICK_STEPS if quick else STEPS)
        figures["seeds"] += 1
        figures["calls"] += result.calls
        figures["transport steps"] += result.transport_steps
        figures["deliveries"] += result.deliveries
        figures["messages verified"] += result.verified
        virtual_s += result.seconds
        faults += result.faults
        if result.failures:
            failed += 1
            # What a failure leads to is seldom news.
            outcome.failures.append(result.failures[0])
    took = time.monotonic() - began
    operations = figures["calls"] + figures["transport steps"]
    outcome.figures = {
        "first seed": seed,
        **figures,
        "operations": operations,
        "operations a second": round(operations / max(took, 0.001)),
        "simulated hours": round(virtual_s / 3600, 1),
        "faults": faults.total(),
        **{f"fault: {kind}": count for kind, count in sorted(faults.items())},
    }
    return outcome
