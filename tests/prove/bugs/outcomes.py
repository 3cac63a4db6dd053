"""Defects of what follows: attempts, times, dead letters, ids and figures; a dense run in one process shows each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf
from typing import Any

from mpbroker.engine.batch import MessageBatch, Run
from mpbroker.engine.broker import Engine
from mpbroker.engine.leases import Lease, LeaseTable
from mpbroker.engine.letters import DeadLetters, DeadRecord
from mpbroker.engine.places import Places
from mpbroker.engine.ready import Delayed
from mpbroker.engine.subscription import Subscription
from mpbroker.messages import DeadLetterReason
from mpbroker.testing.checker import Law
from tests.prove.bugs.plant import DENSE, bug, every, instead

# -- attempts and times ------------------------------------------------------------------------------------------------


@bug(DENSE, Law.ATTEMPTS)
def attempts_not_counted() -> Iterator[None]:
    """a failed attempt does not count."""

    def make(failed: Any) -> Any:
        def runs(self: Places, *rest: Any) -> list[Run]:
            made: list[Run] = failed(self, *rest)
            for run in made:
                run.attempts -= 1
            return made

        return runs

    with instead(Places, "_failed", make):
        yield


@bug(DENSE, Law.ATTEMPTS)
def lease_end_not_counted() -> Iterator[None]:
    """a lease that ended does not count as an attempt."""

    def make(expire: Any) -> Any:
        def expired(self: Subscription, now: float) -> int:
            count = 0
            for lease, mask in self._places.leases.due(now):
                count += mask.bit_count()
                self._places.give_back(lease, mask)
            self._make_ready(now)
            return count

        return expired

    with instead(Subscription, "_expire", make):
        yield


@bug(DENSE, Law.ATTEMPTS, Law.DEAD)
def release_counted() -> Iterator[None]:
    """a release counts as an attempt."""

    def make(give_back: Any) -> Any:
        def given(self: Places, lease: Lease, mask: int) -> None:
            lease.attempt += 1
            give_back(self, lease, mask)

        return given

    with instead(Places, "give_back", make):
        yield


@bug(DENSE, Law.ATTEMPTS)
def redrive_keeps_attempts() -> Iterator[None]:
    """attempts do not start anew after a redrive."""

    def make(redrive: Any) -> Any:
        def redriven(self: Places, wanted: Any, limit: Any) -> int:
            attempts = {record.sequence: record.attempts for record in self.letters}
            count: int = redrive(self, wanted, limit)
            for run in self.ready.runs():
                if run.history and not run.attempts:
                    run.attempts = attempts.get(run.sequence, 0)
            return count

        return redriven

    with instead(Places, "redrive", make):
        yield


@bug(DENSE, Law.ATTEMPTS, Law.DEAD)
def one_attempt_too_many() -> Iterator[None]:
    """the limit of attempts is off by one."""

    def make(fail: Any) -> Any:
        def failed(self: Places, lease: Lease, *rest: Any, **named: Any) -> None:
            settings = self._settings
            if settings.retry is None and lease.attempt == settings.max_deliveries:
                self.give_back(lease, rest[0])
                return
            fail(self, lease, *rest, **named)

        return failed

    with instead(Places, "fail", make):
        yield


@bug(DENSE, Law.TIMES)
def delayed_comes_early() -> Iterator[None]:
    """a delayed message comes back half a second early."""
    with instead(Delayed, "add", lambda add: lambda self, due, run: add(self, due - 0.5, run)):
        yield


@bug(DENSE, Law.TIMES)
def lease_of_another_length() -> Iterator[None]:
    """a lease is a tenth shorter than its subscription says."""

    def make(deadline: Any) -> Any:
        return lambda self, member, now: now + (deadline(self, member, now) - now) * 0.9

    with instead(Subscription, "_deadline", make):
        yield


@bug(DENSE, Law.HELD)
def lease_ends_early() -> Iterator[None]:
    """a lease is taken back two seconds before its deadline."""
    with instead(LeaseTable, "due", lambda due: lambda self, now: due(self, now + 2.0)):
        yield


@bug(DENSE, Law.ENDED)
def lease_never_ends() -> Iterator[None]:
    """a lease in ten has no end."""
    strikes = every(10)

    def make(arm: Any) -> Any:
        def armed(self: LeaseTable, deadline: float, number: int) -> None:
            if strikes():
                self.by_number[number].deadline = inf
            else:
                arm(self, deadline, number)

        return armed

    with instead(LeaseTable, "_arm", make):
        yield


@bug(DENSE, Law.HELD, Law.SETTLED)
def extension_forgotten() -> Iterator[None]:
    """an extension is answered, and not made."""
    with instead(LeaseTable, "extend", lambda _: lambda self, lease, offset, deadline: None):
        yield


# -- dead letters ------------------------------------------------------------------------------------------------------


@bug(DENSE, Law.DEAD, Law.FIGURES)
def letter_dropped() -> Iterator[None]:
    """a dead letter in ten is dropped, and counted as if for want of room."""
    strikes = every(10)
    with instead(DeadLetters, "add", lambda add: lambda self, record: 1 if strikes() else add(self, record)):
        yield


@bug(DENSE, Law.DEAD, Law.FIGURES)
def letter_lost() -> Iterator[None]:
    """a dead letter in ten is not kept, and not counted."""
    strikes = every(10)
    with instead(DeadLetters, "add", lambda add: lambda self, record: 0 if strikes() else add(self, record)):
        yield


@bug(DENSE, Law.DEAD, Law.FIGURES)
def letter_twice() -> Iterator[None]:
    """a dead letter in ten is kept twice."""
    strikes = every(10)

    def make(add: Any) -> Any:
        def added(self: DeadLetters, record: DeadRecord) -> int:
            if strikes():
                add(self, record)
            kept: int = add(self, record)
            return kept

        return added

    with instead(DeadLetters, "add", make):
        yield


@bug(DENSE, Law.DEAD)
def letter_with_another_cause() -> Iterator[None]:
    """a rejected message's dead letter says that its attempts were exhausted."""

    def make(bury: Any) -> Any:
        def buried(self: Places, run: Run, reason: DeadLetterReason, *rest: Any) -> None:
            if reason is DeadLetterReason.REJECTED:
                reason = DeadLetterReason.RETRIES_EXHAUSTED
            bury(self, run, reason, *rest)

        return buried

    with instead(Places, "_bury", make):
        yield


