"""Consumer: fetches ahead, acks in the background, and loses and charges nothing, however the loop ends."""

from __future__ import annotations

import errno
import gc
import pickle
import threading
from itertools import islice

import pytest

from mpbroker import Delivery, LimitReached, SubscriptionBusy, UnknownSubscription
from mpbroker.api import BrokerAPI, SubscriptionAPI
from mpbroker.pipeline import Run
from mpbroker.push.subscriber import CallbackSubscriber
from tests.conformance.support import LIMIT_S, Call, attempts, only, only_one, places, until


@pytest.fixture
def work(live: BrokerAPI) -> SubscriptionAPI:
    """A subscription with ten messages, whose payloads are their numbers."""
    live.create_topic("t")
    work = live.subscribe("t", "work", max_deliveries=2)
    live.publish_many("t", range(10))
    return work


def rest(subscription: SubscriptionAPI) -> list[Delivery]:
    """What is ready; it must never have been charged."""
    deliveries = subscription.poll("rest", max_messages=10_000)
    assert set(attempts(deliveries)) <= {1}
    return deliveries


def payloads(deliveries: list[Delivery]) -> list[object]:
    return [delivery.payload for delivery in deliveries]


# -- iterating --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 2, 3, 256, 100_000])
def test_everything_is_yielded_once_in_order_and_acked(live: BrokerAPI, prefetch: int) -> None:
    live.create_topic("t")
    work = live.subscribe("t", "work")
    live.publish_many("t", range(300))
    for number in range(300, 330):
        live.publish("t", number)
    found = []
    with work.consume("w", prefetch=prefetch, idle_timeout=0) as consumer:
        for delivery in consumer:
            found.append(delivery.payload)
            assert delivery.ack()
    assert found == list(range(330))
    stats = work.stats()
    assert places(stats) == {"acked": 330}
    assert (stats.late_acks, stats.redelivered) == (0, 0)


def test_a_message_that_comes_while_it_waits_is_yielded(live: BrokerAPI) -> None:
    live.create_topic("t")
    work = live.subscribe("t", "work")
    with work.consume("w") as consumer:
        call = Call(lambda: next(consumer))
        live.publish("t", "late")
        delivery = call.result()
        assert (delivery.payload, delivery.member) == ("late", "w")


def test_iteration_ends_when_nothing_comes_for_so_long_and_may_go_on(live: BrokerAPI, work: SubscriptionAPI) -> None:
    with work.consume("w", idle_timeout=0.01) as consumer:
        assert [delivery.payload for delivery in consumer if delivery.ack()] == list(range(10))
        live.publish("t", "more")
        assert [delivery.payload for delivery in consumer if delivery.ack()] == ["more"]
        with pytest.raises(StopIteration):
            next(consumer)


def test_no_more_is_out_than_prefetch(work: SubscriptionAPI) -> None:
    with work.consume("w", prefetch=3, idle_timeout=0.05) as consumer:
        held = []
        for delivery in consumer:
            held.append(delivery)
            assert work.stats().in_flight <= 3
        assert payloads(held) == [0, 1, 2]  # and then it waits for one of them
        held[1].ack()
        assert next(consumer).payload == 3


def test_a_settlement_in_another_thread_lets_it_go_on(work: SubscriptionAPI) -> None:
    with work.consume("w", prefetch=1) as consumer:
        first = next(consumer)
        call = Call(lambda: next(consumer))
        until(lambda: consumer._settler.is_starved)
        assert first.ack()
        assert call.result().payload == 1


@only("manager")
def test_the_next_are_fetched_while_the_caller_works(work: SubscriptionAPI) -> None:
    with work.consume("w", prefetch=4, idle_timeout=LIMIT_S) as consumer:
        for delivery in consumer:
            delivery.ack()
            if delivery.payload == 2:
                until(lambda: work.stats().in_flight + work.stats().acked > 4)
                break


def test_priority_and_redelivery_are_those_of_poll(live: BrokerAPI, work: SubscriptionAPI) -> None:
    live.publish("t", "urgent", priority=3)  # type: ignore[arg-type]  # an int will do
    (taken,) = work.poll("other", max_messages=1)
    taken.release()
    with work.consume("w", idle_timeout=0) as consumer:
        found = [(each.payload, each.redelivered, each.attempt) for each in consumer]
    assert found == [("urgent", True, 1), *((number, False, 1) for number in range(10))]


# -- settling ---------------------------------------------------------------------------------------------------------


def test_an_ack_is_sent_by_itself_after_a_while(work: SubscriptionAPI) -> None:
    with work.consume("w", prefetch=1) as consumer:
        assert next(consumer).ack()
        until(lambda: work.stats().acked == 1)


def test_a_second_settlement_is_false_and_changes_nothing(work: SubscriptionAPI) -> None:
    with work.consume("w", idle_timeout=0) as consumer:
        acked, nacked, released, rejected, *_ = list(consumer)
        assert acked.ack()
        assert nacked.nack(delay=LIMIT_S)
        assert released.release()
        assert rejected.reject()
        for delivery in (acked, nacked, released, rejected):
            for verb in (delivery.ack, delivery.nack, delivery.release, delivery.reject, delivery.extend):
                assert not verb()
            assert delivery.retry() is None
    assert places(work.stats()) == {"acked": 1, "delayed": 1, "dead": 1, "ready": 7}
    assert work.stats().late_acks == 0


