"""Runs of the GEMM evaluation: each is a separate simulation, measured from its op-log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import InputError
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.core.op_log import OpRecord
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Machine
from kernbench.engine.requests import RequestHandle
from kernbench.evaluation.gemm_results import LOAD, STAGES, GemmRun, GemmSweep, RunWindow, Usage, Verified
from kernbench.evaluation.gemm_shapes import VARIANTS, GemmShape
from kernbench.evaluation.gemm_theory import IdealPipeline
from kernbench.kernels.gemm import STAGE_BYTES
from kernbench.messages.commands import BY_BLOCKS
from kernbench.messages.control import PeReport
from kernbench.observe.statistics import union_ps
from kernbench.observe.works import ENGINE_OF
from kernbench.runtime_api.bench_registry import lookup_bench
from kernbench.runtime_api.bench_runner import BenchResult
from kernbench.runtime_api.launch_report import launches_of
from kernbench.runtime_api.prepared_run import PreparedRun
from kernbench.topology.builder import Topology

BENCH = "matmul-composite"


@value(kw_only=True)
class GemmStudy:
    """The simulations: every shape in every variant, on one PE of SIP ``sip``."""

    topology: Topology
    shapes: tuple[GemmShape, ...]
    variants: tuple[str, ...] = VARIANTS
    dtype: str = "f16"
    sip: int = 0

    def __post_init__(self) -> None:
        """Raise InputError if operands are too large to be staged: their blocks would be loaded during the pipeline."""
        item = dtype_of(self.dtype).itemsize
        for shape in self.shapes:
            if max(shape.m, shape.n) * shape.k * item > STAGE_BYTES:
                raise InputError(
                    f"{shape} in {self.dtype}: an operand has more than the {STAGE_BYTES} bytes that are staged"
                )

    def run(self) -> GemmSweep:
        """Run all simulations with values. Errors of a run are raised."""
        pipeline = IdealPipeline(Machine(self.topology.topology_obj), dtype_of(self.dtype), self.sip)
        pairs = [(shape, variant) for shape in self.shapes for variant in self.variants]
        return GemmSweep(
            topology_hash=self.topology.digest,
            runs=tuple(self._run(shape, variant, pipeline) for shape, variant in pairs),
        )

    def _run(self, shape: GemmShape, variant: str, pipeline: IdealPipeline) -> GemmRun:
        values = {"m": shape.m, "k": shape.k, "n": shape.n, "variant": variant, "dtype": self.dtype}
        params = [f"bench.{name}={value}" for name, value in values.items()]
        bench, device = lookup_bench(BENCH), f"sip:{self.sip}"
        result = PreparedRun(bench=bench, machine=self.topology, params=params, device=device, verify=True).run()
        if result.error is not None:
            raise result.error
        return _Measurement(result.engine, result, self.dtype).run(shape, variant, pipeline)


@state
class _Measurement:
    """Measures a run, which has a single launch on one PE, from its engine."""

    engine: GraphEngine
    result: BenchResult
    dtype: str
    _launch: RequestHandle = field(init=False)
    _kernel: PeReport = field(init=False)
    _records: list[OpRecord] = field(init=False)

    def __post_init__(self) -> None:
        (self._launch,) = launches_of(self.engine.handles)
        assert self._launch.outcome is not None, "a finished launch has an outcome"
        (self._kernel,) = self._launch.outcome.reports
        self._records = [record for record in self.engine.op_log if record.launch_id == self._launch.request_id]

    def run(self, shape: GemmShape, variant: str, pipeline: IdealPipeline) -> GemmRun:
        """Return the measurements of the run as a GemmRun."""
        gemm, dtype = self.engine.spec.pe.gemm, dtype_of(self.dtype)
        stages = self._usages(_stage)
        matrix_unit = next(use for use in stages if use.name == ENGINE_OF["gemm"])
        kernel_ns = ps_to_ns(self._kernel.end_ps - self._kernel.start_ps)
        return GemmRun(
            shape=shape,
            variant=variant,
            dtype=dtype.name,
            tile=gemm.tile_sizes,
            tiles=shape.tile_count(gemm.tile_sizes),
            blocks=next(record.name.partition(BY_BLOCKS)[2] for record in self._records if _is_whole(record)),
            under_tile=shape.under_tile(gemm.tile_sizes),
            sim_ns=self.result.sim_ns,
            launch_ns=ps_to_ns(self._launch.ended_ps - self._launch.submitted_ps),
            pe=RunWindow(0.0, kernel_ns),
            composite=self._window([record for record in self._records if _is_whole(record)]),
            stages=stages,
            engines=self._usages(_engine),
            mac_utilisation=matrix_unit.busy_ns / kernel_ns,
            useful_efficiency=shape.macs / (gemm.rate(dtype) * kernel_ns),
            ideal=pipeline.ideal(shape, variant),
            records=len(self._records),
            verified=self._verify(),
        )

    def _usages(self, name_of: Callable[[OpRecord], str]) -> tuple[Usage, ...]:
        """Return the usage by stage or engine in pipeline order. The record of the composite is not included."""
        groups: dict[str, list[OpRecord]] = {name: [] for name in STAGES}
        for record in self._records:
            if not _is_whole(record):
                groups[name_of(record)].append(record)
        return tuple(self._usage(name, group) for name, group in groups.items() if group)

    def _usage(self, name: str, records: Sequence[OpRecord]) -> Usage:
        busy = union_ps((record.t_start_ps, record.t_end_ps) for record in records)
        return Usage(
            name=name,
            records=len(records),
            busy_ns=ps_to_ns(busy),
            occupancy=busy / (self._kernel.end_ps - self._kernel.start_ps),
            window=self._window(records),
        )

    def _window(self, records: Sequence[OpRecord]) -> RunWindow:
        start_ps, end_ps = min(record.t_start_ps for record in records), max(record.t_end_ps for record in records)
        return RunWindow(ps_to_ns(start_ps - self._kernel.start_ps), ps_to_ns(end_ps - self._kernel.start_ps))

    def _verify(self) -> Verified:
        (comparison,) = self.result.comparisons
        return Verified(passed=comparison.passed, elements=comparison.elements, max_abs_error=comparison.max_abs_error)


def _is_whole(record: OpRecord) -> bool:
    """Return True for the record of a complete composite, to which the records of its tiles belong."""
    return record.kind == "gemm" and record.tile is None


def _engine(record: OpRecord) -> str:
    return ENGINE_OF[record.kind]


def _stage(record: OpRecord) -> str:
    """Return the stage of a record. A DMA record without a tile or panel stages an operand."""
    return LOAD if record.kind == "dma_read" and record.tile is None else _engine(record)
