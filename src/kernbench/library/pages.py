"""Pages for the browser, rebuilt whenever the files of a machine or a program change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernbench.common.errors import BenchError, InputError
from kernbench.common.figures import to_plain
from kernbench.common.files import plain_document
from kernbench.common.ids import pe_name
from kernbench.common.program_line import ErrorPlace
from kernbench.common.units import format_size, ns_to_ps
from kernbench.common.values import value
from kernbench.library.progress import OnProgress
from kernbench.library.running import simulate
from kernbench.library.runs import Run
from kernbench.observe.guard import guarded
from kernbench.observe.statistics import link_traffic
from kernbench.result import run_sections as of
from kernbench.runtime_api.overrides import split_overrides
from kernbench.runtime_api.prepared_run import load_program, prepare_run
from kernbench.runtime_api.run_request import DataOptions, RunRequest
from kernbench.topology.builder import resolve_topology, topology_file
from kernbench.web.activity import ObservedRun
from kernbench.web.page import Page, make_page

_PYTHON = ".py"


@value(repr=False, eq=False)
class MadePage:
    """A page and the run that it shows, or None for a page without a run."""

    page: Page
    run: Run | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the part of the ``kernbench web --json`` document that describes the page."""
        run, nbytes = self.run, {"nbytes": self.page.nbytes}
        if run is None:
            absent = ("verdict", "bench", "status", "error", "place", "sim_ns", "load", "verification", "data")
            return {**nbytes, **dict.fromkeys(absent)}
        return plain_document(
            {
                **nbytes,
                "verdict": run.verdict.sentence,
                "bench": run.bench,
                "status": run.status,
                "error": None if run.error is None else str(run.error),
                "place": to_plain(run.place),
                "sim_ns": run.latency_ns,
                "load": to_plain(run.load),
                "verification": to_plain(run.outcome[of.VERIFICATION]),
                "data": to_plain(run.data),
            }
        )

    def __repr__(self) -> str:
        size = f"page of {self.page.title}, {format_size(self.page.nbytes)}"
        return size if self.run is None else f"{self.run.verdict.sentence}\n{size}"


@value
class PageRequest:
    """The request for a page: a machine, and a bench or a script that runs on it."""

    request: RunRequest

    @property
    def files(self) -> tuple[Path, ...]:
        """The file of the machine, and the files of the program and of collectives if the user named them."""
        program, machine = self.request.program, self.request.machine
        before, python, _ = (program.bench or "").rpartition(_PYTHON)
        paths = [before + python] if python else []
        paths += [] if program.script is None else [program.script]
        paths += [os.fspath(machine.ccl)] if isinstance(machine.ccl, str | os.PathLike) else []
        return (Path(topology_file(machine.topology)), *map(Path, paths))

    def make(self, on_progress: OnProgress | None = None) -> MadePage:
        """Run the program and make the page.

        Raises InputError for an invalid machine, program, device, setting or ccl file.
        """
        program = self.request.program
        if program.bench is None and program.script is None:
            changes = split_overrides(self.request.override_texts)
            machine = resolve_topology(self.request.machine.topology, changes.machine)
            self._refuse_options((*changes.bench, *changes.frontends))
            return MadePage(make_page(machine))
        bench = load_program(program)
        if bench.evaluation:
            raise BenchError(
                f"bench {bench.name!r} builds machines of its own, so a page cannot show it; use kernbench run"
            )
        run = simulate(replace(prepare_run(self.request, bench=bench), queues=False), on_progress)
        if run.unexplained is None and (run.live is None or run.live.explanation is None):
            raise KeyboardInterrupt  # Ctrl-C during the explanation
        return MadePage(page_of(run), run)

    def content(self) -> str:
        """Run the program, and return the page as text. Raises KeyboardInterrupt for an interrupted run."""
        page = self.make()
        if page.run is not None and page.run.status == "INTERRUPTED":
            raise KeyboardInterrupt
        return page.page.content

    def _refuse_options(self, changes: tuple[str, ...]) -> None:
        """Raise InputError for run options without a program. ``changes``: changed parameters and settings."""
        limits, ccl = self.request.limits, self.request.machine.ccl
        refused = [f"--set {text}" for text in changes]
        refused += [] if ccl is None else [f"--ccl {ccl}"]
        refused += [] if limits.max_sim_ns is None else [f"--max-sim-ns {limits.max_sim_ns:g}"]
        refused += [] if limits.max_wall_s is None else [f"--max-wall-s {limits.max_wall_s:g}"]
        say_which = "name one with --bench NAME or --script FILE"
        if refused:
            raise InputError(f"{refused[0]}: there is no program; {say_which}")
        if self.request.data != DataOptions():
            raise InputError(f"there is no program, so options about values have no effect; {say_which}")


def page_of(run: Run) -> Page:
    """Return the page of a run, also of an unfinished one.

    Raises InputError if the explanation of the run was interrupted, and ExplanationError if the explanation or the page
    failed.
    """
    observed = observed_run(run)
    with guarded("page"):
        return make_page(observed.engine.topology, observed)


def observed_run(run: Run) -> ObservedRun:
    """Return the data that the page of a run shows. Raises the errors of ``page_of``."""
    live = run.live
    if run.unexplained is not None:
        raise run.unexplained.as_error()
    if live is None or live.log is None or live.explanation is None:
        raise InputError("page: the explanation of the run was interrupted: run again")
    begin_ns = 0.0 if run.load is None else run.load.left_out_ns
    return ObservedRun(
        bench=run.bench,
        params=run.params,
        device=run.device,
        status=run.status,
        begin_ps=ns_to_ps(begin_ns),
        end_ps=ns_to_ps(begin_ns + run.latency_ns),
        links=link_traffic(live.engine.machine) if live.result is None else live.result.links,
        engine=live.engine,
        log=live.log,
        explanation=live.explanation,
        figures=run.outcome.figures(),
        notice=_describe_failure(run),
    )


def _describe_failure(run: Run) -> str:
    """Describe the failure of a run and its place; return an empty text for a successful run."""
    if run.ok:
        return ""
    why = "" if run.error is None or run.status == "NO_REQUESTS" else f": {run.error}"
    places = [line for line in _place_lines(run.place) if line.removeprefix("at ") not in why]
    return "\n".join([f"{run.bench}: {run.status}{why}", *places])


def _place_lines(place: ErrorPlace | None) -> Iterator[str]:
    if place is None:
        return
    if place.pe is not None:
        yield f"on {pe_name(place.pe)}" + (f", kernel {place.kernel!r}" if place.kernel else "")
    if place.line is not None:
        yield f"at {Path(place.line.file).name}:{place.line.line}"
