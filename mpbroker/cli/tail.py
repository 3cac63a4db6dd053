"""``mpbroker tail``: messages of a topic as they come, without taking any from anybody."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpbroker.cli.exits import verb
from mpbroker.cli.options import AsJson, Directory, Name, connected
from mpbroker.cli.output import say, shown

if TYPE_CHECKING:
    from mpbroker.messages import Message

_TEXT = 2000
"""Characters of a payload that a line shows."""


@verb
def tail(
    topic: Annotated[str, typer.Argument(help="An existing topic.", show_default=False)],
    filter: Annotated[str | None, typer.Option("--filter", "-f", help='Which ones: headers.type = "created"')] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after so many.")] = None,
    name: Name = "default",
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Show what is published to a topic from now on, one message a line.

    It has a subscription of its own, which ends with it: nobody else's messages are touched. Payloads that are pickles
    are opened here, so look only at what trusted programs publish.
    """
    from mpbroker.errors import PayloadError
    from mpbroker.overflow import Overflow

    with connected(name, directory) as broker:
        # Whoever looks on too slowly misses some; it must cost nobody anything.
        subscription = broker.subscribe(
            topic,
            f"tail-{secrets.token_hex(6)}",
            filter,
            max_queue=10_000,
            overflow=Overflow.DROP_OLDEST,
            ephemeral=True,
        )
        say(f"tail of {shown(topic)}; Ctrl-C ends it") if not as_json else None
        left = count
        while left is None or left > 0:
            for delivery in subscription.poll("tail", max_messages=min(left or 256, 256), timeout=None):
                try:
                    message, trouble = delivery.message, ""
                except PayloadError as error:
                    say(f"{delivery.message_id}: {error}")
                else:
                    delivery.ack()
                    say(_json_line(message) if as_json else _line(message) + trouble)
                left = None if left is None else left - 1


def _line(message: Message) -> str:
    headers = "".join(f" {shown(key)}={shown(value)}" for key, value in message.headers.items())
    return f"{message.message_id} [{message.priority.name.lower()}]{headers} {shown(repr(message.payload))[:_TEXT]}"


def _json_line(message: Message) -> str:
    import json

    line: dict[str, Any] = {
        "message_id": message.message_id,
        "uid": message.uid,
        "timestamp": message.timestamp,
        "priority": message.priority.name.lower(),
        "headers": dict(message.headers),
        "payload": message.payload,
    }
    return json.dumps(line, default=repr)
