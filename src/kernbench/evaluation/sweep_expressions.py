"""Arithmetic expressions over named cells of a row, such as ``bench.batch / sim_ns * 1e9``.

The grammar is a part of Python's, with the same precedence and the same results for floats. The lowest precedence is
first:

    choice      ::= or_test ["if" or_test "else" choice]
    or_test     ::= and_test {"or" and_test}
    and_test    ::= not_test {"and" not_test}
    not_test    ::= "not" not_test | comparison
    comparison  ::= sum {("<" | "<=" | ">" | ">=" | "==" | "!=") sum}
    sum         ::= product {("+" | "-") product}
    product     ::= sign {("*" | "/" | "//" | "%") sign}
    sign        ::= ("+" | "-") sign | power
    power       ::= atom ["**" sign]
    atom        ::= number | text | name | ("min" | "max") "(" choice {"," choice} ")" | "(" choice ")"

A name is a column or a path (``phase.launch.busy_ns``, ``cube.hbm.slices``). A comparison is 1 or 0. Texts can only be
compared, with ``==`` and ``!=``. Nothing is evaluated as Python: this file parses the text and computes the result.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TypeAlias

from kernbench.common.errors import close_to
from kernbench.common.values import state, value

LONGEST = 300
"""Most characters of an expression. The limit also bounds the depth of its tree."""
DEEPEST = 30
"""Most levels of parentheses, signs, powers and choices"""
FUNCTIONS: Mapping[str, Callable[[list[float]], float]] = {"min": min, "max": max}
KEYWORDS = ("if", "else", "and", "or", "not")
NAME = r"[^\W\d]\w*(?:\.\w+|\[\d+\])*"
CellValue: TypeAlias = "float | str"


class ExpressionError(ValueError):
    """An invalid expression. ``at``: position of the first wrong character, from 1."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(at, message)
        self.at = at
        self.message = message


class NameKind(StrEnum):
    """Kind of the cells of a name. ``EITHER``: numbers or texts, depending on the row."""

    NUMBER = "a number"
    TEXT = "a text"
    EITHER = "a number or a text"
    NEITHER = "a list"


@value
class ConstantTerm:
    """A number, or a text in quotes."""

    at: int
    content: CellValue


@value
class NameTerm:
    """A column or a path."""

    at: int
    name: str


@value
class OperationTerm:
    """Arithmetic on numbers: a sign, an operator with two operands, or a function."""

    at: int
    symbol: str
    operands: tuple[ExpressionTerm, ...]


@value
class ComparisonTerm:
    """A chain of comparisons, such as ``a < b <= c``. It has one symbol fewer than operands."""

    at: int
    symbols: tuple[str, ...]
    operands: tuple[ExpressionTerm, ...]


@value
class LogicTerm:
    """``and`` and ``or``, which return an operand as in Python, and ``not``, which returns 1 or 0."""

    at: int
    symbol: str
    operands: tuple[ExpressionTerm, ...]


@value
class ConditionalTerm:
    """``chosen if condition else otherwise``. Only the returned operand is evaluated."""

    at: int
    chosen: ExpressionTerm
    condition: ExpressionTerm
    otherwise: ExpressionTerm


ExpressionTerm: TypeAlias = "ConstantTerm | NameTerm | OperationTerm | ComparisonTerm | LogicTerm | ConditionalTerm"


@value
class CellExpression:
    """A parsed expression."""

    text: str
    root: ExpressionTerm

    @property
    def names(self) -> tuple[NameTerm, ...]:
        """The names in the order of the text."""
        return tuple(sorted(_names_of(self.root), key=lambda name: name.at))

    def evaluate(self, cells: Mapping[str, CellValue]) -> float | None:
        """Return the number of a row; None if a needed cell is missing or the result is not a finite number."""
        try:
            result = _number_of(self.root, cells)
        except (_EmptyCellError, ZeroDivisionError, OverflowError):
            return None
        return result if math.isfinite(result) else None


