"""Any text is an expression that can be asked about any headers, or an InvalidFilter that says where it is wrong."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

from mpbroker.errors import InvalidFilter
from mpbroker.filters import MAX_BYTES, MAX_NESTING, Expression, _Group, _Kind, _Node, _Test


def target(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    expression = parsed(text)
    if expression is None:
        return
    assert expression.text == text
    meaning = expression._meaning
    samples = headers_about(meaning)
    answers = [expression(headers) for headers in samples]
    assert answers == [holds(meaning, headers) for headers in samples]

    again = parsed(text)
    assert again == expression
    assert hash(again) == hash(expression)
    assert pickle.loads(pickle.dumps(expression)) == expression
    for same in (f" ( {text} ) ", f"NOT (-({text}))", f"({text}) AND ({text})", plain(meaning)):
        other = parsed(same)
        assert other == expression or (other is None and is_near_a_bound(same))
    opposite = parsed(f"NOT ({text})")
    if opposite is not None:
        assert opposite != expression
        assert [opposite(headers) for headers in samples] == [not answer for answer in answers]


def parsed(text: str) -> Expression | None:
    """None for what is refused, once the refusal was looked at."""
    try:
        return Expression(text)
    except InvalidFilter as error:
        told, reason, position = error.args
        assert told == text or (told.endswith("…") and text.startswith(told[:-1]))
        assert reason
        assert 0 <= position <= len(told)
        assert reason in str(error)
        assert pickle.loads(pickle.dumps(error)).args == error.args
        return None


def is_near_a_bound(text: str) -> bool:
    """What goes around an expression may be what makes it too much."""
    return len(text.encode()) > MAX_BYTES or text.count("(") > MAX_NESTING


def holds(node: _Node, headers: Mapping[str, str]) -> bool:
    """What it means, said as simply as possible."""
    if isinstance(node, _Group):
        answers = [holds(operand, headers) for operand in node.operands]
        return all(answers) if node.every else any(answers)
    found = headers.get(node.key)
    answer = (
        found is not None
        and {
            _Kind.PRESENT: True,
            _Kind.EQUAL: found == node.value,
            _Kind.DIFFERENT: found != node.value,
            _Kind.PREFIX: found.startswith(node.value),
        }[node.kind]
    )
    return answer is not node.negated


def headers_about(node: _Node) -> list[dict[str, str]]:
    """Headers of the keys and values that an expression names, and of others."""
    tests = tests_in(node)[:12]
    one_each = [{test.key: test.value} for test in tests]
    other = [{test.key: test.value + "x"} for test in tests]
    together = {test.key: test.value for test in tests}
    return [{}, {"": ""}, together, {key: value[:1] for key, value in together.items()}, *one_each, *other]


def tests_in(node: _Node) -> list[_Test]:
    if isinstance(node, _Test):
        return [node]
    return [test for operand in node.operands for test in tests_in(operand)]


def plain(node: _Node) -> str:
    """One way to write it."""
    if isinstance(node, _Group):
        return (" AND " if node.every else " OR ").join([f"({plain(operand)})" for operand in node.operands])
    key = f"headers.{quoted(node.key)}"
    text = {
        _Kind.PRESENT: f"headers:{quoted(node.key)}",
        _Kind.EQUAL: f"{key} = {quoted(node.value)}",
        _Kind.DIFFERENT: f"{key} != {quoted(node.value)}",
        _Kind.PREFIX: f"hasPrefix({key}, {quoted(node.value)})",
    }[node.kind]
    return f"NOT {text}" if node.negated else text


def quoted(text: str) -> str:
    return '"' + "".join([f"\\x{ord(c):02x}" if c < " " or c in '"\\\x7f' else c for c in text]) + '"'
