"""``kernbench sweep``: its options, and its results as tables. Slow imports happen on use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from kernbench.cli.options import options_of, output_options, verbose_option
from kernbench.cli.session import FAILED, INTERRUPTED
from kernbench.common.errors import InputError, Problem
from kernbench.common.late import late
from kernbench.evaluation.sweep_processes import begin_server
from kernbench.result.table import trimmed_text
from kernbench.runtime_api.run_request import RunRequest

if TYPE_CHECKING:
    from kernbench.evaluation.sweep_plan import SweepPlan
    from kernbench.library.sweeps import Sweep

LIBRARY = "kernbench.library.sweeps"
LOADING = "kernbench.evaluation.sweep_loading"
JOURNAL = "kernbench.evaluation.sweep_journal"
LOCAL = "local"
RESULTS = Path("results") / "sweep"
LOAD, FROM_LOAD = "load_ns", "torch.from_load"


@click.command(name="sweep")
@click.option_panel("Sweep", options=["--executor", "--jobs", "--resume", "--force", "--allow-failures"])
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
@options_of("sweep")
@verbose_option
@output_options
def command(
    request: RunRequest,
    spec: str,
    executor: str,
    jobs: int | None,
    resume: bool,
    force: bool,
    allow_failures: bool,
    out: str | None,
    as_json: bool,
) -> int:
    """Run a grid of machine and bench parameters in parallel and write one Parquet file and pictures."""
    if executor == LOCAL:
        begin_server()
    if resume and force:
        raise InputError("--resume continues from existing results, --force overwrites them: give one of them")
    jobs = jobs or os.cpu_count() or 1
    try:
        make_workers = late(LIBRARY, "workers_named")(executor, jobs)
    except InputError as error:
        wrong = [Problem(source="--executor", line=0, column=0, path="", message=str(error))]
        late(LOADING, "plan_sweep")(spec, request, wrong=wrong)
        raise
    plan: SweepPlan = late(LOADING, "plan_sweep")(spec, request, jobs=jobs)
    folder = RESULTS / plan.name if out is None else Path(out)
    try:
        sweep: Sweep = late(LIBRARY, "run_planned")(
            plan, folder, make_workers, resume=resume, force=force, on_progress=show_progress()
        )
    except KeyboardInterrupt:
        _tell_interrupted(plan, folder, as_json=as_json)
        return INTERRUPTED
    if as_json:
        print_json(sweep.to_dict())
    else:
        for path in sweep.files:
            say(f"wrote {path}")
        show_report(stdout(), _head(sweep), (render(sweep.failures), render(sweep.table)))
    return 0 if allow_failures or not len(sweep.failed) else FAILED


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
        yield f"{failed} points failed: {groups[0].short_error}{more}", "bold red"
    yield sweep.verdict, "bold"
    yield sweep.status_line, "bold yellow" if failed else "bold green"
    yield f"bench: {sweep.results.bench}, machine: {sweep.source}", "default"
    for path, fixed in sweep.results.fixed.items():
        yield f"set {path}: {trimmed_text(fixed)}", "default"
    if LOAD in sweep.shown and FROM_LOAD not in sweep.axes:
        counts = sweep.results.fixed.get(FROM_LOAD)
        yield f"loading: {'counted' if counts else 'not counted; --from-load counts it'}", "default"
    for path, values in sweep.results.grid.items():
        work = " (work)" if path in sweep.results.work else ""
        yield f"axis {path}{work}: {len(values)}: {_ends(values)}", "default"
    for name, expression in sweep.results.derived.items():
        yield f"column {name}: {expression}", "default"


def _ends(values: Sequence[object]) -> str:
    shown = [trimmed_text(content) for content in values]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:3], "…", shown[-1]])
