"""What a client process holds lasts as long as it does: through its connections' ends, to its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpbroker.messages import AttemptOutcome
from mpbroker.process import frames
from mpbroker.process.frames import Answers, Failed
from tests.process.driver import Broker, Connection, Process, sequences, tokens


@pytest.fixture
def broker() -> Broker:
    return Broker()


def history(call: Connection) -> list[tuple[str, str]]:
    """How the attempts of the only dead letter ended."""
    (letter,) = call.ask(frames.DeadLetters(None, None, 0), frames.Letters).letters
    return [(attempt.outcome, attempt.error) for attempt in letter.history]


# -- death ------------------------------------------------------------------------------------------------------------


def test_a_presence_that_ends_without_goodbye_is_a_death(broker: Broker) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s", max_deliveries=1)
    call.publish("t", 1)
    victim.call().poll(number)
    victim.presence.close()
    assert call.stats(number)["dead"] == 1
    assert history(call) == [(AttemptOutcome.WORKER_DIED, "worker died")]
    assert victim.session not in broker.watched


def test_how_it_died_is_in_the_history_where_it_is_known(broker: Broker) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s", max_deliveries=1)
    call.publish("t", 1)
    victim.call().poll(number)
    victim.die("signal 9 (SIGKILL)")
    assert history(call) == [(AttemptOutcome.WORKER_DIED, "worker died: signal 9 (SIGKILL)")]


def test_a_process_that_ended_while_a_child_keeps_its_sockets_is_dead(broker: Broker) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    worker = victim.call()
    worker.poll(number)
    victim.die()
    assert worker.is_closed
    assert victim.presence.is_closed
    assert sequences(call.poll(number)) == [1]


@pytest.mark.parametrize("first", ["presence", "pidfd"])
def test_the_second_sign_of_a_death_changes_nothing(broker: Broker, first: str) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    victim.call().poll(number)
    signs: list[Callable[[], None]] = [victim.presence.close, victim.die]
    for sign in signs if first == "presence" else reversed(signs):
        sign()
    (grant,) = call.poll(number)
    assert grant.attempt == 2
    assert broker.sessions.process_ended(victim.session, "exit code 0", broker.now) == []


def test_what_a_dead_process_held_comes_back_at_once_counted_and_in_order(broker: Broker) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s", ack_timeout=1000.0)
    call.publish("t", 1, 2, 3, 4)
    worker = victim.call()
    held = tokens(worker.poll(number, count=3))
    worker.ack(number, held[1])
    victim.die()
    grants = [call.poll(number, count=10) for _ in range(3)]
    assert [sequences(each) for each in grants] == [[1], [3], [4]]
    assert [grant.attempt for each in grants for grant in each] == [2, 2, 1]
    assert worker.is_closed


def test_a_retry_policy_delays_what_a_dead_process_held(broker: Broker) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s", max_deliveries=3, retry=frames.Retry(3, 2.0, 2.0, 30.0))
    call.publish("t", 1)
    victim.call().poll(number)
    victim.die()
    assert call.poll(number) == []
    assert broker.sessions.next_due() == broker.now + 2.0
    broker.later(2.0)
    assert sequences(call.poll(number)) == [1]


def test_death_is_of_everything_the_process_polled_from_and_of_nothing_else(broker: Broker) -> None:
    call, victim, other = broker.call(), broker.process(), broker.process()
    numbers = [call.subscribe("t", f"s{n}") for n in range(4)]
    call.publish("t", 1, 2)
    for number in numbers:
        for process in (victim, other):
            process.call().poll(number)
    victim.die()
    for number in numbers:
        stats = call.stats(number)
        assert (stats["ready"], stats["in_flight"]) == (1, 1)


def test_the_polls_of_a_dead_process_do_not_get_what_comes_back(broker: Broker) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    victim.call().poll(number)
    waiting = victim.call()
    waiting.wait(number)
    victim.die()
    assert waiting.is_closed
    assert not waiting.inbox
    assert sequences(call.poll(number)) == [1]


def test_two_processes_may_use_one_member_name(broker: Broker) -> None:
    one, two = broker.process(), broker.process()
    call = one.call()
    number = call.subscribe("t", "s")
    call.publish("t", 1, 2)
    call.poll(number, "w")
    two.call().poll(number, "w")
    one.die()
    watcher = two.call()
    assert watcher.ask(frames.Ack(number, "w", [1, 2]), Answers).values == [False, True]


def test_any_process_may_ack_by_token_or_by_member_name(broker: Broker) -> None:
    holder, other = broker.call(), broker.call()
    number = holder.subscribe("t", "s")
    holder.publish("t", 1, 2)
    first, second = tokens(holder.poll(number, "w", 2))
    assert other.ack(number, first) == [True]
    assert other.ask(frames.Ack(number, "other", [2]), Answers).values == [False]
    assert other.ask(frames.Ack(number, "w", [2]), Answers).values == [True]
    assert holder.ack(number, second) == [False]


def test_a_presence_that_breaks_the_protocol_is_the_end_of_its_process(broker: Broker) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s", max_deliveries=1)
    call.publish("t", 1)
    worker = victim.call()
    worker.poll(number)
    victim.presence.send(frames.Topics())
    failed = victim.presence.take()
    assert isinstance(failed, Failed)
    assert failed.kind == "ProtocolViolation"
    assert worker.is_closed
    assert history(call)[0][1].startswith("worker died: ")


def test_a_session_may_begin_anew_after_its_end(broker: Broker) -> None:
    victim = broker.process()
    number = victim.call().subscribe("t", "s")
    victim.die()
    again = broker.connect(victim.session, "presence", 1)
    call = broker.connect(victim.session, "call", 2)
    call.publish("t", 1)
    assert sequences(call.poll(number)) == [1]
    again.close()
    assert call.is_closed
    assert broker.held() == 0


def test_a_dead_process_frees_the_dispatchers_place(broker: Broker) -> None:
    call, victim = broker.call(), broker.process()
    number = call.subscribe("t", "s", push=True)
    reader = victim.call()
    member = reader.ask(frames.Attach(number), frames.Text).value
    call.publish("t", 1)
    reader.poll(number, member)
    victim.die()
    broker.later(0.1)
    assert call.ask(frames.Attach(number), frames.Text).value != member
    assert call.stats(number)["in_flight"] == 0


def test_deleted_subscriptions_are_no_burden_to_who_polled_them(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    for n in range(300):
        number = call.subscribe("t", f"s{n}")
        call.publish("t", 1)
        call.poll(number)
        call.ask(frames.Unsubscribe("t", f"s{n}"), frames.Done)
    assert len(broker.sessions._desk.sessions[process.session].polled) < 150
    process.die()


# -- a clean end ------------------------------------------------------------------------------------------------------


def test_a_goodbye_releases_uncounted_and_closes_the_other_connections(broker: Broker) -> None:
    call, leaver = broker.call(), broker.process()
    number = call.subscribe("t", "s", max_deliveries=1)
    call.publish("t", 1, 2)
    worker, waiting = leaver.call(), leaver.call()
    worker.poll(number, count=2)
    waiting.wait(number)
    leaver.goodbye()
    assert leaver.presence.is_closed
    assert worker.is_closed
    assert waiting.is_closed
    assert not waiting.inbox
    (grant,) = call.poll(number, count=5)
    assert (sequences([grant]), grant.attempt, grant.redelivered) == ([1, 2], 1, True)
    assert leaver.session not in broker.watched


def test_a_death_after_the_goodbye_is_none(broker: Broker) -> None:
    call, leaver = broker.call(), broker.process()
    number = call.subscribe("t", "s", max_deliveries=1)
    call.publish("t", 1)
    leaver.call().poll(number)
    leaver.goodbye()
    leaver.die("exit code 0")
    leaver.presence.close()
    assert call.stats(number)["ready"] == 1


def test_a_goodbye_frees_the_dispatchers_place(broker: Broker) -> None:
    call, leaver = broker.call(), broker.process()
    number = call.subscribe("t", "s")
    leaver.call().ask(frames.Attach(number), frames.Text)
    leaver.goodbye()
    call.publish("t", 1)
    assert call.poll(number)


def test_a_goodbye_wakes_who_waits_for_what_is_released(broker: Broker) -> None:
    call, leaver = broker.call(), broker.process()
    number = call.subscribe("t", "s")
    call.publish("t", 1)
    leaver.call().poll(number)
    call.wait(number)
    leaver.goodbye()
    assert sequences(call.granted()) == [1]


def test_a_goodbye_on_another_connection_is_a_violation(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    call.send(frames.Goodbye())
    failed = call.take()
    assert isinstance(failed, Failed)
    assert failed.kind == "ProtocolViolation"
    process.call().ask(frames.Topics(), frames.TopicsReply)


# -- connections come and go ------------------------------------------------------------------------------------------


def test_a_connection_that_ends_returns_nothing(broker: Broker) -> None:
    process, other = broker.process(), broker.call()
    worker = process.call()
    number = worker.subscribe("t", "s")
    worker.publish("t", 1)
    (token,) = tokens(worker.poll(number))
    worker.close()
    assert other.poll(number) == []
    assert process.call().ack(number, token) == [True]


def test_a_connection_that_broke_the_protocol_returns_nothing_either(broker: Broker) -> None:
    process, other = broker.process(), broker.call()
    worker = process.call()
    number = worker.subscribe("t", "s")
    worker.publish("t", 1)
    (token,) = tokens(worker.poll(number))
    worker.send_bytes(b"\xc1")
    worker.take()
    assert worker.is_closed
    assert other.poll(number) == []
    assert process.call().ack(number, token) == [True]


def test_an_answer_that_was_not_written_completely_is_undone(broker: Broker) -> None:
    worker, other = broker.process().call(), broker.call()
    number = worker.subscribe("t", "s", max_deliveries=1)
    worker.publish("t", 1)
    worker.poll(number)
    other.wait(number)
    worker.close(unsent=True)
    (grant,) = other.granted()
    assert (grant.attempt, grant.redelivered) == (1, False)
    stats = other.stats(number)
    assert (stats["deliveries"], stats["redelivered"]) == (1, 0)


def test_an_unwritten_answer_to_something_else_undoes_nothing(broker: Broker) -> None:
    worker, other = broker.process().call(), broker.call()
    number = worker.subscribe("t", "s")
    worker.publish("t", 1)
    worker.poll(number)
    worker.ask(frames.Topics(), frames.TopicsReply)
    worker.close(unsent=True)
    assert other.poll(number) == []


# -- the broker's own end ---------------------------------------------------------------------------------------------


def everybody(broker: Broker) -> list[Connection]:
    process = broker.process()
    call, waiting = process.call(), process.call()
    waiting.wait(call.subscribe("t", "s"))
    return [process.presence, call, waiting, broker.open(b"x" * 16, "call", 1)]


def test_an_admin_may_stop_the_broker(broker: Broker) -> None:
    connections = everybody(broker)
    admin = broker.process().connect("admin")
    admin.send(frames.Stop())
    assert broker.quit == "it was asked to stop"
    # Telling everybody is the loop's, after the name is free.
    assert [connection.inbox for connection in (*connections, admin)] == [[]] * 5


def test_nobody_else_may_stop_it(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    call.send(frames.Stop())
    failed = call.take()
    assert isinstance(failed, Failed)
    assert failed.kind == "ProtocolViolation"
    assert broker.quit is None
    process.call().ask(frames.Topics(), frames.TopicsReply)


def test_after_the_end_nothing_happens_any_more(broker: Broker) -> None:
    process = broker.process()
    call = process.call()
    sessions = broker.sessions
    admin = process.connect("admin")
    admin.send(frames.Stop())
    assert sessions.received(admin.id, frames.encode(frames.Stop()), broker.now) == []
    assert sessions.received(call.id, frames.encode(frames.Topics()), broker.now) == []
    assert sessions.closed(call.id, broker.now) == []
    assert sessions.violated(call.id, "x", broker.now) == []
    assert sessions.process_ended(process.session, None, broker.now) == []
    assert sessions.tick(broker.now + 100.0) == []
    assert sessions.next_due() is None
    late = broker.open(b"y" * 16, "call", 1)
    assert late.is_closed


def test_processes_are_told_apart(broker: Broker) -> None:
    processes: list[Process] = [broker.process() for _ in range(3)]
    number = processes[0].call().subscribe("t", "s")
    processes[0].call().publish("t", 1, 2, 3)
    for process in processes:
        process.call().poll(number)
    processes[1].goodbye()
    processes[2].die()
    assert processes[0].call().stats(number)["in_flight"] == 1
    assert broker.watched == {processes[0].session}
