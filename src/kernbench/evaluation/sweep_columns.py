"""Derived columns of a sweep: ``columns: {tokens_s: bench.batch / sim_ns * 1e9}``.

An expression may use columns, axes and settings of ``set``, and the derived columns above it. It may also use
parameters of the bench, settings of front ends, and keys of the machine. Derived cells are computed from finished rows
when a table is made. Other columns therefore need no new runs.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernbench.common.complaints import Complaint, one_of
from kernbench.common.errors import ConfigError, close_to
from kernbench.common.values import value
from kernbench.evaluation.sweep_expressions import (
    FUNCTIONS,
    KEYWORDS,
    NAME,
    CellExpression,
    CellValue,
    ExpressionError,
    NameKind,
    NameTerm,
    find_kind_errors,
    parse_expression,
)
from kernbench.evaluation.sweep_measure import PointRow, flat_configuration, list_columns
from kernbench.evaluation.sweep_spec import DIGEST, MACHINE, POINT, AxisValue, SweepDraft
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.frontends import FrontendSettings
from kernbench.runtime_api.overrides import BENCH_PREFIX, part_of
from kernbench.topology.spec import TopologySpec

SECTION = "columns"
MOST_LISTED = 12
DEFAULT_SETTINGS: Mapping[str, Any] = flat_configuration(FrontendSettings().model_dump(mode="json"))
"""Default settings of front ends by path. Results contain only changed settings"""


def families_of(columns: Iterable[str]) -> list[str]:
    """Return column names in a short form: ``phase.*`` for all columns with this prefix."""
    return list(dict.fromkeys(f"{name.partition('.')[0]}.*" if "." in name else name for name in columns))


@value
class NameScope:
    """The names that expressions may use, with the kinds of their cells.

    ``unread``: first steps of paths that cannot be checked, because the bench or the machine could not be loaded.
    """

    axes: tuple[str, ...]
    parameters: tuple[str, ...]
    kinds: Mapping[str, NameKind]
    unread: frozenset[str]

    def list_names(self, derived: Iterable[str]) -> str:
        """Return the names as text; ``derived``: the columns above."""
        columns = [*families_of(name for name, kind in list_columns().items() if kind is not str), *derived]
        parts = [f"the axes {one_of(self.axes)}", f"the columns {one_of(columns)}"]
        if self.parameters:
            more = ["…"] if len(self.parameters) > MOST_LISTED else []
            parts.append(f"the parameters {one_of([*self.parameters[:MOST_LISTED], *more])}")
        return f"there are {'; '.join(parts)}; and the keys of the machine"


def make_scope(draft: SweepDraft, bench: Bench | None, machines: Sequence[Mapping[str, Any]] | None) -> NameScope:
    """Return the names of a sweep. ``machines``: its base machines by path.

    ``bench`` and ``machines`` are None if they could not be loaded.
    """
    parameters = {} if bench is None else _parameters_of(bench, draft)
    kinds = {
        name: NameKind.TEXT if kind is str else NameKind.NUMBER for name, kind in {**list_columns(), POINT: int}.items()
    }
    sections = [DEFAULT_SETTINGS, parameters]
    sections += machines or ()
    paths: dict[str, NameKind] = {}
    for section in sections:
        for path, content in section.items():
            kind = _kind_of(content)
            paths[path] = kind if paths.get(path, kind) is kind else NameKind.EITHER
    varied = {path: _common_kind(path, values) for path, values in draft.axes.items()}
    settings = {**draft.fixed, **flat_configuration(draft.fixed)}
    fixed = {path: _common_kind(path, (content,)) for path, content in settings.items()}
    if MACHINE in draft.grid:
        kinds[DIGEST] = NameKind.TEXT
    unread = {*(() if bench else ("bench",)), *(TopologySpec.model_fields if machines is None else ())}
    return NameScope(
        axes=tuple(draft.grid),
        parameters=tuple(parameters),
        kinds={**paths, **fixed, **kinds, **varied},
        unread=frozenset(unread),
    )


def _parameters_of(bench: Bench, draft: SweepDraft) -> dict[str, Any]:
    """Return the parameters of a bench by path, with the fixed values of the sweep if the bench accepts them."""
    texts = [f"{path}={json.dumps(content)}" for path, content in draft.fixed.items() if part_of(path) == "bench"]
    try:
        params = bench.make_params(texts)
    except ConfigError:  # reported as an error of the fixed value
        params = bench.make_params()
    contents = flat_configuration(params.model_dump(mode="json"))
    return {f"{BENCH_PREFIX}{path}": content for path, content in contents.items()}


def _kind_of(content: object) -> NameKind:
    if isinstance(content, bool | int | float):
        return NameKind.NUMBER
    if isinstance(content, str):
        return NameKind.TEXT
    return NameKind.EITHER if content is None else NameKind.NEITHER


def _common_kind(path: str, values: Iterable[AxisValue]) -> NameKind:
    """Return the kind of all values of an axis. A machine's key may have the text of a size, which is a number."""
    kinds = {_kind_of(content) for content in values}
    is_size = NameKind.TEXT in kinds and path != MACHINE and part_of(path) == "machine"
    return kinds.pop() if len(kinds) == 1 and not is_size else NameKind.EITHER


