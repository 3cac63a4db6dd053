"""What a broker process is told when it starts, and what it says when it has.

Owns the words that go over the lifeline between a broker and the process that started it: one line of JSON each way.
Imports the argument checks, limits and naming; both sides import it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Unpack

from mpbroker import checks
from mpbroker.errors import InvalidFilter
from mpbroker.process.limits import LimitOptions, Limits
from mpbroker.process.naming import base_folder, check_broker_name

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True)
class Config:
    """How a broker process is to be.

    name: None for a private one. base: the folder that holds the brokers of this user. filter_modules: modules whose
    functions may be filters. log_level: None without log_file: no log. path: sys.path, or empty to leave it.
    stderr: a descriptor to write to once it is ready; -1: none.
    """

    name: str | None
    base: str
    manual_time: bool
    limits: Limits
    filter_modules: list[str]
    log_level: str | None
    log_file: str | None
    path: tuple[str, ...] = ()
    stderr: int = -1


@dataclass(frozen=True, slots=True)
class Started:
    """The broker is ready."""

    folder: str
    incarnation: str
    pid: int


@dataclass(frozen=True, slots=True)
class NotStarted:
    """It is not, and ends: the name of an error and its arguments."""

    kind: str
    args: list[str | int | float | list[str] | None]


def line_of(words: Config | Started | NotStarted) -> bytes:
    """As it goes over the lifeline. In plain JSON, which carries file names that are no text, too."""
    return json.dumps(asdict(words)).encode() + b"\n"


def config_in(line: bytes) -> Config:
    fields = json.loads(line)
    return Config(**{**fields, "limits": Limits(**fields["limits"])})


def answer_in(line: bytes) -> Started | NotStarted:
    fields = json.loads(line)
    return NotStarted(**fields) if "kind" in fields else Started(**fields)


def check_config(
    name: str | None,
    *,
    manual_time: bool,
    filter_modules: Iterable[str],
    directory: str | os.PathLike[str] | None,
    log_level: str | int | None,
    log_file: str | os.PathLike[str] | None,
    **limits: Unpack[LimitOptions],
) -> Config:
    """A Config of arguments as people give them.

    Raises:
        InvalidName: the name cannot be a broker's, or the folder is relative.
        TypeError, ValueError: another argument cannot be, by name.
    """
    if name is not None:
        check_broker_name(name)
    bounds = Limits.given(limits)
    if isinstance(filter_modules, str) or not isinstance(filter_modules, Iterable):
        raise TypeError(f"filter_modules must be an iterable of module names, not {type(filter_modules).__name__}")
    return Config(
        name,
        os.fspath(broker_base(directory)),
        checks.flag(manual_time, "manual_time"),
        bounds,
        [_module(each) for each in filter_modules],
        _level(log_level),
        None if log_file is None else os.fspath(Path(log_file).absolute()),
    )


def broker_base(directory: str | os.PathLike[str] | None) -> Path:
    """The folder of this user's brokers: the one given, or where everybody looks."""
    return base_folder(os.environ) if directory is None else Path(directory).absolute()


def _module(name: object) -> str:
    name = checks.text(name, "filter_modules")
    if name == "__main__":
        raise InvalidFilter(name, "the broker process never imports __main__; name a module of its own", None)
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidFilter(name, "it is not the name of a module", None)
    return name


def _level(level: str | int | None) -> str | None:
    if level is None:
        return None
    if isinstance(level, int) and not isinstance(level, bool):
        level = logging.getLevelName(level)
    name = checks.text(level, "log_level").upper()
    if name not in LEVELS:
        raise ValueError(f"log_level must be one of {', '.join(LEVELS)}, not {level!r}")
    return name
