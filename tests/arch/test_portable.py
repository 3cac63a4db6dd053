"""The package can be imported where Linux's own functions are missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.arch.source import Module, modules, parse, run_at_import

MODULES = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}

NAMES = {
    "os": r"eventfd.*|memfd_.*|pidfd_.*|posix_.*|sched_.*|(EFD|MFD|PIDFD|CLONE|SCHED|P)_[A-Z_]*"
    r"|W(NOHANG|NOWAIT|EXITED|STOPPED|CONTINUED|UNTRACED|IF[A-Z]*|[A-Z]*SIG|EXITSTATUS)"
    r"|fork.*|register_at_fork|get(e|re|s)?[ug]id|getres[ug]id|setsid|kill(pg)?|wait(id|pid)"
    r"|sendfile|set_blocking|O_(CLOEXEC|NOFOLLOW|DIRECTORY|PATH|NONBLOCK)",
    "select": r"e?poll|kqueue|devpoll|EPOLL.*|POLL.*|KQ_.*",
    "signal": r"pidfd_.*|SIG(ALRM|CHLD|CONT|HUP|KILL|PIPE|QUIT|STOP|TSTP|TTIN|TTOU|USR1|USR2|WINCH)"
    r"|setitimer|alarm|sig(wait|pending|timedwait|waitinfo)|pthread_.*|siginterrupt",
    "socket": r"AF_(UNIX|NETLINK|PACKET|VSOCK)|SO_PEER.*|SO_PASS.*|SCM_.*|send_fds|recv_fds|CMSG_.*"
    r"|MSG_(DONTWAIT|NOSIGNAL|CMSG_CLOEXEC)",
    "selectors": r"(Epoll|Poll|Kqueue|Devpoll)Selector",
}
"""Module -> its names that not every platform has."""


def offences(module: Module) -> Iterator[str]:
    """Uses that would make the import of the module fail elsewhere."""
    for node in run_at_import(module):
        for used in _uses(node):
            owner, _, name = used.partition(".")
            if owner in MODULES or (name and owner in NAMES and re.fullmatch(NAMES[owner], name)):
                yield f"{module.path}:{getattr(node, 'lineno', 0)}: {used} at import"


def _uses(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return [f"{node.value.id}.{node.attr}"]
    return []


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name or "mpbroker")
def test_nothing_that_only_linux_has_is_touched_at_import(module: Module) -> None:
    assert list(offences(module)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import fcntl",
        "from pwd import getpwuid",
        "try:\n    import resource\nexcept ImportError:\n    resource = None",
        "import os\nFLAGS = os.MFD_CLOEXEC",
        "from os import memfd_create",
        "import signal\nclass A:\n    stop = signal.SIGKILL",
        "import select\ndef f(make=select.epoll): pass",
        "import socket\nFAMILY: int = socket.AF_UNIX",
        "import os\nos.register_at_fork(after_in_child=print)",
    ],
)
def test_a_planted_offender_is_found(text: str) -> None:
    assert list(offences(parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    import fcntl",
        "import sys\nif sys.platform == 'linux':\n    import fcntl",
        "import os\nif hasattr(os, 'memfd_create'):\n    FLAGS = os.MFD_CLOEXEC",
        "import os\ndef f():\n    return os.eventfd(0)",
        "import os\nX = os.environ, os.getpid, os.O_RDONLY, os.path",
        "import signal\nX = signal.SIGTERM, signal.SIGINT",
    ],
)
def test_what_runs_only_where_it_exists_passes(text: str) -> None:
    assert list(offences(parse(text))) == []
