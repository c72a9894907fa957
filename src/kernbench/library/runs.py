"""The result of a run: plain data, and beside it, until it is pickled, the engine that has run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kernbench.common import errors
from kernbench.common.errors import ExplanationError, InputError, KernbenchError, RunError, text_of
from kernbench.common.files import plain_document, writable
from kernbench.common.ids import pe_name
from kernbench.common.late import late
from kernbench.common.program_line import ErrorPlace
from kernbench.common.units import format_ns
from kernbench.common.values import state, value
from kernbench.engine.keeping import DataReport
from kernbench.engine.records import PrintedLine
from kernbench.library.machines import CompiledMachine, load_machine
from kernbench.library.tables import LINE, Table, make_table, text_html
from kernbench.observe.statistics import EngineUsage, LinkTraffic, MemoryTraffic
from kernbench.runtime_api.bench_runner import BenchSummary, PhaseSummary
from kernbench.runtime_api.launch_report import LaunchSplit, RunReport
from kernbench.runtime_api.operators import LoadTime, OperatorUse
from kernbench.runtime_api.testing import Comparison
from kernbench.runtime_api.testing import verdict as passed_or_not
from kernbench.topology.builder import name_of

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
"""Rows of each table of a run in a notebook"""
INTERRUPTED = 130
"""The exit code of a run that Ctrl-C has ended"""
UNEXPLAINED = "not explained: the explanation was interrupted"
RUN_AGAIN = "it needs the engine, which is not kept in files and pickles: run again"


@value
class RunFailure:
    """The error that ended a run: its type, its text, and the text with everything."""

    kind: str
    text: str
    full: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    def as_error(self) -> KernbenchError:
        """Return an error of that type, if it takes a text alone; else a RunError that names the type."""
        kind = vars(errors).get(self.kind)
        if isinstance(kind, type) and issubclass(kind, RunError | InputError) and kind.__init__ is Exception.__init__:
            return kind(self.text)
        return RunError(str(self))


def failure_of(error: Exception) -> RunFailure:
    """Return what is kept of an error."""
    text = text_of(error)
    full = error.full if isinstance(error, errors.SimulationDeadlock) else text
    return RunFailure(type(error).__name__, text, full)


@value
class StatedVerdict:
    """The verdict on a run whose critical path nobody followed."""

    sentence: str


@state(eq=False)
class LiveRun:
    """The objects that a run has beside its data while its process lives. ``error``: what the program raised."""

    engine: GraphEngine
    machine: CompiledMachine
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

    ``verdict``: what binds; its ``sentence`` says so. ``params``: the program's parameters. ``error`` is None after a
    run that went well, else it happened at ``place``. ``said``: the program's own line. ``skipped``: comparisons that
    were not evaluated. ``leaked``, ``left``: memory and work that the program left. ``unmodelled``: operators that the
    host computed, and how often. ``operators``: those of a host library that took time, the longest first; ``remarks``:
    what a front end has to say, and why there is no advice; ``load``: how long its program loaded; ``frontends``:
    their settings, without those that nobody changed. ``findings``: of the sanitizer, if it looked. ``advised``: what
    a change would give, as a part of the document, if asked. ``unexplained``: why the explanation failed.
    ``explained_before``: where the time went, likewise, of a
    run without its engine.
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
        """True when the run went well."""
        return self.status == "OK"

    @property
    def latency_ns(self) -> float:
        """The simulated time of the program in ns, from the end of loading on."""
        return self.summary.sim_ns

    @property
    def verified(self) -> bool:
        """True when numbers were compared and all were right."""
        return bool(self.checks) and all(each.passed for each in self.checks)

    def without_explanation(self) -> Run:
        """Return what is told of a run when its explanation was interrupted: all but that."""
        live = None if self.live is None else replace(self.live, explanation=None)
        remarks = (*self.remarks, UNEXPLAINED)
        return replace(self, status="INTERRUPTED", exit_code=INTERRUPTED, remarks=remarks, live=live)

    def raise_for_status(self) -> None:
        """Raise what went wrong; nothing after a run that went well."""
        if self.live is not None and self.live.error is not None:
            raise self.live.error
        if self.error is not None:
            raise self.error.as_error()

    @property
    def machine_name(self) -> str:
        """The name of the machine; else the path of its file."""
        return name_of(self.source)

    @property
    def machine(self) -> CompiledMachine:
        """The machine that it ran on; of a run that was loaded or unpickled, compiled from its configuration."""
        return load_machine(self.configuration) if self.live is None else self.live.machine

    @property
    def engine(self) -> GraphEngine:
        """The engine that has run. InputError when it is no more."""
        return self._require_live("engine").engine

    @property
    def phases(self) -> Table[PhaseSummary]:
        """Requests by phase."""
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
        """The memories that moved most."""
        return make_table("memories", self.report.memories, _MEMORIES)

    @property
    def comparisons(self) -> Table[Comparison]:
        """The comparisons of the program."""
        return make_table("comparisons", self.checks, _COMPARISONS)

    @property
    def explained(self) -> Mapping[str, Any] | RunFailure | None:
        """The time by its causes, as a part of the document, or why that failed; None where nobody observed."""
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
        """Return where the time went: critical paths, bounds, lines.

        InputError for a run that nobody observed, ExplanationError where the explanation failed.
        """
        explained = self.explained
        if isinstance(explained, RunFailure):
            raise explained.as_error()
        if explained is None:
            why = "its explanation was interrupted" if UNEXPLAINED in self.remarks else "nobody observed it"
            raise InputError(f"the time of this run is not explained, since {why}: run again with observe=True")
        found: Explanation = late(EXPLANATION, "Explanation")(self.bench, explained)
        return found

    def trace(self, path: str | os.PathLike[str], *, keep: TraceFilter | None = None) -> None:
        """Write a timeline for Perfetto. ``keep``: what of it; by default everything."""
        live, place = self._require_log("trace"), writable(os.fspath(path))
        with late(GUARD, "guarded")("trace"):
            late(LIVE, "write_timeline")(live, place, keep)

    def page(self, path: str | os.PathLike[str]) -> None:
        """Write the machine and the run as a page for the browser, and beside it the machine's configuration."""
        self._require_log("page")
        late(PAGES, "page_of")(self).write(os.fspath(path))

    def timeline(self) -> Figure:
        """Draw the engines of the PE that ran longest, over the time of its kernel."""
        live = self._require_log("timeline")
        with late(GUARD, "guarded")("timeline"):
            figure: Figure = late(LIVE, "draw_run")(live, self.report.launches)
        return figure

    def roofline(self) -> Figure:
        """Draw the launches under the roofs of the machine; of a run without its engine, the bounds beside the time."""
        if self.live is None or self.live.explanation is None:
            return self.explain().roofline_figure()
        with late(GUARD, "guarded")("roofline"):
            figure: Figure = late(LIVE, "draw_roofs")(self.live, self.bench)
        return figure

    @property
    def log(self) -> pyarrow.Table:
        """The op-log as an Arrow table, made once."""
        return self._table("log", "op_log_of")

    @property
    def transfers(self) -> pyarrow.Table:
        """The transfers on the network as an Arrow table, made once."""
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
            raise InputError(f"{what}: nobody observed this run: run again with observe=True")
        return live

    def to_dict(self) -> dict[str, Any]:
        """Return the run as the document that ``kernbench run --json`` prints."""
        return plain_document(late(DOCUMENT, "document_of")(self))

    @property
    def status_line(self) -> str:
        """The status of the run, in a line."""
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


