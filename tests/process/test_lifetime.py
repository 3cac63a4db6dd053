"""Who dies, how, and what the others see: workers, their broker, and whoever started it."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import psutil
import pytest

import mpbroker
from mpbroker import (
    AccessRefused,
    AttemptOutcome,
    BrokerGone,
    BrokerManager,
    BrokerProxy,
    DeadLetterReason,
    Delivery,
    connect,
)
from mpbroker.api import SubscriptionAPI
from tests.conformance.support import Call, until
from tests.process import deeds
from tests.process.puppets import LIMIT_S, Program, Puppet, signal_until, wait_for_end, waits

AT = ("orders", "billing")


@pytest.fixture
def manager() -> Iterator[BrokerManager]:
    with BrokerManager() as manager:
        yield manager


@pytest.fixture
def broker(manager: BrokerManager) -> BrokerProxy:
    return manager.broker()


@pytest.fixture
def billing(broker: BrokerProxy) -> SubscriptionAPI:
    """Leases of an hour: whatever comes back, comes back for another reason."""
    broker.create_topic("orders")
    return broker.subscribe("orders", "billing", ack_timeout=3600)


def pid_of(manager: BrokerManager) -> int:
    assert manager.pid is not None
    return manager.pid


def found(deliveries: list[Delivery]) -> list[tuple[str, int]]:
    return [(delivery.message_id, delivery.attempt) for delivery in deliveries]


# -- a worker's end ---------------------------------------------------------------------------------------------------


def test_what_a_killed_worker_held_goes_to_another_counted(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish_many("orders", [1, 2, 3])
    with Puppet(broker) as worker:
        assert worker.do(deeds.poll, *AT, "w1", 2) == [("m1", 1), ("m2", 1)]
        worker.kill()
    got = billing.poll("w2", timeout=LIMIT_S)
    got += billing.poll("w2", timeout=LIMIT_S)
    assert found(got) == [("m1", 2), ("m2", 2)]
    assert got[0].redelivered


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda worker: worker.kill(), "signal 9 (SIGKILL), possibly out of memory"),
        (lambda worker: (worker.begin(deeds.exit_at_once, 3), worker.join()), "exit code 3"),
        (lambda worker: (worker.signal(signal.SIGTERM), worker.join()), "signal 15 (SIGTERM)"),
    ],
    ids=["killed", "exited without a word", "terminated"],
)
def test_history_says_that_the_worker_died_and_how(
    end: Callable[[Puppet], object], how: str, broker: BrokerProxy
) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", ack_timeout=3600, max_deliveries=1)
    broker.publish("orders", 1)
    with Puppet(broker) as worker:
        worker.do(deeds.poll, *AT, "w1")
        end(worker)
    until(lambda: billing.stats().dead == 1)
    (letter,) = broker.dead_letters()
    assert letter.reason is DeadLetterReason.RETRIES_EXHAUSTED
    assert letter.history[0].outcome is AttemptOutcome.WORKER_DIED
    assert letter.error == f"worker died: {how}"


def test_a_waiting_poll_gets_what_a_killed_worker_held(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish("orders", 1)
    with Puppet(broker) as worker:
        worker.do(deeds.poll, *AT, "w1")
        polled = Call(lambda: billing.poll("w2", timeout=None))
        waits(broker)
        worker.kill()
        assert found(polled.result()) == [("m1", 2)]


def test_the_waiting_poll_of_a_killed_worker_gets_nothing(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    with Puppet(broker) as worker:
        worker.begin(deeds.poll, *AT, "w1", 1, None)
        waits(broker)
        worker.kill()
        until(lambda: broker._status().limits["sessions"][0] == 1)
    broker.publish("orders", 1)
    assert found(billing.poll("w2")) == [("m1", 1)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_that_exits_cleanly_releases_uncounted(
    method: str, broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    broker.publish("orders", 1)
    with Puppet(broker, method) as worker:
        worker.do(deeds.poll, *AT, "w1")
        worker.finish()
        assert found(billing.poll("w2")) == [("m1", 1)]


def test_a_worker_that_exits_by_an_exception_releases_uncounted(billing: SubscriptionAPI, broker: BrokerProxy) -> None:
    broker.publish("orders", 1)
    child = multiprocessing.get_context("fork").Process(target=_poll_and_exit, args=(billing,))
    child.start()
    child.join(LIMIT_S)
    assert child.exitcode == 5
    assert found(billing.poll("w2")) == [("m1", 1)]


def _poll_and_exit(subscription: SubscriptionAPI) -> None:
    subscription.poll("w1")
    raise SystemExit(5)


def test_workers_of_a_pool_that_is_closed_release_uncounted(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish("orders", 1)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(deeds.poll, (broker, *AT, "w1")) == [("m1", 1)]
        pool.close()
        pool.join()
    assert found(billing.poll("w2")) == [("m1", 1)]


def test_workers_of_an_executor_release_uncounted(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish("orders", 1)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        assert executor.submit(deeds.poll, broker, *AT, "w1").result(LIMIT_S) == [("m1", 1)]
    assert found(billing.poll("w2")) == [("m1", 1)]


def test_a_program_that_ends_releases_uncounted() -> None:
    with BrokerManager("orders") as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        billing = broker.subscribe("orders", "billing")
        broker.publish("orders", 1)
        with Program("-c", POLL_AND_END) as program:
            assert program.end() == (0, "m1\n", "")
        assert found(billing.poll("w2")) == [("m1", 1)]


POLL_AND_END = """
import mpbroker
(held,) = mpbroker.connect("orders").subscription("orders", "billing").poll("w1")
print(held.message_id)
"""


def test_daemon_threads_that_wait_do_not_disturb_a_programs_end() -> None:
    with BrokerManager("orders") as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        broker.subscribe("orders", "billing")
        with Program("-c", WAIT_IN_A_DAEMON_THREAD) as program:
            assert program.end() == (0, "waiting\n", "")


WAIT_IN_A_DAEMON_THREAD = """
import mpbroker, threading
broker = mpbroker.connect("orders")
billing = broker.subscription("orders", "billing")
threading.Thread(target=lambda: billing.poll("w", timeout=None), daemon=True).start()
while broker._status().limits["waiting_calls"][0] != 1: pass
print("waiting")
"""


def test_threads_that_a_childs_exit_waits_for_keep_what_they_hold(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    broker.publish("orders", 1)
    context = multiprocessing.get_context("fork")
    go, polled = context.Event(), context.Event()
    child = context.Process(target=_leave_a_thread, args=(billing, polled, go))
    child.start()
    assert polled.wait(LIMIT_S)
    assert billing.poll("w2") == []
    go.set()
    child.join(LIMIT_S)
    assert child.exitcode == 0
    stats = billing.stats()
    assert (stats.acked, stats.late_acks) == (1, 0)


def _leave_a_thread(subscription: SubscriptionAPI, polled: Any, go: Any) -> None:
    begun = threading.Event()

    def work() -> None:
        (delivery,) = subscription.poll("w1")
        begun.set()
        # Over as soon as there is nothing left to do but to wait for threads like this one.
        threading.main_thread().join(LIMIT_S)
        polled.set()
        go.wait(LIMIT_S)
        assert delivery.ack()

    threading.Thread(target=work).start()
    begun.wait(LIMIT_S)


def test_a_stopped_worker_loses_its_lease_and_its_late_ack_is_false(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    broker.publish("orders", 1)
    with Puppet(broker) as worker:
        worker.do(deeds.poll, *AT, "w1")
        worker.do(deeds.extend_held, 0.2)
        worker.signal(signal.SIGSTOP)
        (delivery,) = billing.poll("w2", timeout=LIMIT_S)
        assert (delivery.message_id, delivery.attempt) == ("m1", 2)
        worker.signal(signal.SIGCONT)
        assert worker.do(deeds.ack_held) == [False]
        assert delivery.ack() is True


def test_a_message_that_kills_its_workers_is_found_out_and_the_innocent_are_spared(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing", ack_timeout=3600, max_deliveries=3)
    broker.publish_many("orders", ["innocent"] * 40 + ["killer"] + ["innocent"] * 59)
    for _ in range(10):
        if billing.stats().backlog == 0:
            break
        worker = multiprocessing.get_context("fork").Process(target=_work_until_killed, args=(billing,))
        worker.start()
        worker.join(LIMIT_S)
        assert worker.exitcode is not None
        until(lambda: billing.stats().in_flight == 0)  # the broker knows of its end, too
    assert [letter.message.sequence for letter in broker.dead_letters()] == [41]
    stats = billing.stats()
    assert (stats.acked, stats.dead) == (99, 1)
    # Charged once at most: with the killer when it first struck.
    assert stats.deliveries <= 100 + 99 + 3


def _work_until_killed(subscription: SubscriptionAPI) -> None:
    while deliveries := subscription.poll("w", max_messages=100, timeout=0.2):
        for delivery in deliveries:
            if delivery.payload == "killer":
                os.kill(os.getpid(), signal.SIGKILL)
        for delivery in deliveries:
            delivery.ack()


# -- interruptions ----------------------------------------------------------------------------------------------------


class Interrupted(TimeoutError):
    """What a handler raises: of a class that sockets raise, too."""


@contextmanager
def interrupted(broker: BrokerProxy, error: type[BaseException] = Interrupted) -> Iterator[None]:
    """Have a signal handler raise in the block, once its call waits in the broker."""
    struck = threading.Event()

    def strike(*_: object) -> None:
        if not struck.is_set():
            struck.set()
            raise error

    old = signal.signal(signal.SIGUSR2, strike)
    sender = Call(lambda: signal_until(broker, signal.SIGUSR2, struck))
    try:
        with pytest.raises(error):
            yield
        sender.result()
    finally:
        signal.signal(signal.SIGUSR2, old)


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted], ids=["Ctrl-C", "a handler that raises"])
def test_a_waiting_poll_that_is_interrupted_hands_nothing_over(
    error: type[BaseException], broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    with interrupted(broker, error):
        billing.poll("w", timeout=None)
    assert billing.stats().in_flight == 0
    broker.publish("orders", 1)
    assert found(billing.poll("w")) == [("m1", 1)]


def test_what_was_held_before_an_interruption_is_still_held(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish("orders", 1)
    (delivery,) = billing.poll("w")
    with interrupted(broker):
        billing.poll("w", timeout=None)
    assert billing.stats().in_flight == 1
    assert delivery.ack() is True


# A handler that raises just when the system opened a descriptor leaves Python no way to know of it.
@pytest.mark.leaves("descriptors")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_storm_of_interruptions_loses_nothing_and_mixes_no_answers(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    """Each strikes somewhere inside the package, in a poll or in another call."""
    inside = os.path.dirname(os.path.abspath(mpbroker.__file__)) + os.sep
    interrupted = 0

    def strike(_: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        while frame is not None:
            if frame.f_code.co_filename.startswith(inside):
                interrupted += 1
                raise Interrupted
            frame = frame.f_back

    broker.publish_many("orders", range(100))
    lots = random.Random(7)
    held: list[Delivery] = []
    old = signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(300):
            signal.setitimer(signal.ITIMER_REAL, lots.uniform(0.00002, 0.0015))
            try:
                held += billing.poll("w", max_messages=2)
                assert broker.subscription("orders", "billing").topic == "orders"
                assert list(broker.topics()) == ["orders"]
            except Interrupted:
                continue
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert interrupted > 0
    assert billing.stats().in_flight == len(held)
    held += billing.poll("w", max_messages=100)
    assert sorted(delivery.payload for delivery in held) == list(range(100))
    assert {delivery.attempt for delivery in held} == {1}
    assert all(delivery.ack() for delivery in held)


def test_ctrl_c_for_a_whole_group_lets_workers_finish_and_ends_the_broker_last() -> None:
    with Program("-c", GROUP, group=True) as program:
        broker_pid = int(program.line().split()[1])
        assert program.line() == "working"
        os.killpg(program.process.pid, signal.SIGINT)
        code, said, errors = program.end()
        wait_for_end(broker_pid)
    assert (code, said.splitlines(), errors) == (0, ["acked True", "ended"], "")


GROUP = """
import multiprocessing, signal, sys, threading
import mpbroker
signal.signal(signal.SIGINT, signal.default_int_handler)

