"""Run points of a grid on one machine in a worker. Each point becomes a row, which depends on the arguments only.

Workers import this module, so it imports only the modules of a run.
"""

from __future__ import annotations

import importlib
import io
import json
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from kernbench.common import __version__
from kernbench.common.config import Document, apply_overrides
from kernbench.common.errors import InputError, RunError, exit_is_failure
from kernbench.common.values import value
from kernbench.evaluation.sweep_measure import (
    FAILED,
    INVALID,
    PointRow,
    flat_configuration,
)
from kernbench.result.run_columns import merge_own_parts
from kernbench.result.run_sections import error_text
from kernbench.result.sections import RunOutcome
from kernbench.result.simulation import simulate
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.overrides import OverrideTexts
from kernbench.runtime_api.prepared_run import load_program, prepare_run
from kernbench.runtime_api.run_request import RunRequest
from kernbench.topology.builder import Topology, compile_topology


@value(kw_only=True)
class SweepJob:
    """The common part of all points of a sweep. ``configuration``: the resolved base machine by path.

    ``request``: the request of each point, without its changes. ``bench``: a function, which runs in this process only;
    None: workers load the program of the request. ``modules``: modules that add sections to runs.
    """

    request: RunRequest
    base: Document
    configuration: Mapping[str, Any]
    bench: Bench | None = None
    modules: tuple[str, ...] = ()
    version: str = __version__


@value
class PointJob:
    """One point: its number, and its changes of the base machine, of bench parameters and of frontend settings."""

    index: int
    changes: OverrideTexts


@value
class PointChunk:
    """Points that are sent together. A worker compiles a machine once for consecutive points that share it."""

    job: SweepJob
    points: tuple[PointJob, ...]


@value
class PointOutcome:
    """A finished point: its row without its grid values, its run time in seconds, and its processor time.

    The processor time includes the compilation of the point's machine, and does not depend on other load. It is not
    stored.
    """

    index: int
    row: PointRow
    wall_s: float
    cpu_s: float = 0.0


def run_chunk(chunk: PointChunk) -> list[PointOutcome]:
    """Run all points of a chunk. The row of a point contains its error, if any.

    Raises RunError on a worker of another version, because its rows are not comparable.
    """
    if chunk.job.version != __version__:
        raise RunError(f"a worker has kernbench {__version__}, the sweep was started by {chunk.job.version}")
    for module in chunk.job.modules:
        importlib.import_module(module)
    bench = chunk.job.bench or load_program(chunk.job.request.program)
    # A program may print, but only the document of --json may appear on stdout.
    with redirect_stdout(io.StringIO()):
        return [
            outcome
            for machine, points in groupby(chunk.points, key=attrgetter("changes.machine"))
            for outcome in _run_on(chunk.job, machine, bench, points)
        ]


def _run_on(
    job: SweepJob, changes: tuple[str, ...], bench: Bench, points: Iterable[PointJob]
) -> Iterator[PointOutcome]:
    """Run ``points`` on the base machine with ``changes``."""
    cpu = time.thread_time()
    try:
        with exit_is_failure(), warnings.catch_warnings():
            # Only the base machine causes warnings: the losses of points are results of the sweep.
            warnings.simplefilter("ignore")
            machine = compile_topology(apply_overrides(job.base, changes))
    except Exception as error:
        yield from (PointOutcome(point.index, _row_without_figures(error), 0.0) for point in points)
        return
    for point in points:
        wall = time.perf_counter()
        row = _row(job, machine, bench, point)
        done = time.thread_time()
        yield PointOutcome(point.index, row, time.perf_counter() - wall, done - cpu)
        cpu = done


def _row(job: SweepJob, machine: Topology, bench: Bench, point: PointJob) -> PointRow:
    try:
        with exit_is_failure():  # sys.exit() in a program ends its point, not the worker
            return _run(job, machine, bench, point) | _machine(job, machine)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # any exception of a program, such as pytest.fail(), ends its point only
        return _row_without_figures(error)


def _row_without_figures(error: BaseException) -> PointRow:
    """Return the row of a point without results: ``invalid`` after an InputError, else ``failed``."""
    if isinstance(error, InputError):
        return {"status": INVALID, "error": str(error)}
    return {"status": FAILED, "error": error_text(error)}


def _run(job: SweepJob, machine: Topology, bench: Bench, point: PointJob) -> PointRow:
    program = replace(job.request.program, params=point.changes.bench, settings=point.changes.frontends)
    prepared = prepare_run(replace(job.request, program=program), bench=bench, machine=machine)
    finished = simulate(replace(prepared, queues=False))
    if finished.is_interrupted:
        raise KeyboardInterrupt
    return merge_own_parts(RunOutcome(finished).to_row())


def _machine(job: SweepJob, machine: Topology) -> PointRow:
    """Return the digest of a point's machine, and its differences from the base machine."""
    configuration = flat_configuration(machine.configuration)
    base = job.configuration
    changed = {
        path: configuration.get(path) for path in sorted({*configuration, *base}) if _differs(configuration, base, path)
    }
    return {"machine": machine.digest, "changed": json.dumps(changed, sort_keys=True)}


def _differs(one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> bool:
    return path not in one or path not in other or one[path] != other[path]
