"""The broker lock comes before a subscription lock, never after; and no user code but filters runs
under either.

A workload of all verbs runs in several threads over watched locks; offenders are planted to show
that the watch would see one.
"""

from __future__ import annotations

import gc
import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from mpbroker import (
    Delivery,
    MessageBroker,
    MessagePriority,
    MpbrokerError,
    Overflow,
    QueueFull,
    RetryPolicy,
    SubscriptionAPI,
)
from mpbroker.engine.subscription import Subscription as EngineSubscription
from mpbroker.testing import FakeClock
from tests.conformance.support import LIMIT_S, Call
from tests.engine.told import (
    TellingError,
    TellingFilter,
    TellingHandler,
    TellingHeaders,
    TellingSubscriber,
    payload_class,
)
from tests.engine.watched_locks import BROKER, SUBSCRIPTION, Watch

ROUNDS = 40


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    watch.install(monkeypatch)
    return watch


@pytest.fixture
def broker(watch: Watch) -> Iterator[MessageBroker]:
    clock = FakeClock()

    def told(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def tell(*arguments: float) -> Any:
            watch.user_code(name)
            return answer(*arguments)

        return tell

    with MessageBroker(
        clock=told("clock", clock),
        wall_clock=told("wall clock", clock),
        sleep=told("sleep", clock.sleep),
    ) as broker:
        yield broker


# -- the workload ---------------------------------------------------------------------------------


def settle(delivery: Delivery, watch: Watch, rng: random.Random) -> None:
    verb = rng.choice(["ack", "nack", "release", "reject", "extend", "retry", "by id"])
    if verb == "by id":
        holder = delivery._holder
        assert isinstance(holder, SubscriptionAPI)
        named: dict[str, Any] = {"message_id": delivery.message_id, "member": delivery.member}
        actions: list[Callable[[], object]] = [
            partial(holder.ack, **named),
            partial(holder.ack_many, [delivery.message_id, "nonsense"], delivery.member),
            partial(holder.nack, **named, error=TellingError(watch)),
            partial(holder.release, **named),
            partial(holder.reject, **named, error=TellingError(watch)),
            partial(holder.extend, **named),
        ]
        rng.choice(actions)()
    elif verb in ("nack", "reject", "retry"):
        getattr(delivery, verb)(error=TellingError(watch))
    else:
        getattr(delivery, verb)()


def publisher(broker: MessageBroker, watch: Watch, payload: type, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        entries = rng.choice([{"type": "created"}, {"type": "paid"}, {}])
        headers = TellingHeaders(watch, entries)
        priority = rng.choice(list(MessagePriority))
        with suppress(QueueFull):
            if rng.random() < 0.5:
                broker.publish("orders", payload(), headers, priority=priority)
            else:
                broker.publish_many("orders", (payload() for _ in range(5)), headers)


def worker(broker: MessageBroker, watch: Watch, name: str, seed: int) -> None:
    rng = random.Random(seed)
    subscription = broker.subscription("orders", name)
    for _ in range(ROUNDS):
        for delivery in subscription.poll(f"w{seed}", max_messages=4, timeout=0.001):
            assert delivery.payload is not None
            settle(delivery, watch, rng)


def operator(broker: MessageBroker, watch: Watch, seed: int) -> None:
    rng = random.Random(seed)
    names = list(broker.subscriptions("orders"))
    broker.create_topic("offers")
    offers = broker.subscribe("offers", "full", max_queue=1, overflow=Overflow.REJECT)
    offered = broker.publish("offers", 1, {"type": "created"})
    for _ in range(ROUNDS):
        name = rng.choice(names)
        topic, _, short = name.partition("/")
        subscription = broker.subscription(topic, short)
        actions: list[Callable[[], object]] = [
            partial(broker.redrive, name, limit=3),
            partial(broker.purge_dead_letters, name, ["m1"], limit=3),
            partial(broker.dead_letters, name, limit=3),
            broker.dead_letters,
            broker.expire,
            broker.next_deadline,
            broker.topics,
            broker.subscriptions,
            subscription.expire,
            subscription.stats,
            partial(subscription.wait_idle, 0),
            partial(subscription.expire, 1e6),
        ]
        rng.choice(actions)()
        for delivery in offers.poll("o"):
            delivery.ack()
        with suppress(QueueFull):
            offers.offer(offered)


def builder(broker: MessageBroker, watch: Watch, seed: int) -> None:
    """Topics and subscriptions come and go while others wait on them."""
    for number in range(ROUNDS // 4):
        name = f"topic{seed}-{number}"
        broker.create_topic(name)
        same = TellingFilter(watch)
        subscription = broker.subscribe(name, "s", filter=same)
        broker.subscribe(name, "s", filter=same)
        with suppress(MpbrokerError):
            broker.subscribe(name, "s", filter=TellingFilter(watch))
        waiting = Call(partial(subscription.poll, "w", timeout=LIMIT_S))
        if number % 2:
            broker.unsubscribe(name, "s")
        broker.delete_topic(name)
        with pytest.raises(MpbrokerError):
            waiting.result()


def pusher(broker: MessageBroker, watch: Watch, payload: type) -> None:
    broker.create_topic("pushed")
    broker.publish("pushed", payload())
    for name in ("p", "q"):
        subscriber = TellingSubscriber(watch, name, broker)
        retry = RetryPolicy(2, base_delay=0.001)
        subscription = broker.subscribe("pushed", subscriber, retry=retry)
        broker.publish_many("pushed", [payload() for _ in range(5)])
        subscription.dispatch_one(block=False)
    broker.run_until_idle()
    broker.start()
    broker.publish_many("pushed", [payload() for _ in range(10)])
    assert broker.wait_idle(LIMIT_S)
    broker.unsubscribe("pushed", "p")
    broker.subscription("pushed", "q").close()


def run_workload(broker: MessageBroker, watch: Watch, payload: type) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "plain", max_deliveries=2)
    broker.subscribe("orders", "picky", filter=TellingFilter(watch), retry=RetryPolicy(3, 0.001))
    broker.subscribe("orders", "small", max_queue=3, overflow=Overflow.DROP_OLDEST)
    broker.subscribe("orders", "strict", max_queue=8, overflow=Overflow.REJECT)
    broker.subscribe("orders", "patient", max_queue=7, overflow=Overflow.WAIT(0.005))
    jobs: list[Callable[[], None]] = [
        *(partial(publisher, broker, watch, payload, seed) for seed in range(2)),
        *(
            partial(worker, broker, watch, name, seed)
            for seed, name in enumerate(["plain", "picky", "small", "strict", "patient"])
        ),
        partial(operator, broker, watch, 7),
        partial(builder, broker, watch, 8),
        partial(pusher, broker, watch, payload),
    ]
    handler = TellingHandler(watch)
    logger = logging.getLogger("mpbroker")
    logger.addHandler(handler)
    try:
        for call in [Call(job) for job in jobs]:
            call.result()
        broker.close()
    finally:
        logger.removeHandler(handler)


# -- the laws -------------------------------------------------------------------------------------


def test_the_watch_sees_the_real_locks(broker: MessageBroker, watch: Watch) -> None:
    broker.create_topic("orders")
    broker.subscribe("orders", "billing")
    with broker._engine._lock:
        assert [lock.kind for lock in watch.held()] == [BROKER]
    (subscription,) = broker._engine.all_subscriptions()
    with subscription._lock:
        assert [lock.kind for lock in watch.held()] == [SUBSCRIPTION]
    assert watch.held() == []
    assert threading.Lock() is not None


def test_locks_are_taken_in_one_order_and_never_two_of_subscriptions(broker: MessageBroker, watch: Watch) -> None:
    run_workload(broker, watch, payload_class(watch))
    assert [text for text in watch.offences if "wanted" in text or "wait" in text] == []
    assert {BROKER, SUBSCRIPTION} <= watch.seen
    assert (BROKER, SUBSCRIPTION) in watch.under
    assert watch.cycles() == []


def test_no_user_code_but_filters_runs_under_a_lock(broker: MessageBroker, watch: Watch) -> None:
    run_workload(broker, watch, payload_class(watch))
    assert sorted({text for text in watch.offences if "runs under" in text}) == []
    assert watch.user_code_seen >= {
        "clock",
        "wall clock",
        "sleep",
        "filter",
        "headers.__getitem__",
        "error.__str__",
        "subscriber_id",
        "on_message",
        "log handler",
    }


def _delete_what_is_held(broker: MessageBroker, subscription: SubscriptionAPI) -> None:
    subscription.poll("w", max_messages=3)
    broker.delete_topic("orders")


FORGETTING: dict[str, Callable[[MessageBroker, SubscriptionAPI], object]] = {
    "ack": lambda b, s: s.poll("w")[0].ack(),
    "ack by id": lambda b, s: s.ack(s.poll("w")[0].message_id, "w"),
    "ack_many": lambda b, s: s.ack_many([d.message_id for d in s.poll("w", max_messages=9)], "w"),
    "purge": lambda b, s: (
        [d.reject() for d in s.poll("w", max_messages=9)],
        b.purge_dead_letters("orders/billing"),
    ),
    "unsubscribe": lambda b, s: b.unsubscribe("orders", "billing"),
    "delete_topic": lambda b, s: b.delete_topic("orders"),
    "delete while held": _delete_what_is_held,
    "close": lambda b, s: b.close(),
}


@pytest.mark.parametrize("how", FORGETTING)
def test_a_forgotten_payload_is_finalized_outside_the_locks(broker: MessageBroker, watch: Watch, how: str) -> None:
    """A finalizer is user code too, and the broker's reference may be the last."""
    payload = payload_class(watch, finalizer=True)
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    broker.publish("orders", payload())
    broker.publish_many("orders", [payload() for _ in range(5)])
    FORGETTING[how](broker, billing)
    del billing
    if how != "close":
        assert "payload.__del__" in watch.user_code_seen
    gc.collect()
    assert watch.offences == []


def test_overflow_and_bounded_dead_letters_finalize_outside_the_locks(broker: MessageBroker, watch: Watch) -> None:
    payload = payload_class(watch, finalizer=True)
    broker.create_topic("orders")
    broker.subscribe("orders", "billing", max_queue=1)
    for _ in range(50):
        broker.publish_many("orders", [payload() for _ in range(256)])
    assert broker.subscriptions()["orders/billing"].dropped > 0
    assert "payload.__del__" in watch.user_code_seen
    assert watch.offences == []


# -- the watch is watched -------------------------------------------------------------------------


def _broker_after_subscription(broker: MessageBroker, s: EngineSubscription, watch: Watch) -> None:
    with s._lock, broker._engine._lock:
        pass


def _two_subscriptions(broker: MessageBroker, s: EngineSubscription, watch: Watch) -> None:
    other = next(x for x in broker._engine.all_subscriptions() if x is not s)
    with s._lock, other._lock:
        pass


def _waits_under_the_broker_lock(broker: MessageBroker, s: EngineSubscription, watch: Watch) -> None:
    changed = threading.Condition(s._lock)
    with broker._engine._lock, changed:
        changed.wait(0.001)


def _clock_under_a_lock(broker: MessageBroker, s: EngineSubscription, watch: Watch) -> None:
    with s._lock:
        watch.user_code("clock")


def _filter_under_a_subscription_lock(broker: MessageBroker, s: EngineSubscription, watch: Watch) -> None:
    with s._lock:
        TellingFilter(watch)({"type": "created"})


def _subscriber_under_the_broker_lock(broker: MessageBroker, s: EngineSubscription, watch: Watch) -> None:
    with broker._engine._lock:
        watch.user_code("on_message")


OFFENDERS = {
    "the broker lock is wanted under a subscription lock": _broker_after_subscription,
    "two subscription locks are wanted together": _two_subscriptions,
    f"a wait on {SUBSCRIPTION} holds {BROKER}": _waits_under_the_broker_lock,
    f"clock runs under {SUBSCRIPTION}": _clock_under_a_lock,
    f"filter runs under {SUBSCRIPTION}": _filter_under_a_subscription_lock,
    f"on_message runs under {BROKER}": _subscriber_under_the_broker_lock,
}


@pytest.mark.parametrize("offence", OFFENDERS)
def test_a_planted_offender_is_caught(
    broker: MessageBroker, watch: Watch, monkeypatch: pytest.MonkeyPatch, offence: str
) -> None:
    """The same calls, once honest and once with the offence inside one of the engine's methods."""
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    broker.subscribe("orders", "email")
    billing.stats()
    assert watch.offences == []
    honest = EngineSubscription.stats

    def offending(self: EngineSubscription, *arguments: Any, **named: Any) -> Any:
        OFFENDERS[offence](broker, self, watch)
        return honest(self, *arguments, **named)

    monkeypatch.setattr(EngineSubscription, "stats", offending)
    billing.stats()
    assert watch.offences == [offence]


def test_a_cycle_between_locks_of_any_kind_is_caught(watch: Watch) -> None:
    watch.under = {("a", "b"), ("b", "c"), ("c", "c")}
    assert watch.cycles() == []
    watch.under.add(("c", "a"))
    assert ("a", "c") in watch.cycles()
