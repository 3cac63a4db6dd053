"""A broker starts from wherever Python runs, and its proxies reach processes of every kind."""

from __future__ import annotations

import multiprocessing
import os
import pty
import select
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mpbroker import BrokerManager, BrokerProxy
from tests.process import deeds
from tests.process.puppets import LIMIT_S, ROOT, Program, Puppet

METHODS = ["fork", "spawn", "forkserver"]

PROGRAM = """
import mpbroker
with mpbroker.BrokerManager() as manager:
    broker = manager.broker()
    broker.create_topic("orders")
    billing = broker.subscribe("orders", "billing")
    broker.publish("orders", {"amount": 3})
    (delivery,) = billing.poll("w")
    print(delivery.payload, delivery.ack())
"""
SAYS = "{'amount': 3} True\n"


def test_from_a_script_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROGRAM)
    with Program(str(tmp_path / "script.py")) as program:
        assert program.end() == (0, SAYS, "")


def test_from_a_module_run_as_the_main_program(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    with Program("-m", "shop", cwd=tmp_path) as program:
        assert program.end() == (0, SAYS, "")


def test_from_the_command_line() -> None:
    with Program("-c", PROGRAM) as program:
        assert program.end() == (0, SAYS, "")


def test_from_standard_input() -> None:
    with Program("-", stdin=PROGRAM) as program:
        assert program.end() == (0, SAYS, "")


def test_from_an_interactive_interpreter() -> None:
    lines = "".join(f"{line}\n" if line else "" for line in INTERACTIVE.splitlines())
    with Program("-i", "-q", stdin=lines) as program:
        code, said, _ = program.end()
        assert (code, said) == (0, SAYS)


INTERACTIVE = """
import mpbroker
manager = mpbroker.BrokerManager()
manager.start()
broker = manager.broker()
broker.create_topic("orders")
billing = broker.subscribe("orders", "billing")
message = broker.publish("orders", {"amount": 3})
(delivery,) = billing.poll("w")
print(delivery.payload, delivery.ack())
"""


def test_from_a_terminal() -> None:
    """Typed into an interpreter that has a terminal; its end of file ends all."""
    master, slave = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "PYTHON_BASIC_REPL": "1"}
    process = subprocess.Popen(
        [sys.executable, "-i", "-q"], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    shown = b""
    try:
        os.write(master, INTERACTIVE.encode() + b"exit()\n")
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if select.select([master], [], [], 1.0)[0]:
                try:
                    shown += os.read(master, 4096)
                except OSError:  # how a terminal says that nobody has it any more
                    break
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert SAYS.strip().encode() in shown
    assert b"Traceback" not in shown


def test_where_warnings_are_errors() -> None:
    with Program("-W", "error", "-X", "dev", "-c", PROGRAM) as program:
        assert program.end() == (0, SAYS, "")


def test_where_assertions_are_off() -> None:
    with Program("-O", "-c", PROGRAM) as program:
        assert program.end() == (0, SAYS, "")


def test_where_the_package_is_found_by_a_changed_path(tmp_path: Path) -> None:
    """Neither the environment nor the current folder shows the broker process where the package is."""
    text = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", text],
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, SAYS, "")


def test_where_standard_streams_are_closed() -> None:
    text = f"import os\nos.close(0); os.close(2)\n{PROGRAM}"
    with Program("-c", text) as program:
        assert program.end()[:2] == (0, SAYS)


def test_from_a_thread() -> None:
    with ThreadPoolExecutor(1) as executor:
        manager = BrokerManager()
        executor.submit(manager.start).result(LIMIT_S)
    # The thread that started it is gone; it lives.
    manager.broker().create_topic("orders")
    manager.shutdown()


def test_from_a_daemonic_child_which_may_have_no_children_of_multiprocessing() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(start_and_use) == ["orders"]


def start_and_use() -> list[str]:
    with BrokerManager() as manager:
        manager.broker().create_topic("orders")
        return list(manager.broker().topics())