def work(broker):
    billing = broker.subscription("orders", "billing")
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    (delivery,) = billing.poll("w", timeout=None)
    print("working", flush=True)
    while not stop.wait(0.05): pass
    print("acked", delivery.ack(), flush=True)

try:
    with mpbroker.BrokerManager() as manager:
        print("broker", manager.pid, flush=True)
        broker = manager.broker()
        broker.create_topic("orders")
        broker.subscribe("orders", "billing")
        worker = multiprocessing.get_context("fork").Process(target=work, args=(broker,))
        worker.start()
        broker.publish("orders", 1)
        worker.join()
except KeyboardInterrupt:
    print("ended", flush=True)
"""


# -- the broker's end -------------------------------------------------------------------------------------------------


@pytest.mark.leaves("files")
def test_every_call_after_the_brokers_death_says_so(manager: BrokerManager, billing: SubscriptionAPI) -> None:
    broker = manager.broker()
    broker.publish("orders", 1)
    (delivery,) = billing.poll("w")
    os.kill(pid_of(manager), signal.SIGKILL)
    wait_for_end(pid_of(manager))
    for call in (broker.topics, billing.stats, delivery.ack, lambda: broker.publish("orders", 1), broker._status):
        with pytest.raises(BrokerGone, match=r"signal 9 \(SIGKILL\)"):
            call()
    broker.close()


@pytest.mark.leaves("files")
def test_waiting_polls_of_threads_and_processes_end_with_the_broker(
    manager: BrokerManager, broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    with Puppet(broker) as one, Puppet(broker, "spawn") as two:
        calls = [Call(lambda: billing.poll("w", timeout=None)) for _ in range(3)]
        one.begin(deeds.poll, *AT, "w", 1, None)
        two.begin(deeds.poll, *AT, "w", 1, LIMIT_S)
        waits(broker, 5)
        os.kill(pid_of(manager), signal.SIGKILL)
        for result in (*(call.result for call in calls), one.result, two.result):
            with pytest.raises(BrokerGone, match=r"signal 9 \(SIGKILL\)"):
                result()
        with pytest.raises(BrokerGone):
            one.do(deeds.publish, "orders", 1)


@pytest.mark.leaves("files")
def test_a_dispatcher_ends_quietly_with_the_broker(manager: BrokerManager, broker: BrokerProxy) -> None:
    from mpbroker import CallbackSubscriber

    broker.create_topic("orders")
    broker.subscribe("orders", CallbackSubscriber("push", print))
    broker.start()
    waits(broker)
    os.kill(pid_of(manager), signal.SIGKILL)
    broker.close()


@pytest.mark.leaves("files")
def test_callers_in_the_middle_of_their_calls_see_the_brokers_death(
    manager: BrokerManager, broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    def call_for_ever() -> None:
        while True:
            broker.publish("orders", b"x" * 100_000)

    calls = [Call(call_for_ever) for _ in range(3)]
    until(lambda: billing.stats().accepted > 20)
    os.kill(pid_of(manager), signal.SIGKILL)
    for call in calls:
        with pytest.raises(BrokerGone):
            call.result()


def test_a_program_that_pipes_kill_is_not_killed_by_the_brokers_end() -> None:
    text = """
