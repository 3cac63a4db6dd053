r"""Filter expressions: from text such as ``headers.type = "created"`` to a predicate on headers.

Owns the language: its grammar, what an expression means, when two mean the same, and the words for
each mistake. Sees headers only, never a payload. Imports errors; anybody may import it.

The language is that of Google Pub/Sub with our word ``headers``, so filters can move over::

    filter := term ( ("AND" term)+ | ("OR" term)+ )?    mixing AND and OR takes parentheses
    term   := ("NOT" | "-")? ( test | "(" filter ")" )  NOT binds tightest; upper case only
    test   := "headers" ":" KEY                         the header is there, be it empty
            | "headers" "." KEY ("=" | "!=") STRING
            | "hasPrefix" "(" "headers" "." KEY "," STRING ")"
    KEY    := [A-Za-z0-9_-]+ | STRING
    STRING := "..." with \\ \" \n \t \xHH \ooo \uHHHH   the numbers are code points

Implementations of it disagree about ``!=`` on a header that is not there. Here a missing header
equals nothing and differs from nothing: no test of it holds, ``!=`` included, and NOT turns just
that around. Without the header ``k``, ``NOT headers.k = "v"`` holds (as it does everywhere) and
``headers.k != "v"`` does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

from mpbroker.errors import InvalidFilter

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

__all__ = ["MAX_BYTES", "MAX_NESTING", "Expression", "Filter"]

Filter: TypeAlias = Callable[[Mapping[str, str]], object]
"""What selects messages: called with the headers of one, true when the subscription takes it."""

MAX_BYTES: Final = 4096
"""UTF-8 bytes of an expression. Pub/Sub allows 256; a bound, since filters run inside publish."""

MAX_NESTING: Final = 64
"""Parentheses inside each other. Keeps parsing and evaluation far from Python's recursion limit."""


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Expression:
    """Say which messages a subscription takes, by their headers; callable, immutable, picklable.

    Never blocks, calls no user code, and may be shared by threads. Equality is by meaning: white
    space, redundant parentheses, the order and repetition of what AND or OR joins, ``-`` or NOT,
    where a negation stands, quoted or bare keys and escapes make no difference. Equal expressions
    always accept the same headers.

    Args:
        text: the expression; at most ``MAX_BYTES`` of UTF-8, parentheses ``MAX_NESTING`` deep.

    Attributes:
        text: the expression as it was given.
        predicate: the same as calling the expression, for loops in which that one call more counts.

    Raises:
        TypeError: ``text`` is not a str.
        InvalidFilter: it is not an expression; the error has the reason and the offset.
    """

    text: str
    predicate: Callable[[Mapping[str, str]], bool]
    _meaning: _Node

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a filter expression must be a str, not {type(text).__name__}")
        text = str.__str__(text)  # a subclass (an enum's member) would drag its class into every pickle
        meaning = _parse(text)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "_meaning", meaning)
        object.__setattr__(self, "predicate", _compiled(meaning))

    def __call__(self, headers: Mapping[str, str]) -> bool:
        """Whether a message with these headers is wanted."""
        return self.predicate(headers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return NotImplemented
        return self._meaning == other._meaning

    def __hash__(self) -> int:
        return hash(self._meaning)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __reduce__(self) -> tuple[type[Expression], tuple[str]]:
        return Expression, (self.text,)


# -- meaning --------------------------------------------------------------------------------------


class _Kind(Enum):
    """The four tests, each as the Python that does it; none holds when the header is missing."""

    PRESENT = "{key} in headers"
    EQUAL = "headers.get({key}) == {value}"
    DIFFERENT = "headers.get({key}, {value}) != {value}"
    PREFIX = "headers.get({key}, '').startswith({value})"  # never an empty one: that is PRESENT


@dataclass(frozen=True, slots=True)
class _Test:
    kind: _Kind
    key: str
    value: str = ""
    negated: bool = False


@dataclass(frozen=True, slots=True)
class _Group:
    """AND (every) or OR of at least two different nodes, none of them a group of the same sort.

    There is no node for NOT: negations stand at the tests, so equal meaning mostly is equal trees.
    """

    every: bool
    meaning: frozenset[_Node]
    operands: tuple[_Node, ...] = field(compare=False)  # in the user's order, which decides what is tried first


_Node: TypeAlias = _Test | _Group


def _joined(every: bool, nodes: list[_Node]) -> _Node:
    operands: dict[_Node, None] = {}
    for node in nodes:
        if isinstance(node, _Group) and node.every is every:
            operands.update(dict.fromkeys(node.operands))
        else:
            operands[node] = None
    if len(operands) == 1:
        return next(iter(operands))
    return _Group(every, frozenset(operands), tuple(operands))


def _negated(node: _Node) -> _Node:
    if isinstance(node, _Test):
        return _Test(node.kind, node.key, node.value, not node.negated)
    return _joined(not node.every, [_negated(operand) for operand in node.operands])


def _compiled(node: _Node) -> Callable[[Mapping[str, str]], bool]:
    """One function for the whole tree; a closure for each node would cost a call for each."""
    names: dict[str, str] = {}
    source = f"lambda headers: {_source(node, names)}"
    # Nothing the user wrote is in the source: it has our words, and a name for each key and value.
    constants = {name: text for text, name in names.items()}
    return cast("Callable[[Mapping[str, str]], bool]", eval(source, constants))  # noqa: S307


def _source(node: _Node, names: dict[str, str]) -> str:
    if isinstance(node, _Group):
        joint = " and " if node.every else " or "
        return f"({joint.join([_source(operand, names) for operand in node.operands])})"
    key = names.setdefault(node.key, f"text{len(names)}")
    value = names.setdefault(node.value, f"text{len(names)}")
    return "not " * node.negated + node.kind.value.format(key=key, value=value)


# -- parsing --------------------------------------------------------------------------------------

_STRING_BODY: Final = (
    r"(?:[^\"\\\x00-\x1f\x7f]"
    r"|\\[\\\"nt]|\\x[0-9A-Fa-f]{2}|\\[0-3][0-7]{2}|\\u(?![Dd][89A-Fa-f])[0-9A-Fa-f]{4})*"
)

# Words end where a longer word would go on: NOTheaders is one word and -headers two.
_GRAMMAR: Final = rf"""
    ?start: term | term (_AND term)+ -> conjunction | term (_OR term)+ -> disjunction
    ?term: test | (_NOT | _MINUS) test -> negation
    ?test: _HEADERS _COLON key -> present
        | _HEADERS _DOT key _EQUAL string -> equal
        | _HEADERS _DOT key _DIFFERENT string -> different
        | _HAS_PREFIX _OPEN _HEADERS _DOT key _COMMA string _CLOSE -> prefix
        | _OPEN start _CLOSE
    ?key: KEY | string
    ?string: STRING

    _HEADERS: /headers(?![A-Za-z0-9_-])/
    _HAS_PREFIX: /hasPrefix(?![A-Za-z0-9_-])/
    _NOT: /NOT(?![A-Za-z0-9_])/
    _AND: /AND(?![A-Za-z0-9_])/
    _OR: /OR(?![A-Za-z0-9_])/
    _MINUS: "-"
    _COLON: ":"
    _DOT: "."
    _COMMA: ","
    _EQUAL: "="
    _DIFFERENT: "!="
    _OPEN: "("
    _CLOSE: ")"
    KEY: /[A-Za-z0-9_-]+/
    STRING: /"{_STRING_BODY}"/
    BLANK: /[ \t\r\n\f]+/
    %ignore BLANK
"""
_BLANKS: Final = " \t\r\n\f"
_KINDS: Final = {kind.name.lower(): kind for kind in _Kind}


@cache
def _parser() -> Lark:
    """The parser, built when the first expression needs it, since loading lark takes long.

    Threads that come first together may each build one, which costs time only; a lock could be
    left held by a fork.
    """
    from lark import Lark

    return Lark(_GRAMMAR, parser="lalr", lexer="contextual")


def _parse(text: str) -> _Node:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    _check_size(text)
    if not text.strip(_BLANKS):
        raise InvalidFilter(text, "the expression is empty; leave the filter out to get every message", 0)
    session: Any = _parser().parse_interactive(text)  # its methods are not typed
    nesting = 0
    try:
        for token in session.iter_parse():
            nesting += (token.type == "_OPEN") - (token.type == "_CLOSE")
            if nesting > MAX_NESTING:
                raise InvalidFilter(text, f"parentheses go more than {MAX_NESTING} deep", token.start_pos)
        return _node(session.feed_eof())
    except UnexpectedCharacters as error:
        position = cast(int, error.pos_in_stream)
    except UnexpectedToken as error:
        ended = error.token.type == "$END"
        position = len(text.rstrip(_BLANKS)) if ended else cast(int, error.token.start_pos)
    reason, position = _diagnosis(text, position, session.accepts())
    raise InvalidFilter(text, reason, position)


def _check_size(text: str) -> None:
    head = text[: MAX_BYTES + 1]  # as many characters are too many bytes already
    try:
        size = len(head.encode())
    except UnicodeEncodeError as error:
        raise InvalidFilter(text, "a lone surrogate is not a character", error.start) from None
    if size > MAX_BYTES:
        position = len(head.encode()[:MAX_BYTES].decode(errors="ignore"))
        reason = f"the expression takes more than {MAX_BYTES} bytes of UTF-8"
        raise InvalidFilter(head[: position + 1] + "…", reason, position)


def _node(tree: Tree[Token] | Token) -> _Node:
    tree = cast("Tree[Token]", tree)
    if tree.data == "conjunction" or tree.data == "disjunction":
        return _joined(tree.data == "conjunction", [_node(child) for child in tree.children])
    if tree.data == "negation":
        return _negated(_node(tree.children[0]))
    kind = _KINDS[tree.data]
    texts = [_unquoted(cast("Token", child)) for child in tree.children]
    key, value = (*texts, "")[:2]
    return _Test(_Kind.PRESENT if kind is _Kind.PREFIX and not value else kind, key, value)


_ESCAPE: Final = re.compile(r"\\(?:x(?P<x>..)|u(?P<u>....)|(?P<o>[0-7]{3})|(?P<c>.))")
_CHARACTERS: Final = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}


