"""python -m bench: runs workloads, contestants taking turns, and shows and keeps what was found."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from bench import table
from bench.results import Figure, Report, read, result_of, this_machine, together
from bench.server import folder
from bench.terms import Scale, Terms
from bench.workload import NotHere, Workload
from bench.workloads import WORKLOADS


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    words.add_argument("--quick", action="store_true", help="small rounds, under a minute: shows that all works")
    words.add_argument("--only", action="append", metavar="KEY", help="run this workload or family (repeatable)")
    words.add_argument(
        "--peers",
        action="append",
        metavar="NAME",
        help="beside ours, run contestants with this in their name (repeatable)",
    )
    words.add_argument("--rounds", type=int, metavar="N", help="rounds a contestant (default 5, quick 1)")
    words.add_argument("--transport", metavar="NAME", help="which way mpbroker's frames travel: ring or manager")
    words.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    words.add_argument(
        "--from",
        action="append",
        type=Path,
        metavar="FILE",
        dest="kept",
        help="measure nothing: show these results (repeatable: the rounds of separate runs as one)",
    )
    words.add_argument("--chart", type=Path, metavar="STEM", help="draw STEM.png and STEM.svg")
    words.add_argument(
        "--readme", action="store_true", help="print the Markdown tables for the README, and nothing else"
    )
    words.add_argument("--list", action="store_true", help="show workloads and contestants")
    return words


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; 0: all ran, 1: a contestant failed."""
    words = parser()
    options = words.parse_args(arguments)
    try:
        chosen = choose(options.only)
    except LookupError as error:
        words.error(str(error))
    if options.rounds is not None and options.rounds < 1:
        words.error(f"--rounds must be at least 1, not {options.rounds}")
    if options.list:
        for workload in chosen:
            print(f"{workload.key}: {workload.title}")
            print("".join(f"    {contestant.name}\n" for contestant in workload.contestants), end="")
        return 0
    if options.kept is not None:
        try:
            report = together([read(path) for path in options.kept])
        except (OSError, ValueError) as error:
            words.error(str(error))
    else:
        report = measure(chosen, options)
    if options.json:
        report.write(options.json)
    if options.readme:
        print(table.markdown(report))
    elif options.kept is not None:
        print("\n\n".join([table.head(report), *map(table.table, report.results), table.summary(report)]))
    if options.chart:
        from bench.chart import draw

        try:
            draw(report, options.chart)
        except NotHere as error:
            words.error(str(error))
    return int(any(figure.failed for result in report.results for figure in result.figures))


def choose(keys: Sequence[str] | None) -> list[Workload]:
    """The workloads of these keys and families, in their own order.

    Raises:
        LookupError: there is none of that key.
    """
    known = {workload.key for workload in WORKLOADS} | {workload.family for workload in WORKLOADS}
    if unknown := set(keys or ()) - known:
        raise LookupError(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return [workload for workload in WORKLOADS if not keys or workload.key in keys or workload.family in keys]


def measure(workloads: Sequence[Workload], options: argparse.Namespace) -> Report:
    """Run them, telling how far it is on standard error, and the tables as they come on standard output."""
    terms = Terms(Scale.QUICK if options.quick else Scale.FULL, options.transport)
    rounds = options.rounds or (1 if options.quick else 5)
    report = Report(this_machine(options.transport), terms.scale.value, rounds, [])
    shown = not options.readme
    if shown:
        print(table.head(report), flush=True)
    with tidy_end(), broker_folder():
        for workload in workloads:
            report.results.append(result_of(workload, run(workload, terms, rounds, options.peers)))
            if shown:
                print("\n" + table.table(report.results[-1]), flush=True)
    if shown:
        print("\n" + table.summary(report))
    return report


@contextlib.contextmanager
def tidy_end() -> Iterator[None]:
    """A SIGTERM ends the round that runs, with its processes and folders, and then this process."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def broker_folder() -> Iterator[None]:
    """A folder of this run's own for its brokers, so that nothing lies in the user's."""
    before = os.environ.get("MPBROKER_DIR")
    with folder() as place:
        os.environ["MPBROKER_DIR"] = str(place)
        try:
            yield
        finally:
            del os.environ["MPBROKER_DIR"]
            if before is not None:
                os.environ["MPBROKER_DIR"] = before


def run(workload: Workload, terms: Terms, rounds: int, peers: Sequence[str] | None = None) -> list[Figure]:
    """All rounds of a workload: A B C, A B C, …; one that is not here or fails takes no further part."""
    named = [name.casefold() for name in peers or ()]
    needed = {name for target in workload.targets for name in (target.ours, target.peer) if name is not None}
    chosen = [
        contestant
        for contestant in workload.contestants
        if not named or contestant.side.value == "ours" or any(name in contestant.name.casefold() for name in named)
    ]
    assert needed <= {contestant.name for contestant in workload.contestants}, "a target names nobody"
    figures = {contestant.name: Figure(contestant.name, contestant.side) for contestant in chosen}
    for number in range(rounds):
        for contestant in chosen:
            figure = figures[contestant.name]
            if figure.absent is not None or figure.failed is not None:
                continue
            note(f"{workload.key} round {number + 1}/{rounds}: {contestant.name}")
            try:
                outcome = contestant.round(terms)
            except NotHere as error:
                figures[contestant.name] = Figure(figure.name, figure.side, absent=str(error))
            except Exception as error:
                note(traceback.format_exc())
                figures[contestant.name] = Figure(figure.name, figure.side, failed=f"{type(error).__name__}: {error}")
            else:
                figure.rounds.append(outcome.value)
                for name, value in outcome.also.items():
                    figure.also.setdefault(name, []).append(value)
    return list(figures.values())


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
