"""Sweeps: runs of a program at every point of a grid of machine and bench parameters."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from pydantic import ValidationError

from kernbench.common.complaints import show
from kernbench.common.config import Document
from kernbench.common.errors import InputError, close_to
from kernbench.common.files import plain_document
from kernbench.common.late import late
from kernbench.common.values import value
from kernbench.evaluation.outputs import output_folder
from kernbench.evaluation.sweep_columns import families_of
from kernbench.evaluation.sweep_driver import ChunkWorkers, InlineWorker, LocalWorkers, SweepProgress, run_sweep
from kernbench.evaluation.sweep_folder import folder_lock, open_journal
from kernbench.evaluation.sweep_journal import JOURNAL_FILE, Journal, read_state
from kernbench.evaluation.sweep_loading import plan_document
from kernbench.evaluation.sweep_measure import OK, PointRow, list_columns
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_spec import MACHINE, POINT, Plot, PlotKind, short_name
from kernbench.evaluation.sweep_table import (
    TABLE_FILE,
    FailureGroup,
    SweepTable,
    best_rows,
    column_types,
    failure_groups,
    group_by_work,
    number_in,
    read_sweep_table,
    sweep_table,
)
from kernbench.library.machines import MachineLike, Overrides, load_machine
from kernbench.library.progress import ProgressDisplay
from kernbench.library.running import Program, find_program, script_choices, setting_texts
from kernbench.result.sections import MAIN, list_modules
from kernbench.result.table import LINE, Table, TableColumn, number, text_html, trimmed_text, words
from kernbench.runtime_api.run_request import RunRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MakeWorkers: TypeAlias = Callable[[], AbstractContextManager[ChunkWorkers]]
OnSweepProgress: TypeAlias = Callable[[SweepProgress], None]
DASK = "kernbench.evaluation.sweep_dask"
FIGURES = "kernbench.evaluation.sweep_results"
WRITER = (FIGURES, "write_results")
TIME, LOAD = "sim_ns", "load_ns"
SHOWN = ("launch.ns", "launch.bound", "run.bound", "verdict")
BOUND = "launch.bound"
_HEADS = {TIME: "sim ns", LOAD: "loading ns", "launch.ns": "main launch ns", BOUND: "bound by"}
"""Columns of points on the terminal besides the axes, with their titles"""
MOST_NAMED, MOST_SHOWN, MOST_WORKS = 5, 10, 3
_ADDRESS = re.compile(r"dask://(?P<address>[^\s/]+:\d+)")


@value(repr=False, eq=False)
class Sweep:
    """The results of a sweep.

    ``results``: the table, one row per point. ``folder``: the folder of its files, or None. ``source``: the file of the
    base machine, or the names of the machines of the axis ``machine``. ``files``: the written files.
    """

    name: str
    source: str
    results: SweepTable
    folder: Path | None = None
    files: tuple[Path, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """The paths that the grid varies."""
        return self.results.axes

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that a report shows: initialisation time if a point reports it, and all derived columns."""
        return (TIME, *([LOAD] if LOAD in self.results.columns else []), *SHOWN, *self.results.derived)

    @property
    def table(self) -> Table[PointRow]:
        """One row per point: its number, its axis values, and its results.

        The terminal shows the fastest points of each work.
        """
        title, shown = self._find_fastest()
        return Table("points", self.results.rows, self._columns, title, shown)

    def _find_fastest(self) -> tuple[str, tuple[PointRow, ...]]:
        """Return the fastest rows of each work, after a title that says which rows they are if others are left out."""
        good = [row for row in self.results.rows if row["status"] == OK]
        groups = group_by_work(good, self.results.work)
        most = max(1, MOST_SHOWN // max(1, len(groups)))
        rows = [row for group in groups.values() for row in sorted(group, key=_time_of)[:most]][:MOST_SHOWN]
        fastest = f"{most} fastest" if most > 1 else "fastest"
        of_work = " of each work, of" if len(groups) > 1 else " of"
        return f"Points, the {fastest}{of_work} {len(good)}" if len(rows) < len(good) else "Points", tuple(rows)

    @property
    def failed(self) -> Table[PointRow]:
        """The failed points and their errors."""
        rows = tuple(row for row in self.results.rows if row["status"] != OK)
        return Table("failed points", rows, self._columns)

    @property
    def _columns(self) -> tuple[TableColumn[PointRow], ...]:
        point = TableColumn[PointRow](POINT, "the number of the point; the last axis varies fastest")
        axes = [TableColumn[PointRow](axis, "an axis of the grid") for axis in self.axes]
        measured = set(self.results.columns) - {POINT, *self.axes}
        names = [name for name in column_types(dict.fromkeys(self.axes, str), ()) if name in measured]
        heads = {name: head for name, head in _HEADS.items() if name in self.shown}
        derived = [TableColumn[PointRow](name, expression) for name, expression in self.results.derived.items()]
        return (
            point.number("point", trimmed_text),
            *(axis.number(short_name(axis.name), trimmed_text) for axis in axes),
            *(TableColumn(name, _say_column(name)) for name in names),
            *((words if name == BOUND else number)(head, partial(_read_text, name)) for name, head in heads.items()),
            *(column.number(column.name, _derived_text) for column in derived),
        )

    @property
    def failures(self) -> Table[FailureGroup]:
        """The failures, grouped by error, the most frequent first."""
        columns = (
            TableColumn[FailureGroup]("points", "their number", lambda group: len(group.rows)).number("points"),
            TableColumn[FailureGroup]("status", "their status").words("status"),
            TableColumn[FailureGroup]("error", "the error"),
            words("why", lambda group: group.short_error),
            words("where", self._say_places),
        )
        groups = self.groups
        most = f", the {MOST_SHOWN} most frequent errors of {len(groups)}" if len(groups) > MOST_SHOWN else ""
        return Table("failures", groups, columns, f"Failed{most}", groups[:MOST_SHOWN])

    def _say_places(self, group: FailureGroup) -> str:
        """Return the axis values of points as ``m=32 n=64; m=64 n=64; and 3 more``."""
        rows = group.rows
        named = [
            " ".join(f"{short_name(path)}={trimmed_text(row[path])}" for path in self.axes) for row in rows[:MOST_NAMED]
        ]
        return "; ".join([*named, f"and {len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else named)

    def best(self, value: str = TIME, *, largest: bool = False, work: Mapping[str, object] | None = None) -> PointRow:
        """Return the row with the smallest, or ``largest``, number in column ``value``.

        ``work``: the values of the axes of work, ``{"bench.batch": 16}``, needed if the sweep has several works. Raises
        InputError if the column does not exist, if no point has a number there, or if the points are of different work.
        """
        rows = self.best_per_work(value, largest=largest)
        if work is not None:
            rows = self._at_work(rows, work)
        if len(rows) > 1:
            works = "; ".join(self._say_work(row) for row in rows[:MOST_NAMED])
            raise InputError(f"points of different work have no common best; choose one with work=: {works}")
        return rows[0]

    def best_per_work(self, value: str = TIME, *, largest: bool = False) -> tuple[PointRow, ...]:
        """Return the best row, as in ``best``, for each work. Without axes of work, all points are of equal work.

        Raises InputError if the column does not exist, or if no point has a number there.
        """
        rows = best_rows(self.results.rows, self.results.work, value, largest=largest)
        if not rows:
            raise InputError(f"no point has a number in {value!r}; {self._hint(value)}")
        return tuple(rows)

    def _at_work(self, rows: Sequence[PointRow], work: Mapping[str, object]) -> tuple[PointRow, ...]:
        """Return the rows with the values ``work``. Raises InputError if there are none."""
        for name in work:
            if name not in self.results.work:
                raise InputError(f"{name!r} is no axis of work; there are: {', '.join(self.results.work) or 'none'}")
        chosen = tuple(row for row in rows if all(row[name] == content for name, content in work.items()))
        if not chosen:
            works = "; ".join(self._say_work(row) for row in rows[:MOST_NAMED])
            raise InputError(f"no successful point has the work {dict(work)}; there are: {works}")
        return chosen

    def _say_work(self, row: PointRow) -> str:
        return ", ".join(f"{short_name(axis)} {row[axis]}" for axis in self.results.work)

    def plot(
        self,
        x: str,
        y: str,
        by: str | None = None,
        kind: PlotKind = "lines",
        value: str = TIME,
        *,
        largest: bool = False,
    ) -> Figure:
        """Draw the sweep as a matplotlib figure.

        ``lines``: column ``y`` over axis ``x``, with one curve per value of axis ``by``. ``heat-map``: column ``value``
        over axes ``x`` and ``y``. ``pareto``: the points that no other point of equal work beats in both cost ``x`` and
        result ``y``; with ``largest``, a larger ``y`` is better. All other axes have the values of the first point.
        """
        shown: dict[str, dict[str, Any]] = {
            "lines": {"x": x, "by": by, "value": y},
            "heat-map": {"x": x, "y": y, "value": value},
            "pareto": {"cost": x, "value": y, "largest": largest},
        }
        keys = shown.get(kind)
        if keys is None:
            raise InputError(f"kind: found {show(kind)}, must be one of: {', '.join(shown)}")
        for name in (keys.get("x"), keys.get("y"), keys.get("by")):
            if name is not None and name not in self.axes:
                raise InputError(f"{name!r} is no axis; {close_to(name, self.axes)}the grid has {', '.join(self.axes)}")
        try:
            plot = Plot.model_validate({"kind": kind, **{key: name for key, name in keys.items() if name is not None}})
        except ValidationError as error:
            raise InputError(error.errors()[0]["msg"]) from error
        if not late(FIGURES, "can_draw")(self.results, plot):
            wanted = [name for name in (plot.value, plot.cost) if name is not None]
            raise InputError(f"no point has numbers in {' and '.join(wanted)}; {self._hint(wanted[0])}")
        figure: Figure = late(FIGURES, "draw_plot")(self.results, plot)
        return figure

    def _hint(self, name: str) -> str:
        filled = set(self.results.columns)
        measured = [column for column, kind in list_columns().items() if kind is not str and column in filled]
        names = [*self.axes, *self.results.derived]
        return f"{close_to(name, [*names, *measured])}there are: {', '.join([*names, *families_of(measured)])}"

    @property
    def groups(self) -> tuple[FailureGroup, ...]:
        """The failures, grouped by error, the most frequent first."""
        return failure_groups(self.results.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the sweep as the document that ``kernbench sweep --json`` prints."""
        results, names = self.results, (POINT, *self.axes, "status", "error", *self.shown)
        n_bad = len(self.failed)
        return plain_document(
            {
                "status": "FAILED" if n_bad else "OK",
                "error": f"{n_bad} of {len(results.rows)} points failed" if n_bad else None,
                "sweep": self.name,
                "bench": results.bench,
                "set": dict(results.fixed),
                "columns": dict(results.derived),
                "work": list(results.work),
                "points": len(results.rows),
                "failed": n_bad,
                "failures": [_failure(results, group) for group in self.groups],
                "rows": [{name: row.get(name) for name in names} for row in results.rows],
                "files": [str(path) for path in self.files],
                "topology": self.source,
                "digest": results.about.get("machine", ""),
            }
        )

    @property
    def status_line(self) -> str:
        """The status of the sweep, as a line of text."""
        n_bad = len(self.failed)
        failed = f", {n_bad} failed" if n_bad else ""
        return f"{self.name}: {len(self.results.rows) - n_bad} of {len(self.results.rows)} points ok{failed}"

    @property
    def verdict(self) -> str:
        """A sentence that names the fastest point and its bottleneck, for each work if there are several."""
        rows = best_rows(self.results.rows, self.results.work, TIME)
        if not rows:
            return "no point succeeded"
        if len(rows) == 1:
            return f"fastest at {_say_point(rows[0], self.axes)}"
        axes = [axis for axis in self.axes if axis not in self.results.work]
        parts = [f"{self._say_work(row)} at {_say_point(row, axes)}" for row in rows[:MOST_WORKS]]
        more = [f"{len(rows) - MOST_WORKS} more works"] if len(rows) > MOST_WORKS else []
        return f"fastest of equal work: {'; '.join([*parts, *more])}"

    def __repr__(self) -> str:
        axes = [f"  axis    {path}: {', '.join(map(str, values[:8]))}" for path, values in self.results.grid.items()][
            :4
        ]
        failed = [f"  failed  {len(group.rows)} × {group.error}" for group in self.groups[:2]]
        where = [] if self.folder is None else [f"  folder  {self.folder}"]
        lines = [self.verdict, self.status_line, f"  bench   {self.results.bench}", *axes, *failed, *where]
        return "\n".join(line.partition("\n")[0][:LINE] for line in lines)

    def _repr_html_(self) -> str:
        return text_html(repr(self), self.table.to_html())


def _say_column(name: str) -> str:
    """Return a description of a column, derived from its name."""
    group, _, rest = name.rpartition(".")
    words = rest.replace("_", " ")
    return f"{words} of {group}" if group else words


def _read_text(name: str, row: PointRow) -> str:
    return trimmed_text(row.get(name))


def _derived_text(number: float) -> str:
    """Return the number of a derived column with six digits, or all digits before the point."""
    return f"{number:,.0f}" if abs(number) >= 1e5 else f"{number:,.6g}"


def _time_of(row: PointRow) -> float:
    return number_in(row, TIME) or 0.0


def _say_point(row: PointRow, axes: Iterable[str]) -> str:
    """Return the values of a point on ``axes``, its time and its bottleneck."""
    where = ", ".join(f"{short_name(axis)} {row[axis]}" for axis in axes)
    bound = f", bound by {row['launch.bound']}" if row.get("launch.bound") else ""
    time = f"{_time_of(row):,.3f} ns{bound}"
    return f"{where}: {time}" if where else time


def _failure(results: SweepTable, group: FailureGroup) -> dict[str, Any]:
    return {
        "status": group.status,
        "error": group.error,
        "count": len(group.rows),
        "points": [{name: row[name] for name in (POINT, *results.axes)} for row in group.rows[:MOST_NAMED]],
        "more": max(0, len(group.rows) - MOST_NAMED),
    }


def sweep(
    program: Program | None = None,
    machine: MachineLike = None,
    *,
    grid: Mapping[str, Sequence[object] | Mapping[str, object]],
    script: str | os.PathLike[str] | None = None,
    args: Sequence[object] = (),
    as_cuda: bool = False,
    overrides: Overrides | None = None,
    settings: Mapping[str, object] | None = None,
    columns: Mapping[str, str] | None = None,
    work: Sequence[str] = (),
    workers: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    verify: bool = False,
    observe: bool = True,
    reuse: bool = False,
    ranks: Literal["all"] | None = None,
    on_progress: OnSweepProgress | None = None,
) -> Sweep:
    """Run a program at every point of a grid.

    ``program``, or ``script`` with ``args`` and ``as_cuda``: as for ``run``.
    ``grid``: the values of each path, as for ``--set``: ``{"bench.m": [64, 128], "cube.hbm.num_pcs": [4, 8]}``, or
    a range, ``{"start": 32, "stop": 512, "factor": 2}``. The axis ``machine`` has packaged machines and files; the
    argument ``machine`` is then None. ``overrides`` and frontend ``settings``, ``{"torch.cubes": 4}``, are the same
    at all points. ``columns``: expressions of derived columns, ``{"tokens_s": "bench.batch / sim_ns * 1e9"}``.
    ``work``: axes whose values are different work. Only points of equal work are compared. ``workers``: number of
    processes, by default one per core; 1: this process. ``folder``: the folder of results and of a journal. A
    second call continues an interrupted sweep from there, also if ``kernbench sweep`` began it. ``observe``: record
    the causes of the time of each point. ``reuse``: run without data, and let the time of launches pass that are like
    earlier ones. ``ranks="all"``: run the script once for each SIP, as torchrun does; an axis may vary their number.

    A bench name, a file, a script and ``module:function`` run on workers. A function object runs in this process,
    without a folder. An error that concerns only some points is in their results, see ``failed``. Raises ConfigError
    with every other error.
    """
    entries = script_choices(program, script, args, as_cuda=as_cuda, ranks=ranks)
    entries.pop("ranks", None)
    path = script if program is None else program if isinstance(program, str | os.PathLike) else None
    named = path is not None
    if not named and folder is not None:
        raise InputError(
            "folder: a function object exists in this process only; name it as file.py:function or module:function"
        )
    if not named and workers not in (None, 1):
        raise InputError(f"workers: found {workers}, and a function runs in this process: name it as module:function")
    jobs = _workers_of(workers) if named else 1
    fixed = _fixed(overrides or {}, settings or {})
    entries = entries if program is None else {"bench": "" if path is None else os.fspath(path)}
    entries |= {"verify": verify, "explain": observe, "set": fixed, "columns": columns or {}, "work": work}
    if reuse and ranks:
        raise InputError("reuse and ranks: give one of them")
    entries |= {"run": "reuse"} if reuse else {"run": "ranks"} if ranks else {}
    document = _document_of(entries, grid)
    if MACHINE in grid and machine is not None:
        raise InputError(f"machine: the grid varies {MACHINE}; give the machine in one place")
    bench = find_program(program) if program is not None and not named else None
    name = bench.name if path is None and bench is not None else Path(os.fspath(path or "").partition(":")[0]).stem
    base = None if MACHINE in grid else load_machine(machine).document
    plan = plan_document(document, Path(name), RunRequest(), jobs=jobs, bench=bench, base=base)
    make: MakeWorkers = InlineWorker if jobs == 1 else partial(LocalWorkers, jobs)
    place = None if folder is None else Path(folder)
    resume = place is not None and is_unfinished(place, plan)
    return run_planned(plan, place, make, resume=resume, on_progress=on_progress)


def _fixed(overrides: Overrides, settings: Mapping[str, object]) -> Overrides:
    """Return overrides and settings by path. Raises InputError for duplicate names and unknown settings."""
    setting_texts(settings)
    twice = [name for name in settings if name in overrides]
    if twice:
        raise InputError(f"{', '.join(twice)}: in overrides and in settings; give it once")
    return {**overrides, **settings}


def _workers_of(workers: int | None) -> int:
    """Return the number of processes. Raises InputError for a bad number, and for workers that would lack a section."""
    jobs = os.cpu_count() or 1 if workers is None else workers
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise InputError(f"workers: found {show(workers)}, must be a number from 1")
    if jobs > 1 and MAIN in list_modules():
        raise InputError(
            "workers: this program registers a section of runs, which its workers lack; put it into a module that "
            "this program imports, or give workers=1"
        )
    return jobs


def _document_of(entries: Mapping[str, object], grid: object) -> Document:
    """Return a sweep as the document of its file. ``entries``: all entries but the grid."""
    if not isinstance(grid, Mapping) or not grid:
        raise InputError(f"grid: found {show(grid)}, must be a mapping of paths to lists of values, with one at least")
    axes = {str(path): _values_of(values) for path, values in grid.items()}
    return Document("sweep", {**{key: _plain(entry) for key, entry in entries.items()}, "grid": axes}, {})


def _plain(entry: object) -> object:
    """Return an entry as a YAML file would have it: a mapping or a list."""
    if isinstance(entry, Mapping):
        return dict(entry)
    return list(entry) if isinstance(entry, Sequence) and not isinstance(entry, str) else entry


def _values_of(values: object) -> object:
    """Return the values of an axis as a YAML file would have them: NumPy arrays become lists of Python numbers."""
    if isinstance(values, np.ndarray):
        return values.tolist()
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return [_scalar_of(content) for content in values]
    return dict(values) if isinstance(values, Mapping) else values


def _scalar_of(content: object) -> object:
    if isinstance(content, os.PathLike):
        return os.fspath(content)
    return content.item() if isinstance(content, np.generic) else content


def is_unfinished(folder: Path, plan: SweepPlan) -> bool:
    """Return True if the folder has a journal of this sweep, from which the sweep can continue."""
    state = read_state(folder / JOURNAL_FILE)
    return state is not None and state.is_of(plan.identity())


def run_planned(
    plan: SweepPlan,
    folder: Path | None,
    make_workers: MakeWorkers,
    *,
    resume: bool = False,
    force: bool = False,
    on_progress: OnSweepProgress | None = None,
) -> Sweep:
    """Run the missing points of a plan and write the results to its folder, if it has one."""
    with ExitStack() as around:
        temporary = around.enter_context(tempfile.TemporaryDirectory()) if folder is None else None
        place = Path(temporary) if folder is None and temporary is not None else output_folder(folder or Path())
        around.enter_context(folder_lock(place))
        journal = around.enter_context(open_journal(place, plan.identity(), plan.n_points, resume=resume, force=force))
        _run(plan, journal, make_workers, on_progress, write=folder is not None)
        if folder is None:
            return Sweep(plan.name, plan.source, sweep_table(plan, journal.finished))
        table, files = late(*WRITER)(place, plan, journal)
        return Sweep(plan.name, plan.source, table, place, files)


def _run(
    plan: SweepPlan, journal: Journal, make_workers: MakeWorkers, on_progress: OnSweepProgress | None, *, write: bool
) -> None:
    with ExitStack() as around:
        if isinstance(on_progress, ProgressDisplay):
            around.enter_context(on_progress)
        workers = around.enter_context(make_workers())
        if write:
            # Importing the writers of Parquet and pictures is slow, so import them while the workers run.
            threading.Thread(target=late, args=WRITER).start()
        run_sweep(plan, journal, workers, on_progress or (lambda _: None))


def workers_named(executor: str, jobs: int) -> MakeWorkers:
    """Return the workers that ``--executor`` names. Raises InputError for an unknown name, or if dask is missing."""
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


def load_sweep(path: Path) -> Sweep:
    """Read the results of a sweep from its folder or its Parquet file. Raises InputError for anything else."""
    file = path / TABLE_FILE if path.is_dir() else path
    if path.is_dir() and not file.exists():
        state = read_state(path / JOURNAL_FILE)
        why = (
            "it has no sweep results"
            if state is None
            else f"the sweep has no results yet, {state}: continue with --resume"
        )
        raise InputError(f"{path}: {why}; write results with: kernbench sweep SPEC.yaml --out {path}")
    results = read_sweep_table(file)
    return Sweep(file.parent.name, "", results, file.parent)
