"""Processes that report, take orders, are killed, and are never left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from mpbroker.cli.crew import Crew, Interrupts, Member, TimeUp
from mpbroker.cli.exits import Interrupted
from mpbroker.cli.link import ABANDONED, LAST_WORDS
from tests.cli import crew_roles
from tests.cli.support import LIMIT_S

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as interrupts:
        yield interrupts


@pytest.fixture
def crew(interrupts: Interrupts) -> Iterator[Crew]:
    with interrupts.limit(LIMIT_S, "the test"), Crew("fork", interrupts) as crew:
        yield crew


def hear(crew: Crew, member: Member, last: bytes | None = None) -> list[bytes]:
    """What a member reports until that comes, or its end."""
    heard: list[bytes] = []
    while True:
        for who, report in crew.events(LIMIT_S):
            assert who is member
            if report is not None:
                heard.append(report)
            if report == last:
                return heard


@pytest.mark.parametrize("method", METHODS)
def test_reports_arrive_in_order_and_then_the_end(method: str, interrupts: Interrupts) -> None:
    with interrupts.limit(LIMIT_S, "the test"), Crew(method, interrupts) as crew:
        member = crew.start("counter", crew_roles.counts, 100)

        assert hear(crew, member) == [b"%d" % number for number in range(100)]
        assert member.exit_code == 0
        assert crew.running == []


def test_what_was_reported_before_a_kill_arrives(crew: Crew) -> None:
    member = crew.start("counter", crew_roles.counts_and_waits, 500)
    heard = hear(crew, member, b"499")
    member.kill()
    heard += hear(crew, member)

    assert heard == [b"%d" % number for number in range(500)]
    assert member.exit_code == -signal.SIGKILL


def test_half_a_report_is_none(crew: Crew) -> None:
    member = crew.start("half", crew_roles.reports_half_and_waits)
    assert hear(crew, member, b"whole") == [b"whole"]
    member.kill()

    assert hear(crew, member) == []


def test_more_than_a_pipe_holds_arrives(crew: Crew) -> None:
    member = crew.start("a lot", crew_roles.reports_a_lot)

    assert hear(crew, member) == [bytes(10_000)] * 200


@pytest.mark.parametrize("method", METHODS)
def test_orders_arrive_in_order(method: str, interrupts: Interrupts) -> None:
    with interrupts.limit(LIMIT_S, "the test"), Crew(method, interrupts) as crew:
        member = crew.start("echo", crew_roles.echoes, 3)
        for order in (b"a", b"b", b"c"):
            member.tell(order)

        assert hear(crew, member) == [b"ready", b"a", b"b", b"c"]


def test_who_gets_no_more_orders_leaves(crew: Crew) -> None:
    member = crew.start("echo", crew_roles.echoes, 1)
    hear(crew, member, b"ready")
    member.dismiss()

    assert hear(crew, member) == []
    assert member.exit_code == ABANDONED


def test_an_order_for_one_that_has_ended_is_lost(crew: Crew) -> None:
    member = crew.start("counter", crew_roles.counts, 1)
    hear(crew, member)
    member.tell(b"too late")


def test_a_role_that_fails_says_why_to_its_crew_alone(crew: Crew, capfd: pytest.CaptureFixture[str]) -> None:
    member = crew.start("failing", crew_roles.fails)
    (words,) = hear(crew, member)

    assert words.startswith(LAST_WORDS + b"Traceback")
    assert words.endswith(b"RuntimeError: as it was told to\n")
    assert member.exit_code == 1
    assert capfd.readouterr() == ("", "")


def test_closing_kills_who_does_not_leave(crew: Crew) -> None:
    stubborn = crew.start("stubborn", crew_roles.never_leaves)
    crew.close(patience=0.1)

    assert stubborn.exit_code == -signal.SIGKILL
    assert crew.running == []
    crew.close()


def test_closing_lets_leave_who_does(crew: Crew) -> None:
    polite = [crew.start(name, crew_roles.echoes, 1) for name in ("one", "other")]
    crew.close(patience=LIMIT_S)

    assert [each.exit_code for each in polite] == [ABANDONED] * 2
    assert crew.running == []


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_does_not_reach_a_role(method: str, interrupts: Interrupts) -> None:
    with interrupts.limit(LIMIT_S, "the test"), Crew(method, interrupts) as crew:
        member = crew.start("echo", crew_roles.echoes, 1)
        pid = member.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGINT)
        hear(crew, member, b"ready")
        os.kill(pid, signal.SIGINT)
        member.tell(b"still there")

        assert hear(crew, member) == [b"still there"]
        assert member.exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_events(crew: Crew, number: signal.Signals) -> None:
    member = crew.start("waits", crew_roles.never_leaves)
    hear(crew, member, b"ready")
    os.kill(os.getpid(), number)

    with pytest.raises(Interrupted) as caught:
        crew.events(LIMIT_S)
    assert caught.value.args == (number,)


def test_signals_mean_what_they_did_before_once_it_is_over() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    with Interrupts() as interrupts, interrupts.limit(LIMIT_S, "the test"):
        pass

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.fixture
def silent() -> Iterator[int]:
    """A pipe on which nothing comes; after the limit of all waits something does, for the timer is the test's own."""
    read, write = os.pipe()
    end = threading.Timer(LIMIT_S, os.write, (write, b"too late"))
    end.start()
    yield read
    end.cancel()
    end.join()
    os.close(read)
    os.close(write)


def test_a_limit_ends_a_call_that_does_not_return(interrupts: Interrupts, silent: int) -> None:
    with pytest.raises(TimeUp, match="too long"), interrupts.limit(0.01, "too long"):
        os.read(silent, 1)


def test_a_limit_whose_signal_comes_just_before_the_call_waits_ends_it_too(interrupts: Interrupts, silent: int) -> None:
    def miss_one_and_wait() -> None:
        # What is taken here ends nothing. Where a thread of others is there it may be handled at once.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        try:
            signal.sigwait([signal.SIGALRM])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        os.read(silent, 1)

    with pytest.raises(TimeUp, match="too long"), interrupts.limit(0.01, "too long"):
        miss_one_and_wait()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
