"""Ctrl-C at every line of the way into shared memory: no descriptor and no mapping is left."""

from __future__ import annotations

import gc
import linecache
import socket
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Final

import pytest

from mpbroker.shm.segment import Segment
from mpbroker.shm.stream import share
from tests.process.puppets import LIMIT_S
from tests.shm.support import descriptors, mappings

RING_BYTES: Final = 4096

STRUCK: Final[frozenset[CodeType]] = frozenset({share.__code__, Segment.create.__func__.__code__})  # type: ignore[attr-defined]

CLEANING: Final = ("if own_fd >= 0:", "os.close(own_fd)")
"""Lines that are the cleaning up itself, and look for no signal before it is done."""


class Strike:
    """Ctrl-C before the line that is the so-and-so-many-th to run. struck: the line, once it was."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.struck: str | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> Strike | None:
        if frame.f_code not in STRUCK:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and line not in CLEANING and self.struck is None:
            self.left -= 1
            if self.left < 0:
                self.struck = line
                raise KeyboardInterrupt
        return self


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, broker = socket.socketpair()
    with client, broker:
        client.settimeout(LIMIT_S)
        yield client, broker


def test_ctrl_c_at_any_line_of_going_into_shared_memory_leaves_nothing(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, broker = ends
    gc.collect()  # what earlier tests left to it
    before, mapped = descriptors(), mappings()
    lines: list[str] = []
    while True:
        strike = Strike(len(lines))
        broker.sendall(b"no")  # the answer, which comes without a segment
        traced = sys.gettrace()
        sys.settrace(strike)
        try:
            ring, _ = share(client, RING_BYTES, b"let us share")
            assert ring is None
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(traced)
        assert (descriptors(), mappings()) == (before, mapped), strike.struck
        if strike.struck is None:
            break
        lines.append(strike.struck)
    assert any("send_fds" in line for line in lines)
    assert any("memfd_create" in line for line in lines)
    assert any(line.startswith("return cls(") for line in lines)
