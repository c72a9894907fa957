"""A run as one flat row: what it took, by phase, engine, resource and part of the critical path.

Columns are named ``group.what_unit``. ``run`` is the whole program; ``launch`` is the launch that has most of its
critical path, and where nobody followed that, the one that took longest. ``bound`` is the verdict on it in short.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from kernbench.common.errors import text_of
from kernbench.engine.engine import GraphEngine
from kernbench.evaluation.sweep_spec import LARGEST
from kernbench.observe.critical_path_model import CriticalPath, PathPart
from kernbench.observe.roofline import Roofline
from kernbench.observe.statistics import Traffic
from kernbench.observe.trace_log import TraceLog
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
"""How a point ended: well; its run failed; its machine or parameters are not possible; its worker died."""


def slug(text: str) -> str:
    """``memory access`` as ``memory_access``: how it is called in a column."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower())


def part_column(group: str, part: str) -> str:
    """The column of a part of the critical path of ``run`` or ``launch``."""
    return f"{group}.path.{slug(part)}_ns"


def bound_column(group: str, resource: str) -> str:
    """The column of a resource's bound of ``run`` or ``launch``."""
    return f"{group}.bounds.{slug(resource)}_ns"


def _columns() -> Iterator[tuple[str, type]]:
    yield from {"status": str, "error": str, "sim_ns": float, "events": int, "transfers": int, "records": int}.items()
    yield from {"verdict": str, "max_abs_error": float, "max_rel_error": float}.items()
    yield from {"values_read": int, "zeros_read": int, "data_stopped": str}.items()
    yield from {"launch.name": str, "launch.pes": int, "launch.ns": float, "launch.kernel_ns": float}.items()
    for group in ("launch", "run"):
        yield from {f"{group}.bound": str, f"{group}.bound_ns": float, f"{group}.beyond": float}.items()
        yield f"{group}.useful_macs", float
        yield from ((bound_column(group, each), float) for each in BUILTIN_RESOURCES)
        yield from ((part_column(group, each), float) for each in PathPart)
    for phase in PHASES:
        yield from {f"phase.{phase}.busy_ns": float, f"phase.{phase}.bytes": int}.items()
    for engine in map(slug, PE_ENGINES):
        yield from {f"engine.{engine}.busy_ns": float, f"engine.{engine}.occupancy": float}.items()
        yield f"engine.{engine}.records", int
    yield from {f"traffic.{each}_bytes": int for each in ("hbm_in", "hbm_out", "to_machine", "from_machine")}.items()
    yield from {"traffic.host_utilisation": float, "machine": str, "changed": str, "params": str}.items()


COLUMNS: Mapping[str, type] = dict(_columns())
"""Every column beside the axes of a grid, in order, with the type of its values."""


def is_whole(value: object) -> bool:
    """Tell whether ``value`` is a whole number of 64 bits; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def fits(cell: object, kind: type) -> bool:
    """Tell whether a cell may stand in a column of ``kind``, one of ``COLUMNS``; None may anywhere."""
    if kind is float:
        return cell is None or isinstance(cell, float) or is_whole(cell)
    return cell is None or (is_whole(cell) if kind is int else isinstance(cell, kind))


def measure(result: BenchResult, engine: GraphEngine, log: TraceLog | None) -> PointRow:
    """The row of a run, without what the grid says of it; with ``log``, also where its time went."""
    report = report_run(engine, result.links, None if log is None else log.seen.works)
    found = None if log is None else explain_run(log, engine.handles, 0.0, result.sim_ns)
    row = _head(result) | _report(report, found) | _traffic(report.traffic)
    for phase in result.summary.phases:
        row |= {f"phase.{phase.phase}.busy_ns": phase.busy_ns, f"phase.{phase.phase}.bytes": phase.nbytes}
    return row if found is None else row | _tabulate_explanation(found)


def _head(result: BenchResult) -> PointRow:
    comparisons, data = result.comparisons, result.data
    return {
        "status": OK if result.ok else FAILED,
        "error": None if result.ok else _why(result),
        "sim_ns": result.sim_ns,
        "verdict": verdict(comparisons),
        "max_abs_error": _worst([each.max_abs_error for each in comparisons]),
        "max_rel_error": _worst([each.max_rel_error for each in comparisons]),
        "values_read": data.values_read or None,
        "zeros_read": data.zeros_read or None,
        "data_stopped": data.stopped or None,
        "params": json.dumps(result.params.model_dump(mode="json"), sort_keys=True),
    }


def error_text(error: BaseException) -> str:
    """``ValueError: no 48``, without what no text file could hold."""
    return f"{type(error).__name__}: {text_of(error)}".encode(errors="replace").decode()


def _why(result: BenchResult) -> str:
    if result.error is not None:
        return error_text(result.error)
    if result.status is BenchStatus.NO_REQUESTS:
        return "the bench submitted no request"
    wrong: list[Comparison] = [each for each in result.comparisons if not each.passed]
    return str(wrong[0])


def _worst(errors: list[float]) -> float | None:
    """The largest; NaN when one is."""
    return None if not errors else math.nan if any(map(math.isnan, errors)) else max(errors)


def _report(report: RunReport, found: RunExplanation | None) -> PointRow:
    row: PointRow = {"events": report.events, "transfers": report.transfers, "records": report.records}
    for each in report.engines:
        name = f"engine.{slug(each.engine)}"
        row |= {f"{name}.busy_ns": each.busy_ns, f"{name}.occupancy": each.occupancy, f"{name}.records": each.records}
    main = None if found is None else found.main_launch
    shown = [each for each in report.launches if main is None or each.name == main.name]
    longest = max(shown or report.launches, key=lambda each: each.total_ns, default=None)
    return row if longest is None else row | _launch(longest)


def _launch(launch: LaunchSplit) -> PointRow:
    return {
        "launch.name": launch.name,
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


def _tabulate_explanation(found: RunExplanation) -> PointRow:
    main: LaunchExplanation | None = found.main_launch
    row = _group("run", found.path, found.roofline, found.verdict.sentence)
    return row if main is None else row | _group("launch", main.path, main.roofline, main.verdict.label)


def _group(group: str, path: CriticalPath, found: Roofline, bound: str) -> PointRow:
    row: PointRow = {part_column(group, each.part): each.ns for each in path.parts}
    known = [each for each in found.bounds if each.resource in BUILTIN_RESOURCES]
    row |= {bound_column(group, each.resource): each.ns for each in known}
    binding = found.binding
    if binding is not None:
        row |= {f"{group}.bound_ns": binding.ns, f"{group}.beyond": found.beyond}
    return row | {f"{group}.bound": bound, f"{group}.useful_macs": found.useful}


def flat_configuration(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A nested configuration by path: ``{"cube.hbm.slices": 8}``. Lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in configuration.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{path}": each for path, each in flat_configuration(value).items()}
        else:
            flat[key] = value
    return flat
