"""``mpbroker dead-letters``: look at what was set aside, put it back, throw it away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpbroker.cli.exits import HELP, verb
from mpbroker.cli.options import AsJson, Directory, Name, connected
from mpbroker.cli.output import plural, say, shown, table

if TYPE_CHECKING:
    from mpbroker.messages import DeadLetter

app = typer.Typer(
    help="Look at dead letters, put them back, throw them away.",
    epilog=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
)

_ERROR = 80

Subscription = Annotated[str, typer.Argument(metavar="TOPIC/SUBSCRIPTION", help="A subscription.", show_default=False)]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MESSAGE...]", help="Ids, such as m7. Default: all.", show_default=False),
]


@app.command("list", epilog=HELP)
@verb
def list_letters(
    subscription: Annotated[
        str | None, typer.Argument(metavar="[TOPIC/SUBSCRIPTION]", help="Default: all.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the oldest first.")] = 100,
    name: Name = "default",
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, one a line, the oldest first."""
    with connected(name, directory) as broker:
        letters = broker.dead_letters(subscription, limit=limit)
    if as_json:
        _say_json([_as_dict(letter) for letter in letters])
        return
    if not letters:
        say("no dead letters")
        return
    rows = [["message", "subscription", "reason", "attempts", "error"]]
    for letter in letters:
        error = letter.error.partition("\n")[0][:_ERROR]
        attempts = str(letter.attempts)
        rows.append([letter.message.message_id, shown(letter.subscription_id), letter.reason, attempts, shown(error)])
    say(table(rows, right=[3]))


@app.command(epilog=HELP)
@verb
def show(
    subscription: Subscription,
    message: Annotated[str, typer.Argument(help="An id, such as m7.", show_default=False)],
    name: Name = "default",
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its message, and how each attempt ended."""
    with connected(name, directory) as broker:
        letters = [each for each in broker.dead_letters(subscription) if each.message.message_id == message]
    if not letters:
        raise typer.BadParameter(f"{subscription} has no dead letter {message}")
    if as_json:
        _say_json(_as_dict(letters[0]))
    else:
        say(_as_text(letters[0]))


@app.command(epilog=HELP)
@verb
def redrive(
    subscription: Subscription, message: Ids = None, name: Name = "default", directory: Directory = None
) -> None:
    """Put dead letters back in their subscription, as far as they fit there; their attempts begin anew."""
    with connected(name, directory) as broker:
        count = broker.redrive(subscription, message or None)
    say(f"{plural(count, 'message')} put back")


@app.command(epilog=HELP)
@verb
def purge(
    subscription: Subscription,
    message: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    name: Name = "default",
    directory: Directory = None,
) -> None:
    """Throw dead letters away."""
    if bool(message) == everything:
        raise typer.BadParameter("give ids of messages, or --all; one of the two")
    with connected(name, directory) as broker:
        count = broker.purge_dead_letters(subscription, message or None)
    say(f"{plural(count, 'message')} thrown away")


def _as_dict(letter: DeadLetter) -> dict[str, Any]:
    message = letter.message
    return {
        "subscription": letter.subscription_id,
        "message_id": message.message_id,
        "uid": message.uid,
        "timestamp": message.timestamp,
        "headers": dict(message.headers),
        "payload": message.payload,
        "reason": letter.reason.value,
        "error": letter.error,
        "attempts": letter.attempts,
        "last_member": letter.last_member,
        "history": [
            {
                "attempt": each.number,
                "member": each.member,
                "seconds": each.ended - each.started,
                "outcome": each.outcome.value,
                "error": each.error,
            }
            for each in letter.history
        ],
    }


def _as_text(letter: DeadLetter) -> str:
    message = letter.message
    lines = [
        f"{message.message_id} of {shown(letter.subscription_id)}: {letter.reason}",
        f"attempts: {letter.attempts}",
        f"payload: {shown(repr(message.payload))}",
        *(f"header: {shown(key)}={shown(value)}" for key, value in message.headers.items()),
    ]
    for each in letter.history:
        lines.append(
            f"attempt {each.number} by {shown(each.member)}, {each.ended - each.started:.3f} s: {each.outcome}"
        )
        lines += [f"  {shown(line)}" for line in each.error.splitlines()]
    if not letter.history:
        lines += [f"error: {shown(letter.error)}"]
    return "\n".join(lines)


def _say_json(value: object) -> None:
    import json

    say(json.dumps(value, indent=2, default=repr))
