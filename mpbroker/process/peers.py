"""Who is at the other end of a socket, and how a process ended.

Owns what the kernel knows about another process: its user, its number, a descriptor that stands
for it (a pidfd) and its exit status. Never decides what follows from it, and never compares
process numbers: they are used again. Imports nothing of the package, so both sides may import it.
What only some systems have is looked up when a function runs; where it is missing the answer is
None, "unknown", never a guess.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path

_UCRED = struct.Struct("iII")  # struct ucred: pid, uid, gid
_NO_USER = 0xFFFFFFFF  # the uid of a peer that is not there
_PID = struct.Struct("i")
# struct xucred of macOS and the BSDs: version, uid, number of groups, groups
_XUCRED = struct.Struct("Iih16I")
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
_LOCAL_PEERPID = 2  # macOS
_SO_PEERPIDFD = 77  # Linux 6.5; the socket module has no name for it

# struct pidfd_info in its first version: mask, cgroup, 11 ids, exit status
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_PIDFD_INFO_EXIT = 1 << 3
# _IOWR(0xFF, 11, struct pidfd_info). Where ioctls are numbered otherwise it fails: unknown.
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11


def peer_uid(sock: socket.socket) -> int | None:
    """Return the user at the other end of a Unix socket: who connected, or who listens.

    Never blocks and reads nothing from the connection. None: this system does not tell, or there
    is no other end.
    """
    credentials = _ucred(sock)
    if credentials is not None:
        uid = credentials[1]
        return None if uid == _NO_USER else uid
    return _local_option(sock, _LOCAL_PEERCRED, _XUCRED, 1)


def peer_pid(sock: socket.socket) -> int | None:
    """Return the number of the process that connected (or listens), for messages to people.

    It may have ended, and its number may be another's by now: `peer_pidfd` is what identifies it.
    None: unknown, as when that process is in another pid namespace.
    """
    credentials = _ucred(sock)
    pid = _local_option(sock, _LOCAL_PEERPID, _PID, 0) if credentials is None else credentials[0]
    return pid or None


def peer_pidfd(sock: socket.socket) -> int | None:
    """Return a new pidfd of the process that connected; the caller closes it.

    It becomes readable when that process ends, a little after its connections do. It comes from
    the socket itself where the kernel has that (Linux 6.5), so that it can't be another process
    of the same number; on older kernels it is opened by number, right if the peer lives at that
    moment. None: unknown.
    """
    if sys.platform == "linux":
        try:
            (fd,) = _PID.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _PID.size))
        except OSError as error:
            # Any other error is about this peer: to open it by number could hit another.
            if error.errno != errno.ENOPROTOOPT:
                return None
        else:
            return int(fd)
    pid = peer_pid(sock)
    return None if pid is None else _pidfd_open(pid)


def own_pidfd() -> int | None:
    """Return a new pidfd of this process, for whoever must see it end; None without pidfds."""
    return _pidfd_open(os.getpid())


def has_ended(pidfd: int, timeout_s: float) -> bool:
    """Say whether the process of a pidfd has ended, waiting up to `timeout_s` for it.

    False also where that can't be known.
    """
    try:
        watch = select.poll()
        watch.register(pidfd, select.POLLIN)
        events = watch.poll(timeout_s * 1000.0)
    except (AttributeError, OSError):
        return False
    return any(not event & select.POLLNVAL for _, event in events)


def exit_status(pidfd: int) -> str | None:
    """Say how the process of a pidfd ended: "exit code 3", "signal 9 (SIGKILL)". Never blocks.

    None while it runs, and when nothing tells. The kernel keeps the status with the pidfd from
    the moment the parent reaped the process (Linux 6.15). Until then /proc shows it to the same
    user, but it shows 0 to those it won't tell, too: before the reaping, a 0 is None here.
    """
    if not has_ended(pidfd, 0.0):
        return None
    # Reaped between the first two looks, it is found by the third.
    return _recorded_status(pidfd) or _zombie_status(pidfd) or _recorded_status(pidfd)


def _ucred(sock: socket.socket) -> tuple[int, int, int] | None:
    """Process, user and group of the peer, as Linux tells them."""
    # OpenBSD has an option of the same name with another layout.
    option = getattr(socket, "SO_PEERCRED", None) if sys.platform == "linux" else None
    if option is None or sock.family != socket.AF_UNIX:
        return None
    try:
        pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _UCRED.size))
    except (OSError, struct.error):
        return None
    return pid, uid, gid


def _local_option(sock: socket.socket, option: int, layout: struct.Struct, field: int) -> int | None:
    """One field of what macOS and the BSDs tell of the peer."""
    # Level 0 means something else for other families.
    if sock.family != socket.AF_UNIX:
        return None
    try:
        return int(layout.unpack(sock.getsockopt(_SOL_LOCAL, option, layout.size))[field])
    except (OSError, struct.error):
        return None


def _pidfd_open(pid: int) -> int | None:
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return int(opener(pid))
    except OSError:
        return None


def _recorded_status(pidfd: int) -> str | None:
    """What the kernel keeps with the pidfd of a reaped process."""
    try:
        import fcntl

        record = bytearray(_PIDFD_INFO.size)
        struct.pack_into("=Q", record, 0, _PIDFD_INFO_EXIT)
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, record)
    except (ImportError, OSError):
        return None
    mask, *_, status = _PIDFD_INFO.unpack(record)
    return _in_words(status) if mask & _PIDFD_INFO_EXIT else None


def _zombie_status(pidfd: int) -> str | None:
    """What /proc says of a process that ended and is not reaped yet."""
    try:
        pid = _pid_of(pidfd)
        if pid is None:
            return None
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        fields = stat.rpartition(b")")[2].split()
        # Still the same process after the reading, so the number was not another's in between.
        if fields[0] != b"Z" or _pid_of(pidfd) != pid:
            return None
        status = int(fields[-1])
    except (OSError, ValueError, IndexError):
        return None
    return _in_words(status) if status else None


def _pid_of(pidfd: int) -> int | None:
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_bytes().splitlines():
        if line.startswith(b"Pid:"):
            pid = int(line[4:])
            return pid if pid > 0 else None
    return None


def _in_words(status: int) -> str | None:
    """A wait status as text."""
    try:
        code = os.waitstatus_to_exitcode(status)
    except ValueError:
        return None
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
