"""Defects of queues and leases; a dense run in one process shows each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpbroker.engine.batch import Run
from mpbroker.engine.leases import Lease, LeaseTable
from mpbroker.engine.places import Places
from mpbroker.engine.ready import Delayed, Lane, ReadyQueue
from mpbroker.engine.subscription import Subscription
from mpbroker.messages import MessagePriority
from mpbroker.testing.checker import Law
from tests.prove.bugs.plant import DENSE, bug, every, instead

# -- lost, and doubled -------------------------------------------------------------------------------------------------


@bug(DENSE, Law.KEPT)
def lost_at_publish() -> Iterator[None]:
    """a message of 500 never arrives in one subscription."""
    strikes = every(500)
    with instead(Places, "put", lambda put: lambda self, batch, now: False if strikes() else put(self, batch, now)):
        yield


@bug(DENSE, Law.KEPT)
def lost_on_its_way_back() -> Iterator[None]:
    """a delayed message is counted as acked when it is due."""
    strikes = every(10)

    def make(pop_due: Any) -> Any:
        def popped(self: Delayed, now: float) -> Iterator[Run]:
            for run in pop_due(self, now):
                if not strikes():
                    yield run

        return popped

    with instead(Delayed, "pop_due", make):
        yield


@bug(DENSE, Law.KEPT, Law.FIGURES)
def nack_finishes() -> Iterator[None]:
    """a nack finishes the message."""
    strikes = every(30)

    def make(fail: Any) -> Any:
        def failed(self: Places, lease: Lease, mask: int, *rest: Any, **named: Any) -> None:
            if strikes() and mask.bit_count() == 1:
                self.ack(lease, mask.bit_length() - 1)
            else:
                fail(self, lease, mask, *rest, **named)

        return failed

    with instead(Places, "fail", make):
        yield


@bug(DENSE, Law.HELD)
def two_holders() -> Iterator[None]:
    """a message that was handed over stays ready as well."""
    strikes = every(300)

    def make(grant: Any) -> Any:
        def granted(self: Places, run: Run, *rest: Any) -> Lease:
            if strikes():
                self.ready.put_back(Run(run.batch, run.start, run.stop, run.attempts, seen=True))
            lease: Lease = grant(self, run, *rest)
            return lease

        return granted

    with instead(Places, "grant", make):
        yield


@bug(DENSE, Law.HELD)
def double_redrive() -> Iterator[None]:
    """a redriven message is put back once more when it is handed over."""
    redriven: set[int] = set()

    def make_redrive(redrive: Any) -> Any:
        def moved(self: Places, wanted: Any, limit: Any) -> int:
            before = {record.sequence for record in self.letters}
            count: int = redrive(self, wanted, limit)
            redriven.update(before - {record.sequence for record in self.letters})
            return count

        return moved

    def make_grant(grant: Any) -> Any:
        def granted(self: Places, run: Run, *rest: Any) -> Lease:
            lease: Lease = grant(self, run, *rest)
            if run.history and run.sequence in redriven:
                redriven.discard(run.sequence)
                self.ready.put_back(Run(run.batch, run.start, run.stop, seen=True))
            return lease

        return granted

    with instead(Places, "redrive", make_redrive), instead(Places, "grant", make_grant):
        yield


@bug(DENSE, Law.HELD)
def ack_does_nothing() -> Iterator[None]:
    """an ack is answered True, and the lease goes on."""
    strikes = every(100)

    def make(ack: Any) -> Any:
        def acked(self: Places, lease: Lease, offset: int) -> None:
            if not strikes():
                ack(self, lease, offset)

        return acked

    with instead(Places, "ack", make):
        yield


@bug(DENSE, Law.FILTERED, Law.KEPT)
def filter_applied_wrong() -> Iterator[None]:
    """a filter's answer is turned round now and then."""
    strikes = every(20)

    def make(judge: Any) -> Any:
        def judged(self: Subscription, headers: Any) -> Any:
            verdict = judge(self, headers)
            return not verdict if self.settings.filter is not None and strikes() else verdict

        return judged

    with instead(Subscription, "judge", make):
        yield


@bug(DENSE, Law.KEPT, Law.DEAD, Law.FIGURES)
def overflow_forgets() -> Iterator[None]:
    """a message that finds its queue full is nowhere."""
    with instead(Places, "_overflow", lambda _: lambda self, run, now: False):
        yield


# -- settling ----------------------------------------------------------------------------------------------------------


