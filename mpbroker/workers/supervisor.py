"""The supervisor process of a pool: starts workers, keeps their leases alive, sees them die, ends them.

One thread, one selector loop, and nothing of the user's in it: so it may fork, nothing holds its interpreter, and the
kernel's signal for a parent's death means its own. Told what to do by its owner over a socket, whose end is its own.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from enum import IntEnum
from math import inf
from multiprocessing.connection import Connection
from typing import Any, Final

from mpbroker.errors import BrokerGone, MpbrokerError, UnknownSubscription
from mpbroker.workers.board import Board, Look, Slot, State
from mpbroker.workers.children import Child
from mpbroker.workers.config import PoolConfig
from mpbroker.workers.deaths import Deaths, Exit, in_words
from mpbroker.workers.figures import PoolStats
from mpbroker.workers.handling import logger
from mpbroker.workers.keeping import LONGEST_PAUSE_S, Keeping, Need
from mpbroker.workers.looking import Told
from mpbroker.workers.worker import member_name

_IDLE_LOOK_S: Final = 0.1
"""Between two looks whether there is nothing left to do, for pools that end then."""

_NUDGE_S: Final = 0.2


class Stage(IntEnum):
    """How far the end of a pool is. DRAINING: what runs is finished. RELEASING: it is given back. KILLING."""

    RUNNING = 0
    DRAINING = 1
    RELEASING = 2
    KILLING = 3


class _Place:
    """Where one worker is, or will be: its slots, and what of its share is left."""

    def __init__(self, config: PoolConfig, board: Board, number: int) -> None:
        threads = config.threads
        self.slots = board.slots[number * threads : (number + 1) * threads]
        self.keepings: list[Keeping] = []
        self.child: Child | None = None
        self.start_at = 0.0
        self.left: int | None = None
        if config.max_messages is not None:
            share, rest = divmod(config.max_messages, config.processes)
            self.left = share + (number < rest)


class Supervisor:
    """See the module."""

    def __init__(self, config: PoolConfig, lifeline: Connection) -> None:
        self._config = config
        self._lifeline = lifeline
        self._has_owner = True
        its = config.subscription
        told = Told(os.getpid(), config.name, its.topic, its.name, config.threads, config.broker)
        board = Board(config.processes * config.threads, told.encode())
        self._places = [_Place(config, board, number) for number in range(config.processes)]
        self._stage = Stage.RUNNING
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._signals: deque[int] = deque()
        self._reason = ""
        self._was_ready = False
        self._serial = self._started = self._recycled = self._done = self._failed = 0
        self._deaths = Deaths()
        self._to_replace: deque[Child] = deque()
        self._replacing: Child | None = None

    # -- the loop -----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until all workers have ended, and there are to be no more."""
        self._listen()
        while True:
            now = time.monotonic()
            self._reap(now)
            self._start_workers(now)
            self._look_at_workers(now)
            self._look_for_end(now)
            if self._stage is not Stage.RUNNING and not self._children():
                break
            for key, _ in self._selector.select(self._pause_s()):
                key.data()
            while self._signals:
                self._on_signal(self._signals.popleft())
        self._tell("ended", self._reason, self._stats())
        signal.set_wakeup_fd(-1)
        for end in (self._selector, self._woken, self._wake):
            end.close()

    def _listen(self) -> None:
        for end in (self._woken, self._wake):
            end.settimeout(0.0)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self._signals.append(number))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._selector.register(self._woken, selectors.EVENT_READ, self._empty_bell)
        self._selector.register(self._lifeline, selectors.EVENT_READ, self._serve_owner)

    def _empty_bell(self) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._end("it was told to end by a signal", Stage(min(self._stage + 1, Stage.KILLING)))
        elif number == signal.SIGHUP:
            self._replace_all()

    def _children(self) -> list[Child]:
        return [place.child for place in self._places if place.child is not None]

    def _pause_s(self) -> float:
        now, pause = time.monotonic(), LONGEST_PAUSE_S
        now_ns = time.monotonic_ns()
        config = self._config
        for place in self._places:
            child = place.child
            if child is None:
                if self._stage is Stage.RUNNING and place.left != 0:
                    pause = min(pause, place.start_at - now)
                continue
            for slot, keeping in zip(place.slots, place.keepings, strict=True):
                pause = min(pause, keeping.pause_s(slot.look(), now_ns))
            due = inf if child.stop_by is None else min(child.stop_by, now + _NUDGE_S)
            if not child.is_ready:
                due = min(due, child.started + config.start_timeout_s)
            if config.max_age_s is not None and child.stop_by is None:
                due = min(due, child.started + config.max_age_s)
            pause = min(pause, due - now)
        if self._stage is Stage.RUNNING and (config.burst or config.max_idle_s is not None):
            pause = min(pause, _IDLE_LOOK_S)
        return max(0.0, pause)

    # -- births and deaths --------------------------------------------------------------------------------------------

    def _start_workers(self, now: float) -> None:
        if self._stage is not Stage.RUNNING:
            return
        inherited = [self._lifeline.close, self._woken.close, self._wake.close, self._selector.close]
        for place in self._places:
            if place.child is not None or place.left == 0 or place.start_at > now:
                continue
            self._serial += 1
            self._started += 1
            others = [child.notices.close for child in self._children()]
            child = Child(self._config, self._serial, place.slots, place.left, [*inherited, *others])
            place.child = child
            child.events = self._deaths.watch(child.pid)
            place.keepings = [Keeping(self._config) for _ in place.slots]
            self._selector.register(child.notices, selectors.EVENT_READ, lambda child=child: self._hear(child))
            logger.info("worker %s started, process %d", self._member(child), child.pid)

    def _hear(self, child: Child) -> bool:
        """What a worker says: ready; failed (why, and the error); ended (why); lease (one shorter than before).

        False: it says no more.
        """
        try:
            kind, *words = child.notices.recv()
        except Exception:  # noqa: BLE001 - it died in the middle of a word, or a handler wrote nonsense to it
            with suppress(KeyError):
                self._selector.unregister(child.notices)
            return False
        if kind == "ready":
            child.is_ready = True
            child.events = self._deaths.watch(child.pid)  # its initializer may have moved it
            if not self._was_ready:
                self._was_ready = True
                self._tell("ready", os.getpid())
        elif kind in ("failed", "ended"):
            child.last_words = words[0]
            child.cause = words[1] if len(words) > 1 else None
        return True

    def _reap(self, now: float) -> None:
        for place in self._places:
            child = place.child
            if child is None:
                continue
            code = child.reap()
            if code is None:
                continue
            while child.notices.poll():  # its last words
                if not self._hear(child):
                    break
            with suppress(KeyError):
                self._selector.unregister(child.notices)
            child.notices.close()
            self._bury(place, child, code, [slot.look() for slot in place.slots], now)

    def _bury(self, place: _Place, child: Child, code: int, looks: list[Look], now: float) -> None:
        place.child = None
        place.start_at = now
        done, failed = sum(look.done for look in looks), sum(look.failed for look in looks)
        self._done += done
        self._failed += failed
        if place.left is not None:
            place.left = max(0, place.left - done - failed)
        for slot in place.slots:
            slot.clear()
        if code == Exit.DONE and child.verdict is None:
            self._recycled += 1
            logger.info("worker %s ended", self._member(child))
            self._follow(child)
            return
        if code in (Exit.NO_BROKER, Exit.NO_SUBSCRIPTION) and child.last_words:
            self._end(child.last_words, Stage.KILLING)
            return
        if self._stage is Stage.RUNNING or child.verdict is None:
            self._note_death(child, code, looks)
        if code == Exit.UNUSABLE and not self._was_ready:
            self._tell("failed", child.last_words or in_words(code), child.cause)
            self._end(child.last_words, Stage.KILLING)
        elif child.verdict is None and done + failed == 0:
            place.start_at = now + self._deaths.pause_s(self._finished())
        self._follow(child)

    def _note_death(self, child: Child, code: int, looks: list[Look]) -> None:
        how = child.verdict or self._deaths.how(code, child.events)
        if child.last_words:
            how = f"{how}: {child.last_words}"
        held = tuple(f"m{sequence}" for look in looks for sequence in look.held)
        logger.warning("%s", self._deaths.note(self._member(child), child.pid, how, held))

    def _finished(self) -> int:
        looks = [slot.look() for place in self._places if place.child is not None for slot in place.slots]
        return self._done + self._failed + sum(look.done + look.failed for look in looks)

    # -- what workers need --------------------------------------------------------------------------------------------

    def _look_at_workers(self, now: float) -> None:
        config = self._config
        for place in self._places:
            child = place.child
            if child is None or child.verdict is not None:
                continue
            if child.stop_by is not None:
                if now >= child.stop_by:
                    self._give_back_and_kill(place, child, None)
                    continue
                child.nudge()
            elif config.max_age_s is not None and now - child.started >= config.max_age_s:
                self._stop(place, child)
            if not child.is_ready and now - child.started >= config.start_timeout_s:
                child.last_words = f"it was not ready within {config.start_timeout_s:g} s"
                child.verdict = "killed"
                child.kill()
                if not self._was_ready:
                    self._tell("failed", f"the first worker: {child.last_words}", None)
                    self._end(child.last_words, Stage.KILLING)
            for number in range(len(place.slots)):
                self._see_to(place, child, number)
        if self._to_replace and self._replacing is None and all(child.is_ready for child in self._children()):
            self._replace_next()

    def _see_to(self, place: _Place, child: Child, number: int) -> None:
        slot, keeping = place.slots[number], place.keepings[number]
        now_ns = time.monotonic_ns()
        look = slot.look()
        need = keeping.need(look, now_ns)
        if need is Need.KILL:
            error = f"timeout: it took more than {self._config.timeout_s:g} s; the worker was killed"
            self._give_back_and_kill(place, child, error)
        elif need is Need.EXTEND:
            for sequence in keeping.to_extend(look, now_ns):
                if self._ask("extend", child, number, sequence):
                    keeping.extended(look, now_ns)
                elif sequence == look.sequence and slot.look().since_ns == look.since_ns:
                    self._lose(slot, look, child, number)
        elif need is Need.LOSE and not slot.is_lost:
            self._lose(slot, look, child, number)

    def _lose(self, slot: Slot, look: Look, child: Child, number: int) -> None:
        slot.lost(look.since_ns)
        logger.warning("m%d was taken back from worker %s", look.sequence, self._member(child, number))

    def _ask(self, verb: str, child: Child, number: int, sequence: int, **more: Any) -> bool:
        """A verb of the subscription, about what a worker holds. False, too, where the broker cannot be asked."""
        member = member_name(self._config.name, child.serial, number, self._config.threads)
        try:
            return bool(getattr(self._config.subscription, verb)(f"m{sequence}", member, **more))
        except (BrokerGone, UnknownSubscription) as error:
            self._end(str(error), Stage.KILLING)
        except MpbrokerError as error:
            logger.warning("%s of m%d failed: %s", verb, sequence, error)
        return False

    def _stop(self, place: _Place, child: Child) -> None:
        """Have a worker finish what it runs; what waits behind that is others' at once."""
        child.stop(time.monotonic() + self._config.grace_s)
        for number, slot in enumerate(place.slots):
            look = slot.look()
            if look.state is State.BUSY:
                for sequence in look.waiting:
                    self._ask("release", child, number, sequence)

    def _give_back_and_kill(self, place: _Place, child: Child, late: str | None) -> None:
        """End a worker now. What it holds goes back uncounted, except the message that was ``late``, which failed."""
        child.halt()
        child.verdict = late or "ended by force: its time to finish was over"
        child.stop_by = inf
        for number, slot in enumerate(place.slots):
            look = slot.look()
            for sequence in look.held:
                if late is not None and look.state is State.BUSY and sequence == look.sequence:
                    self._ask("nack", child, number, sequence, error=late)
                    self._failed += 1
                else:
                    self._ask("release", child, number, sequence)
        child.kill()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end(self, reason: str, stage: Stage) -> None:
        """Go on to a stage, if that is further than this one."""
        if stage <= self._stage:
            return
        self._reason = self._reason or reason
        self._stage = stage
        for place in self._places:
            child = place.child
            if child is None:
                continue
            if stage is Stage.DRAINING:
                self._stop(place, child)
            elif stage is Stage.RELEASING:
                self._give_back_and_kill(place, child, None)
            else:
                child.verdict = child.verdict or "killed"
                child.kill()

    def _look_for_end(self, now: float) -> None:
        if self._stage is not Stage.RUNNING:
            return
        config = self._config
        if all(place.left == 0 for place in self._places):
            self._end("it has done its messages", Stage.DRAINING)
        looks = [slot.look() for child in self._children() for slot in child.slots]
        if not looks or any(look.state is not State.IDLE for look in looks):
            return
        idle_s = now - max(look.since_ns for look in looks) / 1e9
        if config.max_idle_s is not None and idle_s >= config.max_idle_s:
            self._end(f"nothing came for {config.max_idle_s:g} s", Stage.DRAINING)
        elif config.burst and self._is_empty():
            self._end("there is nothing left to do", Stage.DRAINING)

    def _is_empty(self) -> bool:
        try:
            stats = self._config.subscription.stats()
        except (BrokerGone, UnknownSubscription) as error:
            self._end(str(error), Stage.KILLING)
            return False
        except MpbrokerError:
            return False
        return bool(stats.backlog == 0 and stats.in_flight == 0)

    # -- replacing ----------------------------------------------------------------------------------------------------

    def _replace_all(self) -> None:
        """By new ones, one after another: the next one when the last new one works."""
        self._to_replace = deque(self._children())

    def _replace_next(self) -> None:
        old = self._to_replace.popleft()
        for place in self._places:
            if place.child is old and old.stop_by is None:
                self._replacing = old
                self._stop(place, old)

    def _follow(self, child: Child) -> None:
        """One ended: if it was being replaced, the next may be when the new one is ready."""
        if child is self._replacing:
            self._replacing = None

    # -- the owner ----------------------------------------------------------------------------------------------------

    def _serve_owner(self) -> None:
        try:
            request = self._lifeline.recv()
        except (EOFError, OSError):
            self._has_owner = False
            self._selector.unregister(self._lifeline)
            self._end("the process that started it is gone", Stage.RELEASING)
            return
        if request == "stats":
            self._tell("stats", self._stats())
        elif request == "replace":
            self._replace_all()
        else:
            self._end("it was told to end", Stage(request))

    def _tell(self, *words: Any) -> None:
        if self._has_owner:
            with suppress(OSError):
                self._lifeline.send(words)

    def _member(self, child: Child, number: int = 0) -> str:
        return member_name(self._config.name, child.serial, number, self._config.threads)

    def _stats(self) -> PoolStats:
        workers = [each for child in self._children() for each in child.stats(self._config.name, self._config.threads)]
        is_over = self._stage is not Stage.RUNNING and not workers
        subscription = self._config.subscription
        return PoolStats(
            self._config.name,
            subscription.topic,
            subscription.name,
            os.getpid(),
            "ended" if is_over else self._stage.name.lower(),
            tuple(workers),
            self._started,
            self._deaths.count,
            self._recycled,
            self._done + sum(each.done for each in workers),
            self._failed + sum(each.failed for each in workers),
            tuple(self._deaths.last),
        )
