"""Run a bench: build an engine, run the program in a context, and collect the result."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from enum import StrEnum
from typing import NoReturn, TypeAlias

from kernbench.ccl.loading import CclLike
from kernbench.common.collector import patient_collector
from kernbench.common.config import ConfigModel
from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import (
    BenchError,
    KernbenchError,
    RunError,
    RunStopped,
    SecondThreadError,
    VerificationError,
    exit_is_failure,
    text_of,
)
from kernbench.common.figures import figure
from kernbench.common.program_line import ErrorPlace, ProgramLine, place_of, program_line
from kernbench.common.units import whole_ps
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.keeping import DataReport
from kernbench.observe.statistics import LinkTraffic, link_traffic
from kernbench.runtime_api.bench_registry import Bench, BenchFunction, file_of
from kernbench.runtime_api.compiled import CompiledGraphs
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import FrontendSettings
from kernbench.runtime_api.memory import CleanupReport
from kernbench.runtime_api.operators import LoadTime, ModuleUse, OperatorUse
from kernbench.runtime_api.requests import RequestRecord
from kernbench.runtime_api.run_request import ReuseRules
from kernbench.runtime_api.testing import Comparison
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.triton_emu.source import kernel_source

__all__ = ["BenchResult", "BenchStatus", "EngineFactory", "run_bench"]

EngineFactory: TypeAlias = Callable[[Topology, DeviceSelector], GraphEngine]


class BenchStatus(StrEnum):
    """The outcomes of a run."""

    OK = "ok"
    FAILED = "FAILED"
    NO_REQUESTS = "NO_REQUESTS"


@value(kw_only=True)
class PhaseSummary:
    """The summary of all requests of one phase.

    ``nbytes``: the total bytes of the requests. ``busy_ns``: the time during which at least one request was in flight.
    ``longest_ns``: the duration of the longest request.
    """

    phase: str = figure("the request type")
    requests: int = figure("how many there were", default=0)
    nbytes: int = figure("bytes of all", default=0)
    busy_ns: float = figure("ns with at least one request in flight")
    longest_ns: float = figure("the longest of them", default=0.0)


@value(kw_only=True)
class KernelSummary:
    """The summary of all launches of one name.

    ``total_ns``: the sum of the launches' durations. ``pe_exec_ns``: the longest execution on one PE in any launch.
    ``algorithm``: the algorithm of a collective; launches of the same name with another algorithm have another summary.
    """

    name: str
    algorithm: str | None
    launches: int
    total_ns: float
    pe_count: int
    pe_exec_ns: float


@value(kw_only=True)
class BenchSummary:
    """The figures of a run, without initialisation. Phases and kernels are in the order of first appearance."""

    sim_ns: float
    phases: tuple[PhaseSummary, ...]
    kernels: tuple[KernelSummary, ...]


@value(kw_only=True)
class RunCompletion:
    """The end of a complete run. Times are in ns of the program, counted from the end of initialisation.

    ``request_id``: the request that failed, else the last request that the program waited for; None without requests.
    """

    request_id: int | None
    t_start: float
    t_end: float
    error: Exception | None

    @property
    def ok(self) -> bool:
        """True when the program returned, all requests have ended and all compared numbers were close."""
        return self.error is None


@value(kw_only=True)
class BenchResult:
    """The result of a run of a bench.

    ``completion``: the end of the run, with its error if it failed. ``traces``: every request. ``sim_ns``: simulated
    time of the program, without initialisation and cleanup. ``load``: the initialisation time of a front end's program;
    None for other programs. ``value``: the return value of the program. ``error``: the exception that it raised.
    ``skipped_comparisons``: comparisons not evaluated, because the run does not verify. ``links``: the traffic of each
    link at the end of the program. ``program``: the first line of the bench. ``unmodelled``: the operators of a front
    end that the host computed at the cost of copies, with their counts. ``operators``: the operators that took time.
    ``modules``: the modules that called them. ``compiled``: the graphs of the front end's compiler. ``remarks``: the
    front end's remarks. ``data``: the data that was stored, read and computed.
    """

    bench: str
    status: BenchStatus
    device: str
    params: ConfigModel
    engine: GraphEngine
    completion: RunCompletion
    traces: tuple[RequestRecord, ...]
    comparisons: tuple[Comparison, ...]
    skipped_comparisons: int
    sim_ns: float
    summary: BenchSummary
    cleanup: CleanupReport
    program: ProgramLine
    data: DataReport
    links: tuple[LinkTraffic, ...] = ()
    value: object = None
    error: Exception | None = None
    unmodelled: Mapping[str, int] = field(default_factory=dict)
    operators: tuple[OperatorUse, ...] = ()
    modules: tuple[ModuleUse, ...] = ()
    compiled: CompiledGraphs | None = None
    remarks: tuple[str, ...] = ()
    load: LoadTime | None = None

    @property
    def ok(self) -> bool:
        """True when the run succeeded."""
        return self.completion.ok

    def raise_for_status(self) -> None:
        """Raise the error that made the run fail; do nothing after a successful run."""
        if self.completion.error is not None:
            raise self.completion.error

    @property
    def place(self) -> ErrorPlace | None:
        """The place where the run failed, at least its bench; None after a successful run."""
        failure = self.completion.error
        if failure is None:
            return None
        line = next((c.line for c in self.comparisons if not c.passed), None) if self.error is None else None
        place = place_of(failure)
        return replace(place, line=place.line or line or self.program)

    @property
    def verified(self) -> bool:
        """True when any values were compared; a failed comparison makes ``ok`` false."""
        return bool(self.comparisons)

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        if isinstance(self.error, KernbenchError):
            return self.error.exit_code
        return 0 if self.ok else 1


def summarise(requests: Iterable[RequestRecord], sim_ns: float, since_ns: float = 0.0) -> BenchSummary:
    """Compute the figures of a run from its requests that start at ``since_ns`` or later."""
    records = [record for record in requests if record.t_start_ns >= since_ns]
    phases = dict.fromkeys(record.phase for record in records)
    launches = [record for record in records if record.phase == "launch"]
    kinds = dict.fromkeys((record.name, record.algorithm) for record in launches)
    return BenchSummary(
        sim_ns=sim_ns,
        phases=tuple(_sum_phase(phase, [record for record in records if record.phase == phase]) for phase in phases),
        kernels=tuple(
            _sum_kernel([record for record in launches if (record.name, record.algorithm) == kind]) for kind in kinds
        ),
    )


def _sum_phase(phase: str, records: list[RequestRecord]) -> PhaseSummary:
    return PhaseSummary(
        phase=phase,
        requests=len(records),
        nbytes=sum(record.nbytes for record in records),
        busy_ns=_measure_union((record.t_start_ns, record.t_end_ns) for record in records),
        longest_ns=max(record.total_ns for record in records),
    )


def _sum_kernel(records: list[RequestRecord]) -> KernelSummary:
    return KernelSummary(
        name=records[0].name,
        algorithm=records[0].algorithm,
        launches=len(records),
        total_ns=whole_ps(sum(record.total_ns for record in records)),
        pe_count=len({pe for record in records for pe in record.pe_exec_ns}),
        pe_exec_ns=max((ns for record in records for ns in record.pe_exec_ns.values()), default=0.0),
    )


def _measure_union(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return whole_ps(total)


def run_bench(
    *,
    topology: Topology | str | os.PathLike[str] | None = None,
    bench_fn: Bench | BenchFunction,
    device: DeviceSelector | str = "all",
    engine_factory: EngineFactory | None = None,
    params: ConfigModel | Iterable[str] | None = None,
    verify: bool | None = None,
    correlation_id: str = "",
    ccl: CclLike = None,
    frontends: FrontendSettings | None = None,
    data: DataPolicy | None = None,
    reuse: ReuseRules | None = None,
    log_rows: int | None = None,
) -> BenchResult:
    """Run a bench, or any function of one argument, on a machine that ``engine_factory`` builds from ``topology``.

    ``params``: the bench's parameters, or overrides like ``bench.m=512``. ``verify``: evaluate the bench's comparisons;
    by default True if the engine computes data. ``data``: the data that the engine stores; by default all data, unless
    the bench declares otherwise. ``ccl``: the configuration of collectives, or its file. ``frontends``: the settings of
    front ends. ``reuse``: let the time of launches pass that are like earlier ones. ``log_rows``: fold the rows of
    launches that are over beyond so many rows of the log; by default never.

    The result stores an error of the program, and its ``raise_for_status()`` raises the error. Raises InputError for an
    unusable topology, device or parameter.
    """
    bench = as_bench(bench_fn)
    chosen = _make_params(bench, params)
    machine = topology if isinstance(topology, Topology) else resolve_topology(topology)
    selector = device if isinstance(device, DeviceSelector) else DeviceSelector(device)
    policy = data or DataPolicy(keep=bench.data or bool(verify))
    make: EngineFactory = engine_factory or (lambda machine, _: GraphEngine(machine, policy))
    engine = make(machine, selector)
    context = RuntimeContext(
        engine=engine,
        target_device=selector,
        correlation_id=correlation_id,
        params=chosen,
        verify=verify,
        ccl=ccl,
        frontends=frontends,
        reuse=reuse,
        log_rows=log_rows,
    )
    return _BenchRun(bench, context, selector, chosen).result()


class _BenchRun:
    """One run of a bench, in progress."""

    __slots__ = (
        "_begin_ns",
        "_bench",
        "_context",
        "_data",
        "_error",
        "_first_request",
        "_links",
        "_params",
        "_selector",
        "_sim_ns",
        "_value",
    )

    def __init__(
        self, bench: Bench, context: RuntimeContext[ConfigModel], selector: DeviceSelector, params: ConfigModel
    ) -> None:
        self._bench, self._context = bench, context
        self._selector, self._params = selector, params
        self._value: object = None
        self._error: Exception | None = None
        self._begin_ns, self._sim_ns = context.engine.now, 0.0
        self._first_request = len(context.engine.handles)
        self._links: tuple[LinkTraffic, ...] = ()
        self._data = context.engine.data_report()

    def result(self) -> BenchResult:
        """Run to the end and return the result, successful or not."""
        try:
            with patient_collector(), self._context:
                self._run()
            self._check_queues()
        except Exception as error:
            # A failed comparison raises nothing itself; it remains the cause if the error only lists lost messages.
            only_listed = self._wrong and self._context.requests.lost.has_raised(error)
            self._error = None if only_listed else error
        except RunStopped as stopped:
            self._error = stopped.failure
        context = self._context
        status = self._decide_status()
        return BenchResult(
            bench=self._bench.name,
            status=status,
            device=str(self._selector),
            params=self._params,
            engine=context.engine,
            completion=self._make_completion(status),
            traces=context.traces,
            comparisons=context.testing.comparisons,
            skipped_comparisons=context.testing.skipped,
            sim_ns=self._sim_ns,
            summary=summarise(context.traces, self._sim_ns, self._zero_ns),
            cleanup=context.cleanup_report,
            links=self._links,
            program=_find_beginning(self._bench),
            value=self._value,
            error=self._error,
            unmodelled=dict(context.unmodelled),
            operators=context.operators.uses(),
            modules=context.operators.module_uses(),
            compiled=context.compiled.report(),
            remarks=tuple(dict.fromkeys(context.remarks)),
            load=context.operators.load,
            data=self._data,
        )

    def _run(self) -> None:
        engine = self._context.engine
        try:
            with exit_is_failure():
                with _forks_end(), _refused_threads_fail():
                    self._value = self._bench(self._context)
                self._context.drain()
        finally:
            self._sim_ns = whole_ps(engine.now - self._zero_ns)
            # Measure before the cleanup, whose messages are not the program's.
            self._links = link_traffic(engine.machine)
            self._data = engine.data_report()

    def _check_queues(self) -> None:
        """Raise IpcqError for messages of this run left in queues that its context neither installed nor removes."""
        context = self._context
        lost, report = context.requests.lost, context.cleanup_report
        lost.add(message for message in context.engine.unreceived() if message.launch >= self._first_request)
        left = dict.fromkeys([*report.left, *lost.list_lines(after_failure=False)])
        context.cleanup_report = replace(report, left=tuple(left))
        lost.raise_new()

    @property
    def _zero_ns(self) -> float:
        """The time in ns at which the reported time of the run begins."""
        load = self._context.operators.load
        return self._begin_ns if load is None else self._begin_ns + load.left_out_ns

    @property
    def _wrong(self) -> list[Comparison]:
        """The comparisons that failed."""
        return [comparison for comparison in self._context.testing.comparisons if not comparison.passed]

    def _decide_status(self) -> BenchStatus:
        if self._error is not None or self._wrong:
            return BenchStatus.FAILED
        if not self._context.requests.any_submitted and not self._bench.evaluation:
            return BenchStatus.NO_REQUESTS
        return BenchStatus.OK

    def _make_completion(self, status: BenchStatus) -> RunCompletion:
        last = self._context.requests.last_completion
        return RunCompletion(
            request_id=None if last is None else last.request_id,
            t_start=self._zero_ns,
            t_end=self._zero_ns + self._sim_ns,
            error=self._find_failure(status),
        )

    def _find_failure(self, status: BenchStatus) -> Exception | None:
        """Return the error that the run ends with; None if it succeeded."""
        if status is BenchStatus.NO_REQUESTS:
            return RunError(f"bench {self._bench.name!r} submitted no request, so nothing was simulated")
        wrong = self._wrong
        if self._error is None and wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            return VerificationError(f"{wrong[0]}{more}")
        return self._error


@contextmanager
def _refused_threads_fail() -> Iterator[None]:
    """At the end of the run, raise the error of a thread that may not call the machine, unless the thread caught it."""
    refused: list[SecondThreadError] = []

    def note(args: threading.ExceptHookArgs) -> None:
        if isinstance(args.exc_value, SecondThreadError):
            refused.append(args.exc_value)
        else:
            show(args)

    show, threading.excepthook = threading.excepthook, note
    try:
        yield
    except Exception as error:
        if refused:
            error.add_note(text_of(refused[0]))
        raise
    finally:
        threading.excepthook = show
    if refused:
        raise refused[0]


@contextmanager
def _forks_end() -> Iterator[None]:
    """End a forked process when it returns from the program: the run belongs to its parent."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            _end_fork(error)
        raise
    if os.getpid() != process:
        _end_fork(None)