@bug(DENSE, Law.SETTLED)
def token_ignored() -> Iterator[None]:
    """an ack with an old token settles whatever its sequence is held as now."""

    def make(by_token: Any) -> Any:
        first: dict[int, int] = {}

        def found(self: LeaseTable, token: int) -> Any:
            held = by_token(self, token)
            if held is not None:
                first[token] = held[0].sequence + held[1]
                return held
            return self.find(first.get(token, 0))

        return found

    with instead(LeaseTable, "by_token", make):
        yield


@bug(DENSE, Law.SETTLED)
def member_ignored() -> Iterator[None]:
    """anybody can ack by id."""

    def make(held: Any) -> Any:
        def holds(self: Subscription, target: int, member: str | None) -> Any:
            return held(self, target, member) if member is None else self._places.leases.find(target)

        return holds

    with instead(Subscription, "_held", make):
        yield


@bug(DENSE, Law.SETTLED)
def holder_refused() -> Iterator[None]:
    """the holder's ack is refused now and then."""
    strikes = every(200)

    def make(by_token: Any) -> Any:
        return lambda self, token: None if strikes() else by_token(self, token)

    with instead(LeaseTable, "by_token", make):
        yield


@bug(DENSE, Law.SETTLED, Law.KEPT, Law.FIGURES)
def settled_twice() -> Iterator[None]:
    """a second settling of one delivery is answered True."""

    def make(ack: Any) -> Any:
        done: set[tuple[int, int]] = set()

        def acked(self: Subscription, tokens: Any) -> list[bool]:
            answers = ack(self, tokens)
            answers = [answer or (self.number, token) in done for answer, token in zip(answers, tokens, strict=True)]
            done.update((self.number, token) for answer, token in zip(answers, tokens, strict=True) if answer)
            return answers

        return acked

    with instead(Subscription, "ack_tokens", make):
        yield


@bug(DENSE, Law.SETTLED, Law.HELD)
def answers_in_another_order() -> Iterator[None]:
    """the answers of ack_many come in another order than its ids."""

    def make(ack: Any) -> Any:
        return lambda self, sequences, member: ack(self, sequences, member)[::-1]

    with instead(Subscription, "ack", make):
        yield


@bug(DENSE, Law.DEAD, Law.KEPT)
def reject_comes_back() -> Iterator[None]:
    """a rejected message is ready again."""

    def make(_: Any) -> Any:
        return lambda self, lease, offset, error, now: self.give_back(lease, 1 << offset)

    with instead(Places, "reject", make):
        yield


# -- order -------------------------------------------------------------------------------------------------------------


@bug(DENSE, Law.ORDER)
def swapped_in_a_poll() -> Iterator[None]:
    """the runs of one poll come in another order."""
    strikes = every(50)

    def make(take: Any) -> Any:
        def taken(self: ReadyQueue, *rest: Any) -> list[Run]:
            runs: list[Run] = take(self, *rest)
            return runs[::-1] if strikes() else runs

        return taken

    with instead(ReadyQueue, "take", make):
        yield


@bug(DENSE, Law.ORDER)
def newest_first() -> Iterator[None]:
    """the newest fresh message leaves before the oldest now and then."""
    strikes = every(100)

    def make(take: Any) -> Any:
        def leave(self: Lane, limit: int) -> Run:
            if len(self.fresh) > 1 and strikes():
                run = self.fresh.pop()
                if len(run) <= limit:
                    self.count -= len(run)
                    return run
                self.fresh.append(run)
            taken: Run = take(self, limit)
            return taken

        return leave

    with instead(Lane, "take", make):
        yield


@bug(DENSE, Law.ORDER)
def priority_ignored() -> Iterator[None]:
    """a publish is queued in the lane of another priority."""
    strikes = every(60)

    def make(add: Any) -> Any:
        def added(self: ReadyQueue, run: Run) -> None:
            if strikes():
                self.lanes[MessagePriority.LOW].add(run)
                self.count += len(run)
            else:
                add(self, run)

        return added

    with instead(ReadyQueue, "add", make):
        yield


@bug(DENSE, Law.WAITING)
def poll_overlooks() -> Iterator[None]:
    """a poll is answered with nothing while messages are ready."""
    strikes = every(150)

    def make(take: Any) -> Any:
        return lambda self, *rest: [] if strikes() else take(self, *rest)

    with instead(ReadyQueue, "take", make):
        yield


@bug(DENSE, Law.ORDER)
def redelivered_flag_missing() -> Iterator[None]:
    """what comes back after a failure is not marked redelivered."""

    def make(failed: Any) -> Any:
        def runs(self: Places, *rest: Any) -> list[Run]:
            made: list[Run] = failed(self, *rest)
            for run in made:
                run.seen = False
            return made

        return runs

    with instead(Places, "_failed", make):
        yield
