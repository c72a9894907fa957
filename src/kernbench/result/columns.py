"""Columns of sweeps and comparisons, derived from the types of sections.

A number or a text is a column, ``section.field``, and so are those of a dataclass in a field, ``section.field.inner``.
Lists and mappings are no columns.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from kernbench.common.figures import DeclaredFigure, figures_of
from kernbench.common.values import value

Cell: TypeAlias = "str | int | float | bool | None"
CellRow: TypeAlias = dict[str, Cell]
_CELL_TYPES = (str, int, float, bool)


@value
class FigureColumn:
    """A column: its name, the type of its cells, and a description."""

    name: str
    kind: type
    about: str = ""


@cache
def columns_of(form: Any, prefix: str = "") -> tuple[FigureColumn, ...]:
    """Return the columns of a dataclass; ``prefix`` is the name of its section, or empty."""
    return tuple(_list_columns(form, prefix))


def _list_columns(form: Any, prefix: str) -> Iterator[FigureColumn]:
    hints = get_type_hints(form)
    for entry in figures_of(form):
        if entry.derived or not entry.forms.swept or not entry.forms.stored:
            continue
        inner = _without_none(hints[entry.name])
        name = _name_of(entry, prefix)
        if is_dataclass(inner):
            yield from _list_columns(inner, name if not entry.forms.inline else prefix)
        elif (kind := _cell_type(inner)) is not None:
            yield FigureColumn(name, kind, entry.forms.about)


def flatten(content: Any, prefix: str = "") -> CellRow:
    """Return the cells of a result by column. An empty optional figure has no cell."""
    row: CellRow = {}
    for entry in figures_of(content.__class__):
        if entry.derived or not entry.forms.swept or not entry.forms.stored:
            continue
        figure, name = getattr(content, entry.name), _name_of(entry, prefix)
        if is_dataclass(figure):
            row |= flatten(figure, name if not entry.forms.inline else prefix)
        elif isinstance(figure, Enum):
            row[name] = str(figure.value)
        elif isinstance(figure, _CELL_TYPES) and (figure or not entry.forms.optional):
            row[name] = figure
    return row


def _name_of(entry: DeclaredFigure, prefix: str) -> str:
    return entry.forms.column or (f"{prefix}.{entry.name}" if prefix else entry.name)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        inner = [argument for argument in get_args(hint) if argument is not type(None)]
        return inner[0] if len(inner) == 1 else hint
    return hint


def _cell_type(hint: Any) -> type | None:
    """Return the type of a cell: bool, int, float or str; None for a hint that is no cell."""
    if get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
        return str
    return hint if hint in _CELL_TYPES else None


def kinds_of(columns: Mapping[str, type] | tuple[FigureColumn, ...]) -> dict[str, type]:
    """Return the type of each column by name."""
    return dict(columns) if isinstance(columns, Mapping) else {column.name: column.kind for column in columns}
