"""What the command line says of itself, and of a wrong one."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

import mpbroker
from mpbroker.cli import exits
from mpbroker.cli.app import app
from tests.cli.support import mpbroker as command

COMMANDS = [
    [],
    ["serve"],
    ["stop"],
    ["ping"],
    ["status"],
    ["topics"],
    ["topics", "list"],
    ["topics", "create"],
    ["topics", "delete"],
    ["publish"],
    ["stress"],
    ["demo"],
]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_help_says_what_the_exit_codes_mean(words: list[str]) -> None:
    result = invoke(*words, "--help")

    assert result.exit_code == 0
    for code, meaning in exits.MEANINGS.items():
        assert f"{int(code)}  {meaning}" in result.output


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_is_plain_text(words: list[str]) -> None:
    assert set("\x1b\r│─╭╮╰╯").isdisjoint(invoke(*words, "--help").output)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["serve", "--nonsense"],
        ["serve", "--name", "no/slash"],
        ["serve", "--max-frame-bytes", "1"],
        ["serve", "--log-level", "loud"],
        ["serve", "--filter-module", "__main__"],
        ["publish"],
        ["publish", "topic"],
        ["publish", "topic", "payload", "--stdin"],
        ["publish", "topic", "payload", "--header", "no-equals-sign"],
        ["publish", "topic", "payload", "--header", "=value"],
        ["publish", "topic", "payload", "--priority", "urgent"],
        ["ping", "--timeout", "-1"],
        ["ping", "--timeout", "nan"],
        ["topics", "create"],
        ["stress", "--publishers", "0"],
        ["stress", "--messages", "many"],
        ["stress", "--payload-bytes", "10"],
        ["stress", "--kill-workers", "-1"],
        ["stress", "--messages", "100000000"],
        ["stress", "--payload-bytes", "1000000", "--batch", "1000"],
        ["stress", "--workers", "10000"],
        ["stress", "--start-method", "thread"],
        ["stress", "--timeout", "0"],
        ["stress", "--timeout", "nan"],
        ["demo", "--path", "/there/is/nothing"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_told_and_ends_with_2(arguments: list[str]) -> None:
    result = invoke(*arguments)

    assert result.exit_code == exits.ExitCode.USAGE
    assert "Error" in result.output
    assert "Traceback" not in result.output


def test_the_version_is_the_packages() -> None:
    done = command("--version")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"mpbroker {mpbroker.__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_have_its_completion(shell: str) -> None:
    done = command("--show-completion", shell, env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})

    assert done.returncode == 0
    assert "_MPBROKER_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (mpbroker.BrokerNotFound("n", "f", "r"), 3),
        (mpbroker.BrokerGone("r"), 3),
        (mpbroker.NameTaken("n", "f", 1), 4),
        (mpbroker.UnknownTopic("t"), 5),
        (mpbroker.TopicExists("t"), 5),
        (mpbroker.VersionMismatch("1", "2"), 5),
        (mpbroker.LimitReached("things", 1, "option"), 5),
        (mpbroker.AccessRefused("r"), 5),
        (mpbroker.QueueFull("s", 1), 5),
        (mpbroker.InsecureFolder("p", "r"), 5),
        (mpbroker.InvalidName("topic", "", "r"), 2),
        (mpbroker.BrokerFailed("r"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (exits.Interrupted(15), 143),
        (exits.CheckFailed("r"), 1),
        (RuntimeError("r"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_each_error_ends_in_its_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    @exits.verb
    def fails() -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        fails()

    assert end.value.code == code
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert (shown == "") == (code in {130, 141, 143})
