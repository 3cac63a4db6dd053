"""The checker itself: hears all histories once, in time order, and gives its verdict.

A call took effect at some time between its beginning and its answer, or, unanswered, perhaps never; everything found
is a contradiction under every choice of these times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from mpbroker.testing.checker.clients import GRACE_NS, NEVER, Client, Clients, Loss
from mpbroker.testing.checker.consumers import Consumers
from mpbroker.testing.checker.copies import Copies, Move, Settled, Snapshot
from mpbroker.testing.checker.ending import Ending
from mpbroker.testing.checker.laws import Findings, Law, Verdict
from mpbroker.testing.checker.lives import Lives
from mpbroker.testing.checker.order import Order, in_id_order
from mpbroker.testing.checker.polls import Ghost, Polls
from mpbroker.testing.checker.publishing import Publishing
from mpbroker.testing.checker.story import Teller
from mpbroker.testing.history import (
    Answers,
    Begin,
    Consume,
    Count,
    Delivered,
    End,
    Event,
    Expire,
    Fail,
    Fault,
    Figures,
    Info,
    Invoke,
    Leave,
    Letters,
    Look,
    Ok,
    Poll,
    Publish,
    Published,
    Purge,
    Redrive,
    Request,
    Result,
    Settle,
    Subscribe,
    Unsubscribe,
    in_order,
)

_EXPLAINED: Final = 30
"""Violations whose messages' lives are told."""