def test_what_is_no_ack_acts_at_once(work: SubscriptionAPI) -> None:
    with work.consume("w", idle_timeout=0) as consumer:
        first, second, third, *_ = list(consumer)
        assert first.nack(error="failed")
        assert work.stats().ready == 1
        assert second.reject()
        assert work.stats().dead == 1
        before = third.deadline
        assert third.extend(LIMIT_S * 100)
        assert third.deadline > before
        again = third.retry("failed")
        assert again is not None
        assert (again.attempt, again.payload) == (2, 2)
        assert not third.ack()
        assert again.ack()
    assert work.stats().acked == 1


def test_delivery_as_a_context_manager_acks_and_nacks(work: SubscriptionAPI) -> None:
    with work.consume("w", idle_timeout=0) as consumer:
        for delivery in consumer:
            try:
                with delivery:
                    if delivery.payload == 3 and delivery.attempt == 1:
                        raise ValueError
            except ValueError:
                continue
    assert places(work.stats()) == {"acked": 10}
    assert work.stats().deliveries == 11


def test_threads_settle_what_one_yields(live: BrokerAPI) -> None:
    live.create_topic("t")
    work = live.subscribe("t", "work")
    live.publish_many("t", range(500))
    with work.consume("w", prefetch=20) as consumer:
        threads = []
        for delivery in islice(consumer, 500):
            threads.append(threading.Thread(target=delivery.ack))
            threads[-1].start()
        for thread in threads:
            thread.join(LIMIT_S)
    assert places(work.stats()) == {"acked": 500}
    assert work.stats().late_acks == 0


# -- the end ----------------------------------------------------------------------------------------------------------


def test_close_sends_the_acks_and_gives_back_all_else_uncounted(work: SubscriptionAPI) -> None:
    with work.consume("w", prefetch=6) as consumer:
        for delivery in consumer:
            if delivery.payload == 3:
                break
            delivery.ack()
    assert places(work.stats()) == {"acked": 3, "ready": 7}
    assert not delivery.ack()
    assert payloads(rest(work)) == [3, 4, 5, 6, 7, 8, 9]


def test_an_exception_in_the_loop_ends_it_like_close(work: SubscriptionAPI) -> None:
    def interrupted() -> None:
        with work.consume("w") as consumer:
            for delivery in consumer:
                if delivery.payload == 5:
                    raise KeyboardInterrupt
                delivery.ack()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert places(work.stats()) == {"acked": 5, "ready": 5}
    assert len(rest(work)) == 5


def test_a_loop_without_a_block_gives_back_what_it_did_not_yield(work: SubscriptionAPI) -> None:
    for delivery in work.consume("w", prefetch=4):
        if delivery.payload == 2:
            break
        delivery.ack()
    gc.collect()
    assert places(work.stats()) == {"acked": 2, "ready": 7, "in_flight": 1}
    # The one that the caller has stays the caller's.
    assert delivery.ack()
    assert places(work.stats()) == {"acked": 3, "ready": 7}
    assert payloads(rest(work)) == [3, 4, 5, 6, 7, 8, 9]


def test_a_message_that_comes_after_the_loop_was_left_is_not_lost(live: BrokerAPI, work: SubscriptionAPI) -> None:
    with work.consume("w", idle_timeout=None) as consumer:
        for delivery in consumer:
            delivery.ack()
            if delivery.payload == 9:
                break
        live.publish("t", "later")
    assert payloads(rest(work)) == ["later"]


def test_close_in_another_thread_ends_a_loop_that_waits(live: BrokerAPI) -> None:
    live.create_topic("t")
    work = live.subscribe("t", "work")
    consumer = work.consume("w")
    call = Call(lambda: list(consumer))
    until(lambda: consumer._wire.is_asked)
    consumer.close()
    assert call.result() == []
    live.publish("t", "x")
    assert len(rest(work)) == 1


