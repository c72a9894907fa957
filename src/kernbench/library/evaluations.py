"""Evaluations: benches that run several simulations, and write data and figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernbench.common.errors import InputError, text_of
from kernbench.common.figures import to_plain
from kernbench.common.files import plain_document
from kernbench.common.values import value
from kernbench.evaluation.study_report import Summary
from kernbench.library.machines import MachineLike, load_machine
from kernbench.library.running import param_texts
from kernbench.result.table import LINE
from kernbench.runtime_api.bench_runner import BenchResult
from kernbench.runtime_api.prepared_run import PreparedRun, load_program, prepare_run
from kernbench.runtime_api.run_request import RunRequest
from kernbench.topology.builder import Topology


@value(repr=False, eq=False)
class Evaluation:
    """A finished evaluation. ``summary``: its findings and its folder, or None after a failure."""

    bench: str
    machine: Topology
    result: BenchResult

    @property
    def summary(self) -> Summary | None:
        """The findings and their folder, or None after a failure."""
        return self.result.value if isinstance(self.result.value, Summary) else None

    @property
    def ok(self) -> bool:
        """True if the evaluation succeeded."""
        return self.result.ok

    def raise_for_status(self) -> None:
        """Raise the error of a failed evaluation."""
        self.result.raise_for_status()

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench run --json`` prints for an evaluation."""
        result, summary, error = self.result, self.summary, self.result.completion.error
        return plain_document(
            {
                "status": result.status.value,
                "error": None if error is None else f"{type(error).__name__}: {text_of(error)}",
                "place": to_plain(result.place),
                "bench": self.bench,
                "folder": None if summary is None else str(summary.folder),
                "files": [] if summary is None else list(summary.files),
                "results": None if summary is None else dict(summary.results),
                "params": result.params.model_dump(mode="json"),
                "topology": self.machine.source,
                "digest": self.machine.digest,
            }
        )

    def __repr__(self) -> str:
        summary = self.summary
        said = [] if summary is None else [summary.title, *summary.notes[:6], f"in {summary.folder}"]
        return "\n".join(line[:LINE] for line in (f"{self.result.status.value}  {self.bench}", *said))


def evaluate(
    program: str, machine: MachineLike = None, *, params: Mapping[str, object] | None = None, **keywords: object
) -> Evaluation:
    """Run an evaluation, such as ``milestone-1h-gemm``. Its parameter ``out`` names the folder for its files.

    Raises InputError if the bench is not an evaluation.
    """
    request = RunRequest.of(bench=program, params=param_texts(params or {}, keywords))
    bench = load_program(request.program)
    if not bench.evaluation:
        raise InputError(f"{bench.name!r} is one simulation: use run")
    return run_evaluation(prepare_run(request, bench=bench, machine=load_machine(machine).topology))


def run_evaluation(prepared: PreparedRun) -> Evaluation:
    """Run an evaluation whose inputs are loaded."""
    return Evaluation(prepared.bench.name, prepared.machine, prepared.run())
