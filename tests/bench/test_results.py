"""Ratios, verdicts and the file that keeps them, from fixed figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.measure import percentile, typical
from bench.results import Figure, Report, ratio, read, together
from bench.workload import Side, Target


def test_a_ratio_is_of_medians_and_its_spread_is_of_the_rounds_taken_together(report: Report) -> None:
    fast, slow, _ = report.results[0].figures

    found = ratio(fast, slow)

    assert found is not None
    assert (found.value, found.low, found.high) == (4.0, 3.0, 10.0)


def test_verdicts_say_reached_not_reached_and_not_measured(report: Report) -> None:
    assert [verdict.word for verdict in report.results[0].verdicts()] == ["reached", "NOT reached", "not measured"]


def test_a_figure_of_nothing_is_a_figure_too(report: Report) -> None:
    assert [verdict.word for verdict in report.results[1].verdicts()] == ["reached", "NOT reached"]


def test_a_target_whose_contestant_was_not_chosen_is_not_judged(report: Report) -> None:
    report.results[0].figures.pop(1)

    assert [verdict.target.peer for verdict in report.results[0].verdicts()] == ["gone"]


@pytest.mark.parametrize(
    ("target", "just", "beyond"),
    [
        (Target("a", "b", 2.0, at_least=True), 2.0, 1.99),
        (Target("a", "b", 2.0), 2.0, 2.01),
        (Target("a", None, 2.0, below=True), 1.99, 2.0),
    ],
)
def test_a_bound_is_good_enough_unless_it_must_be_undercut(target: Target, just: float, beyond: float) -> None:
    assert target.reached_by(just)
    assert not target.reached_by(beyond)


def test_no_ratio_is_taken_of_nothing() -> None:
    assert ratio(Figure("a", Side.OURS, [1.0]), Figure("b", Side.PEER, [0.0])) is None
    assert ratio(Figure("a", Side.OURS), Figure("b", Side.PEER, [1.0])) is None
    assert ratio(Figure("a", Side.OURS, [1.0]), None) is None


def test_a_report_comes_back_from_its_file(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "results.json")

    assert read(tmp_path / "results.json") == report


def test_the_file_tells_medians_and_verdicts_to_who_reads_it_without_this_program(
    report: Report, tmp_path: Path
) -> None:
    report.write(tmp_path / "results.json")

    speed = json.loads((tmp_path / "results.json").read_text())["results"][0]
    assert [figure["median"] for figure in speed["figures"]] == [400_000.0, 100_000.0, None]
    assert speed["verdicts"][0] == {
        "ours": "fast",
        "peer": "slow",
        "must": "≥ 4 ×",
        "ratio": {"value": 4.0, "low": 3.0, "high": 10.0},
        "is": "reached",
    }


def test_separate_runs_are_shown_as_one_with_all_their_rounds(report: Report) -> None:
    slower = replace(
        report,
        machine={**report.machine, "date": "1970-01-01"},
        results=[
            replace(
                result,
                figures=[replace(figure, rounds=[value / 2 for value in figure.rounds]) for figure in result.figures],
            )
            for result in report.results
        ],
    )

    both = together([report, slower])

    assert both.rounds == 2 * report.rounds
    assert both.machine["date"] == f"{report.machine['date']}, 1970-01-01"
    for mine, first, second in zip(both.results, report.results, slower.results, strict=True):
        assert [figure.rounds for figure in mine.figures] == [
            [*one.rounds, *other.rounds] for one, other in zip(first.figures, second.figures, strict=True)
        ]


def test_a_contestant_that_failed_in_one_run_has_failed_in_all_of_them(report: Report) -> None:
    figures = report.results[0].figures
    broken = replace(report.results[0], figures=[replace(figures[0], rounds=[], failed="gone"), *figures[1:]])

    both = together([report, replace(report, results=[broken, *report.results[1:]])])

    assert [figure.failed for figure in both.results[0].figures[:2]] == ["gone", None]


def test_runs_that_differ_in_more_than_their_date_are_not_shown_as_one(report: Report) -> None:
    for other in (
        replace(report, scale="other"),
        replace(report, machine={**report.machine, "python": "2.7"}),
        replace(report, results=report.results[:1]),
    ):
        with pytest.raises(ValueError, match="cannot be shown as one"):
            together([report, other])


@pytest.mark.parametrize("content", ["{}", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "machine": 1}', "no"])
def test_a_file_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)

    with pytest.raises(ValueError, match=r"results|damaged|Expecting"):
        read(path)


def test_a_percentile_is_a_value_that_was_seen() -> None:
    values = [float(value) for value in range(100, 0, -1)]

    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (51.0, 100.0, 100.0)
    assert percentile([3.0], 99) == 3.0
    assert typical([1.0, 2.0, 9.0]).value == 2.0
