"""Run an evaluation, a bench that runs simulations of its own, and print its summary."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from kernbench.cli.console import number, print_json, show, show_progress, stdout, table, text
from kernbench.cli.failures import report_program_error
from kernbench.cli.session import Session
from kernbench.common.errors import InputError
from kernbench.evaluation.study_report import Summary
from kernbench.library.evaluations import run_evaluation
from kernbench.library.progress import StepProgress
from kernbench.runtime_api.prepared_run import PreparedRun


def evaluate(prepared: PreparedRun, flags: Sequence[str], session: Session) -> int:
    """Run an evaluation, print its summary, and return the exit code.

    Raises InputError for ``flags``: the given options for single simulations.
    """
    name = prepared.bench.name
    if flags:
        raise InputError(f"{', '.join(flags)}: for one simulation; {name} is an evaluation, which makes several")
    with show_progress() as display:
        display(StepProgress(f"evaluating: {name}", 0, 1))
        evaluation = run_evaluation(prepared)
    if session.as_json:
        print_json(evaluation.to_dict())
    elif evaluation.summary is not None:
        _print(stdout(), evaluation.summary)
    if evaluation.result.error is not None:
        report_program_error(evaluation.result.error, session)
    return evaluation.result.exit_code


def _print(console: Console, summary: Summary) -> None:
    figures = table(
        summary.title, *(number(column.name) if column.figures else text(column.name) for column in summary.columns)
    )
    for row in summary.rows:
        figures.add_row(*row)
    show(console, figures)
    for note in summary.notes:
        console.print(note, soft_wrap=True)
    console.print(f"in {summary.folder}: {', '.join(summary.files)}", style="green", soft_wrap=True)
