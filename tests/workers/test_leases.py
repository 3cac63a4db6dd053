"""A message is a worker's for as long as it works on it, and no longer than it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker import AttemptOutcome
from mpbroker.workers.board import Board, State
from mpbroker.workers.config import PoolConfig
from mpbroker.workers.keeping import Keeping, Need
from mpbroker.workers.target import Target
from mpbroker.workers.verdicts import AckPolicy
from tests.workers import handlers
from tests.workers.support import LIMIT_S, bench, until

SECOND = 1_000_000_000


def test_a_handler_that_never_lets_go_of_the_interpreter_keeps_its_message(tmp_path: Path) -> None:
    with bench(tmp_path, ack_timeout=2.0) as b:
        b.publish(seconds=20.0)
        with b.pool(handlers.hold_the_interpreter, processes=2, burst=True) as pool:
            assert pool.wait(20.0 + LIMIT_S)
        assert [line[3] for line in b.noted()] == ["begins", "ends"]
        stats = b.jobs.stats()
        assert (stats.acked, stats.deliveries, stats.late_acks) == (1, 1, 0)


def test_what_waits_behind_a_long_message_is_kept_too(tmp_path: Path) -> None:
    with bench(tmp_path, ack_timeout=2.0) as b:
        b.publish(3, seconds=1.5)
        with b.pool(handlers.hold_the_interpreter, prefetch=3, burst=True) as pool:
            assert pool.wait(LIMIT_S)
        stats = b.jobs.stats()
        assert (stats.acked, stats.deliveries) == (3, 3)


def test_beyond_max_lease_a_message_is_anothers_and_its_handler_is_told(tmp_path: Path) -> None:
    with bench(tmp_path, ack_timeout=1.0, max_deliveries=2) as b:
        b.publish()
        with b.pool(handlers.wait_until_told, processes=2, max_lease=0.2) as pool:
            until(lambda: sum(line[3] == "lost" for line in b.noted()) == 2)
            until(lambda: pool.stats().failed == 2)
        (letter,) = b.letters()
        assert [attempt.outcome for attempt in letter.history] == [AttemptOutcome.LEASE_ENDED] * 2
        assert len({attempt.member for attempt in letter.history}) == 2
        assert b.jobs.stats().acked == 0


def test_a_message_that_was_taken_away_is_told_to_its_handler(tmp_path: Path) -> None:
    with bench(tmp_path, ack_timeout=3.0) as b:
        b.publish()
        with b.pool(handlers.wait_until_told) as pool:
            b.wait_for("begins")
            (worker,) = pool.stats().workers
            assert b.jobs.reject("m1", worker.member)
            b.wait_for("lost")


# -- decided from looks ------------------------------------------------------------------------------------------------


def keeping(**options: object) -> Keeping:
    target = Target("module:function", b"", None)
    return Keeping(PoolConfig("pool", None, target, 1, **options))  # type: ignore[arg-type]


def held(*sequences: int, lease_s: int, now_ns: int) -> Board:
    """A worker that fetched these at that time, and works on the first."""
    board = Board(1)
    slot = board.slots[0]
    slot.starting(1)
    slot.fetched(list(sequences), now_ns + lease_s * SECOND, lease_s * SECOND)
    slot.begins(sequences[0], len(sequences) - 1)
    return board


def test_a_lease_is_extended_when_a_third_of_it_is_gone_and_again_then() -> None:
    look = held(7, lease_s=30, now_ns=0).slots[0].look()
    kept = keeping()
    began = look.since_ns
    kept._max_lease_ns = began + 3600 * SECOND
    assert kept.need(look, 9 * SECOND) is Need.NOTHING
    assert kept.need(look, 10 * SECOND) is Need.EXTEND
    kept.extended(look, 10 * SECOND)
    assert kept.need(look, 19 * SECOND) is Need.NOTHING
    assert kept.need(look, 20 * SECOND) is Need.EXTEND
    assert kept.pause_s(look, 20 * SECOND) == 10.0


def test_what_runs_longer_than_max_lease_is_left_to_its_end_with_what_waits_behind_it() -> None:
    look = held(7, 8, lease_s=3, now_ns=0).slots[0].look()
    kept = keeping(max_lease_s=60.0)
    assert kept.to_extend(look, look.since_ns + 59 * SECOND) == (7, 8)
    assert kept.to_extend(look, look.since_ns + 60 * SECOND) == ()


def test_a_message_acked_first_has_no_lease_to_keep_and_those_behind_it_have() -> None:
    look = held(7, 8, lease_s=3, now_ns=0).slots[0].look()
    assert keeping(ack=AckPolicy.FIRST).to_extend(look, look.since_ns) == (8,)


def test_a_timeout_is_due_exactly_and_looked_for_in_time() -> None:
    look = held(7, lease_s=30, now_ns=0).slots[0].look()
    kept = keeping(timeout_s=5.0)
    began = look.since_ns
    assert kept.pause_s(look, began + 2 * SECOND) == pytest.approx(3.0)
    assert not kept.is_late(look, began + 5 * SECOND - 1)
    assert kept.need(look, began + 5 * SECOND) is Need.KILL


def test_a_look_tells_what_a_worker_holds() -> None:
    board = held(7, 8, 9, lease_s=1, now_ns=0)
    slot = board.slots[0]
    assert slot.look().held == (7, 8, 9)
    slot.ended(failed=False)
    slot.begins(8, 1)
    look = slot.look()
    assert (look.state, look.sequence, look.waiting, look.done) == (State.BUSY, 8, (9,), 1)
    slot.idle()
    assert slot.look().held == ()
    assert Board(2).slots[1].look().state is State.EMPTY


def test_a_slot_left_in_the_middle_of_a_change_can_be_read() -> None:
    slot = held(7, lease_s=1, now_ns=0).slots[0]
    slot._words[0] += 1  # as a worker that was killed there leaves it
    assert slot.look().held == (7,)
