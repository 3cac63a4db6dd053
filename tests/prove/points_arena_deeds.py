"""What the victims of kill points inside the arena's code do, as points_deeds has it for all others.

A block's payload is a key and a view of bytes that follow from it, so that whoever opens one sees whether it has the
bytes of another.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from tests.prove.points_deeds import Play, key_of
from tests.prove.points_trap import LIMIT_S

THRESHOLD: Final = 4 << 20
"""Of the brokers of scenes: more than what others publish there, all of which travels in frames."""

BLOCK_BYTES: Final = THRESHOLD + 4096


def block(key: str) -> tuple[str, str, pickle.PickleBuffer]:
    """A payload that goes into a block."""
    return key, "block", pickle.PickleBuffer(_content(key))


def look(payload: Any) -> str:
    """The key of a payload of a block. Raises AssertionError when it has other bytes."""
    key, kind, content = payload
    assert kind == "block"
    assert memoryview(content).readonly
    assert bytes(content) == _content(key), f"{key} has other bytes"
    return str(key)


def _content(key: str) -> bytes:
    return bytes([sum(key.encode()) % 251]) * BLOCK_BYTES


def _publish(play: Play, *keys: str) -> None:
    for key in keys:
        play.note("invoke", "publish", key)
        play.broker.publish(play.topic, block(key))
        play.note("ok", "publish", key)
    play.note_plane()


def publishes_its_first_block(play: Play) -> None:
    """It has no segment yet, and no lane."""
    play.broker.topics()
    play.arm()
    _publish(play, "p0")


def publishes_blocks(play: Play) -> None:
    """The second of three is the one that is struck; a block beside them was given back."""
    _publish(play, "p0")
    with play.broker.loan(BLOCK_BYTES) as loan:
        loan.buffer[0] = 1
    del loan
    play.arm()
    _publish(play, "p1", "p2")


def publishes_a_loan(play: Play) -> None:
    play.publish("p0")
    loan = play.broker.loan(BLOCK_BYTES)
    play.arm()
    loan.buffer[:] = bytes(BLOCK_BYTES)
    play.broker.create_topic(f"{play.topic} too")
    play.broker.publish(f"{play.topic} too", loan)
    play.publish("p1")


def works_on_blocks(play: Play) -> None:
    """Takes two of three and acks them; then lets go of them, and sees the pins end."""
    play.reader()
    play.arm()
    held = play.poll(2)
    assert [look(each.payload) for each in held] == ["m0", "m1"]
    play.ack(*held)
    held.clear()
    status = play.broker._status
    session = play.broker._client.session
    assert session is not None
    until("the end of its pins", lambda: not any(each.pinned for each in status().arena if each.pid == play.pid))
    session.holding.do(int)  # once the thread of the lane is done with that


def keeps_blocks(play: Play) -> None:
    """Acks both, and still has the array of one."""
    held = play.poll(2)
    kept = held[0].payload
    play.ack(*held)
    held.clear()
    play.arm()
    assert look(kept) == key_of(kept)
    play.broker.topics()
    assert look(kept) == key_of(kept)


def until(what: str, there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not there():
        assert time.monotonic() < deadline, f"{what} does not come"
        pause.wait(0.002)
