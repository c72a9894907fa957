"""The results of a sweep as a table, in memory and as one Parquet file: one row per point, in grid order.

The file depends on the sweep only, not on the user, the time, or the number of interrupts. Its metadata contains the
inputs: bench, grid, and the resolved base machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kernbench.common.complaints import one_line, one_of, show
from kernbench.common.errors import InputError, UnreadableFileError
from kernbench.common.files import check_input, parse_json, replacing
from kernbench.common.values import value
from kernbench.evaluation.sweep_columns import SECTION
from kernbench.evaluation.sweep_measure import OK, STATUSES, PointRow, list_columns
from kernbench.evaluation.sweep_plan import MACHINES, WORK, SweepPlan
from kernbench.evaluation.sweep_point import PointOutcome
from kernbench.evaluation.sweep_spec import DIGEST, MACHINE, POINT, AxisValue
from kernbench.result.columns import Cell

TABLE_FILE = "sweep.parquet"
CELL_TYPES = (str, int, float, bool)


@value
class SweepTable:
    """The rows of a sweep and its axes. ``about``: the identity of the sweep."""

    axes: tuple[str, ...]
    rows: tuple[PointRow, ...]
    about: Mapping[str, Any]

    def numbers(self, column: str) -> list[float | None]:
        """Return a column as numbers, with None for cells without a number."""
        cells = (row.get(column) for row in self.rows)
        return [float(cell) if isinstance(cell, int | float) else None for cell in cells]

    @property
    def bench(self) -> str:
        """The name of the bench."""
        return str(self.about["bench"])

    @property
    def grid(self) -> Mapping[str, tuple[AxisValue, ...]]:
        """The values of each axis. If the table stores no grid, they are collected from the rows."""
        stored = self.about.get("grid", {})
        cells = ((axis, dict.fromkeys(row[axis] for row in self.rows)) for axis in self.axes)
        return {axis: tuple(stored.get(axis, values)) for axis, values in cells}

    @property
    def derived(self) -> Mapping[str, str]:
        """The expressions of the derived columns by name."""
        return dict(self.about.get(SECTION, {}))

    @property
    def work(self) -> tuple[str, ...]:
        """The axes whose values are different work."""
        return tuple(self.about.get(WORK, ()))

    @property
    def fixed(self) -> Mapping[str, AxisValue]:
        """The fixed settings of all points by path; empty if they are not stored."""
        return dict(self.about.get("set", {}))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in which at least one row has a value."""
        return tuple(dict.fromkeys(name for row in self.rows for name, cell in row.items() if cell is not None))


def sweep_table(plan: SweepPlan, outcomes: Mapping[int, PointOutcome]) -> SweepTable:
    """Return the table of a sweep whose points are all finished."""
    kinds = {path: kind_of(values) for path, values in plan.axes.items()}
    derived = plan.derived_columns()
    machines = {name: machine.configuration for name, machine in plan.machines.items()}
    rows = []
    for point in plan.points():
        axes: PointRow = {path: _cell(value, kinds[path]) for path, value in point.values}
        measured = {POINT: point.index, **outcomes[point.index].row}
        if MACHINE in axes and MACHINE in measured:
            measured[DIGEST] = measured.pop(MACHINE)
        cells = derived.cells_of(measured, dict(point.values), machines[plan.base_name(point)])
        rows.append({POINT: point.index, **axes, **measured, **cells})
    return SweepTable(tuple(plan.axes), tuple(rows), plan.about())


def column_types(axes: Mapping[str, type], derived: Iterable[str]) -> dict[str, type]:
    """Return all columns that a table can have, in order, with their types. ``axes``: the types of the axes.

    If the machine is an axis, the column with the digest has the name ``DIGEST``.
    """
    measured = {DIGEST if name == MACHINE and MACHINE in axes else name: kind for name, kind in list_columns().items()}
    return {POINT: int, **axes, **measured, **dict.fromkeys(derived, float)}


def kind_of(values: Iterable[object]) -> type:
    """Return the type of an axis: the common type of its values, float for mixed numbers, else str."""
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 and kinds <= set(CELL_TYPES) else str


def _cell(value: AxisValue, kind: type) -> Any:
    if kind is str and not isinstance(value, str):
        return json.dumps(value)
    return kind(value)


def walls(outcomes: Mapping[int, PointOutcome]) -> Sequence[dict[str, int | float]]:
    """Return the run time of each point, in grid order."""
    return [{POINT: index, "wall_s": outcomes[index].wall_s} for index in sorted(outcomes)]


LONGEST_ERROR = 300


@value
class FailureGroup:
    """The rows of all points with the same failure, in grid order."""

    status: str
    error: str
    rows: tuple[PointRow, ...]

    @property
    def short_error(self) -> str:
        """The first line of the error. The results file has the complete text."""
        line = self.error.partition("\n")[0][:LONGEST_ERROR]
        return line if line == self.error else f"{line} …"


def failure_groups(rows: Iterable[PointRow]) -> tuple[FailureGroup, ...]:
    """Group the failures in ``rows``, the largest group first."""
    failures: dict[tuple[str, str], list[PointRow]] = {}
    for row in rows:
        if row["status"] != OK:
            failures.setdefault((str(row["status"]), str(row.get("error") or "")), []).append(row)
    groups = (FailureGroup(status, error, tuple(members)) for (status, error), members in failures.items())
    return tuple(sorted(groups, key=lambda group: -len(group.rows)))


WorkValues: TypeAlias = tuple[Cell, ...]
"""The values of a point on the axes of work, which name different work, such as the batch"""


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


_METADATA = b"kernbench.sweep"
_TYPES: dict[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}

