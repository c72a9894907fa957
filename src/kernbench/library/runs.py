"""The result of a run: plain data. Until it is pickled, the result also has the engine of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kernbench.common import errors
from kernbench.common.config import Document
from kernbench.common.errors import ExplanationError, InputError, KernbenchError, RunError, text_of
from kernbench.common.files import plain_document, writable
from kernbench.common.ids import pe_name
from kernbench.common.late import late
from kernbench.common.program_line import ErrorPlace
from kernbench.common.units import format_ns
from kernbench.common.values import state, value
from kernbench.engine.keeping import DataReport
from kernbench.engine.records import PrintedLine
from kernbench.library.machines import CompiledMachine
from kernbench.observe.statistics import EngineUsage, LinkTraffic, MemoryTraffic
from kernbench.result.table import LINE, Table, make_table, text_html
from kernbench.runtime_api.bench_runner import BenchSummary, PhaseSummary
from kernbench.runtime_api.launch_report import LaunchSplit, RunReport
from kernbench.runtime_api.operators import LoadTime, OperatorUse
from kernbench.runtime_api.testing import Comparison
from kernbench.runtime_api.testing import verdict as passed_or_not
from kernbench.topology.builder import Topology, name_of

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.figure import Figure

    from kernbench.engine.engine import GraphEngine
    from kernbench.evaluation.advice import Advice
    from kernbench.library.explanations import Explanation
    from kernbench.observe.sanitizer import Finding, Sanitizer
    from kernbench.observe.trace_filter import TraceFilter
    from kernbench.observe.trace_log import TraceLog
    from kernbench.observe.verdict import RunVerdict
    from kernbench.runtime_api.bench_runner import BenchResult
    from kernbench.runtime_api.run_explanation import RunExplanation

RunStatus: TypeAlias = Literal["OK", "FAILED", "NO_REQUESTS", "INTERRUPTED"]
DOCUMENT = "kernbench.library.run_document"
EXPLANATION = "kernbench.library.explanations"
GUARD = "kernbench.observe.guard"
LIVE = "kernbench.library.live_outputs"
PAGES = "kernbench.library.pages"
HTML_ROWS = 8
"""Number of rows of each table that a notebook shows for a run"""
INTERRUPTED = 130
"""The exit code of a run that Ctrl-C ended"""
UNEXPLAINED = "not explained: the explanation was interrupted"
RUN_AGAIN = "it needs the engine, which files and pickles do not contain: run again"


@value
class RunFailure:
    """The error that ended a run: its type, a short text, and a text with all details."""

    kind: str
    text: str
    full: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    def as_error(self) -> KernbenchError:
        """Return an error of the original type if the type takes a single text, else a RunError that names the type."""
        kind = vars(errors).get(self.kind)
        if isinstance(kind, type) and issubclass(kind, RunError | InputError) and kind.__init__ is Exception.__init__:
            return kind(self.text)
        return RunError(str(self))


def failure_of(error: Exception) -> RunFailure:
    """Return the type and the texts of an error, to store them."""
    text = text_of(error)
    full = error.full if isinstance(error, errors.SimulationDeadlock) else text
    return RunFailure(type(error).__name__, text, full)


@value
class StatedVerdict:
    """The verdict on a run without a critical path: a sentence."""

    sentence: str


@state(eq=False)
class LiveRun:
    """The objects of a run that exist in its process only, such as its engine. ``error``: the program's error."""

    engine: GraphEngine
    machine: Topology
    result: BenchResult | None = None
    log: TraceLog | None = None
    sanitizer: Sanitizer | None = None
    explanation: RunExplanation | None = None
    advice: Advice | None = None
    error: Exception | None = None
    tables: dict[str, pyarrow.Table] = field(default_factory=dict)


