"""The commands, put together.

Owns the names and the order that help shows. What a command does, and the imports that takes, are in its own module.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from mpbroker.cli import ping, publish, serve, status, stop, topics
from mpbroker.cli.demo.verb import demo
from mpbroker.cli.exits import HELP
from mpbroker.cli.output import say
from mpbroker.cli.stress.verb import stress

app = typer.Typer(
    name="mpbroker",
    help="A message broker for the processes of one host: topics, worker groups, acks, dead letters.",
    epilog=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from mpbroker import __version__, deliveries

        is_compiled = not str(deliveries.__file__).endswith(".py")
        say(f"mpbroker {__version__}{' (compiled)' if is_compiled else ''}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", help="Show the version and end.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if os.environ.get("MPBROKER_TRANSPORT"):
        from mpbroker.process.naming import Transport

        try:
            Transport.of(None, os.environ)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


app.command(epilog=HELP)(serve.serve)
app.command(epilog=HELP)(stop.stop)
app.command(epilog=HELP)(ping.ping)
app.command(epilog=HELP)(status.status)
app.add_typer(topics.app, name="topics")
app.command(epilog=HELP)(publish.publish)
app.command(epilog=HELP)(stress)
app.command(epilog=HELP)(demo)
