"""A run of ``kernbench run`` under observation: its engine, what is shown of it, and the files that it leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from functools import wraps
from pathlib import Path
from typing import Any

from kernbench import __version__
from kernbench.ccl.diagnostics import trace_ccl
from kernbench.cli.console import print_json, say, stdout
from kernbench.cli.failures import FAILED, INTERRUPTED
from kernbench.cli.run_extras import WRONG, Extras, is_wrong
from kernbench.cli.run_json import run_document
from kernbench.cli.run_tables import RunHead, print_run
from kernbench.cli.steps import show_steps
from kernbench.cli.wall_limit import wall_limit
from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import InputError, LimitReached, RunError
from kernbench.common.files import replacing, writable
from kernbench.common.program_line import ErrorPlace
from kernbench.common.values import state, value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.observe.op_log_io import checked_path, write_op_log
from kernbench.observe.sanitizer import Sanitizer
from kernbench.observe.trace import make_trace
from kernbench.observe.trace_filter import EVERYTHING, LINKS, TraceFilter, parse_filter
from kernbench.observe.trace_io import write_trace
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.bench_registry import Bench, BenchFunction
from kernbench.runtime_api.bench_runner import BenchResult, BenchStatus, run_bench, summarise
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import FrontendSettings
from kernbench.runtime_api.launch_report import report_run
from kernbench.runtime_api.run_explanation import explain_run
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology


@value(kw_only=True)
class Outputs:
    """What is wanted beside the report."""

    op_log: Path | None = None
    trace: Path | None = None
    keep: TraceFilter = EVERYTHING
    explain: bool = False
    sanitize: bool = False
    trace_ccl: bool = False

    def sanitizer(self) -> Sanitizer | None:
        """One, if it is wanted."""
        return Sanitizer() if self.sanitize else None

    def trace_log(self) -> TraceLog | None:
        """What observes as much as something wanted needs."""
        if self.trace is None and not self.explain:
            return None
        links = self.trace is not None and self.keep.may_keep(LINKS)
        return TraceLog(links=links, watch_queues=self.trace is not None)

    def extras(self, engine: GraphEngine, log: TraceLog | None, sanitizer: Sanitizer | None, end_ns: float) -> Extras:
        """What the report has beside its figures; the run ended at ``end_ns``, before it was cleaned up."""
        return Extras(
            explanation=explain_run(log, engine.handles, 0.0, end_ns) if self.explain and log is not None else None,
            printed=engine.printed(),
            findings=None if sanitizer is None else sanitizer.findings(engine),
        )

    def write(self, engine: GraphEngine, log: TraceLog | None, what: str) -> None:
        """Write the files, and beside each the machine that it was made on; ``what`` was run."""
        if self.op_log is not None:
            write_op_log(engine.op_log, self.op_log)
            _wrote(self.op_log, engine.topology, what)
        if self.trace is not None and log is not None:
            write_trace(make_trace(log, engine.handles, self.keep), self.trace)
            _wrote(self.trace, engine.topology, what)


def wanted_outputs(
    machine: Topology,
    op_log: str | None,
    trace: str | None,
    keep: str | None,
    *,
    explain: bool,
    sanitize: bool,
    trace_ccl: bool,
) -> Outputs:
    """The outputs that options ask for. InputError for a file that cannot be written and for a filter without sense."""
    if keep is not None and trace is None:
        raise InputError("--trace-filter says what --trace FILE shows; give both")
    return Outputs(
        op_log=None if op_log is None else checked_path(op_log),
        trace=None if trace is None else writable(trace),
        keep=EVERYTHING if keep is None else parse_filter(keep, machine.topology_obj.nodes),
        explain=explain,
        sanitize=sanitize,
        trace_ccl=trace_ccl,
    )


def _wrote(path: Path, machine: Topology, what: str) -> None:
    """Say so, and keep the configuration: a file that ``--topology`` takes."""
    config = path.with_name(f"{path.name}.config.yaml")
    with replacing(config) as temporary:
        temporary.write_text(f"# kernbench {__version__}: {what}\n{machine.resolved_yaml()}", encoding="utf-8")
    say(f"wrote {path}, and {config.name} with the machine it was made on")


@state
class Watch:
    """A run under observation, so that what is finished can be told when it is interrupted."""

    machine: Topology
    bench: Bench
    device: DeviceSelector
    verify: bool
    limits: Limits
    outputs: Outputs
    ccl: str | None = None
    data: DataPolicy = field(default_factory=DataPolicy)
    frontends: FrontendSettings = field(default_factory=FrontendSettings)
    engine: GraphEngine | None = None
    log: TraceLog | None = None
    sanitizer: Sanitizer | None = None
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
        self.sanitizer, self.log = self.outputs.sanitizer(), self.outputs.trace_log()
        observers = [each for each in (self.sanitizer, self.log) if each is not None]
        self.engine = GraphEngine(machine, self.data, observers=observers, limits=self.limits)
        if self.outputs.trace_ccl:
            trace_ccl(self.engine)
        return self.engine

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        if self.result is None:
            return INTERRUPTED
        return self.result.exit_code or (FAILED if is_wrong(self.extras) else 0)

    def show(self, *, as_json: bool) -> None:
        """Print what is known of the run."""
        if self.engine is None:
            raise InputError(f"bench {self.bench.name!r} made no engine")
        end_ns = self.result.sim_ns if self.result is not None else self.program_end_ns
        self.extras = self.outputs.extras(self.engine, self.log, self.sanitizer, end_ns)
        head = self._head(self.engine)
        links = None if self.result is None else self.result.links
        report = report_run(
            self.engine, links, self.log.seen.works if self.outputs.explain and self.log is not None else None
        )
        if as_json:
            print_json(run_document(self.machine, head, report, self.extras))
        else:
            print_run(stdout(), self.machine, head, report, self.extras)
        params = " ".join(f"{name}={value}" for name, value in head.params)
        self.outputs.write(self.engine, self.log, f"bench {head.bench} {params}".rstrip())

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
                failure=result.completion.error or self._found_wrong(),
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

    def _found_wrong(self) -> RunError | None:
        wrong = [finding for finding in self.extras.findings or () if finding.kind in WRONG]
        return RunError(f"the sanitizer has found: {wrong[0]}") if wrong else None


def _status(result: BenchResult, extras: Extras) -> str:
    if result.status is BenchStatus.OK:
        return BenchStatus.FAILED.value if is_wrong(extras) else "OK"
    return result.status.value