class _EmptyCellError(Exception):
    """A needed cell is missing or has the wrong kind."""


def _names_of(node: ExpressionTerm) -> Iterator[NameTerm]:
    match node:
        case NameTerm():
            yield node
        case OperationTerm() | ComparisonTerm() | LogicTerm():
            for operand in node.operands:
                yield from _names_of(operand)
        case ConditionalTerm():
            for operand in (node.chosen, node.condition, node.otherwise):
                yield from _names_of(operand)


_SIGNS: Mapping[str, Callable[[float], float]] = {"+": operator.pos, "-": operator.neg}
_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_EQUALITY: Mapping[str, Callable[[CellValue, CellValue], bool]] = {"==": operator.eq, "!=": operator.ne}
_ORDER: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _evaluate(node: ExpressionTerm, cells: Mapping[str, CellValue]) -> CellValue:
    match node:
        case ConstantTerm():
            return node.content
        case NameTerm():
            if node.name not in cells:
                raise _EmptyCellError
            return cells[node.name]
        case OperationTerm():
            return _compute(node.symbol, [_number_of(operand, cells) for operand in node.operands])
        case ComparisonTerm():
            return float(_holds(node, cells))
        case LogicTerm():
            return _decide(node, cells)
        case ConditionalTerm():
            return _evaluate(node.chosen if _number_of(node.condition, cells) else node.otherwise, cells)


def _number_of(node: ExpressionTerm, cells: Mapping[str, CellValue]) -> float:
    operand = _evaluate(node, cells)
    if isinstance(operand, str):
        raise _EmptyCellError
    return operand


def _compute(symbol: str, numbers: list[float]) -> float:
    if symbol in FUNCTIONS:
        return FUNCTIONS[symbol](numbers)
    if len(numbers) == 1:
        return _SIGNS[symbol](numbers[0])
    result = _ARITHMETIC[symbol](*numbers)
    if isinstance(result, complex):  # a root of a negative number
        raise _EmptyCellError
    return result


def _holds(node: ComparisonTerm, cells: Mapping[str, CellValue]) -> bool:
    left = _evaluate(node.operands[0], cells)
    for symbol, operand in zip(node.symbols, node.operands[1:], strict=True):
        right = _evaluate(operand, cells)
        if symbol in _EQUALITY:
            holds = _EQUALITY[symbol](left, right)
        elif isinstance(left, str) or isinstance(right, str):
            raise _EmptyCellError
        else:
            holds = _ORDER[symbol](left, right)
        if not holds:
            return False
        left = right
    return True


def _decide(node: LogicTerm, cells: Mapping[str, CellValue]) -> float:
    first = _number_of(node.operands[0], cells)
    if node.symbol == "not":
        return float(not first)
    if bool(first) == (node.symbol == "or"):
        return first
    return _number_of(node.operands[1], cells)


_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    rf"|(?P<name>{NAME})"
    r"|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<symbol>//|\*\*|<=|>=|==|!=|[-+*/%<>(),]))"
)


@value
class _Lexeme:
    """A token. ``kind``: number, name, keyword, text, symbol or end. ``at``: its position, from 1."""

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def _tokens_of(text: str) -> Iterator[_Lexeme]:
    end = len(text.rstrip())
    at = 0
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            wrong = at + len(text[at:]) - len(text[at:].lstrip())
            raise ExpressionError(wrong + 1, _say_unreadable(text[wrong]))
        kind, token = match.lastgroup, match[match.lastgroup]
        begin, at = match.start(kind), match.end()
        if kind == "number" and re.match(r"[\w.]", text[at : at + 1]):
            raise ExpressionError(begin + 1, f"{token + text[at]!r} is no number")
        yield _Lexeme("keyword" if token in KEYWORDS else kind, token, begin + 1)
    yield _Lexeme("end", "", end + 1)


