"""``kernbench run``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import rich_click as click

import kernbench.benches
from kernbench.cli.console import print_json, stdout, steps
from kernbench.cli.failures import INTERRUPTED, Session, report_program_error
from kernbench.cli.options import debug_option, json_option, topology_option
from kernbench.cli.run_engine import Limits, RunEngine
from kernbench.cli.run_json import run_document
from kernbench.cli.run_outputs import Outputs, wanted_outputs
from kernbench.cli.run_tables import RunHead, print_run
from kernbench.common.errors import InputError
from kernbench.runtime_api.bench_loader import load_bench
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.bench_result import BenchStatus, summarise
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launch_report import report_run
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.sim_engine.trace_log import TraceLog
from kernbench.topology.builder import Topology, resolve_topology

# Importing the package is what makes its benches known.
BENCHES = kernbench.benches.__name__
BENCH_PREFIX = "bench."


@click.command(name="run")
@click.option("--bench", "name", metavar="NAME|FILE.py[:FUNCTION]", required=True, help="What to run.")
@click.option("--device", default="all", show_default=True, metavar="sip:N|all", help="The SIPs it may use.")
@click.option("--verify-data", "verify", is_flag=True, help="Compute numbers too, and check them.")
@click.option("--max-sim-ns", type=click.FloatRange(min=0), metavar="NS", help="Stop beyond this simulated time.")
@click.option("--max-wall-s", type=click.FloatRange(min=0), metavar="S", help="Stop after this many seconds.")
@click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    help="Change a value of the machine (cube.hbm.slices=16) or a parameter of the bench (bench.m=512).",
)
@click.option("--op-log", metavar="FILE", help="Keep the op-log: FILE.parquet or FILE.jsonl.")
@click.option("--trace", metavar="FILE.json", help="Write a timeline for ui.perfetto.dev or chrome://tracing.")
@click.option(
    "--trace-filter",
    metavar="GLOBS",
    help="What the timeline shows: parts and kinds of track, such as sip0.cube0.*,!links.",
)
@click.option("--explain", is_flag=True, help="Say where the time went: critical path, source lines, roofline.")
@topology_option
@json_option
@debug_option
@click.pass_obj
def command(
    session: Session,
    name: str,
    device: str,
    verify: bool,
    max_sim_ns: float | None,
    max_wall_s: float | None,
    overrides: tuple[str, ...],
    op_log: str | None,
    trace: str | None,
    trace_filter: str | None,
    explain: bool,
    topology: str | None,
    as_json: bool,
) -> int:
    """Run a bench on a simulated machine: latency, engines, traffic, and whether its numbers are right."""
    bench = load_bench(name)
    params = [text for text in overrides if text.startswith(BENCH_PREFIX)]
    machine = resolve_topology(topology, [text for text in overrides if text not in params])
    selector = DeviceSelector(device)
    resolve_device(selector, machine.spec)
    outputs = wanted_outputs(machine, op_log, trace, trace_filter, explain)
    watch = _Watch(machine, bench, selector, verify, Limits(max_sim_ns, max_wall_s), outputs)
    watch.run(params)
    watch.show(as_json=as_json)
    if watch.result is not None and watch.result.error is not None:
        report_program_error(watch.result.error, session)
    return watch.exit_code


@dataclass(slots=True)
class _Watch:
    """A run under observation, so that what is finished can be told when it is interrupted."""

    machine: Topology
    bench: Bench
    device: DeviceSelector
    verify: bool
    limits: Limits
    outputs: Outputs
    engine: RunEngine | None = None
    log: TraceLog | None = None
    context: RuntimeContext[Any] | None = None
    result: BenchResult | None = None

    def run(self, params: Iterable[str]) -> None:
        """Run to the end, or until the user interrupts."""
        chosen = self.bench.make_params(params)
        try:
            with steps(1) as progress:
                progress.begin(f"simulating {self.bench.name}")
                self.result = run_bench(
                    topology=self.machine,
                    bench_fn=replace(self.bench, function=self._program),
                    device=self.device,
                    engine_factory=self._make_engine,
                    params=chosen,
                    verify=self.verify,
                )
        except KeyboardInterrupt:
            if self.engine is None:
                raise

    def _program(self, torch: RuntimeContext[Any]) -> object:
        self.context = torch
        return self.bench(torch)

    def _make_engine(self, machine: Topology, _: DeviceSelector) -> RunEngine:
        self.engine = RunEngine(machine, self.verify, self.limits)
        self.log = self.outputs.observe(self.engine)
        return self.engine

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return INTERRUPTED if self.result is None else self.result.exit_code

    def show(self, *, as_json: bool) -> None:
        """Print what is known of the run."""
        if self.engine is None:
            raise InputError(f"bench {self.bench.name!r} made no engine")
        head = self._head(self.engine)
        report = report_run(self.engine, self.engine.handles)
        found = self.outputs.explanation(self.engine, self.log, head.summary.sim_ns)
        if as_json:
            print_json(run_document(self.machine, head, report, found))
        else:
            print_run(stdout(), self.machine, head, report, found)
        self.outputs.write(self.engine, self.log)

    def _head(self, engine: RunEngine) -> RunHead:
        result = self.result
        if result is not None:
            return RunHead(
                bench=result.bench,
                device=result.device,
                status=_status(result),
                summary=result.summary,
                params=result.params,
                verify=self.verify,
                comparisons=result.comparisons,
                skipped=result.skipped_comparisons,
                cleanup=result.cleanup,
                error=result.error,
            )
        context = self.context
        testing = context.testing if context is not None else None
        return RunHead(
            bench=self.bench.name,
            device=str(self.device),
            status="INTERRUPTED",
            summary=summarise(context.traces if context is not None else (), engine.now),
            params=context.params if context is not None else self.bench.params(),
            verify=self.verify,
            comparisons=testing.comparisons if testing is not None else (),
            skipped=testing.skipped if testing is not None else 0,
        )


def _status(result: BenchResult) -> str:
    return "OK" if result.status is BenchStatus.OK else str(result.status.value)
