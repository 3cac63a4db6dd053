"""Whether a process was killed because memory ran out, from what the kernel counts."""

from __future__ import annotations

import os
from pathlib import Path

from mpbroker.process.memory import KILLED, Shortage, events_of
from mpbroker.testing import FakeClock

MAYBE = f"{KILLED}, possibly out of memory"
SURE = f"{KILLED}, out of memory"


def counts(events: Path, kills: int) -> None:
    events.write_text(f"low 0\noom {kills}\noom_kill {kills}\n")


def test_one_kill_explains_one_death(tmp_path: Path, clock: FakeClock) -> None:
    events = tmp_path / "memory.events"
    counts(events, 1)
    shortage = Shortage(clock)
    shortage.watch(events)
    assert shortage.in_words(KILLED, events) == MAYBE, "that one was before"
    counts(events, 2)
    assert shortage.in_words(KILLED, events) == SURE
    assert shortage.in_words(KILLED, events) == MAYBE


def test_several_at_one_time_explain_as_many(tmp_path: Path, clock: FakeClock) -> None:
    events = tmp_path / "memory.events"
    counts(events, 0)
    shortage = Shortage(clock)
    shortage.watch(events)
    counts(events, 3)
    assert [shortage.has_killed(events) for _ in range(4)] == [True, True, True, False]
    counts(events, 5)
    assert shortage.has_killed(events)
    clock.advance(1.5)
    assert not shortage.has_killed(events), "it killed something else, a while ago"


def test_a_group_is_counted_from_when_it_is_watched_and_apart_from_others(tmp_path: Path, clock: FakeClock) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    counts(one, 0)
    counts(other, 0)
    shortage = Shortage(clock)
    assert not shortage.has_killed(one)
    shortage.watch(one)
    shortage.watch(other)
    counts(one, 1)
    shortage.watch(one)
    assert not shortage.has_killed(other)
    assert shortage.has_killed(one)


def test_only_signal_9_is_a_matter_of_memory_and_what_is_unknown_is_said_so(tmp_path: Path, clock: FakeClock) -> None:
    events = tmp_path / "memory.events"
    counts(events, 0)
    shortage = Shortage(clock)
    shortage.watch(events)
    counts(events, 1)
    assert shortage.in_words("signal 11 (SIGSEGV)", events) == "signal 11 (SIGSEGV)"
    assert shortage.in_words(None, events) is None
    assert shortage.in_words(KILLED, None) == MAYBE
    assert shortage.in_words(KILLED, events) == SURE
    events.write_text("oom_kill many\n")
    assert shortage.in_words(KILLED, events) == MAYBE
    shortage.watch(None)
    shortage.watch(tmp_path / "nothing")
    assert shortage.in_words(KILLED, tmp_path / "nothing") == MAYBE


def test_groups_are_remembered_up_to_a_bound(tmp_path: Path, clock: FakeClock) -> None:
    shortage = Shortage(clock)
    groups = [tmp_path / str(number) for number in range(1100)]
    for each in groups:
        shortage.watch(each)
    counts(groups[0], 1)
    counts(groups[-1], 1)
    assert not shortage.has_killed(groups[0])
    assert shortage.has_killed(groups[-1])


def test_a_process_that_is_not_there_is_in_no_group() -> None:
    assert events_of(None) is None
    assert events_of(2**31 - 1) is None
    found = events_of(os.getpid())
    assert found is None or found.name in ("memory.events", "memory.oom_control")
