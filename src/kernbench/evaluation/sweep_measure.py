"""A run as one flat row: times by phase, engine, resource and part of the critical path.

Columns are named ``group.what_unit``. ``run`` is the complete program. ``launch`` is the launch with most of the
critical path, or the longest launch without a critical path. Its ``bound`` is the verdict in short, and its ``verdict``
is the verdict in a sentence.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from kernbench.common.errors import ExplanationError, text_of
from kernbench.common.units import ps_to_ns
from kernbench.engine.engine import GraphEngine
from kernbench.evaluation.sweep_spec import LARGEST
from kernbench.observe.critical_path_model import PathPart
from kernbench.observe.guard import guarded
from kernbench.observe.path_resources import divide_ties, sum_causes
from kernbench.observe.statistics import Traffic
from kernbench.observe.trace_log import TraceLog
from kernbench.observe.verdict import RunVerdict, Verdict
from kernbench.observe.works import PE_ENGINES
from kernbench.runtime_api.bench_runner import BenchResult, BenchStatus
from kernbench.runtime_api.launch_report import LaunchSplit, RunReport, report_run
from kernbench.runtime_api.requests import PHASES
from kernbench.runtime_api.run_explanation import LaunchExplanation, RunExplanation, explain_run
from kernbench.runtime_api.testing import Comparison, verdict
from kernbench.topology.resources import BUILTIN_RESOURCES

Cell: TypeAlias = "str | int | float | bool | None"
PointRow: TypeAlias = dict[str, Cell]

STATUSES = OK, FAILED, INVALID, LOST = "ok", "failed", "invalid", "lost"
"""Status of a point: success, failed run, invalid machine or parameters, dead worker"""

BOUNDS = ("launch.bound", "run.bound")
"""Columns with a bottleneck as text"""
OWN_PARTS = "own parts"
"""Common column name of all resources that are not built in"""
CAUSES = tuple(dict.fromkeys([*PathPart, *BUILTIN_RESOURCES, OWN_PARTS]))
"""Categories of a path's time: resources, and parts without a resource"""
COUNTS = ("sips", "cubes", "pes", "slices")
"""Components of the machine whose used number is counted"""


def slug(text: str) -> str:
    """Return a name as a column name: ``memory_access`` for ``memory access``."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower())


def time_column(group: str, kind: str, name: str) -> str:
    """Return the column of a part, resource, queue or bound of ``run`` or ``launch``."""
    return f"{group}.{kind}.{slug(name)}_ns"


_TIMES: Mapping[str, Iterable[str]] = {
    "bounds": BUILTIN_RESOURCES,
    "path": tuple(PathPart),
    "resources": CAUSES,
    "queues": CAUSES,
}


def _columns() -> Iterator[tuple[str, type]]:
    yield from {
        "status": str,
        "error": str,
        "sim_ns": float,
        "load_ns": float,
        "events": int,
        "transfers": int,
        "records": int,
    }.items()
    yield from {"verdict": str, "max_abs_error": float, "max_rel_error": float}.items()
    yield from {"values_read": int, "zeros_read": int, "data_stopped": str}.items()
    yield from {"launch.name": str, "launch.pes": int, "launch.ns": float, "launch.kernel_ns": float}.items()
    for group in ("launch", "run"):
        yield from {f"{group}.bound": str, f"{group}.verdict": str}.items()
        yield from {f"{group}.bound_ns": float, f"{group}.beyond": float, f"{group}.useful_macs": float}.items()
        for kind, names in _TIMES.items():
            yield from ((time_column(group, kind, each), float) for each in names)
    for phase in PHASES:
        yield from {f"phase.{phase}.busy_ns": float, f"phase.{phase}.bytes": int}.items()
    for engine in map(slug, PE_ENGINES):
        yield from {f"engine.{engine}.busy_ns": float, f"engine.{engine}.occupancy": float}.items()
        yield f"engine.{engine}.records", int
    yield from {f"traffic.{each}_bytes": int for each in ("hbm_in", "hbm_out", "to_machine", "from_machine")}.items()
    yield from {f"used.{each}": int for each in COUNTS}.items()
    yield from {"used.within": str, "used.parts": str}.items()
    yield from {"traffic.host_utilisation": float, "machine": str, "changed": str, "params": str}.items()


COLUMNS: Mapping[str, type] = dict(_columns())
"""All columns except the axes of a grid, in order, with the type of their values"""


def is_whole(value: object) -> bool:
    """Return True for a whole number of 64 bits, and False for booleans."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def fits(cell: object, kind: type) -> bool:
    """Return True if a cell fits a column of type ``kind`` in ``COLUMNS``; None fits everywhere."""
    if kind is float:
        return cell is None or isinstance(cell, float) or is_whole(cell)
    return cell is None or (is_whole(cell) if kind is int else isinstance(cell, kind))


def measure(result: BenchResult, engine: GraphEngine, log: TraceLog | None) -> PointRow:
    """Return the row of a run without its grid values; with ``log``, including the causes of its time."""
    zero_ns, end_ns = result.completion.t_start, result.completion.t_end
    report = report_run(engine, result.links, None if log is None else log.seen.works, zero_ns)
    main: LaunchExplanation | None = None
    explained: PointRow = {}
    try:
        with guarded("explanation"):
            if log is not None:
                explanation = explain_run(log, engine.handles, zero_ns, end_ns)
                main, explained = explanation.main_launch, _tabulate_explanation(explanation)
    except ExplanationError as error:
        main, explained = None, {"run.verdict": str(error)}
    row = _head(result) | _report(report, main) | _traffic(report.traffic)
    row |= tabulate_use(asdict(report.used))
    for phase in result.summary.phases:
        row |= {f"phase.{phase.phase}.busy_ns": phase.busy_ns, f"phase.{phase.phase}.bytes": phase.nbytes}
    return row | explained


