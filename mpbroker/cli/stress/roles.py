"""What the processes of a stress run do: publish, work in a group, observe.

Owns the loops. They use the public API alone, recorded, and run as well in threads over a broker in one process. Nobody
here judges: what each asked and was answered is in its history.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from mpbroker.api import BrokerAPI
from mpbroker.cli.link import Link
from mpbroker.cli.stress.plan import Plan, priority_of
from mpbroker.cli.stress.records import Answered, Finished, Published, Ready, Standing, Taken, Waited, encode
from mpbroker.errors import QueueFull, UnknownSubscription, UnknownTopic
from mpbroker.messages import MessagePriority
from mpbroker.testing.history import Recorder
from mpbroker.testing.payloads import Payloads
from mpbroker.testing.recorded import RecordedBroker

TOPIC: Final = "stress"
OBSERVER: Final = "observer"

_PAUSE_S: Final = 0.01
"""A publisher's wait for room in a full subscription: many calls of a reader, and no load."""


def recorded(broker: BrokerAPI, recorder: Recorder, plan: Plan, publisher: int = 0) -> RecordedBroker:
    """A broker as a process of a run uses it."""
    return RecordedBroker(broker, recorder, Payloads(plan.payload_bytes, plan.seed), publisher)


def publisher(link: Link, broker: BrokerAPI, plan: Plan, history: Path, name: str, publisher: int) -> None:
    """Publish this publisher's messages, in the order of their numbers."""
    with broker, Recorder.in_file(history, name) as recorder:
        own = recorded(broker, recorder, plan, publisher)
        link.report(encode(Ready()))
        link.order()
        waits = 0
        try:
            while own.number < plan.messages:
                level = MessagePriority(priority_of(plan, publisher, own.number))
                count = min(plan.batch, plan.messages - own.number)
                try:
                    if plan.batch == 1:
                        own.publish(TOPIC, priority=level)
                    else:
                        own.publish_many(TOPIC, count, priority=level)
                except QueueFull:
                    waits += 1
                    time.sleep(_PAUSE_S)
                    continue
                link.report(encode(Published(count)))
        except UnknownTopic:
            pass  # the run was called off
        link.report(encode(Waited(waits)))
        link.report(encode(Finished()))


def worker(
    link: Link, broker: BrokerAPI, plan: Plan, history: Path, name: str, group: str, allowance: int | None
) -> None:
    """Poll, look, ack, until the subscription ends.

    Args:
        allowance: how many messages it may ack before it must stand still until an order comes, so that whoever wants
            to kill it finds it holding messages; None: all.
    """
    acked = 0
    with broker, Recorder.in_file(history, name) as recorder:
        try:
            subscription = recorded(broker, recorder, plan).subscription(TOPIC, group)
            link.report(encode(Ready()))
            while True:
                held = subscription.poll(name, max_messages=plan.batch, timeout=None)
                link.report(encode(Taken(len(held))))
                if allowance is not None and acked + len(held) > allowance:
                    if not link.has_order():
                        link.report(encode(Standing()))
                    link.order()
                    allowance = None
                if len(held) == 1:
                    answers = [subscription.ack_delivery(held[0])]
                else:
                    answers = subscription.ack_many([each.message_id for each in held], name)
                acked += len(held)
                link.report(encode(Answered(sum(answers), time.monotonic_ns())))
        except (UnknownSubscription, UnknownTopic):
            # Also when it comes in the place of a killed one, and the others were done before it was there.
            link.report(encode(Finished()))


def observer(link: Link, broker: BrokerAPI, plan: Plan, history: Path) -> None:
    """See every message of a subscription of its own, until that ends."""
    worker(link, broker, plan, history, OBSERVER, OBSERVER, None)
