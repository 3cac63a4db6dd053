"""Filter expressions: what they accept, when two are equal, and what is said about a mistake."""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass
from enum import StrEnum
from types import MappingProxyType

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mpbroker.errors import InvalidFilter
from mpbroker.filters import MAX_BYTES, MAX_NESTING, Expression

# -- a second implementation, too simple to be wrong -----------------------------------------------


@dataclass(frozen=True)
class Leaf:
    kind: str
    key: str
    value: str = ""


@dataclass(frozen=True)
class Not:
    operand: Node


@dataclass(frozen=True)
class Join:
    operator: str
    operands: tuple[Node, ...]


Node = Leaf | Not | Join
Dice = Callable[[int], int]


def holds(node: Node, headers: Mapping[str, str]) -> bool:
    match node:
        case Not(operand):
            return not holds(operand, headers)
        case Join("AND", operands):
            return all(holds(operand, headers) for operand in operands)
        case Join("OR", operands):
            return any(holds(operand, headers) for operand in operands)
        case Leaf(kind, key, value):
            if key not in headers:
                return False
            found = headers[key]
            by_kind = {
                "present": True,
                "=": found == value,
                "!=": found != value,
                "hasPrefix": found.startswith(value),
            }
            return by_kind[kind]
    raise AssertionError(node)


WORD_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"


class Writer:
    """Writes a node in one of the many ways it can be written."""

    def __init__(self, pick: Dice) -> None:
        self.pick = pick  # pick(n) is one of 0 … n-1
        self.tokens: list[str] = []
        self.spare = 8  # parentheses that nothing needs

    def text(self, node: Node) -> str:
        self.filter(node)
        blanks = ("", " ", "\n", "\t ", "  \r\n\f")
        result = blanks[self.pick(5)]
        for before, token in itertools.pairwise(["(", *self.tokens]):
            blank = blanks[self.pick(5)]
            words = before[-1] in WORD_CHARACTERS and token[0] in WORD_CHARACTERS
            if words and before != "-" and not blank:
                blank = " "
            result += blank + token
        return result + blanks[self.pick(5)]

    def filter(self, node: Node) -> None:
        if isinstance(node, Join):
            for number, operand in enumerate(node.operands):
                if number:
                    self.tokens.append(node.operator)
                self.term(operand)
        else:
            self.term(node)

    def term(self, node: Node) -> None:
        if isinstance(node, Not):
            self.tokens.append("NOT" if self.pick(2) else "-")
            node = node.operand
        spare = self.spare > 0 and self.pick(4) == 1
        if spare or not isinstance(node, Leaf):
            self.spare -= spare
            self.tokens.append("(")
            self.filter(node)
            self.tokens.append(")")
        else:
            self.leaf(node)

    def leaf(self, leaf: Leaf) -> None:
        start = ["headers", "." if leaf.kind != "present" else ":", self.key(leaf.key)]
        match leaf.kind:
            case "present":
                self.tokens += start
            case "hasPrefix":
                self.tokens += ["hasPrefix", "(", *start, ",", self.string(leaf.value), ")"]
            case _:
                self.tokens += [*start, leaf.kind, self.string(leaf.value)]

    def key(self, key: str) -> str:
        if key not in ("", "-") and all(character in WORD_CHARACTERS for character in key) and self.pick(2):
            return key
        return self.string(key)

    def string(self, value: str) -> str:
        return '"' + "".join([self.character(character) for character in value]) + '"'

    def character(self, character: str) -> str:
        code = ord(character)
        named = {"\n": "\\n", "\t": "\\t", "\\": "\\\\", '"': '\\"'}.get(character)
        ways = [named] if named else []
        if code >= 32 and code != 127 and not named:
            ways += [character] * 3
        if code < 256:
            ways += [f"\\x{code:02x}", f"\\x{code:02X}", f"\\{code:03o}"]
        if code < 65536:
            ways += [f"\\u{code:04x}", f"\\u{code:04X}"]
        return ways[self.pick(len(ways))]


unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
keys = st.sampled_from(["a", "b", "AND", "NOT", "headers", "-"]) | unicode_text
values = st.sampled_from(["", "x", "xy", "y"]) | unicode_text
leaves = st.builds(Leaf, st.just("present"), keys) | st.builds(
    Leaf, st.sampled_from(["=", "!=", "hasPrefix"]), keys, values
)
nodes: st.SearchStrategy[Node] = st.recursive(
    leaves,
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(
            Join,
            st.sampled_from(["AND", "OR"]),
            st.lists(inner, min_size=2, max_size=4).map(tuple),
        )
    ),
    max_leaves=8,
)
some_headers = st.dictionaries(keys, values, max_size=4)


