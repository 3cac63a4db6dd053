"""Child programs for the tests of names and peers: `python -m tests.process.holders VERB ...`.

They hold names, fight for them, die holding them, and look at other users' folders.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mpbroker.errors import MpbrokerError, NameTaken
from mpbroker.process.claims import BrokerFolder
from mpbroker.process.naming import SOCKET, BrokerInfo, list_brokers, locate

LIMIT_S = 20.0
NOBODY = 65534
ROOT = Path(__file__).parents[2]


def own_info(incarnation: str = "00000000deadbeef") -> BrokerInfo:
    return BrokerInfo(os.getpid(), "0.1.0", 1, incarnation, 1.5)


# -- the tests' side ------------------------------------------------------------------------------


@contextlib.contextmanager
def running(*words: str | Path | int) -> Iterator[subprocess.Popen[bytes]]:
    """A child program with pipes; killed and reaped at the end, whatever became of it."""
    command = [sys.executable, "-m", "tests.process.holders", *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(LIMIT_S)


def line(process: subprocess.Popen[bytes]) -> str:
    """The next line that a child program says, within the limit."""
    assert process.stdout is not None
    said = bytearray()
    while not said.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
        assert ready, f"said only {bytes(said)!r} in {LIMIT_S} s"
        piece = os.read(process.stdout.fileno(), 1)
        assert piece, f"ended after {bytes(said)!r}"
        said += piece
    return said.decode().rstrip("\n")


def outcome(*words: str | Path | int, limit_s: float = LIMIT_S) -> str:
    """All that a child program says until it ends, which must be well."""
    command = [sys.executable, "-m", "tests.process.holders", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=limit_s, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- the programs ---------------------------------------------------------------------------------


def hold(name: str, base: str) -> None:
    """Hold a name until told to stop (stdin ends); "-" is a private one."""
    with BrokerFolder.claim(None if name == "-" else name, Path(base), own_info()) as place:
        print(place.folder, flush=True)
        sys.stdin.read()


def die_and_claim(base: str, count: str) -> None:
    """Claim a name and be killed holding it, again and again."""
    keys = set()
    for _ in range(int(count)):
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            _in_child(partial(_claim_and_wait, base, tell))
        os.close(tell)
        assert _read(told) == b"W"
        os.close(told)
        found = locate("cycle", Path(base))
        assert found.info.pid == pid
        found.connect(LIMIT_S).close()
        keys.add(found.key)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert list_brokers(Path(base)) == []
    with BrokerFolder.claim("cycle", Path(base), own_info()):
        print(len(keys))


def race(base: str, rounds: str, runners: str) -> None:
    """Several claim one name at the same moment, and one gets it; then it is killed or releases."""
    for number in range(int(rounds)):
        started, start = os.pipe()
        told, tell = os.pipe()
        stopped, stop = os.pipe()
        pids = []
        for _ in range(int(runners)):
            pid = os.fork()
            if pid == 0:
                os.close(start)
                os.close(stop)
                _in_child(partial(_run_for_it, base, started, tell, stopped))
            pids.append(pid)
        os.close(start)
        results = b"".join(_read(told) for _ in pids)
        assert sorted(results) == sorted(b"W" + b"L" * (len(pids) - 1)), results
        if number % 2:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        os.close(stop)
        for pid in pids:
            os.waitpid(pid, 0)
        for fd in (started, told, tell, stopped):
            os.close(fd)
    print("one winner each")


def churn(base: str, marks: str, times: str, runners: str) -> None:
    """Several claim and release one name as fast as they can; two are never inside at once."""
    pids = []
    for _ in range(int(runners)):
        pid = os.fork()
        if pid == 0:
            _in_child(partial(_come_and_go, base, Path(marks, "inside"), int(times)))
        pids.append(pid)
    codes = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
    assert codes == {0}, codes
    print("never two")


def as_user(user: str, verb: str, *words: str) -> None:
    """Do something as another user and say what came of it."""
    os.setgid(int(user))
    os.setuid(int(user))
    try:
        answer = _AS_USER[verb](*words)
    except (MpbrokerError, OSError) as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print(f"ok: {answer}")


def squat(path: str, user: str) -> None:
    """Listen on a socket as another user until told to stop."""
    os.setuid(int(user))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("listens", flush=True)
        sys.stdin.read()


def connect_as(path: str, user: str) -> None:
    """Connect as another user, and stay until told to stop."""
    os.setuid(int(user))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        print(os.getpid(), flush=True)
        sys.stdin.read()


def connect_and_leave_a_child(path: str) -> None:
    """Connect, fork a child that keeps the connection until told to stop, and end with code 3."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        print(os.getpid(), flush=True)
        os._exit(3)


def _claim_and_wait(base: str, tell: int) -> None:
    with BrokerFolder.claim("cycle", Path(base), own_info()):
        os.write(tell, b"W")
        select.select([], [], [], LIMIT_S)


def _run_for_it(base: str, started: int, tell: int, stopped: int) -> None:
    os.read(started, 1)
    try:
        with BrokerFolder.claim("race", Path(base), own_info()):
            os.write(tell, b"W")
            os.read(stopped, 1)
    except NameTaken:
        os.write(tell, b"L")


def _come_and_go(base: str, mark: Path, times: int) -> None:
    done = 0
    while done < times:
        try:
            place = BrokerFolder.claim("churn", Path(base), own_info())
        except NameTaken:
            continue
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        assert locate("churn", Path(base)).key == place.key
        mark.unlink()
        place.release()
        done += 1


def _in_child(work: Callable[[], None]) -> None:
    code = 1
    try:
        signal.alarm(60)
        work()
        code = 0
    finally:
        os._exit(code)


def _read(fd: int) -> bytes:
    ready, _, _ = select.select([fd], [], [], LIMIT_S)
    assert ready
    return os.read(fd, 1)


def _claim(base: str, umask: str) -> str:
    os.umask(int(umask, 8))
    with BrokerFolder.claim("theirs", Path(base), own_info()) as place:
        paths = [place.folder.parent, place.folder, *sorted(place.folder.iterdir())]
        return " ".join(f"{path.stat().st_mode & 0o777:o}" for path in paths)


def _connect(folder: str) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(Path(folder, SOCKET)))
    return "connected"


_AS_USER: dict[str, Callable[..., str]] = {
    "claim": _claim,
    "connect": _connect,
    "locate": lambda base: str(locate("mine", Path(base))),
    "read": lambda path: str(Path(path).read_bytes()),
    "list": lambda path: str(os.listdir(path)),
}

_VERBS: dict[str, Callable[..., None]] = {
    "hold": hold,
    "die-and-claim": die_and_claim,
    "race": race,
    "churn": churn,
    "as-user": as_user,
    "squat": squat,
    "connect-as": connect_as,
    "connect-and-leave-a-child": connect_and_leave_a_child,
}

if __name__ == "__main__":
    _VERBS[sys.argv[1]](*sys.argv[2:])
