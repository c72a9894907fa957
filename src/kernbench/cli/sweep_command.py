"""``kernbench sweep``: its options, and its results as tables. Slow imports happen on use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from kernbench.cli.console import (
    ReportLine,
    print_json,
    render,
    say,
    show_progress,
    show_report,
    stderr,
    stdout,
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
from kernbench.result.table import trimmed_text

if TYPE_CHECKING:
    from kernbench.evaluation.sweep_plan import SweepPlan
    from kernbench.library.sweeps import Sweep

LIBRARY = "kernbench.library.sweeps"
LOADING = "kernbench.evaluation.sweep_loading"
JOURNAL = "kernbench.evaluation.sweep_journal"
LOCAL = "local"
RESULTS = Path("results") / "sweep"
LOAD, FROM_LOAD = "load_ns", "torch.from_load"


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
        found: Sweep = late(LIBRARY, "run_planned")(
            plan, folder, make_workers, resume=options.resume, force=options.force, on_progress=show_progress()
        )
    except KeyboardInterrupt:
        _tell_interrupted(plan, folder, as_json=options.as_json)
        return INTERRUPTED
    if options.as_json:
        print_json(found.to_dict())
    else:
        for path in found.files:
            say(f"wrote {path}")
        show_report(stdout(), _head(found), (render(found.failures), render(found.table)))
    return 0 if options.allow_failures or not len(found.failed) else FAILED


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
                "topology": plan.machine.source,
                "digest": plan.machine.digest,
            }
        )


def _head(found: Sweep) -> Iterator[ReportLine]:
    """Yield the first lines: failures, the best point, and the swept axes."""
    failed = len(found.failed)
    if failed:
        groups = found.groups
        more = f" (and {len(groups) - 1} other errors)" if len(groups) > 1 else ""
        yield f"{failed} points failed: {groups[0].short_error}{more}", "bold red"
    yield found.verdict, "bold"
    yield found.status_line, "bold yellow" if failed else "bold green"
    yield f"bench: {found.found.bench}, machine: {found.source}", "default"
    for path, fixed in found.found.fixed.items():
        yield f"set {path}: {trimmed_text(fixed)}", "default"
    if LOAD in found.shown and FROM_LOAD not in found.axes:
        counts = found.found.fixed.get(FROM_LOAD)
        yield f"loading: {'counted' if counts else 'not counted; --from-load counts it'}", "default"
    for path, values in found.found.grid.items():
        yield f"axis {path}: {len(values)}: {_ends(values)}", "default"


def _ends(values: Sequence[object]) -> str:
    shown = [trimmed_text(content) for content in values]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:3], "…", shown[-1]])
