"""The part of the proof about kill points: every point, crossed with every action, on every plane that has it, in real
processes.

A point that its scene does not reach is a failure, and so is whatever does not hold after it; see points_scene for
clients and workers, points_broker_scene for brokers, points_creators for who starts them. Where points are and how
they get there: points_trap.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import IO, Any, Final, NamedTuple

from mpbroker.process.naming import Transport
from tests.prove import points_cost
from tests.prove.part import Outcome
from tests.prove.planes import BOTH, RING
from tests.prove.points_lane import POINTS
from tests.prove.points_trap import Action

ROOT: Final = Path(__file__).resolve().parents[2]

ROUNDS: Final = 10
"""How often the long form plays each pair."""

LANES: Final = 4
"""Scenes played side by side: more than there are processors on small machines, for a scene of STOP only waits."""

_SCENE_S: Final = 120.0
"""The hard limit of a scene, whose own waits have lower ones."""


class Job(NamedTuple):
    """One scene to play. whole: with a whole broker as the successor of one that was struck."""

    point: str
    action: Action
    plane: Transport
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.point}, {self.action}, {self.plane}"


def run(seconds: float, seed: int, *, quick: bool) -> Outcome:
    """Play each point once, action and plane rotating with the seed; the long form then each pair on each plane, ten
    times or until the time is over."""
    jobs = deque(rotation(seed))
    if not quick:
        jobs.extend(all_pairs(seed))
    outcome = play(jobs, until=time.monotonic() + seconds, at_least=len(POINTS))
    if not quick:
        outcome.figures |= points_cost.measure()
    return outcome


def rotation(seed: int) -> list[Job]:
    """Each point once; so many seeds in a row as there are actions and planes play all of them."""
    actions = list(Action)
    jobs = [
        Job(
            name,
            actions[(place + seed) % len(actions)],
            point.planes[(place + seed // len(actions)) % len(point.planes)],
            (place // len(actions) + seed) % 4 == 0,
        )
        for place, (name, point) in enumerate(POINTS.items())
    ]
    Random(seed).shuffle(jobs)
    return jobs


def all_of(name: str) -> Iterable[tuple[str, Action, Transport]]:
    """A point with every action on every plane that has it."""
    return ((name, action, plane) for action in Action for plane in POINTS[name].planes)


def all_pairs(seed: int) -> Iterable[Job]:
    """Each pair of a point and an action on each plane, in rounds."""
    random = Random(seed)
    for number in range(ROUNDS):
        # A whole broker as successor in the first round, and then in every fourth scene.
        jobs = [Job(*each, number == 0 or random.randrange(4) == 0) for name in POINTS for each in all_of(name)]
        random.shuffle(jobs)
        yield from jobs


def play(jobs: Iterable[Job], *, lanes: int = LANES, until: float | None = None, at_least: int = 0) -> Outcome:
    """Play scenes side by side, all of them, or as many as begin before ``until``, but so many at least."""
    troupe = Troupe(jobs, until, at_least)
    threads = [threading.Thread(target=troupe.play, name=f"lane {number}") for number in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        troupe.stop()
        for thread in threads:
            thread.join()
    return troupe.outcome()


class Troupe:
    """The lanes at work, each in a thread that orders and hears."""

    def __init__(self, jobs: Iterable[Job], until: float | None, at_least: int) -> None:
        self._lock = threading.Lock()  # guards all below
        self._jobs = deque(jobs)
        self._until = until
        self._at_least = at_least
        self._played: list[Job] = []
        self._failures: list[str] = []
        self._slowest_s = 0.0
        self._calls = 0
        self._stopped = False

    def stop(self) -> None:
        """No further scene begins."""
        with self._lock:
            self._stopped = True

    def play(self) -> None:
        """One lane's share. For a thread of its own, whose end is a failure and no silence."""
        try:
            self._play()
        except Exception:
            self._note(f"a lane broke:\n{traceback.format_exc()}")

    def _play(self) -> None:
        lane: LaneProcess | None = None
        while (job := self._next()) is not None:
            if lane is None:
                lane = LaneProcess()
            answer = lane.ask(job)
            if answer is None:
                self._note(f"{job}: the scene hangs or broke its lane: {lane.kill()}")
                lane = None
            else:
                for wrong in answer["wrong"]:
                    self._note(f"{job}: {wrong}")
                with self._lock:
                    self._slowest_s = max(self._slowest_s, answer["slowest_s"])
        if lane is not None:
            last = lane.end()
            with self._lock:
                self._calls += last.get("calls", 0)
            for wrong in last["wrong"]:
                self._note(wrong)

    def outcome(self) -> Outcome:
        with self._lock:
            actions = Counter(job.action for job in self._played)
            reached = {job.point for job in self._played}
            sides = Counter(POINTS[point].side for point in reached)
            planes = Counter(job.plane for job in self._played)
            figures: dict[str, int | float | str] = {
                "kill points reached": len(reached),
                "pairs of point and action, each plane by itself": len({job[:3] for job in self._played}),
                "faults at kill points": len(self._played),
                **{f"points in {side} code": count for side, count in sorted(sides.items())},
                "points in the code of rings": sum(POINTS[point].planes == RING for point in reached),
                "pairs that there are": sum(1 for name in POINTS for _ in all_of(name)),
                **{f"{action} at a point": actions[action] for action in Action},
                **{f"faults on the {plane} plane": planes[plane] for plane in BOTH},
                "slowest BrokerGone, ms": round(1000 * self._slowest_s, 1),
                "calls of bystanders": self._calls,
            }
            return Outcome("kill points", figures, list(self._failures))

    def _next(self) -> Job | None:
        with self._lock:
            over = self._until is not None and time.monotonic() >= self._until
            if self._stopped or not self._jobs or (over and len(self._played) >= self._at_least):
                return None
            job = self._jobs.popleft()
            self._played.append(job)
            return job

    def _note(self, failure: str) -> None:
        with self._lock:
            self._failures.append(failure)


