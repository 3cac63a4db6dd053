"""Many threads at once: every message is acked exactly once, and nobody waits for a slow reader."""

from __future__ import annotations

import threading
from collections import Counter

from mpbroker.api import BrokerAPI
from tests.conformance.support import LIMIT_S, Call, fill, m, numbers, places, together

PUBLISHERS, MESSAGES, WORKERS = 4, 250, 3


def test_every_message_of_four_publishers_is_acked_once_by_three_workers(live: BrokerAPI) -> None:
    live.create_topic("orders")
    group = live.subscribe("orders", "group", ack_timeout=LIMIT_S * 10)
    observer = live.subscribe("orders", "observer")
    total = PUBLISHERS * MESSAGES
    done = threading.Event()
    acked: Counter[str] = Counter()
    lock = threading.Lock()

    def publish(publisher: int) -> int:
        for number in range(MESSAGES):
            live.publish("orders", (publisher, number))
        return MESSAGES

    def work(member: str) -> int:
        finished = 0
        while not done.is_set():
            for delivery in group.poll(member, max_messages=5, timeout=0.05):
                assert delivery.attempt == 1
                assert delivery.ack() is True
                finished += 1
                with lock:
                    acked[delivery.message_id] += 1
                    if len(acked) == total:
                        done.set()
        return finished

    workers = [Call(lambda n=n: work(f"w{n}")) for n in range(WORKERS)]  # type: ignore[misc]
    together([lambda n=n: publish(n) for n in range(PUBLISHERS)])  # type: ignore[misc]
    assert sum(worker.result() for worker in workers) == total
    assert set(acked.values()) == {1}
    assert set(acked) == {m(n) for n in range(1, total + 1)}
    stats = group.stats()
    assert places(stats) == {"acked": total}
    assert (stats.deliveries, stats.redelivered, stats.late_acks) == (total, 0, 0)

    seen = []
    while taken := observer.poll("o", max_messages=300):
        seen += taken
    assert numbers(delivery.message for delivery in seen) == list(range(1, total + 1))
    for publisher in range(PUBLISHERS):
        own = [d.payload[1] for d in seen if d.payload[0] == publisher]
        assert own == list(range(MESSAGES))


def test_a_reader_that_never_acks_holds_up_nobody_else(live: BrokerAPI) -> None:
    live.create_topic("orders")
    stuck = live.subscribe("orders", "stuck", max_queue=10)
    quick = live.subscribe("orders", "quick")
    stuck.poll("w", max_messages=10)
    fill(live, "orders", 50)
    stuck.poll("w", max_messages=10)
    fill(live, "orders", 50)
    taken = quick.poll("w", max_messages=1000)
    assert len(taken) == 100
    assert all(delivery.ack() for delivery in taken)
    assert places(stuck.stats()) == {"in_flight": 10, "dead": 90}


def test_publish_goes_on_while_others_wait_for_messages(live: BrokerAPI) -> None:
    live.create_topic("orders")
    live.create_topic("quiet")
    busy = live.subscribe("orders", "busy")
    quiet = live.subscribe("quiet", "quiet")
    calls = [Call(lambda: quiet.poll("w", timeout=LIMIT_S)) for _ in range(3)]
    fill(live, "orders", 20)
    assert len(busy.poll("w", max_messages=100)) == 20
    assert live.topics()["orders"].published == 20
    fill(live, "quiet", 3)
    assert sorted(d.message_id for call in calls for d in call.result()) == [m(21), m(22), m(23)]
