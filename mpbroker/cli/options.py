"""Options that several commands have, and what they reach: the broker of a name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mpbroker.process.proxy import BrokerProxy

Name = Annotated[str, typer.Option("--name", "-n", help="The broker's name.")]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        "-d",
        help="Where the brokers of this user are. Default: $MPBROKER_DIR, else the runtime folder.",
    ),
]


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise typer.BadParameter("it must be finite")
    return seconds


Timeout = Annotated[float, typer.Option("--timeout", min=0.0, callback=_finite, help="Seconds to wait for the broker.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value, for programs.")]


@contextmanager
def connected(name: str, directory: Path | None, timeout: float = 5.0) -> Iterator[BrokerProxy]:
    """The running broker of a name, let go of at the end.

    Raises what `mpbroker.connect` raises.
    """
    from mpbroker.process.manager import connect

    with connect(name, timeout, directory=directory) as broker:
        yield broker
