"""Ctrl-C in a terminal, and what only a terminal is shown."""

from __future__ import annotations

from pathlib import Path

import mpbroker as library
from tests.cli.support import serving
from tests.cli.terminal import terminal


def test_ctrl_c_ends_a_served_broker_cleanly() -> None:
    with terminal("serve") as screen:
        screen.wait_for("ready")
        screen.press_ctrl_c()

        assert screen.end() == 0
        assert "Traceback" not in screen.shown


def test_ctrl_c_ends_a_stress_with_everybody_in_it() -> None:
    with terminal("stress", "--messages", "1000000", "--batch", "10") as screen:
        screen.wait_for(" acked of 4,000,000")
        screen.press_ctrl_c()

        assert screen.end() == 130
        assert "Traceback" not in screen.shown
        assert "checks" not in screen.shown


def test_ctrl_c_ends_a_stress_whose_workers_stand_still() -> None:
    with terminal("stress", "--messages", "1000000", "--kill-workers", "400", "--start-method", "spawn") as screen:
        screen.wait_for(" acked of 4,000,000")
        screen.press_ctrl_c()

        assert screen.end() == 130
        assert "Traceback" not in screen.shown


def test_ctrl_c_ends_a_demonstration_with_everybody_in_it(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.py").write_text("def f():\n    return [1, 2, 3]\n" * 1000)
    with terminal("demo", "--path", str(tmp_path)) as screen:
        screen.wait_for("with mpbroker: ")
        screen.press_ctrl_c()

        assert screen.end() == 130
        assert "Traceback" not in screen.shown


def test_ctrl_c_while_lines_are_awaited_is_no_error_text() -> None:
    with serving(), library.connect() as client:
        client.create_topic("t")
        subscription = client.subscribe("t", "s")
        with terminal("publish", "t", "--stdin") as screen:
            screen.type("a line\n")
            assert subscription.poll("w", timeout=40.0)

            assert screen.end_by_ctrl_c() == 130
            assert "Traceback" not in screen.shown


def test_what_takes_long_shows_how_far_it_is_and_wipes_that_away() -> None:
    with terminal("stress", "--messages", "1000", "--batch", "5") as screen:
        assert screen.end() == 0

    line = " acked of 4,000"
    assert line in screen.shown
    assert line not in screen.shown.rpartition("\r" + " " * 20)[2]
    assert "\x1b" not in screen.shown