class Judge:
    """Hears one run."""

    def __init__(self, *, stops: bool = True) -> None:
        self.findings: Final = Findings()
        self.clients: Final = Clients()
        self.publishing: Final = Publishing(self.findings)
        self.polls: Final = Polls(stops=stops)
        self.consumers: Final = Consumers(self.polls)
        self.subscriptions: Final[dict[str, Copies]] = {}
        self.ended: Final[list[Copies]] = []
        self.faults: Counter[str] = Counter()
        self.events = 0
        self._calls: dict[int, int] = {}
        self._floors: dict[int, int] = {}
        self._deleted = False
        self._refusing = False
        self._begins: Final[dict[type, Callable[[Client, Invoke], None]]] = {
            Publish: self._publish,
            Poll: self._poll_or_settle,
            Settle: self._poll_or_settle,
            Consume: self._consume,
            Redrive: self._move,
            Purge: self._move,
            Leave: self._leave,
            Unsubscribe: self._unsubscribe,
            Subscribe: self._subscribe,
        }

    # -- hearing -------------------------------------------------------------------------------------------------------

    def hear(self, histories: Iterable[Iterable[Event]]) -> None:
        clients, begins = self.clients, self._begins
        numbered = clients.numbered
        for number, event in in_order(histories):
            self.events += 1
            client = numbered.get(number) or clients.of(number)
            client.last = event.at
            # By far the most events are these two, so they are told apart first, and by their exact types.
            if type(event) is Invoke:
                client.pending = event
                begin = begins.get(type(event.request))
                if begin is not None:
                    begin(client, event)
            elif type(event) is Ok:
                pending = client.pending
                client.pending = None
                if pending is not None and pending.call == event.call:
                    self._answered(client, pending, event)
            else:
                self._else(client, event)
        for client in list(numbered.values()):
            if client.pending is not None:
                self._unanswered(client, client.pending)
        self.consumers.end()

    def _else(self, client: Client, event: Event) -> None:
        if isinstance(event, (Fail, Info)):
            pending = client.pending
            client.pending = None
            if pending is not None and pending.call == event.call:
                self._raised(client, pending, event)
        elif isinstance(event, Begin):
            self.clients.begin(client.number, event.client)
        elif isinstance(event, Fault):
            self.faults[event.kind] += 1
            for struck, loss in self.clients.fault(event):
                self.consumers.struck(struck, loss)
        elif isinstance(event, End):
            self.clients.end(event)

    # -- a call begins -------------------------------------------------------------------------------------------------

    def _publish(self, client: Client, event: Invoke) -> None:
        assert isinstance(event.request, Publish)
        self._calls[client.number] = self.publishing.asked(event.at, event.request)

    def _poll_or_settle(self, client: Client, event: Invoke) -> None:
        assert isinstance(event.request, (Poll, Settle))
        copies = self._of(event.request.subscription)
        copies.active = event.at
        self._floors[client.number] = copies.tokens_floor

    def _consume(self, client: Client, event: Invoke) -> None:
        request = event.request
        assert isinstance(request, Consume)
        copies = self._of(request.subscription)
        copies.active = event.at
        self.consumers.asked(client, copies, event, request)

    def _move(self, _: Client, event: Invoke) -> None:
        assert isinstance(event.request, (Redrive, Purge))
        self._of(event.request.subscription).active = event.at

    def _leave(self, client: Client, event: Invoke) -> None:
        client.losses.append(Loss(event.at, event.at, counted=False, what="close"))

    def _unsubscribe(self, _: Client, event: Invoke) -> None:
        assert isinstance(event.request, Unsubscribe)
        self._deleted = True
        for copies in self._meant(event.request):
            copies.ended = min(copies.ended, event.at)

    def _subscribe(self, _: Client, event: Invoke) -> None:
        request = event.request
        assert isinstance(request, Subscribe)
        name = f"{request.topic}/{request.name}"
        there = self.subscriptions.get(name)
        if there is not None and there.ended != NEVER:
            self.ended.append(there)
            there = None
        if there is None:
            self.subscriptions[name] = Copies(name, request, event.at, self.findings, self.polls)
            self._refusing |= request.overflow in ("reject", "wait")

    # -- and is answered -----------------------------------------------------------------------------------------------

    def _answered(self, client: Client, asked: Invoke, event: Ok) -> None:
        request, result, at = asked.request, event.result, event.at
        if isinstance(result, Delivered):
            if isinstance(request, Poll):
                self._polled(client, asked, request, at, result)
            elif isinstance(request, Consume):
                self._taken(client, asked.at, request, at, result)
            elif isinstance(request, Settle):
                self._retried(client, asked, request, at, result)
        elif isinstance(result, Answers):
            assert isinstance(request, Settle)
            copies = self._of(request.subscription)
            copies.active = max(copies.active, at)
            if request.verb == "note":
                self.consumers.noted(client, asked.at, at, request, result.answers)
            else:
                copies.settled(client.number, asked.at, at, request, result)
        elif isinstance(result, Published):
            self.publishing.answered(self._calls.pop(client.number), at, result)
        elif isinstance(request, (Redrive, Purge)) and isinstance(result, Count):
            self._moved(asked.at, at, request, result.value)
        elif isinstance(request, Look):
            self._looked(asked.at, at, request, result)
        else:
            self._began_or_ended(client, request, at)

    def _looked(self, invoked: int, at: int, request: Look, result: Result) -> None:
        copies = self._of(request.subscription)
        if isinstance(result, Figures):
            copies.snapshots.append(Snapshot(invoked, at, result.values))
        elif isinstance(result, Letters):
            copies.letters = Snapshot(invoked, at, letters=result.letters)
            for letter in result.letters:
                self.publishing.letter(copies.subscription_id, letter)

    def _began_or_ended(self, client: Client, request: Request, at: int) -> None:
        if isinstance(request, Subscribe):
            copies = self._of(f"{request.topic}/{request.name}")
            copies.made = min(copies.made, at)
        elif isinstance(request, Unsubscribe):
            for copies in self._meant(request):
                copies.gone = min(copies.gone, at)
        elif isinstance(request, Consume) and request.step == "close":
            copies = self._of(request.subscription)
            copies.active = max(copies.active, at)
            self.consumers.closed(client, at)

    def _polled(self, client: Client, asked: Invoke, request: Poll, at: int, result: Delivered) -> None:
        copies = self._of(request.subscription)
        copies.active = max(copies.active, at)
        if not result.stretches:
            copies.found_empty(asked.at, at, request.timeout)
            return
        size = sum(stretch.count for stretch in result.stretches)
        poll = self.polls.add(asked.at, at, client.number, request.member, size)
        self._seen(copies, request.member, result)
        copies.delivered(poll, result.stretches, self._floors.get(client.number, 0), request.now)

    def _taken(self, client: Client, asked: int, request: Consume, at: int, result: Delivered) -> None:
        copies = self._of(request.subscription)
        copies.active = max(copies.active, at)
        self._seen(copies, request.member, result)
        self.consumers.taken(client, asked, at, request.timeout, result)

    def _seen(self, copies: Copies, member: str, result: Delivered) -> None:
        """What deliveries say of themselves."""
        topic = copies.settings.topic
        publishing, where = self.publishing, copies.subscription_id
        for stretch in result.stretches:
            publishing.claim(where, topic, stretch, result.headers[stretch.headers])
        for sequence, problem in result.wrong:
            text = f"m{sequence} came to {member} otherwise than published: {problem}"
            copies.found(Law.GENUINE, text, sequence)
        if result.uid:
            publishing.uid(result.uid)

    def _retried(self, client: Client, asked: Invoke, request: Settle, at: int, result: Delivered) -> None:
        copies = self._of(request.subscription)
        copies.active = max(copies.active, at)
        (target,) = request.targets
        # Without a next attempt it is a dead letter now, or was not held.
        answer = True if result.stretches else None
        copies.life(target.sequence).append(
            Settled("retry", target.token, request.member, client.number, asked.at, at, answer, error=request.error)
        )
        if result.stretches:
            # It takes nothing from the queue. Whose it was gives it back as well.
            consumer = copies.consumer_of(target.sequence, target.token)
            poll = self.polls.add(asked.at, at, client.number, request.member, 0, consumer)
            self._seen(copies, request.member, result)
            copies.delivered(poll, result.stretches, self._floors.get(client.number, 0), request.now)

    def _moved(self, invoked: int, at: int, request: Redrive | Purge, count: int | None) -> None:
        copies = self._of(request.subscription)
        copies.active = max(copies.active, at if at != NEVER else invoked)
        sequences = None if request.sequences is None else frozenset(request.sequences)
        verb = "redrive" if isinstance(request, Redrive) else "purge"
        copies.moves.append(Move(verb, invoked, at, sequences, count))
        if count is not None and sequences is not None and count > len(sequences):
            copies.found(Law.FIGURES, f"a {verb} of {len(sequences)} messages was about {count}")

    def _raised(self, client: Client, asked: Invoke, event: Fail | Info) -> None:
        request = asked.request
        nothing = isinstance(event, Fail)
        if not self._may_fail(client, event):
            text = f"{client.name} was left alone, and its {type(request).__name__.lower()} failed: {event.error}"
            where, sequence = _about(request)
            self.findings.add(Law.INNOCENT, text, where, sequence)
        if isinstance(request, Publish):
            call = self._calls.pop(client.number)
            if nothing:
                self.publishing.failed(call)
        elif isinstance(request, Consume):
            self.consumers.failed(client, request.step, event.at)
        elif not nothing:
            self._open(client, asked, event.at + GRACE_NS)

    def _unanswered(self, client: Client, asked: Invoke) -> None:
        """The history ends in a call."""
        if client.excused is None:
            text = f"a {type(asked.request).__name__.lower()} of {client.name} was never answered"
            self.findings.add(Law.ENDED, text, *_about(asked.request))
        until = NEVER if client.ended is None else client.ended + GRACE_NS
        self._open(client, asked, until)

    def _open(self, client: Client, asked: Invoke, until: int) -> None:
        """Nobody knows what became of a call, which was over by a time."""
        request = asked.request
        if isinstance(request, Poll):
            self._of(request.subscription).ghosts.append(Ghost(asked.at, until))
        elif isinstance(request, Settle) and request.verb == "note":
            self.consumers.unanswered(client, asked, until)
        elif isinstance(request, Settle):
            copies = self._of(request.subscription)
            copies.settled(client.number, asked.at, until, request, None)
            if request.verb == "retry":
                copies.ghosts.append(Ghost(asked.at, until))
        elif isinstance(request, (Redrive, Purge)):
            self._moved(asked.at, NEVER, request, None)

    def _may_fail(self, client: Client, event: Fail | Info) -> bool:
        """Whether a client may see an error: it was struck, or the error is what the run asked for."""
        if client.excused is not None and client.excused <= event.at:
            return True
        if client.is_late(event.error, event.at):
            return True
        if not isinstance(event, Fail):
            return False
        kind = event.error.partition(":")[0]
        if kind in {"QueueFull", "BrokerFull"}:
            return self._refusing
        return kind in {"UnknownSubscription", "UnknownTopic"} and self._deleted

    def _of(self, subscription_id: str) -> Copies:
        copies = self.subscriptions.get(subscription_id)
        if copies is None:
            raise ValueError(f"the histories do not say how {subscription_id!r} was subscribed")
        return copies

    def _meant(self, request: Unsubscribe) -> list[Copies]:
        name = f"{request.topic}/{request.name}"
        return [
            copies
            for key, copies in self.subscriptions.items()
            if key == name or (not request.name and copies.settings.topic == request.topic)
        ]

    # -- the verdict ---------------------------------------------------------------------------------------------------

    def verdict(self, *, drained: bool) -> Verdict:
        calls = in_id_order(self.publishing)
        verdict = Verdict(events=self.events, clients=len(self.clients.numbered), faults=self.faults)
        for copies in (*self.ended, *self.subscriptions.values()):
            lives = Lives(copies, self.polls, self.clients)
            ending = Ending(copies, self.publishing, lives, calls, drained=drained)
            ending.judge()
            Order(copies, self.publishing, self.polls, calls).judge()
            verdict.copies += ending.accepted
            verdict.acked += ending.acked
            verdict.dead += ending.dead
            verdict.deliveries += copies.deliveries
        verdict.messages = self.publishing.total()
        verdict.unknown = self.publishing.unknown()
        verdict.violations = self.findings.named
        verdict.by_law = self.findings.by_law
        return verdict


