"""``mpbroker stop``: end a broker, and wait until it has."""

from __future__ import annotations

import time

from mpbroker.cli.exits import CheckFailed, verb
from mpbroker.cli.options import Directory, Name, Timeout, connected
from mpbroker.cli.output import Progress, say

_STEP_S = 0.2


@verb
def stop(name: Name = "default", directory: Directory = None, timeout: Timeout = 10.0) -> None:
    """End a broker cleanly. What it holds is lost; its clients get BrokerGone."""
    from mpbroker.cli.ending import Ending

    with connected(name, directory) as broker:
        with Ending(broker._status().pid) as ending, Progress() as progress:
            broker._stop()
            deadline = time.monotonic() + timeout
            while not ending.wait(min(_STEP_S, max(0.0, deadline - time.monotonic()))):
                progress.update(f"waiting for process {ending.pid} to end")
                if time.monotonic() < deadline:
                    continue
                raise CheckFailed(f"broker {name!r}, process {ending.pid}, did not end in {timeout:g} s")
        say(f"stopped: broker {name!r}, process {ending.pid}")
