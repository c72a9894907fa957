"""Flash attention, forward and causal: the softmax goes along with the blocks of keys."""

import kernbench.triton
import numpy as np
import triton
import triton.language as tl
from kernbench.policy.placement.dp import DPPolicy


@triton.jit
def blocks_of_keys(
    acc, l_i, m_i, q, k_ptr, v_ptr, stride, scale, rows, first, last,
    BLOCK_N: tl.constexpr, HEAD: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    columns, dims = tl.arange(0, BLOCK_N), tl.arange(0, HEAD)
    for at in tl.range(first, last, BLOCK_N):
        at = tl.multiple_of(at, BLOCK_N)
        k = tl.load(k_ptr + (at + columns)[:, None] * stride + dims[None, :])
        qk = tl.dot(q, k.T) * scale
        if DIAGONAL:
            qk += tl.where(rows[:, None] >= (at + columns)[None, :], 0, -1.0e6)
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_new[:, None])
        alpha = tl.math.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_ptr + (at + columns)[:, None] * stride + dims[None, :])
        acc = tl.dot(p.to(tl.float16), v, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, scale, stride_head, stride,
    HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0)
    base = tl.program_id(1) * stride_head
    rows, dims = start * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD)
    q = tl.load(q_ptr + base + rows[:, None] * stride + dims[None, :])
    m_i = tl.full([BLOCK_M], -1.0e30, tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    scale *= 1.44269504  # log2(e): exp2 is what the hardware has
    full, end = start * BLOCK_M, (start + 1) * BLOCK_M
    acc, l_i, m_i = blocks_of_keys(
        acc, l_i, m_i, q, k_ptr + base, v_ptr + base, stride, scale, rows, 0, full, BLOCK_N, HEAD, False
    )
    acc, l_i, m_i = blocks_of_keys(
        acc, l_i, m_i, q, k_ptr + base, v_ptr + base, stride, scale, rows, full, end, BLOCK_N, HEAD, True
    )
    tl.store(out_ptr + base + rows[:, None] * stride + dims[None, :], (acc / l_i[:, None]).to(tl.float16))


def run(torch):
    heads, n, head, scale = 2, 256, 64, 0.5
    q, k, v = (np.random.default_rng(0).standard_normal((3, heads, n, head)) * 0.5).astype(np.float16)
    dp = DPPolicy(pe="row_wise", num_cubes=1)

    def device(host, name):
        return torch.empty(heads * n, head, dtype="f16", dp=dp, name=name).copy_(host.reshape(-1, head))

    out = torch.empty(heads * n, head, dtype="f16", dp=dp, name="out")
    args = (device(q, "q"), device(k, "k"), device(v, "v"), out, scale, n * head, head)
    attention_kernel[(triton.cdiv(n, 64), heads)](*args, HEAD=head, BLOCK_M=64, BLOCK_N=32)
    scores = np.einsum("hmd,hnd->hmn", q.astype(np.float32), k.astype(np.float32)) * scale
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -1e30)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (p / p.sum(-1, keepdims=True)) @ v.astype(np.float32)
    torch.testing.assert_close(out, wanted.reshape(-1, head).astype(np.float16), atol=1e-2, rtol=1e-2)
