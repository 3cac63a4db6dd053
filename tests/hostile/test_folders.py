"""Names, folders, keys and sockets that somebody else made, opened, moved or wants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mpbroker import BrokerGone, BrokerManager, BrokerNotFound, InsecureFolder, MpbrokerError, NameTaken, connect
from mpbroker.process.claims import BrokerFolder
from mpbroker.process.naming import INFO, KEY, LOCK, SOCKET
from tests.conformance.support import until
from tests.hostile.support import as_root, times
from tests.process.holders import NOBODY, own_info
from tests.process.puppets import LIMIT_S, ROOT, Program, wait_for_end

# -- spoiled places ---------------------------------------------------------------------------------------------------


def _link(path: Path) -> None:
    moved = path.with_name("moved-" + path.name)
    path.rename(moved)
    path.symlink_to(moved)


def _link_to_nothing(path: Path) -> None:
    _remove(path)
    path.symlink_to(path.with_name("nowhere"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for each in path.iterdir():
            _remove(each)
        path.rmdir()
    else:
        path.unlink()


def _file(path: Path) -> None:
    _remove(path)
    path.write_bytes(b"squatted")
    path.chmod(0o600)


def _pipe(path: Path) -> None:
    _remove(path)
    os.mkfifo(path, 0o600)


def _folder(path: Path) -> None:
    _remove(path)
    path.mkdir(0o700)


def _loose(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o006)


def _theirs(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


BASE, FOLDER = "base", "folder"
EVERYWHERE = (BASE, FOLDER, SOCKET, KEY, INFO, LOCK)
SPOILS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "symlinked": (_link, EVERYWHERE),
    "symlinked to nothing": (_link_to_nothing, EVERYWHERE),
    "squatted by a file": (_file, (BASE, FOLDER, SOCKET)),
    "squatted by a pipe": (_pipe, EVERYWHERE),
    "squatted by a folder": (_folder, (SOCKET, KEY, INFO, LOCK)),
    "loose": (_loose, EVERYWHERE),
    "of another user": (_theirs, EVERYWHERE),
}
CASES = [(how, where) for how, (_, places) in SPOILS.items() for where in places]


def _place(base: Path, where: str) -> Path:
    return {BASE: base, FOLDER: base / "orders"}.get(where, base / "orders" / where)


@pytest.fixture
def base(broker_folder: Path) -> Path:
    """Where brokers are, below a folder that the spoils may be moved about in."""
    return broker_folder / "run"


@pytest.fixture
def left(base: Path) -> Path:
    """What a broker that was killed left there."""
    with BrokerFolder.claim("orders", base, own_info()) as place:
        copy = base.with_name("copy")
        subprocess.run(["cp", "-a", str(base), str(copy)], check=True, timeout=LIMIT_S)
        assert place.folder.parent == base
    base.rmdir()
    copy.rename(base)
    return base


@as_root
@pytest.mark.leaves("files")
@pytest.mark.parametrize(("how", "where"), CASES, ids=str)
def test_a_broker_and_a_client_refuse_a_place_that_is(how: str, where: str, left: Path) -> None:
    """Whatever is there: nobody serves, nobody connects, and what was found is left to be looked at."""
    path = _place(left, where)
    SPOILS[how][0](path)
    before = path.lstat()

    with pytest.raises((InsecureFolder, BrokerNotFound)):
        connect("orders", timeout=0.1, directory=left)
    if how == "loose" and where in {SOCKET, KEY, INFO}:
        return  # a broker replaces those
    with pytest.raises(InsecureFolder) as refused:
        BrokerFolder.claim("orders", left, own_info())
    assert str(path) in str(refused.value)
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)


@as_root
@pytest.mark.leaves("files")
@pytest.mark.parametrize(("how", "where"), [case for case in CASES if case[1] != LOCK], ids=str)
def test_no_client_connects_to_a_living_broker_whose_place_is(how: str, where: str, base: Path) -> None:
    with BrokerFolder.claim("orders", base, own_info()) as place:
        SPOILS[how][0](_place(base, where))
        with pytest.raises((InsecureFolder, BrokerNotFound)):
            connect("orders", timeout=0.1, directory=base)
        place.listener.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            place.listener.accept()


@pytest.mark.leaves("files")
@pytest.mark.parametrize(("how", "where"), [("loose", BASE), ("symlinked", FOLDER), ("squatted by a file", SOCKET)])
def test_the_broker_process_does_not_start_in_a_place_that_is(how: str, where: str, left: Path) -> None:
    SPOILS[how][0](_place(left, where))
    with pytest.raises(InsecureFolder, match=where if where == SOCKET else "not safe"):
        BrokerManager("orders", directory=left).start()


# -- one name ---------------------------------------------------------------------------------------------------------


def test_of_two_brokers_on_one_name_the_second_is_refused_and_the_first_goes_on() -> None:
    with BrokerManager("orders") as first:
        broker = first.broker()
        broker.create_topic("orders")
        broker.subscribe("orders", "billing")
        broker.publish("orders", "kept")
        for _ in range(3):
            with pytest.raises(NameTaken) as caught:
                BrokerManager("orders").start()
            assert caught.value.args[2] == first.pid
        serve = subprocess.run(
            [sys.executable, "-m", "mpbroker", "serve", "--name", "orders"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (serve.returncode, serve.stdout) == (4, "")
        with connect("orders") as same:
            assert [each.payload for each in same.subscription("orders", "billing").poll("w")] == ["kept"]


def test_of_two_that_start_at_the_same_moment_one_gets_the_name() -> None:
    arguments = ("-m", "mpbroker", "serve", "--name", "orders")
    with Program(*arguments) as one, Program(*arguments) as two:
        until(lambda: (one.process.poll() is None) != (two.process.poll() is None))
        winner, loser = (one, two) if one.process.poll() is None else (two, one)
        assert winner.line().startswith("ready")
        connect("orders").close()
        assert loser.end()[0] == 4
        winner.process.send_signal(signal.SIGTERM)
        assert winner.end()[0] == 0


@pytest.mark.parametrize("end", ["shutdown", "kill"])
def test_a_name_serves_one_broker_after_the_other(end: str, broker_folder: Path) -> None:
    process = psutil.Process()
    seen: set[str] = set()
    descriptors = 0
    rounds = times(4, 50)
    for number in range(rounds):
        with BrokerManager("orders") as manager:
            broker = manager.broker()
            broker.create_topic("orders")
            with connect("orders") as other:
                assert list(other.topics()) == ["orders"]
                seen.add(other._address.incarnation)
            if end == "kill":
                assert manager.pid is not None
                os.kill(manager.pid, signal.SIGKILL)
                wait_for_end(manager.pid)
        with pytest.raises(BrokerGone):
            broker.topics()
        if number == 1:
            descriptors = process.num_fds()
    assert len(seen) == rounds
    assert process.num_fds() <= descriptors
    if end == "kill":
        with pytest.raises(MpbrokerError):
            connect("orders")
        with BrokerManager("orders"):
            pass
    assert list(broker_folder.iterdir()) == []
