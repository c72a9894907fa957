"""Inputs of a comparison, read as rows with the same columns.

An input is the table of a sweep, a point of a sweep, or the JSON document of a run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernbench.common.complaints import explain, show
from kernbench.common.config import path_text, read_model
from kernbench.common.errors import InputError
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.evaluation.outputs import read_json
from kernbench.evaluation.sweep_columns import DEFAULT_SETTINGS
from kernbench.evaluation.sweep_measure import (
    OK,
    PointRow,
    flat_configuration,
    slug,
    tabulate_times,
    tabulate_use,
)
from kernbench.evaluation.sweep_plan import CCL, MACHINES
from kernbench.evaluation.sweep_spec import LARGEST, MACHINE
from kernbench.evaluation.sweep_table import JSON_COLUMNS, TABLE_FILE, SweepTable, read_sweep_table
from kernbench.runtime_api.overrides import BENCH_PREFIX, part_of

RUN_COMMAND = "kernbench run --json"
GOOD_STATUS = "OK"
TAKEN = f"compare takes {TABLE_FILE}, or the output of {RUN_COMMAND}"
Picoseconds = Annotated[int, Field(ge=0, le=LARGEST)]


class _ReadPart(BaseModel):
    """A mapping of which only the declared keys are read."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class PhaseUse(_ReadPart):
    """The time during which requests of a phase are in flight."""

    phase: str
    busy_ns: float


class EngineUse(_ReadPart):
    """The busy time of an engine type."""

    engine: str
    busy_ns: float


class LaunchUse(_ReadPart):
    """The time of the longest launch of a name."""

    name: str
    total_ns: float


class StagePart(_ReadPart):
    """The time of a critical path in a part, on a resource; some parts use no resource."""

    part: str
    ps: Picoseconds
    resource: str = ""


class ResourceTime(_ReadPart):
    """The time of a critical path on a resource, or the least time that the resource needs for its work."""

    resource: str
    ps: Picoseconds
    queued_ps: Picoseconds = 0


class PathTaken(_ReadPart):
    """A critical path, with its time by part and by resource."""

    total_ps: Picoseconds
    parts: tuple[StagePart, ...]
    shares: tuple[StagePart, ...] = ()
    resources: tuple[ResourceTime, ...] = ()

    def causes(self) -> Iterator[tuple[str, int, int]]:
        """Yield each resource, and each part without a resource, with its time and its queueing time."""
        yield from ((each.resource, each.ps, each.queued_ps) for each in self.resources)
        yield from ((each.part, each.ps, 0) for each in self.shares if not each.resource)


class Bounds(_ReadPart):
    """A roofline: the bounds of resources, and the limiting resource (``binding``)."""

    binding: str | None
    bounds: tuple[ResourceTime, ...]


class Judged(_ReadPart):
    """A verdict."""

    sentence: str
    label: str = ""

    def row(self, group: str) -> PointRow:
        """Return the verdict by column of ``group`` (``run`` or ``launch``)."""
        return {f"{group}.bound": self.label or self.sentence, f"{group}.verdict": self.sentence}


class Explained(_ReadPart):
    """The explanation of the time of a launch or of the run."""

    critical_path: PathTaken
    roofline: Bounds | None = None
    verdict: Judged | None = None
    request_id: int = -1
    name: str = ""

    def row(self, group: str) -> PointRow:
        """Return the figures by column of ``group`` (``run`` or ``launch``)."""
        path, roof, said = self.critical_path, self.roofline or Bounds(binding=None, bounds=()), self.verdict
        return tabulate_times(
            group,
            path=((each.part, each.ps) for each in path.parts),
            causes=path.causes(),
            bounds={each.resource: each.ps for each in roof.bounds},
            label=roof.binding,
        ) | (said.row(group) if said else {})


class ReadExplanation(Explained):
    """The explanations of the run and of its launches. ``main_launch``: the launch with most of the critical path."""

    launches: tuple[Explained, ...] = ()
    main_launch: int | None = None

    def rows(self) -> PointRow:
        """Return the figures of the run and of its main launch, which is the longest launch by default."""
        main = [each for each in self.launches if each.request_id == self.main_launch]
        longest = max(main or self.launches, key=lambda each: each.critical_path.total_ps, default=None)
        if longest is None:
            return self.row("run")
        named: PointRow = {"launch.name": longest.name, "launch.ns": ps_to_ns(longest.critical_path.total_ps)}
        return self.row("run") | longest.row("launch") | named


