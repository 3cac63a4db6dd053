"""How a broker takes a name, keeps it, and gives it back."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.errors import BrokerFailed, BrokerNotFound, InsecureFolder, InvalidName, NameTaken
from mpbroker.process import claims, private
from mpbroker.process.claims import BrokerFolder, sweep_private
from mpbroker.process.naming import INFO, KEY, LOCK, SOCKET, list_brokers, locate, locate_at
from tests.process.holders import LIMIT_S, NOBODY, line, outcome, own_info, running

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as other users")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(LIMIT_S)


def test_a_claim_makes_a_folder_that_clients_find(base: Path) -> None:
    with BrokerFolder.claim("orders", base, own_info()) as place:
        assert place.folder == base / "orders"
        assert sorted(path.name for path in place.folder.iterdir()) == [INFO, KEY, LOCK, SOCKET]
        found = locate("orders", base)

    assert (found.key, found.info) == (place.key, own_info())
    assert len(place.key) == 32


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o177])
def test_modes_are_private_under_any_umask(base: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with BrokerFolder.claim("orders", base, own_info()) as place:
            modes = {path.name: path.stat().st_mode & 0o7777 for path in place.folder.iterdir()}
            folders = [path.stat().st_mode & 0o7777 for path in (base, place.folder)]
    finally:
        os.umask(before)

    assert folders == [0o700, 0o700]
    assert modes == dict.fromkeys((INFO, KEY, LOCK, SOCKET), 0o600)


@as_root
def test_a_umask_that_takes_the_owners_bits_hinders_nobody(place_for_nobody: Path) -> None:
    answer = outcome("as-user", NOBODY, "claim", place_for_nobody / "run", "777")

    assert answer == "ok: 700 700 600 600 600 600"


def test_parents_of_the_base_are_made(base: Path) -> None:
    with BrokerFolder.claim("orders", base / "a" / "b", own_info()) as place:
        assert locate("orders", base / "a" / "b").key == place.key


def test_every_claim_has_a_key_of_its_own(base: Path) -> None:
    keys = set()
    for _ in range(20):
        with BrokerFolder.claim("orders", base, own_info()) as place:
            keys.add(place.key)

    assert len(keys) == 20


@pytest.mark.parametrize("name", ["", ".", "..", ".private-1", "a/b", "a b", "ä", "x" * 65, "-x"])
def test_a_name_that_is_none_makes_nothing(base: Path, name: str) -> None:
    with pytest.raises(InvalidName):
        BrokerFolder.claim(name, base, own_info())

    assert not base.exists()


def test_a_held_name_is_refused_with_the_holders_pid(base: Path) -> None:
    with running("hold", "orders", base) as holder:
        line(holder)
        with pytest.raises(NameTaken) as refused:
            BrokerFolder.claim("orders", base, own_info())
        BrokerFolder.claim("billing", base, own_info()).release()

    assert refused.value.args == ("orders", str(base / "orders"), holder.pid)


def test_a_holder_that_has_not_said_who_it_is_is_refused_without_a_pid(base: Path) -> None:
    with BrokerFolder.claim("orders", base, own_info()) as place:
        (place.folder / INFO).unlink()
        with pytest.raises(NameTaken) as refused:
            BrokerFolder.claim("orders", base, own_info())

    assert refused.value.args[2] is None


def test_a_name_is_held_against_the_same_process_too(base: Path) -> None:
    with BrokerFolder.claim("orders", base, own_info()) as place:
        with pytest.raises(NameTaken):
            BrokerFolder.claim("orders", base, own_info())
        assert locate("orders", base).key == place.key


def test_release_leaves_nothing_and_frees_the_name(base: Path) -> None:
    before = None
    for _ in range(3):
        place = BrokerFolder.claim("orders", base, own_info())
        place.release()
        place.release()
        assert list(base.iterdir()) == []
        assert place.listener.fileno() == -1
        before = before or descriptors()

    assert descriptors() == before


def test_release_keeps_what_it_did_not_make(base: Path) -> None:
    with BrokerFolder.claim("orders", base, own_info()) as place:
        (place.folder / "notes").write_text("mine")

    assert [path.name for path in place.folder.iterdir()] == ["notes"]
    BrokerFolder.claim("orders", base, own_info()).release()


def test_release_after_the_listener_was_closed_is_whole(base: Path) -> None:
    with BrokerFolder.claim("orders", base, own_info()) as place:
        place.listener.close()

    assert list(base.iterdir()) == []


def test_release_of_a_broker_whose_lock_file_was_removed_leaves_the_next_one_alone(
    base: Path,
) -> None:
    old = BrokerFolder.claim("orders", base, own_info("a"))
    (old.folder / LOCK).unlink()
    with BrokerFolder.claim("orders", base, own_info("b")) as new:
        old.release()
        found = locate("orders", base)
        found.connect(LIMIT_S).close()

    assert found.key == new.key
    assert found.info.incarnation == "b"


def test_release_after_the_whole_folder_was_removed_does_nothing(base: Path) -> None:
    place = BrokerFolder.claim("orders", base, own_info())
    for path in place.folder.iterdir():
        path.unlink()
    place.folder.rmdir()

    place.release()

    assert list(base.iterdir()) == []


def test_the_lock_file_is_taken_away_last(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.unlink
    left: list[list[str]] = []

    def watched(path: str, *, dir_fd: int | None = None) -> None:
        if path == LOCK:
            left.append(os.listdir(base / "orders"))
        real(path, dir_fd=dir_fd)

    place = BrokerFolder.claim("orders", base, own_info())
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", watched)
        place.release()

    assert left == [[LOCK]]


def test_the_info_appears_last_and_locked(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename
    seen: list[tuple[list[str], bool]] = []

    def watched(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if new == INFO:
            with (base / "orders" / old).open("rb") as file:
                free = private.try_lock(file.fileno(), shared=True)
            seen.append((sorted(os.listdir(base / "orders")), free))
        real(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", watched)
        BrokerFolder.claim("orders", base, own_info()).release()

    assert seen == [([INFO + ".new", KEY, LOCK, SOCKET], False)]


def test_what_a_killed_broker_left_is_replaced(base: Path) -> None:
    with running("hold", "orders", base) as holder:
        line(holder)
        old = locate("orders", base)
        kill(holder)
    assert (base / "orders" / SOCKET).is_socket()
    (base / "orders" / (KEY + ".new")).write_bytes(b"half")
    # Killed between bind and chmod, it leaves a socket of any mode.
    (base / "orders" / SOCKET).chmod(0o777)

    with BrokerFolder.claim("orders", base, own_info()) as place:
        found = locate("orders", base)
        found.connect(LIMIT_S).close()

    assert found.key == place.key != old.key
    assert list(base.iterdir()) == []


def test_a_name_survives_two_hundred_deaths_of_its_holder(base: Path) -> None:
    assert outcome("die-and-claim", base, 200, limit_s=50) == "200"
    assert list(base.iterdir()) == []


def test_of_many_who_claim_at_once_one_gets_the_name(base: Path) -> None:
    assert outcome("race", base, 40, 6, limit_s=50) == "one winner each"


def test_claims_and_releases_that_cross_never_let_two_in(base: Path) -> None:
    marks = base.parent / "marks"
    marks.mkdir()

    assert outcome("churn", base, marks, 150, 4, limit_s=50) == "never two"
    assert list(base.iterdir()) == []


def test_a_claim_that_fails_midway_leaves_nothing(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, folder_fd: int) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(claims, "socket_address", refuse)
        before = descriptors()
        with pytest.raises(BrokerFailed, match="No space left on device"):
            BrokerFolder.claim("orders", base, own_info())
        assert descriptors() == before

    assert list(base.iterdir()) == []
    BrokerFolder.claim("orders", base, own_info()).release()


def test_a_base_that_cannot_be_made_is_named(base: Path) -> None:
    base.write_text("a file")

    with pytest.raises(BrokerFailed, match=r"run/below.*MPBROKER_DIR"):
        BrokerFolder.claim("orders", base / "below", own_info())


@as_root
def test_a_base_where_nothing_may_be_written_is_named(base: Path) -> None:
    answer = outcome("as-user", NOBODY, "claim", base, "022")

    assert answer.startswith("BrokerFailed: ")
    assert "Permission denied" in answer


# -- what is not safe is refused ------------------------------------------------------------------


def _folder(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)


def _file(path: Path, mode: int) -> None:
    path.touch()
    path.chmod(mode)


SPOILED_BASE: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "open to the group": (lambda base, other: _folder(base, 0o710), "mode 0710"),
    "open to all": (lambda base, other: _folder(base, 0o1777), "mode 1777"),
    "a link": (lambda base, other: base.symlink_to(other), "a symbolic link, not a folder"),
    "a dangling link": (lambda base, other: base.symlink_to("no"), "a symbolic link"),
    "a file": (lambda base, other: base.write_text(""), "a file, not a folder"),
    "a pipe": (lambda base, other: os.mkfifo(base, 0o600), "a named pipe, not a folder"),
}


@pytest.mark.parametrize("kind", SPOILED_BASE)
def test_a_base_that_is_not_private_is_refused(base: Path, other: Path, kind: str) -> None:
    spoil, reason = SPOILED_BASE[kind]
    spoil(base, other)

    with pytest.raises(InsecureFolder, match=reason) as refused:
        BrokerFolder.claim("orders", base, own_info())

    assert refused.value.args[0] == str(base)
    assert list(other.iterdir()) == []


@as_root
def test_a_base_of_another_user_is_refused(base: Path) -> None:
    base.mkdir(0o700)
    os.chown(base, NOBODY, NOBODY)

    with pytest.raises(InsecureFolder, match="belongs to user 65534 and this process runs as"):
        BrokerFolder.claim("orders", base, own_info())


@as_root
def test_a_folder_of_another_user_is_refused(base: Path) -> None:
    (base / "orders").mkdir(0o700, parents=True)
    base.chmod(0o700)
    os.chown(base / "orders", NOBODY, NOBODY)

    with pytest.raises(InsecureFolder, match=r"orders.* belongs to user 65534"):
        BrokerFolder.claim("orders", base, own_info())


def _listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


SPOILED: dict[str, tuple[str, Callable[[Path, Path], object], str]] = {
    "lock a link": (LOCK, lambda path, other: path.symlink_to(other / "new"), "a symbolic link"),
    "lock a pipe": (LOCK, lambda path, other: os.mkfifo(path, 0o600), "a named pipe"),
    "lock a folder": (LOCK, lambda path, other: path.mkdir(0o700), "a folder, not a file"),
    "lock a socket": (LOCK, lambda path, other: _listening(path), "a socket, not a file"),
    "lock open to all": (LOCK, lambda path, other: _file(path, 0o666), "0666"),
    "socket a link": (SOCKET, lambda path, other: path.symlink_to(other / "new"), "symbolic"),
    "socket a file": (SOCKET, lambda path, other: path.touch(), "a file, not a socket"),
    "key a link": (KEY, lambda path, other: path.symlink_to(other / "new"), "a symbolic link"),
    "key a pipe": (KEY, lambda path, other: os.mkfifo(path, 0o600), "a named pipe"),
    "new key a link": (KEY + ".new", lambda path, other: path.symlink_to(other / "x"), "symbolic"),
    "info a folder": (INFO, lambda path, other: path.mkdir(), "a folder, not a file"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_strange_file_in_the_folder_is_refused_and_left_alone(base: Path, other: Path, kind: str) -> None:
    name, spoil, reason = SPOILED[kind]
    folder = base / "orders"
    for path in (base, folder):
        path.mkdir(0o700)
    spoil(folder / name, other)
    mode = (folder / name).lstat().st_mode
    before = descriptors()

    with pytest.raises(InsecureFolder, match=reason) as refused:
        BrokerFolder.claim("orders", base, own_info())

    assert refused.value.args[0] == str(folder / name)
    assert (folder / name).lstat().st_mode == mode
    assert list(other.iterdir()) == []
    assert descriptors() == before
    assert list_brokers(base) == []


def test_a_lock_file_with_another_name_elsewhere_is_refused(base: Path, other: Path) -> None:
    folder = base / "orders"
    for path in (base, folder):
        path.mkdir(0o700)
    (other / "mine").touch(0o600)
    (folder / LOCK).hardlink_to(other / "mine")

    with pytest.raises(InsecureFolder, match="hard links"):
        BrokerFolder.claim("orders", base, own_info())


def test_the_advice_for_a_loose_mode_mends_it(base: Path) -> None:
    base.mkdir()
    base.chmod(0o755)
    with pytest.raises(InsecureFolder) as refused:
        BrokerFolder.claim("orders", base, own_info())

    command = refused.value.args[1].split("`")[1]
    subprocess.run(command, shell=True, check=True, timeout=LIMIT_S)

    BrokerFolder.claim("orders", base, own_info()).release()


@as_root
@pytest.mark.parametrize("verb", ["read", "connect", "list"])
def test_other_users_reach_nothing(base: Path, verb: str) -> None:
    with BrokerFolder.claim("mine", base, own_info()) as place:
        path = place.folder / KEY if verb == "read" else place.folder
        answer = outcome("as-user", NOBODY, verb, path)

    assert answer.startswith("PermissionError")


# -- private brokers ------------------------------------------------------------------------------


def test_a_private_broker_is_found_by_its_folder_and_by_no_name(base: Path) -> None:
    with BrokerFolder.claim(None, base, own_info()) as place:
        with pytest.raises(InvalidName):
            locate(place.folder.name, base)
        assert list_brokers(base) == []
        found = locate_at(place.folder)
        found.connect(LIMIT_S).close()

    assert found.key == place.key
    with pytest.raises(BrokerNotFound):
        locate_at(place.folder)


def test_private_brokers_do_not_meet(base: Path) -> None:
    with (
        BrokerFolder.claim(None, base, own_info()) as one,
        BrokerFolder.claim(None, base, own_info()) as two,
    ):
        assert one.folder != two.folder
        assert locate_at(one.folder).key == one.key
        assert locate_at(two.folder).key == two.key

    assert list(base.iterdir()) == []


def test_a_private_folder_goes_whatever_is_in_it(base: Path) -> None:
    with BrokerFolder.claim(None, base, own_info()) as place:
        (place.folder / "more").mkdir()
        (place.folder / "more" / "notes").write_text("x")

    assert list(base.iterdir()) == []


@pytest.mark.parametrize("sweeper", ["a claim", "sweep_private"])
def test_the_folders_of_dead_private_brokers_are_removed_and_no_others(base: Path, sweeper: str) -> None:
    with (
        running("hold", "-", base) as dead,
        running("hold", "orders", base) as named,
        BrokerFolder.claim(None, base, own_info()) as alive,
    ):
        left = Path(line(dead))
        line(named)
        kill(dead)
        kill(named)
        (base / ".private-empty").mkdir(0o700)
        assert left.is_dir()

        if sweeper == "a claim":
            BrokerFolder.claim("billing", base, own_info()).release()
        else:
            sweep_private(base)

        names = sorted(path.name for path in base.iterdir())
        assert names == [alive.folder.name, "orders"]
        assert locate_at(alive.folder).key == alive.key


def test_a_sweep_of_nothing_does_nothing(base: Path) -> None:
    sweep_private(base)

    assert not base.exists()


def test_a_private_claim_whose_folder_is_swept_takes_another(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[str] = []

    def open_late(path: Path, folder_fd: int) -> int:
        if len(swept) < 3:
            swept.append(path.parent.name)
            sweep_private(base)
        return real(path, folder_fd)

    real = claims._open_lock
    monkeypatch.setattr(claims, "_open_lock", open_late)

    with BrokerFolder.claim(None, base, own_info()) as place:
        assert place.folder.name not in swept
        assert [path.name for path in base.iterdir()] == [place.folder.name]


def test_a_private_claim_whose_lock_a_sweep_holds_takes_another(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[int] = []

    def lock_late(fd: int, *, shared: bool = False) -> bool:
        if not swept:
            swept.append(fd)
            return False
        return private.try_lock(fd, shared=shared)

    monkeypatch.setattr(claims, "try_lock", lock_late)

    with BrokerFolder.claim(None, base, own_info()) as place:
        assert locate_at(place.folder).key == place.key


def test_a_claim_that_never_gets_a_standing_folder_gives_up(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(path: Path, folder_fd: int) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(claims, "_open_lock", vanish)

    with pytest.raises(BrokerFailed, match="kept changing"):
        BrokerFolder.claim("orders", base, own_info())


# -- systems that lack something ------------------------------------------------------------------


@pytest.fixture
def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system with msvcrt's locks in place of flock's."""

    def locking(fd: int, mode: int, length: int) -> None:
        assert (mode, length) == (2, 1)
        assert os.lseek(fd, 0, os.SEEK_CUR) > 1_000_000
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    msvcrt = types.ModuleType("msvcrt")
    msvcrt.__dict__.update(locking=locking, LK_NBLCK=2)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)