def check(histories: Sequence[Iterable[Event]], *, drained: bool = True, stops: bool = True) -> Verdict:
    """Judge the histories of a run.

    The final picture is what the histories end with: a look at the figures and the dead letters of each subscription
    after everything else. Without it nobody can tell a lost message from one that waits.

    Args:
        histories: all of them, each in its order; read a second time where something is wrong, so no iterators.
        drained: whether in the end nothing may be left ready, delayed or in flight.
        stops: whether the broker is a process, which can be stopped or get no processor: that time is not in its
            clock, so its leases may end later by the host's. Without, leases are exact.

    Raises:
        ValueError: something was asked of a subscription that no history subscribes.
    """
    judge = Judge(stops=stops)
    judge.hear(histories)
    verdict = judge.verdict(drained=drained)
    explained = [each for each in verdict.violations if each.sequence][:_EXPLAINED]
    if explained:
        wanted = {(each.subscription, each.sequence) for each in explained}
        lives = Teller(wanted, judge.publishing).tell(histories)
        verdict.violations = [
            replace(each, life=lives.get((each.subscription, each.sequence), ())) for each in verdict.violations
        ]
    return verdict


def _about(request: object) -> tuple[str, int]:
    """The copy that a call is about, if it is one."""
    if isinstance(request, Settle) and request.targets:
        return request.subscription, request.targets[0].sequence
    if isinstance(request, (Poll, Redrive, Purge, Look, Expire, Consume)):
        return request.subscription, 0
    return "", 0
