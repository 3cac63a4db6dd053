"""What is known of the process at the other end, and of how a process ended."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.process import peers
from mpbroker.process.peers import exit_status, has_ended, own_pidfd, peer_pid, peer_pidfd, peer_uid
from tests.process.holders import LIMIT_S, NOBODY, line, running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="about Linux's kernel")
RELEASE = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
with_peer_pidfd = pytest.mark.skipif(RELEASE < (6, 5), reason="no SO_PEERPIDFD")
with_exit_record = pytest.mark.skipif(RELEASE < (6, 15), reason="no PIDFD_INFO_EXIT")


@pytest.fixture
def listener(outer: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(outer / "s"))
        listener.listen()
        listener.settimeout(LIMIT_S)
        (outer / "s").chmod(0o777)
        yield listener


def path_of(listener: socket.socket) -> str:
    return str(listener.getsockname())


def readable(fd: int, timeout_s: float) -> bool:
    watch = select.poll()
    watch.register(fd, select.POLLIN)
    return bool(watch.poll(timeout_s * 1000))


def ended(pidfd: int) -> None:
    assert readable(pidfd, LIMIT_S), "it did not end"


def unreaped(program: str) -> tuple[subprocess.Popen[bytes], int]:
    """A Python child that ended, its parent not having looked, and its pidfd."""
    process = subprocess.Popen([sys.executable, "-SEc", program])
    pidfd = os.pidfd_open(process.pid)
    ended(pidfd)
    return process, pidfd


# -- who is there ---------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_user_and_process_of_whoever_connected_are_known(listener: socket.socket) -> None:
    with (
        running("connect-as", path_of(listener), NOBODY) as client,
        listener.accept()[0] as served,
    ):
        assert peer_uid(served) == NOBODY
        assert peer_pid(served) == client.pid


def test_user_and_process_of_the_listener_are_known_to_the_client(listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path_of(listener))
        assert (peer_uid(client), peer_pid(client)) == (os.geteuid(), os.getpid())


def test_nobody_is_at_the_end_of_an_unconnected_socket() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        assert peer_uid(sock) is None
        assert peer_pid(sock) is None
        assert peer_pidfd(sock) is None


def test_nothing_is_known_of_a_network_peer() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        assert peer_uid(client) is None
        assert peer_pid(client) is None
        assert peer_pidfd(client) is None


class Told(socket.socket):
    """A Unix socket whose options are what the test says: bytes, or an error number."""

    answers: dict[tuple[int, int], bytes | int]

    def getsockopt(  # type: ignore[override]
        self, level: int, option: int, size: int = 0, /
    ) -> int | bytes:
        answer = self.answers.get((level, option), errno.ENOPROTOOPT)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        assert size == len(answer)
        return answer


@pytest.fixture
def told() -> Iterator[Told]:
    with Told(socket.AF_UNIX) as sock:
        sock.answers = {}
        yield sock


def test_the_user_of_a_process_in_another_pid_namespace_is_known(told: Told) -> None:
    told.answers = {(socket.SOL_SOCKET, socket.SO_PEERCRED): struct.pack("iII", 0, 1000, 1000)}

    assert peer_uid(told) == 1000
    assert peer_pid(told) is None


def test_a_user_number_of_over_31_bits_is_known(told: Told) -> None:
    told.answers = {(socket.SOL_SOCKET, socket.SO_PEERCRED): struct.pack("iII", 1, 4000000000, 0)}

    assert peer_uid(told) == 4000000000


def test_without_peercred_the_bsd_way_is_tried(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_PEERCRED")
    monkeypatch.setattr(sys, "platform", "darwin")
    told.answers = {
        (0, 1): struct.pack("@Iih", 0, 501, 1).ljust(76, b"\0"),
        (0, 2): struct.pack("i", 4321),
    }

    assert peer_uid(told) == 501
    assert peer_pid(told) == 4321


def test_without_either_nothing_is_known(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_PEERCRED")

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path_of(listener))
        assert peer_uid(client) is None
        assert peer_pid(client) is None


# -- a descriptor for a process -------------------------------------------------------------------


@with_peer_pidfd
def test_the_end_of_a_peer_is_seen_though_a_child_of_it_keeps_the_connection(
    listener: socket.socket,
) -> None:
    with (
        running("connect-and-leave-a-child", path_of(listener)) as client,
        listener.accept()[0] as served,
    ):
        pidfd = peer_pidfd(served)
        assert pidfd is not None
        assert not os.get_inheritable(pidfd)
        line(client)
        ended(pidfd)
        assert not readable(served.fileno(), 0)
        assert client.wait(LIMIT_S) == 3
        assert client.stdin is not None
        client.stdin.close()
        assert readable(served.fileno(), LIMIT_S)
        os.close(pidfd)


def test_a_peer_that_was_reaped_before_we_asked_is_never_another_process(
    listener: socket.socket,
) -> None:
    with running("connect-as", path_of(listener), os.geteuid()) as client:
        line(client)
        client.kill()
        client.wait(LIMIT_S)
        with listener.accept()[0] as served:
            pidfd = peer_pidfd(served)
            if pidfd is not None:
                assert readable(pidfd, 0)
                assert exit_status(pidfd) in {None, "signal 9 (SIGKILL)"}
                os.close(pidfd)


def test_on_an_older_kernel_the_number_is_opened(told: Told) -> None:
    credentials = struct.pack("iII", os.getpid(), 0, 0)
    told.answers = {(socket.SOL_SOCKET, socket.SO_PEERCRED): credentials}

    pidfd = peer_pidfd(told)

    assert pidfd is not None
    assert f"Pid:\t{os.getpid()}\n" in Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    os.close(pidfd)


@pytest.mark.parametrize("number", [errno.ESRCH, errno.ENODATA, errno.EMFILE])
def test_of_a_peer_that_the_kernel_has_no_descriptor_for_the_number_is_not_opened(told: Told, number: int) -> None:
    told.answers = {
        (socket.SOL_SOCKET, 77): number,
        (socket.SOL_SOCKET, socket.SO_PEERCRED): struct.pack("iII", os.getpid(), 0, 0),
    }

    assert peer_pidfd(told) is None


def test_the_number_of_a_process_that_is_gone_opens_nothing(told: Told) -> None:
    process = subprocess.Popen([sys.executable, "-SEc", ""])
    process.wait(LIMIT_S)
    credentials = struct.pack("iII", process.pid, 0, 0)
    told.answers = {(socket.SOL_SOCKET, socket.SO_PEERCRED): credentials}

    assert peer_pidfd(told) is None


def test_an_own_descriptor_is_of_this_process_that_runs() -> None:
    pidfd = own_pidfd()

    assert pidfd is not None
    assert not readable(pidfd, 0)
    assert f"Pid:\t{os.getpid()}\n" in Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    os.close(pidfd)


def test_without_pidfds_there_is_none(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    credentials = struct.pack("iII", os.getpid(), 0, 0)
    told.answers = {(socket.SOL_SOCKET, socket.SO_PEERCRED): credentials}

    assert own_pidfd() is None
    assert peer_pidfd(told) is None


# -- how it ended ---------------------------------------------------------------------------------

ENDS = {
    "exit code 3": "raise SystemExit(3)",
    "exit code 255": "raise SystemExit(-1)",
    "signal 9 (SIGKILL)": "import os; os.kill(os.getpid(), 9)",
    "signal 6 (SIGABRT)": "import os; os.abort()",
    "signal 40": "import os; os.kill(os.getpid(), 40)",
}


@pytest.mark.parametrize("expected", ENDS)
def test_the_end_of_a_process_is_told_before_it_is_reaped(expected: str) -> None:
    process, pidfd = unreaped(ENDS[expected])

    told = exit_status(pidfd)

    process.wait(LIMIT_S)
    os.close(pidfd)
    assert told == expected


@with_exit_record
@pytest.mark.parametrize("expected", [*ENDS, "exit code 0"])
def test_the_end_of_a_process_is_told_after_it_was_reaped(expected: str) -> None:
    process, pidfd = unreaped(ENDS.get(expected, ""))
    process.wait(LIMIT_S)

    told = exit_status(pidfd)

    os.close(pidfd)
    assert told == expected


def test_an_exit_with_0_is_not_told_from_a_refusal_before_it_is_reaped() -> None:
    process, pidfd = unreaped("")

    told = exit_status(pidfd)

    process.wait(LIMIT_S)
    os.close(pidfd)
    assert told is None


def test_a_running_process_has_no_end() -> None:
    pidfd = own_pidfd()

    assert pidfd is not None
    assert exit_status(pidfd) is None
    assert not has_ended(pidfd, 0)
    os.close(pidfd)
    assert not has_ended(pidfd, LIMIT_S)


def test_the_end_of_a_process_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-SEc", "input()"], stdin=pipe) as process:
        pidfd = os.pidfd_open(process.pid)
        assert not has_ended(pidfd, 0.001)
        process.kill()
        assert has_ended(pidfd, LIMIT_S)
        with monkeypatch.context() as patch:
            patch.delattr(select, "poll")
            assert not has_ended(pidfd, 0)
        os.close(pidfd)


def test_a_process_whose_first_thread_ended_has_no_end() -> None:
    number = {"x86_64": 60}.get(platform.machine(), 93)  # of the system call that ends one thread
    program = (
        "import ctypes, sys, threading; threading.Thread(target=sys.stdin.read).start();"
        f"print('going', flush=True); ctypes.CDLL(None).syscall({number}, 5)"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
        pidfd = os.pidfd_open(process.pid)
        line(process)
        limit = time.monotonic() + LIMIT_S
        while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < limit

        assert exit_status(pidfd) is None

        process.kill()
        ended(pidfd)
        assert exit_status(pidfd) == "signal 9 (SIGKILL)"
        os.close(pidfd)


def test_a_descriptor_of_something_else_tells_nothing() -> None:
    reading, writing = os.pipe()
    os.close(writing)

    assert exit_status(reading) is None

    os.close(reading)
    assert exit_status(reading) is None


def old_ioctl(fd: int, request: int, record: bytearray) -> int:
    raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))


def ioctl_without_exit(fd: int, request: int, record: bytearray) -> int:
    record[:8] = struct.pack("=Q", 7)
    return 0


@pytest.mark.parametrize("ioctl", [old_ioctl, ioctl_without_exit])
def test_on_an_older_kernel_the_end_is_told_until_it_is_reaped(monkeypatch: pytest.MonkeyPatch, ioctl: object) -> None:
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    process, pidfd = unreaped(ENDS["signal 9 (SIGKILL)"])

    before = exit_status(pidfd)
    process.wait(LIMIT_S)
    after = exit_status(pidfd)

    os.close(pidfd)
    assert (before, after) == ("signal 9 (SIGKILL)", None)


@pytest.mark.parametrize("missing", ["fcntl", "poll"])
def test_without_the_means_nothing_is_told(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    process, pidfd = unreaped("")
    process.wait(LIMIT_S)
    with monkeypatch.context() as patch:
        if missing == "poll":
            patch.delattr(select, "poll")
        else:
            patch.setitem(sys.modules, "fcntl", None)
        told = exit_status(pidfd)

    os.close(pidfd)
    assert told is None


@with_exit_record
def test_a_process_reaped_between_two_looks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    process, pidfd = unreaped(ENDS["exit code 3"])

    def reap_first(fd: int) -> str | None:
        process.wait(LIMIT_S)
        return real(fd)

    real = peers._zombie_status
    monkeypatch.setattr(peers, "_zombie_status", reap_first)

    told = exit_status(pidfd)

    os.close(pidfd)
    assert told == "exit code 3"
