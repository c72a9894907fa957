"""A run of ``kernbench run`` under observation: its engine, and what is shown of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from kernbench.ccl.diagnostics import trace_ccl
from kernbench.cli.console import print_json, stdout
from kernbench.cli.run_extras import WRONG, Extras, is_wrong
from kernbench.cli.run_json import run_document
from kernbench.cli.run_tables import RunHead, print_run
from kernbench.cli.session import FAILED, INTERRUPTED
from kernbench.cli.steps import show_steps
from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import InputError, LimitReached, RunError
from kernbench.common.program_line import ErrorPlace
from kernbench.common.values import state
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.library.wall_limit import wall_limit
from kernbench.runtime_api.bench_registry import Bench, BenchFunction
from kernbench.runtime_api.bench_runner import BenchResult, BenchStatus, run_bench, summarise
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import FrontendSettings
from kernbench.runtime_api.launch_report import report_run
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology

if TYPE_CHECKING:
    from kernbench.cli.run_outputs import Outputs


@state
class RunWatch:
    """A run under observation, so that what is finished can be told when it is interrupted.

    ``outputs``: what is wanted beside the report; None for nothing.
    """

    machine: Topology
    bench: Bench
    device: DeviceSelector
    verify: bool
    limits: Limits
    outputs: Outputs | None = None
    trace_ccl: bool = False
    ccl: str | None = None
    data: DataPolicy = field(default_factory=DataPolicy)
    frontends: FrontendSettings = field(default_factory=FrontendSettings)
    engine: GraphEngine | None = None
    context: RuntimeContext[Any] | None = None
    result: BenchResult | None = None
    extras: Extras = field(default_factory=Extras)
    program_end_ns: float = 0.0

    def run(self, params: Iterable[str]) -> None:
        """Run to the end, or until the user interrupts."""
        chosen = self.bench.make_params(params)
        try:
            with show_steps(1) as progress, wall_limit(self.limits.wall_s, self._out_of_time):
                progress.begin(f"simulating {self.bench.name}")
                self.result = run_bench(
                    topology=self.machine,
                    bench_fn=replace(self.bench, function=self._noting_context()),
                    device=self.device,
                    engine_factory=self._make_engine,
                    params=chosen,
                    verify=self.verify,
                    ccl=self.ccl,
                    frontends=self.frontends,
                )
        except KeyboardInterrupt:
            if self.engine is None:
                raise

    def _noting_context(self) -> BenchFunction:
        """The bench's function, which also tells this the context that it runs in."""

        @wraps(self.bench.function)
        def run(torch: RuntimeContext[Any]) -> object:
            self.context = torch
            try:
                return self.bench(torch)
            finally:
                self.program_end_ns = torch.engine.now

        return run

    def _out_of_time(self) -> LimitReached:
        return LimitReached("stopped by --max-wall-s") if self.engine is None else self.engine.out_of_time()

    def _make_engine(self, machine: Topology, _: DeviceSelector) -> GraphEngine:
        observers = () if self.outputs is None else self.outputs.make_observers()
        self.engine = GraphEngine(machine, self.data, observers=observers, limits=self.limits)
        if self.trace_ccl:
            trace_ccl(self.engine)
        return self.engine

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        if self.result is None:
            return INTERRUPTED
        return self.result.exit_code or (FAILED if is_wrong(self.extras) else 0)

    def show(self, *, as_json: bool) -> None:
        """Print what is known of the run."""
        if self.engine is None:
            raise InputError(f"bench {self.bench.name!r} made no engine")
        end_ns = self.result.sim_ns if self.result is not None else self.program_end_ns
        works = None
        if self.outputs is None:
            self.extras = Extras(printed=self.engine.printed())
        else:
            self.extras = self.outputs.extras(self.engine, end_ns)
            works = self.outputs.works
        head = self._head(self.engine)
        links = None if self.result is None else self.result.links
        report = report_run(self.engine, links, works)
        if as_json:
            print_json(run_document(self.machine, head, report, self.extras))
        else:
            print_run(stdout(), self.machine, head, report, self.extras)
        if self.outputs is not None:
            params = " ".join(f"{name}={value}" for name, value in head.params)
            self.outputs.write(self.engine, f"bench {head.bench} {params}".rstrip())

    def _head(self, engine: GraphEngine) -> RunHead:
        result = self.result
        if result is not None:
            return RunHead(
                bench=result.bench,
                device=result.device,
                status=_status(result, self.extras),
                summary=result.summary,
                params=result.params,
                verify=self.verify,
                comparisons=result.comparisons,
                skipped=result.skipped_comparisons,
                cleanup=result.cleanup,
                error=result.error,
                failure=result.completion.error or self._find_error(),
                place=result.place or (ErrorPlace(line=result.program) if is_wrong(self.extras) else None),
                said=result.value if isinstance(result.value, str) else "",
                data=engine.data_report(),
                unmodelled=result.unmodelled,
            )
        context = self.context
        testing = context.testing if context is not None else None
        return RunHead(
            bench=self.bench.name,
            device=str(self.device),
            status="INTERRUPTED",
            summary=summarise(context.traces if context is not None else (), self.program_end_ns),
            params=context.params if context is not None else self.bench.params(),
            verify=self.verify,
            comparisons=testing.comparisons if testing is not None else (),
            skipped=testing.skipped if testing is not None else 0,
            data=engine.data_report(),
        )

    def _find_error(self) -> RunError | None:
        wrong = [finding for finding in self.extras.findings or () if finding.kind in WRONG]
        return RunError(f"the sanitizer has found: {wrong[0]}") if wrong else None


def _status(result: BenchResult, extras: Extras) -> str:
    if result.status is BenchStatus.OK:
        return BenchStatus.FAILED.value if is_wrong(extras) else "OK"
    return result.status.value