def _unquoted(token: Token) -> str:
    if token.type == "KEY":
        return str(token)
    return _ESCAPE.sub(_character, token[1:-1])


def _character(escape: re.Match[str]) -> str:
    if escape["c"]:
        return _CHARACTERS[escape["c"]]
    return chr(int(escape["o"], 8) if escape["o"] else int(escape["x"] or escape["u"], 16))


# -- mistakes -------------------------------------------------------------------------------------

_WORD: Final = re.compile(r"[A-Za-z0-9_-]*")
_STRING_START: Final = re.compile('"' + _STRING_BODY)
_QUOTE_KEY: Final = "a key with other characters than A-Z a-z 0-9 _ - must be in double quotes"
_WANTED: Final = {
    "_NOT": 'a test such as headers.KEY = "value"',
    "_HAS_PREFIX": 'a test such as headers.KEY = "value"',
    "_HEADERS": "headers.KEY",
    "_COLON": ":KEY (is it there?) or .KEY (what is its value?)",
    "_DOT": ".KEY",
    "KEY": "a key",
    "_EQUAL": "= or != (headers:KEY asks whether it is there)",
    "STRING": "a value in double quotes",
    "_COMMA": "a comma and the prefix",
    "_CLOSE": "a closing parenthesis",
    "_OPEN": "an opening parenthesis",
}
"""What can follow, the first that the parser accepts being the most telling."""


