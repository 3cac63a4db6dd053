"""BrokerManager and connect: how a broker process is started, found and ended."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from multiprocessing import managers, spawn
from pathlib import Path

import psutil
import pytest

from mpbroker import (
    BrokerFailed,
    BrokerGone,
    BrokerManager,
    BrokerNotFound,
    BrokerProxy,
    InvalidFilter,
    InvalidName,
    NameTaken,
    SubscriptionAPI,
    connect,
)
from mpbroker.process.config import NotStarted, Started, check_config, line_of
from mpbroker.process.frames import MAX_FRAME_BYTES
from mpbroker.process.launch import BrokerProcess
from tests.conformance.support import Call, until
from tests.process import deeds
from tests.process.puppets import LIMIT_S, Program, Puppet, wait_for_end, waits


def pid_of(manager: BrokerManager) -> int:
    assert manager.pid is not None
    return manager.pid


# -- a manager's life -------------------------------------------------------------------------------------------------


def test_a_manager_and_its_broker_are_what_multiprocessing_calls_so(manager: BrokerManager) -> None:
    assert isinstance(manager, managers.BaseManager)
    assert isinstance(manager.broker(), managers.BaseProxy)


def test_the_broker_is_another_process_that_lives_as_long_as_the_block() -> None:
    with BrokerManager() as manager:
        pid = pid_of(manager)
        assert pid != os.getpid()
        assert manager.broker()._status().pid == pid
    assert not psutil.pid_exists(pid)


def test_start_and_shutdown_do_what_the_block_does() -> None:
    manager = BrokerManager()
    manager.start()
    manager.broker().create_topic("orders")
    manager.shutdown()
    assert not psutil.pid_exists(pid_of(manager))


def test_a_started_manager_does_not_start_again(manager: BrokerManager) -> None:
    with pytest.raises(multiprocessing.ProcessError, match="started already"):
        manager.start()
    manager.broker().create_topic("orders")


def test_a_manager_has_no_broker_before_its_start() -> None:
    with pytest.raises(multiprocessing.ProcessError, match="not started"):
        BrokerManager().broker()


def test_a_manager_has_no_broker_after_its_end() -> None:
    with BrokerManager() as manager:
        pass
    with pytest.raises(multiprocessing.ProcessError, match="shut down"):
        manager.broker()
    with pytest.raises(multiprocessing.ProcessError, match="shut down"):
        manager.start()


def test_shutdown_may_be_called_at_any_time_and_again() -> None:
    manager = BrokerManager()
    manager.shutdown()
    manager.start()
    manager.shutdown()
    manager.shutdown()


def test_shutdown_after_the_broker_was_killed_is_quiet_and_tidies_up(broker_folder: Path) -> None:
    with BrokerManager() as manager:
        os.kill(pid_of(manager), signal.SIGKILL)
    assert not psutil.pid_exists(pid_of(manager))
    assert list(broker_folder.iterdir()) == []


def test_shutdown_kills_a_broker_that_does_not_end() -> None:
    with BrokerManager(shutdown_timeout=0.05) as manager:
        os.kill(pid_of(manager), signal.SIGSTOP)
    assert not psutil.pid_exists(pid_of(manager))


def test_a_manager_that_nobody_has_any_more_ends_its_broker() -> None:
    manager = BrokerManager()
    manager.start()
    pid = pid_of(manager)
    del manager
    gc.collect()
    wait_for_end(pid)


def test_a_proxy_keeps_its_manager() -> None:
    manager = BrokerManager()
    manager.start()
    broker = manager.broker()
    end = manager.shutdown
    del manager
    gc.collect()
    broker.create_topic("orders")
    end()


def test_calls_after_shutdown_say_so() -> None:
    with BrokerManager() as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        waiting = Call(lambda: broker.subscribe("orders", "billing").poll("w", timeout=None))
        waits(broker)
    with pytest.raises(BrokerGone, match="shut it down"):
        waiting.result()
    with pytest.raises(BrokerGone, match="shut it down"):
        broker.create_topic("orders")


def test_another_client_learns_why_the_broker_ended() -> None:
    with BrokerManager("orders") as manager:
        other = connect("orders")
        polled = Call(lambda: _new_subscription(other).poll("w", timeout=None))
        until(lambda: manager.broker()._status().limits["waiting_calls"][0] == 1)
        with Program("-c", "import mpbroker; b = mpbroker.connect('orders'); b._stop(); print('stopped')") as program:
            assert program.line() == "stopped"
        with pytest.raises(BrokerGone, match="asked to stop"):
            polled.result()
        with pytest.raises(BrokerGone, match="asked to stop"):
            manager.broker().topics()


def _new_subscription(broker: BrokerProxy) -> SubscriptionAPI:
    broker.create_topic("orders")
    return broker.subscribe("orders", "billing")


def test_the_standard_servers_other_verbs_are_refused(manager: BrokerManager) -> None:
    with pytest.raises(TypeError, match="serve"):
        manager.get_server()
    with pytest.raises(TypeError, match="initializer"):
        BrokerManager().start(print)
    with pytest.raises(TypeError, match="debug_info"):
        manager._debug_info()  # type: ignore[attr-defined]


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": "a/b"}, InvalidName),
        ({"name": 7}, TypeError),
        ({"manual_time": 1}, TypeError),
        ({"filter_modules": "os"}, TypeError),
        ({"filter_modules": [7]}, TypeError),
        ({"filter_modules": ["no module"]}, InvalidFilter),
        ({"filter_modules": ["__main__"]}, InvalidFilter),
        ({"max_frame_bytes": 1000}, ValueError),
        ({"max_connections": 0}, ValueError),
        ({"log_level": "LOUD"}, ValueError),
        ({"shutdown_timeout": -1}, ValueError),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused_before_anything_starts(
    arguments: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        BrokerManager(**arguments)  # type: ignore[arg-type]


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_named_broker_is_found_by_its_name() -> None:
    with BrokerManager("orders") as manager, connect("orders") as broker:
        broker.create_topic("from outside")
        assert list(manager.broker().topics()) == ["from outside"]


def test_a_name_is_taken_while_its_broker_lives_and_free_afterwards() -> None:
    with BrokerManager("orders") as first:
        second = BrokerManager("orders")
        with pytest.raises(NameTaken) as caught:
            second.start()
        assert caught.value.args[0] == "orders"
        assert caught.value.args[2] == first.pid
        first.broker().create_topic("orders")
    second.start()
    second.shutdown()


def test_a_name_is_free_as_soon_as_a_client_knows_of_the_end() -> None:
    for _ in range(3):
        with BrokerManager("orders") as manager:
            broker = manager.broker()
            broker._stop()
            with BrokerManager("orders"):
                pass


@pytest.mark.leaves("files")
def test_the_name_of_a_killed_broker_is_free_at_once() -> None:
    with BrokerManager("orders") as manager:
        os.kill(pid_of(manager), signal.SIGKILL)
        wait_for_end(pid_of(manager))
        with BrokerManager("orders"):
            connect("orders").close()


def test_a_start_takes_away_what_killed_private_brokers_left(broker_folder: Path) -> None:
    with BrokerManager() as manager:
        os.kill(pid_of(manager), signal.SIGKILL)
        wait_for_end(pid_of(manager))
        assert list(broker_folder.iterdir())
        with BrokerManager():
            assert len(list(broker_folder.iterdir())) == 1


def test_where_no_broker_is_connect_says_where_it_looked_and_how_to_start_one(broker_folder: Path) -> None:
    with pytest.raises(BrokerNotFound, match="mpbroker serve --name orders") as caught:
        connect("orders", timeout=LIMIT_S)
    assert str(broker_folder) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "error"), [("a/b", InvalidName), ("../orders", InvalidName), ("a\0b", InvalidName), (7, TypeError)]
)
def test_connect_refuses_what_cannot_be_a_name(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        connect(name)


def test_connect_waits_for_a_broker_that_is_just_starting(broker_folder: Path) -> None:
    (broker_folder / "orders").mkdir(0o700)
    coming = Call(lambda: connect("orders", timeout=LIMIT_S))
    with BrokerManager("orders"):
        coming.result().close()


def test_connect_gives_up_on_a_start_that_does_not_get_on(broker_folder: Path) -> None:
    (broker_folder / "orders").mkdir(0o700)
    with pytest.raises(BrokerNotFound, match="being started or stopped"):
        connect("orders", timeout=0.05)
    (broker_folder / "orders").rmdir()


def test_connect_gives_up_on_a_broker_that_does_not_answer() -> None:
    with BrokerManager("orders") as manager:
        os.kill(pid_of(manager), signal.SIGSTOP)
        try:
            with pytest.raises(BrokerNotFound, match="did not answer"):
                connect("orders", timeout=0.05)
        finally:
            os.kill(pid_of(manager), signal.SIGCONT)


def test_a_manager_can_stand_for_a_broker_that_is_not_its_own() -> None:
    with BrokerManager("orders") as owner:
        guest = BrokerManager("orders")
        guest.connect()
        guest.broker().create_topic("orders")
        assert guest.pid == owner.pid
        guest.shutdown()
        assert list(owner.broker().topics()) == ["orders"]


def test_a_folder_of_ones_own_keeps_brokers_apart(tmp_path: Path) -> None:
    with BrokerManager("orders", directory=tmp_path):
        connect("orders", directory=tmp_path).close()
        with pytest.raises(BrokerNotFound):
            connect("orders")


def test_folders_may_have_names_that_are_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.mkdir(0o700)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend("")
    with (
        BrokerManager("orders", directory=place, log_file="log") as manager,
        Puppet(manager.broker(), "spawn") as other,
    ):
        other.do(deeds.create, "orders", "billing", {})
        assert list(connect("orders", directory=place).topics()) == ["orders"]
    assert "is ready" in (place / "log").read_text()


# -- a start that fails -----------------------------------------------------------------------------------------------


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is run as the interpreter of the broker process."""
    path = tmp_path / "python"
    monkeypatch.setattr(spawn, "get_executable", lambda: str(path))
    return path


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_without_an_interpreter_the_start_fails(interpreter: Path) -> None:
    with pytest.raises(BrokerFailed, match=str(interpreter)):
        BrokerManager().start()


