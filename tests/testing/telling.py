"""Histories written by hand: a run of a few calls, told with times in milliseconds, for tests of the checker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mpbroker.messages import SubscriptionStats
from mpbroker.testing.checker import Verdict, check
from mpbroker.testing.history import (
    Answers,
    Begin,
    Consume,
    Count,
    Delivered,
    Done,
    End,
    Event,
    Fail,
    Fault,
    Figures,
    Info,
    Invoke,
    Leave,
    Letter,
    Letters,
    Look,
    Ok,
    Poll,
    Publish,
    Published,
    Redrive,
    Request,
    Result,
    Settle,
    Stretch,
    Subscribe,
    Target,
    Unsubscribe,
)

MS = 1_000_000
LEASE_S = 30.0


@dataclass(frozen=True)
class Got:
    """A delivery in a poll. number: what the payload claims; by default the right one."""

    sequence: int
    token: int
    attempt: int = 1
    redelivered: bool = False
    priority: int = 1
    number: int | None = None
    publisher: int = 1
    lease_s: float = LEASE_S


@dataclass
class Tale:
    """A run. Message mN is message N - 1 of publisher 1, unless told otherwise.

    Each call takes one millisecond, unless ``until`` says when it was answered.
    """

    limit: int = 3
    retry: tuple[int, float, float, float] | None = None
    filter: str | None = None
    topic: str = "t"
    clients: dict[str, list[Event]] = field(default_factory=dict)
    calls: int = 0
    stops: bool = False

    def __post_init__(self) -> None:
        self.subscribe("s", 0)

    def verdict(self, *, drained: bool = True) -> Verdict:
        histories = [sorted(events, key=lambda event: event.at) for events in self.clients.values()]
        return check(histories, drained=drained, stops=self.stops)

    def laws(self, *, drained: bool = True) -> dict[str, str]:
        """The laws that are broken, by name, and what is said first about each."""
        verdict = self.verdict(drained=drained)
        return {law.name: verdict.of(law)[0].text for law in verdict.by_law}

    # -- calls ---------------------------------------------------------------------------------------------------------

    def subscribe(self, name: str, at: float) -> None:
        settings = Subscribe("t", name, LEASE_S, self.limit, self.retry, 1_000_000, "dead_letter", self.filter)
        self.call("chief", at, settings, Done())

    def publish(
        self,
        sequence: int,
        at: float,
        count: int = 1,
        *,
        until: float | None = None,
        priority: int = 1,
        number: int | None = None,
        headers: dict[str, str] | None = None,
        outcome: str = "ok",
        publisher: int = 1,
    ) -> None:
        first = sequence - 1 if number is None else number
        request = Publish(self.topic, publisher, first, count, priority, headers or {})
        result = Published(sequence, f"i-{sequence}", [])
        self.call(f"publisher {publisher}", at, request, result, until, outcome)

    def poll(
        self,
        client: str,
        at: float,
        *got: Got,
        until: float | None = None,
        timeout: float | None = 0.0,
        outcome: str = "ok",
        headers: dict[str, str] | None = None,
    ) -> None:
        result = _delivered(got, at, headers)
        self.call(client, at, Poll("t/s", client, 10, timeout, None), result, until, outcome)

    def consume(self, client: str, at: float, prefetch: int = 10) -> None:
        self.call(client, at, Consume("begin", "t/s", client, prefetch, None), Done())

    def take(
        self,
        client: str,
        at: float,
        *got: Got,
        granted: float | None = None,
        until: float | None = None,
        timeout: float | None = 0.0,
        outcome: str = "ok",
    ) -> None:
        """granted: when these were fetched, which may be before."""
        result = _delivered(got, at if granted is None else granted, None)
        self.call(client, at, Consume("take", "t/s", client, 10, timeout), result, until, outcome)

    def note(
        self, client: str, at: float, sequence: int, token: int, *, answer: bool = True, outcome: str = "ok"
    ) -> None:
        self.settle(client, at, "note", sequence, token, answer=answer, outcome=outcome)

    def close(self, client: str, at: float, *, until: float | None = None, outcome: str = "ok") -> None:
        self.call(client, at, Consume("close", "t/s", client, 10, None), Done(), until, outcome)

    def settle(
        self,
        client: str,
        at: float,
        verb: str,
        sequence: int,
        token: int = 0,
        *,
        answer: bool = True,
        until: float | None = None,
        outcome: str = "ok",
        seconds: float | None = None,
        error: str = "",
        deadline: float | None = None,
    ) -> None:
        request = Settle("t/s", verb, client, [Target(sequence, token, 1)], seconds, error, None)
        self.call(client, at, request, Answers(bytes([answer]), deadline), until, outcome)

    def ack(self, client: str, at: float, sequence: int, token: int = 0, *, answer: bool = True) -> None:
        self.settle(client, at, "ack", sequence, token, answer=answer)

    def redrive(self, at: float, sequences: Sequence[int] | None = None, count: int = 1) -> None:
        self.call("chief", at, Redrive("t/s", None if sequences is None else [*sequences], None), Count(count))

    def unsubscribe(self, at: float) -> None:
        self.call("chief", at, Unsubscribe("t", "s"), Done())

    def leave(self, client: str, at: float) -> None:
        self.call(client, at, Leave(), Done())

    def figures(self, at: float, **values: int) -> None:
        """Figures; accepted and backlog follow from the rest."""
        zero = dict.fromkeys(SubscriptionStats.__slots__, 0) | values
        if "accepted" not in values:
            zero["accepted"] = sum(zero[name] for name in ("acked", "ready", "delayed", "in_flight", "dead", "dropped"))
        if "backlog" not in values:
            zero["backlog"] = zero["ready"] + zero["delayed"]
        self.call("chief", at, Look("stats", "t/s"), Figures([zero[name] for name in SubscriptionStats.__slots__]))

    def letters(self, at: float, *letters: Letter) -> None:
        self.call("chief", at, Look("dead_letters", "t/s"), Letters([*letters]))

    def end(self, at: float, *letters: Letter, **figures: int) -> None:
        """The final picture."""
        self.letters(at, *letters)
        self.figures(at + 2, dead=len(letters), **figures)

    # -- what is done to clients ---------------------------------------------------------------------------------------

    def fault(self, kind: str, client: str, at: float) -> None:
        self._of("chief").append(Fault(int(at * MS), kind, client))

    def died(self, client: str, at: float) -> None:
        self._of("chief").append(End(int(at * MS), client, died=True))

    # -- how -----------------------------------------------------------------------------------------------------------

    def call(
        self,
        client: str,
        at: float,
        request: Request,
        result: Result,
        until: float | None = None,
        outcome: str = "ok",
    ) -> None:
        """outcome: "ok", "never" answered, or the text of an error: "fail: …" or "info: …"."""
        self.calls += 1
        events = self._of(client)
        events.append(Invoke(int(at * MS), self.calls, request))
        end = int((at + 1 if until is None else until) * MS)
        if outcome == "ok":
            events.append(Ok(end, self.calls, result))
        elif outcome.startswith("fail: "):
            events.append(Fail(end, self.calls, outcome[6:]))
        elif outcome.startswith("info: "):
            events.append(Info(end, self.calls, outcome[6:]))

    def _of(self, client: str) -> list[Event]:
        events = self.clients.get(client)
        if events is None:
            events = self.clients[client] = [Begin(0, client, 1)]
        return events


def _delivered(got: Sequence[Got], at: float, headers: dict[str, str] | None) -> Delivered:
    stretches = [
        Stretch(
            each.sequence,
            each.token,
            1,
            each.publisher,
            each.sequence - 1 if each.number is None else each.number,
            each.attempt,
            each.redelivered,
            each.priority,
            at / 1000 + each.lease_s,
            0,
        )
        for each in got
    ]
    return Delivered(stretches, [headers or {}], f"i-{got[0].sequence}" if got else "", [])


def letter(sequence: int, reason: str = "retries_exhausted", attempts: int = 3, error: str = "") -> Letter:
    return Letter(sequence, reason, attempts, error, "w1", [*range(1, attempts + 1)], 1, sequence - 1)
