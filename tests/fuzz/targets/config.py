"""What a broker process is told arrives as it was said; and what is no such line is an ordinary error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from mpbroker.errors import MpbrokerError
from mpbroker.process.config import Config, NotStarted, Started, answer_in, check_config, config_in, line_of
from tests.fuzz.draw import Draw

_LEVELS = (None, "debug", "INFO", "loud", 10, 17, -1, True)
_BYTES = (1, 2**21, 2**26, 2**32 - 1, 2**32, -1, 0)
_COUNTS = (1, 1024, 0, -1, 2**63 - 1, 2**63)


def target(data: bytes) -> None:
    draw = Draw(data)
    kind = draw.below(3)
    if kind == 0:
        check_arguments(draw)
    else:
        check_line(config_in if kind == 1 else answer_in, draw.rest())


def check_arguments(draw: Draw) -> None:
    """Arguments as people give them are refused by name, or are a Config that travels."""
    level, frame_bytes, connections = draw.one_of(_LEVELS), draw.one_of(_BYTES), draw.one_of(_COUNTS)
    manual, is_named, has_log = draw.below(2) == 1, draw.below(2) == 1, draw.below(2) == 1
    name = draw.take(draw.below(70)).decode("utf-8", "surrogateescape")
    modules = [draw.take(draw.below(12)).decode("utf-8", "surrogateescape") for _ in range(draw.below(4))]
    folder = draw.take(draw.below(40)).decode("utf-8", "surrogateescape")
    try:
        config = check_config(
            name if is_named else None,
            manual_time=manual,
            filter_modules=modules,
            max_frame_bytes=frame_bytes,
            max_connections=connections,
            directory=folder,
            log_level=level,
            log_file=folder if has_log else None,
        )
    except (MpbrokerError, ValueError, TypeError) as error:
        assert str(error)
        return
    assert config.name == (name if is_named else None)
    assert config.manual_time is manual
    assert config.filter_modules == modules
    assert "__main__" not in config.filter_modules
    assert config.limits.max_frame_bytes == frame_bytes
    travelled = config_in(line_of(config))
    travelled = replace(travelled, path=tuple(travelled.path))  # JSON knows lists only
    assert (travelled, travelled.limits) == (config, config.limits)


def check_line(read: Callable[[bytes], Config | Started | NotStarted], line: bytes) -> None:
    try:
        said = read(line)
    except (ValueError, TypeError, KeyError, RecursionError):
        return  # what the process that reads it makes its last word of
    assert isinstance(said, Config | Started | NotStarted)
    again = line_of(said)
    assert again.endswith(b"\n")
    assert again.count(b"\n") == 1
    assert _same(read(again), said)


def _same(one: object, other: object) -> bool:
    """Equal, or with a NaN in it, which equals nothing."""
    return one == other or (repr(one) == repr(other) and str(math.nan) in repr(one))
