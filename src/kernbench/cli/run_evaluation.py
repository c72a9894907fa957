"""A bench that is an evaluation, which makes simulations of its own: the run of it, and its summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console

from kernbench.cli.console import Json, number, print_json, show, stdout, table, text
from kernbench.cli.failures import error_document, place_document, report_program_error
from kernbench.cli.session import Session
from kernbench.cli.steps import show_steps
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.evaluation.outputs import Summary
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology


@value
class EvaluationRun:
    """An evaluation bench on a machine."""

    bench: Bench
    machine: Topology
    device: DeviceSelector

    def run(self, params: Iterable[str], session: Session, *, as_json: bool) -> int:
        """Run it and print its summary; the exit code."""
        with show_steps(1) as progress:
            progress.begin(f"evaluating: {self.bench.name}")
            result = run_bench(
                topology=self.machine,
                bench_fn=self.bench,
                device=self.device,
                engine_factory=lambda machine, _: GraphEngine(machine, enable_data=False),
                params=params,
            )
        if as_json:
            print_json(self._document(result))
        elif isinstance(result.value, Summary):
            _print(stdout(), result.value)
        if result.error is not None:
            report_program_error(result.error, session)
        return result.exit_code

    def _document(self, result: BenchResult) -> Json:
        summary = result.value if isinstance(result.value, Summary) else None
        return {
            "bench": self.bench.name,
            "params": result.params.model_dump(mode="json"),
            "topology": self.machine.source,
            "digest": self.machine.digest,
            "status": result.status.value,
            "error": error_document(result.completion.error),
            "place": place_document(result.place),
            "folder": None if summary is None else str(summary.folder),
            "files": [] if summary is None else list(summary.files),
            "results": None if summary is None else dict(summary.results),
        }


def refuse_options(bench: Bench, options: Mapping[str, object]) -> None:
    """InputError when one of ``options``, which say something about one simulation, was given for an evaluation."""
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
