"""Run an evaluation, a bench that runs simulations of its own, and print its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from kernbench.cli.console import number, print_json, show, show_progress, stdout, table, text
from kernbench.cli.failures import report_program_error
from kernbench.cli.session import Session
from kernbench.common.errors import InputError
from kernbench.evaluation.study_report import Summary
from kernbench.library.evaluations import run_evaluation
from kernbench.library.machines import CompiledMachine
from kernbench.library.progress import StepProgress
from kernbench.runtime_api.bench_registry import Bench


def evaluate(bench: Bench, machine: CompiledMachine, params: Sequence[str], device: str, session: Session) -> int:
    """Run an evaluation, print its summary, and return the exit code."""
    with show_progress() as display:
        display(StepProgress(f"evaluating: {bench.name}", 0, 1))
        found = run_evaluation(bench, machine, params, device)
    if session.as_json:
        print_json(found.to_dict())
    elif found.summary is not None:
        _print(stdout(), found.summary)
    if found.result.error is not None:
        report_program_error(found.result.error, session)
    return found.result.exit_code


def refuse_options(bench: Bench, options: Mapping[str, object]) -> None:
    """Raise InputError if an option for single simulations is set for an evaluation."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        raise InputError(f"{', '.join(given)}: for one simulation; {bench.name} is an evaluation, which makes several")


def _print(console: Console, summary: Summary) -> None:
    made = table(summary.title, *(number(each.name) if each.figures else text(each.name) for each in summary.columns))
    for row in summary.rows:
        made.add_row(*row)
    show(console, made)
    for note in summary.notes:
        console.print(note, soft_wrap=True)
    console.print(f"in {summary.folder}: {', '.join(summary.files)}", style="green", soft_wrap=True)