import os, signal, mpbroker
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
with mpbroker.BrokerManager() as manager:
    broker = manager.broker()
    broker.create_topic("orders")
    broker._stop()
    manager.join()
    try:
        broker.publish("orders", b"x" * 1_000_000)
    except mpbroker.BrokerGone:
        print("gone")
"""
    with Program("-c", text) as program:
        assert program.end() == (0, "gone\n", "")


# -- the creator's end ------------------------------------------------------------------------------------------------

CREATOR = """
import multiprocessing, os, sys, threading, time
import mpbroker
manager = mpbroker.BrokerManager("orders")
started = threading.Thread(target=manager.start)  # a broker does not depend on the thread that started it
started.start(); started.join()
manager.broker().create_topic("orders")
manager.broker().subscribe("orders", "billing")
{more}
print(manager.pid, flush=True)
threading.Event().wait()
"""

MORE = {
    "alone": "",
    "with busy threads": """
for _ in range(2):
    threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start()
""",
    "with a forked child": """
read, write = os.pipe()
if os.fork() == 0:
    os.set_inheritable(read, True)
    os.close(write); os.read(read, 1); os._exit(0)
""",
    "with a child of multiprocessing": """
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,), daemon=True)
child.start()
print(child.pid, flush=True)
""",
    "with a forked child of many threads": """
