"""The lives of copies: whether everything that happened to one could have happened.

A life is put in the order of its tokens, which is the order in which the broker handed over. Then each delivery must
have ended before the next began, in one way only, and the next must show how it ended. What a client does not know
(an unknown answer, a poll without a record) allows both.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from mpbroker.retry import RetryPolicy
from mpbroker.testing.checker.clients import NEVER, Clients
from mpbroker.testing.checker.copies import TOLERANCE_S, Copies, Handed, Settled
from mpbroker.testing.checker.laws import Law
from mpbroker.testing.checker.polls import Polls

_SETTLING: Final = frozenset({"ack", "nack", "release", "reject", "retry"})
_UNCOUNTED: Final = frozenset({"ack", "release"})


class Fate(Enum):
    """Where a copy is after all that is known of it."""

    ACKED = "acked"
    MAYBE_ACKED = "maybe acked"
    EXHAUSTED = "exhausted"
    REJECTED = "rejected"
    OPEN = "open"


class Way(NamedTuple):
    """A way in which a delivery may have ended.

    counted: None when it may count or not. back: when the copy could be handed over again, at the earliest; by: when it
    could be at the latest, NEVER where that is not known.
    """

    verb: str
    earliest: int
    counted: bool | None
    back: int
    error: str = ""
    by: int = NEVER


class Lives:
    """Judges the lives of one subscription."""

    def __init__(self, copies: Copies, polls: Polls, clients: Clients) -> None:
        self._copies = copies
        self._polls = polls
        self._clients = clients
        self._limit = copies.settings.max_deliveries
        retry = copies.settings.retry
        self._policy = None if retry is None else RetryPolicy(*retry)

    def judge(self, sequence: int, published: int) -> tuple[Fate, Way | None]:
        """Find what is wrong with a life; where the copy is in the end, and by which way it got there.

        published: when its publish was asked for.
        """
        life = self._copies.lives[sequence]
        handed = sorted((each for each in life if isinstance(each, Handed)), key=lambda each: each.token)
        for one, other in pairwise(handed):
            if one.token == other.token:
                self._found(Law.TOKENS, sequence, f"it was handed over twice with token {one.token}")
        mine: dict[int, list[Settled]] = {index: [] for index in range(len(handed))}
        for each in life:
            if isinstance(each, Settled):
                index = self._meant(handed, each)
                if index is not None:
                    mine[index].append(each)
                elif each.answer:
                    text = f"the {each.verb} of {each.member} was answered True, and it had no such delivery"
                    self._found(Law.SETTLED, sequence, text)
        if not handed:
            return Fate.OPEN, None
        self._first(sequence, handed[0], published)
        for index, (delivery, following) in enumerate(pairwise(handed)):
            ways = self._ways(sequence, delivery, mine[index], following)
            self._follows(sequence, delivery, ways, following)
        last = len(handed) - 1
        return self._fate(handed[last], self._ways(sequence, handed[last], mine[last], None))

    # -- one delivery --------------------------------------------------------------------------------------------------

    def _meant(self, handed: list[Handed], settled: Settled) -> int | None:
        """Which delivery a settling is about: by its token, or the latest its member had by then."""
        if settled.token:
            return next((index for index, each in enumerate(handed) if each.token == settled.token), None)
        found = None
        # One that was refused may have been asked before the delivery came.
        until = settled.ok if settled.answer or settled.answer is None else settled.invoked
        for index, each in enumerate(handed):
            poll = self._copies.poll_of[each.grant]
            own = self._polls.members[self._polls.member[poll]] == settled.member
            at = self._polls.invoked[poll] if settled.answer or settled.answer is None else self._polls.ok[poll]
            if own and at <= until:
                found = index
        return found

    def _first(self, sequence: int, first: Handed, published: int) -> None:
        poll = self._copies.poll_of[first.grant]
        until = self._polls.ok[poll]
        copies = self._copies
        ghosts = copies.haunted(published, until)
        if first.attempt > 1 + copies.attempts_unseen(published, until) or first.attempt < 1:
            text = f"its first delivery was attempt {first.attempt}"
            self._found(Law.ATTEMPTS, sequence, text)
        if first.redelivered and not ghosts:
            self._found(Law.ORDER, sequence, "its first delivery was marked redelivered")
        if first.attempt > 1 and not first.redelivered:
            self._found(Law.ORDER, sequence, f"attempt {first.attempt} was not marked redelivered")
        self._within(sequence, first)

    def _within(self, sequence: int, delivery: Handed) -> None:
        if delivery.attempt > self._limit:
            text = f"it was handed over as attempt {delivery.attempt}, and {self._limit} is the limit"
            self._found(Law.ATTEMPTS, sequence, text)

    def _ways(self, sequence: int, delivery: Handed, settled: list[Settled], following: Handed | None) -> list[Way]:
        """How a delivery may have ended: one way where an answer says so, otherwise all that are possible."""
        copies, polls = self._copies, self._polls
        poll = copies.poll_of[delivery.grant]
        sure = [each for each in settled if each.answer and each.verb in _SETTLING]
        if len(sure) > 1:
            verbs = " and ".join(f"{each.verb} of {each.member}" for each in sure)
            self._found(Law.SETTLED, sequence, f"one delivery was settled more than once: {verbs}")
        self._noted_once(sequence, settled, sure)
        ways = [self._settled_way(delivery, each) for each in sure[:1]]
        if not ways:
            lease = self._lease_end(delivery, settled)
            losses = self._clients.numbered[polls.client[poll]].losses_since(polls.invoked[poll])
            ways = self._given_back(delivery, settled, min([lease, copies.ended, *(loss.at for loss in losses)]))
        if not ways:
            ways = [self._settled_way(delivery, each) for each in settled if each.answer is None]
            if lease != NEVER:
                delay = self._delay_ns(delivery.attempt)
                by = lease + delay + 4 * _ns(2 * TOLERANCE_S)
                ways.append(Way("lease end", lease, counted=True, back=lease + delay, by=by))
            for loss in losses:
                at = max(loss.at, polls.invoked[poll])
                ways.append(
                    Way(loss.what, at, loss.counted, at + self._delay_ns(delivery.attempt) * bool(loss.counted))
                )
            closing = polls.consumers[polls.consumer[poll]].asked
            if closing != NEVER and not any(each.noted for each in settled):
                ways.append(Way("close", closing, counted=False, back=closing))
        self._refusals(sequence, settled, ways)
        if following is not None:
            self._successes(sequence, settled, following)
        return ways

    def _noted_once(self, sequence: int, settled: list[Settled], sure: list[Settled]) -> None:
        """A consumer takes note of an ack of what it holds, and of nothing else."""
        noted = [each for each in settled if each.noted]
        # What another process settled it does not know.
        last = {note.client: note.invoked for note in noted}
        over = [each for each in sure if each.token and each.ok < last.get(each.client, 0)]
        if noted and (len(noted) > 1 or over):
            verb = over[0].verb if over else "ack"
            text = f"{noted[0].member} was told True of its ack, and had settled it before by its {verb}"
            self._found(Law.SETTLED, sequence, text)

    def _given_back(self, delivery: Handed, settled: list[Settled], kept: int) -> list[Way]:
        """How it ended for sure, if a consumer's acks, or its close, were with the broker before anything else can have
        ended it. kept: it was held until then."""
        for each in settled:
            if each.sent and each.ok < kept:
                self._copies.unknown_acks -= 1
                return [self._settled_way(delivery, each._replace(answer=True))]
        closing = self._polls.consumers[self._polls.consumer[self._copies.poll_of[delivery.grant]]]
        if closing.ok < kept and not any(each.answer is None for each in settled):
            return [Way("close", closing.asked, counted=False, back=closing.asked, by=closing.ok)]
        return []

    def _settled_way(self, delivery: Handed, settled: Settled) -> Way:
        counted = settled.verb not in _UNCOUNTED
        delay = 0
        if settled.verb == "nack":
            delay = self._delay_ns(delivery.attempt) if settled.seconds is None else _ns(settled.seconds)
        back = NEVER if settled.verb in {"ack", "reject"} else settled.invoked + delay
        by = settled.ok + delay + 2 * _ns(2 * TOLERANCE_S) if back != NEVER and settled.answer else NEVER
        return Way(settled.verb, settled.invoked, counted, back, settled.error, by)

    def _lease_end(self, delivery: Handed, settled: list[Settled]) -> int:
        """When its lease ended at the earliest."""
        deadline = self._copies.deadline[delivery.grant]
        lease = self._copies.settings.ack_timeout
        for each in sorted(settled, key=lambda each: each.invoked):
            if each.verb != "extend" or each.answer is False or deadline == inf:
                continue
            moved = each.invoked / 1e9 + (lease if each.seconds is None else each.seconds)
            if each.deadline is not None:
                moved = each.deadline
            deadline = moved if each.answer else min(deadline, moved)
        return self._copies.lease_end_ns(deadline)

    def _refusals(self, sequence: int, settled: list[Settled], ways: list[Way]) -> None:
        """Whoever holds it is not refused."""
        for each in settled:
            if each.answer is not False or self._copies.ended <= each.ok:
                continue
            if not any(way.earliest <= each.ok for way in ways):
                text = f"the {each.verb} of {each.member} was refused, and it held the message"
                self._found(Law.SETTLED, sequence, text)

    def _successes(self, sequence: int, settled: list[Settled], following: Handed) -> None:
        """Whoever does not hold it any more is refused."""
        next_ok = self._polls.ok[self._copies.poll_of[following.grant]]
        for each in settled:
            if each.answer and each.invoked > next_ok and each.verb != "retry":
                text = f"the {each.verb} of {each.member} succeeded after the message was handed to another"
                self._found(Law.SETTLED, sequence, text)

    # -- from one to the next ------------------------------------------------------------------------------------------

    def _follows(self, sequence: int, delivery: Handed, ways: list[Way], following: Handed) -> None:
        """A delivery is followed by another one: it had ended, and the next shows how."""
        copies, polls = self._copies, self._polls
        poll, next_poll = copies.poll_of[delivery.grant], copies.poll_of[following.grant]
        since, until = polls.invoked[poll], polls.ok[next_poll]
        possible = [way for way in ways if way.earliest <= until]
        holder = polls.members[polls.member[poll]]
        taker = polls.members[polls.member[next_poll]]
        if not possible:
            text = (
                f"{holder} held it with token {delivery.token} when it was handed to {taker}, token {following.token}"
            )
            self._found(Law.HELD, sequence, text)
            return
        if any(way.verb == "ack" for way in possible) and len(possible) == 1:
            self._found(Law.HELD, sequence, f"{holder} acked it, and it was handed to {taker} after that")
            return
        self._within(sequence, following)
        redriven = copies.moved(sequence, since, until, "redrive")
        allowed, back = self._next_attempts(delivery, possible, redriven=redriven)
        ghosts = copies.haunted(since, until)
        if redriven and (ghosts or copies.settings.overflow == "drop_oldest"):
            # It may have become a dead letter out of anybody's sight.
            allowed.add(1)
            back = 0
        if not allowed:
            text = (
                f"attempt {delivery.attempt} of {self._limit} ended by {possible[0].verb}, and it was handed out again"
            )
            self._found(Law.DEAD, sequence, text)
            return
        if back > until:
            text = f"it came back {(back - until) / 1e9:.6f} s before its delay was over"
            self._found(Law.TIMES, sequence, text)
        unseen = copies.attempts_unseen(since, until)
        if not any(following.attempt - each in range(unseen + 1) for each in allowed):
            text = (
                f"attempt {delivery.attempt} ended by {' or '.join(way.verb for way in possible)}, "
                f"and the next was attempt {following.attempt}"
            )
            self._found(Law.ATTEMPTS, sequence, text)
        if not following.redelivered:
            self._found(Law.ORDER, sequence, "a second delivery was not marked redelivered")
        by = ways[0].by + int(1e9 * self._lost_most(following))
        if len(ways) == 1 and not ghosts and not redriven and by < polls.invoked[next_poll]:
            copies.ready.append((by, polls.invoked[next_poll], sequence))
        self._alone(sequence, possible, following)

    def _lost_most(self, delivery: Handed) -> float:
        """How far the broker's clock was behind the host's, at most, when it handed something over."""
        copies, polls = self._copies, self._polls
        poll = copies.poll_of[delivery.grant]
        if not polls.consumer[poll]:
            return polls.lost_most
        return max(0.0, polls.ok[poll] / 1e9 + copies.settings.ack_timeout - copies.deadline[delivery.grant])

    def _next_attempts(self, delivery: Handed, ways: list[Way], *, redriven: bool) -> tuple[set[int], int]:
        """Which numbers the next attempt may have, and when it may be at the earliest."""
        allowed: set[int] = set()
        back = NEVER
        for way in ways:
            last = way.verb == "reject" or (way.counted is not False and delivery.attempt >= self._limit)
            if last and redriven:
                allowed.add(1)
                back = 0
            if way.back == NEVER:
                continue
            if way.counted is not False and not last:
                allowed.add(delivery.attempt + 1)
                back = min(back, way.back)
            if not way.counted:
                allowed.add(delivery.attempt)
                back = min(back, way.back)
        return allowed, back

    def _alone(self, sequence: int, possible: list[Way], following: Handed) -> None:
        """What comes back from a process that died is handed over alone."""
        poll = self._copies.poll_of[following.grant]
        if all(way.verb in {"kill", "death"} for way in possible) and self._polls.size[poll] > 1:
            text = f"its holder had died, and it was handed over with {self._polls.size[poll] - 1} others"
            self._found(Law.ORDER, sequence, text)

    def _fate(self, delivery: Handed, ways: list[Way]) -> tuple[Fate, Way | None]:
        """Where a copy is after its last delivery."""
        if len(ways) == 1:
            (way,) = ways
            if way.verb == "ack":
                return Fate.ACKED, way
            if way.verb == "reject":
                return Fate.REJECTED, way
            if way.counted and delivery.attempt >= self._limit:
                return Fate.EXHAUSTED, way
        if any(way.verb == "ack" for way in ways):
            return Fate.MAYBE_ACKED, None
        return Fate.OPEN, None

    def _delay_ns(self, attempt: int) -> int:
        return 0 if self._policy is None else _ns(self._policy.delay(attempt))

    def _found(self, law: Law, sequence: int, text: str) -> None:
        self._copies.found(law, f"m{sequence}: {text}", sequence)


def _ns(seconds: float) -> int:
    """A delay, a little short."""
    return max(0, int((seconds - TOLERANCE_S) * 1e9))