def _diagnosis(text: str, position: int, accepted: set[str]) -> tuple[str, int]:
    """Why the parser stopped there, for whoever wrote the text, and where the fault itself is."""
    wanted = next((words for name, words in _WANTED.items() if name in accepted), "the end")
    if not text[position:].strip(_BLANKS):
        return f"unexpected end, {wanted} is missing", position
    found = text[position]
    if found == '"' and "STRING" in accepted:
        return _string_fault(text, position)
    if found in "'`‘’“”":
        return "strings are in plain double quotes", position
    if found.isspace() or not found.isprintable():
        return f"the character U+{ord(found):04X} may stand in a string only", position
    reason = None
    word = cast(re.Match[str], _WORD.match(text, position))[0]
    if "_HAS_PREFIX" in accepted:
        reason = _term_fault(found, word, text[position + len(word) :].lstrip(_BLANKS)[:1])
    elif not accepted or accepted & {"_AND", "_OR"}:
        reason = _joint_fault(found, word, text[position - 1])
    elif "_EQUAL" in accepted:
        reason = _comparison_fault(found, word, text[position - 1])
    elif "KEY" in accepted:
        reason = _QUOTE_KEY
    elif "STRING" in accepted:
        reason = "equality is a single =" if found == "=" else "the value must be a string in double quotes"
    return reason or f"expected {wanted}", position


def _string_fault(text: str, position: int) -> tuple[str, int]:
    end = cast(re.Match[str], _STRING_START.match(text, position)).end()
    if end == len(text):
        return "the string that starts here has no closing quote", position
    if text[end] != "\\":
        return "a control character in a string must be escaped, as in \\n or \\x00", end
    if re.match(r"\\u[Dd][89A-Fa-f][0-9A-Fa-f]{2}", text[end:]):
        return "half of a surrogate pair is not a character; write the character itself", end
    return r"bad escape; a string may have \\ \" \n \t \xHH \ooo (up to \377) \uHHHH", end


def _term_fault(found: str, word: str, after: str) -> str | None:
    if found == "-" or word == "NOT":
        return "a second NOT needs parentheses: NOT (NOT …)"
    if word in ("AND", "OR") or found == ")":
        return f"a term is missing before {word or found}"
    if word.upper() in ("AND", "OR", "NOT"):
        return f"operators are upper case: {word.upper()}"
    if found == "!":
        return "negation is NOT or -"
    if found == '"':
        return "a test starts with headers, and the value stands on the right"
    if word and after == "(":
        return f"unknown function {word[:40]}; there is hasPrefix only"
    if word:
        return f"unknown name {word[:40]}; what can be tested is headers"
    return None


def _joint_fault(found: str, word: str, before: str) -> str:
    if word in ("AND", "OR"):
        return "AND and OR cannot be mixed without parentheses"
    if word.upper() in ("AND", "OR"):
        return f"operators are upper case: {word.upper()}"
    if found == ")":
        return "this parenthesis closes nothing"
    if found in "=!<>":
        return "headers:KEY asks whether the header is there; its value is headers.KEY"
    if found not in '&|,("' and not word and _WORD.fullmatch(before):
        return _QUOTE_KEY
    return "AND or OR is missing here"


def _comparison_fault(found: str, word: str, before: str) -> str | None:
    if word or found in "=!<>~:":
        return "a value is compared by = or !="
    return _QUOTE_KEY if _WORD.fullmatch(before) else None
