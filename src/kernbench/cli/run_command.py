"""``kernbench run``: its options, and what they ask for."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import rich_click as click

from kernbench.cli.completion import complete_bench
from kernbench.cli.console import print_json, say, show_progress, stdout
from kernbench.cli.failures import report_program_error
from kernbench.cli.options import (
    bench_set_option,
    ccl_option,
    data_options,
    device_option,
    observe_option,
    output_options,
    topology_option,
    verbose_option,
    verify_option,
)
from kernbench.cli.run_tables import print_run
from kernbench.cli.session import Session
from kernbench.common.data_policy import UNSAID, DataOptions
from kernbench.common.late import late
from kernbench.common.values import value
from kernbench.engine.requests import Limits
from kernbench.library.machines import CompiledMachine, compile_machine
from kernbench.library.running import PARAMS_PREFIX, RunRequest, simulate
from kernbench.runtime_api.bench_registry import Bench, load_bench, load_script
from kernbench.runtime_api.frontends import PREFIXES, frontend_settings

if TYPE_CHECKING:
    from kernbench.cli.run_outputs import RunFiles

EVALUATION = "kernbench.cli.run_evaluation"
FILES = "kernbench.cli.run_outputs"


class Limit(click.FloatRange):
    """A limit of a run: a number from 0, or inf for no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        limit = super().convert(value, param, ctx)
        if math.isnan(limit):
            self.fail(f"{value!r} is no number.", param, ctx)
        return limit


LIMIT = Limit(min=0)
SCRIPT_WALL_S = 600.0
"""A program that was written for a GPU may have sizes that take days here: unless the user says so, it does not try."""