dice = st.randoms().map(lambda random: random.randrange)


def written(node: Node, pick: Dice) -> str:
    text = Writer(pick).text(node)
    assume(len(text.encode()) <= MAX_BYTES)
    return text


def plainly(node: Node) -> str:
    return Writer(lambda ways: ways - 1).text(node)


def disguised(node: Node, pick: Dice) -> Node:
    """Another tree that means the same."""
    if isinstance(node, Not):
        node = Not(disguised(node.operand, pick))
    elif isinstance(node, Join):
        operands = [disguised(operand, pick) for operand in node.operands]
        operands.insert(pick(len(operands) + 1), operands[pick(len(operands))])
        cut = pick(len(operands))
        operands = operands[cut:] + operands[:cut]
        if len(operands) > 2 and pick(2):
            operands = [Join(node.operator, tuple(operands[:2])), *operands[2:]]
        node = Join(node.operator, tuple(operands))
        if not pick(3):
            other = "OR" if node.operator == "AND" else "AND"
            node = Not(Join(other, tuple([Not(operand) for operand in node.operands])))
    return Not(Not(node)) if not pick(4) else node


# -- meaning ---------------------------------------------------------------------------------------


@given(nodes, st.lists(some_headers, max_size=5), dice)
def test_an_expression_accepts_what_its_tree_says_however_it_is_written(
    node: Node, many: list[dict[str, str]], pick: Dice
) -> None:
    expression = Expression(written(node, pick))

    for headers in [{}, *many]:
        assert expression(headers) is holds(node, headers)
        assert expression(MappingProxyType(headers)) is holds(node, headers)
        assert expression.predicate(headers) is holds(node, headers)


CREATED = {"type": "created", "region": "us"}


@pytest.mark.parametrize(
    ("text", "headers", "accepted"),
    [
        ('headers.type = "created" AND NOT headers.region = "eu"', CREATED, True),
        ('headers.type = "created" AND NOT headers.region = "eu"', {"type": "created"}, True),
        ('headers.type = "created" AND NOT headers.region = "eu"', {"region": "us"}, False),
        ('headers.type = "created" AND -headers.region = "us"', CREATED, False),
        ('headers.type = "Created"', CREATED, False),
        ("headers:type", {"type": ""}, True),
        ("headers:Type", {"type": ""}, False),
        ('hasPrefix(headers.type, "cre")', CREATED, True),
        ('hasPrefix(headers.type, "")', {"type": ""}, True),
        ('hasPrefix(headers.type, "")', {}, False),
        ('NOT (headers:a OR headers:b) AND headers:"c d"', {"c d": "1"}, True),
        ('headers:a OR (headers:b AND headers.c != "x")', {"b": "", "c": "y"}, True),
        (r'headers.k = "\"\\\n\t\x41\101\u00e9é"', {"k": '"\\\n\tAAéé'}, True),
        (r'headers.k = "\377\xff\u00FF"', {"k": "ÿÿÿ"}, True),
        ('headers.NOT = "AND" AND headers:OR', {"NOT": "AND", "OR": ""}, True),
        ("headers:a-b AND-headers:b-a", {"a-b": ""}, True),
        ("headers:- AND -headers:--", {"-": ""}, True),
        ('headers."" = ""', {"": ""}, True),
    ],
)
def test_an_example_means_what_a_reader_thinks(text: str, headers: dict[str, str], accepted: bool) -> None:
    assert Expression(text)(headers) is accepted


@pytest.mark.parametrize("test", ["headers:k", 'headers.k = "v"', 'headers.k != "v"', 'hasPrefix(headers.k, "v")'])
def test_no_test_of_a_missing_header_holds_and_every_negated_one_does(test: str) -> None:
    assert Expression(test)({}) is False
    assert Expression(f"NOT {test}")({}) is True


def test_not_equal_and_a_negated_equal_differ_in_the_missing_header_alone() -> None:
    different, negated = Expression('headers.k != "v"'), Expression('NOT headers.k = "v"')

    assert [different({"k": value}) for value in ("v", "w", "")] == [False, True, True]
    assert [negated({"k": value}) for value in ("v", "w", "")] == [False, True, True]
    assert (different({}), negated({})) == (False, True)
    assert different != negated


# -- equality --------------------------------------------------------------------------------------


