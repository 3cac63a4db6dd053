"""What a run found: figures, what they are compared with, and the file that keeps them.

Everything that is shown (table, Markdown, chart) is made of a Report, so it can be made again from its file.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psutil

import mpbroker
from bench.workload import Side, Target, Workload

FORMAT: Final = 1
"""Of the file; another number is another shape."""


@dataclass(frozen=True, slots=True)
class Figure:
    """All rounds of one contestant.

    Attributes:
        rounds: a value each; empty when it could not run. also: name -> a value a round.
        absent: why it did not run on this machine. failed: what went wrong in a round.
    """

    name: str
    side: Side
    rounds: list[float] = field(default_factory=list)
    also: dict[str, list[float]] = field(default_factory=dict)
    absent: str | None = None
    failed: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.rounds) if self.rounds else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure over another: of their medians, and the lowest and highest of their rounds, taken by turns."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was found; ``ratio`` is None when one of its contestants has no figure."""

    target: Target
    ratio: Ratio | None

    @property
    def word(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "reached" if self.target.reached_by(self.ratio.value) else "NOT reached"


@dataclass(frozen=True, slots=True)
class Result:
    """A workload's figures, with all that is needed to show them without it."""

    key: str
    title: str
    unit: str
    higher_is_better: bool
    figures: list[Figure]
    targets: list[Target]

    def figure(self, name: str) -> Figure | None:
        return next((figure for figure in self.figures if figure.name == name), None)

    @property
    def ours(self) -> Figure | None:
        """What ratios are taken of: the first of ours that has a figure."""
        return next((figure for figure in self.figures if figure.side is Side.OURS and figure.rounds), None)

    def verdicts(self) -> list[Verdict]:
        """The targets of which one contestant at least was chosen."""
        found = []
        for target in self.targets:
            ours = self.figure(target.ours)
            peer = None if target.peer is None else self.figure(target.peer)
            if ours is None or (target.peer is not None and peer is None):
                continue
            found.append(Verdict(target, absolute(ours) if target.peer is None else ratio(ours, peer)))
        return found


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    machine: dict[str, str]
    scale: str
    rounds: int
    results: list[Result]

    def write(self, path: Path) -> None:
        content = {"format": FORMAT, **asdict(self)}
        for result, kept in zip(content["results"], self.results, strict=True):
            for figure, of in zip(result["figures"], kept.figures, strict=True):
                figure["side"], figure["median"] = of.side.value, of.median
            result["verdicts"] = [
                {
                    "ours": verdict.target.ours,
                    "peer": verdict.target.peer,
                    "must": str(verdict.target),
                    "ratio": None if verdict.ratio is None else asdict(verdict.ratio),
                    "is": verdict.word,
                }
                for verdict in kept.verdicts()
            ]
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> Report:
    """The report that ``Report.write`` wrote there.

    Raises:
        ValueError: the file is none, or of another version of this program.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} has no results of format {FORMAT}; measure again with --json")
    try:
        return Report(
            machine=content["machine"],
            scale=content["scale"],
            rounds=content["rounds"],
            results=[_result(kept) for kept in content["results"]],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def together(reports: Sequence[Report]) -> Report:
    """Separate runs as one: all their rounds, so that medians and spreads are over all of them.

    Raises:
        ValueError: they differ in more than their date.
    """
    first = reports[0]
    for other in reports[1:]:
        if _terms_of(other) != _terms_of(first):
            raise ValueError("runs of other workloads, contestants, machines or scales cannot be shown as one")
    dates = dict.fromkeys(report.machine["date"] for report in reports)
    results = [
        replace(
            result,
            figures=[
                _joined([report.results[place].figures[line] for report in reports])
                for line in range(len(result.figures))
            ],
        )
        for place, result in enumerate(first.results)
    ]
    machine = {**first.machine, "date": ", ".join(dates)}
    return replace(first, machine=machine, rounds=sum(report.rounds for report in reports), results=results)


def _terms_of(report: Report) -> tuple[object, ...]:
    """All that must be the same in runs that are shown as one."""
    names = [(result.key, [figure.name for figure in result.figures]) for result in report.results]
    return {**report.machine, "date": ""}, report.scale, names


def _joined(figures: Sequence[Figure]) -> Figure:
    """One contestant in all runs; absent or failed when it was so in any."""
    return Figure(
        figures[0].name,
        figures[0].side,
        [value for figure in figures for value in figure.rounds],
        {name: [value for figure in figures for value in figure.also.get(name, [])] for name in figures[0].also},
        next((figure.absent for figure in figures if figure.absent is not None), None),
        next((figure.failed for figure in figures if figure.failed is not None), None),
    )


def _result(kept: Mapping[str, Any]) -> Result:
    return Result(
        key=kept["key"],
        title=kept["title"],
        unit=kept["unit"],
        higher_is_better=kept["higher_is_better"],
        figures=[
            Figure(
                figure["name"],
                Side(figure["side"]),
                figure["rounds"],
                figure["also"],
                figure["absent"],
                figure["failed"],
            )
            for figure in kept["figures"]
        ],
        targets=[Target(**target) for target in kept["targets"]],
    )


def result_of(workload: Workload, figures: Sequence[Figure]) -> Result:
    """The figures of a workload, with what describes them."""
    return Result(
        workload.key,
        workload.title,
        workload.unit,
        workload.higher_is_better,
        list(figures),
        list(workload.targets),
    )


def ratio(ours: Figure, peer: Figure | None) -> Ratio | None:
    """Ours over the peer's; None when either has no figure, or the peer's is 0."""
    if peer is None or not ours.median or not peer.median:
        return None
    pairs = [mine / theirs for mine, theirs in zip(ours.rounds, peer.rounds, strict=False) if theirs]
    value = ours.median / peer.median
    return Ratio(value, min(pairs, default=value), max(pairs, default=value))


def absolute(ours: Figure) -> Ratio | None:
    """The figure itself, in the shape of a ratio."""
    if ours.median is None:
        return None
    return Ratio(ours.median, min(ours.rounds), max(ours.rounds))


def this_machine(transport: str | None) -> dict[str, str]:
    """What the figures were measured on, and how."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "mpbroker": mpbroker.__version__,
        "transport": transport or "its own choice",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": str(cpus),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "date": time.strftime("%Y-%m-%d"),
    }
