"""``kernbench run``: its options, and the run that they describe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import rich_click as click

from kernbench.cli.console import print_json, say, show_progress, stdout
from kernbench.cli.failures import report_program_error
from kernbench.cli.options import (
    ProgramCommand,
    ProgramOptions,
    bench_set_option,
    ccl_option,
    data_options,
    device_option,
    finite,
    frontend_options,
    limit_options,
    observe_option,
    output_options,
    program_options,
    topology_option,
    verbose_option,
    verify_option,
)
from kernbench.cli.run_tables import print_run
from kernbench.cli.session import INTERRUPTED, Session
from kernbench.common.data_policy import UNSAID, DataOptions
from kernbench.common.late import late
from kernbench.common.values import value
from kernbench.engine.requests import Limits
from kernbench.library.machines import CompiledMachine, compile_machine
from kernbench.library.running import simulate
from kernbench.library.runs import Run
from kernbench.runtime_api.bench_registry import Bench, load_bench, load_script
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.runtime_api.overrides import BENCH_PREFIX, split_overrides
from kernbench.runtime_api.run_request import PreparedRun

if TYPE_CHECKING:
    from kernbench.cli.run_outputs import RunFiles

EVALUATION = "kernbench.cli.run_evaluation"
FILES = "kernbench.cli.run_outputs"


@value(kw_only=True)
class RunOptions:
    """The options of the command line."""

    program: ProgramOptions
    device: str
    verify: bool
    values: DataOptions
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

    def load_program(self) -> Bench:
        """Return the bench or the script to run."""
        program = self.program
        program.refuse_arguments()
        if program.script is not None:
            return load_script(program.script, program.arguments)
        if program.bench is None:
            raise click.UsageError("Missing option '--bench' or '--script'.")
        return load_bench(program.bench)

    def params(self, changes: tuple[str, ...], bench: Bench) -> list[str]:
        """Return the changes of bench parameters as texts."""
        if not bench.evaluation:
            return [*changes]
        options = {**self.of_an_evaluation(), "--ccl": self.ccl}
        given = {name.removeprefix("--").replace("-", "_"): each for name, each in options.items() if each is not None}
        return [*changes, *[f"{BENCH_PREFIX}{key}={json.dumps(value)}" for key, value in given.items()]]

    def files(self, machine: CompiledMachine) -> RunFiles | None:
        """Return the files to write, or None if no file is requested."""
        named = self.op_log, self.trace, self.trace_filter, self.roofline
        if all(each is None for each in named):
            return None
        files: RunFiles = late(FILES, "list_files")(machine.topology, *named)
        return files

    def of_an_evaluation(self) -> dict[str, object]:
        """Return the options that only evaluations accept, by name; None means not set."""
        return {"--out": self.out, "--reference": self.reference, "--render-only": self.render_only or None}

    def of_one_simulation(self) -> dict[str, object]:
        """Return the options that only single simulations accept, by name."""
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


@click.command(name="run", cls=ProgramCommand)
@program_options
@click.argument("positional", nargs=-1, metavar="[-- ARGUMENTS]")
@device_option
@verify_option
@data_options
@frontend_options
@limit_options
@bench_set_option
@click.option("--op-log", metavar="FILE", help="Write the op-log to FILE.parquet or FILE.jsonl.")
@click.option("--trace", metavar="FILE.json", help="Write a timeline for ui.perfetto.dev or chrome://tracing.")
@click.option(
    "--trace-filter",
    metavar="GLOBS",
    help="Select parts and track types of the timeline; ! excludes, for example sip0.cube0.*,!links.",
)
@click.option("--explain", is_flag=True, help="Print first where the time went: critical path, source lines, roofline.")
@click.option("--advise", is_flag=True, help="Simulate the run again with each limiting resource 10 % faster.")
@observe_option
@click.option("--roofline", metavar="FILE.png", help="Draw a roofline plot of the launches.")
@click.option("--sanitize", is_flag=True, help="Report reads of unwritten bytes, races and full scratch.")
@ccl_option
@click.option("--trace-ccl", is_flag=True, help="Print each message that a PE sends or receives.")
@click.option("--out", metavar="FOLDER", help="Write an evaluation to FOLDER.  [default: results/NAME]")
@click.option(
    "--reference", metavar="FILE.csv", help="Compare the collectives of milestone-1h-ccl with the figures of this file."
)
@click.option(
    "--render-only", is_flag=True, help="Redraw the figures of a milestone bench from its data, without a run."
)
@topology_option
@verbose_option
@output_options
@click.pass_obj
def command(session: Session, /, **keywords: Any) -> int:
    """Run a bench or a script on a simulated machine and print its bottleneck, latency, traffic and checks."""
    options = RunOptions(**keywords)
    bench, changes = options.load_program(), split_overrides(options.overrides)
    frontends = frontend_settings(changes.frontends)
    machine, params = compile_machine(options.topology, changes.machine), options.params(changes.bench, bench)
    if bench.evaluation:
        late(EVALUATION, "refuse_options")(bench, options.of_one_simulation())
        code: int = late(EVALUATION, "evaluate")(bench, machine, params, options.device, session)
        return code
    wide = [name for name, value in options.of_an_evaluation().items() if value is not None]
    if wide:
        raise click.UsageError(f"{', '.join(wide)}: for an evaluation; {bench.name} is one simulation.")
    shows = options.explain or options.advise or options.trace is not None or options.roofline is not None
    if shows and not options.observe:
        raise click.UsageError("--no-observe records no data for --explain, --advise, --trace or --roofline.")
    files = options.files(machine)
    request = PreparedRun(
        bench=bench,
        machine=machine.topology,
        params=params,
        device=options.device,
        verify=options.verify,
        data=options.values.policy(verify=options.verify, sanitize=options.sanitize, bench=bench.data),
        ccl=options.ccl,
        frontends=frontends,
        limits=Limits(finite(options.max_sim_ns), options.program.wall_s(options.max_wall_s)),
        observe=options.observe,
        links=files is not None and files.shows_links,
        queues=files is not None and files.trace is not None,
        sanitize=options.sanitize,
        trace_ccl=options.trace_ccl,
        advise=options.advise,
    )
    if options.advise:
        say(f"advice: if {bench.name} succeeds, it runs again on this machine and on faster ones")
    found = simulate(request, show_progress())
    if options.as_json:
        found = _print_document(found)
    try:
        all_told = options.as_json or print_run(stdout(), found, explain=options.explain, verbose=session.verbose)
        if not all_told:
            say("interrupted: the explanation of the run's time is incomplete")
        if files is not None:
            files.write(found)
    finally:  # the program's error is printed last, where the user sees it
        raised = found.live.result.error if found.live is not None and found.live.result is not None else None
        if raised is not None:
            report_program_error(raised, session)
    return found.exit_code if all_told else INTERRUPTED


def _print_document(found: Run) -> Run:
    """Print a run as JSON and return it. If the user interrupts its explanation, print the run without it."""
    try:
        document = found.to_dict()
    except KeyboardInterrupt:
        found = found.without_explanation()
        document = found.to_dict()
    print_json(document)
    return found
