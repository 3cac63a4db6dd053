"""A broker served and used from the shell."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

import mpbroker as library
from tests.cli.support import COMMAND, LIMIT_S, environment, mpbroker, running, serving


def test_a_broker_is_served_used_and_stopped() -> None:
    with serving() as broker:
        assert mpbroker("ping").stdout.startswith(f"broker 'default', process {broker.process.pid}, ")
        assert mpbroker("topics", "create", "orders", "invoices").stdout == "created orders\ncreated invoices\n"
        assert mpbroker("publish", "orders", "one", "two").stdout == "m1 to m2: taken by no subscription\n"
        assert mpbroker("topics", "list").stdout == (
            "orders  2 published, 0 subscriptions\ninvoices  0 published, 0 subscriptions\n"
        )
        assert mpbroker("topics", "delete", "invoices").stdout == "deleted invoices\n"
        assert list(json.loads(mpbroker("topics", "list", "--json").stdout)) == ["orders"]
        stopped = mpbroker("stop")
        assert (stopped.returncode, stopped.stdout) == (
            0,
            f"stopped: broker 'default', process {broker.process.pid}\n",
        )
        assert broker.end() == 0
        assert broker.written.splitlines()[-1].startswith("ended: ")
        assert broker.errors() == ""


def test_what_is_published_arrives_as_it_was_given() -> None:
    with serving(), library.connect() as client:
        client.create_topic("t")
        first = client.subscribe("t", "first")
        client.subscribe("t", "second", filter='headers.a = "b=c"')

        done = mpbroker("publish", "t", "text", "-H", "a=b=c", "--header", "d=", "--priority", "high")
        assert done.stdout == "m1: taken by 2 subscriptions\n"
        done = mpbroker("publish", "t", b"\xff\xfe", "")
        assert done.stdout == "m2 to m3: taken by 1 subscription\n"

        messages = [delivery.message for delivery in first.poll("w", max_messages=10)]
        assert [message.payload for message in messages] == ["text", b"\xff\xfe", ""]
        assert messages[0].headers == {"a": "b=c", "d": ""}
        assert messages[0].priority is library.MessagePriority.HIGH


def test_lines_of_standard_input_become_messages() -> None:
    with serving(), library.connect() as client:
        client.create_topic("t")
        subscription = client.subscribe("t", "s")

        lines = [f"line {number}" for number in range(1000)]
        done = mpbroker("publish", "t", "--stdin", stdin="\n".join(lines).encode())
        assert done.stdout == "1,000 messages published; the last: taken by 1 subscription\n"
        got = [delivery.payload for delivery in subscription.poll("w", max_messages=2000)]
        assert got == lines

        assert mpbroker("publish", "t", "--stdin").stdout == "0 messages published\n"


def test_a_line_is_published_before_the_next_one_comes() -> None:
    with serving(), library.connect() as client:
        client.create_topic("t")
        subscription = client.subscribe("t", "s")
        process = subprocess.Popen(
            [*COMMAND, "publish", "t", "--stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        with process:
            assert process.stdin is not None
            process.stdin.write(b"early\n")
            process.stdin.flush()
            (delivery,) = subscription.poll("w", timeout=LIMIT_S)
            assert delivery.payload == "early"


def test_status_shows_every_subscription_for_people_and_programs() -> None:
    with serving("--name", "other"), library.connect("other") as client:
        client.create_topic("t")
        client.subscribe("t", "s")
        client.publish("t", 1)

        text = mpbroker("status", "--name", "other").stdout
        report = json.loads(mpbroker("status", "-n", "other", "--json").stdout)

    assert "broker 'other'" in text
    assert text.splitlines()[-1].split() == ["t/s", "1", "0", "0", "0", "0", "0", "0", "0"]
    assert report["subscriptions"]["t/s"]["ready"] == 1
    assert report["topics"]["t"] == {"published": 1, "unrouted": 0, "subscriptions": 1}
    assert report["limits"]["messages"] == {"used": 1, "limit": 1_000_000}


@pytest.mark.parametrize(
    "words", [["ping"], ["stop"], ["status"], ["topics", "list"], ["publish", "t", "x"]], ids=" ".join
)
def test_without_a_broker_each_verb_says_how_to_start_one(words: list[str]) -> None:
    done = mpbroker(*words)

    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("mpbroker: no broker 'default' in ")
    assert "`mpbroker serve --name default`" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_transport_that_there_is_none_of_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPBROKER_TRANSPORT", "pigeon")
    done = mpbroker("status")
    assert done.returncode == 2
    assert "MPBROKER_TRANSPORT must be one of auto, ring, manager" in done.stderr.replace("\n", " ")


def test_a_taken_name_is_an_error_that_names_the_holder() -> None:
    with serving() as broker:
        done = mpbroker("serve")

    assert done.returncode == 4
    assert f"process {broker.process.pid}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_name_is_free_again_after_its_broker_was_killed() -> None:
    with running("serve") as broker:
        broker.wait_for("ready")
        broker.process.kill()
        broker.end()
    assert mpbroker("ping").returncode == 3
    with serving():
        assert mpbroker("ping").returncode == 0


def test_what_the_broker_refuses_is_one_line() -> None:
    with serving():
        mpbroker("topics", "create", "t")
        for words in (["publish", "unknown", "x"], ["topics", "create", "t"], ["topics", "delete", "unknown"]):
            done = mpbroker(*words)
            assert (done.returncode, len(done.stderr.splitlines())) == (5, 1), done
        assert mpbroker("topics", "create", "t", "--exist-ok").returncode == 0
        assert mpbroker("topics", "create", "a/b").returncode == 2


def test_an_option_names_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    with serving("--directory", str(folder)):
        assert mpbroker("ping").returncode == 3
        assert mpbroker("ping", "-d", str(folder)).returncode == 0


def test_filters_may_be_functions_of_a_module_beside_whoever_serves(tmp_path: Path) -> None:
    (tmp_path / "beside_filters.py").write_text("def wanted(headers):\n    return headers.get('a') == 'yes'\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.syspath_prepend(str(tmp_path))
        import beside_filters  # type: ignore[import-not-found]

        with serving("--filter-module", "beside_filters"), library.connect() as client:
            client.create_topic("t")
            subscription = client.subscribe("t", "s", beside_filters.wanted)
            client.publish("t", 1, {"a": "yes"})
            client.publish("t", 2, {"a": "no"})
            assert subscription.pending == 1


def test_a_filter_module_that_cannot_be_imported_is_an_error() -> None:
    done = mpbroker("serve", "--filter-module", "there_is_no_such_module")

    assert done.returncode == 1
    assert "there_is_no_such_module" in done.stderr
    assert mpbroker("ping").returncode == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_a_served_broker_cleanly(number: signal.Signals, broker_folder: Path) -> None:
    with running("serve") as broker:
        broker.wait_for("ready")
        broker.process.send_signal(number)

        assert broker.end() == 0
        assert broker.errors() == ""
    assert not (broker_folder / "default").exists()


def test_a_log_goes_where_it_is_told_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving("--log-level", "info", "--log-file", str(log)):
        pass

    assert "is ready" in log.read_text()


def test_a_log_file_that_cannot_be_made_is_an_error() -> None:
    done = mpbroker("serve", "--log-file", "/there/is/no/such/folder/log")

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_systemd_is_told_when_the_broker_is_ready_and_when_it_ends(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.settimeout(LIMIT_S)
        with serving(env={"NOTIFY_SOCKET": address}):
            assert b"READY=1" in sock.recv(1000)
        assert b"STOPPING=1" in sock.recv(1000)


def test_nothing_is_said_when_nobody_reads_the_output_any_more() -> None:
    read, write = os.pipe()
    os.close(read)
    with serving():
        done = subprocess.run(
            [*COMMAND, "status"],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            env=environment(),
            check=False,
        )
    os.close(write)

    assert (done.returncode, done.stderr) == (141, b"")


def test_names_that_the_terminal_cannot_show_are_escaped() -> None:
    with serving(), library.connect() as client:
        client.create_topic("smörgås\u202e")
        done = mpbroker("topics", "list", env={"PYTHONIOENCODING": "ascii"})

    assert done.stdout == "sm\\xf6rg\\xe5s\\u202e  0 published, 0 subscriptions\n"
