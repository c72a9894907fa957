"""The result of a run: plain data. Until it is pickled, the result also has the engine of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernbench.common.config import Document
from kernbench.common.errors import ExplanationError, InputError
from kernbench.common.figures import to_plain
from kernbench.common.files import plain_document, writable
from kernbench.common.late import late
from kernbench.common.program_line import ErrorPlace
from kernbench.common.units import format_ns
from kernbench.engine.keeping import DataReport
from kernbench.engine.passed_launches import ReuseReport
from kernbench.engine.records import PrintedLine
from kernbench.library.machines import CompiledMachine
from kernbench.observe.energy import RunEnergy
from kernbench.observe.findings import Finding
from kernbench.observe.statistics import EngineUsage, LinkTraffic, MachineUse, MemoryTraffic
from kernbench.observe.verdict import RunVerdict
from kernbench.result import run_sections as of
from kernbench.result import run_tables as tables
from kernbench.result.explanation import NOT_SAID, Explanation
from kernbench.result.run_sections import RunStatus, StatedVerdict
from kernbench.result.sections import Absence, RunOutcome, Unread
from kernbench.result.simulation import FinishedRun, RunFailure
from kernbench.result.table import LINE, Table, text_html
from kernbench.runtime_api.bench_runner import BenchSummary, PhaseSummary
from kernbench.runtime_api.collective_report import CollectiveUse
from kernbench.runtime_api.compiled import CompiledGraphs
from kernbench.runtime_api.folding import FoldReport
from kernbench.runtime_api.launch_queue import QueueReport
from kernbench.runtime_api.launch_report import LaunchSplit, RunReport
from kernbench.runtime_api.operators import LoadTime, OperatorUse
from kernbench.runtime_api.rank_report import RanksReport
from kernbench.runtime_api.testing import Comparison
from kernbench.runtime_api.testing import verdict as passed_or_not
from kernbench.topology.builder import name_of

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.figure import Figure

    from kernbench.engine.engine import GraphEngine
    from kernbench.evaluation.advice import Advice
    from kernbench.observe.trace_filter import TraceFilter

GUARD = "kernbench.observe.guard"
LIVE = "kernbench.library.live_outputs"
PAGES = "kernbench.library.pages"
HTML_ROWS = 8
"""Number of rows of each table that a notebook shows for a run"""
RUN_AGAIN = "it needs the engine, which files and pickles do not contain: run again"
ADVICE, ADVICE_SECTION = "advice", "kernbench.evaluation.advice"
"""The name of the section of advice, and the module that registers it when it is imported"""
_UNUSED = MachineUse(sips=0, cubes=0, pes=0, slices=0, within="", parts=())


class Run:
    """A run of a program on a machine: a view of the sections of its outcome.

    A pickled or loaded run has all figures and tables and, if observed, its explanation.
    """

    def __init__(self, outcome: RunOutcome) -> None:
        self.outcome = outcome
        self._tables: dict[str, pyarrow.Table] = {}

    @property
    def status(self) -> RunStatus:
        """OK, FAILED, NO_REQUESTS or INTERRUPTED."""
        return self.outcome[of.ENDING].status

    @property
    def ok(self) -> bool:
        """True if the run succeeded."""
        return self.status == "OK"

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        code = self.outcome[of.ENDING].exit_code
        return {"OK": 0, "INTERRUPTED": of.INTERRUPTED}.get(self.status, of.FAILED) if code is None else code

    @property
    def error(self) -> RunFailure | None:
        """The error of a failed run: its type and its texts."""
        ending = self.outcome[of.ENDING]
        if ending.failure is not None or ending.error is None:
            return ending.failure
        kind, _, text = ending.error.partition(": ")
        return RunFailure(kind, text, text)

    @property
    def place(self) -> ErrorPlace | None:
        """The place of the error."""
        return self.outcome[of.ENDING].place

    @property
    def verdict(self) -> RunVerdict | StatedVerdict:
        """The bottleneck of the run, also as a ``sentence``."""
        content = self.outcome.find(of.VERDICT)
        if isinstance(content, RunVerdict | StatedVerdict):
            return content
        if isinstance(content, Unread):
            return StatedVerdict("a later version of kernbench wrote the verdict")
        return StatedVerdict(content.text if isinstance(content, RunFailure) else NOT_SAID)

    @property
    def bench(self) -> str:
        """The name of the bench."""
        return self.outcome[of.PROGRAM].bench

    @property
    def device(self) -> str:
        """The SIPs that the program used: ``all``, or one as ``sip:0``."""
        return self.outcome[of.PROGRAM].device

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of the program."""
        return self.outcome[of.PROGRAM].params

    @property
    def frontends(self) -> Mapping[str, Any]:
        """The settings of front ends that differ from their defaults."""
        return self.outcome[of.SETTINGS].frontends

    @property
    def source(self) -> str:
        """The file of the machine, or its other source."""
        return self.outcome[of.MACHINE].topology

    @property
    def digest(self) -> str:
        """The digest of the machine's configuration."""
        return self.outcome[of.MACHINE].digest

    @property
    def configuration(self) -> Mapping[str, Any]:
        """The complete configuration of the machine as plain data."""
        return self.outcome[of.MACHINE].configuration

    @property
    def machine_name(self) -> str:
        """The name of the machine, or the path of its file."""
        return name_of(self.source)

    @property
    def machine(self) -> CompiledMachine:
        """The machine of the run, compiled again from its configuration on first use."""
        return CompiledMachine(Document(self.source, dict(self.configuration), {}))

    @property
    def latency_ns(self) -> float:
        """The simulated time of the program in ns, without its initialisation."""
        return self.outcome[of.TIME].sim_ns

    @property
    def load(self) -> LoadTime | None:
        """The initialisation time of a front end's program; None for other programs."""
        return self.outcome[of.TIME].load

    @property
    def summary(self) -> BenchSummary:
        """The time, the phases and the launches of the program."""
        phases = self.outcome[of.PHASES]
        return BenchSummary(sim_ns=self.latency_ns, phases=phases.phases, kernels=phases.kernels)

    @property
    def report(self) -> RunReport:
        """The figures that were measured on the engine."""
        outcome = self.outcome
        time, launches, traffic, memories = (
            outcome[of.TIME],
            outcome[of.LAUNCHES],
            outcome[of.TRAFFIC],
            outcome[of.MEMORIES],
        )
        return RunReport(
            launches=launches.launches,
            engines=outcome[of.ENGINES].engines,
            traffic=traffic.traffic,
            used=memories.used or _UNUSED,
            events=time.events,
            transfers=time.transfers,
            records=time.records,
            under_way=launches.under_way,
            queues=traffic.queues,
            translation=traffic.translation,
            memories=memories.memories,
        )

    @property
    def checks(self) -> tuple[Comparison, ...]:
        """The evaluated comparisons."""
        return self.outcome[of.VERIFICATION].comparisons

    @property
    def skipped(self) -> int:
        """The number of comparisons that were not evaluated."""
        return self.outcome[of.VERIFICATION].skipped

    @property
    def verify(self) -> bool:
        """True if the run evaluated comparisons."""
        return self.outcome[of.PROGRAM].verify or bool(self.checks)

    @property
    def verified(self) -> bool:
        """True if values were compared and all comparisons passed."""
        return bool(self.checks) and all(comparison.passed for comparison in self.checks)

    @property
    def data(self) -> DataReport:
        """The values that were stored, read and computed."""
        return self.outcome.get(of.DATA) or DataReport(kept=False)

    @property
    def operators(self) -> tuple[OperatorUse, ...]:
        """The operators of a host library by time, the longest first."""
        return self.outcome[of.OPERATORS].operators

    @property
    def unmodelled(self) -> Mapping[str, int]:
        """The operators that the host computed, with their counts."""
        return self.outcome[of.OPERATORS].unmodelled

    @property
    def compiled(self) -> CompiledGraphs | None:
        """The graphs that a host library's compiler has compiled; None if the program did not use it."""
        return self.outcome[of.OPERATORS].compiled

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks of a front end, and reasons for what is missing."""
        return self.outcome[of.OPERATORS].remarks

    @property
    def said(self) -> str:
        """A line in which the program summarises its result."""
        return self.outcome[of.OUTPUT].said

    @property
    def printed(self) -> tuple[PrintedLine, ...]:
        """The lines that kernels printed."""
        return self.outcome[of.OUTPUT].printed

    @property
    def leaked(self) -> tuple[str, ...]:
        """The memory that the program did not free."""
        return self.outcome[of.OUTPUT].leaked

    @property
    def left(self) -> tuple[str, ...]:
        """The work that the program left behind."""
        return self.outcome[of.OUTPUT].left

    @property
    def findings(self) -> tuple[Finding, ...] | None:
        """The findings of the sanitizer; None if it did not run."""
        return self.outcome.get(of.FINDINGS)

    @property
    def launch_queue(self) -> QueueReport | None:
        """The use of the queues of launches; None if the host waited for each launch."""
        return self.outcome.get(of.LAUNCH_QUEUE)

    @property
    def collectives(self) -> tuple[CollectiveUse, ...]:
        """The collectives of a front end's ranks, the longest first."""
        return self.outcome.get(of.COLLECTIVES) or ()

    @property
    def reuse(self) -> ReuseReport | None:
        """The reuse of launches; None in a run that simulated all of them."""
        return self.outcome.get(of.REUSE)

    @property
    def folded(self) -> FoldReport | None:
        """The rows of the log that are folded, and their launches; None if all rows are there."""
        return self.outcome.get(of.FOLDED)

    @property
    def ranks(self) -> RanksReport | None:
        """The time that more ranks do not shrink, pipelines and uneven exchanges; None without a front end's ranks."""
        return self.outcome.get(of.RANKS)

    @property
    def energy(self) -> RunEnergy:
        """The energy of the run by part and link. Raises InputError, with the reason, for a run without it."""
        return self.outcome[of.ENERGY]

    @property
    def advised(self) -> Mapping[str, Any] | None:
        """The predicted gain of each machine change as plain data; None if it was not requested."""
        document: Mapping[str, Any] | None = to_plain(self.advice)
        return document

    @property
    def advice(self) -> Advice | None:
        """The predicted gain of each machine change; None if it was not requested."""
        if not self.outcome.has(ADVICE):
            return None
        advice: Advice | None = self.outcome.get(late(ADVICE_SECTION, "ADVICE"))
        return advice

    @property
    def live(self) -> FinishedRun | None:
        """The engine of the run and its observers; None for a loaded or unpickled run."""
        return self.outcome.run

    @property
    def engine(self) -> GraphEngine:
        """The engine of the run. Raises InputError for a run without its engine."""
        return self._require_live("engine").engine

    def without_explanation(self) -> Run:
        """Return the run without its explanation. Used if the explanation was interrupted."""
        ending, operators = self.outcome[of.ENDING], self.outcome[of.OPERATORS]
        ending = replace(ending, status="INTERRUPTED", exit_code=of.INTERRUPTED)
        operators = replace(operators, remarks=(*operators.remarks, of.UNEXPLAINED))
        outcome = self.outcome.with_content(of.ENDING, ending).with_content(of.OPERATORS, operators)
        return Run(outcome.with_content(of.EXPLANATION, Absence("its explanation was interrupted")))

    def raise_for_status(self) -> None:
        """Raise the error of a failed run."""
        if self.live is not None and self.live.error is not None:
            raise self.live.error
        if self.error is not None:
            raise self.error.as_error()

    @property
    def phases(self) -> Table[PhaseSummary]:
        """The requests by phase."""
        return tables.phases_table(self.summary.phases, self.latency_ns)

    @property
    def launches(self) -> Table[LaunchSplit]:
        """The longest launch of each name."""
        return tables.launches_table(self.report.launches)

    @property
    def engines(self) -> Table[EngineUsage]:
        """The use of engines, by kind."""
        return tables.engines_table(self.report.engines)

    @property
    def links(self) -> Table[LinkTraffic]:
        """The busiest links."""
        return tables.links_table(self.report.traffic.busiest)

    @property
    def memories(self) -> Table[MemoryTraffic]:
        """The memories with the most traffic."""
        return tables.memories_table(self.report.memories)

    @property
    def comparisons(self) -> Table[Comparison]:
        """The comparisons of the program."""
        return tables.comparisons_table(self.checks)

    @property
    def unexplained(self) -> RunFailure | None:
        """The failure of the explanation."""
        content = self.outcome.find(of.EXPLANATION)
        return content if isinstance(content, RunFailure) else None

    def explain(self) -> Explanation:
        """Return the explanation of the time: critical paths, bounds, lines.

        Raises InputError for a run without observation, and ExplanationError if the explanation failed.
        """
        content = self.outcome.find(of.EXPLANATION)
        if isinstance(content, Absence):
            raise InputError(f"this run has no explanation, since {content.reason}: run again with observe=True")
        return replace(self.outcome[of.EXPLANATION], name=self.bench)

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
            bounds: Figure = self.explain().roofline_figure()
            return bounds
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

    def _table(self, name: str, function: str) -> pyarrow.Table:
        live = self._require_live(name)
        if name not in self._tables:
            self._tables[name] = late(LIVE, function)(live)
        return self._tables[name]

    def _require_live(self, subject: str) -> FinishedRun:
        if self.live is None:
            raise InputError(f"{subject}: {RUN_AGAIN}")
        return self.live

    def _require_log(self, subject: str) -> FinishedRun:
        live = self._require_live(subject)
        if live.log is None:
            raise InputError(f"{subject}: this run was not observed: run again with observe=True")
        return live

    def to_dict(self) -> dict[str, Any]:
        """Return the run as the document that ``kernbench run --json`` prints."""
        return plain_document(self.outcome.to_document())

    @property
    def status_line(self) -> str:
        """The status of the run, as a line of text."""
        simulated = f"{format_ns(self.latency_ns)} simulated, {self.report.events:,} events"
        return f"{self.status}  {self.bench}: {simulated}"

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={content}" for name, content in self.params.items())
        lines = [self.verdict.sentence, self.status_line]
        lines += [f"  error        {self.error}".partition("\n")[0]] if self.error is not None else []
        lines += [f"  parameters   {params}"] if params else []
        lines += [f"  machine      {self.machine_name} ({self.digest[:12]}), device {self.device}"]
        lines += [f"  numbers      {passed_or_not(self.checks)}; {self.data}"]
        lines += [f"  launch       {launch.title}: {launch.total_ns:,.3f} ns" for launch in self.report.launches[:2]]
        return "\n".join(line[:LINE] for line in lines)

    def _repr_html_(self) -> str:
        tables = (self.launches, self.phases, self.engines, self.links, self.memories, self.comparisons)
        text, picture = repr(self), []
        try:
            is_explained = self.live is not None and self.live.explanation is not None
            is_explained = is_explained or self.outcome.get(of.EXPLANATION) is not None
            picture = [late(LIVE, "svg_of")(self.roofline())] if is_explained else []
        except ExplanationError as error:
            text = f"{text}\n{error}"
        return text_html(text, *picture, *(table.to_html(HTML_ROWS) for table in tables if len(table)))

    def __getstate__(self) -> dict[str, Any]:
        return {"outcome": self.outcome, "_tables": {}}
