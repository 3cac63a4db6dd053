"""The end of a run: where every accepted copy is, and whether the broker's own figures say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mpbroker.filters import Expression
from mpbroker.messages import DeadLetterReason, SubscriptionStats
from mpbroker.testing.checker.clients import NEVER
from mpbroker.testing.checker.copies import ACKED, EVENTFUL, NOTHING, Copies, Handed, Snapshot
from mpbroker.testing.checker.laws import Law
from mpbroker.testing.checker.lives import Fate, Lives, Way
from mpbroker.testing.checker.publishing import OK, Publishing
from mpbroker.testing.history import Letter

_FIGURES: Final = SubscriptionStats.__slots__
_GROWING: Final = ("accepted", "acked", "dropped", "deliveries", "redelivered", "late_acks", "dead_lettered")
_UNDONE: Final = frozenset({"deliveries", "redelivered"})
_SHOWN: Final = 12

WHOLE_HISTORY: Final = 20
"""Attempts that a history has whatever their errors are; of more it may have the last ones only."""

MAX_LETTERS: Final = 10_000
MAX_FILTER_ERRORS: Final = 100
"""Dead letters of which a subscription keeps so many; beyond that, the oldest or the newest are dropped."""


class Ending:
    """Judges the end of one subscription.

    Args:
        calls: the publishes whose ids are known, in the order of these.
        drained: nothing may be left to do.

    Attributes:
        acked, dead, accepted: copies, as far as they are known for sure.
    """

    def __init__(
        self, copies: Copies, publishing: Publishing, lives: Lives, calls: list[int], *, drained: bool
    ) -> None:
        self._copies = copies
        self._publishing = publishing
        self._lives = lives
        self._calls = calls
        self._drained = drained
        self._accepts = _accepts(copies.settings.filter)
        self._filtered: dict[int, bool | None] = {}
        last = max([copies.active, *(_last_touch(publishing, call, copies) for call in calls[-1:])])
        self._letters = copies.letters if copies.letters is not None and copies.letters.invoked >= last else None
        self._final = final = copies.snapshots[-1] if copies.snapshots else None
        self._figures = (
            None if final is None or final.invoked < last else dict(zip(_FIGURES, final.values, strict=True))
        )
        self._by_sequence: dict[int, Letter] = {}
        self._missing: list[int] = []
        self._unsure = 0
        self._may_accept = 0
        self.accepted = 0
        self.acked = 0
        self.dead = 0

    def judge(self) -> None:
        for letter in () if self._letters is None else self._letters.letters:
            if letter.sequence in self._by_sequence:
                self._found(Law.DEAD, f"m{letter.sequence} is a dead letter twice", letter.sequence)
            self._by_sequence[letter.sequence] = letter
        self.dead = len(self._by_sequence)
        for call in self._calls:
            self._judge_call(call)
        if self._final is None or self._final.ok <= self._copies.ended:
            self._judge_missing()
            self._judge_figures()
        self._judge_snapshots()

    # -- each copy -----------------------------------------------------------------------------------------------------

    def _judge_call(self, call: int) -> None:
        copies, publishing = self._copies, self._publishing
        first = publishing.first[call]
        end = first + publishing.count[call]
        member = self._takes(call)
        state = copies.state[first:end]
        if member is False:
            for sequence in self._handed_over(first, state)[:1]:
                self._found(Law.FILTERED, f"m{sequence} was handed over, and is not for this subscription", sequence)
            for sequence in self._by_sequence.keys() & set(range(first, end)) if self._by_sequence else ():
                self._found(Law.FILTERED, f"m{sequence} is a dead letter, and not for this subscription", sequence)
            return
        if member is None and not self._handed_over(first, state):
            self._may_accept += end - first
            return
        self.accepted += end - first
        if state == b"\x02" * (end - first):
            self.acked += end - first
            for sequence in self._by_sequence.keys() & set(range(first, end)) if self._by_sequence else ():
                self._found(Law.DEAD, f"m{sequence} was acked, and is a dead letter", sequence)
            return
        for sequence in range(first, end):
            self._judge_copy(sequence, publishing.invoked[call])

    def _handed_over(self, first: int, state: bytearray) -> list[int]:
        """Which of some copies were ever handed over; others may have been spoken of."""
        if not any(state):
            return []
        lives = self._copies.lives
        return [
            sequence
            for sequence, kind in enumerate(state, first)
            if kind and (kind != EVENTFUL or any(isinstance(each, Handed) for each in lives[sequence]))
        ]

    def _takes(self, call: int) -> bool | None:
        """Whether a publish is for this subscription; None when it may be."""
        copies, publishing = self._copies, self._publishing
        if publishing.topics[publishing.topic[call]] != copies.settings.topic:
            return False
        if publishing.ended[call] < copies.made_invoked or publishing.invoked[call] > copies.gone:
            return False
        headers = publishing.headers[call]
        if headers not in self._filtered:
            self._filtered[headers] = self._accepts(publishing.known_headers[headers])
        accepts = self._filtered[headers]
        if not accepts:
            return accepts
        return True if publishing.invoked[call] > copies.made and publishing.ended[call] < copies.ended else None

    def _judge_copy(self, sequence: int, published: int) -> None:
        copies = self._copies
        letter = self._by_sequence.get(sequence)
        state = copies.state[sequence] if sequence < len(copies.state) else NOTHING
        if state == ACKED:
            fate, way = Fate.ACKED, None
        elif state == NOTHING:
            fate, way = Fate.OPEN, None
        else:
            copies.life(sequence)
            fate, way = self._lives.judge(sequence, published)
        if fate is Fate.ACKED:
            self.acked += 1
            if letter is not None:
                self._found(Law.DEAD, f"m{sequence} was acked, and is a dead letter", sequence)
        elif letter is not None:
            self._judge_letter(sequence, letter, fate, way, published)
        elif self._letters is None:
            if fate is Fate.OPEN:
                self._missing.append(sequence)
        else:
            self._judge_without_letter(sequence, fate, way, published)

    def _judge_without_letter(self, sequence: int, fate: Fate, way: Way | None, published: int) -> None:
        """A copy that is neither acked for sure nor among the dead letters."""
        copies = self._copies
        since = published if way is None else way.earliest
        if fate is Fate.MAYBE_ACKED or copies.moved(sequence, since, NEVER, "purge"):
            self._unsure += 1
        elif fate is Fate.OPEN or copies.moved(sequence, since, NEVER, "redrive"):
            self._missing.append(sequence)
        elif way is not None and not self._overflowing():
            self._found(Law.DEAD, f"m{sequence} ended by {way.verb}, and is no dead letter", sequence)

    def _judge_letter(self, sequence: int, letter: Letter, fate: Fate, way: Way | None, published: int) -> None:
        copies, limit = self._copies, self._copies.settings.max_deliveries
        handed = [each for each in copies.lives.get(sequence, []) if isinstance(each, Handed)]
        last = max(handed, key=lambda each: each.token) if handed else None
        haunted = bool(copies.haunted(published, NEVER))
        if way is not None and fate in {Fate.REJECTED, Fate.EXHAUSTED}:
            # Nobody was handed it after that, unless it was redriven.
            haunted = haunted and copies.moved(sequence, way.earliest, NEVER, "redrive")
        reason = DeadLetterReason(letter.reason)
        problem = ""
        if reason is DeadLetterReason.RETRIES_EXHAUSTED and letter.attempts != limit:
            problem = f"it is a dead letter after {letter.attempts} attempts of {limit}"
        elif reason in {DeadLetterReason.RETRIES_EXHAUSTED, DeadLetterReason.REJECTED} and not (handed or haunted):
            problem = f"it is a dead letter ({reason}), and was never handed over"
        elif last is not None and not haunted and letter.attempts != last.attempt and reason == "rejected":
            problem = f"it is a dead letter of {letter.attempts} attempts, and its last one was {last.attempt}"
        elif fate is Fate.REJECTED and not haunted and reason is not DeadLetterReason.REJECTED:
            problem = f"it was rejected, and its dead letter says {reason}"
        elif fate is Fate.EXHAUSTED and not haunted and reason is not DeadLetterReason.RETRIES_EXHAUSTED:
            problem = f"its attempts are exhausted, and its dead letter says {reason}"
        elif way is not None and way.error and not haunted and letter.error != way.error:
            problem = f"its dead letter says {letter.error!r}, and it ended with {way.error!r}"
        elif not self._is_whole(letter) and not copies.moved(sequence, published, NEVER, "redrive"):
            # After a redrive numbers begin anew, and the history is kept.
            problem = f"its history has the attempts {letter.attempted}, and it had {letter.attempts}"
        if problem:
            self._found(Law.DEAD, f"m{sequence}: {problem}", sequence)

    @staticmethod
    def _is_whole(letter: Letter) -> bool:
        """Whether its history has its attempts in order: all of them, or the last ones of many."""
        kept = len(letter.attempted)
        if kept < min(letter.attempts, WHOLE_HISTORY):
            return False
        return letter.attempted == list(range(letter.attempts + 1 - kept, letter.attempts + 1))

    def _overflowing(self) -> bool:
        """Whether dead letters may have been pushed out for want of room."""
        figures = self._figures
        return figures is not None and (figures["dead"] >= MAX_LETTERS or figures["filter_errors"] > MAX_FILTER_ERRORS)

    def _purged(self) -> int:
        return sum(move.moved or 0 for move in self._copies.moves if move.verb == "purge")

    # -- what is left --------------------------------------------------------------------------------------------------

    def _judge_missing(self) -> None:
        if self._final is None and self._copies.ended != NEVER:
            return
        figures = self._figures
        left = 0 if figures is None else figures["ready"] + figures["delayed"] + figures["in_flight"]
        if self._drained and figures is not None and left:
            text = ", ".join(f"{figures[name]} {name}" for name in ("ready", "delayed", "in_flight"))
            self._found(Law.ENDED, f"in the end there are {text}: {_ids(self._missing)}", *self._missing[:1])
        if figures is None and not self._drained:
            return
        if self._letters is None and not self._drained:
            return
        if self._overflowing():
            return
        if len(self._missing) > left:
            text = f"{len(self._missing) - left} accepted messages are nowhere; not settled are {_ids(self._missing)}"
            self._found(Law.KEPT, text, self._missing[0])

    # -- the broker's own figures --------------------------------------------------------------------------------------

    def _judge_figures(self) -> None:
        figures = self._figures
        if figures is None:
            return
        copies = self._copies
        sure: dict[str, tuple[int, int]] = {
            "accepted": (self.accepted, self.accepted + self._may_accept),
            "acked": (self.acked, self.acked + self._unsure),
            "late_acks": (copies.refused_acks, copies.refused_acks + copies.unknown_acks),
        }
        if not self._overflowing() and all(move.moved is not None for move in copies.moves):
            sure["dropped"] = (self._purged(), self._purged())
        if self._letters is not None:
            sure["dead"] = (self.dead, self.dead)
        most = self._unseen(0, NEVER)
        sure["deliveries"] = (copies.deliveries, copies.deliveries + most)
        sure["redelivered"] = (copies.redelivered, copies.redelivered + most)
        for name, (least, highest) in sure.items():
            if not least <= figures[name] <= highest:
                wanted = f"{least}" if least == highest else f"{least} to {highest}"
                self._found(Law.FIGURES, f"{name} is {figures[name]}, and should be {wanted}")

    def _unseen(self, since: int, until: int) -> int:
        """How many hand-overs nobody saw between these times, at most."""
        return sum(each.copies for each in self._copies.ghosts if each.invoked <= until and each.until >= since)

    def _judge_snapshots(self) -> None:
        before: list[Snapshot] = []
        for snapshot in sorted(self._copies.snapshots, key=lambda each: each.invoked):
            figures = dict(zip(_FIGURES, snapshot.values, strict=True))
            places = sum(figures[name] for name in ("acked", "ready", "delayed", "in_flight", "dead", "dropped"))
            if figures["accepted"] != places:
                self._found(Law.FIGURES, f"accepted is {figures['accepted']}, and the places hold {places}")
            if figures["backlog"] != figures["ready"] + figures["delayed"]:
                text = f"backlog is {figures['backlog']}, of {figures['ready']} ready and {figures['delayed']} delayed"
                self._found(Law.FIGURES, text)
            if min(snapshot.values) < 0:
                self._found(Law.FIGURES, f"a figure is negative: {figures}")
            earlier = next((each for each in reversed(before) if each.ok < snapshot.invoked), None)
            if earlier is not None:
                then = dict(zip(_FIGURES, earlier.values, strict=True))
                # A poll that is undone was never answered, and is counted no more.
                undone = self._unseen(earlier.invoked, snapshot.ok)
                for name in _GROWING:
                    if figures[name] < then[name] - undone * (name in _UNDONE):
                        self._found(Law.FIGURES, f"{name} went from {then[name]} back to {figures[name]}")
            before.append(snapshot)

    def _found(self, law: Law, text: str, sequence: int = 0) -> None:
        self._copies.found(law, text, sequence)


def _accepts(text: str | None) -> Callable[[Mapping[str, str]], bool | None]:
    """A filter as a predicate; None for what only the broker can tell."""
    if text is None:
        return lambda _: True
    if ":" in text.partition(" ")[0]:
        return lambda _: None
    return Expression(text).predicate


def _last_touch(publishing: Publishing, call: int, copies: Copies) -> int:
    """When the last publish was asked for, if it may be of the subscription's."""
    return publishing.invoked[call] if publishing.state[call] == OK else copies.active


def _ids(sequences: list[int]) -> str:
    more = f" and {len(sequences) - _SHOWN} more" if len(sequences) > _SHOWN else ""
    return ", ".join(f"m{sequence}" for sequence in sequences[:_SHOWN]) + more
