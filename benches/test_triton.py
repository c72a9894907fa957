"""Kernels in Triton's language beside the same commands by hand in ``tl``: CPU beyond start-up, pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import pytest

from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import BenchResult
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.topology.builder import Topology, resolve_topology

if find_spec("triton") is None:
    pytest.skip("pip install 'kernbench[triton]'", allow_module_level=True)

import kernbench.triton  # before triton
import triton
import triton.language as tl

PAIRS = 7
SIZE = 512
ROWS, COLUMNS, PADDED = 512, 781, 1024
ONE_PE = DPPolicy(num_pes=1, num_cubes=1)
ONE_CUBE = DPPolicy(pe="row_wise", num_cubes=1)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP_M * num_pid_n
    first_pid_m = pid // num_pid_in_group * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m

    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c = accumulator.to(tl.float16)

    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, c, mask=c_mask)


def matmul_by_hand(a, b, c, m, n, k, block_m, block_n, block_k, group, tl) -> None:  # type: ignore[no-untyped-def]
    """The commands of ``matmul_kernel`` in the same order."""
    columns = n // block_n
    for program in range(m // block_m * columns):
        first = program // (group * columns) * group
        rows = min(m // block_m - first, group)
        i = first + program % (group * columns) % rows
        j = program % (group * columns) // rows
        acc = None
        for at in range(0, k, block_k):
            x = tl.load(a + 2 * (i * block_m * k + at), (block_m, block_k), "f16", (2 * k, 2))
            y = tl.load(b + 2 * (at * n + j * block_n), (block_k, block_n), "f16", (2 * n, 2))
            acc = tl.dot(x, y, acc, "f32")
        tl.store(c + 2 * (i * block_m * n + j * block_n), tl.cast(acc, "f16"), (2 * n, 2))


@triton.jit
def softmax_kernel(
    output_ptr, input_ptr, input_row_stride, output_row_stride, n_rows, n_cols,
    BLOCK_SIZE: tl.constexpr, num_stages: tl.constexpr,
):  # fmt: skip
    row_start = tl.program_id(0)
    row_step = tl.num_programs(0)
    for row_idx in tl.range(row_start, n_rows, row_step, num_stages=num_stages):
        row_start_ptr = input_ptr + row_idx * input_row_stride
        col_offsets = tl.arange(0, BLOCK_SIZE)
        input_ptrs = row_start_ptr + col_offsets
        mask = col_offsets < n_cols
        row = tl.load(input_ptrs, mask=mask, other=-float("inf"))
        row_minus_max = row - tl.max(row, axis=0)
        numerator = tl.exp(row_minus_max)
        denominator = tl.sum(numerator, axis=0)
        softmax_output = numerator / denominator
        output_row_start_ptr = output_ptr + row_idx * output_row_stride
        output_ptrs = output_row_start_ptr + col_offsets
        tl.store(output_ptrs, softmax_output, mask=mask)


def softmax_by_hand(out, x, rows, columns, padded, programs, tl) -> None:  # type: ignore[no-untyped-def]
    """The commands of ``softmax_kernel`` in the same order."""
    under_way: list[Any] = []
    for row in range(tl.program_id(0), rows, programs):
        if len(under_way) == 8:  # num_stages=4
            tl.wait(under_way.pop(0))
        line = tl.load(x + 4 * row * columns, padded, "f32", valid=columns, other=-float("inf"))
        under_way.append(line)
        e = tl.exp(line - tl.max(line, axis=0))
        tl.store(out + 4 * row * columns, e / tl.sum(e, axis=0), valid=columns)


def matmul(torch: Any, by_hand: bool, blocks: tuple[int, int, int]) -> None:
    """512³ of f16 on one PE."""
    a, b, c = (torch.empty(SIZE, SIZE, dtype="f16", dp=ONE_PE, name=name) for name in "abc")
    block_m, block_n, block_k = blocks
    if by_hand:
        torch.launch("matmul", matmul_by_hand, a, b, c, SIZE, SIZE, SIZE, *blocks, 8)
    else:
        grid = (triton.cdiv(SIZE, block_m) * triton.cdiv(SIZE, block_n),)
        matmul_kernel[grid](
            a, b, c, SIZE, SIZE, SIZE, SIZE, 1, SIZE, 1, SIZE, 1,
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=8,
        )  # fmt: skip


def softmax(torch: Any, by_hand: bool) -> None:
    """Rows of f32 over the eight PEs of a cube."""
    x, out = (torch.empty(ROWS, COLUMNS, dtype="f32", dp=ONE_CUBE, name=name) for name in ("x", "out"))
    if by_hand:
        torch.launch("softmax", softmax_by_hand, out, x, ROWS, COLUMNS, PADDED, 8)
    else:
        softmax_kernel[(8,)](out, x, COLUMNS, COLUMNS, ROWS, COLUMNS, BLOCK_SIZE=PADDED, num_stages=4)


@pytest.fixture(scope="module")
def cube() -> Topology:
    """One cube: what is compared is the front end, not the mesh."""
    return resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])


PROGRAMS: dict[str, Callable[[Any, bool], None]] = {
    "softmax": softmax,
    "matmul 128x256x64": lambda torch, by_hand: matmul(torch, by_hand, (128, 256, 64)),
    "matmul 64x64x32": lambda torch, by_hand: matmul(torch, by_hand, (64, 64, 32)),
}


def run(machine: Topology, program: Callable[[Any, bool], None], by_hand: bool) -> tuple[float, BenchResult]:
    """The CPU seconds of one run, and the run; timing only."""
    begin = process_time()
    done = run_bench(
        topology=machine,
        bench_fn=lambda torch: program(torch, by_hand),
        engine_factory=lambda machine, _: GraphEngine(machine, enable_data=False),
    )
    taken = process_time() - begin
    done.raise_for_status()
    return taken, done


@pytest.mark.parametrize("name", PROGRAMS)
def test_triton_beside_tl(benchmark, cube: Topology, name: str) -> None:
    program = PROGRAMS[name]
    (_, triton_run), (_, hand_run) = (run(cube, program, by_hand) for by_hand in (False, True))
    assert np.isclose(triton_run.sim_ns, hand_run.sim_ns, rtol=0.05)
    ratios = []

    def pair() -> None:
        (triton_s, _), (hand_s, _) = (run(cube, program, by_hand) for by_hand in (False, True))
        ratios.append(triton_s / hand_s)

    benchmark.pedantic(pair, rounds=PAIRS)
    benchmark.extra_info |= {"sim_ns": triton_run.sim_ns, "by_hand_ns": hand_run.sim_ns, "ratio": median(ratios)}
    print(f"{name}: {median(ratios):.2f} x the CPU of the same by hand")