class LaneProcess:
    """A lane, seen from who orders."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mpp-", dir="/tmp" if Path("/tmp").is_dir() else None))
        self._words: IO[bytes] = (self._folder / "words").open("w+b")
        scenes = self._folder / "lane"
        scenes.mkdir()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.prove.points_lane", os.fspath(scenes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env={**os.environ, "MPBROKER_DIR": os.fspath(scenes), "PYTHONPATH": os.fspath(ROOT)},
            cwd=ROOT,
            start_new_session=True,
        )

    def ask(self, job: Job) -> dict[str, Any] | None:
        """Have it play a scene. None: it does not answer."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(job).encode() + b"\n")
            self._popen.stdin.flush()
        except OSError:
            return None
        return self._hear()

    def end(self) -> dict[str, Any]:
        """Have it end; its last words."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        words = self._hear()
        if words is None:
            return {"wrong": [f"a lane did not end: {self.kill()}"]}
        self._popen.wait(_SCENE_S)
        self._close()
        return words

    def kill(self) -> str:
        """End it and its children, brokers by their creator's death; what it wrote."""
        os.killpg(self._popen.pid, signal.SIGCONT)
        os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._words.seek(0)
        said = self._words.read().decode(errors="replace")[-4000:]
        self._close()
        return said

    def _hear(self) -> dict[str, Any] | None:
        assert self._popen.stdout is not None
        found, _, _ = select.select([self._popen.stdout], [], [], _SCENE_S)
        line = self._popen.stdout.readline() if found else b""
        return json.loads(line) if line else None

    def _close(self) -> None:
        for stream in (self._popen.stdin, self._popen.stdout, self._words):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # what was to be written to it is lost with it
        shutil.rmtree(self._folder, ignore_errors=True)
