"""Lets a coverage-guided fuzzer see what a decoder written in C made of its bytes.

The functions made here do nothing but branch, for each field of a kind of frame, on what is there. A fuzzer that is
told of branches keeps the inputs that are new in one of these.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

F = TypeVar("F", bound=Callable[..., Any])

_QUESTIONS: Final = {
    "None": ("x is None",),
    "int": ("x < 0", "x > 255", "x > 4294967295"),
    "float": ("x != x", "x < 0.0", "x - x != 0.0"),
    "str": ("not x", "not x.isascii()"),
    "bytes": ("not x",),
    "bool": ("x",),
    **dict.fromkeys(("list", "dict", "Numbers", "Names", "Batches", "Headers"), ("not x", "len(x) > 1")),
}
"""What is asked about a field, by the name of its type."""


def shape_of(kinds: Iterable[type[msgspec.Struct]]) -> Callable[[object], int]:
    """A function of a frame of one of these kinds, or of anything else."""
    functions: dict[type, Callable[[object], int]] = {kind: watched(_made(kind)) for kind in kinds}

    def shape(frame: object) -> int:
        function = functions.get(type(frame))
        return -1 if function is None else function(frame)

    return shape


def _made(kind: type[msgspec.Struct]) -> Callable[[object], int]:
    # One function a kind, and few questions: to have a large one watched takes long.
    lines = ["def shape(frame):", "    n = 0"]
    for field in kind.__struct_fields__:
        hint = re.sub(r"\[.*\]", "", str(kind.__annotations__[field]))
        types = {each.strip() for each in hint.split("|")}
        asked = [question for name, questions in _QUESTIONS.items() if name in types for question in questions]
        word = "if"
        lines.append(f"    x = frame.{field}")
        for question in asked:
            lines.append(f"    {word} {question}: n += 1")
            word = "elif" if question == "x is None" or word == "elif" else "if"
    lines.append("    return n")
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    made: Callable[[object], int] = names["shape"]  # type: ignore[assignment]
    return made


def watched(function: F) -> F:
    """The same function, its branches counted where atheris runs."""
    atheris: Any = sys.modules.get("atheris")
    return function if atheris is None else atheris.instrument_func(function)
