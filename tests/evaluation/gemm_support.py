"""GEMM runs for tests: timing only, on a machine of one cube."""

from __future__ import annotations

import kernbench.benches
from compiled import compiled
from kernbench.common.dtypes import F16, DType
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Machine
from kernbench.evaluation.gemm_shapes import GemmShape
from kernbench.evaluation.gemm_theory import Ideal, IdealPipeline
from kernbench.runtime_api.bench_registry import lookup_bench
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.topology.builder import Topology

SMALL = ("system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1")

assert kernbench.benches.__path__  # importing it registers them


def machine(*overrides: str) -> Topology:
    """The default machine with one cube, changed as asked."""
    return compiled(*SMALL, *overrides)


def ideal(shape: GemmShape, variant: str, *overrides: str, dtype: DType = F16) -> Ideal:
    """The ideal time of a product."""
    return IdealPipeline(Machine(machine(*overrides).topology_obj), dtype).ideal(shape, variant)


def kernel_ns(shape: GemmShape, variant: str, *overrides: str, dtype: DType = F16) -> float:
    """How long the kernel takes."""
    asked = {"m": shape.m, "k": shape.k, "n": shape.n, "variant": variant, "dtype": dtype.name}
    result = run_bench(
        topology=machine(*overrides),
        bench_fn=lookup_bench("matmul-composite"),
        params=[f"bench.{name}={value}" for name, value in asked.items()],
        engine_factory=lambda topology, _: GraphEngine(topology, enable_data=False),
    )
    assert result.error is None
    return result.summary.kernels[0].pe_exec_ns
