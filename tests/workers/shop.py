"""Handlers that charge customers; killed at the worst moment, the first time."""

from __future__ import annotations

import os
import signal
import sqlite3

from mpbroker import Delivery
from mpbroker.idempotent import Once


def charge(delivery: Delivery) -> None:
    """Charge a customer in the transaction that records it, and die between the work and the ack."""
    order = delivery.payload

    def work(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO charges VALUES (?, ?)", (order["customer"], order["amount"]))
        if delivery.attempt == 1 and order["dies"] == "before the commit":
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    done = Once(order["database"], scope="charge").run(delivery.message.uid, work)
    if delivery.attempt == 1 and order["dies"] == "before the ack":
        os.kill(os.getpid(), signal.SIGKILL)
    assert done.is_duplicate == (delivery.attempt == 2 and order["dies"] == "before the ack")
