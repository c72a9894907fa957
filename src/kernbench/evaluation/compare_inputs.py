"""Inputs of a comparison, read as rows with the same columns.

An input is the table of a sweep, a point of a sweep, or the JSON document of a run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from kernbench.common.complaints import show
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.evaluation.sweep_columns import DEFAULT_SETTINGS
from kernbench.evaluation.sweep_measure import (
    OK,
    PointRow,
    flat_configuration,
)
from kernbench.evaluation.sweep_plan import CCL, MACHINES
from kernbench.evaluation.sweep_spec import MACHINE
from kernbench.evaluation.sweep_table import JSON_COLUMNS, TABLE_FILE, SweepTable, read_sweep_table
from kernbench.result import run_sections
from kernbench.result.sections import RunOutcome, read_outcome
from kernbench.runtime_api.operators import ModuleUse
from kernbench.runtime_api.overrides import BENCH_PREFIX, part_of

RUN_COMMAND = "kernbench run --json"
GOOD_STATUS = "OK"
TAKEN = f"compare takes {TABLE_FILE}, or the output of {RUN_COMMAND}"


def read_run(path: Path) -> RunOutcome:
    """Read the run in a file. Raises InputError for other documents and for failed runs."""
    outcome = read_outcome(path)
    _refuse_failed(str(path), outcome.document.get("status", GOOD_STATUS), outcome.document.get("error"), show)
    return outcome


def _refuse_failed(name: str, status: object, error: object, text: Callable[[object], object]) -> None:
    if status != GOOD_STATUS:
        reason = f": {show(error)}" if error else ""
        raise InputError(f"{name}: the run ended with status {text(status)}{reason}; there is nothing to compare")


CCL_PREFIX = f"{CCL}."
"""Prefix of collective parameters, which documents of runs lack"""
_ONE_POINT = re.compile(r"(?P<path>.+):(?P<point>\d{1,18})")


@value
class ResultFigures:
    """One result: its complete configuration by path (``bench.m``, ``cube.hbm.slices``), and its figures.

    ``modules``: the modules of a PyTorch program; empty for a point of a sweep.
    """

    configuration: Mapping[str, Any]
    row: PointRow
    modules: tuple[ModuleUse, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the result has figures."""
        return self.row["status"] == OK

    def says(self, begin: str) -> bool:
        """Return True if the result has figures in columns with this prefix."""
        return any(column.startswith(begin) and cell is not None for column, cell in self.row.items())

    def has_modules(self) -> bool:
        """Return True if the work of modules is known."""
        return bool(self.modules)

    def text(self, column: str) -> str:
        """Return the text of a column; empty if missing."""
        return str(self.row.get(column) or "")

    def number(self, column: str) -> float:
        """Return the number of a column; 0 if the column is missing."""
        cell = self.row.get(column)
        return float(cell) if isinstance(cell, int | float) else 0.0


ResultPair: TypeAlias = tuple[ResultFigures, ResultFigures]


@value
class ResultFile:
    """The results of a file. ``axes``: axes of the sweep; empty for a single result.

    ``columns``: the expressions of derived columns by name.
    """

    name: str
    axes: tuple[str, ...]
    results: tuple[ResultFigures, ...]
    columns: Mapping[str, str] = field(default_factory=dict)


def read_compared(text: str) -> ResultFile:
    """Read the results at ``text``: FILE.parquet or its folder, FILE.parquet:POINT, or the FILE.json of a run.

    Raises InputError for anything else.
    """
    match = _ONE_POINT.fullmatch(text)
    path = Path(match["path"] if match is not None else text)
    path = path / TABLE_FILE if os.path.isdir(path) else path
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file; {TAKEN}")
    if path.suffix == ".json":
        return ResultFile(text, (), (_figures(read_run(path)),))
    try:
        file = take_table(text, read_sweep_table(path))
    except InputError as error:
        if path.suffix == PurePath(TABLE_FILE).suffix:
            raise
        raise InputError(f"{error}; {TAKEN}") from error
    if match is None:
        return file
    point = int(match["point"])
    if point >= len(file.results):
        raise InputError(f"{path}: no point {point}; the file has 0 to {len(file.results) - 1}")
    return ResultFile(text, (), (file.results[point],), file.columns)


def take_table(name: str, table: SweepTable) -> ResultFile:
    """Return the results of a sweep for a comparison."""
    return ResultFile(name, table.axes, tuple(_points(table)), table.derived)


def take_run(name: str, outcome: RunOutcome) -> ResultFile:
    """Return the result of a run for a comparison. Raises InputError for a failed run."""
    ending = outcome[run_sections.ENDING]
    _refuse_failed(name, ending.status, ending.error, str)
    return ResultFile(name, (), (_figures(outcome),))


def _points(table: SweepTable) -> Iterator[ResultFigures]:
    about = table.about
    settings = {path: content for path, content in table.fixed.items() if part_of(path) == "frontends"}
    common = {**flat_configuration({CCL: about.get(CCL, {})}), **DEFAULT_SETTINGS, **settings}
    for row in table.rows:
        machine = about[MACHINES][row[MACHINE]] if MACHINE in table.axes else about["configuration"]
        base = {"bench": about["bench"], **machine, **common}
        params, changed = (json.loads(str(row.get(name) or "{}")) for name in JSON_COLUMNS)
        axes = {axis: row[axis] for axis in table.axes}
        yield ResultFigures(_plain({**base, **axes, **changed, **_of_bench(params)}), row)


def _figures(outcome: RunOutcome) -> ResultFigures:
    program, machine = outcome[run_sections.PROGRAM], outcome[run_sections.MACHINE]
    settings, _ = outcome.get(run_sections.SETTINGS), outcome[run_sections.TIME]
    made_with = {**flat_configuration(machine.configuration), **DEFAULT_SETTINGS}
    made_with |= {} if settings is None else flat_configuration(settings.frontends)
    row = outcome.to_row() | {"status": OK}
    verdict = outcome.get(run_sections.VERDICT)
    if verdict is not None and "run.bound" not in row:
        row |= {"run.bound": verdict.sentence, "run.verdict": verdict.sentence}
    configuration = _plain({"bench": program.bench, **made_with, **_of_bench(program.params)})
    return ResultFigures(configuration, row, outcome[run_sections.OPERATORS].modules)


def _of_bench(params: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{BENCH_PREFIX}{name}": value for name, value in params.items()}


def _plain(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with whole numbers as int, so that 256 of a grid equals 256.0 of a machine."""
    return {
        path: int(value) if isinstance(value, float) and value.is_integer() else value
        for path, value in configuration.items()
    }
