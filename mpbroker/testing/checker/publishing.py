"""What was published: every call, the ids it got, and who claims which id.

Owns the laws of ids and of genuine messages. A publish whose outcome is unknown gets its ids from the first delivery
that claims to be of it. Some bytes a call and four a message, in flat arrays.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from mpbroker.testing.checker.clients import NEVER
from mpbroker.testing.checker.laws import Findings, Law
from mpbroker.testing.history import NOBODY, Letter, Publish, Published, Stretch

OPEN: Final = 0
OK: Final = 1
FAILED: Final = 2
MAX_SEQUENCE: Final = 2**32
"""What no run of the checker's size reaches: an id beyond it is nobody's."""


class Publishing:
    """Calls are numbered from 1; column 0 of every array is nobody's.

    Attributes:
        call_of: by sequence, the call it came from, or 0.
        first: of its sequences, or 0 while they are not known.
        ended: when it was answered; NEVER while it was not.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.call_of = array("I", [0])
        self.state = bytearray(1)
        self.invoked = array("q", [0])
        self.ended = array("q", [NEVER])
        self.first = array("q", [0])
        self.count = array("I", [0])
        self.number = array("Q", [0])
        self.publisher = array("I", [0])
        self.priority = bytearray(1)
        self.topic = array("H", [0])
        self.headers = array("I", [0])
        self._floor = array("q", [0])
        self._highest = 0
        self._calls_of: dict[int, array[int]] = {}
        self._numbers_of: dict[int, array[int]] = {}
        self.topics: list[str] = []
        self._topic_index: dict[str, int] = {}
        self.known_headers: list[dict[str, str]] = []
        self._headers_index: dict[tuple[tuple[str, str], ...], int] = {}
        self._incarnation = ""

    @property
    def calls(self) -> int:
        """How many there are, with nobody's."""
        return len(self.state)

    # -- told in time order --------------------------------------------------------------------------------------------

    def asked(self, at: int, request: Publish) -> int:
        """A publish begins; its number here."""
        call = len(self.state)
        self.state.append(OPEN)
        self.invoked.append(at)
        self.ended.append(NEVER)
        self.first.append(0)
        self.count.append(request.count)
        self.number.append(request.number)
        self.publisher.append(request.publisher)
        self.priority.append(request.priority)
        self.topic.append(self._topic(request.topic))
        self.headers.append(self._headers(request.headers))
        self._floor.append(self._highest)
        numbers = self._numbers_of.get(request.publisher)
        if numbers is None:
            numbers = self._numbers_of[request.publisher] = array("Q")
            self._calls_of[request.publisher] = array("I")
        numbers.append(request.number)
        self._calls_of[request.publisher].append(call)
        return call

    def answered(self, call: int, at: int, result: Published) -> None:
        """It was done."""
        self.state[call] = OK
        self.ended[call] = at
        for text in result.wrong:
            self._findings.add(Law.GENUINE, f"the answer to {self.describe(call)} is wrong: {text}")
        if not self.count[call]:
            return
        self.uid(result.uid)
        if self.first[call]:
            if self.first[call] != result.first:
                text = f"{self.describe(call)} was answered with m{result.first}, and is there as m{self.first[call]}"
                self._findings.add(Law.IDS, text, "", result.first)
        else:
            self._place(call, result.first)
        if result.first <= self._floor[call]:
            text = f"{self.describe(call)} got m{result.first}, after m{self._floor[call]} had been given out"
            self._findings.add(Law.IDS, text, "", result.first)
        self._highest = max(self._highest, result.first + self.count[call] - 1)

    def failed(self, call: int) -> None:
        """It was refused: nothing may come of it, and its numbers may be used again."""
        self.state[call] = FAILED
        publisher = self.publisher[call]
        if self.first[call]:
            text = f"{self.describe(call)} was refused, and is there as m{self.first[call]}"
            self._findings.add(Law.GENUINE, text, "", self.first[call])
        self._calls_of[publisher].pop()
        self._numbers_of[publisher].pop()

    # -- what readers say ----------------------------------------------------------------------------------------------

    def claim(self, where: str, topic: str, stretch: Stretch, headers: Mapping[str, str]) -> None:
        """Messages were delivered, and say which they are."""
        publisher = stretch.publisher
        if publisher == NOBODY:
            return
        sequence, count, number = stretch.sequence, stretch.count, stretch.number
        while count:
            call = self.call_of[sequence] if 0 <= sequence < len(self.call_of) else 0
            if not call:
                call = self._found(where, sequence, publisher, number)
                if not call:
                    return
            first = self.first[call]
            part = min(count, first + self.count[call] - sequence)
            if (
                self.publisher[call] != publisher
                or self.number[call] - first != number - sequence
                or self.priority[call] != stretch.priority
                or self.known_headers[self.headers[call]] != headers
                or self.topics[self.topic[call]] != topic
            ):
                claimed = f"message {number} of publisher {publisher}"
                got = f"{claimed}, topic {topic}, priority {stretch.priority}, headers {dict(headers)}"
                self._differs(where, call, sequence, got)
                return
            sequence += part
            number += part
            count -= part

    def letter(self, where: str, letter: Letter) -> None:
        """A dead letter says which message it is."""
        sequence, publisher = letter.sequence, letter.publisher
        if publisher == NOBODY:
            self._findings.add(Law.GENUINE, f"the dead letter m{sequence} is of a damaged message", where, sequence)
            return
        call = self.call_of[sequence] if 0 <= sequence < len(self.call_of) else 0
        call = call or self._found(where, sequence, publisher, letter.number)
        if call and (
            self.publisher[call] != publisher or self.number[call] - self.first[call] != letter.number - sequence
        ):
            self._differs(where, call, sequence, f"the dead letter of message {letter.number} of publisher {publisher}")

    def uid(self, uid: str) -> None:
        """A message has this uid, whose last part is its own sequence."""
        incarnation = uid.rpartition("-")[0]
        if not self._incarnation:
            self._incarnation = incarnation
        if incarnation != self._incarnation:
            self._findings.add(Law.IDS, f"there is a uid {uid!r}, and others are of {self._incarnation!r}")

    def describe(self, call: int) -> str:
        """A publish in words."""
        number, count = self.number[call], self.count[call]
        which = f"message {number}" if count == 1 else f"messages {number} to {number + count - 1}"
        return f"{which} of publisher {self.publisher[call]}"

    def total(self) -> int:
        """Messages that are known to be there."""
        return sum(self.count[call] for call in range(1, self.calls) if self.first[call])

    def unknown(self) -> int:
        """Publishes whose outcome nobody knows."""
        return self.state.count(OPEN) - 1

    # -- inside --------------------------------------------------------------------------------------------------------

    def _found(self, where: str, sequence: int, publisher: int, number: int) -> int:
        """The call that an unknown id must be of, which has its sequences now; 0 when there is none."""
        numbers = self._numbers_of.get(publisher)
        at = 0 if numbers is None else bisect_right(numbers, number)
        call = self._calls_of[publisher][at - 1] if at else 0
        if not call or number >= self.number[call] + self.count[call] or not 0 < sequence < MAX_SEQUENCE:
            text = f"m{sequence} says that it is message {number} of publisher {publisher}, which was never published"
            self._findings.add(Law.GENUINE, text, where, sequence)
            return 0
        first = sequence - (number - self.number[call])
        if self.first[call]:
            there = self.first[call] + number - self.number[call]
            text = f"message {number} of publisher {publisher} is there twice, as m{there} and as m{sequence}"
            self._findings.add(Law.GENUINE, text, where, sequence)
            return 0
        self._place(call, first)
        return call if self.call_of[sequence] == call else 0

    def _place(self, call: int, first: int) -> None:
        """A call has these sequences."""
        count = self.count[call]
        end = first + count
        if not 0 < first < MAX_SEQUENCE:
            self._findings.add(Law.IDS, f"{self.describe(call)} got m{first}, which is no id")
            return
        if end > len(self.call_of):
            self.call_of.frombytes(bytes(4 * (end - len(self.call_of) + count)))
        taken = self.call_of[first:end]
        if any(taken):
            other = next(filter(None, taken))
            text = f"{self.describe(call)} and {self.describe(other)} have the same ids, from m{first} on"
            self._findings.add(Law.IDS, text, "", first)
            return
        self.first[call] = first
        self.call_of[first:end] = array("I", [call]) * count

    def _differs(self, where: str, call: int, sequence: int, got: str) -> None:
        own = self.number[call] + sequence - self.first[call]
        wanted = (
            f"message {own} of publisher {self.publisher[call]}, topic {self.topics[self.topic[call]]}, priority "
            f"{self.priority[call]}, headers {self.known_headers[self.headers[call]]}"
        )
        self._findings.add(Law.GENUINE, f"m{sequence} was published as {wanted}, and came as {got}", where, sequence)

    def _topic(self, topic: str) -> int:
        index = self._topic_index.get(topic)
        if index is None:
            index = self._topic_index[topic] = len(self.topics)
            self.topics.append(topic)
        return index

    def _headers(self, headers: dict[str, str]) -> int:
        key = tuple(sorted(headers.items()))
        index = self._headers_index.get(key)
        if index is None:
            index = self._headers_index[key] = len(self.known_headers)
            self.known_headers.append(headers)
        return index
