"""Groups of points of equal work, and the best point of each group.

The axes that ``work`` names are different work, such as the batch: a smaller batch takes less time without being
better. Without such axes, all points are of equal work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kernbench.evaluation.sweep_measure import OK, Cell, PointRow

WorkValues: TypeAlias = tuple[Cell, ...]
"""The values of a point on the axes of work"""


def group_by_work(rows: Iterable[PointRow], work: Sequence[str]) -> dict[WorkValues, list[PointRow]]:
    """Group rows by their values on the axes ``work``, in the order of the rows."""
    groups: dict[WorkValues, list[PointRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row[axis] for axis in work), []).append(row)
    return groups


def number_in(row: PointRow, column: str) -> float | None:
    """Return the number in a column of a successful row; None without a number."""
    cell = row.get(column)
    is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
    return float(cell) if row["status"] == OK and is_number and cell is not None else None


def best_rows(rows: Iterable[PointRow], work: Sequence[str], column: str, *, largest: bool = False) -> list[PointRow]:
    """Return the row with the smallest, or ``largest``, number in a column, for each work that has such a row."""
    choose = max if largest else min
    groups = group_by_work((row for row in rows if number_in(row, column) is not None), work)
    return [choose(group, key=lambda row: number_in(row, column) or 0.0) for group in groups.values()]
