"""Workers run from the shell."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker import BrokerManager, BrokerProxy, SubscriptionAPI
from tests.cli.support import LIMIT_S, ROOT, mpbroker, running
from tests.conformance.support import until

APP = "tests.cli.worker_app"


@pytest.fixture
def broker() -> Iterator[BrokerProxy]:
    with BrokerManager("default") as manager:
        yield manager.broker()


def jobs(broker: BrokerProxy, group: str = "show") -> SubscriptionAPI:
    broker.create_topic("jobs", exist_ok=True)
    return broker.subscribe("jobs", group)


def test_a_handler_is_all_it_takes(broker: BrokerProxy) -> None:
    subscription = jobs(broker)
    broker.publish_many("jobs", range(5))
    done = mpbroker("worker", f"{APP}:show", "--topic", "jobs", "--processes", "2", "--burst")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (ready,) = (line for line in lines if line.startswith("ready: jobs/show, workers "))
    assert sorted(set(lines[:-1]) - {ready}) == [f"got {number}" for number in range(5)]
    assert lines[-1] == "ended: jobs/show: there is nothing left to do; 5 done, 0 failed, 0 workers died"
    assert subscription.stats().acked == 5


def test_an_app_runs_every_handler_with_the_settings_declared_there(broker: BrokerProxy) -> None:
    broker.create_topic("orders")
    with running("worker", f"{APP}:app", "--processes", "1") as command:
        command.wait_for("ready: orders/billing")
        command.wait_for("ready: orders/ship")
        broker.publish("orders", 1, {"type": "created"})
        broker.publish("orders", 2, {"type": "paid"})
        command.wait_for("charged 1")
        command.wait_for("shipped 2")
        assert broker.subscription("orders", "billing").stats().filtered_out == 1
        until(lambda: broker.subscription("orders", "ship").stats().acked == 2)
        command.process.terminate()
        assert command.end() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tests.cli.nowhere:show", "-t", "jobs"], 2, "No module named 'tests.cli.nowhere'"),
        ([f"{APP}:nothing", "-t", "jobs"], 2, "has no 'nothing'"),
        ([f"{APP}:number", "-t", "jobs"], 2, "neither callable nor an App"),
        ([f"{APP}:show"], 2, "needs --topic"),
        ([f"{APP}:app", "-t", "jobs"], 2, "is an App"),
        ([f"{APP}:empty"], 2, "no handler is declared"),
        ([f"{APP}:show", "-t", "jobs", "--processes", "0"], 2, "processes must be at least 1"),
        ([f"{APP}:show", "-t", "jobs", "--max-rss", "much"], 2, "it takes bytes"),
        ([f"{APP}:show", "-t", "a/b"], 2, "'/' is not allowed"),
        ([f"{APP}:show", "-t", "jobs", "--name", "nobody"], 3, "nobody"),
    ],
)
def test_what_cannot_be_is_said_in_a_line_with_its_exit_code(
    broker: BrokerProxy, arguments: list[str], code: int, words: str
) -> None:
    done = mpbroker("worker", *arguments)
    assert done.returncode == code
    assert words in " ".join(done.stderr.split()).replace(" │ │ ", " ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("way", ["SIGTERM", "Ctrl-C"])
def test_a_signal_lets_the_one_finish_and_gives_the_five_to_others_at_once(
    broker: BrokerProxy, tmp_path: Path, way: str
) -> None:
    subscription = jobs(broker, "wait")
    broker.publish_many("jobs", [str(tmp_path / "go")] * 6)
    options = ["--topic", "jobs", "--processes", "1", "--prefetch", "6"]
    with running("worker", f"{APP}:wait", *options) as command:
        command.wait_for("begins")
        until(lambda: subscription.stats().in_flight == 6)
        if way == "SIGTERM":
            command.process.terminate()
        else:
            command.interrupt()
        others = subscription.poll("another", max_messages=9, timeout=LIMIT_S)
        while len(others) < 5:
            others += subscription.poll("another", max_messages=9, timeout=LIMIT_S)
        assert [delivery.attempt for delivery in others] == [1] * 5
        (tmp_path / "go").write_text("")
        assert command.end() == 0
        assert "ends" in command.written
        assert "Traceback" not in command.errors()
    stats = subscription.stats()
    assert (stats.acked, stats.in_flight, stats.late_acks) == (1, 5, 0)


def test_a_second_signal_gives_back_what_runs(broker: BrokerProxy, tmp_path: Path) -> None:
    subscription = jobs(broker, "wait")
    broker.publish("jobs", str(tmp_path / "never"))
    with running("worker", f"{APP}:wait", "--topic", "jobs", "--processes", "1") as command:
        command.wait_for("begins")
        command.process.terminate()
        command.process.send_signal(signal.SIGINT)
        # Which of two that wait comes first is not for us to say.
        assert command.end() in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert "Traceback" not in command.errors()
    assert subscription.stats().ready == 1


def test_it_ends_with_the_exit_code_for_it_when_the_broker_ends(broker: BrokerProxy) -> None:
    jobs(broker)
    with running("worker", f"{APP}:show", "--topic", "jobs", "--processes", "1") as command:
        command.wait_for("ready")
        assert mpbroker("stop").returncode == 0
        assert command.end() == 3
        assert "Traceback" not in command.errors()


def test_hangup_replaces_the_workers(broker: BrokerProxy) -> None:
    jobs(broker)
    with running("worker", f"{APP}:show", "--topic", "jobs", "--processes", "1") as command:
        command.wait_for("\n")
        before = command.written.split()[-1]
        until(lambda: seen()[0]["state"] == "idle")
        os.kill(command.process.pid, signal.SIGHUP)
        until(lambda: [str(worker["pid"]) for worker in seen()] not in ([before], []))
        command.process.terminate()
        assert command.end() == 0


def seen() -> list[dict[str, object]]:
    """What `mpbroker workers` shows."""
    pools = json.loads(mpbroker("workers", "--name", "default", "--json").stdout)
    return [worker for pool in pools for worker in pool["workers"]]


def test_workers_are_shown_with_what_they_do(broker: BrokerProxy, tmp_path: Path) -> None:
    jobs(broker, "wait")
    broker.publish_many("jobs", [str(tmp_path / "go")] * 2)
    assert mpbroker("workers", "--name", "default").stdout == "no worker pools\n"
    options = ["--topic", "jobs", "--processes", "1", "--prefetch", "2"]
    with running("worker", f"{APP}:wait", *options) as command:
        command.wait_for("begins")
        (worker,) = seen()
        assert (worker["state"], worker["message_id"], worker["waiting"]) == ("busy", "m1", 1)
        shown = mpbroker("workers", "--name", "default").stdout.splitlines()
        assert shown[0].split()[:5] == ["worker", "process", "subscription", "state", "message"]
        assert shown[1].split()[1:5] == [str(worker["pid"]), "jobs/wait", "busy", "m1"]
        assert mpbroker("workers", "--name", "other").stdout == "no worker pools\n"
        (tmp_path / "go").write_text("")
        command.process.terminate()
        assert command.end() == 0


def test_the_log_is_text_or_json(broker: BrokerProxy) -> None:
    broker.create_topic("jobs")
    broker.subscribe("jobs", "fail", max_deliveries=1)
    broker.publish("jobs", 1)
    options = ["--topic", "jobs", "--processes", "1", "--burst"]
    done = mpbroker("worker", f"{APP}:fail", *options, "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert any(line["message"] == "m1 failed: ValueError: no such customer" for line in lines)
    assert mpbroker("dead-letters", "redrive", "jobs/fail").stdout == "1 message put back\n"
    done = mpbroker("worker", f"{APP}:fail", *options)
    assert " mpbroker.workers: m1 failed: ValueError: no such customer" in done.stderr


def test_reload_replaces_the_workers_when_a_file_changes(broker: BrokerProxy, tmp_path: Path) -> None:
    jobs(broker)
    module = tmp_path / "changing.py"
    module.write_text("def show(delivery):\n    print('old', delivery.payload, flush=True)\n")
    env = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["--topic", "jobs", "--processes", "1", "--reload"]
    with running("worker", "changing:show", *options, env=env, cwd=tmp_path) as command:
        command.wait_for("ready")
        broker.publish("jobs", 1)
        command.wait_for("old 1")
        before = seen()[0]["pid"]
        module.write_text("def show(delivery):\n    print('new!', delivery.payload, flush=True)\n")
        until(lambda: {worker["pid"] for worker in seen()} not in ({before}, set()))
        broker.publish("jobs", 2)
        command.wait_for("new! 2")
        command.process.terminate()
        assert command.end() == 0