def test_two_brokers_of_one_process_are_apart() -> None:
    with BrokerManager() as first, BrokerManager() as second:
        first.broker().create_topic("orders")
        assert second.broker().topics() == {}


# -- the users' own processes -----------------------------------------------------------------------------------------


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Any:
    with BrokerManager() as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        broker.subscribe("orders", "billing")
        yield broker


@pytest.mark.parametrize("method", METHODS)
def test_children_of_every_start_method_use_the_proxy_they_were_given(method: str, broker: BrokerProxy) -> None:
    with Puppet(broker, method) as publisher, Puppet(broker, method) as worker:
        worker.begin(deeds.poll, "orders", "billing", "w", 1, LIMIT_S)
        assert publisher.do(deeds.publish, "orders", method) == "m1"
        assert worker.result() == [("m1", 1)]
        assert worker.do(deeds.ack_held) == [True]


@pytest.mark.parametrize("method", METHODS)
def test_proxies_pass_through_queues(method: str, broker: BrokerProxy) -> None:
    context: Any = multiprocessing.get_context(method)
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=publish_for, args=(there, back))
    child.start()
    there.put(broker)
    assert back.get(timeout=LIMIT_S) == "m1"
    child.join(LIMIT_S)
    assert child.exitcode == 0
    for queue in (there, back):
        queue.close()
        queue.join_thread()


def publish_for(there: Any, back: Any) -> None:
    back.put(there.get(timeout=LIMIT_S).publish("orders", 1).message_id)


@pytest.mark.parametrize("method", METHODS)
def test_proxies_pass_through_executors(method: str, broker: BrokerProxy) -> None:
    context: Any = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        published = [executor.submit(deeds.publish, broker, "orders", n) for n in range(6)]
        assert sorted(each.result(LIMIT_S) for each in published) == [f"m{n}" for n in range(1, 7)]
        assert len(executor.submit(deeds.poll, broker, "orders", "billing", "w", 6).result(LIMIT_S)) == 6


def test_a_program_of_its_own_gets_a_proxy_as_bytes(broker: BrokerProxy) -> None:
    import pickle

    text = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])).publish('orders', 1).message_id)"
    with Program("-c", text, pickle.dumps(broker).hex()) as program:
        assert program.end() == (0, "m1\n", "")


def test_four_publishers_and_three_workers_share_the_work_exactly(broker: BrokerProxy) -> None:
    """The stress in small; `mpbroker stress` is the large one."""
    audit = broker.subscribe("orders", "audit")
    context: Any = multiprocessing.get_context("fork")
    with context.Pool(7) as pool:
        workers = [pool.apply_async(work, (broker, f"w{n}")) for n in range(3)]
        publishers = [pool.apply_async(publish_range, (broker, n, 60)) for n in range(4)]
        for publisher in publishers:
            publisher.get(LIMIT_S)
        broker.publish_many("orders", ["end"] * 3)
        done = [payload for worker in workers for payload in worker.get(LIMIT_S)]
        pool.close()
        pool.join()
    assert sorted(done) == [(n, i) for n in range(4) for i in range(60)]
    seen: list[int] = []
    while deliveries := audit.poll("auditor", max_messages=1000):
        seen += [delivery.message.sequence for delivery in deliveries]
    assert seen == list(range(1, 244))
    stats = broker.subscription("orders", "billing").stats()
    assert (stats.acked, stats.deliveries, stats.redelivered) == (243, 243, 0)


def work(broker: BrokerProxy, member: str) -> list[Any]:
    billing = broker.subscription("orders", "billing")
    done: list[Any] = []
    while True:
        (delivery,) = billing.poll(member, timeout=LIMIT_S)
        assert delivery.ack()
        if delivery.payload == "end":
            return done
        done.append(delivery.payload)


def publish_range(broker: BrokerProxy, number: int, count: int) -> None:
    for index in range(count):
        broker.publish("orders", (number, index))
