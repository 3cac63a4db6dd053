"""A message that comes twice is worked on once."""

from __future__ import annotations

import pickle
import sqlite3
import threading
from pathlib import Path

import pytest

from mpbroker import Delivery, MessageBroker
from mpbroker.idempotent import Once, idempotent
from tests.workers import shop
from tests.workers.support import LIMIT_S, bench


def test_a_customer_is_charged_once_wherever_the_worker_dies(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE charges (customer TEXT, amount INTEGER)")
    with bench(tmp_path) as b:
        for number, dies in enumerate(["never", "before the ack", "before the commit"] * 3):
            payload = {"customer": f"c{number}", "amount": 7, "dies": dies, "database": str(database)}
            b.broker.publish("jobs", payload)
        with b.pool(shop.charge, processes=2, burst=True) as pool:
            assert pool.wait(LIMIT_S)
            stats = pool.stats()
        assert (stats.done, stats.failed, stats.died) == (9, 0, 6)
        assert b.jobs.stats().acked == 9
    charged = sorted(connection.execute("SELECT customer, amount FROM charges"))
    connection.close()
    assert charged == [(f"c{number}", 7) for number in range(9)]


def test_a_duplicate_gets_the_recorded_result(tmp_path: Path) -> None:
    once = Once(tmp_path / "done.db")
    first = once.run("u1", lambda _: {"total": 3})
    second = once.run("u1", lambda _: pytest.fail("worked on twice"))
    assert (first.result, first.is_duplicate) == ({"total": 3}, False)
    assert (second.result, second.is_duplicate) == ({"total": 3}, True)
    assert once.run("u2", lambda _: None).is_duplicate is False
    assert Once(tmp_path / "done.db", scope="other").run("u1", lambda _: 4).result == 4
    once.close()


def test_what_fails_is_not_recorded_and_undoes_what_was_done_with_the_connection(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "mine.db")
    connection.execute("CREATE TABLE charges (customer TEXT)")
    once = Once(connection)

    def fail(own: sqlite3.Connection) -> None:
        own.execute("INSERT INTO charges VALUES ('a')")
        raise OSError("the bank is closed")

    with pytest.raises(OSError, match="the bank is closed"):
        once.run("u1", fail)
    with pytest.raises(TypeError, match="pickle"):
        once.run("u1", lambda own: (own.execute("INSERT INTO charges VALUES ('b')"), threading.Lock()))
    assert connection.execute("SELECT * FROM charges").fetchall() == []
    done = once.run("u1", lambda own: own.execute("INSERT INTO charges VALUES ('c')").rowcount)
    assert (done.result, done.is_duplicate) == (1, False)
    assert connection.execute("SELECT * FROM charges").fetchall() == [("c",)]
    connection.close()


def test_a_connection_with_an_open_transaction_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "mine.db")
    connection.execute("CREATE TABLE t (x)")
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.ProgrammingError, match="commit it first"):
        Once(connection).run("u1", lambda _: None)
    connection.close()


def test_duplicates_at_the_same_time_work_once(tmp_path: Path) -> None:
    once = Once(tmp_path / "done.db")
    calls: list[int] = []
    results: list[int] = []
    start = threading.Barrier(8)

    def work(_: sqlite3.Connection) -> int:
        calls.append(1)
        return len(calls)

    def go() -> None:
        start.wait(LIMIT_S)
        results.append(once.run("u1", work).result)
        once.close()

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert (calls, results) == ([1], [1] * 8)


def test_a_handler_is_made_idempotent_by_a_decorator(tmp_path: Path) -> None:
    calls = []

    @idempotent(tmp_path / "done.db")
    def handle(delivery: Delivery, connection: sqlite3.Connection) -> int:
        calls.append(delivery.attempt)
        return len(calls)

    with MessageBroker() as broker:
        broker.create_topic("t")
        subscription = broker.subscribe("t", "s")
        broker.publish("t", 1)
        (first,) = subscription.poll("w")
        assert handle(first) == 1
        first.nack()
        (second,) = subscription.poll("w")
        assert handle(second) == 1
    assert calls == [1]
    handle.once.close()  # type: ignore[attr-defined]


def test_old_records_can_be_forgotten(tmp_path: Path) -> None:
    once = Once(tmp_path / "done.db")
    once.run("u1", lambda _: 1)
    assert once.forget(3600.0) == 0
    assert once.forget(0.0) == 1
    assert once.run("u1", lambda _: 2).result == 2
    once.close()


def test_it_goes_to_other_processes_by_its_path(tmp_path: Path) -> None:
    once = Once(tmp_path / "done.db", scope="s")
    once.run("u1", lambda _: 1)
    copy = pickle.loads(pickle.dumps(once))
    assert copy.run("u1", lambda _: 2).result == 1
    copy.close()
    once.close()
    connection = sqlite3.connect(":memory:")
    with pytest.raises(TypeError, match="give the path"):
        pickle.dumps(Once(connection))
    connection.close()
