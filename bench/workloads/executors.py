"""P10: calls in worker processes, short ones and ones of uneven length."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Final

from bench.crew import SPAWN
from bench.terms import Terms
from bench.workload import Contestant, Outcome, Side, Target, Workload
from mpbroker import Executor as OurExecutor

_WORKERS: Final = 2
_CHUNK: Final = 100

_OURS: Final = "mpbroker.Executor"
_PEER: Final = "ProcessPoolExecutor"
_POOL: Final = "multiprocessing.Pool, best chunk size"

_CHUNKS: Final = (1, 2, 4, 8, 16, 32)
"""Chunk sizes among which Pool.map's best one is."""

_SEED: Final = 7


def short(number: int) -> int:
    return number + 1


def uneven(loops: int) -> int:
    """So many loops of computing."""
    total = 0
    for value in range(loops):
        total = (total * 31 + value) & 0xFFFF
    return total


@contextmanager
def _ours() -> Iterator[Executor]:
    with OurExecutor(max_workers=_WORKERS) as executor:
        yield executor


@contextmanager
def _theirs() -> Iterator[Executor]:
    with ProcessPoolExecutor(_WORKERS, mp_context=SPAWN) as executor:
        yield executor


def _warm(executor: Executor) -> None:
    """Until all workers are there."""
    assert list(executor.map(short, range(20 * _WORKERS))) == list(range(1, 20 * _WORKERS + 1))


def _submit(kind: type[Executor], terms: Terms) -> Outcome:
    count = terms.choose(5_000, 50_000)
    with _theirs() if kind is ProcessPoolExecutor else _ours() as executor:
        _warm(executor)
        began = time.perf_counter()
        futures = [executor.submit(short, number) for number in range(count)]
        total = sum(future.result() for future in futures)
        took = time.perf_counter() - began
    assert total == count * (count + 1) // 2
    return Outcome(count / took)


def _map(kind: type[Executor], terms: Terms) -> Outcome:
    count = terms.choose(50_000, 1_000_000)
    with _theirs() if kind is ProcessPoolExecutor else _ours() as executor:
        _warm(executor)
        began = time.perf_counter()
        total = sum(executor.map(short, range(count), chunksize=_CHUNK))
        took = time.perf_counter() - began
    assert total == count * (count + 1) // 2
    return Outcome(count / took)


def _lengths(terms: Terms) -> list[int]:
    """Loops of each task: most are short, some are fifty times as long; the same ones each time."""
    draw = random.Random(_SEED)
    return [int(2_000 * draw.lognormvariate(2.0, 1.0)) for _ in range(terms.choose(100, 500))]


def _uneven_ours(terms: Terms) -> Outcome:
    lengths = _lengths(terms)
    with _ours() as executor:
        _warm(executor)
        began = time.perf_counter()
        results = list(executor.map(uneven, lengths))
        took = time.perf_counter() - began
    assert len(results) == len(lengths)
    return Outcome(took)


def _uneven_pool(terms: Terms) -> Outcome:
    lengths = _lengths(terms)
    times = {}
    with SPAWN.Pool(_WORKERS) as pool:
        pool.map(short, range(20 * _WORKERS), 1)
        for chunk in _CHUNKS:
            began = time.perf_counter()
            pool.map(uneven, lengths, chunk)
            times[f"chunks of {chunk}"] = time.perf_counter() - began
        pool.close()
        pool.join()
    return Outcome(min(times.values()), times)


WORKLOADS = (
    Workload(
        "P10",
        f"tiny calls in {_WORKERS} workers, submitted one by one, until all results are there",
        "calls/s",
        higher_is_better=True,
        contestants=(
            Contestant(_OURS, lambda terms: _submit(OurExecutor, terms), Side.OURS),
            Contestant(_PEER, lambda terms: _submit(ProcessPoolExecutor, terms)),
        ),
        targets=(Target(_OURS, _PEER, 5.0, at_least=True),),
    ),
    Workload(
        "P10-map",
        f"the same with map, {_CHUNK} to a chunk",
        "calls/s",
        higher_is_better=True,
        contestants=(
            Contestant(_OURS, lambda terms: _map(OurExecutor, terms), Side.OURS),
            Contestant(_PEER, lambda terms: _map(ProcessPoolExecutor, terms)),
        ),
        targets=(Target(_OURS, _PEER, 1.0, at_least=True),),
    ),
    Workload(
        "P10-uneven",
        f"computing of uneven length in {_WORKERS} workers, map one by one, until all is done",
        "s",
        higher_is_better=False,
        contestants=(
            Contestant(_OURS, _uneven_ours, Side.OURS),
            Contestant(_POOL, _uneven_pool),
        ),
        targets=(Target(_OURS, _POOL, 1.05),),
    ),
)
