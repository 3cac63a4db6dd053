"""The chart of a report, as PNG and SVG, for the README."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.results import Figure, Report, Result
from bench.server import folder
from bench.table import number
from bench.workload import Side, load

_COLOURS: Final = {Side.OURS: "#d1495b", Side.PEER: "#8d99ae", Side.LIMIT: "#cfd6e1"}
_NAMES: Final = {Side.OURS: "mpbroker", Side.PEER: "others", Side.LIMIT: "limits of the machine"}
_SHOWN: Final = ("P1", "P8", "P2", "P3")
"""Where there are others to compare with; the rest compares mpbroker with itself."""

_DARK: Final = "#2b2d42"
_BAR_INCHES: Final = 0.3
_PANEL_INCHES: Final = 1.05
"""Title and axis of a panel."""

_TITLE_LETTERS: Final = 66
"""In a line, so that it ends where its panel does."""

_LOG_FROM: Final = 20.0
"""The largest over the smallest from which on the axis is logarithmic."""


def draw(report: Report, stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg; returns their paths.

    Raises:
        NotHere: matplotlib is not installed. ValueError: the report has nothing to draw.
    """
    plots = _plots()
    panels = [result for key in _SHOWN for result in report.results if result.key == key and _bars(result)]
    panels = panels or [result for result in report.results if _bars(result)]
    if not panels:
        raise ValueError("the results have no figures to draw")
    bars = [len(_bars(result)) for result in panels]
    style = {
        "font.size": 9,
        "text.color": _DARK,
        "axes.labelcolor": _DARK,
        "svg.fonttype": "none",
        "svg.hashsalt": "mpb",
    }
    with plots.rc_context(style):
        figure, axes = plots.subplots(
            len(panels),
            figsize=(8.6, _BAR_INCHES * sum(bars) + _PANEL_INCHES * len(bars) + 0.7),
            height_ratios=[count + 0.5 for count in bars],
            squeeze=False,
            layout="constrained",
        )
        for axis, result in zip(axes[:, 0], panels, strict=True):
            _panel(axis, result)
        _legend(figure, plots, {bar.side for result in panels for bar in _bars(result)})
        figure.supxlabel(caption(report), fontsize=7.5, color="#6c757d", x=0.01, ha="left")
        written = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
        try:
            for path in written:
                figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
        finally:
            plots.close(figure)
    return written


def _plots() -> Any:
    """matplotlib, which keeps what it finds about fonts in the home folder unless it is told another one."""
    with folder() as place:
        told = "MPLCONFIGDIR" in os.environ
        os.environ.setdefault("MPLCONFIGDIR", str(place))
        try:
            load("matplotlib", "matplotlib").use("agg")
            return load("matplotlib.pyplot", "matplotlib")
        finally:
            if not told:
                del os.environ["MPLCONFIGDIR"]


def caption(report: Report) -> str:
    """The machine, how often, and what the whiskers are."""
    machine = report.machine
    text = (
        f"mpbroker {machine['mpbroker']} (transport: {machine['transport']}) · Python {machine['python']} ·"
        f" {machine['system']} {machine['machine']}, {machine['cpus']} CPUs, {machine['memory']} · {machine['date']}\n"
        f"medians of {report.rounds} rounds, contestants taking turns; whiskers: lowest and highest round"
    )
    return text if report.scale == "full" else f"{text} · {report.scale} rounds, NO FIGURES"


def _bars(result: Result) -> list[Figure]:
    """The figures that there are and that a logarithm has, best first."""
    found = [figure for figure in result.figures if figure.median is not None and figure.median > 0]
    return sorted(found, key=lambda figure: figure.median or 0.0, reverse=result.higher_is_better)


def _panel(axis: Any, result: Result) -> None:
    bars = _bars(result)
    medians = [bar.median or 0.0 for bar in bars]
    places = range(len(bars))
    axis.barh(places, medians, color=[_COLOURS[bar.side] for bar in bars], height=0.72, zorder=2)
    axis.errorbar(medians, places, xerr=_whiskers(bars), fmt="none", ecolor=_DARK, elinewidth=0.9, capsize=2, zorder=3)
    wide = max(medians) / min(medians) >= _LOG_FROM
    highest = max(max(bar.rounds) for bar in bars)
    if wide:
        axis.set_xscale("log")
        axis.set_xlim(min(min(bar.rounds) for bar in bars) / 2.5, highest * 4)
    else:
        axis.set_xlim(0, highest * 1.22)
    for place, bar, median in zip(places, bars, medians, strict=True):
        axis.annotate(
            number(median),
            (max(bar.rounds), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            fontweight="bold" if bar.side is Side.OURS else "normal",
        )
    axis.set_yticks(places, [bar.name for bar in bars])
    for label, bar in zip(axis.get_yticklabels(), bars, strict=True):
        label.set_fontweight("bold" if bar.side is Side.OURS else "normal")
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter(lambda value, place: number(value))
    axis.grid(axis="x", color="#e9ecef", linewidth=0.8, zorder=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    title = textwrap.fill(f"{result.key}  {result.title}", _TITLE_LETTERS)
    axis.set_title(title, loc="left", fontsize=9.5, fontweight="bold")
    better = "higher is better" if result.higher_is_better else "lower is better"
    absent = [figure.name for figure in result.figures if figure.absent is not None]
    scale = ", logarithmic" if wide else ""
    missing = f"   (not here: {'; '.join(absent)})" if absent else ""
    axis.set_xlabel(f"{result.unit}, {better}{scale}{missing}", fontsize=8)


def _whiskers(bars: Sequence[Figure]) -> list[list[float]]:
    below = [(bar.median or 0.0) - min(bar.rounds) for bar in bars]
    above = [max(bar.rounds) - (bar.median or 0.0) for bar in bars]
    return [below, above]


def _legend(figure: Any, plots: Any, sides: set[Side]) -> None:
    handles = [
        plots.Rectangle((0, 0), 1, 1, color=_COLOURS[side], label=_NAMES[side]) for side in Side if side in sides
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=8.5)
