"""A lane: a process that plays scenes of kill points, one after the other, for whoever started it.

It has one thread, so that victims can be forked, and a folder of its own. Orders come as lines of JSON on standard
input, and each is answered by one on standard output; at the end of the input it says what it left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from mpbroker.process.naming import Transport
from mpbroker.testing import LeakCheck
from mpbroker.testing.leaks import Leak
from tests.prove import (
    points_arena,
    points_broker_arena,
    points_broker_rings,
    points_brokers,
    points_client_rings,
    points_clients,
    points_creators,
    points_pipes,
)
from tests.prove.points_broker_scene import Scene
from tests.prove.points_brokers import BrokerPoint
from tests.prove.points_clients import ClientPoint
from tests.prove.points_creators import CreatorPoint, CreatorScene
from tests.prove.points_scene import Stage
from tests.prove.points_trap import Action

Point = ClientPoint | BrokerPoint | CreatorPoint

_ALL: Final[list[Point]] = [
    *points_clients.POINTS,
    *points_client_rings.POINTS,
    *points_pipes.POINTS,
    *points_arena.POINTS,
    *points_brokers.POINTS,
    *points_broker_rings.POINTS,
    *points_broker_arena.POINTS,
    *points_creators.POINTS,
]
POINTS: Final = {each.name: each for each in _ALL}


class Lane:
    """Attributes:
    folder: where all its scenes are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._brokers = folder / "struck"
        self._brokers.mkdir(mode=0o700)
        self._stages: dict[Transport, Stage] = {}
        self._number = 0

    def play(self, name: str, action: Action, plane: Transport, whole: bool) -> dict[str, Any]:
        """Play a scene; what was wrong, and the figures of it."""
        self._number += 1
        folder = self.folder / f"scene-{self._number}"
        folder.mkdir()
        point = POINTS[name]
        slowest_s = 0.0
        if isinstance(point, ClientPoint):
            if plane not in self._stages:
                self._stages[plane] = Stage(self.folder, plane)
            wrong = self._stages[plane].play(point, action, folder)
        elif isinstance(point, CreatorPoint):
            creators = CreatorScene(point, action, plane, self._brokers, folder)
            creators.play()
            wrong = creators.wrong
        else:
            scene = Scene(point, action, plane, self._brokers, folder, whole=whole)
            scene.play()
            wrong, slowest_s = scene.wrong, scene.slowest_s
        shutil.rmtree(folder)
        return {"wrong": wrong, "slowest_s": slowest_s}

    def close(self) -> int:
        """End what it has; how many calls the bystanders made meanwhile."""
        stages, self._stages = self._stages, {}
        return sum(stage.close() for stage in stages.values())


def main() -> None:
    # Whatever anybody prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder = Path(sys.argv[1])
    check = LeakCheck([folder]).start()
    lane = Lane(folder)

    def answer(words: dict[str, Any]) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    for line in sys.stdin:
        name, action, plane, whole = json.loads(line)
        answer(lane.play(name, Action(action), Transport(plane), whole))
    calls = lane.close()
    try:
        check.verify()
    except Leak as leak:
        answer({"calls": calls, "wrong": [str(leak)]})
    else:
        answer({"calls": calls, "wrong": []})


if __name__ == "__main__":
    main()