def test_a_broker_that_ends_before_it_is_ready_is_a_failed_start_with_its_last_words(interpreter: Path) -> None:
    write_program(interpreter, "echo the disk is on fire >&2; exit 3")
    with pytest.raises(BrokerFailed, match=r"exit code 3[\s\S]*the disk is on fire"):
        BrokerManager().start()


def test_a_broker_that_is_killed_before_it_is_ready_is_a_failed_start(interpreter: Path) -> None:
    write_program(interpreter, "kill -9 $$")
    with pytest.raises(BrokerFailed, match="SIGKILL"):
        BrokerManager().start()


def test_a_broker_that_does_not_get_ready_in_time_is_a_failed_start(interpreter: Path) -> None:
    write_program(interpreter, "echo still busy >&2; exec sleep 1000")
    config = check_config(
        None,
        manual_time=False,
        filter_modules=(),
        max_frame_bytes=MAX_FRAME_BYTES,
        max_connections=10,
        directory=None,
        log_level=None,
        log_file=None,
    )
    with pytest.raises(BrokerFailed, match="not ready within"):
        BrokerProcess(config, timeout_s=0.5)


@pytest.mark.parametrize(
    ("module", "words"),
    [("tests.process.no_such_module", "ModuleNotFoundError"), ("tests.process.quitter", "SystemExit: not today")],
)
def test_a_filter_module_that_cannot_be_imported_is_a_failed_start_with_the_traceback(module: str, words: str) -> None:
    with pytest.raises(BrokerFailed, match=rf"{module}[\s\S]*{words}"):
        BrokerManager(filter_modules=[module]).start()


