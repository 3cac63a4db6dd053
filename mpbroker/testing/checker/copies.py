"""The copies of one subscription: who got which, and how each was settled.

Told of calls in time order; judges on the way what needs no more than the call itself. A copy that was delivered once
and acked takes a few bytes in flat arrays; whatever else happens to one is kept as a list, its life, and judged at the
end by `lives`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Final, NamedTuple

from mpbroker.testing.checker.clients import NEVER
from mpbroker.testing.checker.laws import Findings, Law
from mpbroker.testing.checker.polls import Ghost, Haunts, Polls
from mpbroker.testing.checker.publishing import MAX_SEQUENCE
from mpbroker.testing.history import Answers, Letter, Settle, Stretch, Subscribe, Target

NOTHING: Final = 0
ONCE: Final = 1
"""Delivered for the first time, and nothing else yet."""
ACKED: Final = 2
"""Delivered once, and acked by that delivery."""
EVENTFUL: Final = 3
"""Has a life."""

TOLERANCE_S: Final = 1e-4
"""Of times that were rounded to floats."""

_RECENT: Final = 4096


class Handed(NamedTuple):
    """A delivery, in a life. grant: where the rest about it is."""

    token: int
    grant: int
    attempt: int
    redelivered: bool


class Settled(NamedTuple):
    """A settling, in a life. answer: None while unknown. ok: NEVER while unanswered. deadline: what an extend gave.

    noted: an ack that a consumer took note of. sent: the broker had it by ``ok``, whatever it said.
    """

    verb: str
    token: int
    member: str
    client: int
    invoked: int
    ok: int
    answer: bool | None
    seconds: float | None = None
    error: str = ""
    deadline: float | None = None
    noted: bool = False
    sent: bool = False


class Move(NamedTuple):
    """A redrive or purge. sequences: None for all. moved: how many that were."""

    verb: str
    invoked: int
    ok: int
    sequences: frozenset[int] | None
    moved: int | None

    def covers(self, sequence: int) -> bool:
        return self.sequences is None or sequence in self.sequences


@dataclass(slots=True)
class Snapshot:
    """Figures, or letters, and when they were asked for and answered."""

    invoked: int
    ok: int
    values: list[int] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)


class Copies:
    """One subscription.

    Attributes:
        made_invoked, made: when it began at the earliest, and at the latest; ended, gone: when it ended.
        state, grant_of: by sequence.
        poll_of, offset, deadline, priority, last_token: by grant; sequence + offset is the token.
        tokens_floor: the highest token of all polls that were answered.
        active: when something was last asked here, other than a look.
        empty: polls that were answered with nothing: not before, not after, and when they were asked.
        ready: times from and to which a copy that had come back was surely ready, and its sequence.
    """

    def __init__(
        self, subscription_id: str, settings: Subscribe, invoked: int, findings: Findings, polls: Polls
    ) -> None:
        self.subscription_id = subscription_id
        self.settings = settings
        self.made_invoked = invoked
        self.made = NEVER
        self.ended = NEVER
        self.gone = NEVER
        self.state = bytearray(1)
        self.grant_of = array("I", [0])
        self.poll_of = array("I", [0])
        self.offset = array("q", [0])
        self.deadline = array("d", [0.0])
        self.priority = bytearray(1)
        self.last_token = array("q", [0])
        self.lives: dict[int, list[Handed | Settled]] = {}
        self.ghosts: list[Ghost] = []
        self._haunts: tuple[int, Haunts] = (0, Haunts([]))
        self.moves: list[Move] = []
        self.snapshots: list[Snapshot] = []
        self.letters: Snapshot | None = None
        self.empty: list[tuple[int, int, int]] = []
        self.ready: list[tuple[int, int, int]] = []
        self.deliveries = 0
        self.redelivered = 0
        self.refused_acks = 0
        self.unknown_acks = 0
        self.active = invoked
        self.tokens_floor = 0
        self._floors: tuple[array[int], array[int]] = (array("q"), array("q"))
        self._recent: dict[int, int] = {}
        self._many = _RECENT
        self._findings = findings
        self._polls = polls

    def found(self, law: Law, text: str, sequence: int = 0) -> None:
        self._findings.add(law, text, self.subscription_id, sequence)

    # -- hand over -----------------------------------------------------------------------------------------------------

    def delivered(
        self,
        poll: int,
        stretches: Iterable[Stretch],
        floor: int,
        now: float | None = None,
        before: tuple[int, int] = (-4, 0),
    ) -> tuple[int, int]:
        """A poll was answered. floor: tokens_floor when it was asked. before, and what is returned: the place of the
        last one, where the answer of a poll comes in parts."""
        earliest, latest = self._deadlines(poll, now)
        highest = 0
        for stretch in stretches:
            sequence, count, token = stretch.sequence, stretch.count, stretch.token
            place = (-stretch.priority, sequence)
            if place <= before:
                self.found(Law.ORDER, f"m{sequence} came in one poll behind m{before[1]}", sequence)
            before = (-stretch.priority, sequence + count - 1)
            # Those of a consumer were looked at by who derived the time of its poll from them.
            if not self._polls.consumer[poll] and not self._is_possible(
                stretch.deadline, earliest, latest, exact=now is not None
            ):
                self.found_time(sequence, stretch.deadline, earliest, latest)
            highest = max(highest, token + count - 1)
            self._new_token(token, floor, sequence)
            self._handed(poll, stretch)
        if highest > self.tokens_floor:
            self.tokens_floor = highest
            self._floors[0].append(self.active)  # the time of this answer
            self._floors[1].append(highest)
        return before

    def floor_at(self, at: int) -> int:
        """tokens_floor at a time."""
        place = bisect_left(self._floors[0], at)
        return self._floors[1][place - 1] if place else 0

    def found_time(self, sequence: int, deadline: float, earliest: float, latest: float) -> None:
        """A lease cannot end then."""
        text = f"m{sequence} was handed over with a lease to {deadline:.6f}, and its poll allows {earliest:.6f} to "
        self.found(Law.TIMES, f"{text}{latest:.6f}", sequence)

    def _deadlines(self, poll: int, now: float | None) -> tuple[float, float]:
        lease = self.settings.ack_timeout
        if now is not None:
            return now + lease - TOLERANCE_S, now + lease + TOLERANCE_S
        earliest, latest = self._polls.invoked[poll] / 1e9, self._polls.ok[poll] / 1e9
        return earliest + lease - TOLERANCE_S, latest + lease + TOLERANCE_S

    def _is_possible(self, deadline: float, earliest: float, latest: float, *, exact: bool) -> bool:
        """Whether a lease may end then. The broker's clock may fall behind the host's, and never catches up."""
        polls = self._polls
        if isinf(deadline):
            return True
        if exact or not polls.stops:
            return earliest <= deadline <= latest
        polls.lost_least = max(polls.lost_least, earliest - deadline)
        polls.lost_most = max(0.0, latest - deadline)
        return polls.lost_least <= polls.lost_most

    def _new_token(self, token: int, floor: int, sequence: int) -> None:
        if token <= floor:
            text = f"m{sequence} was handed over with token {token}, after token {floor} had been given out"
            self.found(Law.TOKENS, text, sequence)
            return
        recent = self._recent
        other = recent.get(token)
        if other is not None:
            self.found(Law.TOKENS, f"m{other} and m{sequence} were both handed over with token {token}", sequence)
        recent[token] = sequence
        if len(recent) > self._many:
            self._recent = {each: of for each, of in recent.items() if each > floor}
            self._many = max(_RECENT, 2 * len(self._recent))

    def _handed(self, poll: int, stretch: Stretch) -> None:
        first, count = stretch.sequence, stretch.count
        if not 0 < first < MAX_SEQUENCE:
            return  # told as no genuine message already
        grant = len(self.poll_of)
        self.poll_of.append(poll)
        self.offset.append(stretch.token - first)
        self.deadline.append(stretch.deadline)
        self.priority.append(stretch.priority)
        self.last_token.append(stretch.token + count - 1)
        self.deliveries += count
        state, end = self.state, first + count
        if end > len(state):
            self._grow(end)
        if stretch.redelivered:
            self.redelivered += count
        elif stretch.attempt == 1:
            if count == 1:
                if not state[first]:
                    state[first] = ONCE
                    self.grant_of[first] = grant
                    return
            elif not any(state[first:end]):
                state[first:end] = b"\x01" * count
                self.grant_of[first:end] = array("I", [grant]) * count
                return
        attempt, redelivered, token = stretch.attempt, stretch.redelivered, stretch.token
        for sequence in range(first, end):
            self.life(sequence).append(Handed(token + sequence - first, grant, attempt, redelivered))

    def _grow(self, end: int) -> None:
        more = end - len(self.state) + 1024
        self.state.extend(bytes(more))
        self.grant_of.frombytes(bytes(4 * more))

    def life(self, sequence: int) -> list[Handed | Settled]:
        """What happened to a copy, as a list that is its life from now on."""
        life = self.lives.get(sequence)
        if life is not None:
            return life
        life = self.lives[sequence] = []
        if sequence >= len(self.state):
            self._grow(sequence + 1)
        state = self.state[sequence]
        if state in {ONCE, ACKED}:
            grant = self.grant_of[sequence]
            token = sequence + self.offset[grant]
            life.append(Handed(token, grant, 1, redelivered=False))
            if state == ACKED:
                poll = self.poll_of[grant]
                member, at = self._polls.members[self._polls.member[poll]], self._polls.ok[poll]
                client = self._polls.client[poll]
                life.append(Settled("ack", token, member, client, at, NEVER, answer=True))
        self.state[sequence] = EVENTFUL
        return life

    def consumer_of(self, sequence: int, token: int) -> int:
        """The number of the consumer that yielded a delivery; 0: none did."""
        for each in self.life(sequence):
            if isinstance(each, Handed) and each.token == token:
                return self._polls.consumer[self.poll_of[each.grant]]
        return 0

    # -- settle --------------------------------------------------------------------------------------------------------

    def settled(self, client: int, invoked: int, ok: int, request: Settle, result: Answers | None) -> None:
        """A settling was answered; result: None when what came of it is not known."""
        answers = None if result is None else result.answers
        at = 0
        for target in request.targets:
            first, count = target.sequence, target.count
            said = None if answers is None else answers[at : at + count]
            at += count
            if not 0 < first < MAX_SEQUENCE:
                if said is not None and any(said):
                    self.found(Law.SETTLED, f"the {request.verb} of an id that cannot be was answered True")
                continue
            if said is not None and len(said) != count:
                self.found(Law.SETTLED, f"{request.verb} of {count} messages had {len(said)} answers", first)
                return
            if request.verb == "ack":
                if said is None:
                    self.unknown_acks += count
                elif self._all_acked(first, count, target.token, request.member, said):
                    continue
                else:
                    self.refused_acks += count - sum(said)
            self._told(client, invoked, ok, request, result, range(first, first + count), target.token, said)

    def _told(
        self,
        client: int,
        invoked: int,
        ok: int,
        request: Settle,
        result: Answers | None,
        sequences: range,
        token: int,
        said: bytes | None,
    ) -> None:
        deadline = None if result is None else result.deadline
        for place, sequence in enumerate(sequences):
            answer = None if said is None else bool(said[place])
            own = token + place if token else 0
            self.life(sequence).append(
                Settled(
                    request.verb,
                    own,
                    request.member,
                    client,
                    invoked,
                    ok,
                    answer,
                    request.seconds,
                    request.error,
                    deadline,
                )
            )

    def noted(self, client: int, invoked: int, ok: int, member: str, target: Target, *, sent: bool, kept: bool) -> None:
        """An ack that a consumer took note of when it was ``invoked``, and what is known of it at ``ok``.

        sent: the broker has had it. kept: and nothing but the end of its lease can have come before it.
        """
        first, count, token = target.sequence, target.count, target.token
        if not 0 < first < MAX_SEQUENCE:
            return
        if kept and self._is_leased(first, count, ok) and self._all_acked(first, count, token, member, b"\x01" * count):
            return
        self.unknown_acks += count
        for place in range(count):
            self.life(first + place).append(
                Settled("ack", token + place, member, client, invoked, ok, None, noted=True, sent=sent)
            )

    def not_noted(self, client: int, invoked: int, ok: int, member: str, sequence: int, token: int) -> None:
        """A consumer refused an ack, without asking the broker."""
        if 0 < sequence < MAX_SEQUENCE:
            self.life(sequence).append(Settled("ack", token, member, client, invoked, ok, answer=False))

    def _is_leased(self, first: int, count: int, at: int) -> bool:
        """Whether copies that were delivered once are leased until then."""
        grants = set(self.grant_of[first : first + count])
        return all(self.lease_end_ns(self.deadline[grant]) > at for grant in grants)

    def _all_acked(self, first: int, count: int, token: int, member: str, said: bytes) -> bool:
        """Whether that was the plain end of copies that were delivered once; then they are acked now."""
        state = self.state
        end = first + count
        if end > len(state):
            return False
        if count == 1:
            if state[first] != ONCE or not said[0]:
                return False
            grants: Iterable[int] = (self.grant_of[first],)
        else:
            if state[first:end] != b"\x01" * count or said != b"\x01" * count:
                return False
            grants = set(self.grant_of[first:end])
        for grant in grants:
            if token and first + self.offset[grant] != token:
                return False
            if not token and self._polls.members[self._polls.member[self.poll_of[grant]]] != member:
                return False
        if count == 1:
            state[first] = ACKED
        else:
            state[first:end] = b"\x02" * count
        return True

    # -- the rest ------------------------------------------------------------------------------------------------------

    def found_empty(self, invoked: int, ok: int, timeout: float | None, since: int | None = None) -> None:
        """A poll was answered with nothing. since: from when on, where it may have been asked before."""
        if timeout is None:
            self.found(Law.WAITING, "a poll that was to wait for ever ended with nothing")
        else:
            over = invoked + int((timeout - TOLERANCE_S if timeout else 0.0) * 1e9)
            self.empty.append((over if since is None else since, ok, invoked))

    def haunted(self, since: int, until: int) -> int:
        """How many polls may have been handed something between these times without a record of it."""
        return self._haunted(since, until)[0]

    def attempts_unseen(self, since: int, until: int) -> int:
        """How many attempts of one message they may have been."""
        return self._haunted(since, until)[1]

    def _haunted(self, since: int, until: int) -> tuple[int, int]:
        if not self.ghosts:
            return 0, 0
        if self._haunts[0] != len(self.ghosts):
            self._haunts = (len(self.ghosts), Haunts(self.ghosts))
        return self._haunts[1].between(since, until)

    def moved(self, sequence: int, since: int, until: int, verb: str) -> bool:
        """Whether a redrive or purge between these times may have been of that message."""
        return any(
            move.verb == verb and move.invoked <= until and move.ok >= since and move.covers(sequence)
            for move in self.moves
        )

    def lease_end_ns(self, deadline: float) -> int:
        """A deadline as a time, a little early."""
        return NEVER if deadline == inf else int((deadline - TOLERANCE_S) * 1e9)
