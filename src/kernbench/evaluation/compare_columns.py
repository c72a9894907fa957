"""Derived columns in a comparison: the numbers of both sides, and the range of their changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kernbench.common.values import value
from kernbench.evaluation.compare_inputs import ResultFigures


@value
class ColumnPair:
    """The numbers of a derived column on both sides of a pair; None if a side has no number."""

    name: str
    a: float | None
    b: float | None

    @property
    def share(self) -> float | None:
        """The increase from A to B, as a share of A; None without two numbers, or if A is 0."""
        return None if self.a is None or self.b is None or not self.a else (self.b - self.a) / abs(self.a)

    def __str__(self) -> str:
        return f"{self.name} {_say_number(self.a)} → {_say_number(self.b)}"


def common_columns(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[str, ...]:
    """Return the derived columns with the same expression on both sides. ``a``, ``b``: the expressions by name."""
    return tuple(name for name, expression in a.items() if b.get(name) == expression)


def say_other_columns(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each derived column that only one side has, or that has two expressions."""
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            lacking, having = ("B", "A") if name in a else ("A", "B")
            yield f"{lacking} lacks column {name}, which {having} has: not compared"
        elif a[name] != b[name]:
            yield f"column {name} is {a[name]} in A and {b[name]} in B: not compared"


def pair_columns(names: Iterable[str], a: ResultFigures, b: ResultFigures) -> tuple[ColumnPair, ...]:
    """Return the numbers of the columns ``names`` on both sides."""
    return tuple(ColumnPair(name, _number(a, name), _number(b, name)) for name in names)


def _number(figures: ResultFigures, name: str) -> float | None:
    cell = figures.row.get(name)
    return float(cell) if isinstance(cell, int | float) else None


def say_columns(pairs: Sequence[Sequence[ColumnPair]]) -> str:
    """Return a sentence about the changes of all columns over all pairs; empty without columns."""
    return "; ".join(_say_column(column) for column in zip(*pairs, strict=True))


def _say_column(numbers: Sequence[ColumnPair]) -> str:
    """Return the change of a column: its numbers for one pair, else the range of its changes."""
    shares = [pair.share for pair in numbers if pair.share is not None]
    change = "no change to compare"
    if shares:
        least, most = (f"{share:+.1%}" for share in (min(shares), max(shares)))
        change = "as before" if not any(shares) else least if least == most else f"{least} to {most}"
    return f"{numbers[0]} ({change})" if len(numbers) == 1 else f"{numbers[0].name} {change}"


def _say_number(number: float | None) -> str:
    if number is None:
        return "nothing"
    return f"{number:,.0f}" if abs(number) >= 1e5 else f"{number:,.5g}"
