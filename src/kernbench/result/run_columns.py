"""Columns of a run in sweeps and comparisons: ``group.what_unit``.

``run`` is the complete program. ``launch`` is the launch with most of the critical path, or the longest launch without
a critical path. Its ``bound`` is the verdict in short, and its ``verdict`` is the verdict in a sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kernbench.common.units import ps_to_ns
from kernbench.engine.keeping import DataReport
from kernbench.observe.critical_path_model import PathPart
from kernbench.observe.statistics import EngineUsage, MachineUse
from kernbench.observe.works import PE_ENGINES
from kernbench.result.columns import CellRow
from kernbench.result.explanation import ExplainedTime
from kernbench.runtime_api.bench_runner import PhaseSummary
from kernbench.runtime_api.launch_report import LaunchSplit
from kernbench.runtime_api.requests import PHASES
from kernbench.runtime_api.testing import Comparison, verdict
from kernbench.topology.resources import BUILTIN_RESOURCES

GROUPS = ("launch", "run")
"""The first words of columns of explained times"""
BOUNDS = ("launch.bound", "run.bound")
"""Columns with a bottleneck as text"""
OWN_PARTS = "own parts"
"""Common column name of all resources that are not built in"""
CAUSES = tuple(dict.fromkeys([*PathPart, *BUILTIN_RESOURCES, OWN_PARTS]))
"""Categories of a path's time: resources, and parts without a resource"""


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


def _list_time_columns() -> Iterator[tuple[str, type]]:
    for group in GROUPS:
        yield from {f"{group}.bound": str, f"{group}.verdict": str}.items()
        yield from {f"{group}.bound_ns": float, f"{group}.beyond": float, f"{group}.useful_macs": float}.items()
        for kind, names in _TIMES.items():
            yield from ((time_column(group, kind, name), float) for name in names)


EXPLANATION_COLUMNS: Mapping[str, type] = dict(_list_time_columns())
LAUNCH_COLUMNS: Mapping[str, type] = {
    "launch.name": str,
    "launch.pes": int,
    "launch.ns": float,
    "launch.kernel_ns": float,
}
VERIFICATION_COLUMNS: Mapping[str, type] = {"verdict": str, "max_abs_error": float, "max_rel_error": float}
DATA_COLUMNS: Mapping[str, type] = {"values_read": int, "zeros_read": int, "data_stopped": str}
USE_COLUMNS: Mapping[str, type] = {
    **{f"used.{name}": int for name in ("sips", "cubes", "pes", "slices")},
    "used.within": str,
    "used.parts": str,
}
PHASE_COLUMNS: Mapping[str, type] = {
    f"phase.{phase}.{name}": kind for phase in PHASES for name, kind in (("busy_ns", float), ("bytes", int))
}
ENGINE_COLUMNS: Mapping[str, type] = {
    f"engine.{slug(engine)}.{name}": kind
    for engine in PE_ENGINES
    for name, kind in (("busy_ns", float), ("occupancy", float), ("records", int))
}


def tabulate_comparisons(comparisons: Sequence[Comparison]) -> CellRow:
    """Return the verdict on the comparisons and their largest errors."""
    return {
        "verdict": verdict(comparisons),
        "max_abs_error": _worst([comparison.max_abs_error for comparison in comparisons]),
        "max_rel_error": _worst([comparison.max_rel_error for comparison in comparisons]),
    }


def _worst(errors: list[float]) -> float | None:
    """Return the largest error; NaN if an error is NaN."""
    return None if not errors else math.nan if any(map(math.isnan, errors)) else max(errors)


def tabulate_data(data: DataReport) -> CellRow:
    """Return the number of read values, and the reason why the storage of values stopped."""
    return {
        "values_read": data.values_read or None,
        "zeros_read": data.zeros_read or None,
        "data_stopped": data.stopped or None,
    }


def tabulate_phases(phases: Iterable[PhaseSummary]) -> CellRow:
    """Return the times and bytes of phases."""
    row: CellRow = {}
    for phase in phases:
        row |= {f"phase.{phase.phase}.busy_ns": phase.busy_ns, f"phase.{phase.phase}.bytes": phase.nbytes}
    return row


def tabulate_engines(engines: Iterable[EngineUsage]) -> CellRow:
    """Return the use of engines."""
    row: CellRow = {}
    for usage in engines:
        name = f"engine.{slug(usage.engine)}"
        row |= {
            f"{name}.busy_ns": usage.busy_ns,
            f"{name}.occupancy": usage.occupancy,
            f"{name}.records": usage.records,
        }
    return row


def tabulate_use(used: MachineUse | None) -> CellRow:
    """Return the used parts of the machine."""
    if used is None:
        return {}
    numbers: CellRow = {"sips": used.sips, "cubes": used.cubes, "pes": used.pes, "slices": used.slices}
    texts: CellRow = {"within": used.within, "parts": ", ".join(used.parts)}
    return {f"used.{name}": cell for name, cell in {**numbers, **texts}.items()}


def tabulate_launch(launches: Sequence[LaunchSplit], main: str | None) -> CellRow:
    """Return the figures of the launch named ``main``, or of the longest launch."""
    named = [launch for launch in launches if launch.title == main]
    launch = max(named or launches, key=lambda launch: launch.total_ns, default=None)
    if launch is None:
        return {}
    return {
        "launch.name": launch.title,
        "launch.pes": launch.pe_count,
        "launch.ns": launch.total_ns,
        "launch.kernel_ns": launch.kernel_ns,
    }


def tabulate_time(group: str, time: ExplainedTime) -> CellRow:
    """Return the figures of an explained time, by column of ``group`` (``run`` or ``launch``).

    The causes of a path are its resources, and its parts without a resource.
    """
    path, roof, judgement = time.path, time.roof, time.judgement
    times = [("path", part.part, part.ps) for part in path.parts]
    for resource in path.resources:
        times.append(("resources", resource.resource, resource.ps))
        times += [("queues", resource.resource, resource.queued_ps)] if resource.queued_ps else []
    times += [("resources", stage.part, stage.ps) for stage in path.shares if not stage.resource]
    times += [("bounds", bound.resource, bound.ps) for bound in roof.bounds]
    row: CellRow = {time_column(group, kind, name): ps_to_ns(ps) for kind, name, ps in times}
    if roof.bounds:
        row |= {f"{group}.bound_ns": ps_to_ns(max(bound.ps for bound in roof.bounds)), f"{group}.beyond": roof.beyond}
    row[f"{group}.useful_macs"] = roof.useful_macs
    label = roof.binding if judgement is None else judgement.label or judgement.sentence
    row |= {f"{group}.bound": label} if label else {}
    return row | ({} if judgement is None else {f"{group}.verdict": judgement.sentence})


def merge_own_parts(row: CellRow) -> CellRow:
    """Return a row of a sweep: resources that are not built in share a column, as a sweep has fixed columns."""
    merged: CellRow = {}
    for name, cell in row.items():
        group, _, rest = name.partition(".")
        kind = rest.partition(".")[0]
        if group not in GROUPS or kind not in _TIMES or name in EXPLANATION_COLUMNS:
            merged[name] = cell
        elif kind in ("resources", "queues") and isinstance(cell, float):
            column = time_column(group, kind, OWN_PARTS)
            before = merged.get(column)
            merged[column] = cell + (before if isinstance(before, float) else 0.0)
    return merged
