"""Running a bench: an engine, a context around the program, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from kernbench.ccl.loading import CclLike
from kernbench.common.collector import patient_collector
from kernbench.common.config import ConfigModel
from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import BenchError, RunError, RunStopped, VerificationError
from kernbench.common.exits import exit_is_failure
from kernbench.common.program_line import ProgramLine
from kernbench.common.units import whole_ps
from kernbench.engine.engine import GraphEngine
from kernbench.observe.statistics import LinkTraffic, link_traffic
from kernbench.runtime_api.bench_registry import Bench, Run, file_of
from kernbench.runtime_api.bench_result import BenchResult, BenchStatus, RunCompletion, summarise
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import FrontendSettings
from kernbench.runtime_api.testing import Comparison
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.triton_emu.source import kernel_source

__all__ = ["BenchResult", "BenchStatus", "EngineFactory", "run_bench"]

EngineFactory: TypeAlias = Callable[[Topology, DeviceSelector], GraphEngine]


def run_bench(
    *,
    topology: Topology | str | os.PathLike[str] | None = None,
    bench_fn: Bench | Run,
    device: DeviceSelector | str = "all",
    engine_factory: EngineFactory | None = None,
    params: ConfigModel | Iterable[str] | None = None,
    verify: bool | None = None,
    correlation_id: str = "",
    ccl: CclLike = None,
    frontends: FrontendSettings | None = None,
    data: DataPolicy | None = None,
) -> BenchResult:
    """Run a bench, or any function of one argument, on a machine that ``engine_factory`` makes of ``topology``.

    ``params``: the bench's parameters, or texts like ``bench.m=512`` that change them. ``verify``: evaluate its
    comparisons; by default when the engine keeps data. ``data``: what the engine that is made here keeps; by default
    all, or as the bench says. ``ccl``: what configures collectives, or its file; ``frontends``: how front ends run
    programs of others.
    Errors of the program are in the result, whose ``raise_for_status()`` raises them; InputError comes out for a
    topology, a device or parameters that cannot be used.
    """
    bench = _as_bench(bench_fn)
    chosen = _params(bench, params)
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
    )
    return _Run(bench, context, selector, chosen).result()


class _Run:
    """One run of a bench under way."""

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
        """Run to the end, well or not."""
        try:
            with patient_collector(), self._context:
                self._run()
            self._check_queues()
        except Exception as error:
            # What has failed otherwise stays the error of the run, and a comparison that failed raised nothing.
            only_listed = self._wrong and self._context.requests.lost.has_raised(error)
            self._error = None if only_listed else error
        except RunStopped as stopped:
            self._error = stopped.failure
        context = self._context
        status = self._status()
        return BenchResult(
            bench=self._bench.name,
            status=status,
            device=str(self._selector),
            params=self._params,
            engine=context.engine,
            completion=self._completion(status),
            traces=context.traces,
            comparisons=context.testing.comparisons,
            skipped_comparisons=context.testing.skipped,
            sim_ns=self._sim_ns,
            summary=summarise(context.traces, self._sim_ns),
            cleanup=context.cleanup_report,
            links=self._links,
            program=_beginning(self._bench),
            value=self._value,
            error=self._error,
            unmodelled=dict(context.unmodelled),
            data=self._data,
        )

    def _run(self) -> None:
        engine = self._context.engine
        try:
            with exit_is_failure():
                self._value = self._bench(self._context)
                self._context.drain()
        finally:
            self._sim_ns = whole_ps(engine.now - self._begin_ns)
            # Now, since cleaning up sends messages too, which are no part of what the program did.
            self._links = link_traffic(engine.machine)
            self._data = engine.data_report()

    def _check_queues(self) -> None:
        """IpcqError for messages of this run in queues that it did not install by its context, so that still stand."""
        context = self._context
        lost, report = context.requests.lost, context.cleanup_report
        lost.add(each for each in context.engine.unreceived() if each.launch >= self._first_request)
        left = dict.fromkeys([*report.left, *lost.listed(after_failure=False)])
        context.cleanup_report = replace(report, left=tuple(left))
        lost.raise_new()

    @property
    def _wrong(self) -> list[Comparison]:
        """The comparisons that failed."""
        return [each for each in self._context.testing.comparisons if not each.passed]

    def _status(self) -> BenchStatus:
        if self._error is not None or self._wrong:
            return BenchStatus.FAILED
        if not self._context.requests.any_submitted and not self._bench.evaluation:
            return BenchStatus.NO_REQUESTS
        return BenchStatus.OK

    def _completion(self, status: BenchStatus) -> RunCompletion:
        last = self._context.requests.last_completion
        return RunCompletion(
            request_id=None if last is None else last.request_id,
            t_start=self._begin_ns,
            t_end=self._begin_ns + self._sim_ns,
            error=self._failure(status),
        )

    def _failure(self, status: BenchStatus) -> Exception | None:
        """Why the run did not go well."""
        if status is BenchStatus.NO_REQUESTS:
            return RunError(f"bench {self._bench.name!r} submitted no request, so nothing was simulated")
        wrong = self._wrong
        if self._error is None and wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            return VerificationError(f"{wrong[0]}{more}")
        return self._error


def _as_bench(bench_fn: Bench | Run) -> Bench:
    if isinstance(bench_fn, Bench):
        return bench_fn
    if not callable(bench_fn):
        raise BenchError(f"bench_fn is a {type(bench_fn).__name__}, not a bench or a function")
    return Bench(name="bench", description="a function", function=bench_fn, file=file_of(bench_fn))


def _beginning(bench: Bench) -> ProgramLine:
    source = kernel_source(bench.function)
    return ProgramLine(source.file, source.line, bench.name)


def _params(bench: Bench, params: ConfigModel | Iterable[str] | None) -> ConfigModel:
    if params is None:
        return bench.params()
    if not isinstance(params, ConfigModel):
        return bench.make_params(params)
    if not isinstance(params, bench.params):
        raise BenchError(f"bench {bench.name!r} takes {bench.params.__name__}, not {type(params).__name__}")
    return params
