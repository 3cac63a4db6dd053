"""Every contestant of every workload does a tiny round, gives a figure, and leaves nothing behind."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from bench.terms import Scale, Terms
from bench.workload import Contestant, NotHere, Workload
from bench.workloads import WORKLOADS

TINY = Terms(Scale.TINY)

PAIRS = [
    pytest.param(workload, contestant, id=f"{workload.key}: {contestant.name}")
    for workload in WORKLOADS
    for contestant in workload.contestants
]

CPU_KEYS = {"P9-topics", "P9-clients", "P9-acks"}


@pytest.mark.parametrize(("workload", "contestant"), PAIRS)
def test_a_contestant_gives_a_figure_and_leaves_nothing(
    workload: Workload, contestant: Contestant, temporary: Path
) -> None:
    try:
        outcome = contestant.round(TINY)
    except NotHere as reason:
        pytest.skip(str(reason))

    assert all(math.isfinite(value) for value in (outcome.value, *outcome.also.values()))
    if workload.unit == "bytes":
        pass  # a process may even shrink
    elif workload.unit == "s" or workload.key in CPU_KEYS:
        assert outcome.value >= 0  # less than a tick of CPU time is none
    else:
        assert outcome.value > 0
    assert list(temporary.iterdir()) == []
    # A peer has a named semaphore, which lies outside every folder that one could choose.
    assert list(Path("/dev/shm").glob(f"sem.*mpb-{os.getpid()}-*")) == []


def test_every_target_names_contestants_of_its_workload() -> None:
    for workload in WORKLOADS:
        names = [contestant.name for contestant in workload.contestants]
        assert len(set(names)) == len(names)
        for target in workload.targets:
            assert target.ours in names
            assert target.peer is None or target.peer in names


def test_what_must_be_reached_is_what_was_promised() -> None:
    """So that a target is not loosened by the way; a target is changed here and in its workload."""
    found = {workload.key: [(target.peer, str(target)) for target in workload.targets] for workload in WORKLOADS}

    assert found == {
        "P1": [
            ("pyzmq PUSH/PULL", "≥ 1 ×"),
            ("cloudtoid-interprocess", "≥ 0.4 ×"),
            ("multiprocessing.Queue", "≥ 10 ×"),
            ("Valkey Streams", "≥ 20 ×"),
            ("NATS JetStream", "≥ 100 ×"),
        ],
        "P2": [("eventfd ping-pong", "≤ 1.5 ×"), ("plain BaseManager proxy call", "≤ 0.5 ×")],
        "P3": [("multiprocessing.Queue", "≤ 1 ×"), ("eventfd ping-pong", "≤ 2 ×")] * 2,
        "P6-calls": [("empty", "≤ 1.1 ×")],
        "P6-batches": [("empty", "≤ 1.1 ×")],
        "P6-pipelined": [("empty", "≤ 1.1 ×")],
        "P6-memory": [(None, "≤ 400"), (None, "≤ 60")],
        "P7": [(None, "≤ 50")],
        "P7-broker": [(None, "≤ 1,000")],
        "P7-creator": [(None, "≤ 1,000")],
        "P8": [
            ("mpbroker, pipelined, 1 to 1", "≥ 0.8 ×"),
            ("mpbroker, batches of 100, 1 to 1", "≥ 0.8 ×"),
        ],
        "P9-topics": [("1 topic", "≤ 1.2 ×")],
        "P9-clients": [("1 client, calls", "≤ 1.2 ×"), ("1 client, pipelined", "≤ 1.2 ×")],
        "P9-acks": [
            ("calls, all acked together", "≤ 1.2 ×"),
            ("calls, all acked together", "≤ 3 ×"),
            ("pipelined, all acked together", "≤ 1.2 ×"),
            ("pipelined, all acked together", "≤ 3 ×"),
        ],
        "P9-memory": [(None, "≤ 10")] * 4,
        "P10": [("ProcessPoolExecutor", "≥ 5 ×")],
        "P10-map": [("ProcessPoolExecutor", "≥ 1 ×")],
        "P10-uneven": [("multiprocessing.Pool, best chunk size", "≤ 1.05 ×")],
        "P11": [(None, "< 0.1"), (None, "< 0.1")],
        "P11-neighbours": [("alone", "≤ 3 ×")],
    }
