"""Layer normalisation of rows, forward: mean and variance by blocks, then the result."""

import kernbench.triton
import numpy as np
import triton
import triton.language as tl
from kernbench.policy.placement.dp import DPPolicy

ROWS = DPPolicy(pe="row_wise", num_cubes=1)


@triton.jit
def layer_norm_kernel(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * stride
    y_ptr += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
        x = tl.where(columns < N, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < N
        w = tl.load(w_ptr + columns, mask=mask)
        b = tl.load(b_ptr + columns, mask=mask)
        x = tl.load(x_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + columns, (x - mean) * rstd * w + b, mask=mask)


def run(torch):
    rows, columns = 40, 600
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((rows, columns)) * 0.5 - 2.3).astype(np.float16)
    w, b = rng.random((2, columns)).astype(np.float16)

    def device(host, name):
        return torch.empty(*host.shape, dtype=host.dtype, dp=ROWS, name=name).copy_(host)

    y = torch.empty(rows, columns, dtype="f16", dp=ROWS, name="y")
    mean, rstd = (torch.empty(rows, dtype="f32", dp=ROWS, name=name) for name in ("mean", "rstd"))
    args = (device(x, "x"), y, device(w, "w"), device(b, "b"), mean, rstd)
    layer_norm_kernel[(rows,)](*args, columns, columns, 1e-5, BLOCK=256, num_warps=4)
    wide = x.astype(np.float32)
    mu, var = wide.mean(1), wide.var(1)
    normal = (wide - mu[:, None]) / np.sqrt(var + 1e-5)[:, None]
    torch.testing.assert_close(y, (normal * w + b).astype(np.float16), atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(mean, mu)
    torch.testing.assert_close(rstd, 1 / np.sqrt(var + 1e-5))
