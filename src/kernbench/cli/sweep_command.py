"""``kernbench sweep``: its options, and its results as tables. Slow imports happen on use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.table import Table

from kernbench.cli.console import (
    ReportLine,
    number,
    print_json,
    say,
    show_progress,
    show_report,
    stderr,
    stdout,
    table,
    text,
)
from kernbench.cli.options import (
    bench_set_option,
    ccl_option,
    data_options,
    frontend_options,
    output_options,
    topology_option,
    verbose_option,
)
from kernbench.cli.session import FAILED, INTERRUPTED
from kernbench.common.data_policy import DataOptions
from kernbench.common.errors import InputError, Problem
from kernbench.common.late import late
from kernbench.common.values import value
from kernbench.evaluation.sweep_processes import begin_server

if TYPE_CHECKING:
    from kernbench.evaluation.sweep_measure import PointRow
    from kernbench.evaluation.sweep_plan import SweepPlan
    from kernbench.library.sweeps import Sweep

LIBRARY = "kernbench.library.sweeps"
LOADING = "kernbench.evaluation.sweep_loading"
JOURNAL = "kernbench.evaluation.sweep_journal"
TABLE = "kernbench.evaluation.sweep_table"
LOCAL = "local"
RESULTS = Path("results") / "sweep"
MOST_ROWS = 10
MOST_NAMED = 5
LONGEST_ERROR = 300
LOAD, BOUND, FROM_LOAD = "load_ns", "launch.bound", "torch.from_load"
HEADS = {"sim_ns": "sim ns", LOAD: "loading ns", "launch.ns": "main launch ns", BOUND: "bound by"}
"""Columns of the points table besides the axes, with their titles; ``load_ns`` only if a point reports it"""


@value(kw_only=True)
class SweepOptions:
    """The options of the command line."""

    spec: str
    executor: str
    jobs: int | None
    resume: bool
    force: bool
    allow_failures: bool
    out: str | None
    overrides: tuple[str, ...]
    topology: str | None
    ccl: str | None
    values: DataOptions
    as_json: bool


@click.command(name="sweep")
@click.argument("spec", metavar="SPEC.yaml")
@click.option(
    "--executor",
    default=LOCAL,
    show_default=True,
    metavar="EXECUTOR",
    help="Run the points on local processes, a Dask cluster (dask://HOST:PORT), or a temporary Dask cluster (dask://local).",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Run N processes on this computer.  [default: all cores]"
)
@click.option("--resume", is_flag=True, help="Run the missing points of an interrupted sweep.")
@click.option("--force", is_flag=True, help="Overwrite the results of an earlier sweep.")
@click.option("--allow-failures", is_flag=True, help="Exit with code 0 even if points failed.")
@click.option("--out", metavar="DIR", help="Write the results to DIR.  [default: results/sweep/NAME]")
@bench_set_option
@frontend_options
@ccl_option
@data_options
@topology_option
@verbose_option
@output_options
def command(**keywords: Any) -> int:
    """Run a grid of machine and bench parameters in parallel and write one Parquet file and pictures."""
    options = SweepOptions(**keywords)
    if options.executor == LOCAL:
        begin_server()
    return run_sweep_command(options)


def run_sweep_command(options: SweepOptions) -> int:
    """Run the sweep, write and print its results, and return the exit code."""
    if options.resume and options.force:
        raise InputError("--resume continues from existing results, --force overwrites them: give one of them")
    jobs = options.jobs or os.cpu_count() or 1
    try:
        make_workers = late(LIBRARY, "workers_named")(options.executor, jobs)
    except InputError as error:
        wrong = [Problem(source="--executor", line=0, column=0, path="", message=str(error))]
        late(LOADING, "plan_sweep")(options.spec, options.topology, options.overrides, options.ccl, wrong=wrong)
        raise
    plan: SweepPlan = late(LOADING, "plan_sweep")(
        options.spec, options.topology, options.overrides, options.ccl, values=options.values, jobs=jobs
    )
    folder = RESULTS / plan.name if options.out is None else Path(options.out)
    try:
        sweep: Sweep = late(LIBRARY, "run_planned")(
            plan, folder, make_workers, resume=options.resume, force=options.force, on_progress=show_progress()
        )
    except KeyboardInterrupt:
        _tell_interrupted(plan, folder, as_json=options.as_json)
        return INTERRUPTED
    if options.as_json:
        print_json(sweep.to_dict())
    else:
        for path in sweep.files:
            say(f"wrote {path}")
        show_report(stdout(), _head(sweep), _tables(sweep))
    return 0 if options.allow_failures or not len(sweep.failed) else FAILED


def _tell_interrupted(plan: SweepPlan, folder: Path, *, as_json: bool) -> None:
    """Print the number of finished points and how to resume. Both come from the journal in ``folder``."""
    path = folder / late(JOURNAL, "JOURNAL_FILE")
    state = late(JOURNAL, "read_state")(path)
    finished = 0 if state is None else state.finished
    said = f"{finished} of {plan.n_points} points are finished, in {path}"
    stderr().print(f"interrupted: {said}; continue with --resume", soft_wrap=True)
    if as_json:
        print_json(
            {
                "status": "INTERRUPTED",
                "error": "interrupted; continue with --resume",
                "sweep": plan.name,
                "bench": plan.bench.name,
                "points": plan.n_points,
                "finished": finished,
                "journal": str(path),
                "topology": plan.source,
                "digest": plan.digest,
            }
        )


def _head(sweep: Sweep) -> Iterator[ReportLine]:
    """Yield the first lines: failures, the best point, and the swept axes."""
    failed = len(sweep.failed)
    if failed:
        groups = sweep.groups
        more = f" (and {len(groups) - 1} other errors)" if len(groups) > 1 else ""
        yield f"{failed} points failed: {_shorten(groups[0].error)}{more}", "bold red"
    yield sweep.verdict, "bold"
    yield sweep.status_line, "bold yellow" if failed else "bold green"
    yield f"bench: {sweep.results.bench}, machine: {sweep.source}", "default"
    for path, fixed in sweep.results.fixed.items():
        yield f"set {path}: {_cell(fixed)}", "default"
    if LOAD in sweep.shown and FROM_LOAD not in sweep.axes:
        counts = sweep.results.fixed.get(FROM_LOAD)
        yield f"loading: {'counted' if counts else 'not counted; --from-load counts it'}", "default"
    for path, values in sweep.results.grid.items():
        work = " (work)" if path in sweep.results.work else ""
        yield f"axis {path}{work}: {len(values)}: {_ends(values)}", "default"
    for name, expression in sweep.results.derived.items():
        yield f"column {name}: {expression}", "default"


def _ends(values: Sequence[object]) -> str:
    shown = [_cell(content) for content in values]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:3], "…", shown[-1]])


def _tables(sweep: Sweep) -> Iterator[Table]:
    yield _failures(sweep)
    yield _rows(sweep)


def _rows(sweep: Sweep) -> Table:
    rows, which = _fastest(sweep)
    axes = [number(name) for name in ("point", *map(_short, sweep.axes))]
    measured = [name for name in HEADS if name in sweep.shown]
    heads = [(text if name == BOUND else number)(HEADS[name]) for name in measured]
    heads += [number(name) for name in sweep.results.derived]
    points = table(f"Points{which}", *axes, *heads)
    for row in rows:
        cells = (_cell(row.get(name)) for name in ("point", *sweep.axes, *measured))
        points.add_row(*cells, *(_derived_cell(row.get(name)) for name in sweep.results.derived))
    return points


def _fastest(sweep: Sweep) -> tuple[list[PointRow], str]:
    """Return the fastest rows of each work, and which rows they are if others are left out."""
    good = [row for row in sweep.table if row["status"] == "ok"]
    groups: dict[tuple[object, ...], list[PointRow]] = late(TABLE, "group_by_work")(good, sweep.results.work)
    most = max(1, MOST_ROWS // max(1, len(groups)))
    rows = [row for group in groups.values() for row in sorted(group, key=_time)[:most]][:MOST_ROWS]
    if len(rows) == len(good):
        return rows, ""
    if len(groups) == 1:
        return rows, f", the {most} fastest of {len(good)}"
    return rows, f", the {f'{most} fastest' if most > 1 else 'fastest'} of each work, of {len(good)}"


def _failures(sweep: Sweep) -> Table:
    groups = sweep.groups
    which = f", the {MOST_ROWS} most frequent errors of {len(groups)}" if len(groups) > MOST_ROWS else ""
    failures = table(f"Failed{which}", number("points"), text("status"), text("why"), text("where"))
    for group in groups[:MOST_ROWS]:
        failures.add_row(str(len(group.rows)), group.status, _shorten(group.error), _places(sweep, group.rows))
    return failures


def _shorten(error: str) -> str:
    """Return the first line of an error. The results file has the complete text."""
    line = error.partition("\n")[0][:LONGEST_ERROR]
    return line if line == error else f"{line} …"


def _places(sweep: Sweep, rows: Sequence[PointRow]) -> str:
    """Return the axis values of rows as ``m=32 n=64; m=64 n=64; and 3 more``."""
    named = [" ".join(f"{_short(path)}={_cell(row[path])}" for path in sweep.axes) for row in rows[:MOST_NAMED]]
    return "; ".join([*named, f"and {len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else named)


def _short(path: str) -> str:
    name: str = late("kernbench.evaluation.sweep_spec", "short_name")(path)
    return name


def _time(row: PointRow) -> float:
    cell = row["sim_ns"]
    return float(cell) if isinstance(cell, int | float) else 0.0


def _derived_cell(value: object) -> str:
    """Return the number of a derived column with six digits, or all digits before the point."""
    if not isinstance(value, float):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.6g}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
