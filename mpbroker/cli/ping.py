"""``mpbroker ping``: whether a broker answers, and how quickly."""

from __future__ import annotations

import time

from mpbroker.cli.exits import verb
from mpbroker.cli.options import Directory, Name, Timeout, connected
from mpbroker.cli.output import duration, say


@verb
def ping(name: Name = "default", directory: Directory = None, timeout: Timeout = 5.0) -> None:
    """Ask a broker for an answer, and say how long that took."""
    with connected(name, directory, timeout) as broker:
        began = time.perf_counter()
        report = broker._status()
        took = time.perf_counter() - began
        say(f"broker {name!r}, process {report.pid}, version {report.version}, answered in {duration(took)}")
