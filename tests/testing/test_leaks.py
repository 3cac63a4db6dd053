"""The leak check: finds each kind of leak, and waits for what is just ending."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

from mpbroker.testing import Leak, LeakCheck

SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child that lives until its input is closed."""
    process = subprocess.Popen(SLEEPER, stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate(timeout=30)


def left(check: LeakCheck) -> tuple[str, ...]:
    with pytest.raises(Leak) as caught:
        check.verify()
    return caught.value.remains


def impatient(*folders: Path, allow_files: tuple[str, ...] = ()) -> LeakCheck:
    return LeakCheck(folders, allow_files=allow_files, grace_s=0).start()


def test_nothing_left_is_no_leak(tmp_path: Path) -> None:
    with LeakCheck([tmp_path], grace_s=0):
        (tmp_path / "file").write_text("")
        (tmp_path / "file").unlink()


def test_a_child_that_runs_is_found(request: pytest.FixtureRequest) -> None:
    check = impatient()
    process = request.getfixturevalue("sleeper")
    assert any(entry.startswith(f"process {process.pid} ") for entry in left(check))


def test_a_child_that_nobody_waited_for_is_found() -> None:
    check = impatient()
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    process.stdout.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert [entry for entry in left(check) if "zombie" in entry]
    finally:
        process.wait(30)
    check.verify()


def test_a_grandchild_is_found() -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    check = impatient()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        remains = left(check)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
    assert any(entry.startswith(f"process {grandchild} ") for entry in remains)
    LeakCheck(grace_s=5).start().verify()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_orphan_that_was_told_of_the_folder_is_found(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        "print(child.pid, flush=True)\n"
    )
    check = LeakCheck([tmp_path]).start()
    environment = dict(os.environ, ANY_NAME=str(tmp_path))
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        parent.wait(30)
        assert any(entry.startswith(f"process {orphan} ") for entry in check.remains())
    check.verify()


def test_a_thread_is_found_by_its_name() -> None:
    check = impatient()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(30,), name="left-over")
    thread.start()
    try:
        assert any("left-over" in entry for entry in left(check))
    finally:
        stop.set()
        thread.join(30)


def test_a_descriptor_is_found_with_what_it_points_at(tmp_path: Path) -> None:
    check = impatient()
    with (tmp_path / "open").open("w"):
        assert any(entry.startswith("descriptor ") for entry in left(check))
    check.verify()


def test_a_descriptor_that_points_elsewhere_now_is_found(tmp_path: Path) -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    check = impatient()
    other = os.open(tmp_path, os.O_RDONLY)
    os.dup2(other, descriptor)
    os.close(other)
    try:
        assert any(entry.startswith(f"descriptor {descriptor} ") for entry in left(check))
    finally:
        os.close(descriptor)


def test_a_socket_file_deep_in_a_folder_is_found(broker_folder: Path) -> None:
    check = impatient(broker_folder)
    path = broker_folder / "orders" / "sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert left(check) == (f"file {path} (srwxr-xr-x)",)
    path.unlink()
    check.verify()


def test_files_that_may_stay_are_no_leak(tmp_path: Path) -> None:
    check = impatient(tmp_path, allow_files=("*/lock",))
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "lock").write_text("")
    check.verify()


def test_what_was_there_before_is_no_leak(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "old").write_text("")
    with (tmp_path / "old").open():
        impatient(tmp_path).verify()
    assert sleeper.poll() is None


def test_a_leak_that_is_just_ending_is_waited_for() -> None:
    check = LeakCheck(grace_s=30).start()
    process = subprocess.Popen(SLEEPER, stdin=subprocess.PIPE)
    stop = threading.Event()

    def end() -> None:
        stop.wait(0.05)
        process.communicate(timeout=30)

    threading.Thread(target=end).start()
    check.verify()


def test_something_held_by_a_cycle_only_is_no_leak() -> None:
    check = impatient()
    holder: list[object] = [os.fdopen(os.dup(1), "w", closefd=True)]
    closer = holder[0]
    holder.append(holder)
    assert hasattr(closer, "close")
    closer.close()
    del holder, closer
    check.verify()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_the_helpers_of_multiprocessing_are_no_leak(method: str) -> None:
    context: BaseContext = multiprocessing.get_context(method)
    with LeakCheck():
        process = context.Process(target=os.getpid)  # type: ignore[attr-defined]
        process.start()
        process.join(30)
        process.close()


def test_an_exception_in_the_block_is_not_hidden_by_a_leak(tmp_path: Path) -> None:
    def fail() -> None:
        with LeakCheck([tmp_path], grace_s=0):
            (tmp_path / "file").write_text("")
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_only_what_is_looked_at_is_compared(tmp_path: Path) -> None:
    check = LeakCheck([tmp_path], ignore=("files",), grace_s=0).start()
    (tmp_path / "file").write_text("")
    check.verify()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="ignore"):
        LeakCheck(ignore=("nonsense",))
    with pytest.raises(ValueError, match="grace_s"):
        LeakCheck(grace_s=-1)
    with pytest.raises(TypeError, match="grace_s"):
        LeakCheck(grace_s=None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="start"):
        LeakCheck().verify()