def _head(result: BenchResult) -> PointRow:
    comparisons, data = result.comparisons, result.data
    return {
        "status": OK if result.ok else FAILED,
        "error": None if result.ok else _why(result),
        "sim_ns": result.sim_ns,
        "load_ns": None if result.load is None else result.load.ns,
        "verdict": verdict(comparisons),
        "max_abs_error": _worst([each.max_abs_error for each in comparisons]),
        "max_rel_error": _worst([each.max_rel_error for each in comparisons]),
        "values_read": data.values_read or None,
        "zeros_read": data.zeros_read or None,
        "data_stopped": data.stopped or None,
        "params": json.dumps(result.params.model_dump(mode="json"), sort_keys=True),
    }


def error_text(error: BaseException) -> str:
    """Return an error as text, such as ``ValueError: no 48``, without characters that a text file cannot store."""
    return f"{type(error).__name__}: {text_of(error)}".encode(errors="replace").decode()


def _why(result: BenchResult) -> str:
    if result.error is not None:
        return error_text(result.error)
    if result.status is BenchStatus.NO_REQUESTS:
        return "the bench submitted no request"
    wrong: list[Comparison] = [each for each in result.comparisons if not each.passed]
    return str(wrong[0])


def _worst(errors: list[float]) -> float | None:
    """Return the largest error; NaN if an error is NaN."""
    return None if not errors else math.nan if any(map(math.isnan, errors)) else max(errors)


def _report(report: RunReport, main: LaunchExplanation | None) -> PointRow:
    row: PointRow = {"events": report.events, "transfers": report.transfers, "records": report.records}
    for each in report.engines:
        name = f"engine.{slug(each.engine)}"
        row |= {f"{name}.busy_ns": each.busy_ns, f"{name}.occupancy": each.occupancy, f"{name}.records": each.records}
    shown = [each for each in report.launches if main is None or each.title == main.name]
    longest = max(shown or report.launches, key=lambda each: each.total_ns, default=None)
    return row if longest is None else row | _launch(longest)


def _launch(launch: LaunchSplit) -> PointRow:
    return {
        "launch.name": launch.title,
        "launch.pes": launch.pe_count,
        "launch.ns": launch.total_ns,
        "launch.kernel_ns": launch.kernel_ns,
    }


def _traffic(found: Traffic) -> PointRow:
    return {
        "traffic.hbm_in_bytes": found.hbm_in,
        "traffic.hbm_out_bytes": found.hbm_out,
        "traffic.to_machine_bytes": found.to_machine,
        "traffic.from_machine_bytes": found.from_machine,
        "traffic.host_utilisation": found.host_utilisation,
    }


def tabulate_use(used: Mapping[str, Any]) -> PointRow:
    """Return the row of the used parts of the machine."""
    return {f"used.{name}": ", ".join(each) if isinstance(each, tuple) else each for name, each in used.items()}


def _tabulate_explanation(found: RunExplanation) -> PointRow:
    main = found.main_launch
    row = _tabulate_times("run", found, found.verdict)
    row |= {} if main is None else _tabulate_times("launch", main, main.verdict)
    return {name: cell for name, cell in row.items() if name in COLUMNS}


def _tabulate_times(group: str, found: RunExplanation | LaunchExplanation, verdict: RunVerdict | Verdict) -> PointRow:
    """Return the row of an explanation. Resources that are not built in share a column."""
    roofline, causes = found.roofline, divide_ties(sum_causes(found.shares))
    own = [each for each in causes if each.resource not in CAUSES]
    row = tabulate_times(
        group,
        path=((each.part, each.ps) for each in found.path.parts),
        causes=[
            *((each.resource, each.ps, each.queued_ps) for each in causes),
            *([(OWN_PARTS, sum(each.ps for each in own), sum(each.queued_ps for each in own))] if own else []),
        ],
        bounds={each.resource: each.ps for each in roofline.bounds},
        label=verdict.label,
    )
    beyond = {f"{group}.beyond": roofline.beyond} if roofline.bounds else {}
    return row | beyond | {f"{group}.verdict": verdict.sentence, f"{group}.useful_macs": roofline.useful}


def tabulate_times(
    group: str,
    *,
    path: Iterable[tuple[str, int]],
    causes: Iterable[tuple[str, int, int]],
    bounds: Mapping[str, int],
    label: str | None,
) -> PointRow:
    """Return the row of times in ps: parts of a path, causes and their queues, bounds, and the bottleneck."""
    times = [("path", part, ps) for part, ps in path]
    for name, ps, queued_ps in causes:
        times += [("resources", name, ps), *([("queues", name, queued_ps)] if queued_ps else [])]
    times += [("bounds", resource, ps) for resource, ps in bounds.items()]
    row: PointRow = {time_column(group, kind, name): ps_to_ns(ps) for kind, name, ps in times}
    row |= {f"{group}.bound_ns": ps_to_ns(max(bounds.values()))} if bounds else {}
    return row | ({f"{group}.bound": label} if label else {})


def flat_configuration(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested configuration by path: ``{"cube.hbm.slices": 8}``. Lists are not split."""
    flat: dict[str, Any] = {}
    for key, value in configuration.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{path}": each for path, each in flat_configuration(value).items()}
        else:
            flat[key] = value
    return flat
