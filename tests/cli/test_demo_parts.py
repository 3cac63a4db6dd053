"""The parts of the demonstration: files, work, trace, comparison."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker import BrokerManager, MessageBroker
from mpbroker.api import BrokerAPI
from mpbroker.cli.demo import files, work
from mpbroker.cli.demo.compare import Comparison, Difference, Outcomes, compare
from mpbroker.cli.demo.files import find, find_standard_library
from mpbroker.cli.demo.trace import trace
from mpbroker.cli.demo.work import Census, Failed, Result, census, digest, outcome
from mpbroker.testing import FakeClock


def names(folder: Path) -> list[bytes]:
    return [os.path.relpath(file.path, os.fsencode(folder)) for file in find(os.fsencode(folder)).files]


# -- files ----------------------------------------------------------------------------------------------------------


def test_files_are_found_at_every_depth_in_one_order(tmp_path: Path) -> None:
    for name in ("b/c.py", "b/a", "a", "z.txt", "b/d/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert names(tmp_path) == [b"a", b"z.txt", b"b/a", b"b/c.py", b"b/d/e"]


def test_names_need_not_be_text(tmp_path: Path) -> None:
    name = os.path.join(os.fsencode(tmp_path), b"\xff\xfe.p\xff")
    try:
        os.close(os.open(name, os.O_CREAT))
    except OSError:
        pytest.skip("this file system takes names that are text alone")

    (file,) = find(os.fsencode(tmp_path)).files
    assert (file.path, file.suffix) == (name, ".p\ufffd")


def test_links_pipes_and_sockets_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as sock, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        sock.bind("socket")

    found = find(os.fsencode(tmp_path))
    assert [os.path.basename(file.path) for file in found.files] == [b"file"]
    assert found.left_out == {"links": 3, "no regular files": 2}


def test_a_folder_that_vanished_or_is_closed_is_counted(tmp_path: Path) -> None:
    assert find(os.fsencode(tmp_path / "nowhere")).left_out == {"folders that cannot be read": 1}


def test_too_many_and_too_large_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 2)
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).touch()
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(files.MAX_FILE_BYTES + 1)

    found = find(os.fsencode(tmp_path))
    assert len(found.files) == 2
    assert found.left_out == {"beyond the first 2": 2, "larger than 64 MiB": 1}


def test_the_standard_library_is_taken_without_what_was_installed_into_it() -> None:
    found = find_standard_library()

    assert len(found.files) > 500
    assert any(file.path.endswith(b"/asyncio/__init__.py") for file in found.files)
    assert not any(b"site-packages" in file.path or b"__pycache__" in file.path for file in found.files)


# -- work -----------------------------------------------------------------------------------------------------------


def test_a_digest_is_that_of_the_content(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)

    assert digest(os.fsencode(tmp_path / "file")) == hashlib.sha256(content).hexdigest()


def test_a_census_counts_definitions_wherever_they_are(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text(
        "class A:\n"
        "    def b(self):\n"
        "        async def c(): ...\n"
        "if x:\n"
        "    def d(): ...\n"
        "else:\n"
        "    def e(): ...\n"
        "try:\n"
        "    def f(): ...\n"
        "except E:\n"
        "    def g(): ...\n"
        "finally:\n"
        "    def h(): ...\n"
        "match x:\n"
        "    case 1:\n"
        "        def i(): ...\n"
        "z = lambda: 1\n"
    )

    assert census(os.fsencode(path)) == Census(lines=17, definitions=9)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"def broken(:\n", "SyntaxError"),
        (b"\xff\xfe not utf-8\n", "SyntaxError"),
        (b"x = '\0'\n", "(ValueError|SyntaxError)"),
        (b"(" * 100_000 + b")" * 100_000, "(MemoryError|RecursionError|SyntaxError)"),
        (b"# coding: nonsense\n", "SyntaxError"),
        (b"#" * (work.MAX_SOURCE_BYTES + 1), "ValueError: more than 2,097,152 bytes"),
    ],
    ids=["syntax", "encoding", "null", "deep", "unknown encoding", "long"],
)
def test_python_that_is_none_fails_with_its_error(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "file.py"
    path.write_bytes(content)

    result = outcome("census", os.fsencode(path))
    assert isinstance(result, Failed)
    assert pytest.importorskip("re").match(error, result.error)


def test_old_code_warns_nobody(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "file.py"
    path.write_text("x = '\\d' is 'y'\n")

    assert census(os.fsencode(path)) == Census(1, 0)
    assert list(recwarn) == []


def test_what_is_no_file_any_more_fails_and_does_not_block(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "nowhere")

    for path in (pipe, link, tmp_path, tmp_path / "nowhere"):
        result = outcome("digest", os.fsencode(path))
        assert isinstance(result, Failed), path


# -- trace ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["in this process", "in a process of its own"])
def exact(request: pytest.FixtureRequest) -> Iterator[BrokerAPI]:
    if request.param == "in this process":
        clock = FakeClock(0.0)
        with MessageBroker(clock=clock, sleep=clock.sleep) as local:
            yield local
    else:
        with BrokerManager(manual_time=True) as manager, manager.broker() as proxy:
            yield proxy


def test_the_trace_comes_out_as_expected_over_every_broker(exact: BrokerAPI) -> None:
    steps = trace(exact)

    assert [(step.action, step.got) for step in steps if not step.holds] == []
    assert {step.number for step in steps} == set(range(1, 8))


def test_a_broker_that_acks_twice_differs_from_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpbroker import Subscription

    monkeypatch.setattr(Subscription, "ack", lambda *_: True)
    with MessageBroker(clock=FakeClock(0.0)) as broker:
        wrong = [step for step in trace(broker) if not step.holds]

    assert ("w1 acks m1 again", "False", "True") in [(step.action, step.expected, step.got) for step in wrong]


# -- comparison -----------------------------------------------------------------------------------------------------


def never(kind: str, path: bytes) -> Result | Failed:
    raise AssertionError("it was the same")


def test_the_same_outcomes_have_no_difference() -> None:
    outcomes: Outcomes = {("digest", b"a"): "1", ("census", b"a"): Census(1, 1), ("digest", b"b"): Failed("E")}

    assert compare(outcomes, dict(outcomes), never) == Comparison()


def test_another_outcome_is_a_difference() -> None:
    key = ("digest", b"a")

    assert compare({key: "1"}, {key: "2"}, lambda *_: "1").differences == [Difference(key, "1", "2")]
    assert compare({key: "1"}, {key: Failed("E")}, lambda *_: "1").differences == [Difference(key, "1", Failed("E"))]
    assert compare({key: "1"}, {}, lambda *_: "1").differences == [Difference(key, "1", None)]
    assert compare({}, {key: "1"}, lambda *_: "1").differences == [Difference(key, None, "1")]


def test_a_file_that_changed_in_between_is_no_difference() -> None:
    key = ("digest", b"a")

    assert compare({key: "1"}, {key: "2"}, lambda *_: "2") == Comparison(changed=[key])
