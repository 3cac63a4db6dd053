"""Table, Markdown and chart, from fixed figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.chart import caption, draw
from bench.results import Figure, Report
from bench.table import head, markdown, number, summary, table
from bench.workload import Side


def test_the_table_shows_medians_spread_ratios_and_targets(report: Report) -> None:
    assert table(report.results[0]).splitlines() == [
        "P1  how fast  (messages/s; higher is better)",
        "  fast       400,000  (300,000 to 500,000)",
        "  slow       100,000  (50,000 to 100,000)  99th percentile 8   fast / it = 4",
        "                      ✓ fast / it = 4 (3 to 10), must be ≥ 4 ×: reached",
        "                      ✗ fast / it = 4 (3 to 10), must be ≥ 4.5 ×: NOT reached",
        "  gone      not here  it is not installed",
        "                      · fast / it must be ≥ 1 ×: not measured",
    ]


def test_a_target_without_a_peer_stands_beside_its_own_figure(report: Report) -> None:
    assert table(report.results[1]).splitlines() == [
        "P11  how idle  (s; lower is better)",
        "  still             0  (0 to 0.1)",
        "                       ✓ it = 0 (0 to 0.1), must be < 0.1: reached",
        "  busy            0.1  (0.1 to 0.1)",
        "                       ✗ it = 0.1 (0.1 to 0.1), must be < 0.1: NOT reached",
    ]


def test_a_failure_is_shown_with_its_last_line(report: Report) -> None:
    report.results[0].figures[1] = Figure("slow", Side.PEER, failed="RuntimeError: child failed:\nValueError: why\n")

    assert "slow        FAILED  ValueError: why" in table(report.results[0])
    assert "| slow | failed |" in markdown(report)


def test_the_summary_counts_what_is_reached(report: Report) -> None:
    assert summary(report) == "targets: 2 reached, 2 not reached, 1 not measured"


def test_markdown_has_a_table_a_workload_with_ours_in_bold(report: Report) -> None:
    text = markdown(report)

    assert "| P1: how fast | messages/s | target |" in text
    assert "| **fast** | 400,000 (300,000 to 500,000) |  |" in text
    assert "| slow | 100,000 (50,000 to 100,000) | ≥ 4 ×: 4, reached; ≥ 4.5 ×: 4, NOT reached |" in text
    assert "| gone | not here: it is not installed | ≥ 1 ×: not measured |" in text
    assert "| **still** | 0 (0 to 0.1) | < 0.1: 0, reached |" in text
    assert head(report) in text


def test_quick_rounds_are_never_shown_as_figures(report: Report) -> None:
    quick = Report(report.machine, "quick", 1, report.results)

    assert "no figures" in summary(quick)
    assert "no figures" in markdown(quick)
    assert "NO FIGURES" in caption(quick)
    assert "NO FIGURES" not in caption(report)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1_234_567.0, "1,230,000"),
        (999.6, "1,000"),
        (104.4, "104"),
        (12.345, "12.3"),
        (0.04567, "0.0457"),
        (0.0000004, "0.000000"),
        (-3.21, "-3.21"),
    ],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.timeout(300)  # the first may have to make the fonts known to matplotlib
@pytest.mark.usefixtures("drawing")
def test_the_chart_is_drawn_as_png_and_svg_with_its_machine_under_it(report: Report, tmp_path: Path) -> None:
    written = draw(report, tmp_path / "chart.of.it")

    assert [path.name for path in written] == ["chart.of.it.png", "chart.of.it.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    svg = written[1].read_text(encoding="utf-8")
    for text in ("fast", "slow", "messages/s", "400,000", "Python 3.11.7", "2 CPUs"):
        assert text in svg
    assert "gone" in svg


@pytest.mark.timeout(300)  # the first may have to make the fonts known to matplotlib
@pytest.mark.usefixtures("drawing")
def test_a_chart_of_one_report_is_the_same_file_every_time(report: Report, tmp_path: Path) -> None:
    first, second = (draw(report, tmp_path / name)[1].read_bytes() for name in ("one", "two"))

    assert first == second


@pytest.mark.timeout(300)  # the first may have to make the fonts known to matplotlib
@pytest.mark.usefixtures("drawing")
def test_a_report_without_figures_has_no_chart(report: Report, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no figures"):
        draw(Report(report.machine, "full", 3, []), tmp_path / "chart")
