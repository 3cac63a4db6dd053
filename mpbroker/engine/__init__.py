"""The broker itself: what every verb does to topics, queues, leases and dead letters.

Pure state: no processes, sockets, files, threads or clock of its own; the time is a number passed in. Imports the
value modules only, and nothing that runs in a client imports it.

    batch          what queues are made of: batches and runs
    ready          ready and delayed copies in exact order
    leases         what is in flight, with all its indices
    letters        dead letters
    places         every move of a copy between those, and the counts
    room           publishes that wait for room
    subscription   one subscription: the lock around them, and who waits
    broker         the engine: topics, ids, fan-out
    invariants     what must hold after every step
"""

from mpbroker.engine.batch import MAX_BATCH, Batch, Content, MessageBatch, Payloads, Run
from mpbroker.engine.broker import Engine, Published
from mpbroker.engine.leases import OFFSET_BITS, Lease
from mpbroker.engine.letters import DeadRecord
from mpbroker.engine.places import FRESH_BYTES, HELD_BYTES
from mpbroker.engine.room import NoRoom, ThreadWaiter, Waiter
from mpbroker.engine.subscription import Subscription

__all__ = [
    "FRESH_BYTES",
    "HELD_BYTES",
    "MAX_BATCH",
    "OFFSET_BITS",
    "Batch",
    "Content",
    "DeadRecord",
    "Engine",
    "Lease",
    "MessageBatch",
    "NoRoom",
    "Payloads",
    "Published",
    "Run",
    "Subscription",
    "ThreadWaiter",
    "Waiter",
]
