"""The results of a sweep on stdout: what failed, the fastest points, and where everything is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.table import Column, Table

from kernbench.cli.console import Json, facts, number, show, table, text
from kernbench.evaluation.sweep_measure import OK, Row
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_table import POINT, SweepTable

MOST_ROWS = 10
SHOWN = ("sim_ns", "launch.ns", "launch.bound", "verdict")


def print_sweep(console: Console, plan: SweepPlan, found: SweepTable, files: Sequence[Path]) -> None:
    """Everything about a sweep, the most important last; files that were written to stderr."""
    good = [row for row in found.rows if row["status"] == OK]
    bad = [row for row in found.rows if row["status"] != OK]
    show(console, facts("Sweep", _about(plan)), _rows(plan, good), _failures(plan, bad))
    for path in files:
        click.echo(f"wrote {path}", err=True)
    failed = f", {len(bad)} failed" if bad else ""
    style = "bold yellow" if bad else "bold green"
    console.print(f"{plan.name}: {len(good)} of {len(found.rows)} points ok{failed}", style=style, soft_wrap=True)


def sweep_document(plan: SweepPlan, found: SweepTable, files: Sequence[Path]) -> Json:
    """The results as a JSON document: a row for each point, with what the table on a terminal has."""
    names = (POINT, *found.axes, "status", "error", *SHOWN)
    return {
        "sweep": plan.name,
        "bench": plan.bench.name,
        "topology": plan.machine.source,
        "digest": plan.machine.digest,
        "points": len(found.rows),
        "failed": sum(row["status"] != OK for row in found.rows),
        "files": [str(path) for path in files],
        "rows": [{name: row.get(name) for name in names} for row in found.rows],
    }


def _about(plan: SweepPlan) -> list[tuple[str, str]]:
    axes = [(path, f"{len(values)}: {_ends(values)}") for path, values in plan.axes.items()]
    return [("bench", plan.bench.name), ("machine", plan.machine.source), *axes]


def _ends(values: Sequence[object]) -> str:
    shown = [_cell(each) for each in values]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:3], "…", shown[-1]])


def _rows(plan: SweepPlan, good: Sequence[Row]) -> Table:
    few = sorted(good, key=_time)[:MOST_ROWS]
    which = f", the {MOST_ROWS} fastest of {len(good)}" if len(good) > MOST_ROWS else ""
    made = table(
        f"Points{which}", *_axis_columns(plan), number("sim ns"), number("longest launch ns"), text("bound by")
    )
    for row in few:
        made.add_row(*_axis_cells(plan, row), *(_cell(row.get(name)) for name in SHOWN[:3]))
    return made


def _failures(plan: SweepPlan, bad: Sequence[Row]) -> Table:
    which = f", the first {MOST_ROWS} of {len(bad)}" if len(bad) > MOST_ROWS else ""
    made = table(f"Failed{which}", *_axis_columns(plan), text("status"), text("why"))
    for row in bad[:MOST_ROWS]:
        made.add_row(*_axis_cells(plan, row), _cell(row["status"]), _cell(row["error"]))
    return made


def _axis_columns(plan: SweepPlan) -> list[Column]:
    return [number(POINT), *(number(path.rpartition(".")[2]) for path in plan.axes)]


def _axis_cells(plan: SweepPlan, row: Row) -> list[str]:
    return [_cell(row[name]) for name in (POINT, *plan.axes)]


def _time(row: Row) -> float:
    found = row["sim_ns"]
    return float(found) if isinstance(found, int | float) else 0.0


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
