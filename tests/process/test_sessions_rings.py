"""Shared memory as sessions see it: who may ask for it, when, how many have it, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpbroker.process import frames
from mpbroker.process.effects import Share
from mpbroker.process.frames import Failed
from mpbroker.process.limits import Limits
from tests.process.driver import Broker, Connection, Process

BYTES = 8192
LIMITS = Limits(ring_bytes=BYTES, max_rings=2)


@pytest.fixture
def broker() -> Broker:
    return Broker(limits=LIMITS)


@pytest.fixture
def process(broker: Broker) -> Process:
    return broker.process()


def shared(process: Process) -> Connection:
    """A connection of which the loop was told that it goes on in shared memory."""
    call = process.call()
    call.send(frames.Share(BYTES))
    assert call.waits, "the loop answers, with a descriptor"
    assert call.shares == BYTES
    return call


def rings(broker: Broker) -> int:
    return broker.sessions._desk.rings


def is_a_violation(call: Connection, request: frames.Share) -> bool:
    call.send(request)
    failed = call.take()
    return isinstance(failed, Failed) and failed.kind == "ProtocolViolation" and call.is_closed


def test_a_connection_that_goes_on_in_shared_memory_is_counted_until_it_ends(broker: Broker, process: Process) -> None:
    first, second = shared(process), shared(process)
    assert rings(broker) == 2
    first.close()
    assert rings(broker) == 1
    first.close()
    assert rings(broker) == 1
    second.close()
    assert rings(broker) == 0


@pytest.mark.parametrize("end", [Process.die, Process.goodbye])
def test_the_end_of_a_process_is_the_end_of_its_rings(
    broker: Broker, process: Process, end: Callable[[Process], None]
) -> None:
    other = broker.process()
    shared(process)
    shared(other)
    end(process)
    assert rings(broker) == 1
    shared(other)
    assert rings(broker) == 2


def test_a_connection_that_is_replaced_has_no_ring_any_more(broker: Broker, process: Process) -> None:
    call = shared(process)
    process.call(replaces=call.number)
    assert call.is_closed
    assert rings(broker) == 0


def test_calls_go_on_over_a_ring_as_over_a_socket(process: Process) -> None:
    call = shared(process)
    number = call.subscribe("t", "s")
    call.publish("t", "one")
    assert len(call.poll(number)) == 1


def test_beyond_the_limit_a_connection_is_told_so_and_stays_with_its_socket(broker: Broker, process: Process) -> None:
    first, _ = shared(process), shared(process)
    third = process.call()
    failed = third.failed(frames.Share(BYTES))
    assert (failed.kind, failed.args) == ("LimitReached", ["rings", 2, "max_rings"])
    assert not third.shares
    assert third.subscribe("t", "s")
    assert rings(broker) == 2
    first.close()
    shared(process)


def test_whom_the_loop_cannot_share_with_is_told_why_and_stays_with_its_socket(
    broker: Broker, process: Process
) -> None:
    call = shared(process)
    broker.carry_out(broker.sessions.unshared(Share(call.id, BYTES), "it is of another size"))
    failed = call.take()
    assert isinstance(failed, Failed)
    assert (failed.kind, rings(broker)) == ("AccessRefused", 0)
    assert "it is of another size" in str(failed.args)
    assert call.subscribe("t", "s")
    call.close()
    assert rings(broker) == 0


def test_what_the_loop_says_of_a_connection_that_is_gone_changes_nothing(broker: Broker, process: Process) -> None:
    call = shared(process)
    call.close()
    assert broker.sessions.unshared(Share(call.id, BYTES), "too late") == []
    assert rings(broker) == 0


def test_what_the_loop_says_of_a_broker_that_ends_changes_nothing(broker: Broker, process: Process) -> None:
    call = shared(process)
    process.connect("admin").send(frames.Stop())
    assert broker.quit is not None
    assert broker.sessions.unshared(Share(call.id, BYTES), "too late") == []


@pytest.mark.parametrize("limits", [LIMITS, Limits(ring_bytes=0)])
@pytest.mark.parametrize("size", [0, 1, 4096, 2 * BYTES, 2**63])
def test_memory_of_another_size_than_was_offered_is_a_violation(limits: Limits, size: int) -> None:
    broker = Broker(limits=limits)
    assert is_a_violation(broker.call(), frames.Share(size))
    assert rings(broker) == 0


@pytest.mark.parametrize("role", ["presence", "admin"])
def test_only_call_connections_share_memory(broker: Broker, process: Process, role: str) -> None:
    other = process.presence if role == "presence" else process.connect(role)
    assert is_a_violation(other, frames.Share(BYTES))
    assert rings(broker) == 0


def test_shared_memory_is_asked_for_before_the_first_call_or_never(broker: Broker, process: Process) -> None:
    call = process.call()
    call.ask(frames.CreateTopic("t", True), frames.Done)
    assert is_a_violation(call, frames.Share(BYTES))
    assert rings(broker) == 0


@pytest.mark.parametrize("refused", [False, True])
def test_shared_memory_is_asked_for_once_whatever_the_answer_was(
    broker: Broker, process: Process, *, refused: bool
) -> None:
    call = shared(process)
    if refused:
        broker.carry_out(broker.sessions.unshared(Share(call.id, BYTES), "no memory"))
        assert isinstance(call.take(), Failed)
    assert is_a_violation(call, frames.Share(BYTES))
    assert rings(broker) == 0