class RunDocument(_ReadPart):
    """A successful run. Fields that an earlier version did not write have defaults."""

    bench: str
    sim_ns: float
    params: dict[str, Any]
    configuration: dict[str, Any]
    frontends: dict[str, Any] = {}
    phases: tuple[PhaseUse, ...] = ()
    engines: tuple[EngineUse, ...] = ()
    launches: tuple[LaunchUse, ...] = ()
    verdict: Judged | None = None
    used: Mapping[str, int | str | tuple[str, ...]] = {}
    explanation: ReadExplanation | None = None

    def row(self) -> PointRow:
        """Return the figures of the run by column."""
        row: PointRow = {"status": OK, "sim_ns": self.sim_ns}
        row |= {f"phase.{each.phase}.busy_ns": each.busy_ns for each in self.phases}
        row |= {f"engine.{slug(each.engine)}.busy_ns": each.busy_ns for each in self.engines}
        longest = max(self.launches, key=lambda each: each.total_ns, default=None)
        row |= {} if longest is None else {"launch.name": longest.name, "launch.ns": longest.total_ns}
        row |= tabulate_use(self.used) | (self.verdict.row("run") if self.verdict else {})
        return row if self.explanation is None else row | self.explanation.rows()


def read_run(path: Path) -> RunDocument:
    """Read the document in a file. Raises InputError for other documents and for failed runs."""
    document = read_json(path, RUN_COMMAND)
    status = document.get("status", GOOD_STATUS) if isinstance(document, dict) else GOOD_STATUS
    if status != GOOD_STATUS:
        why = f": {show(document['error'])}" if document.get("error") else ""
        raise InputError(f"{path}: the run ended with status {show(status)}{why}; there is nothing to compare")
    try:
        return read_model(RunDocument, document)
    except ValidationError as error:
        first, *others = explain(RunDocument, document, error)
    at = f"{path_text(first.path)}: " if first.path else ""
    more = f" (and {len(others)} more)" if others else ""
    raise InputError(f"{path}: not an output of {RUN_COMMAND}: {at}{first.message}{more}")


CCL_PREFIX = f"{CCL}."
"""Prefix of collective parameters, which documents of runs lack"""
_ONE_POINT = re.compile(r"(?P<path>.+):(?P<point>\d{1,18})")


@value
class ResultFigures:
    """One result: its complete configuration by path (``bench.m``, ``cube.hbm.slices``), and its figures."""

    configuration: Mapping[str, Any]
    row: PointRow

    @property
    def ok(self) -> bool:
        """True if the result has figures."""
        return self.row["status"] == OK

    def says(self, begin: str) -> bool:
        """Return True if the result has figures in columns with this prefix."""
        return any(column.startswith(begin) and cell is not None for column, cell in self.row.items())

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
        found = take_table(text, read_sweep_table(path))
    except InputError as error:
        if path.suffix == PurePath(TABLE_FILE).suffix:
            raise
        raise InputError(f"{error}; {TAKEN}") from error
    if match is None:
        return found
    point = int(match["point"])
    if point >= len(found.results):
        raise InputError(f"{path}: no point {point}; the file has 0 to {len(found.results) - 1}")
    return ResultFile(text, (), (found.results[point],), found.columns)


def take_table(name: str, table: SweepTable) -> ResultFile:
    """Return the results of a sweep for a comparison."""
    return ResultFile(name, table.axes, tuple(_points(table)), table.derived)


def take_run(name: str, document: Mapping[str, Any]) -> ResultFile:
    """Return the result of a run for a comparison. Raises InputError for a failed run."""
    if document["status"] != GOOD_STATUS:
        why = f": {show(document['error'])}" if document["error"] else ""
        raise InputError(f"{name}: the run ended with status {document['status']}{why}; there is nothing to compare")
    return ResultFile(name, (), (_figures(read_model(RunDocument, document)),))


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


def _figures(document: RunDocument) -> ResultFigures:
    made_with = {**flat_configuration(document.configuration), **DEFAULT_SETTINGS}
    made_with |= flat_configuration(document.frontends) | _of_bench(document.params)
    return ResultFigures(_plain({"bench": document.bench, **made_with}), document.row())


def _of_bench(params: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{BENCH_PREFIX}{name}": value for name, value in params.items()}


def _plain(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with whole numbers as int, so that 256 of a grid equals 256.0 of a machine."""
    return {
        path: int(value) if isinstance(value, float) and value.is_integer() else value
        for path, value in configuration.items()
    }
