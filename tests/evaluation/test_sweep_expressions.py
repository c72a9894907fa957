"""Expressions of derived columns: results as Python's, empty cells, and errors with their positions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.evaluation.sweep_expressions import (
    DEEPEST,
    LONGEST,
    ExpressionError,
    NameKind,
    find_kind_errors,
    parse_expression,
)

NUMBERS = st.one_of(
    st.sampled_from((0.0, 1.0, 2.0, 0.5, 1e300, -1e-300, math.inf, math.nan)),
    st.floats(-1e6, 1e6, allow_subnormal=False),
)
CELLS = st.fixed_dictionaries({"a": NUMBERS, "b": NUMBERS, "c": NUMBERS})
Texts = tuple[str, str]
"""An expression, and the same in Python with floats in place of booleans"""
ATOMS = st.sampled_from(("a", "b", "c", "0.0", "1.0", "2.5", "3e2", ".5")).map(lambda text: (text, text))


def _join(symbol: str, left: Texts, right: Texts) -> Texts:
    return f"{left[0]} {symbol} {right[0]}", f"{left[1]} {symbol} {right[1]}"


def _larger(parts: st.SearchStrategy[Texts]) -> st.SearchStrategy[Texts]:
    arithmetic = st.sampled_from(("+", "-", "*", "/", "//", "%", "**"))
    ordered = st.sampled_from(("<", "<=", ">", ">=", "==", "!="))
    return st.one_of(
        st.builds(_join, arithmetic, parts, parts),
        st.tuples(st.sampled_from("+-"), parts).map(lambda pair: (pair[0] + pair[1][0], pair[0] + pair[1][1])),
        parts.map(lambda part: (f"({part[0]})", f"({part[1]})")),
        st.tuples(ordered, ordered, parts, parts, parts).map(
            lambda chain: (
                f"(({chain[2][0]}) {chain[0]} ({chain[3][0]}) {chain[1]} ({chain[4][0]}))",
                f"float(({chain[2][1]}) {chain[0]} ({chain[3][1]}) {chain[1]} ({chain[4][1]}))",
            )
        ),
        st.tuples(st.sampled_from(("min", "max")), st.lists(parts, min_size=2, max_size=3)).map(
            lambda call: tuple(f"{call[0]}({', '.join(part[side] for part in call[1])})" for side in (0, 1))  # type: ignore[arg-type, return-value]
        ),
        st.tuples(parts, parts, parts).map(
            lambda choice: tuple(f"({choice[0][side]} if {choice[1][side]} else {choice[2][side]})" for side in (0, 1))  # type: ignore[arg-type, return-value]
        ),
    )


def pythons(text: str, cells: dict[str, float]) -> float | None:
    """The result of Python, with None for what is no finite number."""
    try:
        result = eval(text, {"__builtins__": {}, "min": min, "max": max, "float": float}, cells)
    except (ZeroDivisionError, OverflowError):
        return None
    return float(result) if not isinstance(result, complex) and math.isfinite(result) else None


@given(st.recursive(ATOMS, _larger, max_leaves=12), CELLS)
def test_arithmetic_is_pythons(texts: Texts, cells: dict[str, float]) -> None:
    ours, python = texts
    if len(ours) > LONGEST or ours.count("(") > DEEPEST:
        return
    try:
        expected = pythons(python, cells)
    except TypeError:  # Python continues with complex numbers
        return
    found = parse_expression(ours).evaluate(cells)
    if expected is None or found is None:
        assert found is None
        # A complex part may vanish in Python, and is an empty cell here.
        assert expected is None or "**" in ours
    else:
        assert found == expected


OPERATORS = st.sampled_from(("+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!=", "and", "or", "and not"))


@given(st.lists(st.tuples(st.sampled_from("abc"), OPERATORS), max_size=12), CELLS)
def test_precedence_is_pythons(parts: list[tuple[str, str]], cells: dict[str, float]) -> None:
    text = " ".join(word for pair in parts for word in pair) + " a"
    try:
        compile(text, "", "eval")
    except SyntaxError:  # such as "a + and not"
        return
    assert parse_expression(text).evaluate(cells) == pythons(text, cells)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("bench.batch / sim_ns * 1e9", 4e6),
        ("phase.launch.busy_ns", 7.0),
        ("x[0].y + 1", 4.0),
        ("-2 ** 2", -4.0),
        ("2 ** 3 ** 2", 512.0),
        ("3 if machine == 'edge' else 1", 3.0),
        ("machine != 'edge'", 0.0),
        ("0 if sim_ns else 1 / 0", 0.0),
        ("1 / 0", None),
        ("missing + 1", None),
        ("0 if sim_ns else missing", 0.0),
        ("(-8) ** 0.5", None),
        ("1e308 * 10", None),
        ("machine + 1", None),
        ("machine < sim_ns", None),
    ],
)
def test_results(text: str, number: float | None) -> None:
    cells = {"bench.batch": 4.0, "sim_ns": 1000.0, "phase.launch.busy_ns": 7.0, "x[0].y": 3.0, "machine": "edge"}
    assert parse_expression(text).evaluate(cells) == number


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("", 1, "found the end, expected a number, a name or '('"),
        ("a +", 4, "found the end, expected a number, a name or '('"),
        ("a +* 3", 4, "found '*', expected a number, a name or '('"),
        ("a b", 3, "found 'b', expected an operator or the end"),
        ("a = 3", 3, "'=' cannot be read; a comparison is =="),
        ("a ^ 2", 3, "'^' cannot be read; a power is **"),
        ("((a)", 5, "found the end, expected ')' for the '(' at character 1"),
        ("2x", 1, "'2x' is no number"),
        ("1.2.3", 1, "'1.2.' is no number"),
        ("'edge", 1, "the text has no closing quote"),
        ("mni(a, b)", 1, "'mni' is no function; did you mean 'min'? there are: min, max"),
        ("print(a)", 1, "'print' is no function; there are: min, max"),
        ("min(a)", 1, "min needs at least two operands"),
        ("min + 1", 1, "'min' is a function; write min(a, b)"),
        ("a if b", 7, "found the end, expected 'else' after the condition"),
        ("__import__('os')", 1, "'__import__' is no function; there are: min, max"),
        ("open('x').read()", 10, "'.' cannot be read"),
        ("a; b", 2, "';' cannot be read"),
        ("[a]", 1, "'[' cannot be read"),
        ("a.b()", 1, "'a.b' is no function; there are: min, max"),
        ("lambda: 3", 7, "':' cannot be read"),
    ],
)
def test_errors_with_their_positions(text: str, at: int, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text)
    assert (caught.value.at, caught.value.message) == (at, message)


@pytest.mark.parametrize(
    "text", ["(" * 200 + "1", "-" * 200 + "1", "not " * 70 + "1", "1+" * 200 + "1", "2**" * 60 + "1"]
)
def test_expressions_that_are_too_deep_or_long(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"levels|characters"):
        parse_expression(text)


def test_the_longest_sum() -> None:
    assert parse_expression("+".join(["1"] * (LONGEST // 2))).evaluate({}) == LONGEST // 2


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("name + 1", 1, "'name' is a text; texts can only be compared, by == and !="),
        ("name < 3", 1, "'name' is a text; texts can only be compared, by == and !="),
        ("name", 1, "the result is a text, must be a number"),
        ("name == a", 1, "a number is compared with a text"),
        ("1 if a else 'x'", 3, "one result is a number, the other a text"),
        ("2 * corners", 5, "'corners' is a list, must be a number or a text"),
        ("a + ('x')", 6, "this operand is a text; texts can only be compared, by == and !="),
    ],
)
def test_texts_and_lists_where_numbers_must_be(text: str, at: int, message: str) -> None:
    kinds = {"name": NameKind.TEXT, "a": NameKind.NUMBER, "corners": NameKind.NEITHER, "size": NameKind.EITHER}
    (error,) = find_kind_errors(parse_expression(text), kinds)
    assert (error.at, error.message) == (at, message)


def test_what_may_be_either_is_no_error() -> None:
    kinds = {"size": NameKind.EITHER, "name": NameKind.TEXT}
    for text in ("size + 1", "size == 'x'", "size == 3", "unknown * 2", "('x' if size else name) == 'x'"):
        assert not list(find_kind_errors(parse_expression(text), kinds))


def test_names_in_their_order() -> None:
    names = parse_expression("max(b, a.c) if a == 1 else -b").names
    assert [(name.name, name.at) for name in names] == [("b", 5), ("a.c", 8), ("a", 16), ("b", 29)]