@pytest.mark.parametrize("moment", ["before it asks", "when it was asked", "when it was answered"])
def test_what_comes_while_another_thread_closes_it_goes_back_uncounted(
    work: SubscriptionAPI, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = work.consume("w")
    send, fetch = consumer._settler.send, consumer._wire.fetch

    def sent() -> None:
        send()
        if not consumer._is_closed and moment == "before it asks":
            Call(consumer.close).result()

    def fetched() -> list[Run] | None:
        if moment == "when it was asked":
            Call(consumer.close).result()
        runs = fetch()
        if moment == "when it was answered":
            Call(consumer.close).result()
        return runs

    monkeypatch.setattr(consumer._settler, "send", sent)
    monkeypatch.setattr(consumer._wire, "fetch", fetched)
    assert Call(lambda: list(consumer)).result() == []
    assert consumer._is_closed
    assert len(rest(work)) == 10


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "no descriptor left"), LimitReached("connections", 4, "max_connections")]
)
def test_an_ack_that_failed_for_want_of_room_is_sent_again_in_the_background(
    work: SubscriptionAPI, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with work.consume("w", prefetch=10) as consumer:
        first = next(consumer)
        ack, failed = consumer._settler.wire.ack, threading.Event()

        def fails(ranges: list[int]) -> None:
            if not failed.is_set():
                failed.set()
                raise error
            ack(ranges)

        monkeypatch.setattr(consumer._settler.wire, "ack", fails)
        first.ack()
        assert failed.wait(LIMIT_S)
        until(lambda: work.stats().acked == 1)


def test_who_holds_all_it_may_gets_more_when_the_lease_of_some_ends(live: BrokerAPI) -> None:
    live.create_topic("t")
    work = live.subscribe("t", "work", ack_timeout=0.1, max_deliveries=1_000)
    live.publish_many("t", range(4))
    with work.consume("w", prefetch=2) as consumer:
        first, second = next(consumer), next(consumer)
        again = Call(lambda: next(consumer)).result()
        assert (again.message_id, again.redelivered) in [(first.message_id, True), (second.message_id, True)]


def test_who_extends_what_it_holds_is_handed_nothing_instead(live: BrokerAPI) -> None:
    live.create_topic("t")
    work = live.subscribe("t", "work", ack_timeout=30)
    live.publish_many("t", range(4))
    with work.consume("w", prefetch=2, idle_timeout=0.01) as consumer:
        for delivery in consumer:
            assert delivery.extend(3600)
        assert places(work.stats()) == {"ready": 2, "in_flight": 2}
        assert min(consumer._settler.held.values()) > 1000


@pytest.mark.parametrize("what", ["publisher", "consumer"])
def test_neither_travels_and_each_says_what_does(live: BrokerAPI, what: str) -> None:
    live.create_topic("t")
    work = live.subscribe("t", "work")
    with live.publisher("t") as publisher, work.consume("w") as consumer, pytest.raises(TypeError, match="there"):
        pickle.dumps(publisher if what == "publisher" else consumer)


def test_close_in_the_body_ends_the_loop(work: SubscriptionAPI) -> None:
    consumer = work.consume("w")
    found = []
    for delivery in consumer:
        found.append(delivery.payload)
        delivery.ack()
        if delivery.payload == 4:
            consumer.close()
    assert found == [0, 1, 2, 3, 4]
    assert payloads(rest(work)) == [5, 6, 7, 8, 9]


def test_closing_twice_is_fine_and_use_after_close_says_what_to_do(work: SubscriptionAPI) -> None:
    consumer = work.consume("w")
    first = next(consumer)
    consumer.close()
    consumer.close()
    for use in (lambda: next(consumer), lambda: iter(consumer)):
        with pytest.raises(ValueError, match=r"is closed; consume\(\) makes another one"):
            use()
    assert not first.ack()


def test_a_consumer_that_was_never_iterated_holds_nothing(work: SubscriptionAPI) -> None:
    with work.consume("w"):
        pass
    work.consume("w").close()
    assert places(work.stats()) == {"ready": 10}


# -- errors -----------------------------------------------------------------------------------------------------------


def test_a_subscription_that_is_deleted_ends_a_loop_that_waits_with_its_error(live: BrokerAPI) -> None:
    live.create_topic("t")
    work = live.subscribe("t", "work")
    with work.consume("w") as consumer:
        call = Call(lambda: next(consumer))
        until(lambda: consumer._wire.is_asked)
        live.unsubscribe("t", "work")
        with pytest.raises(UnknownSubscription):
            call.result()


def test_what_a_dispatcher_reads_nobody_consumes(live: BrokerAPI) -> None:
    live.create_topic("t")
    push = live.subscribe("t", CallbackSubscriber("push", lambda _: None))
    push._attach_dispatcher()
    with push.consume("w") as consumer, pytest.raises(SubscriptionBusy):
        next(consumer)


@pytest.mark.parametrize(
    ("member", "options"),
    [
        ("", {}),
        ("$w", {}),
        ("w", {"prefetch": 0}),
        ("w", {"prefetch": 1_000_001}),
        ("w", {"prefetch": 1.0}),
        ("w", {"idle_timeout": -1}),
    ],
)
def test_arguments_that_cannot_be_are_refused(work: SubscriptionAPI, member: str, options: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        work.consume(member, **options)  # type: ignore[arg-type]


@only("manager")
def test_a_consumed_delivery_can_be_settled_in_another_process(work: SubscriptionAPI) -> None:
    with work.consume("w", prefetch=1) as consumer:
        there = pickle.loads(pickle.dumps(next(consumer)))
        assert there.payload == 0
        assert there.ack()
        assert places(work.stats())["acked"] == 1
    assert places(work.stats()) == {"acked": 1, "ready": 9}


def test_the_holder_of_what_was_retried_is_the_consumer(work: SubscriptionAPI) -> None:
    with work.consume("w", prefetch=1) as consumer:
        again = next(consumer).retry()
        assert again is not None
    assert only_one(work.poll("v")).attempt == 2
    assert not again.ack()
