"""``mpbroker topics``: list, create and delete topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mpbroker.cli.exits import HELP, verb
from mpbroker.cli.options import AsJson, Directory, Name, connected
from mpbroker.cli.output import plural, say, shown

app = typer.Typer(help="List, create and delete topics.", epilog=HELP, no_args_is_help=True, rich_markup_mode=None)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of topics.", show_default=False)]


@app.command("list", epilog=HELP)
@verb
def list_topics(name: Name = "default", directory: Directory = None, as_json: AsJson = False) -> None:
    """List the topics, one a line, in the order of their creation."""
    with connected(name, directory) as broker:
        topics = broker.topics()
    if as_json:
        import json

        say(json.dumps({topic: asdict(stats) for topic, stats in topics.items()}, indent=2))
        return
    for topic, stats in topics.items():
        say(f"{shown(topic)}  {stats.published:,} published, {plural(stats.subscriptions, 'subscription')}")


@app.command(epilog=HELP)
@verb
def create(
    topic: Topics,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="One that is there already is fine.")] = False,
    name: Name = "default",
    directory: Directory = None,
) -> None:
    """Create topics."""
    with connected(name, directory) as broker:
        for each in topic:
            broker.create_topic(each, exist_ok=exist_ok)
            say(f"created {shown(each)}")


@app.command(epilog=HELP)
@verb
def delete(topic: Topics, name: Name = "default", directory: Directory = None) -> None:
    """Delete topics with their subscriptions and what those hold."""
    with connected(name, directory) as broker:
        for each in topic:
            broker.delete_topic(each)
            say(f"deleted {shown(each)}")
