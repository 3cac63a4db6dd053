"""``mpbroker publish``: publish texts from the shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from mpbroker.cli.exits import verb
from mpbroker.cli.options import Directory, Name, connected
from mpbroker.cli.output import Progress, plural, say

if TYPE_CHECKING:
    from mpbroker.process.frames import Published
    from mpbroker.process.proxy import BrokerProxy

_LINES = 256
"""Lines of standard input in one call."""

_READ_BYTES = 64 * 1024


class Priority(StrEnum):
    """As MessagePriority, in the words of a command line."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"


@verb
def publish(
    topic: Annotated[str, typer.Argument(help="An existing topic.", show_default=False)],
    payload: Annotated[list[str] | None, typer.Argument(help="Texts, a message each.", show_default=False)] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    priority: Annotated[Priority, typer.Option(case_sensitive=False)] = Priority.NORMAL,
    stdin: Annotated[bool, typer.Option("--stdin", help="Publish each line of standard input, as it comes.")] = False,
    name: Name = "default",
    directory: Directory = None,
) -> None:
    """Publish texts, and say how many subscriptions took them.

    Payloads are str; what is not valid in the locale's encoding is published as the bytes it is.
    """
    payloads = [_payload(text) for text in payload or ()]
    if bool(payloads) == stdin:
        raise typer.BadParameter("give payloads, or --stdin to publish the lines of standard input; one of the two")
    if stdin and sys.stdin is None:
        raise typer.BadParameter("--stdin needs a standard input, and there is none")
    headers = dict(map(_header, header or ()))
    with connected(name, directory) as broker:
        publisher = _Publisher(broker, topic, headers, priority)
        if payloads:
            published = publisher.publish(payloads)
            first, last = published.first, published.first + len(payloads) - 1
            ids = f"m{first}" if first == last else f"m{first} to m{last}"
            say(f"{ids}: {_taken(published.subscriptions)}")
        else:
            _publish_lines(publisher)


def _publish_lines(publisher: _Publisher) -> None:
    count = subscriptions = 0
    with Progress() as progress:
        for lines in _batches(sys.stdin.fileno()):
            subscriptions = publisher.publish([_decoded(line) for line in lines]).subscriptions
            count += len(lines)
            progress.update(f"{plural(count, 'message')} published")
    say(f"{plural(count, 'message')} published" + (f"; the last: {_taken(subscriptions)}" if count else ""))


def _taken(subscriptions: int) -> str:
    return f"taken by {plural(subscriptions, 'subscription')}" if subscriptions else "taken by no subscription"


class _Publisher:
    def __init__(self, broker: BrokerProxy, topic: str, headers: dict[str, str], priority: Priority) -> None:
        from mpbroker import checks
        from mpbroker.messages import MessagePriority

        self._broker = broker
        self._topic = checks.name(topic, "topic")
        self._headers = checks.headers(headers)
        self._priority = MessagePriority[priority.name]

    def publish(self, payloads: Sequence[str | bytes]) -> Published:
        """Publish in one call; publish_many would not tell how many subscriptions took the messages."""
        import msgspec

        from mpbroker.process import frames
        from mpbroker.process.payloads import encode_batches

        batches = [msgspec.Raw(batch) for batch in encode_batches(payloads)]
        request = frames.Publish(self._topic, batches, self._headers, int(self._priority))
        return self._broker._ask(request, frames.Published)


def _header(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"--header takes KEY=VALUE, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"--header takes valid text, not {text!r}") from None
    return key, value


def _payload(argument: str) -> str | bytes:
    """An argument that is not valid text was made of bytes that were none, and those are meant."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        import os

        return os.fsencode(argument)
    return argument


def _decoded(line: bytes) -> str | bytes:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


def _batches(descriptor: int) -> Iterator[list[bytes]]:
    """The lines of a file, those that are there together: a pipe's line is not kept back until others come."""
    import os

    from mpbroker.errors import PayloadTooLarge
    from mpbroker.process.frames import MAX_FRAME_BYTES

    parts: list[bytes] = []  # of the line that is not complete
    size = 0
    while chunk := os.read(descriptor, _READ_BYTES):
        complete, newline, rest = chunk.rpartition(b"\n")
        if newline:
            lines = iter(b"".join([*parts, complete]).split(b"\n"))
            while batch := list(islice(lines, _LINES)):
                yield batch
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_FRAME_BYTES:
            raise PayloadTooLarge("a line of standard input", size, MAX_FRAME_BYTES)
    if size:
        yield [b"".join(parts)]
