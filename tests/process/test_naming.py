"""Where brokers are, how a client finds one, and what it refuses to trust."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpbroker.errors import BrokerNotFound, InsecureFolder, InvalidName, NameTaken
from mpbroker.process import naming
from mpbroker.process.claims import BrokerFolder
from mpbroker.process.naming import (
    INFO,
    KEY,
    SOCKET,
    BrokerInfo,
    Located,
    base_folder,
    check_broker_name,
    list_brokers,
    locate,
    locate_at,
)
from tests.process.holders import LIMIT_S, NOBODY, line, outcome, own_info, running

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as other users")


@pytest.fixture
def place(base: Path) -> Iterator[BrokerFolder]:
    """The folder of a broker that runs."""
    with BrokerFolder.claim("orders", base, own_info()) as place:
        yield place


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "0", "orders", "Orders-2.eu_west", "a" * 64, "a.", "a..b"])
def test_a_plain_word_names_a_broker(name: str) -> None:
    check_broker_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "-x", "_x", "a" * 65, "a/b", "../a", "a b", "a\n", "a\0", "é", "１"],
)
def test_anything_else_names_none(name: str) -> None:
    with pytest.raises(InvalidName) as refused:
        check_broker_name(name)

    assert refused.value.args[:2] == ("broker", name)


@pytest.mark.parametrize("name", [None, 7, b"orders", Path("orders")])
def test_a_name_that_is_no_text_is_a_type_error(name: object) -> None:
    with pytest.raises(TypeError, match="a broker name must be str, not"):
        check_broker_name(name)  # type: ignore[arg-type]


# -- the base folder ------------------------------------------------------------------------------


def test_the_named_folder_comes_before_the_runtime_folder(outer: Path) -> None:
    environ = {"MPBROKER_DIR": "/x/y", "XDG_RUNTIME_DIR": str(outer)}

    assert base_folder(environ) == Path("/x/y")


def test_a_folder_named_by_nothing_is_not_named(outer: Path) -> None:
    environ = {"MPBROKER_DIR": "", "XDG_RUNTIME_DIR": str(outer)}

    assert base_folder(environ) == outer / "mpbroker"


@pytest.mark.parametrize("value", ["brokers", "./brokers", "~/brokers", "../x"])
def test_a_relative_named_folder_is_refused(value: str) -> None:
    with pytest.raises(InvalidName, match="MPBROKER_DIR must be an absolute path"):
        base_folder({"MPBROKER_DIR": value})


@pytest.mark.parametrize("runtime", [None, "", "relative", "/no/such/folder", "/dev/null"])
def test_without_a_runtime_folder_it_is_below_tmp_and_of_the_user(runtime: str | None) -> None:
    environ = {} if runtime is None else {"XDG_RUNTIME_DIR": runtime}

    assert base_folder(environ) == Path(f"/tmp/mpbroker-{os.geteuid()}")


@as_root
def test_a_runtime_folder_of_another_user_is_passed_over(place_for_nobody: Path) -> None:
    assert base_folder({"XDG_RUNTIME_DIR": str(place_for_nobody)}) == Path("/tmp/mpbroker-0")


def test_the_environment_given_counts_and_not_the_process_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MPBROKER_DIR", "/from/the/process")

    assert base_folder({"MPBROKER_DIR": "/given"}) == Path("/given")


def test_without_user_numbers_it_is_in_the_users_own_temporary_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(os, "geteuid")
        found = base_folder({})

    assert found == Path(tempfile.gettempdir(), "mpbroker")


# -- finding --------------------------------------------------------------------------------------


def test_a_running_broker_is_found_and_can_be_connected_to(place: BrokerFolder) -> None:
    found = locate("orders", place.folder.parent)

    with found.connect(LIMIT_S) as client, place.listener.accept()[0] as served:
        client.sendall(b"hello")
        assert served.recv(5) == b"hello"
        assert client.gettimeout() is None
        assert not client.get_inheritable()
    assert found == Located(place.folder, place.key, own_info())
    assert found.name == "orders"


def test_the_key_is_not_shown(place: BrokerFolder) -> None:
    found = locate_at(place.folder)

    assert repr(found.key) not in repr(found)
    assert "key" not in repr(found)


def test_what_was_found_survives_pickling(place: BrokerFolder) -> None:
    found = locate_at(place.folder)

    assert pickle.loads(pickle.dumps(found)) == found


def not_found(base: Path, name: str = "orders") -> str:
    """Why nothing is found there, after the rest of the message was looked at."""
    with pytest.raises(BrokerNotFound) as missing:
        locate(name, base)
    error = missing.value
    assert pickle.loads(pickle.dumps(error)).args == error.args
    assert error.args[:2] == (name, str(base / name))
    assert str(base / name) in str(error)
    assert f"mpbroker serve --name {name}" in str(error)
    return str(error.args[2])


def test_without_a_base_the_message_says_so(base: Path) -> None:
    assert not_found(base) == f"there is no folder {base}"
    assert not base.exists()


def test_without_any_broker_the_message_says_so(base: Path) -> None:
    base.mkdir(0o700)

    assert not_found(base) == "none runs there"


def test_without_that_broker_the_message_names_the_others(base: Path) -> None:
    with contextlib.ExitStack() as places:
        for name in ("billing", None, "audit"):
            places.enter_context(BrokerFolder.claim(name, base, own_info()))
        assert not_found(base) == "none of that name runs there, only audit, billing"
        for number in range(10):
            places.enter_context(BrokerFolder.claim(f"n{number}", base, own_info()))
        assert not_found(base).endswith("n0, n1, n2, n3, n4, n5, n6, n7 and more")


def test_of_a_killed_broker_the_message_tells_the_process(base: Path) -> None:
    with running("hold", "orders", base) as holder:
        line(holder)
        found = locate("orders", base)
        holder.kill()
        holder.wait(LIMIT_S)

    assert not_found(base) == f"its process {holder.pid} died"
    with pytest.raises(BrokerNotFound, match=f"nobody listens, process {holder.pid} has ended"):
        found.connect(LIMIT_S)


@pytest.mark.parametrize("missing", [INFO, KEY, SOCKET])
def test_half_a_broker_is_none(place: BrokerFolder, missing: str) -> None:
    (place.folder / missing).unlink()

    assert "being started or stopped" in not_found(place.folder.parent)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_none(place: BrokerFolder, length: int) -> None:
    (place.folder / KEY).write_bytes(b"k" * length)

    assert "being started or stopped" in not_found(place.folder.parent)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff" * 9, b" " * 9000, b'{"x":' + b"[" * 4000]
)
def test_an_info_that_can_t_be_read_is_told(place: BrokerFolder, content: bytes) -> None:
    (place.folder / INFO).write_bytes(content)

    assert f"can't read the {INFO}" in not_found(place.folder.parent)
    assert list_brokers(place.folder.parent) == ["orders"]


def test_an_info_with_more_in_it_is_read(place: BrokerFolder) -> None:
    content = (place.folder / INFO).read_text()
    (place.folder / INFO).write_text(content.replace("{", '{"later":[1],', 1))

    assert locate_at(place.folder).info == own_info()


def test_a_look_never_meets_the_key_of_another_incarnation(base: Path) -> None:
    keys: dict[str, bytes] = {}
    ended = threading.Event()

    def restart() -> None:
        try:
            for number in range(300):
                info = own_info(str(number))
                # Kept before anybody can find it: the lock on info.json comes last.
                with BrokerFolder.claim("orders", base, info) as place:
                    keys[info.incarnation] = place.key
        finally:
            ended.set()

    seen: list[tuple[BrokerInfo, bytes]] = []
    broker = threading.Thread(target=restart)
    broker.start()
    while not ended.is_set():
        with contextlib.suppress(BrokerNotFound):
            found = locate("orders", base)
            seen.append((found.info, found.key))
    broker.join(LIMIT_S)

    assert not broker.is_alive()
    assert len(keys) == 300
    assert all(keys[info.incarnation] == key for info, key in seen)


def test_a_restart_in_the_middle_of_a_look_is_noticed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [BrokerFolder.claim("orders", base, own_info("a"))]

    def restart_before_the_key(path: Path, limit: int, folder_fd: int) -> tuple[bytes, bool]:
        if path.name == KEY:
            (path.parent / "kept").touch()
            places.pop().release()
            places.append(BrokerFolder.claim("orders", base, own_info("b")))
        return real(path, limit, folder_fd)

    real = naming._read
    with monkeypatch.context() as patch:
        patch.setattr(naming, "_read", restart_before_the_key)
        reason = not_found(base)

    assert "being started or stopped" in reason
    assert locate("orders", base).key == places[0].key
    places.pop().release()


def test_looks_never_stand_in_the_way_of_a_claim(base: Path) -> None:
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            list_brokers(base)
            with contextlib.suppress(BrokerNotFound):
                locate("orders", base)

    watchers = [threading.Thread(target=look) for _ in range(2)]
    base.mkdir(0o700)
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(300):
            try:
                BrokerFolder.claim("orders", base, own_info()).release()
            except NameTaken:
                pytest.fail("a look held the lock")
    finally:
        ended.set()
        for watcher in watchers:
            watcher.join(LIMIT_S)


def test_running_brokers_are_listed_and_nothing_else(base: Path) -> None:
    with (
        BrokerFolder.claim("b", base, own_info()),
        BrokerFolder.claim("a", base, own_info()),
        BrokerFolder.claim(None, base, own_info()),
        running("hold", "dead", base) as holder,
    ):
        line(holder)
        assert list_brokers(base) == ["a", "b", "dead"]
        holder.kill()
        holder.wait(LIMIT_S)
        (base / "empty").mkdir(0o700)
        (base / "loose").mkdir(0o755)
        (base / "file").touch()
        (base / "link").symlink_to(base / "a")
        assert list_brokers(base) == ["a", "b"]

    assert list_brokers(base) == []


def test_no_base_lists_nothing(base: Path) -> None:
    assert list_brokers(base) == []
    assert not base.exists()


def test_a_loose_base_is_not_listed(place: BrokerFolder) -> None:
    place.folder.parent.chmod(0o755)

    with pytest.raises(InsecureFolder):
        list_brokers(place.folder.parent)


# -- what is not trusted --------------------------------------------------------------------------


def _to_link(path: Path) -> None:
    moved = path.with_name("moved-" + path.name)
    path.rename(moved)
    path.symlink_to(moved)


def _to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _to_file(path: Path) -> None:
    path.unlink()
    path.touch(0o600)


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def _to_device(path: Path) -> None:
    path.unlink()
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))


def _named_twice(path: Path) -> None:
    path.with_name("second").hardlink_to(path)


SPOILS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "base a link": ("..", _to_link, "a symbolic link, not a folder"),
    "base open to the group": ("..", lambda path: path.chmod(0o770), "mode 0770"),
    "base open to be read": ("..", lambda path: path.chmod(0o744), "mode 0744"),
    "folder a link": (".", _to_link, "a symbolic link, not a folder"),
    "folder open to all": (".", lambda path: path.chmod(0o701), "mode 0701"),
    "socket a link": (SOCKET, _to_link, "a symbolic link, not a socket"),
    "socket a file": (SOCKET, _to_file, "a file, not a socket"),
    "socket a pipe": (SOCKET, _to_pipe, "a named pipe, not a socket"),
    "socket open to all": (SOCKET, lambda path: path.chmod(0o666), "mode 0666"),
    "key a link": (KEY, _to_link, "a symbolic link, not a file"),
    "key a pipe": (KEY, _to_pipe, "a named pipe, not a file"),
    "key a folder": (KEY, _to_folder, "a folder, not a file"),
    "key open to be read": (KEY, lambda path: path.chmod(0o640), "chmod 600"),
    "key named twice": (KEY, _named_twice, "2 names"),
    "info a link": (INFO, _to_link, "a symbolic link, not a file"),
    "info open to all": (INFO, lambda path: path.chmod(0o602), "mode 0602"),
}


@pytest.mark.parametrize("kind", SPOILS)
def test_what_others_could_change_or_replace_is_refused(place: BrokerFolder, kind: str) -> None:
    name, spoil, reason = SPOILS[kind]
    path = place.folder.parent if name == ".." else place.folder / name
    spoil(path)

    with pytest.raises(InsecureFolder, match=reason) as refused:
        locate("orders", place.folder.parent)

    assert refused.value.args[0] == str(path)
    assert pickle.loads(pickle.dumps(refused.value)).args == refused.value.args


@as_root
@pytest.mark.parametrize("name", ["..", ".", SOCKET, KEY, INFO])
def test_what_belongs_to_another_user_is_refused(place: BrokerFolder, name: str) -> None:
    path = place.folder.parent if name == ".." else place.folder / name
    os.chown(path, NOBODY, NOBODY)

    with pytest.raises(InsecureFolder, match="belongs to user 65534 and this process runs as") as e:
        locate("orders", place.folder.parent)

    assert e.value.args[0] == str(path)


@as_root
def test_a_device_is_refused(place: BrokerFolder) -> None:
    _to_device(place.folder / KEY)

    with pytest.raises(InsecureFolder, match="a device, not a file"):
        locate_at(place.folder)


@as_root
def test_a_socket_where_another_users_process_listens_is_refused(place: BrokerFolder, outer: Path) -> None:
    yard = outer / "yard"
    yard.mkdir()
    yard.chmod(0o777)
    found = locate_at(place.folder)
    with running("squat", yard / "s", NOBODY) as squatter:
        assert line(squatter) == "listens"
        os.chown(yard / "s", os.geteuid(), os.getegid())
        (yard / "s").chmod(0o600)
        (yard / "s").rename(place.folder / SOCKET)

        with pytest.raises(InsecureFolder, match="a process of user 65534 listens there"):
            found.connect(LIMIT_S)


@as_root
def test_another_user_does_not_find_it(base: Path) -> None:
    with BrokerFolder.claim("mine", base, own_info()):
        answer = outcome("as-user", NOBODY, "locate", base)

    assert answer.startswith(f"InsecureFolder: {base} is not safe to use: it belongs to user 0")


@as_root
def test_a_base_that_can_t_be_looked_at_is_named(base: Path) -> None:
    hidden = base.parent / "hidden"
    hidden.mkdir(0o700)

    answer = outcome("as-user", NOBODY, "locate", hidden / "run")

    assert answer.startswith("BrokerNotFound: ")
    assert "Permission denied" in answer


@pytest.mark.parametrize("number", [errno.ELOOP, errno.ENOTDIR, errno.ENXIO])
def test_what_is_replaced_between_look_and_opening_is_refused(
    place: BrokerFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def replaced(*args: object, **kwargs: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", replaced)
        with pytest.raises(InsecureFolder, match="replaced while it was opened"):
            locate_at(place.folder)


def test_what_is_spoiled_between_look_and_opening_is_refused(
    place: BrokerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def late(path: str | Path, flags: int, *args: int, dir_fd: int | None = None) -> int:
        if path == KEY:
            (place.folder / KEY).chmod(0o644)
        return real(path, flags, *args, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", late)
        with pytest.raises(InsecureFolder, match="mode 0644"):
            locate_at(place.folder)


def test_a_pipe_put_there_between_look_and_opening_does_not_hold_anybody_up(
    place: BrokerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def late(path: str | Path, flags: int, *args: int, dir_fd: int | None = None) -> int:
        if path == KEY:
            _to_pipe(place.folder / KEY)
        return real(path, flags, *args, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", late)
        with pytest.raises(InsecureFolder, match="a named pipe, not a file"):
            locate_at(place.folder)


# -- connecting -----------------------------------------------------------------------------------


def fill(found: Located) -> list[socket.socket]:
    """Connect until there is room for nobody else."""
    waiting = []
    try:
        while True:
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            waiting.append(sock)
            sock.connect(str(found.folder / SOCKET))
    except BlockingIOError:
        waiting.pop().close()
    return waiting


@pytest.fixture
def crowded(base: Path) -> Iterator[tuple[BrokerFolder, Located]]:
    """A broker that has no room for another connection."""
    with BrokerFolder.claim("orders", base, own_info(), backlog=1) as place:
        found = locate("orders", base)
        waiting = fill(found)
        yield place, found
        for sock in waiting:
            sock.close()


def test_a_broker_without_room_is_given_up_in_time(crowded: tuple[BrokerFolder, Located]) -> None:
    with pytest.raises(BrokerNotFound, match=r"took no connection in 0\.05 s"):
        crowded[1].connect(0.05)


@pytest.mark.parametrize("timeout_s", [0, 0.0, 1e-9, -1])
def test_no_time_is_no_wait(crowded: tuple[BrokerFolder, Located], timeout_s: float) -> None:
    with pytest.raises(BrokerNotFound, match="took no connection"):
        crowded[1].connect(timeout_s)


def test_a_broker_that_makes_room_is_connected_to(crowded: tuple[BrokerFolder, Located]) -> None:
    place, found = crowded
    connected: list[socket.socket] = []
    waiter = threading.Thread(target=lambda: connected.append(found.connect(LIMIT_S)))
    waiter.start()
    served = []
    while waiter.is_alive():
        place.listener.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            served.append(place.listener.accept()[0])
    waiter.join(LIMIT_S)

    assert connected[0].getpeername().endswith(SOCKET)
    assert connected[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16) == bytes(16)
    for sock in (*served, *connected):
        sock.close()


def test_a_signal_during_the_wait_for_room_is_no_connection(
    crowded: tuple[BrokerFolder, Located],
) -> None:
    handled, ended = threading.Event(), threading.Event()

    def interrupt(thread: int) -> None:
        while not ended.is_set():
            handled.clear()
            signal.pthread_kill(thread, signal.SIGUSR1)
            assert handled.wait(LIMIT_S)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: handled.set())
    kicker = threading.Thread(target=interrupt, args=(threading.get_ident(),))
    kicker.start()
    try:
        with pytest.raises(BrokerNotFound, match="took no connection"):
            crowded[1].connect(0.3)
    finally:
        ended.set()
        kicker.join(LIMIT_S)
        signal.signal(signal.SIGUSR1, before)


def test_a_listener_that_closed_is_no_broker(place: BrokerFolder) -> None:
    found = locate_at(place.folder)
    place.listener.close()

    with pytest.raises(BrokerNotFound, match="nobody listens"):
        found.connect(LIMIT_S)


def test_a_released_broker_is_not_connected_to(base: Path) -> None:
    with BrokerFolder.claim("orders", base, own_info()):
        found = locate("orders", base)

    with pytest.raises(BrokerNotFound, match="none runs there"):
        found.connect(LIMIT_S)


def test_nothing_stays_open_after_a_refusal(place: BrokerFolder) -> None:
    found = locate_at(place.folder)
    (place.folder / SOCKET).chmod(0o644)
    before = len(os.listdir("/proc/self/fd"))

    for look in (lambda: locate_at(place.folder), lambda: found.connect(LIMIT_S)):
        with pytest.raises(InsecureFolder):
            look()

    assert len(os.listdir("/proc/self/fd")) == before