@value(kw_only=True, repr=False, eq=False)
class Run:
    """A run of a program on a machine, as plain data.

    ``verdict`` names the bottleneck, also in a ``sentence``. ``params``: the program's parameters. ``error``: None
    after success, else the error at ``place``. ``said``: a line in which the program summarises its result.
    ``skipped``: number of comparisons that were not evaluated. ``leaked``, ``left``: memory and work that the program
    left behind. ``unmodelled``: operators that the host computed, with counts. ``operators``: operators of a host
    library by time, the longest first. ``remarks``: remarks of a front end, and the reason for missing advice.
    ``load``: initialisation time of the program. ``frontends``: front-end settings that differ from their defaults.
    ``findings``: findings of the sanitizer, if it ran. ``advised``: the predicted gain of each machine change, as a
    part of the document, if requested. ``unexplained``: the failure of the explanation. ``explained_before``: the
    explanation as a part of the document, for a run without its engine.
    """

    bench: str
    status: RunStatus
    device: str
    verdict: RunVerdict | StatedVerdict
    params: Mapping[str, Any]
    source: str
    digest: str
    configuration: Mapping[str, Any]
    summary: BenchSummary
    report: RunReport
    checks: tuple[Comparison, ...]
    skipped: int
    verify: bool
    data: DataReport
    error: RunFailure | None = None
    place: ErrorPlace | None = None
    exit_code: int = 0
    said: str = ""
    leaked: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unmodelled: Mapping[str, int] = field(default_factory=dict)
    operators: tuple[OperatorUse, ...] = ()
    remarks: tuple[str, ...] = ()
    load: LoadTime | None = None
    frontends: Mapping[str, Any] = field(default_factory=dict)
    printed: tuple[PrintedLine, ...] = ()
    findings: tuple[Finding, ...] | None = None
    unexplained: RunFailure | None = None
    explained_before: Mapping[str, Any] | None = None
    advised: Mapping[str, Any] | None = None
    live: LiveRun | None = None

    @property
    def ok(self) -> bool:
        """True if the run succeeded."""
        return self.status == "OK"

    @property
    def latency_ns(self) -> float:
        """The simulated time of the program in ns, without its initialisation."""
        return self.summary.sim_ns

    @property
    def verified(self) -> bool:
        """True if values were compared and all comparisons passed."""
        return bool(self.checks) and all(each.passed for each in self.checks)

    def without_explanation(self) -> Run:
        """Return the run without its explanation. Used if the explanation was interrupted."""
        live = None if self.live is None else replace(self.live, explanation=None)
        remarks = (*self.remarks, UNEXPLAINED)
        return replace(self, status="INTERRUPTED", exit_code=INTERRUPTED, remarks=remarks, live=live)

    def raise_for_status(self) -> None:
        """Raise the error of a failed run."""
        if self.live is not None and self.live.error is not None:
            raise self.live.error
        if self.error is not None:
            raise self.error.as_error()

    @property
    def machine_name(self) -> str:
        """The name of the machine, or the path of its file."""
        return name_of(self.source)

    @property
    def machine(self) -> CompiledMachine:
        """The machine of the run, compiled again from its configuration on first use."""
        return CompiledMachine(Document(self.source, dict(self.configuration), {}))

    @property
    def engine(self) -> GraphEngine:
        """The engine of the run. Raises InputError for a run without its engine."""
        return self._require_live("engine").engine

    @property
    def phases(self) -> Table[PhaseSummary]:
        """The requests by phase."""
        return make_table("phases", self.summary.phases, _PHASES)

    @property
    def launches(self) -> Table[LaunchSplit]:
        """The longest launch of each name."""
        return make_table("launches", self.report.launches, _LAUNCHES)

    @property
    def engines(self) -> Table[EngineUsage]:
        """The use of engines, by kind."""
        return make_table("engines", self.report.engines, _ENGINES)

    @property
    def links(self) -> Table[LinkTraffic]:
        """The busiest links."""
        return make_table("links", self.report.traffic.busiest, _LINKS)

    @property
    def memories(self) -> Table[MemoryTraffic]:
        """The memories with the most traffic."""
        return make_table("memories", self.report.memories, _MEMORIES)

    @property
    def comparisons(self) -> Table[Comparison]:
        """The comparisons of the program."""
        return make_table("comparisons", self.checks, _COMPARISONS)

    @property
    def explained(self) -> Mapping[str, Any] | RunFailure | None:
        """The explanation as a part of the document, or its failure; None without observation."""
        if self.unexplained is not None:
            return self.unexplained
        if self.live is None or self.live.explanation is None:
            return self.explained_before
        try:
            with late(GUARD, "guarded")("explanation"):
                document: Mapping[str, Any] = late(EXPLANATION, "explanation_document")(self.live.explanation)
        except ExplanationError as error:
            return failure_of(error)
        return document

    def explain(self) -> Explanation:
        """Return the explanation of the time: critical paths, bounds, lines.

        Raises InputError for a run without observation, and ExplanationError if the explanation failed.
        """
        explained = self.explained
        if isinstance(explained, RunFailure):
            raise explained.as_error()
        if explained is None:
            why = "its explanation was interrupted" if UNEXPLAINED in self.remarks else "the run was not observed"
            raise InputError(f"this run has no explanation, since {why}: run again with observe=True")
        found: Explanation = late(EXPLANATION, "Explanation")(self.bench, explained)
        return found

    def trace(self, path: str | os.PathLike[str], *, keep: TraceFilter | None = None) -> None:
        """Write a timeline for Perfetto. ``keep``: filter of its tracks; by default all tracks."""
        live, place = self._require_log("trace"), writable(os.fspath(path))
        with late(GUARD, "guarded")("trace"):
            late(LIVE, "write_timeline")(live, place, keep)

    def page(self, path: str | os.PathLike[str]) -> None:
        """Write the machine and the run as a page for the browser, with the machine's configuration beside it."""
        self._require_log("page")
        late(PAGES, "page_of")(self).write(os.fspath(path))

    def timeline(self) -> Figure:
        """Draw a timeline of the engines of the PE that ran longest, during its kernel."""
        live = self._require_log("timeline")
        with late(GUARD, "guarded")("timeline"):
            figure: Figure = late(LIVE, "draw_run")(live, self.report.launches)
        return figure

    def roofline(self) -> Figure:
        """Draw the launches in a roofline plot. Without the engine, draw the bounds beside the measured time."""
        if self.live is None or self.live.explanation is None:
            return self.explain().roofline_figure()
        with late(GUARD, "guarded")("roofline"):
            figure: Figure = late(LIVE, "draw_roofs")(self.live, self.bench)
        return figure

    @property
    def log(self) -> pyarrow.Table:
        """The op-log as an Arrow table, built once."""
        return self._table("log", "op_log_of")

    @property
    def transfers(self) -> pyarrow.Table:
        """The transfers on the network as an Arrow table, built once."""
        self._require_log("transfers")
        return self._table("transfers", "transfers_of")

    def _table(self, name: str, make: str) -> pyarrow.Table:
        live = self._require_live(name)
        if name not in live.tables:
            live.tables[name] = late(LIVE, make)(live)
        return live.tables[name]

    def _require_live(self, what: str) -> LiveRun:
        if self.live is None:
            raise InputError(f"{what}: {RUN_AGAIN}")
        return self.live

    def _require_log(self, what: str) -> LiveRun:
        live = self._require_live(what)
        if live.log is None:
            raise InputError(f"{what}: this run was not observed: run again with observe=True")
        return live

    def to_dict(self) -> dict[str, Any]:
        """Return the run as the document that ``kernbench run --json`` prints."""
        return plain_document(late(DOCUMENT, "document_of")(self))

    @property
    def status_line(self) -> str:
        """The status of the run, as a line of text."""
        simulated = f"{format_ns(self.latency_ns)} simulated, {self.report.events:,} events"
        return f"{self.status}  {self.bench}: {simulated}"

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={each}" for name, each in self.params.items())
        lines = [self.verdict.sentence, self.status_line]
        lines += [f"  error        {self.error}".partition("\n")[0]] if self.error is not None else []
        lines += [f"  parameters   {params}"] if params else []
        lines += [f"  machine      {self.machine_name} ({self.digest[:12]}), device {self.device}"]
        lines += [f"  numbers      {passed_or_not(self.checks)}; {self.data}"]
        lines += [f"  launch       {each.title}: {each.total_ns:,.3f} ns" for each in self.report.launches[:2]]
        return "\n".join(line[:LINE] for line in lines)

    def _repr_html_(self) -> str:
        tables = (self.launches, self.phases, self.engines, self.links, self.memories, self.comparisons)
        observed = self.explained_before is not None or (self.live is not None and self.live.explanation is not None)
        text, picture = repr(self), []
        try:
            picture = [late(LIVE, "svg_of")(self.roofline())] if observed else []
        except ExplanationError as error:
            text = f"{text}\n{error}"
        return text_html(text, *picture, *(each.to_html(HTML_ROWS) for each in tables if len(each)))

    def __getstate__(self) -> list[Any]:
        explained = self.explained
        failed = isinstance(explained, RunFailure)
        changed = {
            "live": None,
            "explained_before": None if failed else explained,
            "unexplained": explained if failed else None,
        }
        return [changed.get(item.name, getattr(self, item.name)) for item in fields(self)]


