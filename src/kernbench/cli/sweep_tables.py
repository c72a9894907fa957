"""The results of a sweep on stdout: what failed, the fastest points, and where everything is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from kernbench.cli.console import Json, facts, number, say, show, table, text
from kernbench.evaluation.sweep_measure import OK, PointRow
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_spec import short_name
from kernbench.evaluation.sweep_table import POINT, FailureGroup, SweepTable, failure_groups

MOST_ROWS = 10
MOST_NAMED = 5
LONGEST_ERROR = 300
SHOWN = ("sim_ns", "launch.ns", "launch.bound", "run.bound", "verdict")


def print_sweep(console: Console, plan: SweepPlan, found: SweepTable, files: Sequence[Path]) -> None:
    """Everything about a sweep, the most important last; files that were written to stderr."""
    good = [row for row in found.rows if row["status"] == OK]
    n_bad = len(found.rows) - len(good)
    show(console, facts("Sweep", _about(plan)), _rows(plan, good), _failures(plan, failure_groups(found.rows)))
    for path in files:
        say(f"wrote {path}")
    failed = f", {n_bad} failed" if n_bad else ""
    style = "bold yellow" if n_bad else "bold green"
    console.print(f"{plan.name}: {len(good)} of {len(found.rows)} points ok{failed}", style=style, soft_wrap=True)


def sweep_document(plan: SweepPlan, found: SweepTable, files: Sequence[Path]) -> Json:
    """The results as a JSON document: a row for each point, with what the table on a terminal has."""
    names = (POINT, *found.axes, "status", "error", *SHOWN)
    n_bad = sum(row["status"] != OK for row in found.rows)
    return _head(plan) | {
        "status": "FAILED" if n_bad else "OK",
        "error": f"{n_bad} of {len(found.rows)} points failed" if n_bad else None,
        "points": len(found.rows),
        "failed": n_bad,
        "failures": [_failure(found, group) for group in failure_groups(found.rows)],
        "files": [str(path) for path in files],
        "rows": [{name: row.get(name) for name in names} for row in found.rows],
    }


def interrupted_document(plan: SweepPlan, finished: int, journal: Path) -> Json:
    """Return the finished part of a sweep that was interrupted."""
    return _head(plan) | {
        "status": "INTERRUPTED",
        "error": "interrupted; go on with --resume",
        "points": plan.n_points,
        "finished": finished,
        "journal": str(journal),
    }


def _head(plan: SweepPlan) -> dict[str, Json]:
    return {
        "sweep": plan.name,
        "bench": plan.bench.name,
        "topology": plan.machine.source,
        "digest": plan.machine.digest,
    }


def _failure(found: SweepTable, group: FailureGroup) -> Json:
    return {
        "status": group.status,
        "error": group.error,
        "count": len(group.rows),
        "points": [{name: row[name] for name in (POINT, *found.axes)} for row in group.rows[:MOST_NAMED]],
        "more": max(0, len(group.rows) - MOST_NAMED),
    }


def _about(plan: SweepPlan) -> list[tuple[str, str]]:
    axes = [(path, f"{len(values)}: {_ends(values)}") for path, values in plan.axes.items()]
    return [("bench", plan.bench.name), ("machine", plan.machine.name), *axes]


def _ends(values: Sequence[object]) -> str:
    shown = [_cell(each) for each in values]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:3], "…", shown[-1]])


def _rows(plan: SweepPlan, good: Sequence[PointRow]) -> Table:
    few = sorted(good, key=_time)[:MOST_ROWS]
    which = f", the {MOST_ROWS} fastest of {len(good)}" if len(good) > MOST_ROWS else ""
    made = table(
        f"Points{which}",
        *_axis_columns(plan),
        *(number("sim ns"), number("main launch ns"), text("bound by")),
    )
    for row in few:
        made.add_row(*_axis_cells(plan, row), *(_cell(row.get(name)) for name in SHOWN[:3]))
    return made


def _failures(plan: SweepPlan, groups: Sequence[FailureGroup]) -> Table:
    which = f", the {MOST_ROWS} most frequent errors of {len(groups)}" if len(groups) > MOST_ROWS else ""
    made = table(f"Failed{which}", number("points"), text("status"), text("why"), text("where"))
    for group in groups[:MOST_ROWS]:
        made.add_row(str(len(group.rows)), group.status, _shorten(group.error), _places(plan, group.rows))
    return made


def _shorten(error: str) -> str:
    """Its first line: a report of a deadlock has many, which are in the file."""
    line = error.partition("\n")[0][:LONGEST_ERROR]
    return line if line == error else f"{line} …"


def _places(plan: SweepPlan, rows: Sequence[PointRow]) -> str:
    """``m=32 n=64; m=64 n=64; and 3 more``."""
    named = [" ".join(f"{short_name(path)}={_cell(row[path])}" for path in plan.axes) for row in rows[:MOST_NAMED]]
    return "; ".join([*named, f"and {len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else named)


def _axis_columns(plan: SweepPlan) -> list[Column]:
    return [number(POINT), *(number(short_name(path)) for path in plan.axes)]


def _axis_cells(plan: SweepPlan, row: PointRow) -> list[str]:
    return [_cell(row[name]) for name in (POINT, *plan.axes)]


def _time(row: PointRow) -> float:
    found = row["sim_ns"]
    return float(found) if isinstance(found, int | float) else 0.0


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
