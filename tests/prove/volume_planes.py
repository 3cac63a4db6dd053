"""`mpbroker stress` whose processes use both planes side by side, at one broker. Run by COMMAND.

The first argument is a file, to which goes as a line of JSON which plane each process has, by its name. The second is
the plane of the first process; from then on they alternate. All others are those of `mpbroker`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mpbroker.cli.crew import Crew, Member
from mpbroker.cli.link import Link, Role
from mpbroker.cli.main import run
from mpbroker.process.naming import Transport
from mpbroker.process.proxy import BrokerProxy
from tests.prove.planes import BOTH, broker_on, plane_of

COMMAND: Final = "import sys; from tests.prove.volume_planes import main; sys.exit(main(sys.argv[1:]))"
"""Not ``-m``: other processes are to find what is here by its own name."""

_start: Final = Crew.start


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code of the command."""
    told, first, *asked = arguments
    planes = itertools.cycle(sorted(BOTH, key=lambda plane: plane != first))
    used: dict[str, str] = {}

    def start(self: Crew, name: str, role: Role, *others: object) -> Member:
        broker, *rest = others
        assert isinstance(broker, BrokerProxy)
        used[name] = plane = next(planes)
        return _start(self, name, _played, broker_on(broker, plane), role, plane, *rest)

    Crew.start = start  # type: ignore[method-assign]
    sys.argv = ["mpbroker", *asked]
    code = run()
    Path(told).write_text(json.dumps(used))
    return code


def _played(link: Link, broker: BrokerProxy, role: Role, plane: Transport, *others: object) -> None:
    """The role, once it is sure that it has the plane it shall have."""
    broker.topics()
    assert plane_of(broker) is plane, f"calls go by {plane_of(broker)}, not by {plane}"
    role(link, broker, *others)
