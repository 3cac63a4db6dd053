"""``mpbroker workers``: what the worker pools of this user do at this moment."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli.exits import verb
from mpbroker.cli.options import AsJson, Directory
from mpbroker.cli.output import duration, say, shown, size, table


@verb
def workers(
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Of one broker; default: of all, private ones included.")
    ] = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Show the worker pools of this user on this host, and what each worker does.

    Reads memory that they share, and asks no process anything, so it shows those that hang, too. Linux only.
    """
    from mpbroker.process.config import broker_base
    from mpbroker.workers.looking import pools_here

    pools = pools_here()
    if name is not None:
        folder = Path(broker_base(directory), name).absolute()
        pools = [pool for pool in pools if Path(pool.broker).absolute() == folder]
    if as_json:
        import json

        say(json.dumps([asdict(pool) for pool in pools], indent=2))
        return
    if not pools:
        say("no worker pools")
        return
    rows = [["worker", "process", "subscription", "state", "message", "for", "done", "failed", "memory", "cpu"]]
    for pool in pools:
        subscription = shown(f"{pool.topic}/{pool.group}")
        for each in pool.workers:
            rows.append(
                [
                    shown(each.member),
                    str(each.pid),
                    subscription,
                    each.state,
                    each.message_id or "-",
                    duration(each.for_s),
                    f"{each.done:,}",
                    f"{each.failed:,}",
                    size(each.rss_bytes),
                    duration(each.cpu_s),
                ]
            )
    say(table(rows, right=[1, 5, 6, 7, 8, 9]))
