"""A sweep from its file to its results, and how far it is."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kernbench.cli.console import print_json, say, stderr, stdout
from kernbench.cli.session import FAILED, INTERRUPTED
from kernbench.cli.sweep_tables import interrupted_document, print_sweep, sweep_document
from kernbench.common.data_policy import DataOptions
from kernbench.common.errors import InputError, Problem
from kernbench.common.late import late
from kernbench.common.values import value
from kernbench.evaluation.folder_lock import folder_lock
from kernbench.evaluation.outputs import output_folder
from kernbench.evaluation.sweep_driver import ChunkWorkers, LocalWorkers, run_sweep
from kernbench.evaluation.sweep_driver import Progress as SweepState
from kernbench.evaluation.sweep_folder import open_journal
from kernbench.evaluation.sweep_journal import JOURNAL_FILE, read_state
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.evaluation.sweep_measure import OK
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_table import SweepTable

LINE_EVERY_S = 5.0


class SweepProgress:
    """Shows progress while it is entered; the bar goes away at the end."""

    def __init__(self) -> None:
        console = stderr()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task("points", total=None)
        self._began = time.monotonic()
        self._said = -LINE_EVERY_S

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, state: SweepState) -> None:
        """The sweep is as far as ``state`` says."""
        if self._bar is not None and self._task is not None:
            failed = f", {state.failed} failed" if state.failed else ""
            self._bar.update(self._task, description=f"points{failed}", total=state.points, completed=state.finished)
            return
        elapsed = time.monotonic() - self._began
        if elapsed - self._said >= LINE_EVERY_S or state.finished == state.points:
            self._said = elapsed
            say(progress_line(state, elapsed))


def progress_line(state: SweepState, elapsed_s: float) -> str:
    """``[ 40/200] 2 failed, 12 s, about 48 s left``."""
    width = len(str(state.points))
    done = state.finished - state.found
    parts = [f"{state.failed} failed"] if state.failed else []
    parts.append(f"{elapsed_s:.0f} s")
    if done and state.finished < state.points:
        parts.append(f"about {elapsed_s / done * (state.points - state.finished):.0f} s left")
    elif state.found and not done:
        parts.append(f"{state.found} were finished before")
    return f"[{state.finished:>{width}}/{state.points}] {', '.join(parts)}"


DASK = "kernbench.evaluation.sweep_dask"
WRITER = ("kernbench.evaluation.sweep_results", "write_results")
RESULTS = Path("results") / "sweep"
MakeWorkers: TypeAlias = Callable[[], AbstractContextManager[ChunkWorkers]]
_ADDRESS = re.compile(r"dask://(?P<address>[^\s/]+:\d+)")


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


def sweep(asked: SweepOptions) -> int:
    """Run it, write its results, show them; the exit code."""
    if asked.resume and asked.force:
        raise InputError("--resume goes on with what is there, --force overwrites it: give one of them")
    plan, make_workers = _plan(asked)
    folder = output_folder(RESULTS / plan.name if asked.out is None else asked.out)
    with folder_lock(folder):
        try:
            table, files = _run(plan, folder, make_workers, asked)
        except KeyboardInterrupt:
            _tell_interrupted(plan, folder / JOURNAL_FILE, as_json=asked.as_json)
            return INTERRUPTED
    if asked.as_json:
        print_json(sweep_document(plan, table, files))
    else:
        print_sweep(stdout(), plan, table, files)
    well = asked.allow_failures or all(row["status"] == OK for row in table.rows)
    return 0 if well else FAILED


def _plan(asked: SweepOptions) -> tuple[SweepPlan, MakeWorkers]:
    """Plan the points to run and choose the workers. ConfigError with everything that is wrong with either."""
    jobs = asked.jobs or os.cpu_count() or 1
    try:
        make_workers = _workers(asked.executor, jobs)
    except InputError as error:
        wrong = Problem(source="--executor", line=0, column=0, path="", message=str(error))
        plan_sweep(asked.spec, asked.topology, asked.overrides, asked.ccl, wrong=[wrong])
        raise
    plan = plan_sweep(asked.spec, asked.topology, asked.overrides, asked.ccl, values=asked.values, jobs=jobs)
    return plan, make_workers


def _run(
    plan: SweepPlan, folder: Path, make_workers: MakeWorkers, asked: SweepOptions
) -> tuple[SweepTable, tuple[Path, ...]]:
    """Run what is missing and write the results; the table, and the files."""
    with open_journal(folder, plan.identity(), plan.n_points, resume=asked.resume, force=asked.force) as journal:
        with SweepProgress() as progress, make_workers() as workers:
            # Parquet and pictures take long to import: while the workers run.
            threading.Thread(target=late, args=WRITER).start()
            run_sweep(plan, journal, workers, progress.show)
        table, files = late(*WRITER)(folder, plan, journal)
    return table, files


def _tell_interrupted(plan: SweepPlan, path: Path, *, as_json: bool) -> None:
    """Say what is finished, and how to go on: as the journal at ``path`` says, which is what is gone on with."""
    state = read_state(path)
    finished = 0 if state is None else state.finished
    said = f"{finished} of {plan.n_points} points are finished, in {path}"
    stderr().print(f"interrupted: {said}; go on with --resume", soft_wrap=True)
    if as_json:
        print_json(interrupted_document(plan, finished, path))


def _workers(executor: str, jobs: int) -> MakeWorkers:
    """The workers that ``--executor`` means; not all of them can be there without dask."""
    if executor == "local":
        return partial(LocalWorkers, jobs)
    match = _ADDRESS.fullmatch(executor)
    if match is None and executor != "dask://local":
        raise InputError(f"found {executor!r}; write local, dask://local, or dask://HOST:PORT")
    try:
        make = late(DASK, "DaskWorkers")
    except ImportError as error:
        raise InputError(
            f"{executor} needs dask.distributed ({error}); install it: pip install 'kernbench[cluster]'"
        ) from error
    return partial(make, None if match is None else f"tcp://{match['address']}", jobs)