def _say_unreadable(character: str) -> str:
    if character in "'\"":
        return "the text has no closing quote"
    hints = {"=": "; a comparison is ==", "&": "; write and", "|": "; write or", "^": "; a power is **"}
    return f"{character!r} cannot be read{hints.get(character, '')}"


def parse_expression(text: str) -> CellExpression:
    """Parse an expression. Raises ExpressionError for anything that the grammar does not allow."""
    if len(text) > LONGEST:
        raise ExpressionError(LONGEST + 1, f"the expression has {len(text)} characters, must have at most {LONGEST}")
    parser = _Parser(list(_tokens_of(text)))
    root = parser.choice()
    if parser.token.kind != "end":
        raise ExpressionError(parser.token.at, f"found {parser.token}, expected an operator or the end")
    return CellExpression(text, root)


@state
class _Parser:
    """A parser by recursive descent. ``position``: the index of the next token. ``depth``: the open levels."""

    tokens: list[_Lexeme]
    position: int = 0
    depth: int = 0

    @property
    def token(self) -> _Lexeme:
        """The next token."""
        return self.tokens[self.position]

    def accept(self, *texts: str) -> _Lexeme | None:
        """Return the next token and pass it, if it is one of these symbols or keywords."""
        token = self.token
        if token.kind not in ("symbol", "keyword") or token.text not in texts:
            return None
        self.position += 1
        return token

    def expect(self, text: str, role: str) -> None:
        """Pass a symbol or keyword. Raises ExpressionError for another token."""
        if self.accept(text) is None:
            raise ExpressionError(self.token.at, f"found {self.token}, expected {text!r} {role}")

    def descend(self, rule: Callable[[], ExpressionTerm]) -> ExpressionTerm:
        """Parse a nested rule. Raises ExpressionError if the nesting is too deep."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise ExpressionError(self.token.at, f"the expression has more than {DEEPEST} levels")
        node = rule()
        self.depth -= 1
        return node

    def choice(self) -> ExpressionTerm:
        chosen = self.logic("or")
        word = self.accept("if")
        if word is None:
            return chosen
        condition = self.logic("or")
        self.expect("else", "after the condition")
        return ConditionalTerm(word.at, chosen, condition, self.descend(self.choice))

    def logic(self, symbol: str) -> ExpressionTerm:
        def operand() -> ExpressionTerm:
            return self.logic("and") if symbol == "or" else self.negation()

        node = operand()
        while (word := self.accept(symbol)) is not None:
            node = LogicTerm(word.at, symbol, (node, operand()))
        return node

    def negation(self) -> ExpressionTerm:
        word = self.accept("not")
        return self.comparison() if word is None else LogicTerm(word.at, "not", (self.descend(self.negation),))

    def comparison(self) -> ExpressionTerm:
        at, operands, symbols = self.token.at, [self.sum()], []
        while (token := self.accept(*_EQUALITY, *_ORDER)) is not None:
            symbols.append(token.text)
            operands.append(self.sum())
        return ComparisonTerm(at, tuple(symbols), tuple(operands)) if symbols else operands[0]

    def sum(self) -> ExpressionTerm:
        return self.chain(self.product, "+", "-")

    def product(self) -> ExpressionTerm:
        return self.chain(self.sign, "*", "/", "//", "%")

    def chain(self, operand: Callable[[], ExpressionTerm], *symbols: str) -> ExpressionTerm:
        """Parse operands between operators of equal precedence, from the left."""
        node = operand()
        while (token := self.accept(*symbols)) is not None:
            node = OperationTerm(token.at, token.text, (node, operand()))
        return node

    def sign(self) -> ExpressionTerm:
        token = self.accept("+", "-")
        return self.power() if token is None else OperationTerm(token.at, token.text, (self.descend(self.sign),))

    def power(self) -> ExpressionTerm:
        base = self.atom()
        token = self.accept("**")
        return base if token is None else OperationTerm(token.at, "**", (base, self.descend(self.sign)))

    def atom(self) -> ExpressionTerm:
        token = self.token
        if self.accept("("):
            node = self.descend(self.choice)
            self.expect(")", f"for the '(' at character {token.at}")
            return node
        if token.kind not in ("number", "name", "text"):
            raise ExpressionError(token.at, f"found {token}, expected a number, a name or '('")
        self.position += 1
        if token.kind == "number":
            return ConstantTerm(token.at, float(token.text))
        if token.kind == "text":
            return ConstantTerm(token.at, token.text[1:-1])
        if self.token.text == "(" and self.token.kind == "symbol":
            return self.call(token)
        if token.text in FUNCTIONS:
            raise ExpressionError(token.at, f"{token.text!r} is a function; write {token.text}(a, b)")
        return NameTerm(token.at, token.text)

    def call(self, function: _Lexeme) -> ExpressionTerm:
        if function.text not in FUNCTIONS:
            hint = close_to(function.text, FUNCTIONS)
            raise ExpressionError(
                function.at, f"{function.text!r} is no function; {hint}there are: {', '.join(FUNCTIONS)}"
            )
        self.expect("(", f"after {function.text}")
        operands = [self.descend(self.choice)]
        while self.accept(","):
            operands.append(self.descend(self.choice))
        self.expect(")", f"for the '(' after {function.text}")
        if len(operands) < 2:
            raise ExpressionError(function.at, f"{function.text} needs at least two operands")
        return OperationTerm(function.at, function.text, tuple(operands))


def find_kind_errors(expression: CellExpression, kinds: Mapping[str, NameKind]) -> Iterator[ExpressionError]:
    """Yield an error per text, list or result of the wrong kind. A name without a kind may have any."""
    errors: list[ExpressionError] = []
    if _kind_of(expression.root, kinds, errors) is NameKind.TEXT and not errors:
        errors.append(ExpressionError(expression.root.at, "the result is a text, must be a number"))
    yield from errors


def _kind_of(node: ExpressionTerm, kinds: Mapping[str, NameKind], errors: list[ExpressionError]) -> NameKind:
    match node:
        case ConstantTerm():
            return NameKind.TEXT if isinstance(node.content, str) else NameKind.NUMBER
        case NameTerm():
            kind = kinds.get(node.name, NameKind.EITHER)
            if kind is NameKind.NEITHER:
                errors.append(ExpressionError(node.at, f"{node.name!r} is {kind}, must be {NameKind.EITHER}"))
                return NameKind.EITHER
            return kind
        case OperationTerm() | LogicTerm():
            _require_numbers(node.operands, kinds, errors)
            return NameKind.NUMBER
        case ComparisonTerm():
            _check_comparison(node, kinds, errors)
            return NameKind.NUMBER
        case ConditionalTerm():
            _require_numbers((node.condition,), kinds, errors)
            branches = {_kind_of(branch, kinds, errors) for branch in (node.chosen, node.otherwise)}
            if branches == {NameKind.NUMBER, NameKind.TEXT}:
                errors.append(ExpressionError(node.at, "one result is a number, the other a text"))
            return branches.pop() if len(branches) == 1 else NameKind.EITHER


def _require_numbers(
    nodes: Iterable[ExpressionTerm], kinds: Mapping[str, NameKind], errors: list[ExpressionError]
) -> None:
    for node in nodes:
        if _kind_of(node, kinds, errors) is NameKind.TEXT:
            subject = repr(node.name) if isinstance(node, NameTerm) else "this operand"
            errors.append(ExpressionError(node.at, f"{subject} is a text; texts can only be compared, by == and !="))


def _check_comparison(node: ComparisonTerm, kinds: Mapping[str, NameKind], errors: list[ExpressionError]) -> None:
    if not set(node.symbols) <= set(_EQUALITY):
        _require_numbers(node.operands, kinds, errors)
    elif {NameKind.NUMBER, NameKind.TEXT} <= {_kind_of(operand, kinds, errors) for operand in node.operands}:
        errors.append(ExpressionError(node.at, "a number is compared with a text"))
