"""Order: first deliveries against publishes, and polls that ended empty or with less than there was."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from mpbroker.testing.checker.copies import EVENTFUL, NOTHING, Copies, Handed
from mpbroker.testing.checker.laws import Law
from mpbroker.testing.checker.polls import Polls
from mpbroker.testing.checker.publishing import OK, Publishing

_PRIORITIES: Final = 4


class Order:
    """Judges the order of one subscription. Tokens are in the order in which the broker handed over."""

    def __init__(self, copies: Copies, publishing: Publishing, polls: Polls, in_id_order: list[int]) -> None:
        """in_id_order: the publishes whose ids are known, in the order of these."""
        self._copies = copies
        self._publishing = publishing
        self._polls = polls
        self._calls = in_id_order
        self._topic = copies.settings.topic

    def judge(self) -> None:
        copies = self._copies
        frontier = [(0, 0)] * _PRIORITIES
        ready: list[list[tuple[int, int, int, int]]] = [[] for _ in range(_PRIORITIES)]
        publishing = self._publishing
        # What overflows and is redriven was not ready from its publish on.
        fits = not copies.moves or copies.settings.max_queue >= len(copies.state)
        for call in self._calls:
            priority = publishing.priority[call]
            last_token = last_poll = last_sequence = last_ok = 0
            for sequence, token, poll in self._firsts(call):
                if self._may_be_late(sequence, call, poll):
                    continue
                if token > frontier[priority][0]:
                    frontier[priority] = (token, sequence)
                else:
                    older = frontier[priority][1]
                    text = f"m{older} was handed over for the first time after m{sequence}, which is newer"
                    copies.found(Law.ORDER, text, older)
                if token > last_token:
                    last_token, last_poll, last_sequence = token, self._polls.invoked[poll], sequence
                    last_ok = self._polls.ok[poll]
            asked = publishing.invoked[call]
            if last_token and publishing.state[call] == OK and fits and not copies.haunted(asked, last_ok):
                ready[priority].append((publishing.ended[call], last_poll, last_token, last_sequence))
        for each in ready:
            each.sort()
        self._judge_empty_polls(ready)
        self._judge_priorities(ready)

    def _firsts(self, call: int) -> Iterator[tuple[int, int, int]]:
        """The first deliveries of a publish's messages: sequence, token and poll; of a stretch with one grant the ends
        stand for all."""
        copies, publishing = self._copies, self._publishing
        first = publishing.first[call]
        end = first + publishing.count[call]
        state = copies.state[first:end]
        if not any(state):
            return
        if EVENTFUL not in state and NOTHING not in state and len(state) == end - first:
            grants = copies.grant_of[first:end]
            grant = grants[0]
            if grants == array("I", [grant]) * (end - first):
                poll, offset = copies.poll_of[grant], copies.offset[grant]
                yield first, first + offset, poll
                if end - 1 > first:
                    yield end - 1, end - 1 + offset, poll
                return
        for sequence in range(first, min(end, len(copies.state))):
            kind = copies.state[sequence]
            if kind == EVENTFUL:
                handed = [each for each in copies.lives[sequence] if isinstance(each, Handed)]
                if not handed:
                    continue
                begun = min(handed, key=lambda each: each.token)
                if not begun.redelivered and begun.attempt == 1:
                    yield sequence, begun.token, copies.poll_of[begun.grant]
            elif kind != NOTHING:
                grant = copies.grant_of[sequence]
                yield sequence, sequence + copies.offset[grant], copies.poll_of[grant]

    def _may_be_late(self, sequence: int, call: int, poll: int) -> bool:
        """A copy may have been in a poll that was undone, or dead since its publish and redriven."""
        copies = self._copies
        if not copies.ghosts and not copies.moves:
            return False
        since, until = self._publishing.invoked[call], self._polls.ok[poll]
        return bool(copies.haunted(since, until)) or copies.moved(sequence, since, until, "redrive")

    def _judge_empty_polls(self, ready: list[list[tuple[int, int, int, int]]]) -> None:
        """Nothing was ready at a time when something was: there before it, and handed over after it."""
        if not self._copies.empty:
            return
        times: list[int] = []
        latest: list[tuple[int, int]] = []
        highest = (0, 0)
        spans = [(published, asked, sequence) for each in ready for published, asked, _, sequence in each]
        for published, asked, sequence in sorted(spans + self._copies.ready):
            highest = max(highest, (asked, sequence))
            times.append(published)
            latest.append(highest)
        for over, ok, invoked in self._copies.empty:
            at = bisect_left(times, over)
            if at and latest[at - 1][0] > ok:
                sequence = latest[at - 1][1]
                text = f"a poll of {(ok - invoked) / 1e9:.6f} s ended with nothing while m{sequence} was ready"
                self._copies.found(Law.WAITING, text, sequence)

    def _judge_priorities(self, ready: list[list[tuple[int, int, int, int]]]) -> None:
        """Nobody gets a message while one of a higher priority is ready."""
        if sum(map(bool, ready)) < 2:
            return
        tables: list[tuple[list[int], list[tuple[int, int]]]] = []
        for each in ready:
            latest: list[tuple[int, int]] = []
            highest = (0, 0)
            for _, _, token, sequence in each:
                highest = max(highest, (token, sequence))
                latest.append(highest)
            tables.append(([entry[0] for entry in each], latest))
        copies, polls = self._copies, self._polls
        for grant in range(1, len(copies.poll_of)):
            if not polls.size[copies.poll_of[grant]]:
                continue
            lowest = copies.priority[grant]
            invoked = polls.invoked[copies.poll_of[grant]]
            token = copies.last_token[grant]
            for priority in range(lowest + 1, _PRIORITIES):
                times, latest = tables[priority]
                at = bisect_left(times, invoked)
                if at and latest[at - 1][0] > token:
                    sequence = latest[at - 1][1]
                    text = f"a message of priority {lowest} was handed over while m{sequence}, of {priority}, was ready"
                    copies.found(Law.ORDER, text, sequence)
                    return


def in_id_order(publishing: Publishing) -> list[int]:
    """The publishes whose ids are known, in the order of their ids."""
    known = [call for call in range(1, publishing.calls) if publishing.first[call] and publishing.count[call]]
    known.sort(key=lambda call: publishing.first[call])
    return known
