"""The sections of every run: their types, and how they are computed from a finished run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from kernbench.common.errors import ExplanationError, text_of
from kernbench.common.figures import derived_after, figure
from kernbench.common.program_line import ErrorPlace
from kernbench.common.units import is_reported, ns_to_ps
from kernbench.common.values import value
from kernbench.engine.keeping import DataReport
from kernbench.engine.passed_launches import ReuseReport
from kernbench.engine.records import PrintedLine
from kernbench.observe.energy import RunEnergy
from kernbench.observe.findings import Finding
from kernbench.observe.guard import guarded
from kernbench.observe.statistics import EngineUsage, MachineUse, MemoryTraffic, QueueTraffic, Traffic, Translation
from kernbench.observe.verdict import RunVerdict
from kernbench.result.coarse_packets import describe_packets
from kernbench.result.columns import CellRow
from kernbench.result.explanation import (
    ExplainedTime,
    Explanation,
    describe_explanation,
    describe_launch,
    describe_run,
)
from kernbench.result.run_columns import (
    DATA_COLUMNS,
    ENGINE_COLUMNS,
    EXPLANATION_COLUMNS,
    LAUNCH_COLUMNS,
    PHASE_COLUMNS,
    USE_COLUMNS,
    VERIFICATION_COLUMNS,
    tabulate_comparisons,
    tabulate_data,
    tabulate_engines,
    tabulate_launch,
    tabulate_phases,
    tabulate_time,
    tabulate_use,
)
from kernbench.result.sections import Absence, RunOutcome, Section, built_in_sections, register
from kernbench.result.simulation import WRONG, FinishedRun, RunFailure, failure_of
from kernbench.runtime_api.bench_runner import BenchStatus, KernelSummary, PhaseSummary, summarise
from kernbench.runtime_api.collective_report import CollectiveUse
from kernbench.runtime_api.compiled import CompiledGraphs
from kernbench.runtime_api.folding import FoldReport
from kernbench.runtime_api.launch_queue import QueueReport
from kernbench.runtime_api.launch_report import LaunchSplit
from kernbench.runtime_api.operators import LoadTime, ModuleUse, OperatorUse
from kernbench.runtime_api.rank_report import RanksReport
from kernbench.runtime_api.testing import Comparison
from kernbench.runtime_api.testing import verdict as passed_or_not

T = TypeVar("T")
RunStatus: TypeAlias = Literal["OK", "FAILED", "NO_REQUESTS", "INTERRUPTED"]
FAILED, INTERRUPTED = 1, 130
"""Exit codes of a run: failed, ended by Ctrl-C"""
UNEXPLAINED = "not explained: the explanation was interrupted"
UNSANITIZED = "sanitizer: interrupted, so there is no result"


@value(kw_only=True)
class Ending:
    """The end of a run: its status, and the error with its place. ``why``: the error in the words of a sweep."""

    status: RunStatus = figure(column=False, default="OK")
    error: str | None = figure(column=False, default=None)
    place: ErrorPlace | None = figure(column=False, default=None)
    failure: RunFailure | None = figure(stored=False, default=None)
    why: str | None = figure(stored=False, default=None)
    exit_code: int | None = figure(stored=False, default=None)


@value(kw_only=True)
class ProgramRun:
    """The program of a run, its parameters and its device. ``verify``: the run evaluated comparisons."""

    bench: str = figure(column=False)
    device: str = figure(column=False, default="all")
    params: Mapping[str, Any]
    verify: bool = figure(stored=False, default=False)


@value(kw_only=True)
class RunTime:
    """The simulated time of a program in ns, its initialisation, and the sizes of the simulation."""

    sim_ns: float = figure("simulated time, without the initialisation")
    load: LoadTime | None = figure(optional=True, default=None)
    events: int = figure("events of the simulation", default=0)
    transfers: int = figure("transfers on the network", default=0)
    records: int = figure("rows of the op-log", default=0)


@value(kw_only=True)
class RunPhases:
    """The requests by phase, and the launches by name."""

    phases: tuple[PhaseSummary, ...] = ()
    kernels: tuple[KernelSummary, ...] = ()


@value(kw_only=True)
class RunLaunches:
    """The longest launch of each name, and the requests that had not ended."""

    launches: tuple[LaunchSplit, ...]
    under_way: tuple[str, ...] = ()


@value(kw_only=True)
class RunEngines:
    """The use of engines, by type."""

    engines: tuple[EngineUsage, ...]


@value(kw_only=True)
class RunTraffic:
    """The bytes that moved, by link and by queue, and the translations of addresses."""

    traffic: Traffic
    queues: tuple[QueueTraffic, ...] = ()
    translation: Translation | None = figure(column=False, optional=True, default=None)


@value(kw_only=True)
class RunMemories:
    """The memories with most traffic, and the used part of the machine."""

    memories: tuple[MemoryTraffic, ...] = ()
    used: MachineUse | None = figure(optional=True, default=None)


@value(kw_only=True)
class RunOperators:
    """The operators of a host library, those that the host computed (``unmodelled``), and remarks on the run.

    ``modules``: the modules that called operators. ``compiled``: the graphs of the library's compiler, if the program
    used it.
    """

    unmodelled: Mapping[str, int] = figure(optional=True, default_factory=dict)
    operators: tuple[OperatorUse, ...] = figure(optional=True, default=())
    modules: tuple[ModuleUse, ...] = figure(optional=True, default=())
    compiled: CompiledGraphs | None = figure(optional=True, default=None)
    remarks: tuple[str, ...] = figure(optional=True, default=())


@value(kw_only=True)
class RunOutput:
    """The outputs of a program, and the memory and work that it left behind."""

    leaked: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    said: str = figure(column=False, optional=True, default="")
    printed: tuple[PrintedLine, ...] = figure(optional=True, default=())


@value(kw_only=True)
class RunSettings:
    """The settings of front ends that differ from their defaults."""

    frontends: Mapping[str, Any] = figure(optional=True, default_factory=dict)


@value(kw_only=True)
class Verification:
    """The evaluated comparisons, and the number of those that were not evaluated."""

    skipped: int
    comparisons: tuple[Comparison, ...]

    @derived_after(None)
    def verdict(self) -> str:
        """PASS, FAIL or ``not verified``."""
        return passed_or_not(self.comparisons)


@value(kw_only=True)
class RunMachine:
    """The machine of a run: its file, the digest of its configuration, and the configuration."""

    topology: str = figure(column=False, default="")
    digest: str = figure(column=False, default="")
    configuration: Mapping[str, Any]


@value
class StatedVerdict:
    """The verdict on a run without a critical path: a sentence."""

    sentence: str


def _find_ending(run: FinishedRun) -> Ending:
    result, error = run.result, run.error
    if result is None or run.is_interrupted:
        status: RunStatus = "INTERRUPTED"
    elif error is None:
        status = "OK"
    else:
        status = "NO_REQUESTS" if result.status is BenchStatus.NO_REQUESTS else "FAILED"
    if result is None:
        return Ending(status=status, exit_code=INTERRUPTED)
    is_wrong = any(finding.kind in WRONG for finding in run.findings or ())
    place = result.place or (ErrorPlace(line=result.program) if is_wrong else None)
    failure = None if error is None else failure_of(error)
    code = INTERRUPTED if run.is_interrupted else result.exit_code or (FAILED if error is not None else 0)
    return Ending(
        status=status,
        error=None if failure is None else str(failure),
        place=place,
        failure=failure,
        why=None if error is None else _say_why(run, error),
        exit_code=code,
    )


def _say_why(run: FinishedRun, error: Exception) -> str:
    """Return the error of a failed run as a sweep states it."""
    assert run.result is not None, "a failed run has a result"
    if run.result.status is BenchStatus.NO_REQUESTS:
        return "the bench submitted no request"
    wrong = [comparison for comparison in run.result.comparisons if not comparison.passed]
    return str(wrong[0]) if wrong and run.result.error is None else error_text(error)


def error_text(error: BaseException) -> str:
    """Return an error as text, such as ``ValueError: no 48``, without characters that a text file cannot store."""
    return f"{type(error).__name__}: {text_of(error)}".encode(errors="replace").decode()


def _find_program(run: FinishedRun) -> ProgramRun:
    params = run.request.bench.params() if run.context is None else run.context.params
    return ProgramRun(
        bench=run.request.bench.name,
        device=run.device,
        params=params.model_dump(mode="json"),
        verify=run.request.verify,
    )


def _find_time(run: FinishedRun) -> RunTime:
    report = run.report
    return RunTime(
        sim_ns=run.sim_ns,
        events=report.events,
        transfers=report.transfers,
        records=report.records,
        load=None if run.context is None else run.context.operators.load,
    )


def _find_phases(run: FinishedRun) -> RunPhases:
    summary = summarise(run.traces, run.sim_ns, run.zero_ns)
    return RunPhases(phases=summary.phases, kernels=summary.kernels)


def _find_memories(run: FinishedRun) -> RunMemories:
    report = run.report
    return RunMemories(memories=report.memories, used=report.used if report.used.sips else None)


def _find_operators(run: FinishedRun) -> RunOperators:
    result = run.result
    remarks = [] if run.unsanitized is None else [run.unsanitized.text]
    machine = run.engine.topology
    if machine.file_packet_bytes is not None:
        remarks.append(describe_packets(machine.spec.transport.packet_bytes, machine.file_packet_bytes))
    if result is not None:
        remarks += result.remarks
    if run.is_explanation_interrupted:
        remarks += [UNEXPLAINED] + ([] if run.sanitizer is None else [UNSANITIZED])
    if result is None:
        return RunOperators(remarks=tuple(remarks))
    return RunOperators(
        unmodelled=result.unmodelled,
        operators=result.operators,
        modules=result.modules,
        compiled=result.compiled,
        remarks=tuple(remarks),
    )


def _find_output(run: FinishedRun) -> RunOutput:
    result = run.result
    if result is None:
        return RunOutput(printed=run.printed)
    return RunOutput(
        # An aborted run could not free its memory.
        leaked=tuple(map(str, result.cleanup.leaked)) if result.error is None else (),
        left=result.cleanup.left,
        said=result.value if isinstance(result.value, str) else "",
        printed=run.printed,
    )


def _find_verification(run: FinishedRun) -> Verification:
    testing = None if run.context is None else run.context.testing
    if testing is None:
        return Verification(skipped=0, comparisons=())
    return Verification(skipped=testing.skipped, comparisons=testing.comparisons)


def _find_machine(run: FinishedRun) -> RunMachine:
    machine = run.request.machine
    return RunMachine(topology=machine.source, digest=machine.digest, configuration=machine.configuration)


def _find_verdict(run: FinishedRun) -> RunVerdict | StatedVerdict:
    """Return the verdict. Without a critical path, it consists of the reason and the busiest resources."""
    if run.unexplained is not None:
        return StatedVerdict(run.unexplained.text)
    if run.explanation is not None:
        return run.explanation.verdict
    report = run.report
    busiest = max(report.engines, key=lambda usage: usage.occupancy, default=None)
    used = [] if busiest is None else [(busiest.engine, busiest.occupancy)]
    used += [(f"link {link.src} → {link.dst}", link.utilisation) for link in report.traffic.busiest[:1]]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in used if is_reported(share))
    reason = "not observed" if run.log is None else "not explained"
    return StatedVerdict(f"{reason}; busiest: {shares or 'nothing'}")


def _find_reuse(run: FinishedRun) -> ReuseReport | Absence:
    reuse = None if run.context is None else run.context.reuse
    return Absence("launches were not reused") if reuse is None else reuse.report(ns_to_ps(run.sim_ns))


def _find_folded(run: FinishedRun) -> FoldReport | Absence:
    report = None if run.context is None else run.context.folder.report()
    return Absence("all rows of the log are there") if report is None else report


def _find_launch_queue(run: FinishedRun) -> QueueReport | Absence:
    report = None if run.context is None else run.context.queue.report(ns_to_ps(run.zero_ns))
    return Absence("the host waited for each launch") if report is None else report


def _find_ranks(run: FinishedRun) -> RanksReport | Absence:
    context = run.context
    if context is None or context.alike_work.n_ranks < 2:
        return Absence("the program had no ranks of a front end")
    zero_ps, machine = ns_to_ps(run.zero_ns), run.engine.machine
    scaling = context.alike_work.report(
        machine.log.on_device,
        zero_ps,
        ns_to_ps(run.sim_ns),
        context.collectives.exposed_ps(run.engine.handles, zero_ps),
    )
    return context.rank_notes.report(run.engine, run.works, scaling)


def _find_collectives(run: FinishedRun) -> tuple[CollectiveUse, ...] | Absence:
    uses = () if run.context is None else run.context.collectives.uses(run.engine.handles, ns_to_ps(run.zero_ns))
    return uses or Absence("no ranks of a front end called collectives")


def _find_findings(run: FinishedRun) -> tuple[Finding, ...] | Absence:
    return Absence("the sanitizer did not run") if run.findings is None else run.findings


def _find_energy(run: FinishedRun) -> RunEnergy | Absence:
    return Absence("the energy of its machine is null") if run.energy is None else run.energy


def find_explanation(run: FinishedRun, *, every_launch: bool = True) -> Explanation | Absence | RunFailure:
    """Return the explanation of all launches, or of the longest launch of each name, or the reason for its absence."""
    if run.unexplained is not None:
        return run.unexplained
    if run.explanation is None:
        interrupted = "its explanation was interrupted"
        return Absence(interrupted if run.is_explanation_interrupted else "the run was not observed")
    longest = (
        None if every_launch else sorted(run.explanation.longest_of_each_name(), key=lambda launch: launch.request_id)
    )
    return describe_explanation(run.request.bench.name, run.explanation, longest)


def _tabulate(outcome: RunOutcome, section: Section[T], tabulate: Callable[[T], CellRow]) -> CellRow:
    content = outcome.get(section)
    return {} if content is None else tabulate(content)


def _tabulate_ending(ending: Ending) -> CellRow:
    return {"status": "ok" if ending.status == "OK" else "failed", "error": ending.why or ending.error}


def _tabulate_launch(outcome: RunOutcome) -> CellRow:
    """Tabulate the launch with most of the critical path, or the longest one without a path."""
    launches = outcome.get(LAUNCHES)
    return {} if launches is None else tabulate_launch(launches.launches, _name_main_launch(outcome))


def _name_main_launch(outcome: RunOutcome) -> str | None:
    if outcome.run is not None:
        explained = outcome.run.explanation
        return None if explained is None or explained.main_launch is None else explained.main_launch.name
    explanation = outcome.get(EXPLANATION)
    main = None if explanation is None else explanation.find_main_launch()
    return None if main is None else main.name


def _tabulate_explanation(outcome: RunOutcome) -> CellRow:
    """Tabulate the run and its main launch."""
    if outcome.run is not None and outcome.run.unexplained is not None:
        return {"run.verdict": outcome.run.unexplained.text}
    try:
        with guarded("explanation"):
            row: CellRow = {}
            for group, time in _find_times(outcome).items():
                row |= tabulate_time(group, time)
            return row
    except ExplanationError as error:
        return {"run.verdict": str(error)}


def _find_times(outcome: RunOutcome) -> dict[str, ExplainedTime]:
    """Return the explained times of the run and of its main launch; the other launches need not be explained."""
    run = outcome.run
    if run is None:
        explanation = outcome.get(EXPLANATION)
        main = None if explanation is None else explanation.find_main_launch()
    elif run.explanation is None:
        return {}
    else:
        launch = run.explanation.main_launch
        explanation = describe_run(run.request.bench.name, run.explanation)
        main = None if launch is None else describe_launch(launch)
    times = {"run": explanation, "launch": main}
    return {group: time for group, time in times.items() if time is not None}


_register = partial(register, built_in=True)
ENDING: Section[Ending] = _register(
    Section(
        name="ending",
        form=Ending,
        needed=True,
        compute=_find_ending,
        inline=True,
        columns={"status": str, "error": str},
        row=lambda outcome: _tabulate_ending(outcome[ENDING]),
    )
)
TIME: Section[RunTime] = _register(Section(name="time", form=RunTime, needed=True, compute=_find_time, inline=True))
VERIFICATION: Section[Verification] = _register(
    Section(
        name="verification",
        form=Verification,
        compute=_find_verification,
        columns=VERIFICATION_COLUMNS,
        row=lambda outcome: _tabulate(
            outcome, VERIFICATION, lambda verification: tabulate_comparisons(verification.comparisons)
        ),
    )
)
DATA: Section[DataReport] = _register(
    Section(
        name="data",
        form=DataReport,
        compute=lambda run: run.data,
        columns=DATA_COLUMNS,
        row=lambda outcome: _tabulate(outcome, DATA, tabulate_data),
    )
)
LAUNCHES: Section[RunLaunches] = _register(
    Section(
        name="launches",
        form=RunLaunches,
        compute=lambda run: RunLaunches(launches=run.report.launches, under_way=run.report.under_way),
        inline=True,
        columns=LAUNCH_COLUMNS,
        row=_tabulate_launch,
    )
)
EXPLANATION: Section[Explanation] = _register(
    Section(
        name="explanation",
        form=Explanation,
        compute=find_explanation,
        columns=EXPLANATION_COLUMNS,
        row=_tabulate_explanation,
    )
)
VERDICT: Section[RunVerdict | StatedVerdict] = _register(
    Section(name="verdict", form=RunVerdict | StatedVerdict, compute=_find_verdict, columns={}, row=lambda _: {})
)
PHASES: Section[RunPhases] = _register(
    Section(
        name="phases",
        form=RunPhases,
        compute=_find_phases,
        inline=True,
        columns=PHASE_COLUMNS,
        row=lambda outcome: _tabulate(outcome, PHASES, lambda phases: tabulate_phases(phases.phases)),
    )
)
ENGINES: Section[RunEngines] = _register(
    Section(
        name="engines",
        form=RunEngines,
        compute=lambda run: RunEngines(engines=run.report.engines),
        inline=True,
        columns=ENGINE_COLUMNS,
        row=lambda outcome: _tabulate(outcome, ENGINES, lambda engines: tabulate_engines(engines.engines)),
    )
)
TRAFFIC: Section[RunTraffic] = _register(
    Section(
        name="traffic",
        form=RunTraffic,
        compute=lambda run: RunTraffic(
            traffic=run.report.traffic, queues=run.report.queues, translation=run.report.translation
        ),
        inline=True,
    )
)
MEMORIES: Section[RunMemories] = _register(
    Section(
        name="memories",
        form=RunMemories,
        compute=_find_memories,
        inline=True,
        columns=USE_COLUMNS,
        row=lambda outcome: _tabulate(outcome, MEMORIES, lambda memories: tabulate_use(memories.used)),
    )
)
OPERATORS: Section[RunOperators] = _register(
    Section(name="operators", form=RunOperators, needed=True, compute=_find_operators, inline=True)
)
OUTPUT: Section[RunOutput] = _register(Section(name="output", form=RunOutput, compute=_find_output, inline=True))
REUSE: Section[ReuseReport] = _register(Section(name="reuse", form=ReuseReport, compute=_find_reuse))
FOLDED: Section[FoldReport] = _register(Section(name="folded", form=FoldReport, compute=_find_folded))
LAUNCH_QUEUE: Section[QueueReport] = _register(
    Section(name="launch_queue", form=QueueReport, compute=_find_launch_queue)
)
RANKS: Section[RanksReport] = _register(Section(name="ranks", form=RanksReport, compute=_find_ranks))
COLLECTIVES: Section[tuple[CollectiveUse, ...]] = _register(
    Section(name="collectives", form=tuple[CollectiveUse, ...], compute=_find_collectives, columns={}, row=lambda _: {})
)
FINDINGS: Section[tuple[Finding, ...]] = _register(
    Section(name="findings", form=tuple[Finding, ...], compute=_find_findings, columns={}, row=lambda _: {})
)
SETTINGS: Section[RunSettings] = _register(
    Section(
        name="settings",
        form=RunSettings,
        needed=True,
        compute=lambda run: RunSettings(frontends=run.request.frontends.model_dump(mode="json", exclude_defaults=True)),
        inline=True,
    )
)
PROGRAM: Section[ProgramRun] = _register(
    Section(
        name="program",
        form=ProgramRun,
        needed=True,
        compute=_find_program,
        inline=True,
        columns={"params": str},
        row=lambda outcome: {"params": json.dumps(dict(outcome[PROGRAM].params), sort_keys=True)},
    )
)
MACHINE: Section[RunMachine] = _register(
    Section(
        name="machine",
        form=RunMachine,
        compute=_find_machine,
        inline=True,
        needed=True,
        columns={"machine": str},
        row=lambda outcome: {"machine": outcome[MACHINE].digest},
    )
)


ENERGY: Section[RunEnergy] = _register(Section(name="energy", form=RunEnergy, compute=_find_energy))


BUILT_IN = built_in_sections()
"""The sections of every run, without those of rooms above and of users"""
