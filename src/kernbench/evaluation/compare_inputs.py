"""Results to be compared: a sweep's table, one of its points, or the JSON document of a run; read as one form."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.common.errors import InputError
from kernbench.evaluation.compare_runs import RUN_COMMAND, read_run
from kernbench.evaluation.sweep_measure import OK, Row, flat_configuration
from kernbench.evaluation.sweep_parquet import JSON_COLUMNS, read_sweep_table
from kernbench.evaluation.sweep_plan import BENCH_PREFIX, CCL
from kernbench.evaluation.sweep_table import SweepTable

TABLE_FILE = "sweep.parquet"
CCL_PREFIX = f"{CCL}."
_ONE_POINT = re.compile(r"(?P<path>.+):(?P<point>\d{1,18})")


@dataclass(frozen=True, slots=True)
class Measured:
    """One result: everything it was made with, by path (``bench.m``, ``cube.hbm.slices``), and its figures."""

    configuration: Mapping[str, Any]
    row: Row

    @property
    def ok(self) -> bool:
        """Whether it has figures."""
        return self.row["status"] == OK

    @property
    def says_collectives(self) -> bool:
        """Whether it is known how collectives were configured; runs do not say."""
        return any(path.startswith(CCL_PREFIX) for path in self.configuration)

    def number(self, column: str) -> float:
        """A figure; what is missing took no time."""
        cell = self.row.get(column)
        return float(cell) if isinstance(cell, int | float) else 0.0


@dataclass(frozen=True, slots=True)
class ResultFile:
    """The results of a file; ``axes`` are those of a sweep, none of a single result."""

    name: str
    axes: tuple[str, ...]
    results: tuple[Measured, ...]


def read_results(text: str) -> ResultFile:
    """What ``text`` names: FILE.parquet or its folder, FILE.parquet:POINT, or a run's FILE.json.

    InputError for anything else.
    """
    match = _ONE_POINT.fullmatch(text)
    path = Path(match["path"] if match is not None else text)
    path = path / TABLE_FILE if os.path.isdir(path) else path
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file; compare takes {TABLE_FILE}, or what {RUN_COMMAND} prints")
    if path.suffix == ".json":
        return ResultFile(text, (), (_run(path),))
    table = read_sweep_table(path)
    results = tuple(_points(table))
    if match is None:
        return ResultFile(text, table.axes, results)
    point = int(match["point"])
    if point >= len(results):
        raise InputError(f"{path}: no point {point}; there are 0 to {len(results) - 1}")
    return ResultFile(text, (), (results[point],))


def _points(table: SweepTable) -> Iterator[Measured]:
    about = table.about
    base = {"bench": about["bench"], **about["configuration"], **flat_configuration({CCL: about.get(CCL, {})})}
    for row in table.rows:
        params, changed = (json.loads(str(row.get(name) or "{}")) for name in JSON_COLUMNS)
        axes = {axis: row[axis] for axis in table.axes}
        yield Measured(_plain({**base, **axes, **changed, **_of_bench(params)}), row)


def _run(path: Path) -> Measured:
    document = read_run(path)
    machine = flat_configuration(document.configuration)
    return Measured(_plain({"bench": document.bench, **machine, **_of_bench(document.params)}), document.row())


def _of_bench(params: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{BENCH_PREFIX}{name}": value for name, value in params.items()}


def _plain(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """With whole numbers as such: 256 in a grid is the 256.0 of the machine."""
    return {
        path: int(value) if isinstance(value, float) and value.is_integer() else value
        for path, value in configuration.items()
    }
