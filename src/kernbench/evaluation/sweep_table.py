"""The results of a sweep as a table: a row for each point, in the order of the grid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernbench.evaluation.sweep_measure import Row
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_point import Outcome
from kernbench.evaluation.sweep_spec import Value

POINT = "point"
CELL_TYPES = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class SweepTable:
    """The rows of a sweep, with its axes; ``about``: its identity."""

    axes: tuple[str, ...]
    rows: tuple[Row, ...]
    about: Mapping[str, Any]

    def numbers(self, column: str) -> list[float | None]:
        """A column as numbers; None where there is none."""
        cells = (row.get(column) for row in self.rows)
        return [float(cell) if isinstance(cell, int | float) else None for cell in cells]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that some row has."""
        return tuple(dict.fromkeys(name for row in self.rows for name, cell in row.items() if cell is not None))


def sweep_table(plan: SweepPlan, outcomes: Mapping[int, Outcome]) -> SweepTable:
    """The table of a sweep whose points are all finished."""
    kinds = {path: kind_of(values) for path, values in plan.axes.items()}
    rows = []
    for point in plan.points():
        axes: Row = {path: _cell(value, kinds[path]) for path, value in point.values}
        rows.append({POINT: point.index, **axes, **outcomes[point.index].row})
    return SweepTable(tuple(plan.axes), tuple(rows), plan.identity())


def kind_of(values: Iterable[object]) -> type:
    """The type of an axis: what all values are, numbers if all are numbers, else texts."""
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 and kinds <= set(CELL_TYPES) else str


def _cell(value: Value, kind: type) -> Any:
    if kind is str and not isinstance(value, str):
        return json.dumps(value)
    return kind(value)


def walls(outcomes: Mapping[int, Outcome]) -> Sequence[dict[str, int | float]]:
    """How long each point took to run, in the order of the grid."""
    return [{POINT: index, "wall_s": outcomes[index].wall_s} for index in sorted(outcomes)]
