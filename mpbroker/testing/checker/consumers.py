"""Consumers: what is known of polls that nobody saw, from what came out of them.

A consumer fetches while its caller works. Its fetches are told apart by the ends of their leases, as one poll has one
time; that time is known from the lease, and by the first take that had one of them they were over. What it took note of
is with the broker once its close was answered. What it has fetched and not yielded is a ghost: at its close, which
gives it back, and where it is struck; at no other time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from mpbroker.testing.checker.clients import GRACE_NS, NEVER, Client, Loss
from mpbroker.testing.checker.copies import TOLERANCE_S, Copies
from mpbroker.testing.checker.laws import Law
from mpbroker.testing.checker.polls import Closing, Ghost, Polls
from mpbroker.testing.history import Consume, Delivered, Invoke, Settle, Stretch, Target


@dataclass(slots=True, eq=False)
class Consumer:
    """One, until its end.

    Attributes:
        number: among the consumers of Polls.
        since: what it has and did not yield it was handed after that.
        is_idle: it has nothing, and has asked for nothing.
        poll, deadline, place: of its latest fetch: its number, the end of its lease, where the last one of it stood.
        notes: acks whose outcome is not known: when they were noted, and what; noted: how many there ever were.
    """

    client: Client
    copies: Copies
    member: str
    prefetch: int
    number: int
    closing: Closing
    began: int
    since: int
    is_idle: bool = True
    poll: int = 0
    deadline: float = -inf
    place: tuple[int, int] = (-4, 0)
    last_token: int = 0
    noted: int = 0
    notes: list[tuple[int, Target]] = field(default_factory=list)


class Consumers:
    """All of them; at most one a client at a time."""

    def __init__(self, polls: Polls) -> None:
        self._polls = polls
        self._open: dict[int, Consumer] = {}

    # -- told in time order --------------------------------------------------------------------------------------------

    def asked(self, client: Client, copies: Copies, event: Invoke, request: Consume) -> None:
        """A step begins."""
        if request.step == "begin":
            if client.number in self._open:
                self.failed(client, "close", event.at)  # the one before was let go of, without a word
            closing, consumers = Closing(), self._polls.consumers
            consumers.append(closing)
            self._open[client.number] = Consumer(
                client, copies, request.member, request.prefetch, len(consumers) - 1, closing, event.at, event.at
            )
            for loss in client.losses_since(event.at):
                self._haunt(self._open[client.number], loss.until, event.at)
        elif request.step == "close":
            self._of(client).closing.asked = event.at

    def taken(self, client: Client, asked: int, at: int, timeout: float | None, result: Delivered) -> None:
        """A take was answered."""
        consumer = self._of(client)
        copies = consumer.copies
        if not result.stretches:
            if timeout is not None:
                # A poll that was out before may have ended by itself while nobody looked.
                copies.found_empty(asked, at, timeout, None if consumer.is_idle else consumer.since)
            consumer.is_idle = True
            consumer.since = at
        for deadline, stretches in groupby(result.stretches, lambda each: each.deadline):
            self._fetched(consumer, at, deadline, list(stretches))

    def _fetched(self, consumer: Consumer, at: int, deadline: float, stretches: list[Stretch]) -> None:
        """Some of one fetch."""
        polls, copies = self._polls, consumer.copies
        count = sum(stretch.count for stretch in stretches)
        if deadline == consumer.deadline:
            polls.size[consumer.poll] += count
        else:
            granted = self._granted(consumer, at, deadline, stretches[0].sequence)
            consumer.poll = polls.add(granted, at, consumer.client.number, consumer.member, count, consumer.number)
            consumer.deadline, consumer.since, consumer.place = deadline, granted, (-4, 0)
            consumer.is_idle = False
        for stretch in stretches:
            if stretch.token <= consumer.last_token:
                text = f"m{stretch.sequence} was yielded with token {stretch.token}, after token {consumer.last_token}"
                copies.found(Law.TOKENS, text, stretch.sequence)
            consumer.last_token = stretch.token + stretch.count - 1
        floor = copies.floor_at(polls.invoked[consumer.poll])
        consumer.place = copies.delivered(consumer.poll, stretches, floor, before=consumer.place)

    def _granted(self, consumer: Consumer, at: int, deadline: float, sequence: int) -> int:
        """When a fetch was served at the earliest. The broker's clock may be behind, never ahead."""
        copies, lease = consumer.copies, consumer.copies.settings.ack_timeout
        earliest, latest = consumer.since / 1e9 + lease - TOLERANCE_S, at / 1e9 + lease + TOLERANCE_S
        if deadline < consumer.deadline or not self._polls.may_be_late(deadline, earliest, latest):
            copies.found_time(sequence, deadline, max(earliest, consumer.deadline), latest)
        return consumer.since if deadline == inf else max(consumer.since, int((deadline - lease - TOLERANCE_S) * 1e9))

    def noted(self, client: Client, asked: int, at: int, request: Settle, answers: bytes) -> None:
        """It took note of acks, or did not."""
        consumer = self._of(client)
        place = 0
        for target in request.targets:
            said = answers[place : place + target.count]
            place += target.count
            if all(said):
                consumer.notes.append((asked, target))
                consumer.noted += target.count
                continue
            for index, answer in enumerate(said):
                sequence, token = target.sequence + index, target.token + index
                if answer:
                    consumer.notes.append((asked, Target(sequence, token, 1)))
                    consumer.noted += 1
                else:
                    consumer.copies.not_noted(client.number, asked, at, request.member, sequence, token)

    def closed(self, client: Client, at: int) -> None:
        """A close was answered: the broker has had all acks, and has the rest back."""
        consumer = self._open.pop(client.number, None)
        if consumer is None:
            return
        consumer.closing.ok = at
        kept = not any(loss.at < at and loss.until >= consumer.began for loss in client.losses)
        self._know(consumer, at, sent=True, kept=kept)
        # Its leases may have ended before.
        self._haunt(consumer, at, at, counted=at - consumer.since >= consumer.copies.settings.ack_timeout * 1e9)

    def failed(self, client: Client, step: str, at: int) -> None:
        """A step raised: what it held may be lost, and the acks."""
        consumer = self._open.get(client.number)
        if consumer is None:
            return
        self._know(consumer, at + GRACE_NS)
        self._haunt(consumer, at + GRACE_NS, at)
        if step == "close":
            del self._open[client.number]

    def unanswered(self, client: Client, asked: Invoke, until: int) -> None:
        """The history ends in a note."""
        consumer, request = self._open.get(client.number), asked.request
        if consumer is not None and isinstance(request, Settle):
            consumer.notes += [(asked.at, target) for target in request.targets]
            consumer.noted += sum(target.count for target in request.targets)
            self._know(consumer, until)

    def struck(self, client: Client, loss: Loss) -> None:
        """Something is about to be done to a client, and it may survive."""
        consumer = self._open.get(client.number)
        if consumer is not None and loss.until != NEVER:
            self._haunt(consumer, loss.until, loss.at)

    def end(self) -> None:
        """All histories are over."""
        for consumer in self._open.values():
            ended = consumer.client.ended
            self._know(consumer, NEVER if ended is None else ended + GRACE_NS)
            self._haunt(consumer, NEVER if ended is None else ended + GRACE_NS, ended)
        self._open.clear()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _know(self, consumer: Consumer, at: int, *, sent: bool = False, kept: bool = False) -> None:
        """What is known at a time of the acks that were noted."""
        client, copies = consumer.client, consumer.copies
        for asked, target in consumer.notes:
            copies.noted(client.number, asked, at, consumer.member, target, sent=sent, kept=kept)
        consumer.notes.clear()
        # Where a connection breaks they are sent again, and are late.
        breaks = sum(consumer.began <= loss.until and loss.at <= at for loss in client.losses if loss.until != NEVER)
        copies.unknown_acks += breaks * consumer.noted

    def _haunt(self, consumer: Consumer, until: int, ended: int | None = None, *, counted: bool = True) -> None:
        """It may have been handed what it never yielded. ended: since when no lease of those ended by itself."""
        lease_ns = consumer.copies.settings.ack_timeout * 1e9
        leases = 1 + int(((until if ended is None else ended) - consumer.since) / lease_ns)
        attempts = min(leases, consumer.copies.settings.max_deliveries) if counted else 0
        copies = consumer.prefetch * leases
        consumer.copies.ghosts.append(Ghost(consumer.since, max(until, consumer.since), attempts, copies))

    def _of(self, client: Client) -> Consumer:
        consumer = self._open.get(client.number)
        if consumer is None:
            raise ValueError(f"the histories do not say how a consumer of {client.name} began")
        return consumer
