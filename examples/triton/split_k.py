"""A product with few blocks and a long inner axis: several programs a block, which the memory adds up."""

import kernbench.triton
import numpy as np
import triton
import triton.language as tl
from kernbench.policy.placement.dp import DPPolicy


@triton.jit
def split_k_kernel(
    a_ptr, b_ptr, c_ptr, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    block, part = tl.program_id(0), tl.program_id(1)
    rows = block // tl.cdiv(N, BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = block % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(part * BLOCK_K, K, SPLIT * BLOCK_K):
        inner = k + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * N + columns[None, :])
        acc += tl.dot(a, b)
    tl.atomic_add(c_ptr + rows[:, None] * N + columns[None, :], acc, sem="relaxed")


def run(torch):
    m, n, k, split = 64, 64, 1024, 4
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = (rng.standard_normal((k, n)) * k**-0.5).astype(np.float16)
    dp = DPPolicy(pe="row_wise", num_cubes=1)
    a_dev = torch.empty(m, k, dtype="f16", dp=dp, name="a").copy_(a)
    b_dev = torch.empty(k, n, dtype="f16", dp=dp, name="b").copy_(b)
    c = torch.zeros(m, n, dtype="f32", dp=dp, name="c")
    split_k_kernel[(4, split)](a_dev, b_dev, c, n, k, BLOCK_M=32, BLOCK_N=32, BLOCK_K=64, SPLIT=split)
    torch.testing.assert_close(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-4, rtol=1e-4)
