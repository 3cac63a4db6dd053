"""The life of a message, told: what every process asked and was answered about it, in time order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mpbroker.testing.checker.clients import LATE_NS
from mpbroker.testing.checker.publishing import Publishing
from mpbroker.testing.history import (
    Answers,
    Begin,
    Consume,
    Delivered,
    End,
    Event,
    Fail,
    Fault,
    Info,
    Invoke,
    Ok,
    Poll,
    Publish,
    Published,
    Purge,
    Redrive,
    Result,
    Settle,
    in_order,
)

LONGEST: Final = 40
"""Lines of one life."""


class Teller:
    """Tells the lives of some messages in one reading.

    Args:
        wanted: subscription ("" for all) and sequence.
    """

    def __init__(self, wanted: Iterable[tuple[str, int]], publishing: Publishing) -> None:
        self._lives: dict[tuple[str, int], list[str]] = {each: [] for each in wanted}
        self._sequences = {sequence for _, sequence in self._lives}
        self._publishing = publishing
        self._names: dict[int, str] = {}
        self._asked: dict[int, Invoke] = {}
        self._holders: dict[str, set[tuple[str, int]]] = {}
        self._last_fault: dict[str, tuple[int, str]] = {}
        self._began: int | None = None

    def tell(self, histories: Iterable[Iterable[Event]]) -> dict[tuple[str, int], tuple[str, ...]]:
        """The lines of each."""
        for number, event in in_order(histories):
            if self._began is None:
                self._began = event.at
            if isinstance(event, Begin):
                self._names[number] = event.client
            elif isinstance(event, Invoke):
                self._asked[number] = event
            elif isinstance(event, (Fault, End)):
                self._struck(event)
            else:
                asked = self._asked.pop(number, None)
                if asked is not None:
                    self._ended(number, asked, event)
        for number, asked in self._asked.items():
            self._ended(number, asked, None)
        return {key: tuple(lines[:LONGEST]) for key, lines in self._lives.items()}

    def _struck(self, event: Fault | End) -> None:
        """A holder is struck, or who was struck just now becomes one."""
        what = f"{event.kind} of" if isinstance(event, Fault) else "end of"
        line = f"{self._since(event.at)} {what} {event.client}"
        self._last_fault[event.client] = (event.at, line)
        for key in self._holders.get(event.client, ()):
            self._lives[key].append(line)
        if isinstance(event, End):
            self._holders.pop(event.client, None)

    def _holds(self, name: str, key: tuple[str, int], at: int) -> None:
        self._holders.setdefault(name, set()).add(key)
        struck, line = self._last_fault.get(name, (0, ""))
        if line and struck + LATE_NS >= at and key in self._lives:
            self._lives[key].append(line)

    def _ended(self, number: int, asked: Invoke, event: Ok | Fail | Info | None) -> None:
        request = asked.request
        result = event.result if isinstance(event, Ok) else None
        said = "never answered" if event is None else "" if isinstance(event, Ok) else event.error
        name = self._names.get(number, f"history {number}")
        at = asked.at if event is None else event.at
        span = self._span(asked.at, None if event is None else event.at)
        if isinstance(request, Publish):
            self._published(name, span, request, result, said)
        elif isinstance(request, Poll):
            self._polled(name, span, request, result, at)
        elif isinstance(request, Consume):
            self._consumed(name, span, request, result, at)
        elif isinstance(request, Settle):
            self._settled(name, span, request, result, said, at)
        elif isinstance(request, (Redrive, Purge)):
            for sequence in self._sequences:
                if request.sequences is None or sequence in request.sequences:
                    what = type(request).__name__.lower()
                    self._add(request.subscription, sequence, f"{span} {name}: {what} {said}".rstrip())

    def _published(self, name: str, span: str, request: Publish, result: Result | None, said: str) -> None:
        # Of a call without an answer the ids are known by what readers saw of it.
        first = result.first if isinstance(result, Published) else self._first_of(request)
        for sequence in self._sequences:
            if first and first <= sequence < first + request.count:
                number = request.number + sequence - first
                text = f"{span} {name}: publish {request.topic}, message {number}, priority {request.priority} {said}"
                self._add("", sequence, text.rstrip())

    def _first_of(self, request: Publish) -> int:
        publishing = self._publishing
        for call in range(1, publishing.calls):
            if publishing.publisher[call] == request.publisher and publishing.number[call] == request.number:
                return publishing.first[call]
        return 0

    def _consumed(self, name: str, span: str, request: Consume, result: Result | None, at: int) -> None:
        if request.step == "close":
            for key in self._holders.pop(name, ()):
                self._add(*key, f"{span} {name}: closed its consumer")
        self._polled(name, span, request, result, at)

    def _polled(self, name: str, span: str, request: Poll | Settle | Consume, result: Result | None, at: int) -> None:
        if not isinstance(result, Delivered):
            return
        subscription, member = request.subscription, request.member
        for stretch in result.stretches:
            for sequence in self._sequences:
                place = sequence - stretch.sequence
                if 0 <= place < stretch.count:
                    again = ", redelivered" if stretch.redelivered else ""
                    if (subscription, sequence) in self._lives:
                        self._holds(name, (subscription, sequence), at)
                    self._add(
                        subscription,
                        sequence,
                        f"{span} {name}: handed to {member}, attempt {stretch.attempt}{again}, token "
                        f"{stretch.token + place}, until {stretch.deadline:.6f}",
                    )

    def _settled(self, name: str, span: str, request: Settle, result: Result | None, said: str, ended: int) -> None:
        at = 0
        for target in request.targets:
            for sequence in self._sequences:
                place = sequence - target.sequence
                if 0 <= place < target.count:
                    answer = said
                    if isinstance(result, Answers) and at + place < len(result.answers):
                        answer = str(bool(result.answers[at + place]))
                    token = f" of token {target.token + place}" if target.token else f" as {request.member}"
                    self._add(request.subscription, sequence, f"{span} {name}: {request.verb}{token}: {answer}")
                    if isinstance(result, Answers) and request.verb != "extend":
                        self._holders.get(name, set()).discard((request.subscription, sequence))
            at += target.count
        if isinstance(result, Delivered):
            self._polled(name, span, request, result, ended)

    def _span(self, asked: int, ended: int | None) -> str:
        return f"{self._since(asked)} to {'...' if ended is None else self._since(ended)}"

    def _since(self, at: int) -> str:
        return f"{(at - (self._began or 0)) / 1e9:.6f}"

    def _add(self, subscription: str, sequence: int, line: str) -> None:
        for (where, which), lines in self._lives.items():
            if which == sequence and (not where or not subscription or where == subscription):
                lines.append(line)
