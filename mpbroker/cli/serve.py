"""``mpbroker serve``: a broker in the foreground, until it is told to end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpbroker.cli.exits import verb
from mpbroker.cli.options import Directory, Name
from mpbroker.cli.output import say

if TYPE_CHECKING:
    from mpbroker.process.config import Started

# The numbers of process.limits, which would take too long to import for --help; a test compares them.
_MAX_FRAME_BYTES = 64 * 1024 * 1024
_MAX_CONNECTIONS = 1024
_MAX_NAMES = 100_000
_MAX_NAME_LENGTH = 255
_MAX_HEADERS = 1000
_MAX_HEADER_BYTES = 256 * 1024
_MAX_QUEUE_BYTES = 1024 * 1024 * 1024
_MAX_DEAD_LETTERS = 10_000
_MAX_RINGS = 512
_RING_BYTES = 256 * 1024
_ARENA_THRESHOLD = 256 * 1024
_MAX_ARENA_BYTES = 1024 * 1024 * 1024
_MAX_CLIENT_ARENA_BYTES = 512 * 1024 * 1024
_ARENA_TIMEOUT = 30.0
_FRAME_TIMEOUT = 30.0


@verb
def serve(
    name: Name = "default",
    directory: Directory = None,
    filter_module: Annotated[
        list[str] | None,
        typer.Option(help="A module whose functions subscriptions may use as filters; may be repeated."),
    ] = None,
    max_frame_bytes: Annotated[int, typer.Option(help="What one call may carry.")] = _MAX_FRAME_BYTES,
    max_connections: Annotated[
        int, typer.Option(help="Connections of clients: one a process, and one for each thread that calls.")
    ] = _MAX_CONNECTIONS,
    max_topics: Annotated[int, typer.Option(help="Topics.")] = _MAX_NAMES,
    max_subscriptions: Annotated[int, typer.Option(help="Subscriptions of all topics.")] = _MAX_NAMES,
    max_name_length: Annotated[int, typer.Option(help="Characters in a name; at most 255.")] = _MAX_NAME_LENGTH,
    max_headers: Annotated[int, typer.Option(help="Headers of one message.")] = _MAX_HEADERS,
    max_header_bytes: Annotated[int, typer.Option(help="Bytes of the headers of one message.")] = _MAX_HEADER_BYTES,
    max_payload_bytes: Annotated[
        int | None, typer.Option(help="Bytes of one payload. Default: what --max-frame-bytes allows.")
    ] = None,
    max_queue_bytes: Annotated[
        int, typer.Option(help="Bytes of memory for all messages in the broker; a publish beyond it is refused.")
    ] = _MAX_QUEUE_BYTES,
    max_dead_letters: Annotated[
        int, typer.Option(help="Dead letters kept in one subscription; the oldest give way.")
    ] = _MAX_DEAD_LETTERS,
    max_waiting_calls: Annotated[
        int | None, typer.Option(help="Polls that may wait at once. Default: one for each connection.")
    ] = None,
    max_rings: Annotated[
        int, typer.Option(help="Connections in shared memory at once; further ones go through their sockets.")
    ] = _MAX_RINGS,
    ring_bytes: Annotated[
        int, typer.Option(help="Shared memory of a connection each way, in multiples of 4096; 0: none.")
    ] = _RING_BYTES,
    arena_threshold: Annotated[
        int, typer.Option(help="Bytes of a payload from which it is read in place, at least 65536; 0: none is.")
    ] = _ARENA_THRESHOLD,
    max_arena_bytes: Annotated[int, typer.Option(help="Bytes of shared memory for payloads of all clients.")] = (
        _MAX_ARENA_BYTES
    ),
    max_client_arena_bytes: Annotated[
        int, typer.Option(help="Bytes of shared memory for payloads of one client process.")
    ] = _MAX_CLIENT_ARENA_BYTES,
    arena_timeout: Annotated[
        float, typer.Option(help="Seconds that a publish waits for room in that memory.")
    ] = _ARENA_TIMEOUT,
    frame_timeout: Annotated[
        float,
        typer.Option(help="Seconds a request may take to arrive or a reply to be read, and one more for each MiB."),
    ] = _FRAME_TIMEOUT,
    log_level: Annotated[
        str | None, typer.Option(help="Log what is at least this: debug, info, warning, error, critical.")
    ] = None,
    log_file: Annotated[Path | None, typer.Option(help="Log to this file; default: standard error.")] = None,
) -> None:
    """Run a broker in the foreground.

    Prints a line that begins with "ready" once clients can connect, and tells systemd where that asked (Type=notify).
    SIGTERM and Ctrl-C end it cleanly, with exit code 0; what it holds is lost then.
    """
    import os
    import sys

    from mpbroker.process import main
    from mpbroker.process.config import check_config

    try:
        config = check_config(
            name,
            manual_time=False,
            filter_modules=filter_module or (),
            directory=directory,
            log_level=log_level,
            log_file=log_file,
            max_frame_bytes=max_frame_bytes,
            max_connections=max_connections,
            max_topics=max_topics,
            max_subscriptions=max_subscriptions,
            max_name_length=max_name_length,
            max_headers=max_headers,
            max_header_bytes=max_header_bytes,
            max_payload_bytes=max_payload_bytes,
            max_queue_bytes=max_queue_bytes,
            max_dead_letters=max_dead_letters,
            max_waiting_calls=max_waiting_calls,
            max_rings=max_rings,
            ring_bytes=ring_bytes,
            arena_threshold=arena_threshold,
            max_arena_bytes=max_arena_bytes,
            max_client_arena_bytes=max_client_arena_bytes,
            arena_timeout=arena_timeout,
            frame_timeout=frame_timeout,
        )
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    if filter_module:
        # Whoever names a module means one that Python finds from here.
        sys.path.insert(0, os.getcwd())

    def ready(started: Started) -> None:
        say(f"ready: broker {name!r}, process {started.pid}, in {started.folder}")

    reason = main.serve(config, ready)
    say(f"ended: {reason}")
