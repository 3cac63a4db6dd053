"""A report as text: a table for the terminal, and Markdown for the README."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.results import Figure, Ratio, Report, Result, Verdict, ratio
from bench.workload import Side


def head(report: Report) -> str:
    """What was measured, and on what."""
    return " · ".join(f"{key} {value}" for key, value in report.machine.items())


def table(result: Result) -> str:
    """Medians, spread, the ratio to ours, and which targets are reached."""
    better = "higher" if result.higher_is_better else "lower"
    lines = [f"{result.key}  {result.title}  ({result.unit}; {better} is better)"]
    width = max((len(figure.name) for figure in result.figures), default=0)
    for figure in result.figures:
        lines.append(f"  {figure.name:<{width}}  {_cells(result, figure)}".rstrip())
        lines.extend(f"  {'':<{width}}  {_mark(verdict)}" for verdict in _beside(result, figure))
    return "\n".join(lines)


def _cells(result: Result, figure: Figure) -> str:
    if figure.failed is not None:
        return f"{'FAILED':>12}  {figure.failed.strip().splitlines()[-1]}"
    if figure.absent is not None or figure.median is None:
        return f"{'not here':>12}  {figure.absent or 'no round was run'}"
    text = f"{number(figure.median):>12}  ({spread(figure)})"
    for name, values in figure.also.items():
        text += f"  {name} {number(statistics.median(values))}"
    ours = result.ours
    if ours is not None and figure.side is not Side.OURS and (found := ratio(ours, figure)) is not None:
        text += f"   {ours.name} / it = {found.value:.3g}"
    return text


def _beside(result: Result, figure: Figure) -> Iterator[Verdict]:
    """The targets to show beside a figure: those that compare with it, and those of its own value."""
    for verdict in result.verdicts():
        if figure.name == (verdict.target.peer or verdict.target.ours):
            yield verdict


def _mark(verdict: Verdict) -> str:
    target = verdict.target
    of = f"{target.ours} / it" if target.peer is not None else "it"
    if verdict.ratio is None:
        return f"{'':>12}  · {of} must be {target}: not measured"
    sign = "✓" if verdict.word == "reached" else "✗"
    return f"{'':>12}  {sign} {of} = {_between(verdict.ratio)}, must be {target}: {verdict.word}"


def _between(found: Ratio) -> str:
    return f"{found.value:.3g} ({found.low:.3g} to {found.high:.3g})"


def summary(report: Report) -> str:
    """How many targets are reached, and which are not."""
    verdicts = [(result.key, verdict) for result in report.results for verdict in result.verdicts()]
    words = [verdict.word for _, verdict in verdicts]
    text = (
        f"targets: {words.count('reached')} reached, {words.count('NOT reached')} not reached,"
        f" {words.count('not measured')} not measured"
    )
    if report.scale != "full":
        text += f"; these are {report.scale} rounds, which show that all works and are no figures"
    return text


def markdown(report: Report) -> str:
    """The tables for the README: one a workload, ours in bold."""
    parts = [f"Measured on {report.machine['cpus']} CPUs: {head(report)}; {report.rounds} rounds, medians (spread)."]
    if report.scale != "full":
        parts.append(f"These are {report.scale} rounds, which are no figures.")
    for result in report.results:
        parts.append(_markdown_of(result))
    return "\n\n".join(parts)


def _markdown_of(result: Result) -> str:
    lines = [f"| {result.key}: {result.title} | {result.unit} | target |", "|---|---|---|"]
    for figure in result.figures:
        name = f"**{figure.name}**" if figure.side is Side.OURS else figure.name
        if figure.side is Side.LIMIT:
            name += " (limit)"
        if figure.median is None:
            value = f"not here: {figure.absent}" if figure.failed is None else "failed"
        else:
            value = f"{number(figure.median)} ({spread(figure)})"
        marks = "; ".join(_short(verdict) for verdict in _beside(result, figure))
        lines.append(
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in (name, value, marks)) + " |"
        )
    return "\n".join(lines)


def _short(verdict: Verdict) -> str:
    if verdict.ratio is None:
        return f"{verdict.target}: not measured"
    return f"{verdict.target}: {verdict.ratio.value:.3g}, {verdict.word}"


def spread(figure: Figure) -> str:
    """The lowest and the highest round."""
    return f"{number(min(figure.rounds))} to {number(max(figure.rounds))}"


def number(value: float) -> str:
    """Three digits that count, and no exponents."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        digits = len(f"{abs(value):.0f}") - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.6f}"