threads = [threading.Thread(target=time.sleep, args=(3600,), daemon=True) for _ in "123"]
[each.start() for each in threads]
read, write = os.pipe()
if os.fork() == 0:
    os.close(write); os.read(read, 1); os._exit(0)
""",
}


@pytest.mark.parametrize(
    ("number", "company"),
    [
        (signal.SIGTERM, "alone"),
        (signal.SIGSEGV, "alone"),
        *((signal.SIGKILL, company) for company in MORE),
    ],
    ids=str,
)
def test_the_broker_ends_with_its_creator(number: signal.Signals, company: str) -> None:
    more = MORE[company]
    with Program("-c", CREATOR.format(more=more)) as program:
        child = int(program.line()) if "child.pid" in more else None
        broker_pid = int(program.line())
        broker = connect("orders")
        polled = Call(lambda: broker.subscription("orders", "billing").poll("w", timeout=None))
        waits(broker)
        program.process.send_signal(number)
        wait_for_end(broker_pid)
        with pytest.raises(BrokerGone, match="the process that started it"):
            polled.result()
        if child is not None:
            psutil.Process(child).kill()


def test_a_creator_that_just_ends_ends_its_broker() -> None:
    with Program("-c", "import mpbroker\nm = mpbroker.BrokerManager(); m.start(); print(m.pid)") as program:
        broker_pid = int(program.line())
        assert program.end() == (0, "", "")
        wait_for_end(broker_pid)


def test_a_forked_childs_end_does_not_end_the_parents_broker(manager: BrokerManager) -> None:
    broker = manager.broker()
    broker.create_topic("orders")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with manager:
                manager.broker().create_topic("from the child")
            manager.shutdown()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(broker.topics()) == ["orders", "from the child"]


def test_a_forked_child_is_a_client_of_its_own(broker: BrokerProxy, billing: SubscriptionAPI) -> None:
    broker.publish_many("orders", [1, 2])
    (mine,) = billing.poll("w1")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            (theirs,) = billing.poll("w2")
            code = 0 if theirs.message_id == "m2" and mine.ack() else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert mine.ack() is False
    assert found(billing.poll("w1", timeout=LIMIT_S)) == [("m2", 2)]


def test_a_process_that_lost_its_descriptors_is_told_and_connects_again(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    broker.publish("orders", 1)
    with Puppet(broker) as other:
        other.do(deeds.poll, *AT, "w1")
        other.do(lose_descriptors)
        assert found(billing.poll("w2", timeout=LIMIT_S)) == [("m1", 2)]
        with pytest.raises(AccessRefused, match="connects again"):
            other.do(deeds.topics)
        assert other.do(deeds.topics) == ["orders"]


def lose_descriptors(broker: BrokerProxy) -> None:
    """As programs do that become daemons."""
    session = broker._client._session
    assert session is not None
    os.close(os.dup2(os.open(os.devnull, os.O_RDONLY), session.presence.sock.fileno()))


def test_a_child_forked_while_other_threads_call_is_a_client_of_its_own(
    broker: BrokerProxy, billing: SubscriptionAPI
) -> None:
    over = threading.Event()

    def call() -> int:
        count = 0
        while not over.is_set():
            broker.topics()
            count += 1
        return count

    calls = [Call(call) for _ in range(3)]
    try:
        for _ in range(10):
            with Puppet(broker) as child:
                assert child.do(deeds.topics) == ["orders"]
                child.finish()
    finally:
        over.set()
    assert all(call.result() > 0 for call in calls)
    assert broker._status().counters["violations"] == 0
