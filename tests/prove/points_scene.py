"""A scene: one victim at one kill point with one action, at a broker that others use, and the judgment of it.

The broker and the bystander are there for many scenes, one after the other; each scene has a topic of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NoReturn, Self

from mpbroker import BrokerManager, RetryPolicy
from mpbroker.process.naming import Transport
from mpbroker.process.proxy import BrokerProxy
from tests.prove.planes import plane_of, wrong_rings
from tests.prove.points_arena_deeds import BLOCK_BYTES, THRESHOLD, block, look
from tests.prove.points_clients import ClientPoint
from tests.prove.points_deeds import READER, Book, Play, key_of
from tests.prove.points_trap import LIMIT_S, Action, Signs, Trap, is_asleep, is_stopped

LONG_S: Final = 600.0
"""A lease that no scene sees the end of: what comes back, comes back for another reason."""

SHORT_S: Final = 1.0
"""A lease that ends while its holder is stopped, and outlasts what a busy machine takes from the poll to the point."""

_PAUSE_S: Final = 0.002
_BREATH_S: Final = 0.01
_FORK: Final = multiprocessing.get_context("fork")
_POLICY: Final = RetryPolicy(max_attempts=5, base_delay=0.01, multiplier=1.0)
_CAME: Final = {(1, False): "fresh", (1, True): "back", (2, True): "again", (3, True): "third"}


class Missed(AssertionError):
    """Something that must come did not."""


def wait_until(what: str, there: Callable[[], Any]) -> Any:
    """What ``there`` returns once that is something. Raises Missed."""
    deadline = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not (found := there()):
        if time.monotonic() >= deadline:
            raise Missed(f"{what}: not within {LIMIT_S:g} s")
        pause.wait(_PAUSE_S)
    return found


# -- the victim -------------------------------------------------------------------------------------------------------


class Victim:
    """A process that does the deed of a point with the trap set."""

    def __init__(self, point: ClientPoint, action: Action, broker: BrokerProxy, topic: str, folder: Path) -> None:
        self._book = folder / "book"
        self._ours, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_live, args=(point, action, broker, topic, folder, theirs, self._ours))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def book(self) -> list[list[Any]]:
        return Book.read(self._book)

    @property
    def is_over(self) -> bool:
        return not self._process.is_alive()

    def said(self, word: str) -> bool:
        return any(line[0] == word for line in self.book)

    def let_go(self) -> None:
        """It may end now."""
        with suppress(OSError):
            self._ours.send(None)

    def end(self) -> int:
        """Wait for its end; its exit code."""
        self._process.join(LIMIT_S)
        if self._process.exitcode is None:
            raise Missed(f"the victim did not end; its book: {self.book}")
        return self._process.exitcode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join(LIMIT_S)
        self._process.close()
        self._ours.close()


def _live(
    point: ClientPoint,
    action: Action,
    broker: BrokerProxy,
    topic: str,
    folder: Path,
    pipe: Connection,
    theirs: Connection,
) -> None:
    """The victim's life."""
    theirs.close()
    _write_errors_to(folder / "stderr")
    signal.signal(signal.SIGINT, _interrupt)
    book, signs = Book(folder / "book"), Signs(folder)

    def call_in_child() -> None:
        try:
            found = topic in broker.topics()
        except BaseException:
            book.note("failed", f"in the forked child: {traceback.format_exc()}")
        else:
            book.note("child", found)

    trap = Trap(point.spot, action, signs, KeyboardInterrupt, call_in_child)

    def struck(*_: Any) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        book.note("struck")
        trap.strike()

    signal.signal(signal.SIGUSR1, struck)

    def arm() -> None:
        signs.open()
        trap.arm()

    try:
        try:
            point.deed(Play(broker, topic, book, arm))
            book.note("done")
            book.note("plane", plane_of(broker))
        except KeyboardInterrupt:
            trap.disarm()
            book.note("interrupted")
            book.note("next", topic in broker.topics())
            book.note("plane", plane_of(broker))
            with suppress(EOFError):
                pipe.recv()
        if not point.ends:
            broker.close()
    except BaseException:
        book.note("failed", traceback.format_exc())
    finally:
        # After the goodbye, which comes at 5.
        util.Finalize(None, trap.reap, exitpriority=1)


