"""Defects that the simulation found."""

from __future__ import annotations

import pytest

from mpbroker.errors import AccessRefused
from mpbroker.overflow import Overflow
from mpbroker.push.subscriber import CallbackSubscriber
from mpbroker.retry import RetryPolicy
from tests.simulation.scenarios.stage import on_stage
from tests.simulation.wires import Weather


def test_a_process_taken_for_dead_connects_again_in_a_thread_that_had_not_called_before() -> None:
    with on_stage() as stage:
        client = stage.player()
        client.does(client.broker.topics)
        client.loses_presence()
        stage.passes(1.0)
        with pytest.raises(AccessRefused, match="the next call connects again"):
            client.does(client.broker.topics)
        assert client.does(client.broker.topics) == {}


def test_every_thread_of_a_process_taken_for_dead_is_told_so() -> None:
    with on_stage() as stage:
        client = stage.player()
        client.does(lambda: client.broker.create_topic("t"))
        sub = client.does(lambda: client.broker.subscribe("t", "s"))
        waiting = client.begin(lambda: sub.poll("w", timeout=None))
        stage.passes(1.0)
        client.loses_presence()
        stage.passes(0.1)
        # On its way into the session, which the other thread lets go of before it is there.
        stage.network.weather = Weather(delay=1.0, shortest_s=0.6, longest_s=0.6)
        coming = client.begin(client.broker.topics)
        for call in (waiting, coming):
            with pytest.raises(AccessRefused, match="took this process for dead"):
                call.result()


def test_what_a_process_held_that_ended_comes_back_when_it_is_due_though_nothing_else_happens() -> None:
    with on_stage() as stage:
        worker, other = stage.player(), stage.player()
        worker.does(lambda: worker.broker.create_topic("t"))
        sub = worker.does(lambda: worker.broker.subscribe("t", "s", ack_timeout=300.0, retry=RetryPolicy(5, 4.0)))
        worker.does(lambda: worker.broker.publish("t", b"x"))
        (delivery,) = worker.does(lambda: sub.poll("w"))
        same = other.does(lambda: other.broker.subscription("t", "s"))
        waiting = other.begin(lambda: same.poll("v", timeout=None))
        stage.passes(1.0)
        ended = stage.world.now
        worker.loses_presence()  # nothing says whether the process ended, so the broker looks again 50 ms later
        (again,) = waiting.result()
        assert (again.message_id, again.attempt) == (delivery.message_id, 2)
        assert waiting.ended_at == pytest.approx(ended + 0.05 + 4.0, abs=0.01)


def test_a_copy_that_was_handed_over_and_pushed_out_is_redelivered_when_it_is_redriven() -> None:
    with on_stage() as stage:
        client = stage.player()
        broker = client.broker
        client.does(lambda: broker.create_topic("t"))
        sub = client.does(lambda: broker.subscribe("t", "s", max_queue=1, overflow=Overflow.DROP_OLDEST))
        client.does(lambda: broker.publish("t", b"first"))
        (first,) = client.does(lambda: sub.poll("w"))
        client.does(first.release)
        client.does(lambda: broker.publish("t", b"second"))
        (second,) = client.does(lambda: sub.poll("w"))
        assert not second.redelivered
        client.does(second.ack)
        assert client.does(lambda: broker.redrive("t/s")) == 1
        (again,) = client.does(lambda: sub.poll("w"))
        assert (again.message_id, again.attempt, again.redelivered) == (first.message_id, 1, True)


def test_a_dispatcher_whose_session_was_lost_takes_its_place_again() -> None:
    with on_stage() as stage:
        client = stage.player()
        seen: list[object] = []
        client.does(lambda: client.broker.create_topic("t"))
        subscriber = CallbackSubscriber("s", lambda message: seen.append(message.payload))
        sub = client.does(lambda: client.broker.subscribe("t", subscriber))
        client.does(lambda: client.broker.publish("t", b"one"))
        assert client.does(lambda: sub.dispatch_one(timeout=1.0))
        client.loses_presence()
        stage.passes(1.0)
        with pytest.raises(AccessRefused):
            client.does(client.broker.topics)
        client.does(lambda: client.broker.publish("t", b"two"))
        assert client.does(lambda: sub.dispatch_one(timeout=1.0))
        assert seen == [b"one", b"two"]
