"""What is offered again: what a subscription takes of messages that were published before."""

from __future__ import annotations

import pytest

from mpbroker.engine import Payloads
from mpbroker.engine.batch import Batch
from mpbroker.errors import QueueFull
from mpbroker.messages import DeadLetterReason, Headers, MessagePriority
from mpbroker.overflow import Overflow
from tests.engine.bench import Bench, sequences, tokens


def message(sequence: int, **headers: str) -> Batch:
    return Payloads([sequence]).batch("t", sequence, MessagePriority.NORMAL, 0.0, Headers(headers), "abc")


@pytest.mark.parametrize("place", ["ready", "in flight", "delayed", "dead"])
@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_a_copy_that_is_here_in_any_place_is_not_taken_twice(place: str, sequence: int) -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    held = tokens(bench.take()) if place != "ready" else []
    for token in held if place in {"delayed", "dead"} else ():
        if place == "dead":
            assert bench.s.reject(token, None, "never", 0.0)
        else:
            assert bench.s.nack(token, None, 9.0, "later", 0.0)
    assert bench.s.offer(message(sequence), 0.0) is False
    assert bench.stats()["accepted"] == 3
    bench.check()


def test_a_copy_that_is_gone_is_taken_whatever_is_beside_it() -> None:
    bench = Bench()
    bench.publish(1, 2, 3, 4, 5)
    first, second, third, *_ = tokens(bench.take(3))
    assert bench.s.reject(first, None, "never", 0.0)
    assert bench.s.release(second, None)
    assert bench.s.ack_tokens([third]) == [True]
    # Behind what was released, before what nobody took yet, and beside a dead letter.
    assert bench.s.offer(message(3), 0.0) is True
    assert sequences(bench.take()) == [2, 3, 4, 5]


def test_an_offer_asks_the_filter_with_the_headers_of_the_message() -> None:
    bench = Bench(filter='headers.kind = "a"')
    assert bench.s.offer(message(1, kind="b"), 0.0) is False
    assert bench.s.offer(message(2, kind="a"), 0.0) is True
    assert bench.stats() == {"accepted": 1, "ready": 1, "backlog": 1, "filtered_out": 1}


def test_a_filter_that_raises_at_an_offer_makes_a_dead_letter_of_that_time() -> None:
    def broken(_: object) -> bool:
        raise ValueError("no")

    bench = Bench(filter=broken)
    assert bench.s.offer(message(1), 8.0) is False
    (record,) = bench.s.dead_letters(None, 0)
    assert (record.sequence, record.reason, record.dead_since) == (1, DeadLetterReason.FILTER_ERROR, 8.0)


@pytest.mark.parametrize("overflow", [Overflow.REJECT, Overflow.WAIT(5)])
def test_an_offer_that_finds_no_room_is_told_the_limit(overflow: Overflow) -> None:
    bench = Bench(max_queue=2, overflow=overflow)
    bench.publish(1, 2)
    with pytest.raises(QueueFull) as full:
        bench.s.offer(message(7), 0.0)
    assert full.value.args == ("t/s", 2)