@given(nodes, dice)
def test_expressions_that_differ_in_form_only_are_equal(node: Node, pick: Dice) -> None:
    first, second = (
        Expression(written(node, pick)),
        Expression(written(disguised(node, pick), pick)),
    )

    assert first == second
    assert hash(first) == hash(second)


def test_equal_expressions_accept_the_same_headers() -> None:
    tests = [Leaf("present", key) for key in "ab"]
    tests += [Leaf(kind, key, "x") for kind in ("=", "!=", "hasPrefix") for key in "ab"]
    terms: list[Node] = [*tests, *[Not(test) for test in tests]]
    trees = terms + [
        Join(operator, pair) for operator in ("AND", "OR") for pair in itertools.combinations_with_replacement(terms, 2)
    ]
    worlds: list[dict[str, str]] = [
        {key: value for key, value in zip("ab", pair, strict=True) if value is not None}
        for pair in itertools.product([None, "", "x", "xy"], repeat=2)
    ]
    accepted_by: dict[Expression, list[bool]] = {}

    for tree in trees:
        accepted = [holds(tree, headers) for headers in worlds]
        assert accepted_by.setdefault(Expression(plainly(tree)), accepted) == accepted

    assert len(accepted_by) > 200


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("headers:a", "headers:b"),
        ("headers:a", "headers:A"),
        ("headers:a", "NOT headers:a"),
        ('headers.a = "1"', 'headers.a = "1 "'),
        ('headers.a = "1"', 'hasPrefix(headers.a, "1")'),
        ("headers:a AND headers:b", "headers:a OR headers:b"),
        ("headers:a AND (headers:b OR headers:c)", "(headers:a AND headers:b) OR headers:c"),
    ],
)
def test_expressions_of_other_meaning_differ(one: str, other: str) -> None:
    assert Expression(one) != Expression(other)


def test_an_expression_equals_no_text_and_no_function() -> None:
    expression = Expression("headers:a")

    assert expression != "headers:a"
    assert expression != expression.predicate
    assert len({expression, Expression(' headers : "a" '), "headers:a"}) == 2


# -- the object ------------------------------------------------------------------------------------


def test_an_expression_keeps_its_text_as_given_and_shows_it() -> None:
    expression = Expression("  headers:a ")

    assert expression.text == "  headers:a "
    assert repr(expression) == "Expression('  headers:a ')"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_expression_comes_back_equal_and_working(protocol: int) -> None:
    expression = Expression('headers.a = "é\\n"')

    again = pickle.loads(pickle.dumps(expression, protocol))

    assert again == expression
    assert again.text == expression.text
    assert again({"a": "é\n"}) is True


def test_a_copied_expression_is_equal() -> None:
    expression = Expression("headers:a AND headers:b")

    assert copy.copy(expression) == copy.deepcopy(expression) == expression


@pytest.mark.parametrize("name", ["text", "predicate", "_meaning"])
def test_an_expression_cannot_be_changed(name: str) -> None:
    expression = Expression("headers:a")

    with pytest.raises(FrozenInstanceError):
        setattr(expression, name, "headers:b")


@pytest.mark.parametrize("text", [None, 5, b"headers:a", ["headers:a"], Expression("headers:a")])
def test_only_text_makes_an_expression(text: object) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        Expression(text)  # type: ignore[arg-type]