@pytest.mark.usefixtures("without_flock")
def test_without_flock_a_name_has_one_holder_too(base: Path) -> None:
    with BrokerFolder.claim("orders", base, own_info()) as place:
        with pytest.raises(NameTaken) as refused:
            BrokerFolder.claim("orders", base, own_info())
        assert locate("orders", base).key == place.key
        assert list_brokers(base) == ["orders"]

    assert refused.value.args[2] == os.getpid()
    assert list(base.iterdir()) == []


@pytest.mark.usefixtures("without_flock")
def test_without_flock_a_dead_holder_is_replaced_too(base: Path) -> None:
    with running("hold", "orders", base) as holder:
        line(holder)
        kill(holder)

    with pytest.raises(BrokerNotFound, match=f"process {holder.pid} died"):
        locate("orders", base)
    BrokerFolder.claim("orders", base, own_info()).release()


@pytest.mark.parametrize("missing", ["geteuid", "AF_UNIX"])
def test_a_system_without_users_or_sockets_is_refused_in_words(
    base: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(os if missing == "geteuid" else socket, missing)
        with pytest.raises(BrokerFailed, match="MessageBroker, in one process"):
            BrokerFolder.claim("orders", base, own_info())
        with pytest.raises(BrokerFailed):
            locate("orders", base)
        with pytest.raises(BrokerFailed):
            list_brokers(base)

    assert not base.exists()


def test_a_file_system_without_locks_is_named(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)

    with pytest.raises(BrokerFailed, match="Operation not supported"):
        BrokerFolder.claim("orders", base, own_info())


def test_a_deep_base_is_no_hindrance_on_linux(base: Path) -> None:
    deep = base / ("d" * 120) / ("e" * 120)

    with BrokerFolder.claim("orders", deep, own_info()) as place:
        with locate("orders", deep).connect(LIMIT_S), place.listener.accept()[0]:
            pass
        assert stat.S_IMODE((place.folder / SOCKET).stat().st_mode) == 0o600
    BrokerFolder.claim("orders", deep, own_info()).release()

    assert list(deep.iterdir()) == []


def test_a_deep_base_without_proc_is_refused_in_words(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = base / ("d" * 120)
    monkeypatch.setattr(private, "_OPEN_FILES", "/no/such/folder")

    with pytest.raises(BrokerFailed, match="too long for a socket"):
        BrokerFolder.claim("orders", deep, own_info())

    assert list(deep.iterdir()) == []
