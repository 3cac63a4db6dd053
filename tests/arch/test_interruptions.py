"""What a signal handler that raises must not leave behind: a lock that nobody will unlock."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import FunctionType

import pytest

from mpbroker.pipeline import consumer, filling, publisher, settling


def has_locked_block(function: FunctionType) -> bool:
    uses_lock = {"lock", "_lock"} & set(function.__code__.co_names)
    return bool(uses_lock) and any(each.opname == "WITH_EXCEPT_START" for each in dis.Bytecode(function))


def locking() -> Iterator[FunctionType]:
    """The functions of pipelines that have a block with a lock."""
    for module in (consumer, filling, publisher, settling):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__:
                functions = [each for each in vars(kind).values() if isinstance(each, FunctionType)]
                yield from filter(has_locked_block, functions)


@pytest.mark.parametrize("function", list(locking()), ids=lambda function: function.__qualname__)
def test_no_loop_jumps_back_outside_the_block_that_unlocks(function: FunctionType) -> None:
    """Python looks for signals in the jump back of a loop, and from 3.12 on some of these are of no with block."""
    code = dis.Bytecode(function)
    protected = [(entry.start, entry.end) for entry in code.exception_entries]  # type: ignore[attr-defined]
    # Behind this is what runs when a block was left by an exception, unlocked by then.
    unlocked = min(each.offset for each in code if each.opname == "WITH_EXCEPT_START")
    bare = [
        each.positions and each.positions.lineno
        for each in code
        if each.opname == "JUMP_BACKWARD"
        and each.offset < unlocked
        and not any(start <= each.offset < end for start, end in protected)
    ]
    assert bare == []
