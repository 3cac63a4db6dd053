"""What a worker of the demonstration does: take paths, work, publish results, settle.

Owns the loop of a worker process. It uses the public API alone: this is what a user's worker looks like.
"""

from __future__ import annotations

from typing import Final

from mpbroker.api import BrokerAPI
from mpbroker.cli.demo.work import CANNOT_WORK, KINDS
from mpbroker.cli.link import Link
from mpbroker.errors import UnknownSubscription, UnknownTopic

FILES: Final = "files"
RESULTS: Final = "results"
COLLECTOR: Final = "collector"

READY: Final = b"ready"
STANDING: Final = b"standing"
FINISHED: Final = b"finished"
SETTLED: Final = b"settled "
"""Reports of a worker; behind the last one stand the numbers of messages that it settled and that it holds."""

GO: Final = b"go"

BATCH: Final = {"digest": 16, "census": 4}
"""Messages of one poll: enough that calls cost little, few enough that nobody is left with the last big pile."""


def worker(link: Link, broker: BrokerAPI, kind: str, member: str, allowance: int | None) -> None:
    """Work until the subscription ends.

    Results go out before the message is acked: whoever dies in between has it done again, and the results come twice,
    which a reader of results must bear; the other order would lose them.

    Args:
        allowance: how many messages it may settle before it stands still until an order comes, so that it can be
            killed while it holds some; None: all.
    """
    work = KINDS[kind]
    settled = 0
    with broker:
        try:
            subscription = broker.subscription(FILES, kind)
            link.report(READY)
            while True:
                held = subscription.poll(member, max_messages=BATCH[kind], timeout=None)
                results, failed = [], []
                for delivery in held:
                    try:
                        results.append((delivery, (kind, delivery.payload, work(delivery.payload))))
                    except CANNOT_WORK as error:
                        # A file that can't be read or parsed now can't be the next time.
                        failed.append((delivery, error))
                if results:
                    broker.publish_many(RESULTS, [result for _, result in results])
                if allowance is not None and settled + len(held) > allowance:
                    link.report(SETTLED + b"0 %d" % len(held))
                    if not link.has_order():
                        link.report(STANDING)
                    link.order()
                    allowance = None
                acks = subscription.ack_many([delivery.message_id for delivery, _ in results], member)
                rejects = [delivery.reject(error=error) for delivery, error in failed]
                settled += sum(acks) + sum(rejects)
                link.report(SETTLED + b"%d 0" % (sum(acks) + sum(rejects)))
        except (UnknownSubscription, UnknownTopic):
            link.report(FINISHED)