def test_a_manager_whose_start_failed_may_be_started_again(interpreter: Path) -> None:
    write_program(interpreter, "exit 1")
    manager = BrokerManager()
    with pytest.raises(BrokerFailed):
        manager.start()
    write_program(interpreter, f'exec {sys.executable} "$@"')
    with manager:
        manager.broker().create_topic("orders")


def test_a_folder_that_cannot_be_is_a_failed_start(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with pytest.raises((BrokerFailed, OSError), match=str(place)):
        BrokerManager(directory=place).start()


def test_a_broker_that_crashes_as_soon_as_it_is_ready_has_started(broker_folder: Path) -> None:
    """What it says of both may come at once."""
    config = check_config(
        None, manual_time=False, filter_modules=(), directory=broker_folder, log_level=None, log_file=None
    )
    process = BrokerProcess.__new__(BrokerProcess)
    process._lifeline, theirs = socket.socketpair()
    started = Started("folder", "0123456789abcdef", 4711)
    with process._lifeline, theirs, tempfile.TemporaryFile() as words:
        theirs.sendall(line_of(started) + line_of(NotStarted("BrokerFailed", ["it crashed"])))
        assert process._wait_until_ready(config, words, LIMIT_S) == started


# -- the process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_broker_cleanly(number: signal.Signals, broker_folder: Path) -> None:
    with BrokerManager() as manager:
        broker = manager.broker()
        broker.create_topic("orders")
        os.kill(pid_of(manager), number)
        manager.join(LIMIT_S)
        with pytest.raises(BrokerGone, match=number.name):
            broker.topics()
    assert list(broker_folder.iterdir()) == []


@pytest.mark.leaves("files")
def test_a_crash_reaches_every_client_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with BrokerManager("orders", filter_modules=["tests.process.sabotage"]) as manager:
        other = connect("orders")
        polled = Call(lambda: _new_subscription(other).poll("w", timeout=None))
        until(lambda: manager.broker()._status().limits["waiting_calls"][0] == 1)
        with pytest.raises(BrokerGone, match=r"crashed[\s\S]*Traceback[\s\S]*RuntimeError: sabotage"):
            manager.broker().create_topic("sabotage")
        with pytest.raises(BrokerGone, match="RuntimeError: sabotage"):
            polled.result()
        manager.join(LIMIT_S)
    assert "RuntimeError: sabotage" in capfd.readouterr().err


@pytest.mark.leaves("files")
@pytest.mark.parametrize("kind", ["TypeError", "ValueError", "KeyError", "ProtocolViolation", "UnknownSubscription"])
def test_a_defect_in_the_middle_of_a_publish_reaches_every_client_whatever_its_class(kind: str) -> None:
    with BrokerManager(filter_modules=["tests.process.sabotage_middle"]) as manager:
        broker = manager.broker()
        broker.create_topic(kind)
        polls = [broker.subscribe(kind, name) for name in ("a", "b")]
        broker.publish(kind, "before")
        assert len(polls[0].poll("w")) == 1
        waiting = Call(lambda: polls[0].poll("w", timeout=None))
        until(lambda: broker._status().limits["waiting_calls"][0] == 1)
        with pytest.raises(BrokerGone, match=rf"crashed[\s\S]*Traceback[\s\S]*{kind}: [\s\S]*planted"):
            broker.publish(kind, "half")
        with pytest.raises(BrokerGone, match=f"{kind}: "):
            waiting.result()
        manager.join(LIMIT_S)


def test_the_log_goes_where_it_was_told(tmp_path: Path) -> None:
    with BrokerManager(log_file=tmp_path / "log", log_level="debug"):
        pass
    text = (tmp_path / "log").read_text()
    assert "is ready" in text
    assert "its manager shut it down" in text


def test_without_being_told_the_broker_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with BrokerManager() as manager:
        manager.broker().create_topic("orders")
    assert capfd.readouterr() == ("", "")


def test_stacks_are_shown_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    with BrokerManager() as manager:
        os.kill(pid_of(manager), signal.SIGUSR1)
        # The signal is dealt with before the broker's one thread gets to the call. What is captured is read once:
        # reading again and again loses what is written between the look and the clearing.
        manager.broker().create_topic("orders")
        assert "in run" in capfd.readouterr().err


def test_stacks_go_to_the_log_where_there_is_one(tmp_path: Path) -> None:
    with BrokerManager(log_file=tmp_path / "log") as manager:
        os.kill(pid_of(manager), signal.SIGUSR1)
        until(lambda: "in run" in (tmp_path / "log").read_text())


def test_the_process_is_named_for_people() -> None:
    pytest.importorskip("setproctitle")
    with BrokerManager("orders") as manager:
        assert psutil.Process(pid_of(manager)).cmdline()[0] == "mpbroker: broker orders"


def test_systemd_is_told_where_it_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(LIMIT_S)
        with Program("-c", SERVE) as program:
            assert program.line() == "ready"
            assert systemd.recv(100) == b"READY=1"
            program.process.send_signal(signal.SIGTERM)
            assert systemd.recv(100) == b"STOPPING=1"
            assert program.end() == (0, "it was stopped by SIGTERM\n", "")


SERVE = """
from mpbroker.process.config import check_config
from mpbroker.process.main import serve
config = check_config("orders", manual_time=False, filter_modules=(), max_frame_bytes=64 << 20, max_connections=10,
                      directory=None, log_level=None, log_file=None)
print(serve(config, lambda started: print("ready")))
"""


def test_the_broker_holds_nothing_of_its_creator_open() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    with BrokerManager():
        os.close(write)
        os.set_blocking(read, False)
        assert os.read(read, 1) == b""
    os.close(read)


def test_a_signal_that_a_thread_blocks_still_ends_the_broker() -> None:
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with BrokerManager() as manager:
            os.kill(pid_of(manager), signal.SIGTERM)
            manager.join(LIMIT_S)
            with pytest.raises(BrokerGone):
                manager.broker().topics()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
