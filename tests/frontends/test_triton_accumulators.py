"""Products that Triton kernels add up: in the matrix unit where they can, and near a product by tile plan."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extras import need
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import lookup_bench
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

need("triton")

import kernbench.triton  # noqa: E402, F401, I001 - before triton
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

KERNEL = Path(__file__).parents[2] / "examples" / "triton" / "matmul.py"
N = 512
MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
STEPS = 4
A, B = (np.random.default_rng(seed).standard_normal((STEPS, 16, 16)).astype(np.float16) for seed in (1, 2))
PRODUCTS = [a.astype(np.float32) @ b.astype(np.float32) for a, b in zip(A, B, strict=True)]


@triton.jit
def adds_products(a_ptr, b_ptr, c_ptr, HOW: tl.constexpr):
    """Products of STEPS pairs of blocks, added up."""
    rows = tl.arange(0, 16)
    at = rows[:, None] * 16 + rows[None, :]
    acc = tl.zeros((16, 16), tl.float16 if HOW == "f16" else tl.float32)
    for i in range(4):
        a = tl.load(a_ptr + i * 256 + at)
        b = tl.load(b_ptr + i * 256 + at)
        if HOW == "given":
            acc = tl.dot(a, b, acc)
        if HOW == "augmented":
            acc += tl.dot(a, b)
        if HOW == "sum":
            acc = acc + tl.dot(a, b)
        if HOW == "scaled":
            acc = acc * 0.5
            acc += tl.dot(a, b)
        if HOW == "apart":
            product = tl.dot(a, b)
            acc += product
        if HOW == "row":
            acc += tl.load(a_ptr + rows)[None, :] + tl.dot(a, b)
        if HOW == "f16":
            acc += tl.dot(a, b, out_dtype=tl.float16)
        if HOW == "cast":
            acc = (acc.to(tl.float16) + tl.dot(a, b)).to(tl.float32)
    tl.store(c_ptr + at, acc)


def added_up(how: str) -> tuple[np.ndarray[Any, Any], Counter[str]]:
    """The sum, and how many records of each kind it took."""
    engine = GraphEngine(MACHINE)
    with RuntimeContext(engine=engine) as torch:
        dp = DPPolicy(num_cubes=1, num_pes=1)
        a, b = (torch.empty(*x.shape, dtype="f16", dp=dp, name=name).copy_(x) for name, x in (("a", A), ("b", B)))
        c = torch.zeros(16, 16, dtype="f32", dp=dp, name="c")
        adds_products[(1,)](a, b, c, HOW=how)
        return c.numpy(), Counter(each.kind for each in engine.op_log)


@pytest.mark.parametrize("how", ["augmented", "sum"])
def test_a_product_that_is_added_at_once_is_a_dot_with_an_accumulator(how: str) -> None:
    assert added_up(how)[1] == added_up("given")[1]


# In four steps: MATH scales what is no longer zero, three times, and adds a product that has a name, each time.
@pytest.mark.parametrize(("how", "n_math"), [("augmented", 0), ("sum", 0), ("scaled", 3), ("apart", 4)])
def test_math_adds_what_the_matrix_unit_does_not(how: str, n_math: int) -> None:
    assert added_up(how)[1]["math"] == n_math


@pytest.mark.parametrize("how", ["given", "augmented", "sum", "scaled", "apart", "row", "f16", "cast"])
def test_the_sum_is_the_same_wherever_it_is_made(how: str) -> None:
    expected = np.zeros((16, 16), np.float32)
    for product in PRODUCTS:
        if how == "row":
            expected = expected + (A[0, 0].astype(np.float32) + product)
        elif how == "f16":
            expected = (expected + product).astype(np.float16).astype(np.float32)
        elif how == "cast":
            expected = expected.astype(np.float16).astype(np.float32) + product
        else:
            expected = expected * (0.5 if how == "scaled" else 1) + product
    # In f16 the order in which a product is summed can move a rounding: by one last place of numbers up to 32.
    np.testing.assert_allclose(added_up(how)[0], expected, rtol=1e-6, atol=0.04 if how in ("f16", "cast") else 1e-5)


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