@bug(DENSE, Law.DEAD)
def letter_without_error() -> Iterator[None]:
    """a dead letter has not the error it was given."""

    def make(bury: Any) -> Any:
        return lambda self, run, reason, error, now: bury(self, run, reason, "it broke", now)

    with instead(Places, "_bury", make):
        yield


@bug(DENSE, Law.DEAD)
def history_of_another() -> Iterator[None]:
    """an attempt is missing in the history of a dead letter."""

    def make(failed: Any) -> Any:
        def runs(self: Places, *rest: Any) -> list[Run]:
            made: list[Run] = failed(self, *rest)
            for run in made:
                run.history = (*run.history[:-2], *run.history[-1:])
            return made

        return runs

    with instead(Places, "_failed", make):
        yield


@bug(DENSE, Law.DEAD, Law.FIGURES)
def purge_takes_all() -> Iterator[None]:
    """a purge of some dead letters forgets them all."""
    with instead(Places, "purge", lambda purge: lambda self, wanted, limit: purge(self, None, limit)):
        yield


# -- ids, payloads and figures -----------------------------------------------------------------------------------------


@bug(DENSE, Law.IDS)
def ids_go_back() -> Iterator[None]:
    """an id is given out twice."""
    strikes = every(40)

    def make(publish: Any) -> Any:
        def published(self: Engine, *rest: Any) -> Any:
            done = publish(self, *rest)
            if strikes():
                self._next_sequence -= 1
            return done

        return published

    with instead(Engine, "publish", make):
        yield


@bug(DENSE, Law.TOKENS)
def token_given_twice() -> Iterator[None]:
    """a token is used again once its lease is over."""
    strikes = every(30)

    def make(grant: Any) -> Any:
        def granted(self: LeaseTable, *rest: Any) -> Lease:
            if strikes() and self._next - 1 not in self.by_number:
                self._next -= 1
            lease: Lease = grant(self, *rest)
            return lease

        return granted

    with instead(LeaseTable, "grant", make):
        yield


@bug(DENSE, Law.GENUINE)
def payload_of_another() -> Iterator[None]:
    """a message comes with its neighbour's payload."""
    strikes = every(50)

    def make(message: Any) -> Any:
        def found(self: MessageBatch, index: int) -> Any:
            return self.messages[index - 1] if index and strikes() else message(self, index)

        return found

    with instead(MessageBatch, "message", make):
        yield


@bug(DENSE, Law.GENUINE)
def headers_of_another() -> Iterator[None]:
    """a publish gets the headers of the one before it."""
    strikes = every(30)

    def make(publish: Any) -> Any:
        before: deque[Any] = deque(maxlen=1)

        def published(self: Engine, topic: str, contents: Any, headers: Any, *rest: Any) -> Any:
            used = before[0] if before and strikes() else headers
            before.append(headers)
            return publish(self, topic, contents, used, *rest)

        return published

    with instead(Engine, "publish", make):
        yield


@bug(DENSE, Law.FIGURES)
def figures_do_not_add_up() -> Iterator[None]:
    """an acked message is counted twice now and then."""
    strikes = every(500)

    def make(ack: Any) -> Any:
        def acked(self: Places, lease: Lease, offset: int) -> None:
            ack(self, lease, offset)
            self._acked += strikes()

        return acked

    with instead(Places, "ack", make):
        yield


@bug(DENSE, Law.FIGURES)
def figures_go_back() -> Iterator[None]:
    """redeliveries are not counted."""

    def make(grant: Any) -> Any:
        def granted(self: Places, run: Run, *rest: Any) -> Lease:
            lease: Lease = grant(self, run, *rest)
            self._redelivered = 0
            return lease

        return granted

    with instead(Places, "grant", make):
        yield


@bug(DENSE, Law.FIGURES)
def late_acks_not_counted() -> Iterator[None]:
    """a refused ack is not counted."""

    def make(ack: Any) -> Any:
        def acked(self: Subscription, held: Any) -> Any:
            answers = ack(self, held)
            self._places.late_acks = 0
            return answers

        return acked

    with instead(Subscription, "_ack", make):
        yield
