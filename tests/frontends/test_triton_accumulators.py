"""A product by blocks in Triton against the same product by tile plan, on one PE."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from extras import need
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import lookup_bench
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import run_bench

need("triton")

KERNEL = Path(__file__).parents[2] / "examples" / "triton" / "matmul.py"
N = 512


def pe_ns(result: BenchResult) -> float:
    """How long the PE ran the kernel."""
    result.raise_for_status()
    return max(time for each in result.traces for time in each.pe_exec_ns.values())


@pytest.mark.slow
def test_accumulators_bring_blocks_near_a_composite() -> None:
    """Blocks of 256 x 64 x 64: their accumulators, 64 KiB each, stay in the matrix unit."""
    kernel = runpy.run_path(str(KERNEL))["matmul_kernel"].fn

    def blocks(torch: Any) -> None:
        a, b, c = (torch.empty(N, N, dtype="f16", dp=DPPolicy(num_cubes=1, num_pes=1)) for _ in range(3))
        sizes = {"BLOCK_M": 256, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 6, "ACTIVATION": "", "num_stages": 2}
        kernel[(N // 256 * (N // 64),)](a, b, c, N, N, N, N, 1, N, 1, N, 1, **sizes)

    params = [f"bench.{axis}={N}" for axis in "mkn"]
    staged = [*params, "bench.variant=load_load"]
    whole = pe_ns(run_bench(bench_fn=lookup_bench("matmul-composite"), params=staged, verify=False))
    assert pe_ns(run_bench(bench_fn=blocks, verify=False)) <= 1.15 * whole
