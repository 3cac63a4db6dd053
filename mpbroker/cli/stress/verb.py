"""``mpbroker stress``: the stress as a command."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mpbroker.cli.exits import CheckFailed, verb
from mpbroker.cli.options import AsJson
from mpbroker.cli.output import Progress, say


class StartMethod(StrEnum):
    """Of multiprocessing."""

    FORK = "fork"
    SPAWN = "spawn"
    FORKSERVER = "forkserver"


@verb
def stress(
    publishers: Annotated[int, typer.Option(help="Publisher processes.")] = 4,
    messages: Annotated[int, typer.Option(help="Messages of each publisher.")] = 250,
    workers: Annotated[int, typer.Option(help="Worker processes of each group.")] = 3,
    subscriptions: Annotated[int, typer.Option(help="Worker groups, each with a subscription of its own.")] = 1,
    payload_bytes: Annotated[int, typer.Option(help="Size of a payload.")] = 100,
    batch: Annotated[int, typer.Option(help="Messages in one publish_many, poll and ack_many.")] = 1,
    kill_workers: Annotated[
        int, typer.Option(help="Kill so many workers (SIGKILL), each while it holds messages, and replace them.")
    ] = 0,
    priorities: Annotated[bool, typer.Option("--priorities", help="Publish with all four priorities.")] = False,
    seed: Annotated[int, typer.Option(help="Decides payloads, priorities and who is killed when.")] = 1,
    start_method: Annotated[
        StartMethod | None, typer.Option(help="How processes are started. Default: the platform's own way.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds after which the run has failed. Default: 120 and a second for 1,000 messages."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load a broker, and prove what became of each message.

    Publishers, groups of workers and an observer on a subscription of its own are processes. Verified: in each group
    every id is acked exactly once and delivered exactly once (with --kill-workers: once more for each worker that was
    killed holding it); the observer sees all in id order; the broker's figures add up. A check that fails names the
    ids, and the exit code is 1.
    """
    from mpbroker.cli.crew import Interrupts, TimeUp
    from mpbroker.cli.stress import conductor, report
    from mpbroker.cli.stress.plan import Plan

    try:
        plan = Plan(
            publishers,
            messages,
            workers,
            subscriptions,
            payload_bytes,
            batch,
            kill_workers,
            priorities,
            seed,
            None if start_method is None else start_method.value,
            timeout,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with Interrupts() as interrupts, Progress() as progress:

        def tell(published: int, acked: int) -> None:
            progress.update(f"{published:,} published, {acked:,} acked of {plan.total:,}")

        try:
            outcome = conductor.run(plan, interrupts, tell)
        except TimeUp as error:
            raise CheckFailed(str(error)) from None
    if as_json:
        import json

        say(json.dumps(report.as_dict(outcome), indent=2))
    else:
        say(report.as_text(outcome))
    if not outcome.passed:
        raise CheckFailed
