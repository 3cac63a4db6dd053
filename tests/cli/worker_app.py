"""Handlers and apps for `mpbroker worker`."""

from __future__ import annotations

import time
from pathlib import Path

from mpbroker import App, Delivery, RetryPolicy

app = App()
empty = App()
number = 7


@app.subscriber("orders", group="billing", filter='headers.type = "created"', retry=RetryPolicy(max_attempts=2))
def charge(delivery: Delivery) -> None:
    print("charged", delivery.payload, flush=True)


@app.subscriber("orders")
def ship(delivery: Delivery) -> None:
    print("shipped", delivery.payload, flush=True)


def show(delivery: Delivery) -> None:
    print("got", delivery.payload, flush=True)


def fail(delivery: Delivery) -> None:
    raise ValueError("no such customer")


def wait(delivery: Delivery) -> None:
    """Until the file of the payload is there."""
    print("begins", delivery.payload, flush=True)
    while not Path(delivery.payload).exists():
        time.sleep(0.005)
    print("ends", flush=True)
