"""``kernbench run``: its options, and the run that they describe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import rich_click as click

from kernbench.cli.console import print_json, say, show_progress, stdout
from kernbench.cli.failures import report_program_error
from kernbench.cli.options import ProgramCommand, options_of, output_options, refuse_arguments, verbose_option
from kernbench.cli.run_tables import print_run
from kernbench.cli.session import INTERRUPTED, Session
from kernbench.common.errors import InputError
from kernbench.common.late import late
from kernbench.library.running import simulate
from kernbench.library.runs import Run
from kernbench.runtime_api.prepared_run import PreparedRun, prepare_run
from kernbench.runtime_api.run_request import RunRequest

if TYPE_CHECKING:
    from kernbench.cli.run_outputs import RunFiles

EVALUATION = "kernbench.cli.run_evaluation"
FILES = "kernbench.cli.run_outputs"


@click.command(name="run", cls=ProgramCommand)
@click.argument("positional", nargs=-1, metavar="[-- ARGUMENTS]")
@options_of("run")
@verbose_option
@output_options
@click.pass_obj
def command(session: Session, request: RunRequest, positional: tuple[str, ...], as_json: bool) -> int:
    """Run a bench or a script on a simulated machine and print its bottleneck, latency, traffic and checks."""
    refuse_arguments(request, positional)
    if request.program.bench is None and request.program.script is None:
        raise click.UsageError("Missing option '--bench' or '--script'.")
    prepared, outputs = prepare_run(request), request.outputs
    if prepared.bench.evaluation:
        code: int = late(EVALUATION, "evaluate")(prepared, request.list_flags("simulation"), session)
        return code
    _refuse_options(request, prepared)
    files: RunFiles | None = None
    if any(path is not None for path in (outputs.op_log, outputs.trace, outputs.trace_filter, outputs.roofline)):
        files = late(FILES, "list_files")(prepared.machine, outputs)
    shows_links = files is not None and files.shows_links
    prepared = replace(prepared, links=shows_links, queues=outputs.trace is not None)
    if prepared.advise:
        say(f"advice: if {prepared.bench.name} succeeds, it runs again on this machine and on faster ones")
    run = simulate(prepared, show_progress())
    if as_json:
        run = _print_document(run)
    explain, energy = request.observation.explain, request.observation.energy
    try:
        is_complete = as_json or print_run(stdout(), run, explain=explain, energy=energy, verbose=session.verbose)
        if not is_complete:
            say("interrupted: the explanation of the run's time is incomplete")
        if files is not None:
            files.write(run)
    finally:  # the program's error is printed last, where the user sees it
        raised = run.live.result.error if run.live is not None and run.live.result is not None else None
        if raised is not None:
            report_program_error(raised, session)
    return run.exit_code if is_complete else INTERRUPTED


def _refuse_options(request: RunRequest, prepared: PreparedRun) -> None:
    """Raise UsageError for options that a single simulation does not accept, or that contradict each other."""
    flags = request.list_flags("evaluation")
    if flags:
        raise click.UsageError(f"{', '.join(flags)}: for an evaluation; {prepared.bench.name} is one simulation.")
    observation, outputs = request.observation, request.outputs
    shows = observation.explain or observation.advise or outputs.trace is not None or outputs.roofline is not None
    if shows and not observation.observe:
        raise click.UsageError("--no-observe records no data for --explain, --advise, --trace or --roofline.")
    if observation.energy and prepared.machine.spec.energy is None:
        raise InputError("--energy: the energy of this machine is null; remove energy: null from its file")


def _print_document(run: Run) -> Run:
    """Print a run as JSON and return it. If the user interrupts its explanation, print the run without it."""
    try:
        document = run.to_dict()
    except KeyboardInterrupt:
        run = run.without_explanation()
        document = run.to_dict()
    print_json(document)
    return run
