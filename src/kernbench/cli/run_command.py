"""``kernbench run``: its options, and what they ask for."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import rich_click as click

import kernbench.benches
from kernbench.ccl.loading import check_ccl
from kernbench.cli.completion import complete_bench, complete_override
from kernbench.cli.failures import report_program_error
from kernbench.cli.options import (
    ccl_option,
    data_options,
    debug_option,
    json_option,
    topology_option,
    verbose_option,
    verify_option,
)
from kernbench.cli.run_watch import RunWatch
from kernbench.cli.session import Session
from kernbench.common.data_policy import UNSAID, DataOptions
from kernbench.common.late import late
from kernbench.engine.requests import Limits
from kernbench.runtime_api.bench_registry import Bench, load_bench, load_script
from kernbench.runtime_api.frontends import PREFIXES, frontend_settings
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.topology.builder import resolve_topology

if TYPE_CHECKING:
    from kernbench.cli.run_evaluation import EvaluationRun
    from kernbench.cli.run_outputs import Outputs

EVALUATION = "kernbench.cli.run_evaluation"
OUTPUTS = "kernbench.cli.run_outputs"
# Importing the package is what makes its benches known.
BENCHES = kernbench.benches.__name__
BENCH_PREFIX = "bench."


class Limit(click.FloatRange):
    """A limit of a run: a number from 0, or inf for no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        limit = super().convert(value, param, ctx)
        if math.isnan(limit):
            self.fail(f"{value!r} is no number.", param, ctx)
        return limit


LIMIT = Limit(min=0)
SCRIPT_WALL_S = 600.0
"""A program that was written for a GPU may have sizes that take days here: unless the user says so, it does not try."""


@click.command(name="run")
@click.option("--bench", "name", metavar="NAME|FILE.py[:FUNCTION]", shell_complete=complete_bench, help="What to run.")
@click.option("--script", metavar="FILE.py", help="Or a whole file as the program; what follows -- is for it.")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@click.option("--device", default="all", show_default=True, metavar="sip:N|all", help="The SIPs it may use.")
@verify_option
@data_options
@click.option("--as-cuda", is_flag=True, help='In a script the device "cuda" of PyTorch is the machine.')
@click.option("--points", type=click.IntRange(min=1), metavar="N", help="Of a benchmark of Triton the first N values.")
@click.option("--max-sim-ns", type=LIMIT, metavar="NS", help="Stop beyond this simulated time.")
@click.option("--max-wall-s", type=LIMIT, metavar="S", help="Stop after this many seconds.  [default: 600 of a script]")
@click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
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
@click.option("--advise", is_flag=True, help="Simulate what each resource that holds the run up gives, 10 % faster.")
@click.option(
    "--no-observe",
    "unobserved",
    is_flag=True,
    help="A sixth faster, and no verdict: nothing is kept of what waits for what.",
)
@click.option("--roofline", metavar="FILE.png", help="Draw the launches under the roofs of the machine.")
@click.option("--sanitize", is_flag=True, help="Look for bytes read before they are written, races, full scratch.")
@ccl_option
@click.option("--trace-ccl", is_flag=True, help="Print a line for every message sent and received between PEs.")
@click.option("--out", metavar="FOLDER", help="Where an evaluation writes.  [default: results/NAME]")
@click.option("--reference", metavar="FILE.csv", help="Size and latency of collectives to compare an evaluation with.")
@click.option("--render-only", is_flag=True, help="Draw the figures of an evaluation again, from what it wrote.")
@topology_option
@json_option
@verbose_option
@debug_option
@click.pass_obj
def command(
    session: Session,
    name: str | None,
    script: str | None,
    arguments: tuple[str, ...],
    device: str,
    verify: bool,
    values: DataOptions,
    as_cuda: bool,
    points: int | None,
    max_sim_ns: float | None,
    max_wall_s: float | None,
    overrides: tuple[str, ...],
    op_log: str | None,
    trace: str | None,
    trace_filter: str | None,
    explain: bool,
    advise: bool,
    unobserved: bool,
    roofline: str | None,
    sanitize: bool,
    ccl: str | None,
    trace_ccl: bool,
    out: str | None,
    reference: str | None,
    render_only: bool,
    topology: str | None,
    as_json: bool,
) -> int:
    """Run a bench on a simulated machine: latency, engines, traffic, and whether its numbers are right."""
    bench = _program(name, script, arguments)
    if as_cuda and script is None:
        raise click.UsageError("--as-cuda is for --script.")
    params = [text for text in overrides if text.startswith(BENCH_PREFIX)]
    settings = [text for text in overrides if text.startswith(PREFIXES)]
    flags = ["torch.as_cuda=true"] * as_cuda + [f"triton.points={points}"] * (points is not None)
    frontends = frontend_settings([*settings, *flags])
    machine = resolve_topology(topology, [text for text in overrides if text not in (*params, *settings)])
    selector = DeviceSelector(device)
    resolve_device(selector, machine.spec)
    given = {"out": out, "reference": reference, "ccl": ccl if bench.evaluation else None}
    params += [f"{BENCH_PREFIX}{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    params += [f"{BENCH_PREFIX}render_only=true"] if render_only else []
    if bench.evaluation:
        files: dict[str, object] = {
            "--op-log": op_log,
            "--trace": trace,
            "--trace-filter": trace_filter,
            "--roofline": roofline,
        }
        stops = {"--max-sim-ns": max_sim_ns, "--max-wall-s": max_wall_s}
        switches = {
            "--explain": explain,
            "--advise": advise,
            "--no-observe": unobserved,
            "--sanitize": sanitize,
            "--trace-ccl": trace_ccl,
            "--data": values != UNSAID,
        }
        late(EVALUATION, "refuse_options")(bench, files | stops | switches)
        run: EvaluationRun = late(EVALUATION, "EvaluationRun")(bench, machine, selector)
        return run.run(params, session, as_json=as_json)
    if ccl is not None:
        check_ccl(ccl)
    if unobserved and (explain or advise or trace is not None or roofline is not None):
        raise click.UsageError("--no-observe keeps nothing that --explain, --advise, --trace or --roofline could show.")
    outputs: Outputs = late(OUTPUTS, "wanted_outputs")(
        machine, op_log, trace, trace_filter, roofline, explain=explain, sanitize=sanitize, observe=not unobserved
    )
    if script is not None and max_wall_s is None:
        max_wall_s = SCRIPT_WALL_S
    limits = Limits(_finite(max_sim_ns), _finite(max_wall_s))
    policy = values.policy(verify=verify, sanitize=sanitize, bench=bench.data)
    watch = RunWatch(machine, bench, selector, verify, limits, outputs, trace_ccl, ccl, policy, frontends, advise)
    watch.run(params)
    watch.show(as_json=as_json)
    if watch.result is not None and watch.result.error is not None:
        report_program_error(watch.result.error, session)
    return watch.exit_code


def _program(name: str | None, script: str | None, arguments: tuple[str, ...]) -> Bench:
    """Find the bench or the script to run."""
    if name is not None and script is None:
        if arguments:
            raise click.UsageError(f"Got unexpected extra arguments ({' '.join(arguments)}): they are for --script.")
        return load_bench(name)
    if script is None:
        raise click.UsageError("Missing option '--bench' or '--script'.")
    if name is not None:
        raise click.UsageError("--bench and --script: one program is run.")
    return load_script(script, arguments)


def _finite(limit: float | None) -> float | None:
    return None if limit is None or math.isinf(limit) else limit
