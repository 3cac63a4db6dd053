"""``mpbroker demo``: what mpbroker promises, shown on this machine in under a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpbroker.cli.exits import CheckFailed, verb
from mpbroker.cli.output import Progress, duration, plural, say, shown, size, table

if TYPE_CHECKING:
    from mpbroker.cli.crew import Interrupts
    from mpbroker.cli.demo.compare import Comparison, Key
    from mpbroker.cli.demo.files import File, Found
    from mpbroker.cli.demo.pipeline import BrokerPass, Pass
    from mpbroker.cli.demo.work import Failed

_SHOWN = 12
"""Dead letters and differences that are listed."""


@verb
def demo(
    path: Annotated[
        Path | None,
        typer.Option(help="The folder whose files are worked on. Default: this Python's standard library."),
    ] = None,
) -> None:
    """Show mpbroker at work, and check what it shows.

    First the life of three messages, step by step, expected against got; then a small stress; then real work: worker
    processes share the files of a folder, one of them is killed while it holds messages, and the results are compared
    with those of one plain process. Exit code 1 when anything differs.
    """
    from mpbroker.cli.crew import Interrupts, TimeUp

    if path is not None and not path.is_dir():
        raise typer.BadParameter(f"there is no folder {shown(str(path))}", param_hint="--path")
    failed = []
    with Interrupts() as interrupts, Progress() as progress:
        try:
            for name, part in (("trace", _trace), ("stress", _stress), ("real work", _real_work)):
                if not part(interrupts, progress, path):
                    failed.append(name)
                say()
        except TimeUp as error:
            raise CheckFailed(str(error)) from None
    if failed:
        raise CheckFailed(f"the demonstration failed: {', '.join(failed)}")
    say("everything came out as expected")


def _trace(interrupts: Interrupts, progress: Progress, _: Path | None) -> bool:
    from mpbroker.cli.demo.trace import trace
    from mpbroker.process.manager import BrokerManager

    progress.update("starting a broker")
    with (
        interrupts.limit(60.0, "the trace did not end in 60 s"),
        BrokerManager(manual_time=True) as manager,
        manager.broker() as broker,
    ):
        steps = trace(broker)
    interrupts.check()
    rows = [["", "step", "expected", "got", ""]]
    rows += [
        [str(step.number), step.action, step.expected, step.got, "ok" if step.holds else "DIFFERS"] for step in steps
    ]
    progress.clear()
    say("1. Three messages in two subscriptions of a broker process. billing: leases of 30 s, two deliveries at most;")
    say('   email: only headers.type = "created".')
    say(table(rows, indent="   "))
    return all(step.holds for step in steps)


def _stress(interrupts: Interrupts, progress: Progress, _: Path | None) -> bool:
    from mpbroker.cli.stress import conductor, report
    from mpbroker.cli.stress.plan import Plan

    outcome = conductor.run(
        Plan(), interrupts, lambda published, acked: progress.update(f"{published} published, {acked} acked")
    )
    progress.clear()
    say("2. Processes that publish, and a worker group that shares what they publish.")
    say("\n".join(f"   {line}" for line in report.as_text(outcome).splitlines()))
    return outcome.passed


def _real_work(interrupts: Interrupts, progress: Progress, path: Path | None) -> bool:
    from mpbroker.cli.demo import compare, pipeline, work
    from mpbroker.cli.demo.files import find, find_standard_library

    found = find_standard_library() if path is None else find(os.fsencode(path))
    folder = shown(os.fsdecode(found.folder))
    say(f"3. Real work: the SHA-256 of each file below {folder}, and a census of those in Python.")
    if not found.files:
        progress.clear()
        say(f"   There are no files to work on{_left_out(found)}.")
        return True
    with interrupts.limit(pipeline.WARM_UP_S + pipeline.PLAIN_S + 30.0, "a file could not be read in 60 s"):
        files = pipeline.warm_up(found.files, interrupts, progress.update)
        plain, files = pipeline.plain(files, interrupts, progress.update)
    done = pipeline.over_broker(files, interrupts, progress.update)
    comparison = compare.compare(plain.outcomes, done.outcomes, work.outcome)
    progress.clear()
    say("\n".join(f"   {line}" for line in _lines(found, files, plain, done, comparison)))
    return not comparison.differences and bool(done.killed) and done.redelivered >= done.killed_held


def _left_out(found: Found) -> str:
    if not found.left_out:
        return ""
    return f" (left out: {', '.join(f'{count:,} {reason}' for reason, count in found.left_out.items())})"


def _lines(found: Found, files: list[File], plain: Pass, done: BrokerPass, comparison: Comparison) -> list[str]:
    from mpbroker.cli.demo import compare, pipeline
    from mpbroker.cli.stress.report import shares

    python = sum("census" in pipeline.kinds_for(file) for file in files)
    total = size(sum(file.size for file in files))
    lines = [f"{plural(len(files), 'file')} ({total}), {python:,} of them Python{_left_out(found)}"]
    if len(files) < len(found.files):
        lines.append(f"the time for one plain pass was over before the other {len(found.files) - len(files):,} files")
    per_kind = sum(name.startswith("census") for name in done.shares)
    rows = [
        ["plainly", "1 process", duration(plain.seconds), ""],
        [
            "with mpbroker",
            f"{per_kind} + {per_kind} workers",
            duration(done.seconds),
            f"{plain.seconds / done.seconds:.2f} times as fast",
        ],
    ]
    lines += table(rows, right=(2,)).splitlines()
    for kind in ("digest", "census"):
        own = {name: count for name, count in done.shares.items() if name.startswith(kind)}
        lines.append(f"shares of {kind} workers: {shares(own)}")
    lines.append(
        f"killed: {done.killed}, while it held {plural(done.killed_held, 'message')}; redelivered: "
        f"{done.redelivered:,}; results that came twice, and were taken once: {done.results_twice:,}"
    )
    lines.append(
        f"results: {plural(compare.count(done.outcomes, 'digest'), 'digest')}, "
        f"{compare.count(done.outcomes, 'census'):,} censuses; dead letters: {done.dead:,}"
    )
    lines += _listed("dead letter", [(key, failed) for key, failed in compare.failures(done.outcomes)])
    if comparison.changed:
        lines.append(f"changed while the demonstration ran: {plural(len(comparison.changed), 'result')}")
    if not comparison.differences:
        lines.append("the same as the plain pass")
    else:
        lines.append(f"DIFFERENT from the plain pass: {plural(len(comparison.differences), 'result')}")
        lines += [
            f"  {each.key[0]} of {_path(each.key)}: {each.expected} expected, got {each.got}"
            for each in comparison.differences[:_SHOWN]
        ]
    return lines


def _listed(what: str, failed: list[tuple[Key, Failed]]) -> list[str]:
    lines = [f"  {key[0]}  {_path(key)}  {shown(failure.error)[:200]}" for key, failure in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"  and {plural(len(failed) - _SHOWN, what)} more")
    return lines


def _path(key: Key) -> str:
    return shown(os.fsdecode(key[1]))
