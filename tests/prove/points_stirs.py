"""What clients do so that a broker gets to its kill points.

Each is a generator: it prepares, yields while the trap is set and others begin to use the broker, and then does what
brings the broker to the point and asserts that it was answered rightly. A broker that ends meanwhile raises BrokerGone.
Of the topic "t" there are the subscriptions "a" and "b", of the topic "quiet" one of that name that somebody waits on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

from mpbroker import BrokerGone, Delivery
from mpbroker.process.frames import Granted, Poll
from mpbroker.process.handle import SubscriptionHandle
from mpbroker.process.proxy import BrokerProxy
from tests.prove.points_trap import LIMIT_S

Stir = Callable[[BrokerProxy], Iterator[None]]

LARGE: Final = bytes(2_000_000)
"""More than a socket holds."""

_FORK: Final = multiprocessing.get_context("fork")


def _sub(broker: BrokerProxy, name: str) -> SubscriptionHandle:
    handle = broker.subscription("t", name)
    assert isinstance(handle, SubscriptionHandle)
    return handle


def _payloads(deliveries: list[Delivery]) -> list[tuple[Any, int]]:
    return [(each.payload, each.attempt) for each in deliveries]


@contextmanager
def child(broker: BrokerProxy, prepare: Callable[[BrokerProxy], object]) -> Iterator[Connection]:
    """A client process that prepares and then makes a call for each order; whatever comes of it is sent back."""
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=_obey, args=(broker, prepare, theirs, ours))
    process.start()
    theirs.close()
    try:
        _heard(ours)
        yield ours
    finally:
        ours.close()
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join(LIMIT_S)
        process.close()


def _obey(broker: BrokerProxy, prepare: Callable[[BrokerProxy], object], pipe: Connection, theirs: Connection) -> None:
    theirs.close()
    prepare(broker)
    pipe.send((True, None))
    try:
        while True:
            order = pipe.recv()
            answer: tuple[bool, object]
            if order == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                if order == "close":
                    broker.close()
                answer = True, list(broker.topics()) if order == "call" else None
            except BrokerGone as gone:
                answer = False, gone
            except Exception:
                answer = False, AssertionError(traceback.format_exc())
            pipe.send(answer)
    except (EOFError, ConnectionError):
        return


def _heard(pipe: Connection) -> Any:
    assert pipe.poll(LIMIT_S), "the other process did not answer"
    succeeded, answer = pipe.recv()
    if not succeeded:
        raise answer
    return answer


# -- connecting -------------------------------------------------------------------------------------------------------


def connects(broker: BrokerProxy) -> Iterator[None]:
    """Another process makes its first call."""
    with child(broker, id) as other:
        yield
        other.send("call")
        assert {*_heard(other)} == {"t", "quiet", "beside", "held"}


# -- publish ----------------------------------------------------------------------------------------------------------


def publishes(broker: BrokerProxy) -> Iterator[None]:
    yield
    broker.publish("t", "one")
    for name in ("a", "b"):
        assert _payloads(_sub(broker, name).poll("stirrer", None, 9)) == [("one", 1)], name


def publishes_to_who_waits(broker: BrokerProxy) -> Iterator[None]:
    yield
    broker.publish("quiet", "one")


# -- poll -------------------------------------------------------------------------------------------------------------


def polls(broker: BrokerProxy) -> Iterator[None]:
    a = _sub(broker, "a")
    broker.publish_many("t", ["one", "two", "three"])
    yield
    assert _payloads(a.poll("stirrer", None, 2)) == [("one", 1), ("two", 1)]


def polls_much(broker: BrokerProxy) -> Iterator[None]:
    a = _sub(broker, "a")
    broker.publish_many("t", [LARGE, LARGE])
    yield
    assert _payloads(a.poll("stirrer", None, 2)) == [(LARGE, 1)] * 2


def waits_in_vain(broker: BrokerProxy) -> Iterator[None]:
    a = _sub(broker, "a")
    yield
    assert a.poll("stirrer", timeout=0.05) == []


def puts_an_answer_to_no_use(broker: BrokerProxy) -> Iterator[None]:
    def refuse(_: Granted) -> NoReturn:
        raise InterruptedError

    a = _sub(broker, "a")
    broker.publish("t", "one")
    yield
    with suppress(InterruptedError):
        broker._take(Poll(a._number, "stirrer", None, 1, 0.0), Granted, refuse)
    (again,) = a.poll("stirrer")
    assert (again.payload, again.attempt, again.redelivered) == ("one", 1, False)


# -- settle -----------------------------------------------------------------------------------------------------------


def acks_a_batch(broker: BrokerProxy) -> Iterator[None]:
    a = _sub(broker, "a")
    broker.publish_many("t", range(4))
    held = a.poll("stirrer", None, 4)
    yield
    assert a.ack_many([each.message_id for each in held], "stirrer") == [True] * 4


def nacks(broker: BrokerProxy) -> Iterator[None]:
    a = _sub(broker, "a")
    broker.publish("t", "one")
    (held,) = a.poll("stirrer")
    yield
    assert held.nack()
    assert _payloads(a.poll("stirrer")) == [("one", 2)]


def extends(broker: BrokerProxy) -> Iterator[None]:
    a = _sub(broker, "a")
    broker.publish("t", "one")
    (held,) = a.poll("stirrer")
    yield
    assert held.extend(60.0)
    assert held.ack()


def redrives(broker: BrokerProxy) -> Iterator[None]:
    a = _sub(broker, "a")
    broker.publish_many("t", ["one", "two", "three"])
    assert all(each.reject() for each in a.poll("stirrer", None, 3))
    yield
    assert broker.redrive("t/a") == 3
    assert _payloads(a.poll("stirrer", None, 9)) == [("one", 1), ("two", 1), ("three", 1)]


def is_too_slow(broker: BrokerProxy) -> Iterator[None]:
    """Two leases end at the same time."""
    short = broker.subscribe("t", "short", ack_timeout=0.1, max_deliveries=1_000)
    yield
    broker.publish("t", "one")
    broker.publish("t", "two")
    taken = short.poll("stirrer", None, 2)
    assert [each.payload for each in taken] == ["one", "two"]
    came: list[Any] = []
    while len(came) < 2:
        deliveries = short.poll("stirrer", timeout=LIMIT_S)
        assert deliveries, "the lease did not end"
        came += [each.payload for each in deliveries if each.attempt > 1 and each.ack()]
    assert sorted(came) == ["one", "two"]


# -- ends of processes and subscriptions ------------------------------------------------------------------------------


def _hold_two(broker: BrokerProxy) -> None:
    a = _sub(broker, "a")
    broker.publish("t", "one")
    broker.publish("t", "two")
    assert len(a.poll("holder", None, 2)) == 2


def loses_a_worker(broker: BrokerProxy) -> Iterator[None]:
    """A process that holds two leases is killed."""
    a = _sub(broker, "a")
    with child(broker, _hold_two) as other:
        yield
        other.send("die")
        came = [delivery for _ in range(2) for delivery in a.poll("stirrer", timeout=LIMIT_S)]
        assert _payloads(came) == [("one", 2), ("two", 2)]


def says_goodbye(broker: BrokerProxy) -> Iterator[None]:
    """A process that holds two leases closes."""
    a = _sub(broker, "a")
    with child(broker, _hold_two) as other:
        yield
        other.send("close")
        _heard(other)
        assert _payloads(a.poll("stirrer", None, 2)) == [("one", 1), ("two", 1)]


def unsubscribes(broker: BrokerProxy) -> Iterator[None]:
    broker.publish("t", "one")
    yield
    broker.unsubscribe("t", "a")
    assert list(broker.subscriptions("t")) == ["t/b"]


def deletes_a_topic(broker: BrokerProxy) -> Iterator[None]:
    broker.publish("t", "one")
    yield
    broker.delete_topic("t")
    assert "t" not in broker.topics()


def becomes_the_dispatcher(broker: BrokerProxy) -> Iterator[None]:
    a = _sub(broker, "a")
    yield
    a._detach_dispatcher(a._attach_dispatcher())
    assert a.poll("stirrer") == []


def only_looks_on(_: BrokerProxy) -> Iterator[None]:
    """The broker is ended by its manager."""
    yield
