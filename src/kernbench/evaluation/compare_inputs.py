"""Results to be compared: a sweep's table, one of its points, or the JSON document of a run; read as one form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.common.errors import InputError
from kernbench.common.units import ps_to_ns
from kernbench.evaluation.outputs import read_json
from kernbench.evaluation.sweep_measure import OK, Row, bound_column, flat_configuration, part_column, slug
from kernbench.evaluation.sweep_parquet import read_sweep_table
from kernbench.evaluation.sweep_plan import BENCH_PREFIX
from kernbench.evaluation.sweep_table import POINT, SweepTable

TABLE_FILE = "sweep.parquet"
RUN_COMMAND = "kernbench run --json"
_ONE_POINT = re.compile(r"(?P<path>.+):(?P<point>\d+)")


@dataclass(frozen=True, slots=True)
class Measured:
    """One result: everything it was made with, by path (``bench.m``, ``cube.hbm.slices``), and its figures."""

    configuration: Mapping[str, Any]
    row: Row

    @property
    def ok(self) -> bool:
        """Whether it has figures."""
        return self.row["status"] == OK

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
    path = path / TABLE_FILE if path.is_dir() else path
    if not path.exists():
        raise InputError(f"{path}: no such file; compare takes sweep.parquet, or what {RUN_COMMAND} prints")
    if path.suffix == ".json":
        return ResultFile(text, (), (_run(path),))
    table = read_sweep_table(path)
    results = tuple(_points(table))
    if match is None:
        return ResultFile(text, table.axes, results)
    chosen = [each for each in results if each.row[POINT] == int(match["point"])]
    if not chosen:
        raise InputError(f"{path}: no point {match['point']}; there are 0 to {len(results) - 1}")
    return ResultFile(text, (), tuple(chosen))


def _points(table: SweepTable) -> Iterator[Measured]:
    base = {"bench": table.about["bench"], **table.about["configuration"]}
    for row in table.rows:
        params = json.loads(str(row.get("params") or "{}"))
        own = {f"{BENCH_PREFIX}{name}": value for name, value in params.items()}
        axes = {axis: row[axis] for axis in table.axes}
        yield Measured(_plain({**base, **axes, **json.loads(str(row.get("changed") or "{}")), **own}), row)


def _plain(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """With whole numbers as such: 256 in a grid is the 256.0 of the machine."""
    return {
        path: int(value) if isinstance(value, float) and value.is_integer() else value
        for path, value in configuration.items()
    }


def _run(path: Path) -> Measured:
    document = read_json(path, RUN_COMMAND)
    try:
        params = {f"{BENCH_PREFIX}{name}": value for name, value in document["params"].items()}
        machine = flat_configuration(document["configuration"])
        if not isinstance(document["sim_ns"], int | float) or not math.isfinite(document["sim_ns"]):
            raise TypeError("sim_ns")
        return Measured(_plain({"bench": document["bench"], **machine, **params}), _row_of_run(document))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not what {RUN_COMMAND} prints: {error!r} is missing or of another kind") from error


def _row_of_run(document: Mapping[str, Any]) -> Row:
    row: Row = {"status": OK if document["status"] == "OK" else document["status"], "sim_ns": document["sim_ns"]}
    for phase in document["phases"]:
        row |= {f"phase.{phase['phase']}.busy_ns": phase["busy_ns"]}
    for engine in document["engines"]:
        row |= {f"engine.{slug(engine['engine'])}.busy_ns": engine["busy_ns"]}
    longest = max(document["launches"], key=lambda each: float(each["total_ns"]), default=None)
    if longest is not None:
        row |= {
            "launch.name": longest["name"],
            "launch.ns": longest["total_ns"],
            "launch.kernel_ns": longest["kernel_ns"],
        }
    explained = document.get("explanation")
    return row if explained is None else row | _explained(explained)


def _explained(document: Mapping[str, Any]) -> Row:
    launches = document["launches"]
    row = _group("run", document)
    longest = max(launches, key=lambda each: int(each["critical_path"]["total_ps"]), default=None)
    return row if longest is None else row | _group("launch", longest)


def _group(group: str, document: Mapping[str, Any]) -> Row:
    roofline = document["roofline"]
    row: Row = {part_column(group, each["part"]): ps_to_ns(each["ps"]) for each in document["critical_path"]["parts"]}
    row |= {bound_column(group, each["resource"]): ps_to_ns(each["ps"]) for each in roofline["bounds"]}
    if roofline["binding"] is not None:
        bound_ns = row[bound_column(group, roofline["binding"])]
        row |= {f"{group}.bound": roofline["binding"], f"{group}.bound_ns": bound_ns}
    return row
