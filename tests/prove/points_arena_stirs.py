"""What clients do so that a broker gets to its kill points in the code of the arena; points_stirs has all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NoReturn

from mpbroker import Delivery, Loan
from mpbroker.process.frames import Granted, Poll
from mpbroker.process.handle import SubscriptionHandle
from mpbroker.process.proxy import BrokerProxy
from tests.prove.points_arena_deeds import BLOCK_BYTES, block, look, until
from tests.prove.points_stirs import child
from tests.prove.points_trap import LIMIT_S

_held: Final[list[Delivery | Loan]] = []
"""What a child holds until its end."""


def _a(broker: BrokerProxy) -> SubscriptionHandle:
    handle = broker.subscription("t", "a")
    assert isinstance(handle, SubscriptionHandle)
    return handle


def publishes_a_block(broker: BrokerProxy) -> Iterator[None]:
    """The first of its process."""
    yield
    broker.publish("t", block("one"))
    for name in ("a", "b"):
        (delivery,) = broker.subscription("t", name).poll("stirrer")
        assert (look(delivery.payload), delivery.attempt) == ("one", 1), name


def looks_at_a_block(broker: BrokerProxy) -> Iterator[None]:
    broker.publish("t", block("one"))
    yield
    (delivery,) = _a(broker).poll("stirrer")
    assert look(delivery.payload) == "one"


def lets_go_of_a_block(broker: BrokerProxy) -> Iterator[None]:
    broker.publish("t", block("one"))
    for name in ("a", "b"):
        (delivery,) = broker.subscription("t", name).poll("stirrer")
        assert look(delivery.payload) == "one"
        assert delivery.ack()
    yield
    del delivery
    until("the end of the block", lambda: not any(each.used for each in broker._status().arena))


def puts_a_block_to_no_use(broker: BrokerProxy) -> Iterator[None]:
    def refuse(_: Granted) -> NoReturn:
        raise InterruptedError

    a = _a(broker)
    broker.publish("t", block("one"))
    yield
    with suppress(InterruptedError):
        broker._take(Poll(a._number, "stirrer", None, 1, 0.0), Granted, refuse)
    (again,) = a.poll("stirrer")
    assert (look(again.payload), again.attempt, again.redelivered) == ("one", 1, False)


def _hold_a_block(broker: BrokerProxy) -> None:
    (held,) = _a(broker).poll("holder")
    assert look(held.payload) == "one"
    _held.append(held)


def loses_a_worker_with_pins(broker: BrokerProxy) -> Iterator[None]:
    broker.publish("t", block("one"))
    with child(broker, _hold_a_block) as pipe:
        yield
        pipe.send("die")
        (again,) = _a(broker).poll("stirrer", timeout=LIMIT_S)
        assert (look(again.payload), again.attempt) == ("one", 2)


def _write(broker: BrokerProxy) -> None:
    _held.append(broker.loan(BLOCK_BYTES))


def loses_a_publisher(broker: BrokerProxy) -> Iterator[None]:
    with child(broker, _write) as pipe:
        yield
        pipe.send("die")
        until("the end of its arena", lambda: broker._status().limits["arena_bytes"][0] == 0)
