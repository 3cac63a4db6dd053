"""Payloads that are trouble."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn


class CannotLeave:
    def __reduce__(self) -> NoReturn:
        raise RuntimeError("no way out")


class CannotArrive:
    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> NoReturn:
    raise RuntimeError("no way in")


class Canary:
    """Leaves a file wherever it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return _sing, (str(self.path),)


def _sing(path: str) -> str:
    Path(path).touch()
    return "opened"