def _interrupt(*_: Any) -> NoReturn:
    """Once: a second one, sent in doubt of the first, would strike what comes after."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _write_errors_to(path: Path) -> None:
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(fd, 2)
    os.close(fd)


# -- who is beside it -------------------------------------------------------------------------------------------------


class Bystander:
    """A process that publishes, polls, extends and acks all the time, on its own topic, and must notice nothing."""

    def __init__(self, broker: BrokerProxy) -> None:
        self._ours, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_stand_by, args=(broker, theirs, self._ours))
        self._process.start()
        theirs.close()

    def report(self) -> tuple[int, list[str]]:
        """Calls that it made so far, and what went wrong; waits for a round that began after this call."""
        self._ours.send("report")
        if not self._ours.poll(LIMIT_S):
            raise Missed("the bystander hangs")
        calls, errors = self._ours.recv()
        return calls, errors

    def close(self) -> None:
        with suppress(OSError):
            self._ours.send(None)
        self._process.join(LIMIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(LIMIT_S)
        self._process.close()
        self._ours.close()


def _stand_by(broker: BrokerProxy, pipe: Connection, theirs: Connection) -> None:
    theirs.close()
    errors: list[str] = []
    calls = 0
    broker.create_topic("beside")
    subscription = broker.subscribe("beside", "bystander", ack_timeout=LONG_S)
    while True:
        try:
            message = broker.publish("beside", calls)
            (delivery,) = subscription.poll("bystander")
            if (delivery.message_id, delivery.payload, delivery.attempt) != (message.message_id, calls, 1):
                errors.append(f"published {message}, got {delivery.message}, attempt {delivery.attempt}")
            if not (delivery.extend(LONG_S) and delivery.ack()):
                errors.append(f"did not hold {delivery.message}")
            calls += 4
        except Exception:
            errors.append(traceback.format_exc())
        if pipe.poll(_BREATH_S):
            if pipe.recv() is None:
                broker.close()
                return
            pipe.send((calls, errors))
            errors = []


# -- the scene --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Reading:
    """What the others were handed of one subscription."""

    came: dict[str, list[str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def take(self, subscription: Any) -> int:
        """Poll once and ack all of it; how many came."""
        deliveries = subscription.poll("other", None, 10)
        for each in deliveries:
            payload = each.payload
            key = look(payload) if payload[1:2] == ("block",) else key_of(payload)
            word = _CAME.get((each.attempt, each.redelivered), f"attempt {each.attempt}, {each.redelivered}")
            self.came.setdefault(key, []).append(word)
            if not each.ack():
                self.refused.append(key)
        return len(deliveries)


class Stage:
    """A broker with a bystander, and scenes on it. One at a time."""

    def __init__(self, base: Path, plane: Transport, modules: Sequence[str] = ()) -> None:
        """modules: filter modules of the broker."""
        self._number = 0
        self._plane = plane
        with ExitStack() as opened:
            self._manager = opened.enter_context(
                BrokerManager(
                    directory=base / "brokers", filter_modules=modules, transport=plane, arena_threshold=THRESHOLD
                )
            )
            self._broker = self._manager.broker()
            self._bystander = Bystander(self._broker)
            opened.callback(self._bystander.close)
            self._bystander.report()
            self._sessions = self._figure("sessions")
            self._rings = self._figure("rings")
            # This process's and the bystander's.
            assert not wrong_rings(plane, self._rings, 2)
            self._opened = opened.pop_all()

    def close(self) -> int:
        """End everything; how many calls the bystander made."""
        try:
            return self._bystander.report()[0]
        finally:
            self._opened.close()

    @property
    def pid(self) -> int:
        assert self._manager.pid is not None
        return self._manager.pid

    def play(self, point: ClientPoint, action: Action, folder: Path) -> list[str]:
        """Play a scene; returns what was wrong."""
        self._number += 1
        topic = f"scene {self._number}"
        self._broker.create_topic(topic)
        try:
            wrong = self._play(point, action, folder, topic)
        except Missed as missed:
            wrong = [str(missed)]
        except Exception:
            wrong = [traceback.format_exc()]
        finally:
            for each in [name for name in self._broker.topics() if name.startswith(topic)]:
                self._broker.delete_topic(each)
        if wrong:
            wrong.append(f"the victim's book: {Book.read(folder / 'book')}")
            with suppress(OSError):
                wrong.append(f"it wrote: {(folder / 'stderr').read_text()[-2000:]}")
        return wrong

    def _play(self, point: ClientPoint, action: Action, folder: Path, topic: str) -> list[str]:
        lease = SHORT_S if action is Action.STOP else LONG_S
        settings: dict[str, Any] = {"retry": _POLICY} if point.push else {"max_deliveries": 1 if point.last else 5}
        work = self._broker.subscribe(topic, READER, ack_timeout=lease, **settings)
        audit = self._broker.subscribe(topic, "audit", ack_timeout=LONG_S)
        self._publish(topic, range(point.ready), point.bulk)
        fates = point.fates(action)
        reading = Reading()
        with Victim(point, action, self._broker, topic, folder) as victim:
            signs = Signs(folder)
            if point.fed:
                wait_until("the sleep", lambda: self._sleeps(victim) or victim.is_over)
                self._publish(topic, range(point.ready, point.ready + point.coming), point.bulk)
            wait_until("the point", lambda: signs.reached or victim.is_over)
            if not signs.reached:
                return ["the point was not reached"]
            self._strike(point, action, victim)
            if not point.fed:
                self._publish(topic, range(point.ready, point.ready + point.coming), point.bulk)
            if action is Action.STOP:
                self._look_on(point, work, reading, fates)
                os.kill(victim.pid, signal.SIGCONT)
            elif action is Action.RAISE and not point.ends:
                wait_until("the interruption", lambda: victim.said("next") or victim.is_over)
                if not point.push:
                    self._read_while(reading, work, [key for key, words in fates.items() if words == ("fresh",)])
                victim.let_go()
            code = victim.end()
            book = victim.book
        self._read_all(reading, work)
        wrong = [*self._judge_end(action, point, code, book), *self._judge(topic, fates, reading, book)]
        seen = Reading()
        self._read_all(seen, audit)
        there = {key: ["fresh"] for key in sorted(self._published(fates, reading))}
        if seen.came != there or list(seen.came) != sorted(seen.came):
            wrong.append(f"the other subscription has {seen.came}, not {there}")
        wait_until("the end of the victim's session", lambda: self._figure("sessions") == self._sessions)
        wait_until("the end of the victim's rings", lambda: self._figure("rings") == self._rings)
        wait_until("the end of all blocks", lambda: not any(each.used for each in self._broker._status().arena))
        planes = {line[1] for line in book if line[0] == "plane"} - {None}
        if not planes <= {self._plane}:
            wrong.append(f"the victim's calls went by {planes}")
        elif not planes and action in (Action.STOP, Action.FORK):
            wrong.append("the victim has never said how its calls went")
        calls, errors = self._bystander.report()
        if self._broker._status().pid != self.pid:
            wrong.append("the broker is another one")
        return [*wrong, *(f"the bystander, after {calls} calls: {error}" for error in errors)]

    def _strike(self, point: ClientPoint, action: Action, victim: Victim) -> None:
        """Do what is done from outside, and wait until what was done shows."""
        if point.spot.outside:
            wait_until("the wait in the broker", lambda: self._figure("waiting_calls") == 1)
            if action in (Action.KILL, Action.STOP):
                os.kill(victim.pid, signal.SIGKILL if action is Action.KILL else signal.SIGSTOP)
            else:
                # A signal just before the wait begins does not end it; a person would press the keys again.
                number, word = (signal.SIGINT, "interrupted") if action is Action.RAISE else (signal.SIGUSR1, "struck")
                os.kill(victim.pid, number)
                if not _soon(lambda: victim.said(word)):
                    os.kill(victim.pid, number)
                    wait_until(word, lambda: victim.said(word))
        if action is Action.STOP:
            wait_until("the stop", lambda: is_stopped(victim.pid))
        elif action is Action.KILL:
            wait_until("the end", lambda: victim.is_over)
            wait_until("the broker's notice", lambda: self._figure("sessions") == self._sessions)
        elif action is Action.RAISE and point.coming:
            wait_until("the interruption", lambda: victim.said("next") or victim.is_over)
        elif action is Action.FORK and point.coming:
            wait_until("the child's call", lambda: victim.said("child") or victim.said("failed"))
        if point.parks and action in (Action.STOP, Action.FORK):
            wait_until("the wait in the broker", lambda: self._figure("waiting_calls") == 1)

    def _look_on(self, point: ClientPoint, work: Any, reading: Reading, fates: dict[str, tuple[str, ...]]) -> None:
        """While the victim is stopped: its leases end, and others get what it held."""
        began = time.monotonic()
        if not point.push:
            coming = [key for key, words in fates.items() if key[0] == "m" and not {"acked", "dead"} & {*words}]
            self._read_while(reading, work, coming)
        threading.Event().wait(max(0.0, began + 1.1 * SHORT_S - time.monotonic()))

    def _read_while(self, reading: Reading, subscription: Any, coming: list[str]) -> None:
        def read() -> bool:
            reading.take(subscription)
            return reading.came.keys() >= {*coming}

        try:
            wait_until("", read)
        except Missed:
            raise Missed(f"the others got {reading.came}, and not all of {coming}: {subscription.stats()}") from None

    def _read_all(self, reading: Reading, subscription: Any) -> None:
        """Until nothing is ready, delayed or in flight."""

        def read() -> bool:
            stats = subscription.stats()
            return not reading.take(subscription) and not (stats.backlog or stats.in_flight)

        try:
            wait_until("", read)
        except Missed:
            raise Missed(f"the others got {reading.came}, and this stayed: {subscription.stats()}") from None

    # -- judgment -----------------------------------------------------------------------------------------------------

    def _judge_end(self, action: Action, point: ClientPoint, code: int, book: list[list[Any]]) -> list[str]:
        wrong = [str(line[1]) for line in book if line[0] == "failed"]
        expected = -signal.SIGKILL if action is Action.KILL else 0
        if code != expected and not (point.ends and action is Action.RAISE):
            wrong.append(f"the victim ended with {code}, not {expected}")
        said = {line[0]: line[1:] for line in book}
        if action is Action.RAISE and not point.ends and said.get("next") != [True]:
            wrong.append("the call after the interrupted one did not get its answer")
        if action is Action.FORK and said.get("child") != [True]:
            wrong.append("the forked child's call did not get its answer")
        if action in (Action.STOP, Action.FORK) and "done" not in said:
            wrong.append("the victim did not go on to the end")
        return wrong

    def _judge(
        self, topic: str, fates: dict[str, tuple[str, ...]], reading: Reading, book: list[list[Any]]
    ) -> list[str]:
        dead = {key_of(letter.message.payload) for letter in self._broker.dead_letters(f"{topic}/{READER}")}
        there = self._published(fates, reading)
        wrong = [f"{key} could not be acked by who held it" for key in reading.refused]
        for key, right in fates.items():
            came = [*reading.came.get(key, []), *(["dead"] if key in dead else [])]
            if not came:
                came = ["acked" if key in there else "none"]
            if len(came) != 1 or came[0] not in right:
                wrong.append(f"{key} is {' and '.join(came)}, not {' or '.join(right)}")
        wrong += [f"nobody published {key}" for key in {*reading.came, *dead} - fates.keys()]
        stats = self._broker.subscription(topic, READER).stats()
        finished = sum(1 for key in there if key not in dead)
        if (stats.accepted, stats.acked, stats.dead) != (len(there), finished, len(dead)):
            wrong.append(f"of {sorted(there)} with {len(dead)} dead, the broker says {stats}")
        acked = [line[2] for line in book if line[:2] == ["ok", "ack"] and line[3]]
        wrong += [f"{key} was acked twice" for key in acked if key in reading.came or acked.count(key) > 1]
        confirmed = {key for line in book if line[:2] == ["ok", "publish"] for key in line[2:]}
        wrong += [f"{key} was accepted and is lost" for key in confirmed - there]
        return wrong

    def _published(self, fates: dict[str, tuple[str, ...]], reading: Reading) -> set[str]:
        """What is there: all that was published before, and of the victim's what anybody got."""
        return {key for key in fates if key[0] == "m" or key in reading.came}

    # -- what the broker says -----------------------------------------------------------------------------------------

    def _publish(self, topic: str, numbers: range, bulk: int) -> None:
        payloads: list[Any] = [f"m{n}" for n in numbers]
        if bulk == BLOCK_BYTES:
            payloads = [block(key) for key in payloads]
        elif bulk:
            payloads = [(key, bytes(bulk)) for key in payloads]
        if payloads:
            self._broker.publish_many(topic, payloads)

    def _sleeps(self, victim: Victim) -> bool:
        """Whether its poll waits in the broker, and it sleeps itself: until it is woken, then."""
        return self._figure("waiting_calls") == 1 and is_asleep(victim.pid)

    def _figure(self, name: str) -> int:
        return self._broker._status().limits[name][0]


def _soon(there: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        if there():
            return True
        threading.Event().wait(_PAUSE_S)
    return False