@value(kw_only=True)
class RunOptions:
    """The options of the command line."""

    bench: str | None
    script: str | None
    arguments: tuple[str, ...]
    device: str
    verify: bool
    values: DataOptions
    as_cuda: bool
    strict: bool
    from_load: bool
    points: int | None
    max_sim_ns: float | None
    max_wall_s: float | None
    overrides: tuple[str, ...]
    op_log: str | None
    trace: str | None
    trace_filter: str | None
    explain: bool
    advise: bool
    roofline: str | None
    observe: bool
    sanitize: bool
    ccl: str | None
    trace_ccl: bool
    out: str | None
    reference: str | None
    render_only: bool
    topology: str | None
    as_json: bool

    def program(self) -> Bench:
        """Find the bench or the script to run."""
        if self.as_cuda and self.script is None:
            raise click.UsageError("--as-cuda is for --script.")
        if self.bench is not None and self.script is None:
            if self.arguments:
                given = " ".join(self.arguments)
                raise click.UsageError(f"Got unexpected extra arguments ({given}): they are for --script.")
            return load_bench(self.bench)
        if self.script is None:
            raise click.UsageError("Missing option '--bench' or '--script'.")
        if self.bench is not None:
            raise click.UsageError("--bench and --script: one program is run.")
        return load_script(self.script, self.arguments)

    @property
    def settings(self) -> list[str]:
        """The settings of front ends, as texts."""
        given = [text for text in self.overrides if text.startswith(PREFIXES)]
        flags = ["torch.as_cuda=true"] * self.as_cuda + ["torch.strict=true"] * self.strict
        flags += ["torch.from_load=true"] * self.from_load
        return [*given, *flags, *([f"triton.points={self.points}"] if self.points is not None else [])]

    def params(self, bench: Bench) -> list[str]:
        """Return what is to be changed of the bench's parameters, as texts."""
        texts = [text for text in self.overrides if text.startswith(PARAMS_PREFIX)]
        given = {"out": self.out, "reference": self.reference, "ccl": self.ccl if bench.evaluation else None}
        texts += [f"{PARAMS_PREFIX}{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
        return texts + ([f"{PARAMS_PREFIX}render_only=true"] if self.render_only else [])

    def machine(self) -> CompiledMachine:
        """Compile the machine."""
        others = (PARAMS_PREFIX, *PREFIXES)
        return compile_machine(self.topology, [text for text in self.overrides if not text.startswith(others)])

    def files(self, machine: CompiledMachine) -> RunFiles | None:
        """Return the files to write; None: none."""
        named = self.op_log, self.trace, self.trace_filter, self.roofline
        if all(each is None for each in named):
            return None
        files: RunFiles = late(FILES, "list_files")(machine.topology, *named)
        return files

    def of_one_simulation(self) -> dict[str, object]:
        """Return the options that say something about one simulation, by name."""
        files: dict[str, object] = {"--op-log": self.op_log, "--trace": self.trace, "--trace-filter": self.trace_filter}
        files["--roofline"] = self.roofline
        stops = {"--max-sim-ns": self.max_sim_ns, "--max-wall-s": self.max_wall_s}
        switches = {
            "--explain": self.explain,
            "--advise": self.advise,
            "--sanitize": self.sanitize,
            "--trace-ccl": self.trace_ccl,
        }
        return files | stops | switches | {"--no-observe": not self.observe, "--data": self.values != UNSAID}


@click.command(name="run")
@click.option("--bench", metavar="NAME|FILE.py[:FUNCTION]", shell_complete=complete_bench, help="What to run.")
@click.option("--script", metavar="FILE.py", help="Or a whole file as the program; what follows -- is for it.")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@device_option
@verify_option
@data_options
@click.option("--as-cuda", is_flag=True, help='In a script the device "cuda" of PyTorch is the machine.')
@click.option("--strict", is_flag=True, help="An operator of PyTorch that the host would compute is an error.")
@click.option("--from-load", is_flag=True, help="Count the time that a program of PyTorch loads before it computes.")
@click.option("--points", type=click.IntRange(min=1), metavar="N", help="Of a benchmark of Triton the first N values.")
@click.option("--max-sim-ns", type=LIMIT, metavar="NS", help="Stop beyond this simulated time.")
@click.option("--max-wall-s", type=LIMIT, metavar="S", help="Stop after this many seconds.  [default: 600 of a script]")
@bench_set_option
@click.option("--op-log", metavar="FILE", help="Keep the op-log: FILE.parquet or FILE.jsonl.")
@click.option("--trace", metavar="FILE.json", help="Write a timeline for ui.perfetto.dev or chrome://tracing.")
@click.option(
    "--trace-filter",
    metavar="GLOBS",
    help="What the timeline shows: parts and kinds of track, such as sip0.cube0.*,!links.",
)
@click.option("--explain", is_flag=True, help="Where the time went, before all: critical path, source lines, roofline.")
@click.option("--advise", is_flag=True, help="Simulate what each resource that holds the run up gives, 10 % faster.")
@observe_option
@click.option("--roofline", metavar="FILE.png", help="Draw the launches under the roofs of the machine.")
@click.option("--sanitize", is_flag=True, help="Look for bytes read before they are written, races, full scratch.")
@ccl_option
@click.option("--trace-ccl", is_flag=True, help="Print a line for every message sent and received between PEs.")
@click.option("--out", metavar="FOLDER", help="Where an evaluation writes.  [default: results/NAME]")
@click.option("--reference", metavar="FILE.csv", help="Size and latency of collectives to compare an evaluation with.")
@click.option("--render-only", is_flag=True, help="Draw the figures of an evaluation again, from what it wrote.")
@topology_option
@verbose_option
@output_options
@click.pass_obj
def command(session: Session, /, **given: Any) -> int:
    """Run a bench on a simulated machine: what binds, latency, engines, traffic, and whether its numbers are right."""
    asked = RunOptions(**given)
    bench, frontends = asked.program(), frontend_settings(asked.settings)
    machine, params = asked.machine(), asked.params(bench)
    if bench.evaluation:
        late(EVALUATION, "refuse_options")(bench, asked.of_one_simulation())
        code: int = late(EVALUATION, "evaluate")(bench, machine, params, asked.device, session)
        return code
    shows = asked.explain or asked.advise or asked.trace is not None or asked.roofline is not None
    if shows and not asked.observe:
        raise click.UsageError("--no-observe keeps nothing that --explain, --advise, --trace or --roofline could show.")
    files = asked.files(machine)
    wall_s = SCRIPT_WALL_S if asked.script is not None and asked.max_wall_s is None else asked.max_wall_s
    request = RunRequest(
        bench=bench,
        machine=machine,
        params=params,
        device=asked.device,
        verify=asked.verify,
        data=asked.values.policy(verify=asked.verify, sanitize=asked.sanitize, bench=bench.data),
        ccl=asked.ccl,
        frontends=frontends,
        limits=Limits(_finite(asked.max_sim_ns), _finite(wall_s)),
        observe=asked.observe,
        links=files is not None and files.shows_links,
        queues=files is not None and files.trace is not None,
        sanitize=asked.sanitize,
        trace_ccl=asked.trace_ccl,
        advise=asked.advise,
    )
    if asked.advise:
        say(f"advice: {bench.name} runs again if it ends well, on this machine and on faster ones")
    found = simulate(request, show_progress())
    if asked.as_json:
        print_json(found.to_dict())
    raised = found.live.result.error if found.live is not None and found.live.result is not None else None
    if raised is not None:
        report_program_error(raised, session)
    if not asked.as_json:
        print_run(stdout(), found, explain=asked.explain, verbose=session.verbose)
    if files is not None:
        files.write(found)
    return found.exit_code


def _finite(limit: float | None) -> float | None:
    return None if limit is None or math.isinf(limit) else limit