_NS = "ns with at least one request in flight"
_PHASES: Mapping[str, Any] = {
    "phase": "the request type",
    "requests": "how many there were",
    "nbytes": "bytes of all",
    "busy_ns": _NS,
    "longest_ns": "the longest of them",
}
_LAUNCHES: Mapping[str, Any] = {
    "name": "as the program calls it",
    "algorithm": "the schedule or kernel of a collective",
    "launches": "launches of this name; the figures are of the longest",
    "pes": ("PEs that ran it", lambda row: row.pe_count),
    "total_ns": "from submission to completion",
    "before_ns": "control path from the host to the PEs",
    "kernel_ns": "from the first start of a kernel to the last end",
    "after_ns": "control path from the PEs to the host",
    "slowest_pe": ("the PE that ran longest", lambda row: pe_name(row.slowest)),
    "slowest_ns": "the time of that PE",
    "late_pes": "PEs that got the order after the common start",
}
_ENGINES: Mapping[str, Any] = {
    "engine": "the kind of engine",
    "pes": "PEs that used it",
    "operations": ("executed operations", lambda row: row.records),
    "busy_ns": "busy ns, summed over PEs",
    "occupancy": "busy time over the time of those PEs",
}
_LINKS: Mapping[str, Any] = {
    "src": "from",
    "dst": "to",
    "bw_gbs": "bandwidth",
    "nbytes": "bytes it carried, headers included",
    "busy_ns": "busy ns",
    "utilisation": "busy time over the time of the run",
    "peak_fifo_bytes": "the peak occupancy of its FIFO",
}
_MEMORIES: Mapping[str, Any] = {
    "memory": "the place",
    "kind": "what it is",
    "bytes_in": "bytes written, headers included",
    "bytes_out": "bytes read, headers included",
    "utilisation": "utilisation of its busiest link",
}
_COMPARISONS: Mapping[str, Any] = {
    "name": "as the program calls it",
    "passed": "whether all values are close",
    "elements": "compared values",
    "wrong": "wrong values",
    "max_abs_error": "the largest difference",
    "max_rel_error": "the largest difference, as a share of the expected value",
    "rtol": ("relative tolerance", lambda row: row.tolerance.rtol),
    "atol": ("absolute tolerance", lambda row: row.tolerance.atol),
    "reason": "the reason if nothing was compared",
}


def verification_document(comparisons: Sequence[Comparison], skipped: int) -> dict[str, Any]:
    """Return the evaluated comparisons and the number of skipped ones."""
    return {
        "verdict": passed_or_not(comparisons),
        "skipped": skipped,
        "comparisons": [_comparison(each) for each in comparisons],
    }


def _comparison(each: Comparison) -> dict[str, Any]:
    first = each.first_wrong
    wrong = None
    if first is not None:
        wrong = {"index": list(first.index), "got": first.got, "expected": first.expected, "place": first.place}
    return {
        "name": each.name,
        "passed": each.passed,
        "elements": each.elements,
        "wrong": each.wrong,
        "max_abs_error": each.max_abs_error,
        "max_rel_error": each.max_rel_error,
        "rtol": each.tolerance.rtol,
        "atol": each.tolerance.atol,
        "first_wrong": wrong,
        "pes": each.pes,
        "wrong_pes": [list(pe) for pe in each.wrong_pes],
        "reason": each.reason,
    }