def find_column_errors(draft: SweepDraft, scope: NameScope) -> Iterator[Complaint]:
    """Yield an error for each invalid name, and for each error of an expression, with the character in it."""
    above: list[str] = []
    for name, text in draft.columns.items():
        message = _refuse_name(name, scope)
        if message:
            yield Complaint((SECTION, name), message, at_key=True)
        below = tuple(column for column in draft.columns if column not in above)
        for error in _find_errors(text, scope, above, below):
            yield Complaint((SECTION, name), f"character {error.at} of {text!r}: {error.message}")
        if not message:
            above.append(name)


def _refuse_name(name: str, scope: NameScope) -> str:
    """Return the reason why a derived column cannot have a name; empty if it can."""
    if re.fullmatch(NAME, name) is None or "[" in name:
        return f"{name!r} is no name of a column; write letters, digits and _, such as tokens_s"
    if name in KEYWORDS or name in FUNCTIONS:
        return f"{name!r} is a word of expressions; choose another name"
    if name in scope.axes:
        return f"{name!r} is an axis of the grid; choose another name"
    if name in scope.kinds:
        return f"{name!r} is a {'column' if name in list_columns() else 'path'} already; choose another name"
    return ""


def _find_errors(text: str, scope: NameScope, above: list[str], below: tuple[str, ...]) -> Iterator[ExpressionError]:
    """Yield the errors of an expression. ``above``, ``below``: derived columns, the expression's first in ``below``."""
    try:
        expression = parse_expression(text)
    except ExpressionError as error:
        yield error
        return
    kinds = {**scope.kinds, **dict.fromkeys(above, NameKind.NUMBER)}
    unknown = [name for name in expression.names if name.name not in kinds and not _is_unread(name, scope)]
    yield from (_refuse_unknown(name, scope, above, below) for name in unknown)
    if not unknown:
        yield from find_kind_errors(expression, kinds)


def _is_unread(name: NameTerm, scope: NameScope) -> bool:
    return name.name.partition(".")[0] in scope.unread


def _refuse_unknown(name: NameTerm, scope: NameScope, above: list[str], below: tuple[str, ...]) -> ExpressionError:
    if name.name in below:
        return ExpressionError(name.at, f"{name.name!r} is not above this column; a column can use those above it")
    hint = close_to(name.name, [*scope.axes, *above, *scope.kinds])
    return ExpressionError(name.at, f"{name.name!r} is no column and no path; {hint}{scope.list_names(above)}")


@dataclass(frozen=True)
class DerivedColumns:
    """The derived columns of a sweep, and the settings of all its points."""

    expressions: Mapping[str, CellExpression]
    fixed: Mapping[str, AxisValue]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the expressions use."""
        return frozenset(name.name for expression in self.expressions.values() for name in expression.names)

    def cells_of(self, row: PointRow, choices: Mapping[str, AxisValue], machine: MutableMapping[str, Any]) -> PointRow:
        """Return the derived cells of a row. An empty cell is None.

        ``choices``: the values of the row on the axes. ``machine``: its base machine by path.
        """
        if not self.expressions:
            return {}
        sources = ChainMap(*self._sources(row, choices, machine))
        cells = {name: operand for name in self.names if (operand := _operand_of(sources.get(name))) is not None}
        derived: PointRow = {}
        for name, expression in self.expressions.items():
            number = expression.evaluate(cells)
            derived[name] = number
            if number is not None:
                cells[name] = number
        return derived

    def _sources(
        self, row: PointRow, choices: Mapping[str, AxisValue], machine: MutableMapping[str, Any]
    ) -> list[MutableMapping[str, Any]]:
        """Return the mappings with the values of all names, the first that has a name counts.

        A point without results has the values of the sweep file only.
        """
        chosen: list[MutableMapping[str, Any]] = [dict(choices), dict(self.fixed), dict(row)]
        if row.get("changed") is None:
            return chosen
        params = flat_configuration(json.loads(str(row["params"])))
        of_bench = {f"{BENCH_PREFIX}{path}": content for path, content in params.items()}
        changed = json.loads(str(row["changed"]))
        return [of_bench, changed, *chosen, machine, dict(DEFAULT_SETTINGS)]


def _operand_of(cell: object) -> CellValue | None:
    """Return a cell as an expression uses it: a number as float, or a text."""
    if isinstance(cell, bool | int | float):
        return float(cell)
    return cell if isinstance(cell, str) else None