def _end_fork(error: BaseException | None) -> NoReturn:
    """End this process as Python does, but leave the cleanup and the outputs of the run to the parent process."""
    code = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    elif error is not None:
        place = program_line(error)
        text = f"error in a forked process: {type(error).__name__}: {text_of(error)}"
        sys.stderr.write(f"{text}\n" if place is None else f"{text}\n  at {place}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the stream is closed, or its reader is
            stream.flush()
    os._exit(code & 0xFF)


def as_bench(bench_fn: Bench | BenchFunction) -> Bench:
    """Return a bench unchanged, and a function of one argument as a bench. Raises BenchError for anything else."""
    if isinstance(bench_fn, Bench):
        return bench_fn
    if not callable(bench_fn):
        raise BenchError(f"found {bench_fn!r}, not a bench or a function of one argument")
    return Bench(name="bench", description="a function", function=bench_fn, file=file_of(bench_fn))


def _find_beginning(bench: Bench) -> ProgramLine:
    source = kernel_source(bench.function)
    return ProgramLine(source.file, source.line, bench.name)


def _make_params(bench: Bench, params: ConfigModel | Iterable[str] | None) -> ConfigModel:
    if params is None:
        return bench.params()
    if not isinstance(params, ConfigModel):
        return bench.make_params(params)
    if not isinstance(params, bench.params):
        raise BenchError(f"bench {bench.name!r} takes {bench.params.__name__}, not {type(params).__name__}")
    return params