def test_an_expression_from_an_enum_member_holds_a_plain_str() -> None:
    class Known(StrEnum):
        PAID = "headers:paid"

    expression = Expression(Known.PAID)

    assert type(expression.text) is str
    assert expression({"paid": ""}) is True


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marked", "reason"),
    [
        ("¦", "empty"),
        ("¦ \n\t", "empty"),
        ("headers¦", "unexpected end"),
        ("headers.¦ ", "unexpected end, a key"),
        ("headers.k¦", "headers:KEY asks"),
        ("headers.k =¦", "unexpected end, a value"),
        ("headers:a AND¦ ", "unexpected end, a test"),
        ("NOT¦", "unexpected end, a test"),
        ("((((¦", "unexpected end, a test"),
        ("(headers:a¦", "unexpected end, a closing parenthesis"),
        ('hasPrefix(headers.a, "x"¦', "unexpected end, a closing parenthesis"),
        ("headers:a AND headers:b ¦OR headers:c", "without parentheses"),
        ("headers:a OR headers:b ¦AND headers:c", "without parentheses"),
        ("(headers:a OR headers:b ¦AND headers:c)", "without parentheses"),
        ("headers:a ¦and headers:b", "upper case: AND"),
        ("headers:a ¦Or headers:b", "upper case: OR"),
        ("headers:a AND ¦not headers:b", "upper case: NOT"),
        ("NOT ¦NOT headers:a", "second NOT"),
        ("-¦-headers:a", "second NOT"),
        ("¦!headers:a", "negation is NOT"),
        ("headers:a ¦&& headers:b", "AND or OR is missing"),
        ("headers:a ¦headers:b", "AND or OR is missing"),
        ("headers:a ¦ANDheaders:b", "AND or OR is missing"),
        ("headers:a¦, headers:b", "AND or OR is missing"),
        ("headers:a ¦(headers:b)", "AND or OR is missing"),
        ("¦AND headers:a", "a term is missing before AND"),
        ("headers:a OR ¦OR headers:b", "a term is missing before OR"),
        ("(¦)", r"a term is missing before \)"),
        ("headers:a¦)", "closes nothing"),
        ("headers.k = ¦v", "double quotes"),
        ("headers.k = ¦5", "double quotes"),
        ("headers.k = ¦'v'", "double quotes"),
        ("headers.k = ¦“v”", "double quotes"),
        ('headers.k =¦= "v"', "single ="),
        ('headers.k ¦< "v"', "= or !="),
        ('headers.k ¦LIKE "v"', "= or !="),
        ('headers:k ¦= "v"', r"its value is headers\.KEY"),
        ('¦"v" = headers.k', "on the right"),
        ('headers.k¦.l = "v"', "a key with other characters"),
        ('headers.¦é = "v"', "a key with other characters"),
        ("headers:k¦/l", "a key with other characters"),
        ("¦attributes:k", "unknown name attributes"),
        ('¦payload.k = "v"', "unknown name payload"),
        ("headers:a AND ¦NOTheaders:b", "unknown name NOTheaders"),
        ('¦hasSuffix(headers.k, "v")', "unknown function hasSuffix"),
        ('¦hasprefix (headers.k, "v")', "unknown function hasprefix"),
        ('hasPrefix(headers¦:k, "v")', r"expected \.KEY"),
        ('hasPrefix(¦NOT headers.k, "v")', r"expected headers\.KEY"),
        ("hasPrefix(headers.k¦)", "expected a comma"),
        ('headers.k = ¦"v', "no closing quote"),
        ('headers.k = ¦"v\\"', "no closing quote"),
        ('headers.k = "v¦\\', "bad escape"),
        ('headers.k = "v¦\\q"', "bad escape"),
        ('headers.k = "v¦\\x4"', "bad escape"),
        ('headers.k = "v¦\\400"', "bad escape"),
        ('headers.k = "v¦\\12"', "bad escape"),
        ('headers.k = "v¦\\u00g0"', "bad escape"),
        ('headers.k = "v¦\\N{BULLET}"', "bad escape"),
        ('headers."k¦\\q" = "v"', "bad escape"),
        ('headers.k = "v¦\\ud83d\\ude00"', "surrogate"),
        ('headers.k = "v¦\ud83d"', "surrogate"),
        ('headers.k = "v¦\n"', "control character"),
        ("headers:a¦\xa0AND headers:b", r"U\+00A0"),
        ("headers:a ¦\x00", r"U\+0000"),
    ],
)
def test_a_mistake_is_told_in_words_with_its_place(marked: str, reason: str) -> None:
    text = marked.replace("¦", "")

    with pytest.raises(InvalidFilter, match=reason) as caught:
        Expression(text)

    assert caught.value.args[0] == text
    assert caught.value.args[2] == marked.index("¦")


def test_the_first_of_several_mistakes_is_told() -> None:
    with pytest.raises(InvalidFilter, match="bad escape") as caught:
        Expression(r'headers.k = "\q" and headers.l = v')

    assert caught.value.args[2] == 13


FRAGMENTS = [
    *["headers", "hasPrefix", "AND", "OR", "NOT", "-", "(", ")", ".", ":", "=", "!=", ",", "k"],
    *['"v"', '"', "\\", "'", " ", "\n", "and", "attributes", "é", "\ud800", "\x00", "$END", "KEY"],
]


def mistake_in(text: str) -> InvalidFilter | None:
    try:
        Expression(text)({})
    except InvalidFilter as error:
        return error
    return None


def check_that_it_parses_or_is_refused(text: str) -> None:
    if mistake := mistake_in(text):
        refused, reason, position = mistake.args
        assert refused == text
        assert reason
        assert 0 <= position <= len(text)
        assert reason in str(mistake)
        assert pickle.loads(pickle.dumps(mistake)).args == mistake.args


