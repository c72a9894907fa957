"""Running a bench: an engine, a context around the program, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeAlias

from kernbench.ccl.config import CclConfig
from kernbench.common.collector import patient_collector
from kernbench.common.config import ConfigModel
from kernbench.common.errors import BenchError
from kernbench.runtime_api.bench_registry import Bench, Run, file_of
from kernbench.runtime_api.bench_result import BenchResult, BenchStatus, summarise
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.engine_api import Engine
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.statistics import LinkTraffic, link_traffic
from kernbench.topology.builder import Topology, resolve_topology

__all__ = ["BenchResult", "BenchStatus", "EngineFactory", "run_bench"]

EngineFactory: TypeAlias = Callable[[Topology, DeviceSelector], Engine]


def run_bench(
    *,
    topology: Topology | str | os.PathLike[str] | None,
    bench_fn: Bench | Run,
    device: DeviceSelector | str = "all",
    engine_factory: EngineFactory,
    params: ConfigModel | Iterable[str] | None = None,
    verify: bool = False,
    correlation_id: str = "",
    ccl: str | os.PathLike[str] | CclConfig | None = None,
) -> BenchResult:
    """Run a bench, or any function of one argument, on a machine that ``engine_factory`` makes of ``topology``.

    ``params``: the bench's parameters, or texts like ``bench.m=512`` that change them. ``verify``: evaluate its
    comparisons; the engine then has to compute data. ``ccl``: what configures collectives, or its file. Errors of the
    program are in the result; InputError comes out for a topology, a device or parameters that cannot be used.
    """
    bench = _as_bench(bench_fn)
    chosen = _params(bench, params)
    machine = topology if isinstance(topology, Topology) else resolve_topology(topology)
    selector = device if isinstance(device, DeviceSelector) else DeviceSelector(device)
    engine = engine_factory(machine, selector)
    context = RuntimeContext(
        engine=engine, target_device=selector, correlation_id=correlation_id, params=chosen, verify=verify, ccl=ccl
    )
    return _Run(bench, context, selector, chosen).result()


class _Run:
    """One run of a bench under way."""

    __slots__ = ("_bench", "_context", "_error", "_links", "_params", "_selector", "_sim_ns", "_value")

    def __init__(
        self, bench: Bench, context: RuntimeContext[ConfigModel], selector: DeviceSelector, params: ConfigModel
    ) -> None:
        self._bench, self._context = bench, context
        self._selector, self._params = selector, params
        self._value: object = None
        self._error: Exception | None = None
        self._sim_ns = 0.0
        self._links: tuple[LinkTraffic, ...] = ()

    def result(self) -> BenchResult:
        """Run to the end, well or not."""
        try:
            with patient_collector(), self._context:
                self._run()
        except Exception as error:
            self._error = error
        context = self._context
        return BenchResult(
            bench=self._bench.name,
            status=self._status(),
            device=str(self._selector),
            params=self._params,
            engine=context.engine,
            completion=context.requests.last_completion,
            traces=context.traces,
            comparisons=context.testing.comparisons,
            skipped_comparisons=context.testing.skipped,
            sim_ns=self._sim_ns,
            summary=summarise(context.traces, self._sim_ns),
            cleanup=context.cleanup_report,
            links=self._links,
            value=self._value,
            error=self._error,
        )

    def _run(self) -> None:
        engine = self._context.engine
        begin = engine.now
        try:
            self._value = self._bench(self._context)
            self._context.drain()
        finally:
            self._sim_ns = engine.now - begin
            # Now, since cleaning up sends messages too, which are no part of what the program did.
            self._links = link_traffic(engine.machine) if isinstance(engine, GraphEngine) else ()

    def _status(self) -> BenchStatus:
        failed = any(not each.passed for each in self._context.testing.comparisons)
        if self._error is not None or failed:
            return BenchStatus.FAILED
        if not self._context.requests.any_submitted and not self._bench.evaluation:
            return BenchStatus.NO_REQUESTS
        return BenchStatus.OK


def _as_bench(bench_fn: Bench | Run) -> Bench:
    if isinstance(bench_fn, Bench):
        return bench_fn
    if not callable(bench_fn):
        raise BenchError(f"bench_fn is a {type(bench_fn).__name__}, not a bench or a function")
    return Bench(name="bench", description="a function", function=bench_fn, file=file_of(bench_fn))


def _params(bench: Bench, params: ConfigModel | Iterable[str] | None) -> ConfigModel:
    if params is None:
        return bench.params()
    if not isinstance(params, ConfigModel):
        return bench.make_params(params)
    if not isinstance(params, bench.params):
        raise BenchError(f"bench {bench.name!r} takes {bench.params.__name__}, not {type(params).__name__}")
    return params
