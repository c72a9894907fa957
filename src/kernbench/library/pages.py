"""Pages for the browser, made anew whenever the files of a machine or a program change."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernbench.common.data_policy import UNSAID, DataOptions
from kernbench.common.errors import BenchError, InputError
from kernbench.common.files import plain_document
from kernbench.common.program_line import place_document
from kernbench.common.units import format_size
from kernbench.common.values import value
from kernbench.library.machines import compile_machine
from kernbench.library.progress import OnProgress
from kernbench.library.running import PARAMS_PREFIX, RunRequest, simulate
from kernbench.library.runs import LiveRun, Run, verification_document
from kernbench.runtime_api.bench_registry import load_bench
from kernbench.topology.builder import topology_file
from kernbench.web.activity import ObservedRun
from kernbench.web.page import Page, make_page

_PYTHON = ".py"


@value(repr=False, eq=False)
class MadePage:
    """A page, and the run that it shows; None: it shows none."""

    page: Page
    run: Run | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what ``kernbench web --json`` prints below the places of the page."""
        run, nbytes = self.run, {"nbytes": self.page.nbytes}
        if run is None:
            absent = ("verdict", "bench", "status", "error", "place", "sim_ns", "verification", "data")
            return {**nbytes, **dict.fromkeys(absent)}
        return plain_document(
            {
                **nbytes,
                "verdict": run.verdict.sentence,
                "bench": run.bench,
                "status": run.status,
                "error": None if run.error is None else str(run.error),
                "place": place_document(run.place),
                "sim_ns": run.latency_ns,
                "verification": verification_document(run.checks, run.skipped),
                "data": asdict(run.data),
            }
        )

    def __repr__(self) -> str:
        size = f"page of {self.page.title}, {format_size(self.page.nbytes)}"
        return size if self.run is None else f"{self.run.verdict.sentence}\n{size}"


@value
class PageRequest:
    """A machine, and a bench that runs on it; ``overrides`` are ``path=value`` texts, as ``--set`` takes them.

    ``ccl``: the file that configures collectives; None: ./ccl.yaml, else the packaged one. ``values``: what the run
    keeps to compute values; ``verify``: comparisons are evaluated.
    """

    bench: str | None = None
    topology: str | None = None
    overrides: tuple[str, ...] = ()
    device: str = "all"
    ccl: str | None = None
    values: DataOptions = UNSAID
    verify: bool = False

    @property
    def files(self) -> tuple[Path, ...]:
        """The topology, and the bench's file and that of collectives when the user named them."""
        before, python, _ = (self.bench or "").rpartition(_PYTHON)
        named = [before + python] if python else []
        named += [] if self.ccl is None else [self.ccl]
        return (Path(topology_file(self.topology)), *map(Path, named))

    def make(self, on_progress: OnProgress | None = None) -> MadePage:
        """Run, and make the page. InputError for a machine, bench, device, parameters or collectives of no use."""
        params = tuple(text for text in self.overrides if text.startswith(PARAMS_PREFIX))
        machine = compile_machine(self.topology, [text for text in self.overrides if text not in params])
        if self.bench is None:
            self._refuse_options(params)
            return MadePage(make_page(machine.topology))
        bench = load_bench(self.bench)
        if bench.evaluation:
            raise BenchError(
                f"bench {bench.name!r} builds machines of its own, so a page cannot show it; use kernbench run"
            )
        run = simulate(
            RunRequest(
                bench=bench,
                machine=machine,
                params=params,
                device=self.device,
                verify=self.verify,
                data=self.values.policy(verify=self.verify, bench=bench.data),
                ccl=self.ccl,
                queues=False,
            ),
            on_progress,
        )
        if run.status == "INTERRUPTED":
            raise KeyboardInterrupt
        assert run.live is not None, "a run that has just ended has its engine"
        return MadePage(page_of(run.live), run)

    def content(self) -> str:
        """Run, and return the page."""
        return self.make().page.content

    def _refuse_options(self, params: tuple[str, ...]) -> None:
        """Raise InputError for options that say something about a run."""
        given = [f"--set {text}" for text in params]
        given += [] if self.ccl is None else [f"--ccl {os.fspath(self.ccl)}"]
        if given:
            raise InputError(f"{given[0]}: there is no bench; say which with --bench NAME")
        if self.verify or self.values != UNSAID:
            raise InputError("there is no bench, so no value to say anything of; say which with --bench NAME")


def page_of(live: LiveRun) -> Page:
    """Return the page of a run. InputError for one that was interrupted or that nobody observed."""
    if live.result is None or live.log is None or live.explanation is None:
        raise InputError("page: the run was interrupted: run again")
    return make_page(live.engine.topology, ObservedRun(live.result, live.engine, live.log, live.explanation))