_NS = "ns in which at least one was under way"
_PHASES: Mapping[str, Any] = {
    "phase": "what the host asked for",
    "requests": "how many there were",
    "nbytes": "bytes of all",
    "busy_ns": _NS,
    "longest_ns": "the longest of them",
}
_LAUNCHES: Mapping[str, Any] = {
    "name": "as the program calls it",
    "algorithm": "of a collective, what carried it out",
    "launches": "how many there were of this name; the figures are of the longest",
    "pes": ("PEs that ran it", lambda row: row.pe_count),
    "total_ns": "from submission to completion",
    "before_ns": "control path from the host to the PEs",
    "kernel_ns": "from the first start of a kernel to the last end",
    "after_ns": "control path from the PEs to the host",
    "slowest_pe": ("the PE that ran longest", lambda row: pe_name(row.slowest)),
    "slowest_ns": "how long that ran",
    "late_pes": "PEs that got the order after the common start",
}
_ENGINES: Mapping[str, Any] = {
    "engine": "the kind of engine",
    "pes": "PEs that used it",
    "operations": ("how many it carried out", lambda row: row.records),
    "busy_ns": "ns in which it worked, summed over PEs",
    "occupancy": "busy time over the time of those PEs",
}
_LINKS: Mapping[str, Any] = {
    "src": "from",
    "dst": "to",
    "bw_gbs": "bandwidth",
    "nbytes": "bytes it carried, headers included",
    "busy_ns": "ns in which it carried something",
    "utilisation": "that over the time of the run",
    "peak_fifo_bytes": "the most that lay in its FIFO",
}
_MEMORIES: Mapping[str, Any] = {
    "memory": "where it is",
    "kind": "what it is",
    "bytes_in": "bytes brought to it, headers included",
    "bytes_out": "bytes taken from it, headers included",
    "utilisation": "of its busiest link",
}
_COMPARISONS: Mapping[str, Any] = {
    "name": "as the program calls it",
    "passed": "whether all is close",
    "elements": "how many were compared",
    "wrong": "how many are wrong",
    "max_abs_error": "the largest difference",
    "max_rel_error": "the largest difference, as a share of what was expected",
    "rtol": ("relative tolerance", lambda row: row.tolerance.rtol),
    "atol": ("absolute tolerance", lambda row: row.tolerance.atol),
    "reason": "why nothing was compared",
}


def verification_document(comparisons: Sequence[Comparison], skipped: int) -> dict[str, Any]:
    """Return the comparisons made and the number of those not evaluated."""
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
