"""What an attempt to break the broker from outside found."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mpbroker import BrokerGone, BrokerManager, CallbackSubscriber
from mpbroker.cli.publish import _batches
from tests.conformance.support import until
from tests.process.puppets import LIMIT_S, ROOT


@pytest.mark.leaves("files")
def test_a_broker_killed_before_the_first_call_is_told_of_with_its_signal() -> None:
    with BrokerManager() as manager:
        assert manager.pid is not None
        os.kill(manager.pid, signal.SIGKILL)
        manager.join(30.0)
        with pytest.raises(BrokerGone, match="SIGKILL"):
            manager.broker().topics()


def test_a_manager_that_is_pickled_says_what_to_pickle_instead() -> None:
    with pytest.raises(TypeError, match=r"manager\.broker\(\)"):
        pickle.dumps(BrokerManager())


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_does_its_work_with_standard_streams_closed(closed: str) -> None:
    command = f"exec {sys.executable} -m mpbroker stress --publishers 1 --messages 5 --workers 1 {closed}"
    run = subprocess.run(
        ["/bin/sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


def _is_held(lock: Any) -> bool:
    """Whether another thread has it."""
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


def test_a_child_forked_while_a_thread_connects_has_its_own_way_in() -> None:
    with BrokerManager() as manager:
        broker = manager.broker()
        assert manager.pid is not None
        os.kill(manager.pid, signal.SIGSTOP)
        try:
            thread = threading.Thread(target=broker.topics)
            thread.start()
            until(lambda: _is_held(broker._client._lock))
            child = os.fork()
            if not child:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(LIMIT_S))
                try:
                    broker.topics()
                    os._exit(0)
                finally:
                    os._exit(1)
        finally:
            os.kill(manager.pid, signal.SIGCONT)
        assert os.waitpid(child, 0)[1] == 0
        thread.join(LIMIT_S)


_USES_A_BROKER = "from mpbroker import BrokerManager; manager = BrokerManager(); manager.start(); manager.shutdown()"


def test_no_module_of_the_current_folder_takes_a_standard_ones_place(tmp_path: Path) -> None:
    (tmp_path / "socket.py").write_text("raise SystemExit('not the standard one')")
    script = tmp_path / "inner" / "script.py"
    script.parent.mkdir()
    script.write_text(_USES_A_BROKER)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environ, timeout=2 * LIMIT_S, check=True)


def test_a_broker_starts_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os; from mpbroker import BrokerManager; os.rmdir({str(gone)!r}); {_USES_A_BROKER}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], cwd=gone, env=environ, timeout=2 * LIMIT_S, check=True)


def test_lines_of_a_standard_input_that_is_closed_are_a_usage_error() -> None:
    run = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m mpbroker publish orders --stdin <&-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        check=False,
    )
    assert run.returncode == 2
    assert "--stdin needs a standard input" in run.stderr


def test_lines_are_the_same_however_they_are_cut() -> None:
    whole = [b"", b"a", b"b" * 200_000, b"", b"end"]
    read, write = os.pipe()
    writer = threading.Thread(target=_write_all, args=(write, b"\n".join(whole)))
    writer.start()
    with open(read, "rb", buffering=0) as file:
        assert [line for lines in _batches(file.fileno()) for line in lines] == whole
    writer.join(LIMIT_S)


def _write_all(descriptor: int, content: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(content)


def test_a_dispatcher_outlasts_a_broker_that_does_not_serve_it() -> None:
    with BrokerManager(max_waiting_calls=1) as manager:
        broker, other = manager.broker(), manager.broker()
        other.create_topic("t")
        blocker = other.subscribe("t", "blocker")
        waiting = threading.Thread(target=blocker.poll, args=("w",), kwargs={"timeout": None})
        waiting.start()
        until(lambda: other._status().limits["waiting_calls"][0] == 1)
        got: queue.Queue[object] = queue.Queue()
        broker.subscribe("t", CallbackSubscriber("push", lambda message: got.put(message.payload)))
        broker.start()
        until(lambda: any(thread.name.startswith("mpbroker-push") for thread in threading.enumerate()))
        broker.publish("t", 1)  # ends the wait of the other one
        assert got.get(timeout=LIMIT_S) == 1
        waiting.join(LIMIT_S)
        broker.close()


def test_what_histories_keep_counts_against_the_bytes_of_the_broker() -> None:
    with BrokerManager() as manager:
        broker = manager.broker()
        broker.create_topic("t")
        subscription = broker.subscribe("t", "s", max_deliveries=1000)
        broker.publish("t", None)
        for _ in range(3):
            (delivery,) = subscription.poll("w")
            delivery.nack(error="e" * 4000)
        assert broker._status().limits["queue_bytes"][0] > 12_000
        (delivery,) = subscription.poll("w")
        delivery.ack()
        assert broker._status().limits["queue_bytes"][0] == 0