@settings(max_examples=300)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=16).map("".join))
def test_nonsense_made_of_the_words_of_the_language_is_an_invalid_filter(text: str) -> None:
    check_that_it_parses_or_is_refused(text)


@given(st.text(st.characters(), max_size=40))
@example("\u2028")
def test_any_other_nonsense_is_an_invalid_filter(text: str) -> None:
    check_that_it_parses_or_is_refused(text)


@given(nodes, dice, st.sampled_from(["", *FRAGMENTS]))
def test_a_damaged_expression_parses_or_is_an_invalid_filter(node: Node, pick: Dice, between: str) -> None:
    text = written(node, pick)
    cut = pick(len(text))
    rest = cut + pick(len(text) - cut + 1)

    check_that_it_parses_or_is_refused(text[:cut] + between + text[rest:])


# -- bounds ----------------------------------------------------------------------------------------


def test_an_expression_may_take_all_the_bytes_there_are_and_not_one_more() -> None:
    full = 'headers.k = "' + "é" * ((MAX_BYTES - 14) // 2) + '"'
    assert len(full.encode()) == MAX_BYTES

    assert Expression(full)({"k": "é" * ((MAX_BYTES - 14) // 2)}) is True

    with pytest.raises(InvalidFilter, match=f"more than {MAX_BYTES} bytes") as caught:
        Expression(full + " ")
    assert caught.value.args[2] == len(full)


def test_a_text_far_too_long_is_refused_without_carrying_it_along() -> None:
    with pytest.raises(InvalidFilter, match="bytes") as caught:
        Expression("headers:k OR " * 1_000_000)

    assert len(str(caught.value)) < 2 * MAX_BYTES
    assert len(caught.value.args[0]) < 2 * MAX_BYTES


def test_parentheses_may_nest_to_the_bound_and_not_deeper() -> None:
    assert Expression("(" * MAX_NESTING + "headers:k" + ")" * MAX_NESTING)({"k": ""}) is True

    with pytest.raises(InvalidFilter, match=f"more than {MAX_NESTING} deep") as caught:
        Expression("-(" * (MAX_NESTING + 1) + "headers:k" + ")" * (MAX_NESTING + 1))
    assert caught.value.args[2] == 2 * MAX_NESTING + 1


def test_an_expression_nested_to_the_bound_works_as_a_shallow_one() -> None:
    text, node = "headers:k0", Leaf("present", "k0")
    tree: Node = node
    for depth in range(1, MAX_NESTING + 1):
        operator = "AND" if depth % 2 else "OR"
        text = f"headers:k{depth} {operator} NOT ({text})"
        tree = Join(operator, (Leaf("present", f"k{depth}"), Not(tree)))
    expression = Expression(text)

    for every in range(1, 8):
        headers = {f"k{number}": "" for number in range(0, MAX_NESTING + 1, every)}
        assert expression(headers) is holds(tree, headers)
    assert pickle.loads(pickle.dumps(expression)) == expression
    check_that_it_parses_or_is_refused(text[:-1])


@pytest.mark.parametrize("unit", ["(", ")", "NOT ", "-", "NOT(", "-(", "headers", '"', "\\", "headers:k AND (", "é"])
def test_one_thing_repeated_to_the_size_bound_is_an_invalid_filter(unit: str) -> None:
    text = (unit * MAX_BYTES).encode()[:MAX_BYTES].decode(errors="ignore")

    with pytest.raises(InvalidFilter):
        Expression(text)


def test_as_many_terms_as_fit_make_one_flat_expression() -> None:
    text = " OR ".join([f"headers:{number}" for number in range(270)])

    assert Expression(text)({"269": ""}) is True
    assert Expression(text)({"270": ""}) is False


# -- starting up -----------------------------------------------------------------------------------


def test_the_parser_is_loaded_by_the_first_expression_and_not_before() -> None:
    program = (
        "import sys, mpbroker.filters as filters\n"
        "assert 'lark' not in sys.modules\n"
        "filters.Expression('headers:a')\n"
        "assert 'lark' in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_the_first_expressions_may_come_from_many_threads_at_once() -> None:
    program = (
        "import threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from mpbroker.filters import Expression\n"
        "barrier = threading.Barrier(8)\n"
        "def first(number):\n"
        "    barrier.wait(20)\n"
        "    return Expression(f'headers:a AND headers.b = \"{number}\"')\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    made = list(pool.map(first, range(8)))\n"
        "for number, expression in enumerate(made):\n"
        "    assert expression({'a': '', 'b': str(number)}) and not expression({'a': ''})\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
