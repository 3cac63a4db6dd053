"""Sending and reading without a round trip a message: Publisher and Consumer.

    batches     what a publisher sends in one: payloads, their headers, their answer; Receipt
    filling     the way of a message into the batch under way; compiled in the compiled build
    publisher   Publisher: which batches are open, sent, confirmed; bounds, errors
    consumer    Consumer: what was fetched, and what was yielded
    settling    what the caller holds, and its acks
    tending     the thread that sends what waits too long, and what happens at fork and exit

Both are the same over every kind of broker: how bytes get there is a Wire. Imports the value modules; imported by api,
and by what implements it.
"""

from mpbroker.pipeline.batches import Answer, Batch, Receipt
from mpbroker.pipeline.consumer import Consumer, FetchWire, Run
from mpbroker.pipeline.publisher import Publisher, PublishOptions, PublishWire
from mpbroker.pipeline.settling import Settler, SettleWire

__all__ = [
    "Answer",
    "Batch",
    "Consumer",
    "FetchWire",
    "PublishOptions",
    "PublishWire",
    "Publisher",
    "Receipt",
    "Run",
    "SettleWire",
    "Settler",
]
