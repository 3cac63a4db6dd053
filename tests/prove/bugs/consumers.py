"""Defects that only a consumer shows: of its buffer, its acks and its end; rounds of real processes show each.

In consuming rounds nobody is struck and no lease ends; in late ones leases are short and work is slow, so that many
end; in fallen ones consumers are killed and fork.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mpbroker.engine.leases import Lease
from mpbroker.engine.places import Places
from mpbroker.pipeline.consumer import Consumer, Run
from mpbroker.pipeline.settling import LEASE_TOKENS, Settler
from mpbroker.process.consuming import ProcessFetchWire, ProcessSettleWire
from mpbroker.testing.checker import Law
from tests.prove.bugs.plant import bug, every, instead

CONSUMING_BROKER = "consuming broker"
CONSUMING_CLIENT = "consuming client"
LATE_CLIENT = "late client"
FALLEN_CLIENT = "fallen client"

# -- what is fetched ---------------------------------------------------------------------------------------------------


@bug(CONSUMING_CLIENT, Law.TOKENS)
def yielded_twice() -> Iterator[None]:
    """a consumer yields the last message of a run twice."""
    strikes = every(20)

    def make(buffered: Any) -> Any:
        def found(self: Consumer) -> Run | None:
            runs = self._runs
            if runs and runs[0].stop and runs[0].at == runs[0].stop and strikes():
                runs[0].at -= 1
            run: Run | None = buffered(self)
            return run

        return found

    with instead(Consumer, "_buffered", make):
        yield


@bug(CONSUMING_CLIENT, Law.ENDED)
def piece_dropped() -> Iterator[None]:
    """a consumer forgets the last piece of a run that it fetched."""
    strikes = every(20)

    def make(pieces: Any) -> Any:
        def cut(self: Run, size: int) -> list[Run]:
            made: list[Run] = pieces(self, size)
            return made[:-1] if strikes() else made

        return cut

    with instead(Run, "pieces", make):
        yield


@bug(CONSUMING_CLIENT, Law.ENDED)
def run_dropped_at_the_end() -> Iterator[None]:
    """a consumer that is closed does not give back what it had fetched."""
    with instead(Run, "tokens", lambda _: lambda self: range(0)):
        yield


@bug(LATE_CLIENT, Law.ATTEMPTS)
def run_held_to_the_end_of_its_lease() -> Iterator[None]:
    """a consumer that is closed leaves what it had fetched to the ends of the leases."""
    with run_dropped_at_the_end():
        yield


@bug(CONSUMING_CLIENT, Law.ENDED)
def answer_not_undone() -> Iterator[None]:
    """a consumer that is closed has the answer to its last poll lost."""

    def make(_: Any) -> Any:
        def cancelled(self: ProcessFetchWire) -> None:
            self.is_asked = False
            self._line.close()

        return cancelled

    with instead(ProcessFetchWire, "cancel", make):
        yield


@bug(LATE_CLIENT, Law.TOKENS, Law.TIMES)
def lease_made_up() -> Iterator[None]:
    """a consumer yields what was taken back as if it had just been handed over."""

    def make(buffered: Any) -> Any:
        def found(self: Consumer) -> Run | None:
            run: Run | None = buffered(self)
            now = time.monotonic()
            if run is not None and run.deadline < now:
                run.deadline = now + 0.3
            return run

        return found

    with instead(Consumer, "_buffered", make):
        yield


@bug(CONSUMING_CLIENT, Law.TOKENS)
def newest_first() -> Iterator[None]:
    """a consumer yields what it fetched in another order."""

    def make(fetch: Any) -> Any:
        def fetched(self: Consumer, since: float) -> Run | None:
            fetch(self, since)
            self._runs.reverse()
            return self._runs[0] if self._runs else None

        return fetched

    with instead(Consumer, "_fetch", make):
        yield


# -- acks --------------------------------------------------------------------------------------------------------------


@bug(CONSUMING_CLIENT, Law.FIGURES, Law.SETTLED, Law.KEPT)
def range_too_long() -> Iterator[None]:
    """a range of acks is one too long."""
    strikes = every(5)

    def make(ack: Any) -> Any:
        def acked(self: ProcessSettleWire, ranges: list[int]) -> None:
            if strikes() and (ranges[-1] + 1) % LEASE_TOKENS:
                ranges = [*ranges[:-1], ranges[-1] + 1]
            ack(self, ranges)

        return acked

    with instead(ProcessSettleWire, "ack", make):
        yield


@bug(CONSUMING_CLIENT, Law.FIGURES, Law.HELD, Law.ENDED)
def range_too_short() -> Iterator[None]:
    """a range of acks is one too short."""
    strikes = every(20)

    def make(ack: Any) -> Any:
        def acked(self: ProcessSettleWire, ranges: list[int]) -> None:
            if strikes() and ranges[-1] > ranges[-2]:
                ranges = [*ranges[:-1], ranges[-1] - 1]
            ack(self, ranges)

        return acked

    with instead(ProcessSettleWire, "ack", make):
        yield


@bug(CONSUMING_CLIENT, Law.FIGURES, Law.HELD, Law.ENDED)
def acks_lost_at_the_end() -> Iterator[None]:
    """a consumer that is closed forgets the acks that it did not send."""

    def make(end: Any) -> Any:
        def ended(self: Settler, releases: Any) -> None:
            self._noted.clear()
            end(self, releases)

        return ended

    with instead(Settler, "end", make):
        yield


@bug(LATE_CLIENT, Law.HELD)
def acks_left_to_the_leases() -> Iterator[None]:
    """a consumer that is closed forgets acks, and what was acked comes again."""
    with acks_lost_at_the_end():
        yield


@bug(CONSUMING_CLIENT, Law.FIGURES)
def acks_sent_twice() -> Iterator[None]:
    """acks are sent a second time."""
    strikes = every(20)

    def make(ack: Any) -> Any:
        def acked(self: ProcessSettleWire, ranges: list[int]) -> None:
            ack(self, ranges)
            if strikes():
                ack(self, ranges)

        return acked

    with instead(ProcessSettleWire, "ack", make):
        yield


@bug(CONSUMING_CLIENT, Law.SETTLED)
def second_ack_noted() -> Iterator[None]:
    """a second ack of one delivery is True."""

    def make(ack: Any) -> Any:
        def acked(self: Settler, token: int) -> bool:
            done: bool = ack(self, token)
            return done or not self.is_over

        return acked

    with instead(Settler, "_ack_token", make):
        yield


@bug(CONSUMING_CLIENT, Law.SETTLED)
def holder_not_noted() -> Iterator[None]:
    """a consumer refuses the ack of what it holds."""
    strikes = every(50)

    def make(ack: Any) -> Any:
        def acked(self: Settler, token: int) -> bool:
            return False if strikes() and not self.is_over else bool(ack(self, token))

        return acked

    with instead(Settler, "_ack_token", make):
        yield


# -- other verbs, and the end ------------------------------------------------------------------------------------------


@bug(LATE_CLIENT, Law.SETTLED)
def taken_back_and_settled() -> Iterator[None]:
    """a nack, release or reject of what was taken back is True."""

    def make(done: Any) -> Any:
        def settled(self: Settler, token: int, *, answer: bool) -> bool:
            done(self, token, answer=answer)
            return answer or True

        return settled

    with instead(Settler, "_done", make):
        yield


@bug(LATE_CLIENT, Law.SETTLED, Law.HELD)
def extension_made_up() -> Iterator[None]:
    """a consumer says that a lease was extended, and does not ask for it."""

    def make(extend: Any) -> Any:
        def extended(self: Settler, token: int, seconds: float | None, now: float | None) -> float | None:
            return time.monotonic() + (seconds or 0.0) if token in self.held else None

        return extended

    with instead(Settler, "_extend_token", make):
        yield


@bug(CONSUMING_CLIENT, Law.ENDED)
def held_not_given_back() -> Iterator[None]:
    """a consumer that is closed does not give back what its caller held."""

    def make(end: Any) -> Any:
        def ended(self: Consumer, *, with_held: bool) -> None:
            end(self, with_held=with_held and False)

        return ended

    with instead(Consumer, "_end", make):
        yield


@bug(CONSUMING_CLIENT, Law.ATTEMPTS)
def given_back_as_failed() -> Iterator[None]:
    """a consumer that is closed has what its caller held fail."""

    def make(release: Any) -> Any:
        def released(self: Consumer, *, with_held: bool) -> None:
            settler = self._settler
            for token in () if settler.is_over else list(settler.held):
                settler._nack_token(token, 0.0, "", None)
            release(self, with_held=with_held)

        return released

    with instead(Consumer, "_end", make):
        yield


@bug(CONSUMING_BROKER, Law.ATTEMPTS)
def given_back_and_counted() -> Iterator[None]:
    """what a closed consumer gives back counts as an attempt."""

    def make(give_back: Any) -> Any:
        def given(self: Places, first: int, last: int) -> int:
            held = self.leases.by_range(first, last)
            if held is not None:
                held[0].attempt += 1
            count: int = give_back(self, first, last)
            return count

        return given

    with instead(Places, "give_back_range", make):
        yield


@bug(CONSUMING_BROKER, Law.ATTEMPTS)
def undone_and_counted() -> Iterator[None]:
    """a poll that was undone counts as an attempt."""

    def make(undo: Any) -> Any:
        def undone(self: Places, lease: Lease) -> int:
            lease.attempt += 1
            count: int = undo(self, lease)
            return count

        return undone

    with instead(Places, "undo", make):
        yield


@bug(CONSUMING_BROKER, Law.KEPT, Law.FIGURES)
def undone_and_gone() -> Iterator[None]:
    """what a poll had that was undone is gone."""

    def make(_: Any) -> Any:
        def undone(self: Places, lease: Lease) -> int:
            count = lease.left
            self._deliveries -= count
            self._dropped += count
            self.leases.settle(lease, lease.open)
            return count

        return undone

    with instead(Places, "undo", make):
        yield


@bug(FALLEN_CLIENT, Law.HELD, Law.FIGURES, Law.ENDED)
def noted_and_never_sent() -> Iterator[None]:
    """a consumer forgets some of its acks, and is killed now and then."""
    strikes = every(5)

    def make(send: Any) -> Any:
        def sent(self: Settler) -> None:
            if strikes():
                self._noted.clear()
            send(self)

        return sent

    with instead(Settler, "send", make):
        yield