# Entries of the metadata that readers require.
_ABOUT: dict[str, type] = {"axes": list, "bench": str, "configuration": dict}
_KINDS: dict[type, str] = {list: "list", str: "text", dict: "mapping"}
JSON_COLUMNS = ("params", "changed")
"""Columns whose cells are mappings, stored as JSON"""


def write_sweep_table(table: SweepTable, path: Path) -> None:
    """Write the Parquet file, without empty columns. Equal tables give identical files."""
    kinds = column_types({axis: kind_of([row[axis] for row in table.rows]) for axis in table.axes}, table.derived)
    filled = set(table.columns)
    fields = [(name, _TYPES[kind]) for name, kind in kinds.items() if name in filled]
    about = json.dumps({"axes": table.axes, **table.about}, sort_keys=True)
    schema = pa.schema(fields, metadata={_METADATA: about.encode()})
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(table.rows), schema), temporary, compression="zstd")


def read_sweep_table(path: Path) -> SweepTable:
    """Read a table that ``write_sweep_table`` wrote. Raises InputError for other files."""
    try:
        check_input(path, most=None)
        # Pass an open file. From a name, Arrow would read all files of a folder, and columns from a '=' in it.
        with path.open("rb") as file:
            content = pq.ParquetFile(file).read()
        about = _about(content.schema)
        _check_columns(content.schema, about)
        rows = content.to_pylist()
        _check_rows(rows, about)
        return SweepTable(tuple(about.pop("axes")), tuple(rows), about)
    except UnreadableFileError as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error.why}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error.strerror or one_line(error)}") from error
    except pa.ArrowException as error:
        raise InputError(f"{path}: cannot be read as Parquet: {one_line(error)}") from error
    except ValueError as error:
        raise InputError(f"{path}: not the results of a sweep: {one_line(error)}") from error


def _about(schema: pa.Schema) -> dict[str, Any]:
    """Read the metadata. Raises ValueError for metadata of other files."""
    text = (schema.metadata or {}).get(_METADATA)
    if text is None:
        raise ValueError(f"its schema has no metadata {_METADATA.decode()!r}")
    about = parse_json(text)
    if not isinstance(about, dict):
        raise ValueError(f"its metadata are {show(about)}, must be a mapping")
    for key, kind in _ABOUT.items():
        if not isinstance(about.get(key), kind):
            raise ValueError(f"its metadata have {show(about.get(key))} as {key}, must be a {_KINDS[kind]}")
    if not all(isinstance(axis, str) for axis in about["axes"]):
        raise ValueError(f"its metadata have {show(about['axes'])} as axes, must be names")
    derived, work = about.get(SECTION, {}), about.get(WORK, [])
    if not isinstance(derived, dict) or not all(isinstance(text, str) for text in derived.values()):
        raise ValueError(f"its metadata have {show(derived)} as {SECTION}, must be a mapping of names to texts")
    if not isinstance(work, list) or not all(name in about["axes"] for name in work):
        raise ValueError(f"its metadata have {show(work)} as {WORK}, must be names of axes")
    machines = about.get(MACHINES, {})
    if not isinstance(machines, dict) or not all(isinstance(paths, dict) for paths in machines.values()):
        raise ValueError(f"its metadata have {show(machines)} as {MACHINES}, must be mappings by name")
    return about


def _check_columns(schema: pa.Schema, about: Mapping[str, Any]) -> None:
    """Raise ValueError for a missing column, a duplicate, or a wrong type."""
    needed = (POINT, "status", *about["axes"])
    for name in dict.fromkeys([*needed, *schema.names]):
        if schema.names.count(name) != 1:
            raise ValueError(f"column {show(name)} exists {schema.names.count(name)} times, must exist once")
    for name, kind in {**column_types({}, about.get(SECTION, {})), DIGEST: str}.items():
        if name in schema.names and schema.field(name).type != _TYPES[kind]:
            raise ValueError(f"column {name!r} is of type {schema.field(name).type}, must be {_TYPES[kind]}")
    for name in about["axes"]:
        if schema.field(name).type not in _TYPES.values():
            raise ValueError(f"column {show(name)}, an axis, is of type {schema.field(name).type}")


def _check_rows(rows: Sequence[PointRow], about: Mapping[str, Any]) -> None:
    """Raise ValueError for rows that a sweep cannot have written."""
    if not rows or [row[POINT] for row in rows] != list(range(len(rows))):
        raise ValueError(f"column {POINT!r} must be 0, 1, 2 …, a row for each point of the grid")
    for row in rows:
        wrong = next(_wrong(row, about), "")
        if wrong:
            raise ValueError(f"point {row[POINT]}: {wrong}")


def _wrong(row: PointRow, about: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{axis} is empty" for axis in about["axes"] if row[axis] is None)
    if MACHINE in about["axes"] and row[MACHINE] not in about.get(MACHINES, {}):
        yield f"{MACHINE} is {show(row[MACHINE])}, which is not among the machines of its metadata"
    status, sim_ns = row["status"], row.get("sim_ns")
    if status not in STATUSES:
        yield f"status is {show(status)}, must be one of: {one_of(STATUSES)}"
    if status == OK and not (isinstance(sim_ns, float) and math.isfinite(sim_ns)):
        yield f"sim_ns is {show(sim_ns)}, must be a number where status is {OK}"
    for name in JSON_COLUMNS:
        try:
            mapping = parse_json(str(row.get(name) or "{}"))
        except ValueError as error:
            yield f"{name} is not JSON: {error}"
        else:
            if not isinstance(mapping, dict):
                yield f"{name} is {show(mapping)}, must be a mapping"
