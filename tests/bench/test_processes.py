"""Children and servers of a round: what they report, and that none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.crew import Crew, Gate
from bench.server import folder, served
from bench.tally import Tally, tally

HARD_LIMIT_S = 30.0


def double(gate: Gate, number: int) -> int:
    gate.wait()
    return 2 * number


def fail_before_the_gate(gate: Gate) -> None:
    raise LookupError("nothing to set up")


def end_at_once(gate: Gate) -> None:
    gate.wait()
    os._exit(7)


def wait_for_ever(gate: Gate) -> None:
    gate.wait()
    signal.pause()


def add_up(gate: Gate, counts: Tally) -> None:
    gate.wait()
    for _ in range(1000):
        counts.add(3)


def test_children_start_together_and_report() -> None:
    with Crew() as crew:
        children = [crew.add(double, number) for number in range(3)]
        crew.begin()
        assert [child.result() for child in children] == [0, 2, 4]


def test_what_a_child_raised_is_told_with_its_traceback() -> None:
    with Crew() as crew:
        crew.add(fail_before_the_gate)
        with pytest.raises(RuntimeError, match=r"(?s)failed:.*LookupError: nothing to set up"):
            crew.begin()


def test_a_child_that_is_gone_is_told_with_its_exit_code() -> None:
    with Crew() as crew:
        child = crew.add(end_at_once)
        crew.begin()
        with pytest.raises(RuntimeError, match="ended with 7"):
            child.result()


def test_no_child_outlives_its_crew() -> None:
    with Crew() as crew:
        child = crew.add(wait_for_ever)
        crew.begin()
        assert child.process.is_alive()

    assert not child.process.is_alive()


def test_workers_count_without_a_lock() -> None:
    with tally(4) as counts, Crew() as crew:
        children = [crew.add(add_up, counts.worker(number)) for number in range(4)]
        assert not counts.ended()
        crew.begin()
        for child in children:
            child.result()
        assert counts.acked() == 12_000
        counts.end()
        assert counts.worker(2).ended()


def test_a_server_that_does_not_come_up_says_why() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no room for a server')"]

    with folder() as place, pytest.raises(RuntimeError, match="no room for a server"):  # noqa: SIM117
        with served(command, place, lambda: False):
            pass


def test_a_server_ends_with_its_round() -> None:
    with folder() as place:
        up = place / "up"
        command = [sys.executable, "-c", f"import signal; open({str(up)!r}, 'w'); signal.pause()"]
        with served(command, place, up.exists):
            (server,) = [each for each in psutil.Process().children() if str(up) in " ".join(each.cmdline())]
        assert not server.is_running()
    assert not place.exists()


KILLED = """
import signal, sys
from pathlib import Path
from bench.crew import Crew
from bench.server import served
from tests.bench.test_processes import wait_for_ever

if __name__ == "__main__":
    place = Path(sys.argv[1])
    up = place / "up"
    command = [sys.executable, "-c", f"import os, signal; open({str(up)!r}, 'w'); print(os.getpid()); signal.pause()"]
    with Crew() as crew, served(command, place, up.exists):
        child = crew.add(wait_for_ever)
        crew.begin()
        print(child.process.pid, flush=True)
        signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child of its parent's death")
def test_a_run_that_is_killed_leaves_no_child_and_no_server(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]))
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        mine = [
            each for each in psutil.Process(run.pid).children(recursive=True) if "pause" in " ".join(each.cmdline())
        ]
        left = [psutil.Process(pid), *mine]
        run.kill()

    gone, alive = psutil.wait_procs(left, HARD_LIMIT_S)
    assert len(gone) == 2
    assert alive == []
