"""A matrix product with tensor descriptors: blocks are named by their corner, and each program does several."""

import kernbench.triton
import numpy as np
import triton
import triton.language as tl
from kernbench.policy.placement.dp import DPPolicy


@triton.jit
def descriptor_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    b = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K])
    c = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), tl.num_programs(0)):
        row, column = tile // tl.cdiv(N, BLOCK_N) * BLOCK_M, tile % tl.cdiv(N, BLOCK_N) * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            acc = tl.dot(a.load([row, k]), b.load([column, k]).T, acc)
        c.store([row, column], acc.to(tl.float16))


def run(torch):
    m, n, k = 200, 136, 128
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = (rng.standard_normal((n, k)) * k**-0.5).astype(np.float16)
    dp = DPPolicy(pe="row_wise", num_cubes=1)
    a_dev = torch.empty(m, k, dtype="f16", dp=dp, name="a").copy_(a)
    b_dev = torch.empty(n, k, dtype="f16", dp=dp, name="b").copy_(b)
    c = torch.empty(m, n, dtype="f16", dp=dp, name="c")
    descriptor_kernel[(8,)](a_dev, b_dev, c, m, n, k, BLOCK_M=64, BLOCK_N=32, BLOCK_K=64)
    torch.testing.assert_close(c, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16), atol=4e-3)
